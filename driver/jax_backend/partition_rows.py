"""Ops of which XLA's partitioner gathers all operands, although they compute each matrix, or row, by itself.

Fourier transforms, and the custom calls of linear algebra, become custom calls of ours, whose leading dims are divided
as they lie. What is split along other dims is divided along the leading ones instead, where their sizes allow that:
devices then exchange their parts. Each device's part is the op that was there.
"""

import json
from math import prod
from typing import Any

import numpy as np
from jaxlib import _hlo, xla_client  # type: ignore[attr-defined,unused-ignore]
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_calls import computation, is_manual, replicated
from neuronx_cc.driver.jax_backend.partition_shardings import shape_of

NAME = "neuron.rows"
CALLS = {
    "Qr": ((2,), (2, 1)),
    "ProductOfElementaryHouseholderReflectors": ((2, 1), (2,)),
    "LuDecomposition": ((2,), (2, 1, 1)),
}
"""Custom call -> how many of the last dims of each operand, and of each result, it needs whole."""


def register() -> None:
    """Tell XLA, once, how these calls are partitioned."""
    xla_client.register_custom_call_partitioner(NAME, _of_user, _partition, _of_operands, True)


def prepare_rows(module: Any) -> None:
    """Replace the ops of this kind in ``module``, StableHLO."""
    found: list[tuple[Any, str, tuple[tuple[int, ...], tuple[int, ...]]]] = []

    def note(op: Any) -> Any:
        if op.name == "stablehlo.fft":
            lengths = list(ir.DenseI64ArrayAttr(op.attributes["fft_length"]))
            kind = str(op.attributes["fft_type"]).split("<type ")[-1].rstrip(">").split()[-1]
            text = f"fft(p0), fft_type={kind}, fft_length={{{','.join(map(str, lengths))}}}"
            whole = (len(lengths),)
            found.append((op, text, (whole, whole)))
        elif op.name == "stablehlo.custom_call":
            name = ir.StringAttr(op.attributes["call_target_name"]).value
            if name in CALLS:
                names = ", ".join(f"p{number}" for number in range(len(op.operands)))
                found.append((op, f'custom-call({names}), custom_call_target="{name}"', CALLS[name]))
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for op, text, whole in found:
        _replace(op, text, whole)


