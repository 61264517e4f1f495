"""Computes ops on more rows than they have, the last ones copies of the last row, and hides these where rows meet.

What is beyond the rows of an array is made as its last row is, so it is finite where that is. Where rows meet, they are
left out: reductions and contractions over them read a slice, or what is neutral to them where the array says so: a
softmax along such a dim gets a mask by number, which attention makes on chip and whose columns it does not compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.constants import is_splat
from neuronx_cc.ir.hlo.editing import erase, insert_before, ops_of
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.analysis.rows import Sources, counts_along, kept_dims
from neuronx_cc.passes.expansions.build import Build, Value

Dims = Mapping[int, int]
"""Dim -> its size with the rows that are added."""
NEUTRAL = {"add": 0.0, "maximum": -inf, "minimum": inf}
"""Kind of reduction -> what changes nothing."""
LOWEST = -1e30
"""Scores at most as large as this have no weight beside others."""
HANDED_ON = hlo.ViewOp | hlo.IdentityOp | hlo.ConvertOp
"""Ops whose results have beyond the rows what their operands have."""


class PaddedRows:
    """The arrays of one computation with more rows."""

    def __init__(self, module: hlo.HloModule, computation: hlo.ComputationOp, members: Mapping[Value, Dims]) -> None:
        self.module, self.members = module, members
        self.made: dict[Value, Value] = {}
        """With more rows, as the ops from here on read it."""
        self._first: dict[Value, Value] = {}
        """The same as it was made, before anything was hidden in it."""
        self._beyond: dict[tuple[Value, int], float] = {}
        """(array, dim) -> the number that all elements beyond are, for all rows that the program has."""
        self._replaced: list[hlo.HloOp] = []
        first = next(ops_of(computation.block))
        for argument in (each for each in computation.block.args if each in members):
            self._keep(argument, self._with_copies(Build(module, first, first.loc), argument, argument))
        for op in list(ops_of(computation.block)):
            self._visit(op)
        for op in reversed(self._replaced):
            self._retire(op)

    def _visit(self, op: hlo.HloOp) -> None:
        value, kept = op.results[0], kept_dims(op)
        dims = self.members.get(value)
        if dims is None:
            if isinstance(op, hlo.DotOp | hlo.ReduceOp) and any(x in self.made for x in op.sources):
                self._fold(op, {})
        elif isinstance(op, hlo.ConstantOp):
            self._keep(value, self._constant(op, dims))
        elif not all(axis in kept for axis in dims):
            following = op.next_op
            assert following is not None
            self._keep(value, self._with_copies(Build(self.module, following, op.loc), value, value))
        elif isinstance(op, hlo.IotaOp):
            self._keep(value, self._counted(op, dims))
        elif (columns := _column_of_causal(op)) in dims:
            self._causal(op, dims, columns)
        elif isinstance(op, hlo.DotOp | hlo.ReduceOp):
            self._fold(op, kept)
        else:
            self._copy(op, dims, kept)

    def _keep(self, value: Value, made: Value) -> None:
        self.made[value] = self._first[value] = made

    def _retire(self, op: hlo.HloOp) -> None:
        """Remove ``op``, of which what still reads it gets the rows that the program has."""
        value = op.results[0]
        made = self._first[value]
        if value.first_use is not None:
            if isinstance(op, hlo.NullaryOp) or (isinstance(op, hlo.BroadcastOp) and op.operand not in self.made):
                return
            following = made.owner.next_op  # type: ignore[union-attr]
            assert following is not None
            rest = self._cut(Build(self.module, following, op.loc), made, self.members.get(value, {}), value)
            value.replace_all_uses_with(rest)
        erase(op)

    # ---- arrays with more rows --------------------------------------------------------------------------------

    def _with_copies(self, b: Build, value: Value, made: Value) -> Value:
        """``value`` and copies of its last row."""
        for axis, size in self.members[value].items():
            op = value.owner
            pieces = [made]
            if isinstance(op, hlo.ConcatenateOp) and op.dimension.data == axis and len(self.members[value]) == 1:
                pieces = list(op.sources)
            shape, rows = hlo.shape_of(pieces[-1]), hlo.shape_of(made).dims[axis]
            last = b.slice(pieces[-1], axis, shape.dims[axis] - 1, shape.dims[axis])
            if size - rows > 1:
                others = [each for each in range(shape.rank) if each != axis]
                dims = [size - rows if each == axis else shape.dims[each] for each in range(shape.rank)]
                last = b.broadcast(b.reshape(last, [shape.dims[each] for each in others]), dims, others)
            made = b.concatenate([*pieces, last], axis)
        return made

    def _constant(self, op: hlo.ConstantOp, dims: Dims) -> Value:
        array = self.module.constants[op.value.data]
        more = [(0, dims.get(axis, size) - size) for axis, size in enumerate(array.shape)]
        for axis in dims if is_splat(array) else ():
            self._note(op.results[0], axis, float(array.reshape(-1)[0]))
        return Build.before(self.module, op).array(np.pad(array, more, mode="edge"), op.shape.dtype)

    def _counted(self, op: hlo.IotaOp, dims: Dims) -> Value:
        axis, shape, b = op.iota_dimension.data, op.shape, Build.before(self.module, op)
        self._replaced.append(op)
        counts = b.iota([dims.get(each, size) for each, size in enumerate(shape.dims)], axis, shape.dtype)
        if axis not in dims:
            return counts
        return b.each(hlo.MinimumOp, counts, b.number_like(shape.dims[axis] - 1, counts))

    def _causal(self, op: hlo.HloOp, dims: Dims, columns: int) -> None:
        """A comparison of rows with columns that no row passes beyond its own number: of rows that the program has, no
        column beyond theirs.
        """
        b, sizes = Build.before(self.module, op), self._resized(op, dims)
        lhs, rhs = (b.iota(sizes, axis) for axis in (counts_along(x) for x in op.sources) if axis is not None)
        self._keep(op.results[0], b.compare(lhs, rhs, op.properties["direction"].data))  # type: ignore[attr-defined]
        self._replaced.append(op)
        self._beyond[op.results[0], columns] = 0.0

    def _copy(self, op: hlo.HloOp, dims: Dims, kept: Mapping[int, Sources], *operands: Value) -> None:
        b, value = Build.before(self.module, op), op.results[0]
        made = operands or [self._read(b, op, index, dims, kept) for index in range(len(op.sources))]
        properties = dict(op.properties)
        if isinstance(op, hlo.SliceOp):
            cuts = enumerate(op.slice.data)
            wide = [hlo.SliceDim(0, dims[axis]) if axis in dims else cut for axis, cut in cuts]
            properties["slice"] = hlo.SliceAttr(tuple(wide))
        type_ = hlo.array_type(op.shape.dtype, tuple(self._resized(op, dims)))
        result = insert_before(op, type(op), made, type_, op.loc, properties)
        for axis in dims:
            self._note(value, axis, self._follows(op, {index: source for index, source in kept[axis]}))
        self._keep(value, result)
        self._replaced.append(op)

    def _read(
        self,
        b: Build,
        op: hlo.HloOp,
        index: int,
        dims: Dims,
        kept: Mapping[int, Sources],
        hidden: Set[int] = frozenset(),
    ) -> Value:
        """An operand with more rows along the dims that the result has them along, and ``hidden`` ones."""
        value = op.sources[index]
        if value not in self.made:
            return value
        wanted = {source for axis in dims for at, source in kept[axis] if at == index} | hidden
        left = {axis: size for axis, size in self.members[value].items() if axis not in wanted}
        return self._cut(b, self.made[value], left, value)

    def _cut(self, b: Build, made: Value, dims: Dims, like: Value) -> Value:
        for axis in dims:
            made = b.slice(made, axis, 0, hlo.shape_of(like).dims[axis])
        return made

    def _resized(self, op: hlo.HloOp, dims: Dims) -> list[int]:
        return [dims.get(axis, size) for axis, size in enumerate(op.shape.dims)]

    # ---- where rows meet --------------------------------------------------------------------------------------

    def _fold(self, op: hlo.DotOp | hlo.ReduceOp, kept: Mapping[int, Sources]) -> None:
        """A contraction or a reduction: over the rows that the program has."""
        b, dims = Build.before(self.module, op), self.members.get(op.results[0], {})
        hidden: list[set[int]] = [set() for _ in op.sources]
        for pair in _folded(op):
            if all(axis in self.members.get(op.sources[index], {}) for index, axis in pair) and self._hides(
                b, op, pair
            ):
                for index, axis in pair:
                    hidden[index].add(axis)
        if not dims and not any(hidden):
            return
        made = [self._read(b, op, index, dims, kept, each) for index, each in enumerate(hidden)]
        if dims:
            self._copy(op, dims, kept, *made)
            return
        value = insert_before(op, type(op), made, op.results[0].type, op.loc, dict(op.properties))
        op.results[0].replace_all_uses_with(value)
        self._first[op.results[0]] = value
        self._replaced.append(op)

    def _hides(self, b: Build, op: hlo.HloOp, pair: Sources) -> bool:
        """Whether what is beyond does not count, or is made so where arrays have rows along other dims too."""
        dtype = hlo.shape_of(op.sources[0]).dtype
        neutral = NEUTRAL.get(op.kind.data if op.kind else "") if isinstance(op, hlo.ReduceOp) else 0.0
        if neutral is None or dtype not in FLOATS:
            return False
        if any(self._beyond.get((op.sources[index], axis)) == neutral for index, axis in pair):
            return True
        for index, axis in pair:
            value = op.sources[index]
            if len(self.members[value]) > 1:
                self.made[value] = self._masked(b, value, axis, neutral)
                self._beyond[value, axis] = neutral
                return True
        return False

    def _masked(self, b: Build, value: Value, axis: int, number: float) -> Value:
        made, rows = self.made[value], hlo.shape_of(value).dims[axis]
        dims = hlo.shape_of(made).dims
        counts = b.iota([dims[axis]], 0)
        inside = b.compare(counts, b.number_like(rows, counts), "LT")
        return b.select(b.broadcast(inside, dims, [axis]), made, b.number_like(number, made))

    # ---- what is beyond ---------------------------------------------------------------------------------------

    def _note(self, value: Value, axis: int, number: float | None) -> None:
        if number is not None:
            self._beyond[value, axis] = -inf if number <= LOWEST else number

    def _follows(self, op: hlo.HloOp, along: Mapping[int, int]) -> float | None:
        """What is beyond the rows of the result of ``op``, whose operands have theirs ``along`` dims."""
        found = [self._beyond.get((x, along[index])) if index in along else None for index, x in enumerate(op.sources)]
        if isinstance(op, hlo.BroadcastOp) and not along:
            made = op.operand.owner
            array = self.module.constants[made.value.data] if isinstance(made, hlo.ConstantOp) else None
            return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
        if isinstance(op, HANDED_ON):
            return found[0]
        if isinstance(op, hlo.ExponentialOp):
            return 0.0 if found[0] == -inf else None
        if isinstance(op, hlo.SubtractOp):
            return -inf if found[0] == -inf else None
        if isinstance(op, hlo.MultiplyOp | hlo.AndOp) and 0.0 in found:
            return 0.0
        if isinstance(op, hlo.DivideOp) and found[0] == 0.0:
            return 0.0
        if isinstance(op, hlo.SelectOp):
            chosen = {0.0: found[2], 1.0: found[1]}.get(found[0] if found[0] is not None else -1.0)
            return found[1] if chosen is None and found[1] == found[2] else chosen
        return None


def _folded(op: hlo.DotOp | hlo.ReduceOp) -> list[Sources]:
    """The dims over which ``op`` folds, of all operands that have them."""
    if isinstance(op, hlo.ReduceOp):
        return [((0, axis),) for axis in op.dimensions.data] if len(op.sources) == 2 else []
    dims = op.dims.data
    return [((0, left), (1, right)) for left, right in zip(dims.lhs_contracting, dims.rhs_contracting, strict=True)]


def _column_of_causal(op: hlo.HloOp) -> int:
    """The dim of the columns, if ``op`` asks which of these have at most the number of their row; else -1."""
    if not isinstance(op, hlo.CompareOp) or op.direction.data not in ("GE", "LE"):
        return -1
    lhs, rhs = (counts_along(x) for x in op.sources)
    if lhs is None or rhs is None or lhs == rhs or op.shape.dims[lhs] != op.shape.dims[rhs]:
        return -1
    return rhs if op.direction.data == "GE" else lhs
