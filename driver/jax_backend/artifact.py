"""Serialized programs, for AOT files and caches: a JSON header in front of the NEFF's bytes.

The header has what the NEFF does not say: the signature, the placement, the options and the module itself.
"""

import base64
import json
import struct
from typing import Any

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend.failure import INVALID_ARGUMENT, PluginError, plugin_error
from neuronx_cc.driver.jax_backend.options import effective_options
from neuronx_cc.driver.jax_backend.program import DeviceProgram, Placement, Signature, Unit, make_executables
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import shape

MAGIC = b"neuron-jax-1\n"


def pack_unit(unit: Unit) -> bytes:
    """A unit as bytes; the same unit gives the same bytes."""
    signature = unit.signature
    header = {
        "compiler": COMPILER_VERSION,
        "key": unit.key,
        "name": signature.name,
        "parameters": [[s.dtype, list(s.dims)] for s in signature.parameters],
        "results": [[s.dtype, list(s.dims)] for s in signature.results],
        "donors": list(signature.donors),
        "aliases": [list(pair) for pair in signature.aliases],
        "result_kinds": list(signature.result_kinds),
        "parameter_shardings": _texts(unit.parameter_shardings),
        "result_shardings": _texts(unit.result_shardings),
        "overrides": unit.overrides,
        "seconds": unit.seconds,
        "code_bytes": len(unit.code),
    }
    text = json.dumps(header, sort_keys=True).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + unit.code + unit.neff.to_bytes()


def unpack_unit(data: bytes) -> Unit:
    """Raises PluginError for bytes that are no unit of this compiler, RunError for a damaged NEFF."""
    start = len(MAGIC) + 8
    if not data.startswith(MAGIC) or len(data) < start:
        raise _damaged("it does not begin as one")
    (size,) = struct.unpack_from("<Q", data, len(MAGIC))
    try:
        header: dict[str, Any] = json.loads(data[start : start + size])
        if header["compiler"] != COMPILER_VERSION:
            raise _damaged(f"compiler {header['compiler']} wrote it, this is {COMPILER_VERSION}")
        signature = Signature(
            header["name"],
            tuple(shape(dtype, tuple(dims)) for dtype, dims in header["parameters"]),
            tuple(shape(dtype, tuple(dims)) for dtype, dims in header["results"]),
            tuple(header["donors"]),
            tuple((result, parameter) for result, parameter in header["aliases"]),
            tuple(header["result_kinds"]),
        )
        end = start + size + header["code_bytes"]
        overrides = [(name, value) for name, value in header["overrides"]]
        neff = Neff.from_bytes(data[end:])
        return Unit(
            header["key"],
            signature,
            neff,
            make_executables(neff),
            data[start + size : end],
            effective_options(overrides, {}),
            overrides,
            header["seconds"],
            _bytes(header["parameter_shardings"]),
            _bytes(header["result_shardings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(str(error)) from None


def serialize(program: DeviceProgram) -> bytes:
    """A program with its placement and options."""
    try:
        placement = program.placement
        header = {
            "replicas": placement.num_replicas,
            "partitions": placement.num_partitions,
            "device_ids": list(placement.device_ids),
            "assignment": placement.assignment.hex(),
            "options": program.options.hex(),
        }
        text = json.dumps(header).encode()
        return MAGIC + struct.pack("<Q", len(text)) + text + pack_unit(program.unit)
    except Exception as error:
        raise plugin_error(error, Session("jax", [])) from None


def deserialize(data: bytes, options: bytes) -> DeviceProgram:
    """The program in ``data``; a CompileOptions proto ``options`` replaces its placement."""
    from neuronx_cc.driver.jax_backend.placement import place

    try:
        start = len(MAGIC) + 8
        if not data.startswith(MAGIC) or len(data) < start:
            raise _damaged("it does not begin as one")
        (size,) = struct.unpack_from("<Q", data, len(MAGIC))
        header = json.loads(data[start : start + size])
        kept = bytes.fromhex(header["options"])
        placement = Placement(
            header["replicas"],
            header["partitions"],
            tuple(header["device_ids"]),
            bytes.fromhex(header["assignment"]),
        )
        if options:
            placement = place(options, max(1, placement.num_replicas * placement.num_partitions))
        return DeviceProgram(unpack_unit(data[start + size :]), placement, options or kept)
    except Exception as error:
        raise plugin_error(error, Session("jax", [])) from None


def _texts(values: tuple[bytes, ...] | None) -> list[str] | None:
    return None if values is None else [base64.b64encode(value).decode() for value in values]


def _bytes(values: list[str] | None) -> tuple[bytes, ...] | None:
    return None if values is None else tuple(base64.b64decode(value) for value in values)


def _damaged(why: str) -> PluginError:
    return PluginError(
        INVALID_ARGUMENT, f"[NCC_EJAX902] not a serialized program for the neuron backend: {why} - compile it again"
    )
