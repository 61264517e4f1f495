"""Random programs by seed, run on the simulator with all checks and compared with jaxlib's CPU client."""

from __future__ import annotations

import contextlib
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import algorithms
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import plain_jax
import recurrences
from dilated_inputs import holes_left_out
from drawn_schedules import drawn_schedules
from generated import TRN1, assert_close, compile_text, text_of
from jax import lax
from jax_neighbourhoods import NEIGHBOURHOODS as KERNELS
from jax_sketch import NUMPY, Sketch
from jax_structures import ALL, CONSUMERS, FAMILIES, extend
from jax_uneven_rows import uneven
from soak_changes import altered, read_in_part
from view_exchanges import AXIS, Lax, Marked, collectives
from view_readers import TABLES, reader
from view_readers import drawn as drawn_views
from xla_oracle import run_text

from neuronx_cc.codegen.context import Transposes
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.passes import even_rows
from neuronx_cc.runtime.devices import replicate, run_devices
from neuronx_cc.runtime.executable import Executable

Array = np.ndarray[Any, Any]
TYPES = {name: np.dtype(getattr(ml_dtypes, numpy, numpy)) for name, numpy in NUMPY.items()}
CASTS = (("none", "bf16"),) * 7 + (("matmult", "bf16"), ("matmult", "fp16"), ("matmult", "tf32"), ("all", "bf16"))
EXACT_TO = {"bf16": 2**8, "fp16": 2**11, "tf32": 2**11}
STEP = {"bf16": 2**-8, "fp16": 2**-11, "tf32": 2**-11}
NOTHING = 1e-6
"""Of results that are all smaller nothing is left but rounding."""
TRIES = 20
"""Programs that are drawn until JAX takes one."""
CASTS_DRAWN = 3
"""How often the inputs of a program with casts are rounded at random, to see what casts may change."""
NEIGHBOURHOODS = KERNELS | {"uneven": (uneven,)}
FAMILIES = FAMILIES | NEIGHBOURHOODS
FAMILY_KINDS = ("jax", *FAMILIES)
KINDS = (
    *FAMILY_KINDS,
    "views",
    "residents",
    "types",
    "devices",
    "plain",
    "algorithms",
    "recurrences",
    "parts",
    "altered",
    "tiny",
    "schedules",
    "nonfinite",
)
"""``views``: a kernel of each kind in turn, whose operands are read through views, ``types`` in floats of 8 bits
and integers of 64, ``residents`` through those that copy nothing, of what lies on chip, ``devices`` on two to
four devices that exchange some of them; ``plain``: functions of JAX's library in odd spellings, alone or in a
transformation, ``algorithms``: what users write of these, ``recurrences``: loops of many steps and what reads their
states; ``parts``: a program of a family of which a part is read,
``altered``: one with something else in the place of some values;
``tiny``: one for a machine with a half, a quarter or an eighth of the memories on chip, or few banks of PSUM;
``schedules``: one whose schedules are drawn among the candidates; ``nonfinite``: one with infinities and NaNs among
its inputs, as the JAX backend runs it.
"""
AROUND = ("",) * 6 + ("lax.map(lambda given: each(*given), {})", "jax.vmap(each)(*{})")
"""What readers of views stand in."""
LIBRARIES = {"plain": plain_jax.makers, "algorithms": algorithms.makers, "recurrences": recurrences.makers}
"""Kinds of programs that are text."""
RARE = {"mixed_precision_accumulation": False, "fast_relayout": False, "saturate_infinity": True}
"""Options of some algorithms."""
XLA_EVERY = 8
"""Of programs of each reader of views, how many meet the reference of their ops alone: all but one."""
MACHINES = Path(__file__).parents[1] / "machines"
TINY = ("half", "quarter", "eighth")
BANKS = (1, 2, 4)
"""Of PSUM."""
SCHEDULED = (*NEIGHBOURHOODS, "dot", "convolution", "reduce", "map")
"""Families of kernels that have schedules."""
NUMERIC = (*NEIGHBOURHOODS, "epilogue", "attention", "gradient")
"""Families whose programs compute with real numbers."""
FUSED = ("attention", "epilogue", "gradient")
"""Families of which kernels take in what lies between contractions."""


