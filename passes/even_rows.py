"""Gives arrays whose rows no number of partitions divides well a few rows more, where they are multiplied repeatedly.

Input: canonical hlo. Output: what is computed row by row between contractions has as many rows as fill tiles of equal
numbers of partitions, so that code generation keeps it on chip; rows that are added are copies of the last one
(``expansions.padded_rows``), and where rows meet, or leave the computation, they are left out. No value changes.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, users, values_of
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.passes.analysis.rows import kept_dims
from neuronx_cc.passes.analysis.stored import FILLED, RESIDENT_VALUE_SHARE, VIEWS, is_given
from neuronx_cc.passes.expansions.build import Value
from neuronx_cc.passes.expansions.padded_rows import PaddedRows
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.precision.decisions import of_operands

Place = tuple[Value, int]
"""A dim of an array."""
FULLER = 1.2
"""Rows are added where there are so many times fewer tiles with them."""
HIDDEN = 0.75
"""Of the time in which weights are read, what transfers of the result take beside that."""
PASSES = 2
"""How often Vector and Scalar go through the result of a product."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        sizes = _more_rows(computation, context.timing)
        if not sizes:
            continue
        members: dict[Value, dict[int, int]] = defaultdict(dict)
        for region in _regions(computation, sizes):
            if _meets_weights(region) and gain(region, sizes, context) > 0:
                for value, axis in region:
                    members[value][axis] = sizes[hlo.shape_of(value).dims[axis]]
        if members:
            PaddedRows(module, computation, dict(members))


