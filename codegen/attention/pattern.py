"""Finds attention: a contraction, elementwise ops, a softmax along the columns, and a contraction with the result.

Input: a computation that the passes have prepared. What else reads the scores, or what is made of them, keeps them
from being one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.attention.geometry import by_dim, is_one, marked
from neuronx_cc.codegen.attention.guards import Guards
from neuronx_cc.codegen.attention.masks import bands_of
from neuronx_cc.codegen.attention.steps import Step, leaves_of, with_weight
from neuronx_cc.codegen.dots.problem import order_of
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.formation.graph import ELEMENTWISE, base, is_view, reads
from neuronx_cc.codegen.view_ops import apply_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import WIDE_FLOATS
from neuronx_cc.passes.analysis.spans import UNKNOWN, span_of

Splats = Callable[[hlo.SSAValue], float | None]
"""The single value that a constant holds everywhere, or None."""


START = {"add": 0.0, "maximum": float("-inf")}
"""What folds start from."""


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention; its ops in the order of the program."""

    ops: tuple[hlo.HloOp, ...]
    scores: hlo.DotOp
    steps: tuple[Step, ...]
    zero_rows: bool
    """Whether rows of scores of minus infinity alone are zeros; else they are NaN."""
    product: hlo.DotOp
    weights: int
    """The operand of ``product`` that comes from the scores."""
    marks: View
    """Where that lies in them."""
    result: hlo.SSAValue
    """The product with the values, divided by the sums wherever the program does that."""
    made_marks: View
    """Where that lies in the scores; the features of the values lie beyond all of these."""
    queries: int
    """The operand of ``scores`` with the rows."""
    row: int
    """The dim of the scores that is cut into blocks of rows."""
    column: int
    inner: int = -1
    """The dim around of which several heads may be taken together; -1 for the last one."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Of the scores."""
        return self.scores.shape.dims

    def columns(self, first: int, last: int) -> int:
        """How many of the first columns may have weight in rows ``first`` to ``last``."""
        return with_weight(self.steps, first, last, self.dims[self.column])

    def read_in_part(self) -> set[hlo.SSAValue]:
        """Operands of which columns are not read that have no weight: in any row, or, of what has rows, in one."""
        rows, columns = self.dims[self.row], self.dims[self.column]
        banded = any(step.band is not None for step in self.steps)
        # the first rows may have no weight at all, for which all columns are read
        in_part = banded and any(self.columns(row, row) < columns for row in range(rows))
        found = {leaf for step in self.steps for leaf in leaves_of(step)} if in_part else set()
        if self.columns(0, rows - 1) < columns:
            found |= {self.scores.operands[1 - self.queries], self.product.operands[1 - self.weights]}
        return found

    def own_dims(self) -> list[int]:
        """The dims of the scores, but rows and columns, that keys or values have; the ``inner`` one last."""
        product, values = self.product, 1 - self.weights
        keys, _ = self.keyed(marked(hlo.shape_of(self.scores.operands[1 - self.queries]).dims))
        found, _ = self.valued(marked(hlo.shape_of(product.operands[values]).dims))
        assert found is not None, "found to align"
        outer = (axis for axis in range(len(self.dims)) if axis not in (self.row, self.column))
        own = [axis for axis in outer if any(atom.stride for view in (keys, found) for atom in view.dims[axis])]
        return sorted(own, key=lambda axis: axis == self.inner)

    def queried(self, view: View) -> tuple[View, View]:
        """The queries: by dims of the scores, and their contracted dim."""
        return self._scored(self.queries, view)

    def keyed(self, view: View) -> tuple[View, View]:
        """The same of the keys."""
        return self._scored(1 - self.queries, view)

    def _scored(self, index: int, view: View) -> tuple[View, View]:
        batch, free, contracted = order_of(self.scores, index)
        at = len(batch) + (len(order_of(self.scores, 0)[1]) if index else 0)
        places = [*range(len(batch)), *range(at, at + len(free))]
        dims: list[tuple[Atom, ...]] = [() for _ in self.dims]
        for place, axis in zip(places, [*batch, *free], strict=True):
            dims[place] = view.dims[axis]
        filled = tuple(atoms or ((Atom(size, 0),) * (size > 1)) for atoms, size in zip(dims, self.dims, strict=True))
        return view.of(filled), view.of((view.dims[contracted[0]],))

    def valued(self, view: View) -> tuple[View | None, View]:
        """The other operand of the second product: by dims of the scores, and its free dim."""
        batch, free, contracted = order_of(self.product, 1 - self.weights)
        ours = order_of(self.product, self.weights)
        marks = self.marks.of(tuple(self.marks.dims[axis] for axis in (*ours[0], *ours[2])))
        values = view.of(tuple(view.dims[axis] for axis in (*batch, *contracted)))
        return by_dim(self.dims, marks, values), view.of((view.dims[free[0]],))

    def made(self, view: View) -> tuple[View | None, View]:
        """The result: by dims of the scores, and the free dim of the values."""
        wide = self.wide()
        kept = [axis for axis in range(len(view.dims)) if axis not in wide]
        marks, rows = (each.of(tuple(each.dims[axis] for axis in kept)) for each in (self.made_marks, view))
        return by_dim(self.dims, marks, rows), view.of((view.dims[wide[0]] if wide else (),))

    def wide(self) -> list[int]:
        """The dim of the result with the features of the values, if there are several."""
        return [axis for axis, atoms in enumerate(self.made_marks.dims) if _is_wide(atoms, self.dims)]


