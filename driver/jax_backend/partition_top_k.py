"""Makes top-k's such that XLA's partitioner leaves each device its rows: it gathers what they read.

A top-k is the beginning of a stable sort of rows beside their places, which the partitioner divides by rows;
``passes.expand_sort`` makes it a top-k again.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_TOP_K = "chlo.top_k"


def prepare_top_k(module: Any) -> None:
    """Rewrite the top-k's in ``module``, StableHLO: ops of CHLO, or what portable artifacts have in place of those."""
    found: list[Any] = []

    def note(op: Any) -> Any:
        composite = op.name == "stablehlo.composite" and ir.StringAttr(op.attributes["name"]).value == _TOP_K
        if composite or op.name == _TOP_K:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for op in found:
        _sort(op)


def _sort(op: Any) -> None:
    rows, kinds = op.operands[0], [ir.RankedTensorType(result.type) for result in op.results]
    shape, place = ir.RankedTensorType(rows.type).shape, kinds[1].element_type
    with ir.InsertionPoint(op), op.location:
        places = stablehlo.iota(ir.RankedTensorType.get(shape, place), len(shape) - 1)
        done = stablehlo.SortOp([rows.type, places.type], [rows, places], dimension=len(shape) - 1, is_stable=True)
        scalars = [ir.RankedTensorType.get([], kind.element_type) for kind in kinds for _ in range(2)]
        block = done.regions[0].blocks.append(*scalars)
        with ir.InsertionPoint(block):
            order = stablehlo.ComparisonTypeAttr.get(_order(kinds[0].element_type))
            direction = stablehlo.ComparisonDirectionAttr.get("GT")
            one, other, *_ = block.arguments
            stablehlo.return_([stablehlo.compare(one, other, direction, compare_type=order)])
        for result, part, kind in zip(op.results, done.results, kinds, strict=True):
            first = stablehlo.slice(part, [0] * len(shape), list(kind.shape), [1] * len(shape))
            result.replace_all_uses_with(first)
    op.erase()


def _order(kind: Any) -> str:
    """How elements of a type are compared."""
    if not isinstance(kind, ir.IntegerType):
        return "TOTALORDER"
    return "UNSIGNED" if kind.is_unsigned or kind.width == 1 else "SIGNED"
