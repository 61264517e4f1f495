"""Pads in forms that XLA's partitioner divides.

It aborts on those with elements between and edges taken away; they become pads without negative edges, and slices. What
windows read of a pad, as gradients of pooling do, it divides into parts of other sizes than those of the array; such a
pad becomes part of the windows, each device reads its own elements, and neighbours' where windows overlap.
"""

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_shardings import ops_named, shape_of


def prepare_pads(module: Any) -> None:
    """Rewrite these pads in ``module``, StableHLO."""
    for op in ops_named(module, ("stablehlo.reduce_window",)):
        _take_in(op)
    for op in ops_named(module, ("stablehlo.pad",)):
        low, high, between = _edges(op)
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


def _take_in(window: Any) -> None:
    """The pad that ``window``, a reduction of windows, reads, if it pads with what the reduction starts from."""
    pad = window.operands[0].owner
    if isinstance(pad, ir.Block) or pad.name != "stablehlo.pad" or len(window.operands) != 2:
        return
    low, high, between = _edges(pad)
    if min(*low, *high) < 0 or not _is_same(pad.operands[1], window.operands[1]):
        return
    rank = len(low)
    dilations, padding = np.ones(rank, np.int64), np.zeros((rank, 2), np.int64)
    if "base_dilations" in window.attributes:
        dilations = np.array(ir.DenseI64ArrayAttr(window.attributes["base_dilations"]))
    if "padding" in window.attributes:
        padding = np.array(ir.DenseIntElementsAttr(window.attributes["padding"])).reshape(rank, 2)
    if (dilations != 1).any():
        return
    window.attributes["base_dilations"] = ir.DenseI64ArrayAttr.get([gap + 1 for gap in between])
    window.attributes["padding"] = ir.DenseIntElementsAttr.get(padding + np.stack([low, high], 1))
    window.operands[0] = pad.operands[0]


def _edges(pad: Any) -> tuple[list[int], list[int], list[int]]:
    """What ``pad`` puts before, after and between the elements of each dim."""
    low, high, between = (
        list(ir.DenseI64ArrayAttr(pad.attributes[key]))
        for key in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return low, high, between


def _is_same(one: Any, other: Any) -> bool:
    """Whether both are one value, or equal constants."""
    sources = [_source(value) for value in (one, other)]
    if sources[0] == sources[1]:
        return True
    owners = [value.owner for value in sources]
    if any(isinstance(owner, ir.Block) or owner.name != "stablehlo.constant" for owner in owners):
        return False
    return bool(owners[0].attributes["value"] == owners[1].attributes["value"])


def _source(value: Any) -> Any:
    """What a broadcast of one element to one element reads."""
    while not isinstance(value.owner, ir.Block) and value.owner.name == "stablehlo.broadcast_in_dim":
        value = value.owner.operands[0]
    return value
