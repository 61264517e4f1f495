"""Near misses of what passes and kernels recognise: HLO of such forms, changed in one place or two, by seed.

A constant, an operator, an operand, an order of operands, an attribute; an op put in between; one more reader. What
XLA does not take is drawn again. Results are compared with jaxlib's CPU client, but for elements that hang on rounding.
"""

from __future__ import annotations

import contextlib
import random
import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import near_miss_forms
import numpy as np
from generated import TRN1, assert_close, text_of
from near_miss_changes import FLOATS, Mutant
from soak_cases import TYPES, Case, run
from xla_oracle import run_text

from neuronx_cc.codegen.context import Transposes
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.reference import evaluate

Array = np.ndarray[Any, Any]
SIZES = {
    **{"A": (1, 3, 8, 16, 65, 128, 130), "R": (8, 9, 32, 64, 127, 200, 512), "D": (1, 5, 16, 64), "L": (32, 300)},
    **{"B": (1, 2, 3), "H": (1, 2, 4), "S": (1, 4, 16, 96, 128, 160), "T": (4, 16, 96, 128, 160, 520)},
    **{"N": (1, 2, 4), "P": (4, 8, 13), "C": (1, 3, 8, 16), "E": (3, 16, 40)},
}
"""Of which a capital is one."""
SQUARE = (4, 8, 16, 24, 33, 64)
"""All sizes of a form are one of these, as often as not: then dims can be mistaken for each other."""
MEMORY_BOUND = TRN1.with_settings(["dma.fixed_latency_ns=1", "dma.bw_per_engine=0.02", "dma.bw_both_per_engine=0.02"])
"""A machine on which transfers take longest, so that what pays for large arrays alone is done for small ones."""
ATTEMPTS = 40
WOBBLE = 2.0**-22
"""Relative change of inputs, to see which elements hang on rounding."""

# ---- programs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Near:
    """A near miss, and how it is compiled."""

    form: str
    text: str
    inputs: list[Array]
    wanted: list[Array]
    machine: Machine
    drawn: int | None
    fused: bool


def form_text(name: str, chooser: random.Random) -> tuple[str, list[Array]]:
    """HLO of a form with sizes that are drawn, as it is recognised, and its inputs."""
    parameters, expression = near_miss_forms.FORMS[name]
    square = chooser.random() < 0.5
    size = chooser.choice(SQUARE if "H" not in parameters else SQUARE[:4])
    sizes = {letter: size if square and letter not in "LN" else chooser.choice(of) for letter, of in SIZES.items()}
    dtype = chooser.choice(("f32", "f32", "f32", "bf16", "f16"))
    generator = np.random.default_rng(chooser.randrange(2**31))
    spread = chooser.choice((1, 1, 1, 1, 4, 30))
    names, inputs = [], []
    for parameter in parameters.split(" "):
        match = re.fullmatch(r"(\w+):(\w+)\[([\w,]*)\](?:<(\w+))?", parameter)
        assert match is not None, parameter
        dims = tuple(sizes[dim] if dim in sizes else int(dim) for dim in match[3].split(",") if dim)
        kind = dtype if match[2] == "F" else match[2]
        names.append(match[1])
        inputs.append(_numbers(generator, kind, dims, sizes.get(match[4], match[4]), spread))
    namespace = dict(near_miss_forms.NAMES)
    exec(f"def program({', '.join(names)}):\n    return ({expression},)", namespace)
    return print_module(parse_text(text_of(namespace["program"], *inputs))), inputs


def _numbers(generator: Any, dtype: str, dims: tuple[int, ...], below: Any, spread: float) -> Array:
    if dtype == "pred":
        return np.asarray(generator.random(dims) < 0.5)
    if below is not None:
        return np.asarray(generator.integers(0, int(below), dims).astype(TYPES[dtype]))
    if dtype not in FLOATS:
        limits = np.iinfo(TYPES[dtype])
        ends = [0, 1, 2, limits.max, limits.min, limits.max - 1]
        plain = generator.integers(limits.min, limits.max, dims, endpoint=True, dtype=TYPES[dtype])
        small = generator.integers(0 if limits.min == 0 else -9, 40, dims)
        mixed = np.where(generator.random(dims) < 0.4, small, plain)
        return np.asarray(
            np.where(generator.random(dims) < 0.2, generator.choice(ends, dims), mixed).astype(TYPES[dtype])
        )
    values = np.clip(generator.standard_normal(dims), -3, 3) * spread
    values = np.where(generator.random(dims) < 0.03, generator.choice([0.0, -0.0, 1.0], dims), values)
    return np.asarray(values.astype(TYPES[dtype]))


