"""Makes scatters such that XLA's partitioner scatters each update once.

Where updates are divided into parts of unequal size, and devices have the same part (a mesh axis splits nothing of it),
XLA scatters what it pads the parts with as well. So updates are padded to a multiple of the parts here, with indices
outside of the array, which scatter nothing.
"""

from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_reductions import number_of
from neuronx_cc.driver.jax_backend.partition_shardings import (
    Found,
    has_manual_parts,
    meshes_of,
    ops_named,
    replicate,
    shape_of,
    shardings_of,
)

_SCATTER = "stablehlo.scatter"


def prepare_scatters(module: Any, partitions: int) -> None:
    """Pad the updates of scatters in ``module``, StableHLO, where that is needed.

    With GSPMD's annotations every device has the updates that ``partitions`` do not divide: nobody says how they lie.
    """
    ops = [op for op in ops_named(module, (_SCATTER,)) if len(_pairs(op)) > 0]
    meshes = meshes_of(module)
    if not meshes:
        _replicate(module, ops, partitions)
        return
    sizes = next(iter(meshes.values()), {})
    if len(meshes) != 1 or sum(size > 1 for size in sizes.values()) < 2:
        return
    for op, found in zip(ops, shardings_of(module, ops) if ops else (), strict=True):
        if found is not None:
            for update_dim, index_dim in _pairs(op):
                _pad(op, update_dim, index_dim, _parts(found, update_dim, index_dim, sizes))


def _replicate(module: Any, ops: list[Any], partitions: int) -> None:
    if has_manual_parts(module):
        return
    for op in ops:
        shape = shape_of(op.operands[_place(op)])
        if any(shape[dim] % partitions for _, dim in _pairs(op)):
            for number in range(_place(op), len(op.operands)):
                replicate(op, number)


def _numbers(op: Any) -> Any:
    return stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


def _pairs(op: Any) -> list[tuple[int, int]]:
    """The dims of updates that count these, with those of the indices, but batch dims."""
    numbers = _numbers(op)
    indices, updates = (len(shape_of(op.operands[place])) for place in (_place(op), -1))
    counted = [dim for dim in range(updates) if dim not in numbers.update_window_dims]
    listed = [dim for dim in range(indices) if dim != numbers.index_vector_dim]
    pairs = zip(counted, listed, strict=True)
    return [pair for pair in pairs if pair[1] not in numbers.scatter_indices_batching_dims]


def _place(op: Any) -> int:
    """Of the indices among the operands: after the arrays, as many as there are arrays of updates."""
    return len(op.operands) // 2


def _parts(found: Found, update_dim: int, index_dim: int, sizes: dict[str, int]) -> int:
    """Into how many parts updates are divided along a dim."""
    place = len(found.operands) // 2
    most = 1
    for axes, dim in (
        (found.operands[place], index_dim),
        *((each, update_dim) for each in found.operands[place + 1 :]),
    ):
        most = max(most, prod(sizes[axis] for axis in axes[dim]) if axes is not None else prod(sizes.values()))
    return most


def _pad(op: Any, update_dim: int, index_dim: int, parts: int) -> None:
    place = _place(op)
    size = shape_of(op.operands[place])[index_dim]
    more = -size % parts
    if not more:
        return
    with ir.InsertionPoint(op), op.location:
        for number in range(place, len(op.operands)):
            value = op.operands[number]
            kind = ir.RankedTensorType(value.type)
            high = [0] * len(kind.shape)
            high[index_dim if number == place else update_dim] = more
            fill = (
                _outside(kind.element_type)
                if number == place
                else number_of(ir.RankedTensorType.get([], kind.element_type), 0)
            )
            op.operands[number] = stablehlo.pad(value, fill, [0] * len(high), high, [0] * len(high))
    op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)


def _outside(kind: Any) -> Any:
    """An index that no array has: -1, which is the largest of unsigned numbers."""
    ones = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<-1> : tensor<i{ir.IntegerType(kind).width}>")).result
    return stablehlo.bitcast_convert(ir.RankedTensorType.get([], kind), ones)
