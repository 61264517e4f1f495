"""Operands of contractions that are made of 8-bit codes by scales and zero points of groups of terms, as they come.

``dot(x, (codes - zero points) * scales)``: no kernel of its own makes such an operand, and HBM holds none of it. Which
ones are so is found here, ahead of formation, from how arrays lie; ``scaled`` has what they take, ``scaling`` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from math import gcd
from typing import Any

from neuronx_cc.codegen.dots.problem import SMALL_INTEGERS, Scale, divisor, order_of
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.formation.graph import is_view
from neuronx_cc.codegen.view_ops import apply_view, as_stored
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.analysis.stored import is_stored

CODES = SMALL_INTEGERS | {"f8e4m3", "f8e5m2"}
"""Types that Vector reads as numbers."""
_STEPS = (hlo.MultiplyOp, hlo.SubtractOp, hlo.AddOp)
Splat = Callable[[hlo.SSAValue], Any]
WIDE_INTEGERS = ("s32", "s16")
"""In which integers may be subtracted first."""
MOST = 12
"""Ops between a contraction and its codes, at most."""
MOST_STEPS = 2
MOST_TERMS = 1 << 14
"""Of rows that are to be transposed, in groups that parts of them cut: parts of longer ones are a loop."""
LEAST_FILLED = 2
"""Terms fill one part in so many of the partitions, at least."""
BESIDE = 8
"""Neighbouring terms on a partition, at most, for which TensorE repeats scales once."""


@dataclass(frozen=True, slots=True)
class Part:
    """An array that an operand is made of, and the views (the last one first) that give it the operand's dims."""

    value: hlo.SSAValue
    views: tuple[hlo.HloOp, ...]

    def seen(self, lies: Callable[[hlo.SSAValue], View | None]) -> View | None:
        """With the operand's dims, where ``lies`` says how the array lies; None if it is no view of that."""
        found = lies(self.value)
        for op in reversed(self.views):
            found = apply_view(op, found) if found is not None else None
        return found


@dataclass(frozen=True, slots=True)
class Step:
    """What is done to the numbers of codes."""

    opcode: str
    """multiply, subtract or add."""
    by: Part | None
    """None for a number."""
    dtype: str
    """Of the result."""
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """An operand that is made as it comes."""

    codes: Part
    steps: tuple[Step, ...]
    """The first one first."""
    ops: tuple[hlo.HloOp, ...]
    """What no kernel computes."""

    @property
    def read(self) -> tuple[hlo.SSAValue, ...]:
        """All arrays that it is made of."""
        return self.codes.value, *(step.by.value for step in self.steps if step.by is not None)


def found(
    computation: hlo.ComputationOp, without: Set[hlo.Operation], sizes: Sizes, splat: Splat
) -> Iterator[tuple[hlo.SSAValue, Scaled]]:
    """The operands of contractions of ``computation``, but of the ops ``without``, that are made so. ``splat``: the
    number that all elements of a value are, if any.
    """
    exchanges = any(isinstance(op, hlo.CollectiveOp) for op in computation.block.ops)
    for op in ops_of(computation.block):
        if not isinstance(op, hlo.DotOp) or op in without:
            continue
        for index in (1, 0):
            scaled = _followed(op.operands[index], splat)
            if scaled is None or (exchanges and not all(map(is_stored, scaled.read))):
                continue  # exchanges are moved past kernels by what each operand alone is made of
            if without.isdisjoint(scaled.ops) and scales_of(op, index, scaled, as_stored, sizes) is not None:
                yield op.operands[index], scaled
                break


def _followed(value: hlo.SSAValue, splat: Splat) -> Scaled | None:
    """From an operand to its codes, through what it alone is made by; None where that is anything else."""
    views: list[hlo.HloOp] = []
    ops: list[hlo.HloOp] = []
    steps: list[Step] = []
    dtype = hlo.shape_of(value).dtype
    for _ in range(MOST):
        op = value.owner
        if not isinstance(op, hlo.HloOp) or not value.has_one_use():
            return None
        if isinstance(op, hlo.ConvertOp):
            source = hlo.shape_of(op.operand).dtype
            if source in CODES and is_stored(op.operand):
                if not 0 < len(steps) <= MOST_STEPS or not is_lossless(source, op.shape.dtype):
                    return None
                codes = Part(op.operand, tuple(views))
                return Scaled(codes, tuple(reversed(steps)), (*ops, op))
            if source not in ("f32", *WIDE_INTEGERS) or dtype not in WIDE_FLOATS:
                return None
            value, dtype = op.operand, source if source in WIDE_INTEGERS else dtype
        elif isinstance(op, hlo.ReshapeOp | hlo.TransposeOp):
            views.append(op)
            value = op.operands[0]
        elif isinstance(op, _STEPS) and (dtype in WIDE_FLOATS or not isinstance(op, hlo.MultiplyOp)):
            index = next((at for at in (0, 1) if _leads_to_codes(op.operands[at])), None)
            if index is None or (index and isinstance(op, hlo.SubtractOp)):
                return None
            other = op.operands[1 - index]
            number = splat(other)
            made = "f32" if dtype in WIDE_INTEGERS else dtype
            if number is None:
                part, casts = _as_stored(other, tuple(views))
                steps.append(Step(op.opcode, part, made))
                ops += casts
            else:
                steps.append(Step(op.opcode, None, made, float(number)))
            value = op.operands[index]
            dtype = hlo.shape_of(value).dtype
        else:
            return None
        if not is_view(op):
            ops.append(op)
    return None


