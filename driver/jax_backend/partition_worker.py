"""The process that partitions sharded modules: reads portable artifacts from stdin, writes local modules to stdout.

A violated precondition of jaxlib's Shardy passes aborts the process; so they run here, not in the user's. Run as
``python -m neuronx_cc.driver.jax_backend.partition_worker``. Each message is a 4-byte length and that many bytes; a
request is ``C`` (careful) or ``N`` (normal) and the artifact; the answer ``+`` with a line of JSON (``describe``) and
the local module as MLIR bytecode, or ``-`` with an error text.
"""

import io
import json
import os
import struct
import sys
from typing import Any, BinaryIO

from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from neuronx_cc.driver.jax_backend.partition_forms import hide_composites, inline_calls, restore_composites
from neuronx_cc.driver.jax_backend.partition_guard import drop_maximal, guard, make_even
from neuronx_cc.driver.jax_backend.partition_inspect import take_inspections
from neuronx_cc.driver.jax_backend.partition_mesh import split_meshes
from neuronx_cc.driver.jax_backend.partition_reductions import correct, mark_given
from neuronx_cc.driver.jax_backend.partition_sums import Sums

TO_COLLECTIVES = (
    "func.func(sdy-sharding-constraint-to-reshard)",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "func.func(sdy-reshard-to-collectives)",
    "sdy-convert-global-to-local",
    "canonicalize",
)


def make_context() -> Any:
    """A context with the dialects of portable artifacts."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def partition(code: bytes, careful: bool) -> tuple[dict[str, Any], bytes]:
    """The local module of the artifact ``code``; ``careful`` computes everything outside of manual regions whole."""
    context = make_context()
    with context, ir.Location.unknown():
        module = _jax.mlir.deserialize_portable_artifact(code, context)
        inline_calls(module)
        drop_maximal(module)
        function = main_function(module)
        sums = Sums(module, function)
        mark_given(module)
        hide_composites(module)
        _run(module, "sdy-propagation-pipeline")
        parts = split_meshes(module)
        inspections = take_inspections(module)
        make_even(module)
        guard(function, careful)
        for name in TO_COLLECTIVES:
            _run(module, name)
        correct(module)
        sums.finish()
        facts = describe(module)
        facts["inspections"] = [(number, _sharding(given), manual) for number, given, manual in inspections]
        for key, unreduced in (("arguments", sums.arguments), ("results", sums.results)):
            for sharding, axes in zip(facts[key], unreduced, strict=bool(unreduced)):
                if axes:
                    sharding["unreduced"] = [part for axis in axes[1] for part, _ in parts[axes[0]][axis]]
        restore_composites(module)
        _strip(module)
        if "sdy." in str(module):
            raise ValueError("annotations are left after partitioning")
        stream = io.BytesIO()
        module.operation.write_bytecode(stream)
    return facts, stream.getvalue()


def _run(module: Any, name: str) -> None:
    passmanager.PassManager.parse(f"builtin.module({name})").run(module.operation)


def main_function(module: Any) -> Any:
    for op in module.body.operations:
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return op
    raise ValueError("the module has no function main")


def describe(module: Any) -> dict[str, Any]:
    """Meshes, shardings of arguments and results (lists of axes a dim, or null), memory kinds of results.

    The axes are those of the module's meshes, split ones after ``split_meshes``.
    """
    meshes = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.attributes["mesh"])
            axes = [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes)]
            meshes[ir.StringAttr(op.attributes["sym_name"]).value] = {"axes": axes, "ids": list(mesh.device_ids)}
    function = main_function(module)
    arguments = [_attributes(each) for each in function.arg_attrs]
    count = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    results: list[dict[str, Any]] = [{} for _ in range(count)]
    if "res_attrs" in function.attributes:
        results = [_attributes(each) for each in ir.ArrayAttr(function.attributes["res_attrs"])]
    return {
        "meshes": meshes,
        "arguments": [_sharding(each.get("sdy.sharding")) for each in arguments],
        "results": [_sharding(each.get("sdy.sharding")) for each in results],
        "kinds": [_text(each.get("mhlo.memory_kind")) for each in results],
    }


def _attributes(dictionary: Any) -> dict[str, Any]:
    named = ir.DictAttr(dictionary)
    return {named[index].name: named[index].attr for index in range(len(named))}


def _text(attribute: Any) -> str:
    return "" if attribute is None else ir.StringAttr(attribute).value


def _sharding(attribute: Any) -> dict[str, Any] | None:
    if attribute is None:
        return None
    sharding = sdy.TensorShardingAttr(attribute)
    dims = []
    for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        axes = []
        for axis in map(sdy.AxisRefAttr, dim.axes):
            part = axis.sub_axis_info
            part = None if part is None else sdy.SubAxisInfoAttr(part)
            axes.append((axis.name, None if part is None else (part.pre_size, part.size)))
        dims.append(axes)
    return {"mesh": ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value, "dims": dims}


def _strip(module: Any) -> None:
    """Remove what Shardy leaves behind: attributes and meshes."""

    def clean(op: Any) -> Any:
        for name in ("sdy.sharding", "sdy.sharding_rule"):
            if name in op.attributes:
                del op.attributes[name]
        return ir.WalkResult.ADVANCE

    module.operation.walk(clean)
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh":
            op.operation.erase()
        elif op.operation.name == "func.func":
            for key in ("arg_attrs", "res_attrs"):
                if key in op.attributes:
                    op.attributes[key] = ir.ArrayAttr.get([_without(each) for each in ir.ArrayAttr(op.attributes[key])])


def _without(dictionary: Any) -> Any:
    kept = {name: value for name, value in _attributes(dictionary).items() if not name.startswith("sdy.")}
    return ir.DictAttr.get(kept)


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(4)
    return stream.read(struct.unpack("<I", head)[0]) if len(head) == 4 else b""


def main() -> None:
    """Answer requests until stdin ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not get between the messages
    while request := _read(sys.stdin.buffer):
        try:
            facts, local = partition(request[1:], request[:1] == b"C")
            answer = b"+" + json.dumps(facts).encode() + b"\n" + local
        except Exception as error:
            answer = b"-" + f"{type(error).__name__}: {error}".encode()
        output.write(struct.pack("<I", len(answer)) + answer)
        output.flush()


if __name__ == "__main__":
    main()
