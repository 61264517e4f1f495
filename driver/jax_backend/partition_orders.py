"""Lets devices exchange their parts where a sort, or a running sum, goes along a split dim.

XLA gathers such operands on all devices. Where another dim can be divided among as many, each device has whole rows
instead, and what it makes of them goes back.
"""

from typing import Any

from jaxlib.mlir import ir

from neuronx_cc.driver.jax_backend.partition_shardings import Constraints, meshes_of, ops_named, shape_of, shardings_of

_SORT, _WINDOW = "stablehlo.sort", "stablehlo.reduce_window"


def prepare_orders(module: Any) -> None:
    """Constrain such operands in ``module``, StableHLO with Shardy's annotations."""
    meshes = meshes_of(module)
    ops = [op for op in ops_named(module, (_SORT, _WINDOW)) if _along(op)]
    if len(meshes) != 1 or not ops:
        return
    ((mesh, sizes),) = meshes.items()
    constrain = Constraints(mesh, sizes)
    for op, found in zip(ops, shardings_of(module, ops), strict=True):
        axes = found.operands[0] if found is not None else None
        if axes is None:
            continue
        along = _along(op)
        moved = tuple(axis for dim in along for axis in axes[dim])
        rows = constrain.rows(op.operands[0], axes, moved, along) if moved else None
        if rows is not None:
            arrays = len(op.operands) if op.name == _SORT else len(op.operands) // 2
            for number in range(arrays):
                constrain.operand(op, number, rows, closed=True)
            for result in op.results:
                constrain.value(op, result, rows, closed=True)


def _along(op: Any) -> set[int]:
    """The dims that are taken whole: of windows those that are as long as the array."""
    if op.name == _SORT:
        return {ir.IntegerAttr(op.attributes["dimension"]).value}
    window, given = ir.DenseI64ArrayAttr(op.attributes["window_dimensions"]), shape_of(op.operands[0])
    same = shape_of(op.results[0]) == given
    return {dim for dim, size in enumerate(window) if same and size == given[dim] > 1}