def _replace(op: Any, text: str, whole: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rank = len(shape_of(op.operands[0]))
    leading = rank - whole[0][0]
    config = {"text": text, "whole": whole, "leading": leading}
    with ir.InsertionPoint(op), op.location:
        made = stablehlo.CustomCallOp(
            [result.type for result in op.results],
            list(op.operands),
            ir.StringAttr.get(NAME),
            backend_config=ir.StringAttr.get(json.dumps(config)),
        )
        for key in ("sdy.sharding", "mhlo.sharding"):
            if key in op.attributes:
                made.operation.attributes[key] = op.attributes[key]
        made.operation.attributes["sdy.sharding_rule"] = _rule(op, leading)
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _rule(op: Any, leading: int) -> Any:
    """Shardy's rule: operands and results have the leading dims in common, and no others."""
    sizes: list[int] = []
    lists = []
    for values in (op.operands, op.results):
        each = []
        for value in values:
            shape = shape_of(value)
            if not sizes:
                sizes += shape[:leading]
            first = len(sizes)
            sizes += shape[leading:]
            numbers = [*range(leading), *range(first, len(sizes))]
            each.append(f"[{', '.join(map(_factor, numbers))}]")
        lists.append(", ".join(each))
    factors = ", ".join(f"{_factor(number)}={size}" for number, size in enumerate(sizes))
    return ir.Attribute.parse(f"#sdy.op_sharding_rule<({lists[0]})->({lists[1]}) {{{factors}}}, custom>")


def _factor(number: int) -> str:
    """Names of factors are i, j, ..., z, then z_1, z_2, ..."""
    letters = "ijklmnopqrstuvwxyz"
    return letters[number] if number < len(letters) else f"z_{number - len(letters) + 1}"


def _of_user(sharding: Any, *_: Any) -> Any:
    return sharding


def _of_operands(_: Any, shardings: Any, result: Any, config: bytes) -> Any:
    """What GSPMD takes the result to be: nothing moves between dims, for JAX must find mesh axes for it."""
    return _divided([], shardings, result, json.loads(config))[1]


def _partition(shapes: Any, shardings: Any, result: Any, made: Any, config: bytes) -> Any:
    facts = json.loads(config)
    known = [*_elements(made), *shardings]
    if any(map(is_manual, known)):
        return _part_of(list(shapes), result, facts["text"]), list(shardings), made
    given, made = _divided(list(shapes[0].dimensions())[: facts["leading"]], known, result, facts)
    parts = [_part(shape, sharding) for shape, sharding in zip(shapes, given, strict=True)]
    results = [_part(shape, sharding) for shape, sharding in zip(_shapes(result), _elements(made), strict=True)]
    kind = f"({', '.join(results)})" if result.is_tuple() else results[0]
    return _part_of(parts, kind, facts["text"]), given, made


def _divided(sizes: list[int], known: Any, result: Any, facts: dict[str, Any]) -> tuple[list[Any], Any]:
    """The shardings of operands and result: those of ``known`` that divides most, by the leading dims alone.

    ``sizes``: of the leading dims that may be divided more than they are.
    """
    leading = facts["leading"]
    best = max((_leading(each, leading, sizes) for each in known), key=lambda devices: prod(devices.shape[:-1]))
    operands, results = facts["whole"]
    each = [_sharding(best, whole) for whole in results]
    made = _hlo.HloSharding.tuple_sharding(result, each) if result.is_tuple() else each[0]
    return [_sharding(best, whole) for whole in operands], made


def _leading(sharding: Any, leading: int, sizes: list[int]) -> Any:
    """Devices by part of each leading dim, those with the same part last."""
    if not sharding.is_tiled():
        return np.zeros((1,) * (leading + 1), int)
    dims = list(sharding.tile_assignment_dimensions())
    devices = np.array(list(sharding.tile_assignment_devices())).reshape(dims)
    alike = 1 if sharding.replicate_on_last_tile_dim() else 0
    rest = len(dims) - alike
    others = prod(dims[leading:rest])
    grid = devices.reshape(*dims[:leading], others, -1)
    for dim, (size, parts) in enumerate(zip(sizes, dims, strict=False)):
        if others > 1 and size % (parts * others) == 0:
            shape = [count * (others if at == dim else 1) for at, count in enumerate(dims[:leading])]
            return np.moveaxis(grid, leading, dim + 1).reshape(*shape, -1)
    return grid.reshape(*dims[:leading], -1)


def _sharding(devices: Any, whole: int) -> Any:
    """Of a value with ``whole`` last dims."""
    *parts, alike = devices.shape
    if prod(parts) == 1:
        return replicated()
    grid = devices.reshape(*parts, *(1,) * whole, alike)
    types = [xla_client.OpSharding.Type.REPLICATED]
    return _hlo.HloSharding.subgroup_with_device_ordering(grid, types)


def _shapes(result: Any) -> list[Any]:
    return list(result.tuple_shapes()) if result.is_tuple() else [result]


def _elements(sharding: Any) -> list[Any]:
    return list(sharding.tuple_elements()) or [sharding]


def _part(shape: Any, sharding: Any) -> str:
    """One device's shape, as text."""
    dims = list(shape.dimensions())
    if sharding.is_tiled():
        parts = list(sharding.tile_assignment_dimensions())
        dims = [-(-size // count) for size, count in zip(dims, parts, strict=False)]
    kind = str(shape).split("[")[0]
    return f"{kind}[{','.join(map(str, dims))}]"


def _part_of(parameters: list[Any], result: Any, text: str) -> bytes:
    lines = [f"p{number} = {shape} parameter({number})" for number, shape in enumerate(parameters)]
    return computation([*lines, f"ROOT part = {result} {text}"])