def _more_rows(computation: hlo.ComputationOp, timing: Timing) -> dict[int, int]:
    """Number of rows of a contraction -> of how many rows it is computed better."""
    found = {}
    most = timing.sizes.columns
    for op in ops_of(computation.block):
        for size in op.shape.dims if isinstance(op, hlo.DotOp) else ():
            if size > most and size not in found:
                tiles = -(-size // most)
                even = tiles * -(-size // tiles)
                if _tiles(size, most) >= FULLER * tiles:
                    found[size] = even
    return found


def _tiles(size: int, most: int) -> int:
    """The fewest equal tiles of at most ``most`` rows."""
    return next(tiles for tiles in range(-(-size // most), size + 1) if size % tiles == 0)


def _regions(computation: hlo.ComputationOp, sizes: dict[int, int]) -> list[list[Place]]:
    """The dims of such ``sizes`` that are the same rows, together."""
    first: dict[Place, Place] = {}

    def root(place: Place) -> Place:
        while (above := first.setdefault(place, place)) != place:
            first[place] = place = first[above]
        return place

    for op in ops_of(computation.block):
        for axis, sources in kept_dims(op).items():
            if op.shape.dims[axis] in sizes:
                for index, source in sources:
                    first[root((op.sources[index], source))] = root((op.results[0], axis))
    found: dict[Place, list[Place]] = defaultdict(list)
    for value in values_of(computation):
        for axis in range(hlo.shape_of(value).rank) if isinstance(value.type, hlo.ArrayType) else ():
            if (value, axis) in first:
                found[root((value, axis))].append((value, axis))
    return list(found.values())


def _meets_weights(region: list[Place]) -> bool:
    """Whether these are rows that are multiplied with weights, no features."""
    for value, axis in region:
        op = value.owner
        sources = kept_dims(op)[axis] if isinstance(op, hlo.DotOp) else ()
        for index, _ in sources if len(sources) == 1 else ():
            if _is_stored(op.sources[1 - index]) and not _is_stored(op.sources[index]):  # type: ignore[union-attr]
                return True
    return False


def gain(region: list[Place], sizes: dict[int, int], context: PassContext) -> float:
    """Nanoseconds that are saved by estimate: by products with weights, against copies where rows enter and meet."""
    places, gain, timing = set(region), 0.0, context.timing
    for value, axis in region:
        op = value.owner
        kept = kept_dims(op) if isinstance(op, hlo.HloOp) else {}
        if axis not in kept:
            gain -= _way(value, timing)
        elif isinstance(op, hlo.DotOp) and len(kept[axis]) == 1 and (value, axis) == _first(value, places):
            ((index, _),) = kept[axis]
            if not _is_stored(op.sources[index]):
                gain += _saved(op, index, sizes[op.shape.dims[axis]], axis, context)
        for reader in dict.fromkeys(users(value)):
            if isinstance(reader, hlo.ReturnOp):
                gain -= timing.transfer_latency
            elif not _follows(reader, value, axis, places):
                gain -= _way(value, timing)
    return gain


def _first(value: Value, places: set[Place]) -> Place:
    """The first dim of ``value`` that is among ``places``."""
    return next((value, axis) for axis in range(hlo.shape_of(value).rank) if (value, axis) in places)


def _follows(reader: hlo.Operation, value: Value, axis: int, places: set[Place]) -> bool:
    """Whether ``reader`` reads ``value`` with its added rows, or only one of its rows."""
    if isinstance(reader, hlo.SliceOp) and reader.shape.dims[axis] == 1:
        return True
    if any((reader.results[0], result) in places for result in kept_dims(reader)):
        return True
    return isinstance(reader, hlo.DotOp | hlo.ReduceOp) and sum(each is value for each, _ in places) > 1


def _saved(op: hlo.DotOp, index: int, rows: int, axis: int, context: PassContext) -> float:
    """By a product of weights with rows, operand ``index``: the way of its result through HBM, as far as neither the
    product nor the reading of weights hides it; or tiles, where all stays on chip either way.
    """
    timing, most = context.timing, context.timing.sizes.columns
    shape, weights = op.shape, hlo.shape_of(op.sources[1 - index])
    size, before = shape.dims[axis], _tiles(shape.dims[axis], most)
    tiles = rows // (partitions := rows // _tiles(rows, most))
    if shape.nbytes > partitions * timing.sizes.sbuf_share(RESIDENT_VALUE_SHARE):
        return 0.0
    contracted, other = (op.dims.data.lhs_contracting, op.dims.data.rhs_contracting)[:: 1 - 2 * index]
    terms = prod(hlo.shape_of(op.sources[index]).dims[each] for each in contracted)
    wide, chunks = shape.size // size, -(-terms // timing.sizes.rows)
    product, passes = wide * chunks * _column(op, context), PASSES * wide * timing.cycle(Stream.VECTOR)
    around = wide // prod(size for each, size in enumerate(weights.dims) if each not in other)
    if around * tiles > -(-around * size // most):
        return 0.0  # rows of all around fill tiles together
    given = _is_stored(op.sources[1 - index])
    loaded = timing.transfer(weights.nbytes, timing.long_run).bound if given else 0.0
    if size // before * FILLED >= most:
        return max(before * product, before * passes, loaded) - max(tiles * product, tiles * passes, loaded)
    if not given:
        return 0.0
    return max(0.0, _way(op.results[0], timing) - max(tiles * product, HIDDEN * loaded))


def _column(op: hlo.DotOp, context: PassContext) -> float:
    """Nanoseconds of a column of the product, in the type that its operands are cast to."""
    dtype = hlo.shape_of(op.lhs).dtype
    if dtype == "f32":
        dtype = of_operands(op, context.options).dtype
    return context.timing.column(dtype.replace("tf32", "f32"), ("tf32",) * (dtype == "tf32"))


def _way(value: Value, timing: Timing) -> float:
    """Through HBM and back."""
    nbytes = hlo.shape_of(value).nbytes
    return sum(timing.arrival(nbytes, timing.long_run, way) for way in ("write", "read"))


def _is_stored(value: Value) -> bool:
    while isinstance(value.owner, VIEWS):
        value = value.owner.operands[0]
    return is_given(value) or isinstance(value.owner, hlo.ConstantOp)