def draw(seed: int) -> Near:
    """The near miss of a seed, always the same; one of twenty is the form itself."""
    chooser = random.Random(f"near {seed}")
    name = chooser.choice(list(near_miss_forms.FORMS))
    text, inputs = form_text(name, chooser)
    count = chooser.choice((0, *(1,) * 13, *(2,) * 4, 3, 3))
    for _ in range(ATTEMPTS):
        mutant = Mutant(text, chooser)
        made = 0
        for _ in range(count * 30):
            made += made < count and mutant.change()
        with contextlib.suppress(Exception):  # XLA refuses it, or an index reaches nowhere
            wanted = run_text(mutant.text(), inputs)
            machine = chooser.choice((TRN1, TRN1, MEMORY_BOUND))
            drawn = seed if chooser.random() < 0.2 else None
            return Near(name, mutant.text(), inputs, wanted, machine, drawn, chooser.random() < 0.6)
    wanted = run_text(text, inputs)
    return Near(name, text, inputs, wanted, TRN1, None, True)


def check(near: Near) -> None:
    """Raises AssertionError where a result differs by more than rounding explains."""
    exact = [False for _ in near.wanted]
    case = Case(near.form, near.inputs, exact, {}, near.machine, near.drawn, near.fused, watched=True)
    found = run(case, near.text, Transposes.WATCHED)
    wrong = _differences(found, near.wanted)
    if not wrong:
        return
    with np.errstate(all="ignore"):
        meant = evaluate(parse_text(near.text), near.inputs)
        wrong = {at: error for at, error in wrong.items() if at in _differences(found, meant)}
        if wrong:
            _beyond_rounding(near, found, meant, wrong)


def _differences(found: list[Array], wanted: list[Array]) -> dict[int, AssertionError]:
    wrong = {}
    for at, (result, want) in enumerate(zip(found, wanted, strict=True)):
        try:
            assert_close(result, want, 3e-5, name=f"result {at}")
        except AssertionError as error:
            wrong[at] = error
    return wrong


def _beyond_rounding(near: Near, found: list[Array], meant: list[Array], wrong: dict[int, AssertionError]) -> None:
    """Raises what is wrong in elements that hardly move with their inputs, and with the precision of what computes."""
    others = [near.wanted, meant]
    for seed in range(4):
        generator = np.random.default_rng(seed)
        moved = [_wobbled(array, generator) for array in near.inputs]
        others.append(run_text(near.text, moved))
    precise = re.sub(r"\b(?:f32|bf16|f16)\[", "f64[", near.text)
    with contextlib.suppress(Exception):  # what looks at bits has no wider form
        wide = [array.astype(np.float64) if array.dtype.kind in "fV" else array for array in near.inputs]
        others.append(run_text(precise, wide))
    for at, error in wrong.items():
        known = np.stack(
            [np.asarray(each[at]).astype(np.float64) for each in others if each[at].shape == found[at].shape]
        )
        got = found[at].astype(np.float64)
        low, high = np.nan_to_num(known, nan=np.inf).min(0), np.nan_to_num(known, nan=np.inf).max(0)
        unsettled = np.isnan(known).any(0) != np.isnan(known).all(0)
        slack = np.where(np.isfinite(high - low), high - low, 0.0)
        finite = np.abs(known[np.isfinite(known)])
        scale = float(finite.max(initial=0.0))
        ulp = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(found[at].dtype.name, 0.0)
        room = 10 * slack + max(3e-5, 3 * ulp) * scale + 1e-6
        narrow = {"float16": 6e4}.get(found[at].dtype.name, 3e38)
        if found[at].dtype.kind in "biu":
            bad = (got != known[0]) & (low == high)
        else:
            bad = ~(np.abs(got - known[0]) <= room) & (got != known[0])
            bad &= ~(np.isnan(got) & np.isnan(known).any(0)) & ~unsettled
            bad &= ~(np.isinf(got) & (high > narrow)) & ~(np.isinf(got) & (low < -narrow))
            bad &= np.isfinite(known).all(0) | (low == high) | np.isnan(known).all(0)
        if bad.any():
            first = np.flatnonzero(bad)[0]
            others_here = known.reshape(len(known), -1)[:, first].tolist()
            raise AssertionError(
                f"{error}\n{bad.sum()} beyond rounding, first {first}: {got.flat[first]!r}, others {others_here}"
            )


def _wobbled(array: Array, generator: Any) -> Array:
    if array.dtype.kind not in "fV":
        return array
    step = WOBBLE if array.dtype.itemsize == 4 else 2 * float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]
    moved = array.astype(np.float64) * (1 + step * generator.uniform(-1, 1, array.shape))
    return np.asarray(moved.astype(array.dtype))


def shown(near: Near) -> str:
    """To be read."""
    machine = "memory bound" if near.machine is MEMORY_BOUND else "trn1"
    shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in near.inputs)
    how = f"schedules of seed {near.drawn}" if near.drawn is not None else "fused" if near.fused else "best schedules"
    return f"# near miss of {near.form}; {shapes}; {machine}; {how}\n{near.text}\n"