@dataclass(frozen=True)
class Case:
    """A program of one kind and seed."""

    source: str
    """Python text of the function ``program``."""
    inputs: list[Array]
    exact: list[bool]
    """Of each result."""
    options: dict[str, Any]
    machine: Machine = TRN1
    drawn: int | None = None
    """By which seed schedules are drawn; None: the best by estimate."""
    fused: bool = False
    """Whether attentions are one kernel, and columns of few rows lie on the partitions, wherever that is possible."""
    watched: bool = False
    """Whether it runs as in the JAX backend, which infinities do not spread in."""
    padded: bool = False
    """Whether rows are added wherever that is possible."""
    donated: bool = False
    """Whether results may lie in the memory of inputs."""
    quick: bool = False
    """Whether it meets the reference of its ops, not XLA, and ops are not verified after each pass: that takes half as
    long."""

    x64: bool = False
    """Whether JAX has integers of 64 bits."""
    devices: int = 1
    """How many run it together."""
    rounding: float = 3e-5
    """By how much of its largest element a result may be off without further question."""

    def given(self) -> list[list[Array]]:
        """Inputs of each device: the same numbers, at other places."""
        return [[np.roll(array, 7 * device) for array in self.inputs] for device in range(self.devices)]

    def function(self, wide: bool = False, exchanging: type[Lax] = Lax, moved: Any = None) -> Any:
        """The function; ``wide``: floats are FP64; ``exchanging``: what collectives are; ``moved``: of constants."""
        types = {
            name: np.dtype(np.float64) if wide and name in EXACT_FLOATS else dtype for name, dtype in TYPES.items()
        }
        names = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "T": types, "D": exchanging(self.devices)}
        moved = moved or (lambda array: array)
        names["K"] = lambda dtype, dims, seed, exact: jnp.asarray(
            moved(numbers(dtype, dims, seed, exact).astype(types[dtype]))
        )
        names["XOR"] = (lambda x, _: x) if wide else exclusive_or
        exec(self.source, names)
        return names["program"]


EXACT_FLOATS = ("f32", "bf16", "f16")


