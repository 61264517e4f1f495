"""Makes reductions such that XLA's partitioner computes them as written, whatever they start from.

Where a reduced dim is split, XLA lets every device start from the initial value and combines what they have. So sums
and products start from 0 and 1 here, and the program's initial value is added or multiplied to the result; what a
reduction by any other computation reads lies whole on every device along the reduced dims.
"""

import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from neuronx_cc.driver.jax_backend.partition_shardings import has_manual_parts, replicate, replicated_value, shape_of

_GRADIENT = "stablehlo.select_and_scatter"
_IDEMPOTENT = ("stablehlo.maximum", "stablehlo.minimum", "stablehlo.and", "stablehlo.or")
"""Any number of devices may start from the initial value."""
_NEUTRAL = {"stablehlo.add": (stablehlo.AddOp, 0), "stablehlo.multiply": (stablehlo.MulOp, 1)}
_TEXTS = (
    ("0", "false", "0.000000e+00", "-0.000000e+00", "(0.000000e+00,0.000000e+00)"),
    ("1", "true", "1.000000e+00", "(1.000000e+00,0.000000e+00)"),
)
"""How MLIR prints 0 and 1 of any type."""
_CONSTANT = re.compile(r"dense<([^<>]*)>")


def prepare_reductions(module: Any) -> None:
    """Rewrite the reductions of one array in ``module``, a StableHLO module with Shardy's annotations.

    XLA gathers what the devices have of reductions of several arrays.
    """
    found: list[Any] = []

    def note(op: Any) -> Any:
        one = op.name in ("stablehlo.reduce", "stablehlo.reduce_window") and len(op.operands) == 2
        if one or op.name == _GRADIENT:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for op in found:
        if op.name == _GRADIENT:
            _keep_overlaps_whole(op, module)
            continue
        kind = _kind(op)
        if kind in _NEUTRAL:
            _start_from_neutral(op, *_NEUTRAL[kind])
        elif kind not in _IDEMPOTENT:
            _keep_whole(op, module)


def _kind(op: Any) -> str:
    """The binary op that the computation of ``op`` is, or nothing."""
    block = op.regions[0].blocks[0]
    first, *rest = [each.operation for each in block.operations]
    return first.name if len(rest) == 1 and set(first.operands) == set(block.arguments) else ""


def _start_from_neutral(op: Any, combiner: Any, neutral: int) -> None:
    initial = op.operands[1]
    if _is_constant(initial, neutral):
        return
    with ir.InsertionPoint(op), op.location:
        number = number_of(initial.type, neutral)
        part = op.clone()
        part.operation.operands[1] = number
        kind = op.results[0].type
        start = stablehlo.BroadcastInDimOp(kind, initial, ir.DenseI64ArrayAttr.get([])).result
        op.results[0].replace_all_uses_with(combiner(part.operation.results[0], start).result)
    op.erase()


def number_of(kind: Any, number: int) -> Any:
    """A scalar of the type ``kind``."""
    return stablehlo.ConvertOp(
        kind, stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{number}> : tensor<i32>")).result
    ).result


def _is_constant(value: Any, wanted: int) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant":
        return False
    # read as text, for jaxlib has no Python form of attributes with complex numbers
    found = _CONSTANT.search(str(owner.operation))
    return found is not None and found[1] in _TEXTS[wanted]


def _keep_overlaps_whole(op: Any, module: Any) -> None:
    """XLA adds up twice, or not at all, what windows of two neighbours give an element that lies in a third's reach."""
    window = list(ir.DenseI64ArrayAttr(op.attributes["window_dimensions"]))
    given = "window_strides" in op.attributes
    strides = list(ir.DenseI64ArrayAttr(op.attributes["window_strides"])) if given else [1] * len(window)
    whole = {dim for dim, (size, stride) in enumerate(zip(window, strides, strict=True)) if size >= 2 * stride}
    if whole:
        for number in (0, 1):
            _constrain(op, number, whole, module)
        _constrain_result(op, whole, module)


def _keep_whole(op: Any, module: Any) -> None:
    if op.name == "stablehlo.reduce":
        reduced = set(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    else:
        window = ir.DenseI64ArrayAttr(op.attributes["window_dimensions"])
        reduced = {dim for dim, size in enumerate(window) if size != 1}
    _constrain(op, 0, reduced, module)


def _constrain(op: Any, number: int, whole: set[int], module: Any) -> None:
    """Let every device have an operand along the dims ``whole``."""
    mesh = _mesh_around(op) or _first_mesh(module)
    if mesh is None:
        if not has_manual_parts(module):
            replicate(op, number)
        return
    with ir.InsertionPoint(op), op.location:
        op.operands[number] = _along(op.operands[number], whole, mesh).result


def _constrain_result(op: Any, whole: set[int], module: Any) -> None:
    """Let every device have the result along the dims ``whole``: XLA divides an op as its result is."""
    mesh = _mesh_around(op) or _first_mesh(module)
    (result,) = op.results
    with ir.InsertionPoint.after(op), op.location:
        if mesh is not None:
            made = _along(result, whole, mesh)
        elif not has_manual_parts(module):
            made = replicated_value(result)
        else:
            return
    result.replace_all_uses_except(made.result, made.operation)


def _along(value: Any, whole: set[int], mesh: str) -> Any:
    """``value``, which every device has along the dims ``whole``."""
    dims = [sdy.DimensionShardingAttr.get([], is_closed=dim in whole) for dim in range(len(shape_of(value)))]
    return sdy.ShardingConstraintOp(value, sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(mesh), dims))


def _mesh_around(op: Any) -> str | None:
    """The mesh of the manual computation that ``op`` is in."""
    while op is not None and op.name != "builtin.module":
        if op.name == "sdy.manual_computation":
            for key in ("in_shardings", "out_shardings"):
                for sharding in sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings:
                    return str(ir.FlatSymbolRefAttr(sdy.TensorShardingAttr(sharding).mesh_or_ref).value)
        op = op.parent
    return None


def _first_mesh(module: Any) -> str | None:
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh" and len(sdy.MeshAttr(op.attributes["mesh"]).axes):
            return str(ir.StringAttr(op.attributes["sym_name"]).value)
    return None