def find(
    computation: hlo.ComputationOp, combiners: Mapping[str, str], splat: Splats, module: HloModule
) -> list[Attention]:
    """The attentions of ``computation``, no two of which have an op in common.

    ``combiners``: computation -> opcode of a simple combiner.
    """
    root = base(computation.root)
    place = {op: at for at, op in enumerate(ops_of(computation.block))}
    found: list[Attention] = []
    taken: set[hlo.Operation] = set()
    for op in place:
        if not isinstance(op, hlo.DotOp) or op in taken:
            continue
        for index in (0, 1):
            attention = _Search(op, index, combiners, splat, module, place).attention()
            inside = attention is not None and any(each.result is root for each in attention.ops)
            if attention is None or (inside and attention.result is not root):
                continue
            if taken.isdisjoint(attention.ops):
                found.append(attention)
                taken |= set(attention.ops)
                break
    return found


class _Search:
    """Looks for the attention whose second product is ``product``; what it passes is noted."""

    def __init__(
        self,
        product: hlo.DotOp,
        index: int,
        combiners: Mapping[str, str],
        splat: Splats,
        module: HloModule,
        place: Mapping[hlo.HloOp, int],
    ) -> None:
        self.product, self.index, self.combiners, self.splat, self.module = product, index, combiners, splat, module
        self.place = place
        """Of each op in the order of the program."""
        self.ops: list[hlo.HloOp] = [product]
        self.after: list[hlo.HloOp] = []
        """What is made of the second product."""
        self.marks: dict[hlo.SSAValue, View | None] = {}
        self.guards = Guards(splat)
        self.divides_zeros = False
        """Whether a sum of 0 divides as another number."""

    def attention(self) -> Attention | None:
        weights = self._through(self.product.operands[self.index])
        exponentials = self._normalised(weights)
        result: hlo.SSAValue | None = self.product.result
        if exponentials is None:
            exponentials, result = weights, self._divided(weights)
        if result is None:
            return None
        result = self._cast(result)
        argument = self._through(exponentials.owner.operands[0])  # type: ignore[union-attr]
        if not isinstance(argument.owner, hlo.SubtractOp):
            return None
        left, right = argument.owner.operands
        source, most = self._through(left), self._through(right)
        floored = self.guards.floored(most)
        if floored is not None:
            self.ops += floored.ops
            most = self._through(floored.value)
        if not self._folds(most, "maximum", source):
            return None
        self.ops.append(argument.owner)
        path = self._path(left)
        if path is None:
            return None
        scores = path[0][0]
        assert isinstance(scores, hlo.DotOp)
        if not self._fits(scores):
            return None
        return self._placed(scores, path[1:], floored is not None and self.divides_zeros, result)

    def _normalised(self, weights: hlo.SSAValue) -> hlo.SSAValue | None:
        """The exponentials that ``weights`` are, each divided by the sum of its row: as numbers or by logarithms."""
        op = weights.owner
        if isinstance(op, hlo.DivideOp):
            exponentials, total = map(self._through, op.operands)
            return exponentials if self._sums(exponentials, total, [op]) else None
        if not isinstance(op, hlo.ExponentialOp) or not isinstance(
            less := self._through(op.operand).owner, hlo.SubtractOp
        ):
            return None
        argument, logarithm = map(self._through, less.operands)
        if not isinstance(logarithm.owner, hlo.LogOp):
            return None
        total = self._through(logarithm.owner.operand)
        if not isinstance(total.owner, hlo.ReduceOp):
            return None
        exponentials = self._through(total.owner.operands[0])
        if not self._sums(exponentials, total, [op, less, logarithm.owner]):
            return None
        return exponentials if self._through(exponentials.owner.operands[0]) is argument else None  # type: ignore[union-attr]

    def _divided(self, exponentials: hlo.SSAValue) -> hlo.SSAValue | None:
        """The second product divided by the sums of ``exponentials``, if nothing else is made of it."""
        value: hlo.SSAValue = self.product.result
        while True:
            uses = list(reads(value))
            op = uses[0].operation if len(uses) == 1 else None
            if not isinstance(op, hlo.ElementwiseOp) or op.shape.size != hlo.shape_of(value).size:
                return None
            if isinstance(op, hlo.ConvertOp) and op.shape.dtype in WIDE_FLOATS:
                self.ops.append(op)
                value = op.result
                continue
            if not isinstance(op, hlo.DivideOp) or uses[0].index != 0:
                return None
            return op.result if self._sums(exponentials, self._through(op.operands[1]), [op]) else None

    def _cast(self, result: hlo.SSAValue) -> hlo.SSAValue:
        """``result`` as it is stored: cast, if nothing else is made of it."""
        if result is not self.product.result:
            self.after += [result.owner]  # type: ignore[list-item]
        while True:
            uses = list(reads(result))
            op = uses[0].operation if len(uses) == 1 else None
            if not isinstance(op, hlo.ConvertOp) or not {op.shape.dtype, hlo.shape_of(result).dtype} <= WIDE_FLOATS:
                return result
            if base(op.operand) is not result or op.shape.size != hlo.shape_of(result).size:
                return result
            self.ops.append(op)
            self.after.append(op)
            result = op.result

    def _sums(self, exponentials: hlo.SSAValue, total: hlo.SSAValue, by: list[hlo.HloOp]) -> bool:
        """Whether ``total`` sums rows of ``exponentials``; notes these and what divides ``by`` it."""
        guarded = self.guards.positive(total)
        if guarded is not None:
            self.ops += guarded.ops
            total, self.divides_zeros = self._through(guarded.value), True
        if not isinstance(exponentials.owner, hlo.ExponentialOp) or not self._folds(total, "add", exponentials):
            return False
        self.ops += [exponentials.owner, *by]
        return True

    def _through(self, value: hlo.SSAValue) -> hlo.SSAValue:
        """What ``value`` is a view or a float cast of."""
        while True:
            value = base(value)
            op = value.owner
            if not isinstance(op, hlo.ConvertOp) or not {op.shape.dtype, hlo.shape_of(op.operand).dtype} <= WIDE_FLOATS:
                return value
            if op not in self.ops:
                self.ops.append(op)
            value = op.operand

    def _folds(self, value: hlo.SSAValue, combiner: str, source: hlo.SSAValue) -> bool:
        """Whether ``value`` folds the rows of ``source``."""
        op = value.owner
        if not isinstance(op, hlo.ReduceOp) or len(op.operands) != 2:
            return False
        if self.combiners.get(op.to_apply.data[0]) != combiner or self._through(op.operands[0]) is not source:
            return False
        if self.splat(op.operands[1]) != START[combiner]:
            return False
        self.ops.append(op)
        return True

    def _path(self, value: hlo.SSAValue) -> list[tuple[hlo.HloOp, int]] | None:
        """From a contraction to ``value``: each op with its operand on the way."""
        op = base(value).owner
        if isinstance(op, hlo.DotOp):
            return [(op, 0)]
        if (
            not isinstance(op, hlo.HloOp)
            or op.opcode not in ELEMENTWISE
            or hlo.shape_of(value).dtype not in WIDE_FLOATS
        ):
            return None
        for index, operand in enumerate(op.operands):
            if hlo.shape_of(base(operand)).size == op.shape.size and hlo.shape_of(operand).dtype in WIDE_FLOATS:
                path = self._path(operand)
                if path is not None:
                    return [*path, (op, index)]
        return None

    def _fits(self, scores: hlo.DotOp) -> bool:
        """Whether both products are of the form and the types that one kernel takes."""
        for op in (scores, self.product):
            dims = op.dims.data
            types = {hlo.shape_of(operand).dtype for operand in op.operands}
            if len(dims.lhs_contracting) != 1 or not types <= WIDE_FLOATS or not op.shape.size:
                return False
        return len(order_of(self.product, 1 - self.index)[1]) == 1

    def _placed(
        self, scores: hlo.DotOp, path: list[tuple[hlo.HloOp, int]], zero_rows: bool, result: hlo.SSAValue
    ) -> Attention | None:
        dims = scores.shape.dims
        self.marks[scores.result] = marked(dims)
        self.ops += [scores, *(op for op, _ in path if op not in self.ops)]
        marks = self._marks(self.product.operands[self.index])
        if marks is None or prod(marks.shape) != prod(dims):  # a part of the scores, or some of them repeated
            return None
        self.marks[self.product.result] = self._product_marks(marks, prod(dims))
        made = self._marks(result)
        if made is None or not _is_one_dim(made, prod(dims)):
            return None
        contracted = marks.dims[order_of(self.product, self.index)[2][0]]
        strides = [_stride(dims, axis) for axis in range(len(dims))]
        free = [len(order_of(scores, index)[1]) for index in (0, 1)]
        batch = len(dims) - sum(free)
        sides = (range(batch, batch + free[0]), range(batch + free[0], len(dims)))
        for queries, keys in ((0, 1), (1, 0)):
            if free[keys] != 1 or not free[queries]:
                continue
            column = sides[keys][0]
            whole = len(contracted) == 1 and contracted[0].stride == strides[column]
            if dims[column] < 2 or not whole or contracted[0].size != dims[column]:
                continue
            if not all(self._is_along(op, strides[column], dims[column]) for op in self.ops if op not in self.after):
                return None
            if not all(self._is_along(op, prod(dims), 0) for op in self.after):
                return None
            ops = tuple(sorted(set(self.ops), key=self.place.__getitem__))
            for rows in sorted(sides[queries], key=lambda axis: -dims[axis]):
                ends = [Atom(dims[axis], strides[axis]) for axis in (rows, column)]
                steps = tuple(step for op, main in path for step in self._steps(op, main, *ends))
                attention = Attention(
                    ops, scores, steps, zero_rows, self.product, self.index, marks, result, made,
                    queries, rows, column,
                )  # fmt: skip
                if self._is_whole(attention) and _aligns(attention, self.splat):
                    return attention
        return None

    def _product_marks(self, marks: View, beyond: int) -> View:
        """Where the elements of the second product lie: ``marks`` are those of its weights."""
        batch, free, _ = order_of(self.product, self.index)
        values = 1 - self.index
        (width,) = (
            hlo.shape_of(self.product.operands[values]).dims[axis] for axis in order_of(self.product, values)[1]
        )
        sides = [[marks.dims[axis] for axis in free], [(Atom(width, beyond),) * (width > 1)]]
        return marks.of((*(marks.dims[axis] for axis in batch), *sides[self.index], *sides[values]))

    def _marks(self, value: hlo.SSAValue) -> View | None:
        """Where the elements of ``value`` lie in the scores; those of folded rows lack the columns."""
        if value not in self.marks:
            self.marks[value] = self._marks_of(value)
        return self.marks[value]

    def _marks_of(self, value: hlo.SSAValue) -> View | None:
        op = value.owner
        if not isinstance(op, hlo.HloOp):
            return None
        if is_view(op):
            marks = self._marks(op.operands[0])
            return None if marks is None else apply_view(op, marks)
        if op not in self.ops or isinstance(op, hlo.DotOp):
            return None
        if isinstance(op, hlo.ReduceOp):
            marks = self._marks(op.operands[0])
            kept = [axis for axis in range(hlo.shape_of(op.operands[0]).rank) if axis not in op.dimensions.data]
            return None if marks is None else marks.of(tuple(marks.dims[axis] for axis in kept))
        known = [marks for operand in op.operands if (marks := self._marks(operand)) is not None]
        return known[0] if known else None

    def _is_along(self, op: hlo.HloOp, stride: int, size: int) -> bool:
        """Whether all that ``op`` reads of the scores stands in its place; reductions fold the columns."""
        if isinstance(op, hlo.DotOp):
            return True
        own = self._marks(op.operands[0])
        if isinstance(op, hlo.ReduceOp):
            return own is not None and [
                (atom.size, atom.stride) for axis in op.dimensions.data for atom in own.dims[axis] if atom.size > 1
            ] == [(size, stride)]
        marks = [found for operand in op.operands if (found := self._marks(operand)) is not None]
        return bool(marks) and all(_agree(marks[0], each, stride) for each in marks[1:])

    def _steps(self, op: hlo.HloOp, main: int, rows: Atom, columns: Atom) -> list[Step]:
        """``op`` as a step, or as several masks."""
        marks = self._marks(op.result)
        assert marks is not None, "an op on the way from the scores"
        if isinstance(op, hlo.SelectOp) and main in (1, 2):
            masked = self.splat(op.operands[3 - main])
            together = hlo.AndOp if main == 1 else hlo.OrOp
            bands = bands_of(op.operands[0], marks, rows, columns, self.splat, together)
            if masked is not None and bands:
                return [Step(op, main, marks, band if main == 1 else band.inverted(), masked) for band in bands]
        others = [
            operand for operand in op.operands[isinstance(op, hlo.SelectOp) :] if operand is not op.operands[main]
        ]
        span = span_of(others[0], self.module) if len(others) == 1 else UNKNOWN
        return [Step(op, main, marks, None, span=span)]

    def _is_whole(self, attention: Attention) -> bool:
        """Whether nothing else reads what stays on chip, nor the second product as its values."""
        own = set(attention.ops)
        return base(attention.product.operands[1 - attention.weights]).owner not in own and all(
            use.operation in own
            for op in attention.ops
            if op.result is not attention.result
            for use in reads(op.result)
        )