def exclusive_or(x: Any, bits: Any) -> Any:
    """Of the bits of floats; there are no bits in programs with FP64 in their place, and ``bits`` are zeros."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, bits.dtype) ^ bits, x.dtype)


def numbers(dtype: str, dims: tuple[int, ...], seed: int, exact: bool, most: int = 3) -> Array:
    """Whole numbers up to ``most``, or normal ones."""
    generator = np.random.default_rng(seed)
    if dtype == "pred":
        return generator.integers(0, 2, dims).astype(bool)
    if exact:
        low = 0 if dtype.startswith("u") else -most
        return generator.integers(low, most + 1, dims).astype(TYPES[dtype])
    return np.clip(generator.standard_normal(dims), -3, 3).astype(TYPES[dtype])


def draw(kind: str, seed: int) -> Case:
    """The program of ``kind`` and ``seed``, always the same."""
    if kind in TABLES:
        return viewed(seed, kind)
    if kind in LIBRARIES:
        return plain(seed, kind)
    if kind == "tiny":
        chooser = random.Random(f"tiny {seed}")
        machine = tiny(chooser)
        return replace(draw(chooser.choice(FAMILY_KINDS), seed), machine=machine)
    if kind == "schedules":
        chooser = random.Random(f"schedules {seed}")
        return replace(draw(chooser.choice((*FAMILY_KINDS, *SCHEDULED * 3)), seed), drawn=seed)
    if kind == "parts":
        chooser = random.Random(f"parts {seed}")
        return read_in_part(draw(chooser.choice((*NUMERIC, *FUSED * 4, *FAMILY_KINDS)), seed), chooser)
    if kind == "altered":
        chooser = random.Random(f"altered {seed}")
        return altered(draw(chooser.choice(NUMERIC), seed), chooser)
    if kind == "nonfinite":
        chooser = random.Random(f"nonfinite {seed}")
        return spoiled(draw(chooser.choice(NUMERIC), seed), chooser)
    chooser = random.Random(f"{kind} {seed}")
    whole = chooser.random() < (0.25 if kind == "gradient" else 0.6) and kind not in ("gradient", *NEIGHBOURHOODS)
    cast, narrow = chooser.choice(CASTS)
    largest = chooser.choice((2000, 8000, 20_000, 20_000, 60_000, 200_000))
    g = Sketch(chooser, whole, largest if kind not in NEIGHBOURHOODS else max(largest, 20_000))
    if cast == "all":
        g.limits = {name: min(limit, EXACT_TO[narrow]) for name, limit in g.limits.items()}
    if cast != "none":
        g.dot_limit = EXACT_TO[narrow]
    types = ("f32", "f32", "f32", "f32", "bf16", "f16", "s32", "s32", "pred", "s8", "u8", "s16", "u16", "u32")
    for _ in range(chooser.randint(1, 3)):
        g.fresh(chooser.choice(types if kind in ("jax", "map", "movement") else types[:8]), g.dims())
    if kind == "jax":
        for _ in range(chooser.randint(3, 16)):
            extend(g, ALL)
    else:
        for _ in range(chooser.randint(0, 2)):
            extend(g, (CONSUMERS))
        for _ in range(chooser.randint(1, 2)):
            extend(g, FAMILIES[kind])
        for _ in range(chooser.randint(0, 2)):
            extend(g, CONSUMERS)
    used = " ".join(line.split("=", 1)[-1] for line in g.lines)
    made = [v for v in g.values if v.home == "made"] or g.values
    unused = [v for v in made if f"{v.name}" not in used.replace(",", " ").replace(")", " ").split()]
    roots = (unused[-4:] or made[-1:]) + ([chooser.choice(made)] if chooser.random() < 0.3 else [])
    roots = list({root.name: root for root in roots}.values())
    parameters = ", ".join(value.name for value in g.inputs)
    result = ", ".join(root.name for root in roots)
    lines = [f"def program({parameters}):", *("    " + line for line in g.lines), f"    return ({result},)"]
    inputs = [numbers(v.dtype, v.dims, seed * 100 + at, v.exact) for at, v in enumerate(g.inputs)]
    options = {"auto_cast": cast, "auto_cast_type": narrow}
    flags = (TRN1, None, *(chooser.random() < 0.5 for _ in range(3)))
    return Case("\n".join(lines), inputs, [root.exact for root in roots], options, *flags)


def viewed(seed: int, kind: str = "views") -> Case:
    """A kernel that reads views; some are made for little memory, or by schedules that are drawn."""
    chooser = random.Random(f"{kind} {seed}")
    devices = chooser.choice((2, 2, 3, 4)) if kind == "devices" else 1
    g, results = drawn_views(seed, chooser, kind, devices)
    around = chooser.choice(AROUND) if g.inputs else ""
    if "vmap" in around and devices > 1:
        around = ""
    parameters = ", ".join(value.name for value in g.inputs)
    result = f"return ({', '.join(value.name for value in results)},)"
    lines = [f"def program({parameters}):  # {reader(seed, kind)}", *("    " + line for line in (*g.lines, result))]
    if around:
        lines[0] = lines[0].replace("program", "each")
        lines += [f"def program({parameters}):", "    return " + around.format(f"({parameters},)")]
    ahead = (chooser.choice((1, 2, 3)),) if around else ()
    inputs = [
        numbers(value.dtype, (*ahead, *value.dims), seed * 100 + at, value.exact, g.most_given[value.name])
        for at, value in enumerate(g.inputs)
    ]
    source = "\n".join(lines)
    machine = tiny(chooser) if chooser.random() < 0.2 else TRN1
    schedules = seed if chooser.random() < 0.25 else None
    fused, padded, donated, watched = (chooser.random() < share for share in (0.3, 0.2, 0.3, 0.15))
    cast, narrow = chooser.choice(CASTS) if not g.real and chooser.random() < 0.5 else ("none", "bf16")
    if cast == "all":  # rounds what is no operand of a contraction
        cast = "matmult"
    quick = seed // len(TABLES[kind]) % XLA_EVERY > 0 and "linalg" not in source
    options = {"auto_cast": cast, "auto_cast_type": narrow}
    if kind == "types":
        options["int64"] = "exact"
    flags = (fused, watched, padded, donated, quick, kind == "types", devices)
    return Case(source, inputs, [value.exact for value in results], options, machine, schedules, *flags)


def plain(seed: int, kind: str = "plain") -> Case:
    """A function of JAX's library, or an algorithm; what JAX does not take is drawn anew."""
    made = list(LIBRARIES[kind]().values())
    write, real = made[seed % len(made)]
    for attempt in range(TRIES):
        chooser = random.Random(f"{kind} {seed} {attempt}")
        p = plain_jax.Plain(chooser, largest=chooser.choice(plain_jax.LARGEST))
        write(p)
        if chooser.random() < 0.5:
            plain_jax.chained(p)
        cast, narrow = ("none", "bf16") if p.discrete else chooser.choice(CASTS)
        options: dict[str, Any] = {"auto_cast": cast, "auto_cast_type": narrow}
        x64 = (
            chooser.random() < 0.15
            or any("64'" in line for line in p.lines)
            or any("64" in dtype for dtype, _, _ in p.inputs)
        )
        if x64:
            plain_jax.widened(p)
            options |= {"int64": "exact", "fp64_as_fp32": True}
        rounding = 3e-5 if kind == "plain" else 2e-3 if x64 else 1e-4
        if kind == "recurrences" and any(dtype in ("bf16", "f16") for dtype, _, _ in p.inputs):
            rounding = 2**-7  # states decay slowly, and so do roundings
        source = plain_jax.text(p, real)
        if kind == "algorithms":
            source = algorithms.surrounded(p, source)
            options |= {name: value for name, value in RARE.items() if chooser.random() < 0.1}
        inputs = [numbers(dtype, dims, seed * 100 + at, whole) for at, (dtype, dims, whole) in enumerate(p.inputs)]
        machine = tiny(chooser) if chooser.random() < 0.1 else TRN1
        schedules = seed if chooser.random() < 0.2 else None
        flags = {"donated": chooser.random() < 0.2, "x64": x64, "rounding": rounding}
        case = Case(source, inputs, [], options, machine, schedules, **flags)
        try:
            with jax.enable_x64(x64):
                results = jax.tree.leaves(jax.eval_shape(case.function(), *inputs))
        except Exception:
            if attempt + 1 == TRIES:
                raise
        else:
            exact = [not jnp.issubdtype(result.dtype, jnp.inexact) for result in results]
            return replace(case, exact=exact)
    raise AssertionError("a function is drawn, or its error raised")


