"""Prepares a propagated Shardy module for jaxlib's conversion to local shapes, which knows only part of StableHLO.

Ops that the conversion takes with any sharding stay as they are. Others see the dims that they mix whole (a slice its
sliced dims, say), and the remaining ones everything whole: every device computes them completely.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from neuronx_cc.driver.jax_backend.partition_indexing import spread
from neuronx_cc.driver.jax_backend.partition_mesh import manual_axes
from neuronx_cc.driver.jax_backend.partition_reductions import combines

ELEMENTWISE = (
    *("abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert", "cosine"),
    *("count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor", "imag", "is_finite", "log"),
    *("log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real"),
    *("reduce_precision", "remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "select", "shift_left"),
    *("shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor"),
)
SAFE = frozenset(
    [
        *(f"stablehlo.{name}" for name in ELEMENTWISE),
        *(f"stablehlo.{name}" for name in ("broadcast_in_dim", "constant", "iota", "transpose", "reshape", "return")),
        *("stablehlo.dot_general", "stablehlo.partition_id", "stablehlo.replica_id", "func.return"),
        *("sdy.constant", "sdy.reshard", "sdy.sharding_constraint", "sdy.manual_computation", "sdy.return"),
        *("sdy.propagation_barrier", "sdy.all_reduce", "sdy.sharding_group"),
    ]
)


def drop_maximal(module: Any) -> None:
    """Take the annotations of single devices from calls: what they say is in the call's configuration."""
    single = {
        ir.StringAttr(op.attributes["sym_name"]).value
        for op in module.body.operations
        if op.operation.name == "sdy.mesh" and not len(sdy.MeshAttr(op.attributes["mesh"]).axes)
    }

    def clean(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            meshes = {ir.FlatSymbolRefAttr(each.mesh_or_ref).value for each in _shardings(op) if each is not None}
            if meshes & single:
                del op.attributes["sdy.sharding"]
        return ir.WalkResult.ADVANCE

    module.operation.walk(clean)


def guard(function: Any, careful: bool) -> None:
    """Make every op of ``function`` one that converts; with ``careful`` all of them compute whole.

    So are those of manual computations that leave axes to the passes.
    """
    for op in list(function.regions[0].blocks[0].operations):
        op = op.operation
        if op.name == "sdy.manual_computation" and _leaves_axes(op):
            guard(op, False)
        keeps = op.name in SAFE and not (careful and op.name.startswith("stablehlo.") and op.name != "stablehlo.return")
        if keeps or not (len(op.results) or op.name == "stablehlo.custom_call"):
            continue
        if not careful and op.parent.name == "func.func" and spread(op, _meshes(op)):
            continue
        whole = None if careful else _mixed_dims(op)
        if whole is not None and not whole:
            continue
        _make_whole(op, whole)


def _leaves_axes(op: Any) -> bool:
    mesh = _meshes(op).get(_mesh_of(op) or "")
    axes = [] if mesh is None else map(sdy.MeshAxisAttr, mesh.axes)
    return bool({axis.name for axis in axes if axis.size > 1} - set(manual_axes(op)))


def _meshes(op: Any) -> dict[str, Any]:
    return {
        ir.StringAttr(each.attributes["sym_name"]).value: sdy.MeshAttr(each.attributes["mesh"])
        for each in _module_of(op).regions[0].blocks[0].operations
        if each.operation.name == "sdy.mesh"
    }


def _module_of(op: Any) -> Any:
    while op.name != "builtin.module":
        op = op.parent
    return op


def _mixed_dims(op: Any) -> set[int] | None:
    """Dims of the operands, which have the result's rank, that ``op`` mixes; None for all of everything."""
    name = op.name.removeprefix("stablehlo.")
    if name == "slice":
        sizes = _dims(op.operands[0])
        start, limit, stride = (_integers(op, key) for key in ("start_indices", "limit_indices", "strides"))
        return {dim for dim, size in enumerate(sizes) if (start[dim], limit[dim], stride[dim]) != (0, size, 1)}
    if name == "pad":
        edges = zip(*(_integers(op, f"{key}_padding") for key in ("edge_low", "edge_high", "interior")), strict=True)
        return {dim for dim, widths in enumerate(edges) if any(widths)}
    if name == "concatenate":
        return {ir.IntegerAttr(op.attributes["dimension"]).value}
    if name == "reverse":
        return set(_integers(op, "dimensions"))
    if name == "sort":
        return {ir.IntegerAttr(op.attributes["dimension"]).value}
    if name == "dynamic_slice":
        sizes = _dims(op.operands[0])
        return {dim for dim, size in enumerate(_integers(op, "slice_sizes")) if size != sizes[dim]}
    if name == "reduce" and combines(op):
        return set()
    return None


def make_even(module: Any) -> None:
    """Drop the axes that do not divide their dims: devices could not hold parts of one size."""
    sizes = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes["mesh"]).axes)
            sizes[ir.StringAttr(op.attributes["sym_name"]).value] = {axis.name: axis.size for axis in axes}

    def even(sharding: Any, kind: Any) -> Any:
        mesh = sizes[ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value]
        dims = []
        for dim, size in zip(map(sdy.DimensionShardingAttr, sharding.dimension_shardings), _sizes(kind), strict=True):
            axes = list(dim.axes)
            while size % prod(mesh[axis.name] for axis in map(sdy.AxisRefAttr, axes)):
                axes.pop()
            dims.append(sdy.DimensionShardingAttr.get(axes, is_closed=dim.is_closed))
        rest = list(sharding.replicated_axes), list(sharding.unreduced_axes)
        return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, dims, *rest)

    def visit(op: Any) -> Any:
        if op.name in ("sdy.sharding_constraint", "sdy.reshard"):
            op.attributes["sharding"] = even(sdy.TensorShardingAttr(op.attributes["sharding"]), op.results[0].type)
        elif "sdy.sharding" in op.attributes and len(op.results):
            given = zip(_shardings(op), op.results, strict=True)
            new = [even(sharding, result.type) for sharding, result in given]
            op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get(new)
        elif op.name == "func.func":
            kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
            for key, kinds in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
                if key in op.attributes:
                    each = zip(ir.ArrayAttr(op.attributes[key]), kinds, strict=True)
                    op.attributes[key] = ir.ArrayAttr.get(
                        [in_dictionary(ir.DictAttr(one), type_) for one, type_ in each]
                    )
        return ir.WalkResult.ADVANCE

    def in_dictionary(named: Any, kind: Any) -> Any:
        entries = {named[at].name: named[at].attr for at in range(len(named))}
        if "sdy.sharding" in entries:
            entries["sdy.sharding"] = even(sdy.TensorShardingAttr(entries["sdy.sharding"]), kind)
        return ir.DictAttr.get(entries)

    module.operation.walk(visit)