def _agree(first: View, other: View, columns: int) -> bool:
    """Whether the dims of both are the same scores; ``other`` may repeat its rows along the columns."""
    for a, b in zip(first.dims, other.dims, strict=True):
        kept = [atom for atom in a if atom.stride != columns and atom.size > 1]
        if [atom for atom in a if atom.size > 1] != (there := [atom for atom in b if atom.size > 1]) and kept != [
            atom for atom in there if atom.stride
        ]:
            return False
    return True


def _aligns(attention: Attention, splat: Splats) -> bool:
    """Whether dense arrays have rows and columns of the scores in one piece each, and all rows the same values."""
    dims = hlo.shape_of(attention.product.operands[1 - attention.weights]).dims
    values, _ = attention.valued(marked(dims))
    if values is None or any(atom.stride for atom in values.dims[attention.row]):
        return False
    found = [values, attention.made(marked(hlo.shape_of(attention.result).dims))[0]]
    own = {op.result for op in attention.ops}
    for step in attention.steps:
        leaves = [operand for operand in leaves_of(step) if splat(operand) is None]
        if any(base(operand) in own for operand in leaves):
            return False
        found += [by_dim(attention.dims, step.marks, marked(hlo.shape_of(operand).dims)) for operand in leaves]
    return all(
        view is not None and is_one(view.dims[attention.row]) and is_one(view.dims[attention.column]) for view in found
    )


def _is_wide(atoms: tuple[Atom, ...], dims: tuple[int, ...]) -> bool:
    """Whether a dim of the result has the features of the values."""
    return any(atom.size > 1 and atom.stride == prod(dims) for atom in atoms)


def _is_one_dim(made: View, beyond: int) -> bool:
    """Whether the features of the values, ``beyond`` all scores in ``made``, are a dim of their own, if any."""
    far = [atoms for atoms in made.dims if any(atom.size > 1 and atom.stride >= beyond for atom in atoms)]
    return len(far) < 2 and all(len(atoms) == 1 and atoms[0].stride == beyond for atoms in far)


def _stride(dims: tuple[int, ...], axis: int) -> int:
    stride = 1
    for size in dims[axis + 1 :]:
        stride *= size
    return stride
