"""Splits the axes of a propagated module's meshes into prime sizes, so that no sharding names a part of an axis.

jaxlib's conversion to local shapes takes the parts of an axis in the wrong order (a mesh of 4 by 2 and a value that
moves from one axis to the other is enough); whole axes it gets right, and prime axes have no parts.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

Parts = dict[str, list[tuple[str, int]]]
"""Axis -> its new axes, outermost first, with sizes."""

SHARDINGS = ("sdy.sharding", "sharding", "in_shardings", "out_shardings", "out_sharding")
"""Attributes with shardings (jaxlib cannot even read some others, complex constants)."""


def split_meshes(module: Any) -> dict[str, Parts]:
    """Split all axes of all meshes of ``module``; mesh -> what became of its axes.

    Meshes of the same devices become one if they split alike and their axes can be put into one order, for the passes
    do not take values from one mesh to another. Raises ValueError for parts of one axis that cross each other.
    """
    meshes: dict[str, Parts] = {}
    names: dict[str, str] = {}
    known: dict[tuple[Any, ...], tuple[str, list[str]]] = {}
    places: dict[tuple[str, str], int] = {}
    cuts = _cuts(module)
    for op in module.body.operations:
        if op.operation.name != "sdy.mesh":
            continue
        name = ir.StringAttr(op.attributes["sym_name"]).value
        mesh = sdy.MeshAttr(op.attributes["mesh"])
        parts = {axis.name: _split(axis.name, axis.size, cuts[name]) for axis in map(sdy.MeshAxisAttr, mesh.axes)}
        flat = [part for each in parts.values() for part in each if part[1] > 1]
        flat, devices = _straightened(flat, list(mesh.device_ids))
        key = (*(size for _, size in flat), tuple(devices))
        if flat and key in known:
            # it keeps its axes of size 1, which nothing needs
            names[name], same = known[key]
            renamed = {old: new for (old, _), new in zip(flat, same, strict=True)}
            meshes[name] = {
                axis: [(renamed[part], size) for part, size in each if size > 1] for axis, each in parts.items()
            }
            continue
        known[key] = name, [part for part, _ in flat]
        names[name], meshes[name] = name, parts
        single = [part for each in parts.values() for part in each if part[1] == 1]
        places |= {(name, part): place for place, (part, _) in enumerate([*flat, *single])}
        op.attributes["mesh"] = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(*part) for part in [*flat, *single]], devices)
        if "stablehlo.mesh" in op.attributes:
            del op.attributes["stablehlo.mesh"]

    def split(sharding: Any) -> Any:
        name = _mesh_name(sharding)
        mesh = meshes[name]
        dims = [
            sdy.DimensionShardingAttr.get(_whole(dim.axes, mesh), is_closed=dim.is_closed)
            for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
        ]
        replicated, unreduced = (
            sorted(_whole(axes, mesh), key=lambda axis: places[names[name], axis.name])
            for axes in (sharding.replicated_axes, sharding.unreduced_axes)
        )
        return sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(names[name]), dims, replicated, unreduced)

    def split_manual(op: Any) -> Any:
        if op.name == "sdy.manual_computation":
            mesh = _mesh_of_manual(op) if manual_axes(op) else ""
            new = [part for name in manual_axes(op) for part, _ in meshes[mesh][name]]
            new.sort(key=lambda part: places[names[mesh], part])
            op.attributes["manual_axes"] = sdy.ManualAxesAttr.get([ir.StringAttr.get(part) for part in new])
        return ir.WalkResult.ADVANCE

    module.operation.walk(split_manual)
    map_shardings(module, split)
    return meshes


def _straightened(axes: list[tuple[str, int]], devices: list[int]) -> tuple[list[tuple[str, int]], list[int]]:
    """Axes and devices of a mesh; the axes in the order in which the devices count up, if there is one."""
    sizes = [size for _, size in axes]
    if not devices or prod(sizes) != len(devices):
        return axes, devices
    grid = np.array(devices).reshape(sizes)
    steps = [int(np.take(grid, 1, axis).flat[0] - grid.flat[0]) for axis in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda axis: -steps[axis])
    if not np.array_equal(grid.transpose(order).reshape(-1), np.arange(len(devices))):
        return axes, devices
    return [axes[axis] for axis in order], []


def _mesh_name(sharding: Any) -> str:
    return str(ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value)


def _mesh_of_manual(op: Any) -> str:
    for key in ("in_shardings", "out_shardings"):
        for sharding in sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings:
            return _mesh_name(sdy.TensorShardingAttr(sharding))
    raise ValueError("a manual computation of nothing")


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
        for name in SHARDINGS:
            new = changed(op.attributes[name]) if name in op.attributes else None
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


def _cuts(module: Any) -> dict[str, dict[str, set[int]]]:
    """Mesh -> axis -> where shardings cut it: products of the sizes of outer parts."""
    cuts: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))

    def look(sharding: Any) -> Any:
        dims = [dim.axes for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings)]
        for axes in (*dims, sharding.replicated_axes, sharding.unreduced_axes):
            for axis in map(sdy.AxisRefAttr, axes):
                if axis.sub_axis_info is not None:
                    info = sdy.SubAxisInfoAttr(axis.sub_axis_info)
                    cuts[_mesh_name(sharding)][axis.name] |= {info.pre_size, info.pre_size * info.size}
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
        low, high = 1, prod(size for _, size in mesh[axis.name])
        if axis.sub_axis_info is not None:
            info = sdy.SubAxisInfoAttr(axis.sub_axis_info)
            low, high = info.pre_size, info.pre_size * info.size
        at = 1
        for part, size in mesh[axis.name]:
            if low <= at < high or (high == low == at):
                new.append(sdy.AxisRefAttr.get(part))
            at *= size
    return new