def tiny(chooser: random.Random) -> Machine:
    """A machine with less on chip."""
    machine = find_machine(MACHINES / f"{chooser.choice(TINY)}.toml")
    if chooser.random() < 0.5:
        banks = chooser.choice(BANKS) * machine.sizes().bank_bytes
        machine = machine.with_settings([f"memory.psum_partition_bytes={banks}"])
    return machine


def spoiled(case: Case, chooser: random.Random) -> Case:
    """``case`` with up to three elements that are not finite in one of its inputs."""
    floats = [at for at, array in enumerate(case.inputs) if array.dtype.kind not in "biu" and array.size]
    if any(numbers in case.source for numbers in ("iota", "arange", "tril")):  # columns that they mask are not computed
        floats = []
    inputs = [array.copy() for array in case.inputs]
    for at in floats and [chooser.choice(floats)]:
        for _ in range(chooser.randint(1, 3)):
            inputs[at].flat[chooser.randrange(inputs[at].size)] = chooser.choice((np.inf, -np.inf, np.nan))
    return replace(case, inputs=inputs, watched=True)


def run(case: Case, text: str, transposes: Transposes) -> list[Array]:
    """What the simulator computes; with watched transposes as the JAX backend does it, once more where they spread."""
    choices = drawn_schedules(case.drawn) if case.fused or case.drawn is not None else contextlib.nullcontext()
    rows = mock.patch.object(even_rows, "gain", return_value=1.0) if case.padded else contextlib.nullcontext()
    with choices, rows:
        compiled = compile_text(text, case.machine, verify_each=not case.quick, transposes=transposes, **case.options)
    if case.devices > 1:
        together = replicate(Executable.from_program(compiled.program, compiled.constants))
        return [array for result in run_devices(together, case.given()) for array in result.outputs[: len(case.exact)]]
    found = compiled.run(case.inputs)
    if transposes is Transposes.WATCHED and len(found) > len(case.exact):
        return run(case, text, Transposes.BITS) if np.isnan(found[-1][0]) else found[:-1]
    return found


