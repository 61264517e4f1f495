"""Pads of a form on which XLA's partitioner aborts: with elements between, and edges taken away.

They become pads without negative edges, and slices.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_shardings import ops_named, shape_of


def prepare_pads(module: Any) -> None:
    """Rewrite these pads in ``module``, StableHLO."""
    for op in ops_named(module, ("stablehlo.pad",)):
        keys = ("edge_padding_low", "edge_padding_high", "interior_padding")
        low, high, between = (list(ir.DenseI64ArrayAttr(op.attributes[key])) for key in keys)
        if not any(gap and min(edges) < 0 for gap, edges in zip(between, zip(low, high, strict=True), strict=True)):
            continue
        with ir.InsertionPoint(op), op.location:
            wide = stablehlo.pad(
                op.operands[0], op.operands[1], [max(0, edge) for edge in low], [max(0, edge) for edge in high], between
            )
            shape = shape_of(wide)
            starts = [max(0, -edge) for edge in low]
            ends = [size + min(0, edge) for size, edge in zip(shape, high, strict=True)]
            op.results[0].replace_all_uses_with(stablehlo.slice(wide, starts, ends, [1] * len(starts)))
        op.erase()
