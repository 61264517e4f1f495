"""Which columns of a chain have weight in a block of rows, where masks by row and column numbers leave some without.

What is contracted in the end, and what rows are summed of, is products with exponentials, which are zeros where masks
put scores that are far below others of their row; the greatest of rows are those of what stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neuronx_cc.codegen.attention.geometry import marked
from neuronx_cc.codegen.attention.masks import Band, bands_of
from neuronx_cc.codegen.attention.steps import (
    NEGLIGIBLE,
    Step,
    first_with_weight,
    keeps_some,
    with_weight,
)
from neuronx_cc.codegen.chains.pattern import Chain, made_by
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.tiles import pieces
from neuronx_cc.codegen.formation.graph import squeeze
from neuronx_cc.ir import hlo

Value = hlo.SSAValue


def weighted_columns(context: Context, chain: Chain, rows: int, columns: int) -> list[tuple[int, int]] | None:
    """Of each block of ``rows`` the first column with weight, in chunks of ``columns``, and how many follow; None where
    all have, or one may have that is left out.
    """
    search = _Masks(context, chain)
    steps = search.steps()
    found, covered, width = list[tuple[int, int]](), set[int](), chain.dims[-1]
    if not steps or chain.stored or not _all_keep_some(steps, chain, rows):
        return None
    for start, size in pieces(chain.dims[-2], rows):
        last = start + size - 1
        begin = min(first_with_weight(steps, start, last), width - 1) // columns * columns
        end = max(begin + 1, with_weight(steps, start, last, width))
        end = min(width, -(-end // columns) * columns)
        found.append((begin, end - begin))
        covered.update(range(begin, end, columns))
    all_covered = len(covered) == -(-width // columns)
    return found if all_covered and any(each != (0, width) for each in found) else None


def needless_selects(context: Context, chain: Chain) -> list[tuple[hlo.SelectOp, Value]]:
    """Selects that leave zeros what masks by numbers have made zeros before, and what they are the same as."""
    search = _Masks(context, chain)
    steps = search.steps()
    if not steps or not _all_keep_some(steps, chain, context.sizes.rows):
        return []
    found = list[tuple[hlo.SelectOp, Value]]()
    bands = [step.band for step in steps]
    for op in chain.inner:
        if not isinstance(op, hlo.SelectOp) or context.splat(op.operands[2]) != 0:
            continue
        own = search.bands(op)
        if own and set(own) <= set(bands) and search.is_zero(op.operands[1]):
            found.append((op, op.operands[1]))
    return found


def _all_keep_some(steps: Sequence[Step], chain: Chain, rows: int) -> bool:
    """Whether masks keep a score of every row, of blocks of ``rows``."""
    count, width = chain.dims[-2:]
    return all(keeps_some(steps, start, start + size - 1, width) for start, size in pieces(count, rows))


@dataclass(slots=True)
class _Masks:
    """Looks for them."""

    context: Context
    chain: Chain
    _exponentials: set[Value] = field(default_factory=set)
    """Those that are zeros where masks leave nothing."""
    _scores: set[Value] = field(default_factory=set)
    """Arrays whose greatest do not come from what is masked."""

    def steps(self) -> list[Step]:
        """The masks, if all that is made is zero, or not looked at, where they leave nothing; else none."""
        found: list[Step] = []
        for op in self.chain.inner:
            if isinstance(op, hlo.ExponentialOp):
                steps = self._masked(op)
                if found and steps:
                    return []
                found += steps
        if not found or not all(self.is_zero(sink.value) for sink in self.chain.sinks):
            return []
        folds = [op for op in self.chain.inner if isinstance(op, hlo.ReduceOp)]
        return found if all(self._folds_nothing(op) for op in folds) else []

    def _folds_nothing(self, op: hlo.ReduceOp) -> bool:
        """Whether the fold ``op`` is the same without what is masked."""
        combiner, value = self.context.combiners[op.to_apply.data[0]], made_by(op.operands[0], self.chain.dims)
        return self.is_zero(value) if combiner == "add" else combiner == "maximum" and value in self._scores

    def is_zero(self, value: Value) -> bool:
        """Whether ``value`` is 0 where masks leave nothing."""
        value = made_by(value, self.chain.dims)
        op = value.owner
        if value in self._exponentials:
            return True
        if isinstance(op, hlo.MultiplyOp):
            return any(map(self.is_zero, op.operands))
        if isinstance(op, hlo.ConvertOp | hlo.NegateOp | hlo.DivideOp):
            return self.is_zero(op.operands[0])
        if isinstance(op, hlo.SelectOp):
            return all(self.context.splat(x) == 0 or self.is_zero(x) for x in op.operands[1:])
        return False

    def _masked(self, op: hlo.ExponentialOp) -> list[Step]:
        """Masks of scores of which ``op`` is the exponential, beside the greatest of their row."""
        less = made_by(op.operands[0], self.chain.dims).owner
        if not isinstance(less, hlo.SubtractOp | hlo.AddOp):
            return []
        scores, most = (made_by(x, self.chain.dims) for x in less.operands)
        values, steps = [], list[Step]()
        for value, step in self._path(scores):
            values.append(value)
            steps += step
        if not steps or squeeze(hlo.shape_of(most).dims) != self.chain.dims[:-1] or self._greatest(most) not in values:
            return []
        self._exponentials.add(op.results[0])
        self._scores.update(values)
        return steps[::-1]

    def _path(self, value: Value) -> Iterator[tuple[Value, list[Step]]]:
        """``value``, and what it is made of as long as the order of scores stays; with the masks of each."""
        while True:
            op = value.owner
            if isinstance(op, hlo.SelectOp) and (steps := self._steps(op)):
                yield value, steps
                value = made_by(op.operands[1], self.chain.dims)
            elif isinstance(op, hlo.MultiplyOp) and any((self.context.splat(x) or 0) > 0 for x in op.operands):
                yield value, []
                (value,) = (made_by(x, self.chain.dims) for x in op.operands if self.context.splat(x) is None)
            elif isinstance(op, hlo.ConvertOp):
                yield value, []
                value = made_by(op.operand, self.chain.dims)
            else:
                return

    def _steps(self, op: hlo.SelectOp) -> list[Step]:
        """The masks that ``op`` applies."""
        masked, marks = self.context.splat(op.operands[2]), marked(op.shape.dims)
        if masked is None or masked > NEGLIGIBLE:
            return []
        return [Step(op, 1, marks, band, masked) for band in self.bands(op)]

    def bands(self, op: hlo.SelectOp) -> tuple[Band, ...]:
        """Where ``op`` keeps its first array, by comparisons of row and column numbers; none where it is otherwise."""
        dims = op.shape.dims
        if squeeze(dims) != self.chain.dims:
            return ()
        marks = marked(dims)
        rows, columns = [atoms[0] for atoms, size in zip(marks.dims, dims, strict=True) if size != 1][-2:]
        return bands_of(op.operands[0], marks, rows, columns, self.context.splat, hlo.AndOp)

    def _greatest(self, row: Value) -> Value | None:
        """The array of whose rows ``row`` is the greatest, times some number."""
        while True:
            op = row.owner
            if isinstance(op, hlo.ReduceOp) and self.context.combiners[op.to_apply.data[0]] == "maximum":
                return made_by(op.operands[0], self.chain.dims)
            if isinstance(op, hlo.MultiplyOp):
                arrays = [x for x in op.operands if self.context.splat(x) is None]
            elif isinstance(op, hlo.NegateOp):
                arrays = list(op.operands)
            else:
                return None
            if len(arrays) != 1:
                return None
            row = made_by(arrays[0], self.chain.dims)
