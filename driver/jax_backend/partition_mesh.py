"""Splits the axes of a propagated module's meshes into prime sizes, so that no sharding names a part of an axis.

jaxlib's conversion to local shapes takes the parts of an axis in the wrong order (a mesh of 4 by 2 and a value that
moves from one axis to the other is enough); whole axes it gets right, and prime axes have no parts.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

Parts = dict[str, list[tuple[str, int]]]
"""Axis -> its new axes, outermost first, with sizes."""


def split_meshes(module: Any) -> None:
    """Split all axes of all meshes of ``module``. Raises ValueError for parts of one axis that cross each other."""
    meshes = {}
    cuts = _cuts(module)
    for op in module.body.operations:
        if op.operation.name != "sdy.mesh":
            continue
        name = ir.StringAttr(op.attributes["sym_name"]).value
        mesh = sdy.MeshAttr(op.attributes["mesh"])
        parts = {axis.name: _split(axis.name, axis.size, cuts) for axis in map(sdy.MeshAxisAttr, mesh.axes)}
        axes = [sdy.MeshAxisAttr.get(*part) for each in parts.values() for part in each]
        op.attributes["mesh"] = sdy.MeshAttr.get(axes, list(mesh.device_ids))
        if "stablehlo.mesh" in op.attributes:
            del op.attributes["stablehlo.mesh"]
        meshes[name] = parts
    all_parts: Parts = {name: parts for mesh in meshes.values() for name, parts in mesh.items()}

    def split(sharding: Any) -> Any:
        mesh = meshes[ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value]
        dims = [
            sdy.DimensionShardingAttr.get(_whole(dim.axes, mesh), is_closed=dim.is_closed)
            for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
        ]
        rest = _whole(sharding.replicated_axes, mesh), _whole(sharding.unreduced_axes, mesh)
        return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, dims, *rest)

    def split_manual(op: Any) -> Any:
        if op.name == "sdy.manual_computation":
            new = [ir.StringAttr.get(part) for name in manual_axes(op) for part, _ in all_parts[name]]
            op.attributes["manual_axes"] = sdy.ManualAxesAttr.get(new)
        return ir.WalkResult.ADVANCE

    map_shardings(module, split)
    module.operation.walk(split_manual)


def map_shardings(module: Any, change: Callable[[Any], Any]) -> None:
    """Replace every TensorShardingAttr of ``module``, those of arguments and results included, by ``change`` of it."""

    def changed(attribute: Any) -> Any:
        if sdy.TensorShardingAttr.isinstance(attribute):
            return change(sdy.TensorShardingAttr(attribute))
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            each = sdy.TensorShardingPerValueAttr(attribute).shardings
            return sdy.TensorShardingPerValueAttr.get([change(sdy.TensorShardingAttr(one)) for one in each])
        return None

    def visit(op: Any) -> Any:
        for name in list(op.attributes):
            new = changed(op.attributes[name])
            if new is not None:
                op.attributes[name] = new
        if op.name == "func.func":
            for key in ("arg_attrs", "res_attrs"):
                if key in op.attributes:
                    op.attributes[key] = ir.ArrayAttr.get(
                        [in_dictionary(one) for one in ir.ArrayAttr(op.attributes[key])]
                    )
        return ir.WalkResult.ADVANCE

    def in_dictionary(dictionary: Any) -> Any:
        named = ir.DictAttr(dictionary)
        return ir.DictAttr.get(
            {one.name: changed(one.attr) or one.attr for one in (named[at] for at in range(len(named)))}
        )

    module.operation.walk(visit)


def manual_axes(op: Any) -> list[str]:
    """The axes that a manual computation takes (jaxlib's attribute has no accessor)."""
    return re.findall(r'"([^"]*)"', str(op.attributes["manual_axes"]))


def _cuts(module: Any) -> dict[str, set[int]]:
    """Axis -> where shardings cut it: products of the sizes of outer parts."""
    cuts: dict[str, set[int]] = defaultdict(set)

    def look(sharding: Any) -> Any:
        dims = [dim.axes for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings)]
        for axes in (*dims, sharding.replicated_axes, sharding.unreduced_axes):
            for axis in map(sdy.AxisRefAttr, axes):
                if axis.sub_axis_info is not None:
                    info = sdy.SubAxisInfoAttr(axis.sub_axis_info)
                    cuts[axis.name] |= {info.pre_size, info.pre_size * info.size}
        return sharding

    map_shardings(module, look)
    return cuts


def _split(name: str, size: int, cuts: dict[str, set[int]]) -> list[tuple[str, int]]:
    factors = []
    for low, high in pairwise(sorted({1, size} | cuts.get(name, set()))):
        if high % low:
            raise ValueError(f"parts of the axis {name} cross each other")
        factors += _primes(high // low)
    if len(factors) < 2:
        return [(name, size)]
    return [(f"{name}.{index}", factor) for index, factor in enumerate(factors)]


def _primes(number: int) -> list[int]:
    found, prime = [], 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return found


def _whole(references: Any, mesh: Parts) -> list[Any]:
    """The new axes that axes, or parts of them, have become."""
    new = []
    for axis in map(sdy.AxisRefAttr, references):
        low, high = 1, 1
        for _, size in mesh[axis.name]:
            high *= size
        if axis.sub_axis_info is not None:
            info = sdy.SubAxisInfoAttr(axis.sub_axis_info)
            low, high = info.pre_size, info.pre_size * info.size
        at = 1
        for part, size in mesh[axis.name]:
            if low <= at < high or (high == low == at):
                new.append(sdy.AxisRefAttr.get(part))
            at *= size
    return new
