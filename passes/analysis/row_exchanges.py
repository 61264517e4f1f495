"""Loops that exchange rows as the pivots of an LU factorisation say: what JAX makes a permutation of them with.

The state of such a loop is (counters, places [..., m], pivots [..., k]); iteration ``i`` exchanges the elements ``i``
and ``pivots[i]`` of the places. Elements are read and written as JAX indexes arrays: an index below zero counts from
the end.
"""

from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.analysis.trip_count import count, element_of, step_of
from neuronx_cc.passes.analysis.values import splat_number


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Elements of a loop's state, by their numbers."""

    places: int
    pivots: int


def exchanges(op: hlo.WhileOp, module: HloModule) -> Exchanges | None:
    """What ``op`` exchanges, if it is such a loop, all ``k`` iterations of it from the first on."""
    counted = count(op, module)
    computations = {each.computation_name: each for each in module.computations()}
    body = computations.get(op.body.data[0])
    start = defining_op(op.operand)
    if counted is None or body is None or not isinstance(start, hlo.TupleOp):
        return None
    results = defining_op(body.root)
    if not isinstance(results, hlo.TupleOp):
        return None
    for places, result in enumerate(results.operands):
        found = _pivots(result, places, body, module, computations)
        if found is None:
            continue
        pivots, counter = found
        counts = (
            splat_number(start.operands[counter], module),
            step_of(results.operands[counter], counter, body, module),
        )
        kept = element_of(results.operands[pivots], body) == pivots
        if kept and counts == (0, 1) and counted.trips == hlo.shape_of(start.operands[pivots]).dims[-1]:
            return Exchanges(places, pivots)
    return None


def _pivots(
    result: hlo.SSAValue,
    places: int,
    body: hlo.ComputationOp,
    module: HloModule,
    computations: dict[str, hlo.ComputationOp],
) -> tuple[int, int] | None:
    """The numbers of the pivots and of their counter, if ``result`` is ``places`` with two elements exchanged."""
    second = defining_op(result)
    first = defining_op(second.args[0]) if isinstance(second, hlo.ScatterOp) else None
    if not isinstance(second, hlo.ScatterOp) or not isinstance(first, hlo.ScatterOp):
        return None
    if not all(_replaces(each, computations) for each in (first, second)) or element_of(first.args[0], body) != places:
        return None
    here, there = (_index(each.args[1], module) for each in (first, second))
    counter, array = element_of(here, body), _element(there, here, module)
    pivots = None if array is None else element_of(array, body)
    if counter is None or pivots is None:
        return None
    for each, index in ((first, there), (second, here)):
        array = _element(each.args[2], index, module)
        if array is None or element_of(array, body) != places:
            return None
    return pivots, counter


def _index(value: hlo.SSAValue, module: HloModule) -> hlo.SSAValue:
    """What ``value`` is, but for its shape and the rule about indices below zero."""
    while True:
        op = defining_op(value)
        if isinstance(op, hlo.ReshapeOp):
            value = op.operand
        elif isinstance(op, hlo.SelectOp) and _is_from_end(op, module):
            value = op.on_false
        else:
            return value


def _is_from_end(op: hlo.SelectOp, module: HloModule) -> bool:
    """Whether ``op`` adds a number to what is below zero."""
    test, added = defining_op(op.predicate), defining_op(op.on_true)
    return (
        isinstance(test, hlo.CompareOp)
        and test.direction.data == "LT"
        and test.lhs is op.on_false
        and splat_number(test.rhs, module) == 0
        and isinstance(added, hlo.AddOp)
        and added.lhs is op.on_false
    )


def _element(value: hlo.SSAValue, index: hlo.SSAValue, module: HloModule) -> hlo.SSAValue | None:
    """The array of which ``value`` is the element ``index`` of the last dim, for each of the others."""
    op = defining_op(_index(value, module))
    if isinstance(op, hlo.DynamicSliceOp):
        array, at = op.args[0], op.args[-1]
        whole = len(op.args) == 2
    elif isinstance(op, hlo.GatherOp):
        array, at = op.operands
        rank, dims = hlo.shape_of(array).rank, op.dims.data
        last = dims.start_index_map == (rank - 1,)
        whole = last and _pairs(
            array, dims.operand_batching_dims, dims.start_indices_batching_dims, op.slice_sizes.data
        )
    else:
        return None
    return array if whole and _index(at, module) is index else None


def _pairs(array: hlo.SSAValue, batching: tuple[int, ...], indices: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether a gather of one element takes it of each of the leading dims: one index for all, or one each."""
    leading = hlo.shape_of(array).dims[:-1]
    each = tuple(range(len(leading)))
    return sizes[-1] == 1 and ((batching == indices == each) or (not batching and sizes[:-1] == leading))


def _replaces(op: hlo.ScatterOp, computations: dict[str, hlo.ComputationOp]) -> bool:
    """Whether ``op`` puts one element of the last dim in its place, for each of the others."""
    dims, rank = op.dims.data, hlo.shape_of(op.args[0]).rank
    block = computations[op.to_apply.data[0]].block
    each = tuple(range(rank - 1))
    return (
        len(op.args) == 3
        and block.last_op is not None
        and block.last_op.operands[0] is block.args[1]
        and dims.scatter_dims_to_operand_dims == (rank - 1,)
        and dims.input_batching_dims in ((), each)
        and dims.input_batching_dims == dims.scatter_indices_batching_dims
        and (bool(dims.input_batching_dims) or dims.update_window_dims == each)
    )