def _make_whole(op: Any, dims: set[int] | None) -> None:
    """Let ``op`` read and write values whose ``dims`` (None: all) lie on every device completely."""
    mesh = _mesh_of(op)
    if mesh is None:
        return
    for region in op.regions:
        _forget(region)
    rank = len(_dims(op.results[0])) if len(op.results) else 0
    given = next(iter(_shardings(op)), None)
    axes = [[] if dims is None or dim in dims else list(_axes(given, dim)) for dim in range(rank)]
    for index, operand in enumerate(op.operands):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue
        same = dims is not None and len(_dims(operand)) == rank and (rank or index == 0)
        wanted = _sharding(mesh, axes if same else [[]] * len(_dims(operand)))
        with ir.InsertionPoint(op), op.location:
            op.operands[index] = sdy.ReshardOp(operand, wanted).result
    results = []
    for result in op.results:
        same = dims is not None and len(_dims(result)) == rank
        results.append(_sharding(mesh, axes if same else [[]] * len(_dims(result))))
    if results:
        op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get(results)


def _forget(region: Any) -> None:
    def clean(op: Any) -> Any:
        if op.name == "sdy.manual_computation":
            return ir.WalkResult.SKIP
        if "sdy.sharding" in op.attributes:
            del op.attributes["sdy.sharding"]
        return ir.WalkResult.ADVANCE

    for block in region.blocks:
        for op in block.operations:
            op.operation.walk(clean)


def _shardings(op: Any) -> list[Any]:
    """One TensorShardingAttr or None for each result."""
    if "sdy.sharding" not in op.attributes:
        return [None] * len(op.results)
    attribute = op.attributes["sdy.sharding"]
    return [sdy.TensorShardingAttr(each) for each in sdy.TensorShardingPerValueAttr(attribute).shardings]


def _mesh_of(op: Any) -> str | None:
    """The mesh of the op's module (jaxlib's programs have one of more than one device)."""
    names = [
        ir.StringAttr(each.attributes["sym_name"]).value
        for each in _module_of(op).regions[0].blocks[0].operations
        if each.operation.name == "sdy.mesh" and len(sdy.MeshAttr(each.attributes["mesh"]).axes)
    ]
    mine = [sharding for sharding in _shardings(op) if sharding is not None]
    if mine:
        return str(ir.FlatSymbolRefAttr(mine[0].mesh_or_ref).value)
    return names[0] if names else None


def _axes(sharding: Any, dim: int) -> Iterable[Any]:
    return [] if sharding is None else sdy.DimensionShardingAttr(sharding.dimension_shardings[dim]).axes


def _sharding(mesh: str, axes: list[list[Any]]) -> Any:
    dims = [sdy.DimensionShardingAttr.get(each, is_closed=True) for each in axes]
    return sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(mesh), dims)


def _dims(value: Any) -> list[int]:
    return _sizes(value.type)


def _sizes(kind: Any) -> list[int]:
    return list(ir.RankedTensorType(kind).shape) if isinstance(kind, ir.RankedTensorType) else []


def _integers(op: Any, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))
