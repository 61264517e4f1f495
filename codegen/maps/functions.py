"""Activations that arrive as several ops: which function of Scalar's tables ops of one value compute together.

They are found by value, not by spelling. Products, sums and the functions in ``EVALUATED`` make an analytic function of
what they start from; where it equals one of ``FUNCTIONS`` at all ``POINTS``, to the precision of its constants, it is
that function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.functions import ACTIVATION, UNARY, Array
from neuronx_cc.ir.types import NUMPY_DTYPE

FUNCTIONS = ("gelu", "gelu_apprx_tanh", "silu")
"""Products of ``x`` with a function of it: their errors are relative to ``x``."""
CURVED = frozenset(["erf", "exponential", "logistic", "tanh"])
EVALUATED: Mapping[str, Callable[..., Array]] = {
    **{opcode: UNARY[opcode] for opcode in CURVED},
    **{"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide},
    **{"negate": np.negative, "convert": np.positive},
}
MOST = 16
"""Ops of one function."""
POINTS = np.linspace(-12, 12, 97, dtype=np.float32)
EPSILON = {"f32": 2.0**-20, "bf16": 2.0**-10, "f16": 2.0**-13}
"""Element type of the ops -> difference from a function, relative to ``x``: constants are rounded to that type."""

Step = tuple[str, tuple[int | float, ...]]
"""Opcode, and for each operand the number of the step that makes it (-1: ``x``), or a constant."""


@dataclass(frozen=True, slots=True)
class Function:
    """``root = name(start)``, and the other ops that compute it."""

    name: str
    start: hlo.SSAValue
    parts: tuple[hlo.HloOp, ...]


def function_of(
    root: hlo.HloOp,
    order: Mapping[hlo.HloOp, int],
    is_wanted: Callable[[hlo.SSAValue], bool],
    splat: Callable[[hlo.SSAValue], float | None],
) -> Function | None:
    """The function that ``root`` computes with ops before it that nothing else reads; None if there is none.

    ``order``: the ops that may be part of it -> place; ``is_wanted``: whether a value is needed in memory.
    """
    if root.opcode not in ("multiply", "divide") or not _fits(root, root):
        return None
    inside = {root}
    while len(inside) < MOST:
        starts = {each for op in inside for each in op.sources if splat(each) is None and each.owner not in inside}
        if len(starts) == 1 and any(op.opcode in CURVED for op in inside):
            (start,) = starts
            name = _name(_steps(sorted(inside, key=order.__getitem__), start, splat), _precision(inside, start))
            if name is not None:
                return Function(name, start, tuple(inside - {root}))
        ops = [
            each.owner
            for each in starts
            if isinstance(each.owner, hlo.HloOp)
            and each.owner in order
            and not is_wanted(each)
            and _fits(each.owner, root)
            and all(use.operation in inside for use in each.uses)
        ]
        if not ops:
            return None
        inside.add(max(ops, key=order.__getitem__))
    return None


def _fits(op: hlo.HloOp, root: hlo.HloOp) -> bool:
    shapes = [hlo.shape_of(value) for value in (*op.sources, op.results[0])] if op.opcode in EVALUATED else []
    return bool(shapes) and all(shape.dtype in EPSILON and shape.dims == root.shape.dims for shape in shapes)


def _precision(ops: set[hlo.HloOp], start: hlo.SSAValue) -> float:
    return max(EPSILON[dtype] for dtype in (hlo.shape_of(start).dtype, *(op.shape.dtype for op in ops)))


def _precision_of_constants(steps: Sequence[Step]) -> float:
    """That of the narrowest type which has them all: ops of a narrow type may have become wider; 0 with a NaN."""
    constants = np.array([each for _, operands in steps for each in operands if isinstance(each, float)], np.float32)
    with np.errstate(over="ignore"):
        exact = [dtype for dtype in EPSILON if (constants.astype(NUMPY_DTYPE[dtype]) == constants).all()]
    return max((EPSILON[dtype] for dtype in exact), default=0.0)


def _steps(
    ops: Sequence[hlo.HloOp], start: hlo.SSAValue, splat: Callable[[hlo.SSAValue], float | None]
) -> tuple[Step, ...]:
    number: dict[hlo.SSAValue, int] = {op.results[0]: at for at, op in enumerate(ops)}
    number[start] = -1

    def operand(value: hlo.SSAValue) -> int | float:
        constant = splat(value)
        return number[value] if constant is None else float(constant)

    return tuple((op.opcode, tuple(operand(value) for value in op.sources)) for op in ops)


@cache
def _name(steps: tuple[Step, ...], epsilon: float) -> str | None:
    """The function that is least far from what ``steps`` make of ``POINTS``, if it is near enough."""
    made: list[Array] = []
    epsilon = max(epsilon, _precision_of_constants(steps))
    with np.errstate(all="ignore"):
        for opcode, operands in steps:
            ins = [
                np.float32(each) if isinstance(each, float) else POINTS if each < 0 else made[each] for each in operands
            ]
            made.append(np.asarray(EVALUATED[opcode](*ins), np.float32))
        far = {name: np.abs(made[-1] - ACTIVATION[name](POINTS)) for name in FUNCTIONS}
    near = [name for name, error in far.items() if (error <= epsilon * np.abs(POINTS)).all()]
    return min(near, key=lambda name: float(far[name].max()), default=None)
