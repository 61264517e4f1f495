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
from neuronx_cc.driver.jax_backend.program import (
    TYPE_CODES,
    WATCH,
    DeviceProgram,
    Placement,
    Signature,
    Unit,
    make_executables,
)
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import Shape, shape

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
    """The unit of these parts. Raises RunError EJAX902 when they are damaged, another compiler's, or do not fit."""
    try:
        if header["compiler"] != COMPILER_VERSION:
            raise damaged(f"compiler {header['compiler']} wrote it, this is {COMPILER_VERSION}")
        for part, key in ((code, "module_sha256"), (neff, "neff_sha256")):
            if hashlib.sha256(part).hexdigest() != header[key]:
                raise damaged(f"its {key} differs")
        loaded = Neff.from_bytes(neff)
        signature = _signature(header)
        _compare(signature, loaded)
        counts = len(signature.parameters), len(signature.results)
        shardings = _bytes(header["parameter_shardings"]), _bytes(header["result_shardings"])
        if any(given is not None and len(given) != count for given, count in zip(shardings, counts, strict=True)):
            raise damaged("its shardings are not as many as its parameters and results")
        return Unit(
            _text(header["key"]),
            _text(header["exact"]),
            signature,
            loaded,
            make_executables(loaded),
            code,
            effective_options(header["options"], {}),
            float(header["seconds"]),
            *shardings,
        )
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise damaged(repr(error)) from None


def _signature(header: dict[str, Any]) -> Signature:
    """Raises what reading a header of any content may raise."""
    return Signature(
        _text(header["name"]),
        _shapes(header["parameters"]),
        _shapes(header["results"]),
        tuple(_number(donor) for donor in header["donors"]),
        tuple((_number(result), _number(parameter)) for result, parameter in header["aliases"]),
        tuple(_text(kind) for kind in header["result_kinds"]),
        tuple(_number(token) for token in header["tokens"]),
    )


def _shapes(given: Any) -> tuple[Shape, ...]:
    return tuple(shape(_text(dtype), tuple(_number(dim) for dim in dims)) for dtype, dims in given)


def _compare(signature: Signature, neff: Neff) -> None:
    """What callers are told must be what the NEFF takes and gives: they hand over memory of just that size.

    A program that watches its transposes (``Unit.watched``) gives one more result, f32[1], which callers never see.
    """
    outputs = neff.outputs
    if len(outputs) == len(signature.results) + 1 and (outputs[-1].dtype, outputs[-1].dims) == WATCH:
        outputs = outputs[:-1]
    for what, said, stored in (
        ("parameter", signature.parameters, neff.inputs),
        ("result", signature.results, outputs),
    ):
        if len(said) != len(stored):
            raise damaged(f"its header has {len(said)} {what}s, its NEFF {len(stored)}")
        for number, (one, variable) in enumerate(zip(said, stored, strict=True)):
            if (one.dtype, one.dims) != (variable.dtype, variable.dims) or one.dtype not in TYPE_CODES:
                there = f"{variable.dtype}[{','.join(map(str, variable.dims))}]"
                raise damaged(f"{what} {number} is {one} in its header and {there} in its NEFF")
    parameters, results = range(len(signature.parameters)), range(len(signature.results))
    sound = set(signature.donors) <= set(parameters) and set(signature.tokens) <= set(results)
    sound &= len(signature.result_kinds) == len(results)
    pairs = signature.aliases
    sound &= len({result for result, _ in pairs}) == len({parameter for _, parameter in pairs}) == len(pairs)
    for result, parameter in pairs:
        sound &= result in results and parameter in signature.donors
        sound = sound and signature.results[result].nbytes == signature.parameters[parameter].nbytes
    if not sound:
        raise damaged("its donors, aliases, tokens or memory kinds do not fit its parameters and results")


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is no number")
    return value


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
                _number(given["replicas"]),
                _number(given["partitions"]),
                tuple(_number(device) for device in given["device_ids"]),
                bytes.fromhex(given["assignment"]),
            )
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise damaged(repr(error)) from None
        if options:
            placement = place(options, max(1, placement.num_replicas * placement.num_partitions))
        middle = start + header_size + code_size
        unit = unit_of(header, data[start + header_size : middle], data[middle:])
        replicas, partitions = unit.neff.program.devices
        if unit.neff.program.groups and (placement.num_replicas, placement.num_partitions) != (replicas, partitions):
            raise damaged(f"it was compiled for {replicas} x {partitions} devices, not for those of its placement")
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