def check(case: Case) -> None:
    """Compile, run with all checks, compare. Raises AssertionError for wrong values, else what is raised on the way."""
    with jax.enable_x64(case.x64):
        text = text_of(case.function(exchanging=Marked), *case.inputs, donated=case.donated)
    if case.devices > 1:
        return check_together(case, collectives(text, case.devices))
    wanted = evaluate(parse_text(text), case.inputs) if case.quick else oracle(text, case.inputs)
    watched = Transposes.WATCHED
    found = run(case, text, watched if case.watched else Transposes.VALUES)
    step = STEP[case.options["auto_cast_type"]] if case.options["auto_cast"] != "none" else 0.0
    wrong = differences(case, found, wanted, step)
    if wrong and not case.watched:  # infinities may have spread
        wrong = differences(case, found := run(case, text, watched), wanted, step)
    if not wrong:
        return
    if case.quick:
        wanted = oracle(text, case.inputs)
    # XLA's CPU client merges slices of slices without clamping their starts, and loses NaNs in maxima of rows: what
    # the ops mean decides
    if "linalg" not in case.source:  # calls have no reference
        meant = differences(case, found, evaluate(parse_text(text), case.inputs), step)
        wrong = {at: error for at, error in wrong.items() if at in meant}
        if wrong and "conv" in case.source:
            with holes_left_out():
                meant = differences(case, found, evaluate(parse_text(text), case.inputs), step)
            wrong = {at: error for at, error in wrong.items() if at in meant}
    for at, error in wrong.items():
        if case.exact[at]:
            raise error
    precise = wide_results(case)
    # casts of inputs move a sum that cancels by more than its own size
    cast = [wide_results(case, step, seed) for seed in range(CASTS_DRAWN)] if step else []
    for at, error in wrong.items():
        slack, off = distance(wanted[at], precise[at]), distance(found[at], precise[at])
        moved = max((distance(each[at], precise[at]) for each in cast), default=0.0)
        scale = float(np.max(np.abs(precise[at]), initial=0.0, where=np.isfinite(precise[at])))
        # what cancels altogether is as exact as what it is made of
        if not off <= 10 * (slack + moved) + (
            max(case.rounding, 40 * step) * scale if scale > NOTHING else 10 * NOTHING + 8 * step
        ):
            raise AssertionError(f"{error}\nFP64: off by {off:.3g}, XLA by {slack:.3g}, of {scale:.3g}")


def oracle(text: str, inputs: list[Array]) -> list[Array]:
    """What XLA's CPU client computes; of what it has not, such as BF16 products summed in FP32, what the ops mean."""
    try:
        return run_text(text, inputs)
    except jax.errors.JaxRuntimeError as error:
        if not re.search("UNIMPLEMENTED|not supported|Failed after topk", str(error)):
            raise
        return evaluate(parse_text(text), inputs)


def check_together(case: Case, text: str) -> None:
    """The same on several devices: each result of each device, beside those of all devices at once on one."""
    function = jax.vmap(case.function(), axis_name=AXIS, axis_size=case.devices)
    stacked = [np.stack(arrays) for arrays in zip(*case.given(), strict=True)]
    meaning = text_of(function, *stacked)
    together = replace(case, exact=case.exact * case.devices)
    step = STEP[case.options["auto_cast_type"]] if case.options["auto_cast"] != "none" else 0.0
    found = run(case, text, Transposes.WATCHED)
    wrong: dict[int, AssertionError] = {}
    for means in (oracle, lambda text, inputs: evaluate(parse_text(text), inputs)):  # XLA has its errors, too
        wanted = means(meaning, stacked)
        each = [result[device] for device in range(case.devices) for result in wanted]
        wrong = differences(together, found, each, 20 * step)
        if not wrong:
            return
    for at, error in wrong.items():
        raise AssertionError(f"{error}, on device {at // len(case.exact)}")


def differences(case: Case, found: list[Array], wanted: list[Array], step: float) -> dict[int, AssertionError]:
    """By number of the result, those that are not close."""
    wrong = {}
    for at, (result, want) in enumerate(zip(found, wanted, strict=True)):
        try:
            assert_close(result, want, 0.0 if case.exact[at] else max(3e-5, 8 * step), name=f"result {at}")
        except AssertionError as error:
            wrong[at] = error
    return wrong


def distance(array: Array, precise: Array) -> float:
    """The greatest one; infinite if one is finite and the other is not, unless that is beyond its type."""
    array, least = wide(array), float(np.finfo(np.float32).max if array.dtype.itemsize > 2 else 6e4)
    off = np.where(np.isfinite(array) | np.isfinite(precise), np.abs(array - precise), 0.0)
    off[np.isinf(array) & (np.abs(precise) > least)] = 0.0
    return float(np.max(np.nan_to_num(off, nan=np.inf), initial=0.0))


def wide(array: Array) -> Array:
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag])
    return np.asarray(array).astype(np.float64)


def wide_results(case: Case, step: float = 0.0, seed: int = 0) -> list[Array]:
    """The results with FP64 in place of all floats, whose inputs and constants are off by up to ``step`` of each
    element.
    """
    random = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        return wide(array) * (1 + step * random.uniform(-1, 1, array.shape)) if array.dtype.kind not in "biu" else array

    inputs = [moved(array) for array in case.inputs]
    with jax.enable_x64(True):
        function = case.function(wide=True, moved=moved)
        results = jax.tree.leaves(jax.jit(function)(*[jnp.asarray(array) for array in inputs]))
        return [wide(result) for result in results]
