"""Serialized programs, for AOT files and caches: a JSON header, the module, and the NEFF.

The header has what the NEFF does not say: the signature, the shardings, the options, digests of the other two parts.
"""

import base64
import hashlib
import json
import struct
from typing import Any

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend.failure import plugin_error
from neuronx_cc.driver.jax_backend.options import differing, effective_options
from neuronx_cc.driver.jax_backend.program import DeviceProgram, Placement, Signature, Unit, make_executables
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import shape

MAGIC = b"neuron-jax-1\n"
_LENGTHS = struct.Struct("<QQ")


def parts_of(unit: Unit) -> tuple[dict[str, Any], bytes, bytes]:
    """Header, module and NEFF of a unit."""
    signature = unit.signature
    neff = unit.neff.to_bytes()
    header = {
        "compiler": COMPILER_VERSION,
        "key": unit.key,
        "exact": unit.exact,
        "name": signature.name,
        "parameters": [[s.dtype, list(s.dims)] for s in signature.parameters],
        "results": [[s.dtype, list(s.dims)] for s in signature.results],
        "donors": list(signature.donors),
        "aliases": [list(pair) for pair in signature.aliases],
        "result_kinds": list(signature.result_kinds),
        "tokens": list(signature.tokens),
        "parameter_shardings": _texts(unit.parameter_shardings),
        "result_shardings": _texts(unit.result_shardings),
        "options": differing(unit.parsed),
        "seconds": unit.seconds,
        "module_sha256": hashlib.sha256(unit.code).hexdigest(),
        "neff_sha256": hashlib.sha256(neff).hexdigest(),
    }
    return header, unit.code, neff


def unit_of(header: dict[str, Any], code: bytes, neff: bytes) -> Unit:
    """The unit of these parts. Raises RunError EJAX902 when they are damaged or another compiler's."""
    try:
        if header["compiler"] != COMPILER_VERSION:
            raise damaged(f"compiler {header['compiler']} wrote it, this is {COMPILER_VERSION}")
        for part, key in ((code, "module_sha256"), (neff, "neff_sha256")):
            if hashlib.sha256(part).hexdigest() != header[key]:
                raise damaged(f"its {key} differs")
        signature = Signature(
            header["name"],
            tuple(shape(dtype, tuple(dims)) for dtype, dims in header["parameters"]),
            tuple(shape(dtype, tuple(dims)) for dtype, dims in header["results"]),
            tuple(header["donors"]),
            tuple((result, parameter) for result, parameter in header["aliases"]),
            tuple(header["result_kinds"]),
            tuple(header["tokens"]),
        )
        loaded = Neff.from_bytes(neff)
        return Unit(
            header["key"],
            header["exact"],
            signature,
            loaded,
            make_executables(loaded),
            code,
            effective_options(header["options"], {}),
            header["seconds"],
            _bytes(header["parameter_shardings"]),
            _bytes(header["result_shardings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(repr(error)) from None


def serialize(program: DeviceProgram) -> bytes:
    """A program with its placement and options. Raises PluginError."""
    try:
        placement = program.placement
        header, code, neff = parts_of(program.unit)
        header["placement"] = {
            "replicas": placement.num_replicas,
            "partitions": placement.num_partitions,
            "device_ids": list(placement.device_ids),
            "assignment": placement.assignment.hex(),
            "options": program.options.hex(),
        }
        text = json.dumps(header, sort_keys=True).encode()
        return MAGIC + _LENGTHS.pack(len(text), len(code)) + text + code + neff
    except Exception as error:
        raise plugin_error(error, Session("jax", [])) from None


def deserialize(data: bytes, options: bytes) -> DeviceProgram:
    """The program in ``data``; a CompileOptions proto ``options`` replaces its placement. Raises PluginError."""
    from neuronx_cc.driver.jax_backend.placement import place

    try:
        start = len(MAGIC) + _LENGTHS.size
        if not data.startswith(MAGIC) or len(data) < start:
            raise damaged("it does not begin as one")
        header_size, code_size = _LENGTHS.unpack_from(data, len(MAGIC))
        try:
            header = json.loads(data[start : start + header_size])
            given = header["placement"]
            kept = bytes.fromhex(given["options"])
            placement = Placement(
                given["replicas"],
                given["partitions"],
                tuple(given["device_ids"]),
                bytes.fromhex(given["assignment"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(repr(error)) from None
        if options:
            placement = place(options, max(1, placement.num_replicas * placement.num_partitions))
        middle = start + header_size + code_size
        unit = unit_of(header, data[start + header_size : middle], data[middle:])
        return DeviceProgram(unit, placement, options or kept)
    except Exception as error:
        raise plugin_error(error, Session("jax", [])) from None


def damaged(why: str) -> RunError:
    """The error of bytes that are no program of this compiler."""
    return RunError("EJAX902", f"not a serialized program of the neuron backend: {why}", "compile it again")


def _texts(values: tuple[bytes, ...] | None) -> list[str] | None:
    return None if values is None else [base64.b64encode(value).decode() for value in values]


def _bytes(values: list[str] | None) -> tuple[bytes, ...] | None:
    return None if values is None else tuple(base64.b64decode(value) for value in values)