def _as_stored(value: hlo.SSAValue, views: tuple[hlo.HloOp, ...]) -> tuple[Part, list[hlo.HloOp]]:
    """An array as it is stored, and the casts after that, which lose nothing and which nothing else reads."""
    found, casts, seen = Part(value, views), list[hlo.HloOp](), list(views)
    for _ in range(MOST):
        op = value.owner
        if not isinstance(op, hlo.HloOp) or not value.has_one_use():
            break
        if is_view(op):
            seen.append(op)
        elif isinstance(op, hlo.ConvertOp) and is_lossless(hlo.shape_of(op.operand).dtype, op.shape.dtype):
            casts.append(op)
        else:
            break
        value = op.operands[0]
        if casts and is_stored(value):
            return Part(value, tuple(seen)), casts
    return found, []


def _leads_to_codes(value: hlo.SSAValue) -> bool:
    """Whether arithmetic on codes makes ``value``."""
    for _ in range(MOST):
        op = value.owner
        if isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype in CODES:
            return True
        if not isinstance(op, (hlo.ConvertOp, hlo.ReshapeOp, hlo.TransposeOp, *_STEPS)):
            return False
        value = op.operands[0]
    return False


def scales_of(
    op: hlo.DotOp, index: int, scaled: Scaled, lies: Callable[[hlo.SSAValue], View | None], sizes: Sizes
) -> tuple[View, tuple[tuple[View | None, Scale], ...]] | None:
    """The codes of operand ``index``, [free..., contracted...], and what they are scaled by, from how arrays lie; None
    where that is not what ``scaling`` knows.
    """
    batch, free, contracted = order_of(op, index)
    if batch:
        return None
    order = [*free, *contracted]

    def split(part: Part) -> tuple[View, list[Atom], list[Atom]] | None:
        view = part.seen(lies)
        if view is None or view.in_sbuf:
            return None
        view = view.transpose(order)
        rows, terms = (
            list(coalesce(tuple(atom for atoms in dims for atom in atoms if atom.size > 1)))
            for dims in (view.dims[: len(free)], view.dims[len(free) :])
        )
        return view, rows, terms

    codes = split(scaled.codes)
    if codes is None or len(codes[1]) != 1 or len(codes[2]) != 1:
        return None
    (columns,), (all_terms,) = codes[1:]
    read = list[tuple[View | None, Scale]]()
    for step in scaled.steps:
        if step.by is None:
            read.append((None, Scale(step.opcode, "f32", step.dtype, all_terms.size, number=step.number)))
            continue
        part = split(step.by)
        if part is None or len(part[1]) != 1 or len(part[2]) not in (1, 2):
            return None
        view, (rows,), terms = part
        stored = "bf16" if view.dtype in SMALL_INTEGERS else view.dtype
        if stored not in WIDE_FLOATS or rows.stride == 0 or terms[-1].stride or rows.size != columns.size:
            return None
        along = terms[0].stride if len(terms) > 1 else 0
        read.append((view, Scale(step.opcode, stored, step.dtype, terms[-1].size, along, rows.stride)))
    size = gcd(*(scale.terms for _, scale in read))
    if all_terms.size == size or any(scale.terms not in (size, all_terms.size) for _, scale in read):
        return None
    if columns.stride == 1:
        near = all(scale.row == itemsize(view.dtype) for view, scale in read if view is not None)
        return (codes[0], tuple(read)) if near and beside(all_terms.size, size, sizes) else None
    groups, partitions = all_terms.size // size, divisor(all_terms.size, sizes.rows)
    dense = all(
        scale.along == itemsize(view.dtype) and scale.row == groups * scale.along
        for view, scale in read
        if view is not None
    )
    nested = partitions % size == 0 or all_terms.size <= MOST_TERMS
    nested = nested and partitions * LEAST_FILLED >= sizes.rows
    dense = dense and all_terms.stride == 1 and columns.stride == all_terms.size
    return (codes[0], tuple(read)) if nested and dense else None


def beside(terms: int, size: int, sizes: Sizes) -> int:
    """Neighbouring terms on each partition where rows of codes are neighbours in memory, of groups of ``size``; 0 where
    groups do not nest."""
    partitions = divisor(terms, sizes.rows)
    if partitions * LEAST_FILLED < sizes.rows:
        return 0
    most = terms // partitions
    fitting = [each for each in range(1, most + 1) if most % each == 0 and nests(partitions, each, size)]
    return max((each for each in fitting if each <= BESIDE), default=min(fitting, default=0))


def nests(partitions: int, near: int, size: int) -> bool:
    """Whether each partition, with so many neighbouring terms, belongs to one group, and all of them to whole ones."""
    return size % near == 0 and partitions * near % size == 0
