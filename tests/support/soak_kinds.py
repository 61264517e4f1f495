"""Kinds of random programs for ``tests/soak.py``: how each is drawn by seed, shown and judged."""

from __future__ import annotations

import re
import traceback

import near_misses
import numpy as np
import soak_cases
from generated import assert_close, compile_text
from large_modules import large_module
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.errors import NeuronError

KINDS = (*soak_cases.KINDS, "modules", "near")
_OURS = ("/neuronx_cc/", "/codegen/", "/passes/", "/runtime/", "/ir/", "/hlo_import/")
_XLA_EVERY = 8
"""XLA takes several times as long to compile a large module as all the rest takes; the others meet the reference. Ops
are verified after each pass for these only: that takes as long as the passes."""


def text(kind: str, seed: int) -> str:
    """The program, to be read."""
    if kind == "modules":
        return large_module(seed)
    if kind == "near":
        return near_misses.shown(near_misses.draw(seed))
    case = soak_cases.draw(kind, seed)
    shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in case.inputs)
    sizes, how = case.machine.sizes(), "drawn" if case.drawn is not None else "fused" if case.fused else "best"
    machine = f"{case.machine.name}, {sizes.banks} banks of PSUM, {how} schedules"
    return f"# {shapes}{', donated' * case.donated}; {case.options}; {machine}\n{case.source}\n"


def judge(kind: str, seed: int) -> tuple[str, str]:
    """Outcome (right, refused, wrong, full, failed, oracle) and what was raised.

    ``failed`` are programs that break a check or the compiler, ``full`` those for which there is no room on chip,
    ``oracle`` those on which the generator or jaxlib fails.
    """
    try:
        if kind == "modules":
            _check_module(seed)
        elif kind == "near":
            near_misses.check(near_misses.draw(seed))
        else:
            soak_cases.check(soak_cases.draw(kind, seed))
    except NeuronError as error:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if kind == "near" and any("/hlo_import/" in name for name in frames):  # what XLA's verifier refuses, too
            return "refused", str(error)
        if error.code == "EXSP001":
            return "full", traceback.format_exc()
        if error.code.startswith(("ERUN91", "ERUN921", "I", "EBIR", "EVRF064")):  # the last of what a pass leaves
            return "failed", traceback.format_exc()
        return "refused", str(error)
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if any(folder in name for name in files for folder in _OURS):
            return "failed", traceback.format_exc()
        return ("wrong", str(error)) if isinstance(error, AssertionError) else ("oracle", traceback.format_exc())
    return "right", ""


def _check_module(seed: int) -> None:
    source = large_module(seed)
    module = parse_text(source)
    generator = np.random.default_rng(seed)
    shapes = [hlo.shape_of(argument) for argument in module.entry.block.args]
    inputs = [generator.integers(-3, 4, shape.dims).astype(shape.numpy_dtype) for shape in shapes]
    if seed % _XLA_EVERY:
        wanted = reference.evaluate(module, list(inputs))
    else:  # jaxlib does not translate fusions
        called = re.sub(r"fusion\((.*)\), kind=kLoop, calls=", r"call(\1), to_apply=", source)
        wanted = run_text(called, inputs)
    found = compile_text(source, verify_each=seed % _XLA_EVERY == 0).run(inputs)
    try:
        _compare(found, wanted)
    except AssertionError:
        if seed % _XLA_EVERY:
            raise
        # XLA's CPU client merges slices of slices without clamping their starts: what the ops mean decides
        _compare(found, reference.evaluate(module, list(inputs)))


def _compare(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for number, (result, want) in enumerate(zip(found, wanted, strict=True)):
        assert_close(result, want, 0.0, name=f"result {number}")
