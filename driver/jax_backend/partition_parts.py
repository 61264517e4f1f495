"""Equal parts of a split dim: what a fused projection makes (gate and values, queries, keys and values), taken apart.

A device has neighbouring elements of the dim, and so of one part or two; XLA moves what it lacks of each part by
itself, with all that lies between. Here the parts become a dim of their own, and each device gets its share of every
part in one exchange. The same for equal parts that are put together along a split dim: gradients of these, and halves
that change places.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_shardings import (
    Axes,
    Constraints,
    ops_named,
    shape_of,
    shardings_of,
)

_SLICE, _JOIN = "stablehlo.slice", "stablehlo.concatenate"


def prepare_parts(module: Any) -> None:
    """Rewrite such slices and concatenations in ``module``, StableHLO with Shardy's annotations."""
    constrain = Constraints.of(module)
    groups = _groups(ops_named(module, (_SLICE,)))
    joins = [op for op in ops_named(module, (_JOIN,)) if _is_even(op)]
    if constrain is None or not (groups or joins):
        return
    found = shardings_of(module, [*(slices[0] for slices, _ in groups), *joins])
    for (slices, dim), each in zip(groups, found[: len(groups)], strict=True):
        given = each.operands[0] if each is not None else None
        part = shape_of(slices[0].results[0])[dim]
        count = shape_of(slices[0].operands[0])[dim] // part
        if given is not None and _divides(given, dim, count, part, constrain):
            _take_apart(slices, dim, given, constrain)
    for op, each in zip(joins, found[len(groups) :], strict=True):
        made, dim = each.results[0] if each is not None else None, _dim(op)
        if made is not None and _divides(made, dim, len(op.operands), shape_of(op.operands[0])[dim], constrain):
            _put_together(op, dim, made, constrain)


def _groups(slices: Any) -> list[tuple[list[Any], int]]:
    """Slices that take different equal parts of one value, and the dim of the parts."""
    by_value: dict[tuple[Any, int, int], dict[int, Any]] = defaultdict(dict)
    for op in slices:
        start, limit, strides = (
            list(ir.DenseI64ArrayAttr(op.attributes[key])) for key in ("start_indices", "limit_indices", "strides")
        )
        shape = shape_of(op.operands[0])
        cut = [dim for dim, size in enumerate(shape) if limit[dim] - start[dim] != size]
        if len(cut) != 1 or set(strides) != {1}:
            continue
        (dim,) = cut
        part = limit[dim] - start[dim]
        if part > 1 and shape[dim] % part == 0 and start[dim] % part == 0:
            by_value[op.operands[0], dim, part].setdefault(start[dim], op)
    return [(list(ops.values()), dim) for (_, dim, _), ops in by_value.items() if len(ops) > 1]


def _is_even(op: Any) -> bool:
    dim, shapes = _dim(op), [shape_of(operand) for operand in op.operands]
    return len(shapes) > 1 and shapes.count(shapes[0]) == len(shapes) and shapes[0][dim] > 1


def _dim(op: Any) -> int:
    return int(ir.IntegerAttr(op.attributes["dimension"]).value)


def _divides(axes: Axes, dim: int, count: int, part: int, constrain: Constraints) -> bool:
    """Whether the devices that split ``dim`` divide each ``part``, and hold no piece of a part beside one of another.

    XLA gathers a dim whose devices have parts of three from two neighbours, to make two dims of it.
    """
    devices = prod(constrain.sizes[axis] for axis in axes[dim])
    return devices > 1 and part % devices == 0 and (devices % count == 0 or count % devices == 0)


def _take_apart(slices: Sequence[Any], dim: int, axes: Axes, constrain: Constraints) -> None:
    value = slices[0].operands[0]
    shape, part = shape_of(value), shape_of(slices[0].results[0])[dim]
    count = shape[dim] // part
    with _after(value), slices[0].location:
        apart = _reshaped(value, [*shape[:dim], count, part, *shape[dim + 1 :]])
        apart = constrain.made_of(apart, (*axes[:dim], (), *axes[dim:]))
        for op in slices:
            number = list(ir.DenseI64ArrayAttr(op.attributes["start_indices"]))[dim] // part
            starts, limits = [0] * (len(shape) + 1), shape_of(apart)
            starts[dim], limits[dim] = number, number + 1
            taken = stablehlo.slice(apart, starts, limits, [1] * len(starts))
            op.results[0].replace_all_uses_with(_reshaped(taken, shape_of(op.results[0])))
    for op in slices:
        op.erase()


def _put_together(op: Any, dim: int, axes: Axes, constrain: Constraints) -> None:
    with ir.InsertionPoint(op), op.location:
        shape = shape_of(op.operands[0])
        rows = [_reshaped(operand, [*shape[:dim], 1, *shape[dim:]]) for operand in op.operands]
        apart = constrain.made_of(stablehlo.concatenate(rows, dim), (*axes[:dim], (), *axes[dim:]))
        op.results[0].replace_all_uses_with(constrain.made_of(_reshaped(apart, shape_of(op.results[0])), axes))
    op.erase()


def _after(value: Any) -> Any:
    owner = value.owner
    return ir.InsertionPoint.at_block_begin(owner) if isinstance(owner, ir.Block) else ir.InsertionPoint.after(owner)


def _reshaped(value: Any, dims: Sequence[int]) -> Any:
    kind = ir.RankedTensorType(value.type)
    return stablehlo.reshape(ir.RankedTensorType.get(list(dims), kind.element_type), value)
