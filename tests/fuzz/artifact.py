"""Damaged serialized executables: refused in words, or loaded and executed. Cache entries are read by the same code.

Most damage gets past the digests: parts are changed, and what says how they look is made again.
"""

import hashlib
import json
import random
import struct
from functools import cache
from typing import Any

import mutation
import neff
import numpy as np
import structure
from small_programs import neffs, time_limit

from neuronx_cc.driver.jax_backend.artifact import MAGIC, deserialize, serialize
from neuronx_cc.driver.jax_backend.failure import PluginError
from neuronx_cc.driver.jax_backend.options import effective_options
from neuronx_cc.driver.jax_backend.program import DeviceProgram, Placement, Signature, Unit, make_executables
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import shape
from neuronx_cc.runtime import races

LENGTHS = struct.Struct("<QQ")


@cache
def seeds() -> list[bytes]:
    return [serialize(DeviceProgram(unit_of(data), Placement(1, 1, (0,), b""), b"")) for data in neffs()]


def unit_of(data: bytes) -> Unit:
    loaded = Neff.from_bytes(data)
    sides = [tuple(shape(each.dtype, each.dims) for each in side) for side in (loaded.inputs, loaded.outputs)]
    signature = Signature("small", *sides, (), (), ("device",) * len(sides[1]))
    options = effective_options([], {})
    return Unit("key", "exact", signature, loaded, make_executables(loaded), b"module", options, 1.0)


def run(data: bytes) -> None:
    try:
        program = deserialize(data, b"")
    except PluginError as error:
        text = str(error)
        raise RunError("INTERNAL" if "NCC_INTERNAL" in text else "EJAX902", text) from error
    facts = ("parameter_ranks", "donated", "outputs", "temp_bytes", "argument_bytes", "output_bytes", "alias_bytes")
    for fact in facts:
        getattr(program, fact)
    unit = program.unit
    if unit.neff.program.devices != (1, 1):
        return
    races.check(unit.neff.program)
    if program.argument_bytes + program.output_bytes < 1 << 24:
        inputs, outputs = ([np.zeros(*each) for each in side] for side in (unit.arguments, unit.results))
        with time_limit(4):
            unit.executables[0].compute(inputs, outputs)


def mutate(data: bytes, draw: random.Random) -> bytes:
    try:
        header, code, program = parts_of(data)
        if draw.random() < 0.1 or not isinstance(header, dict):
            return mutation.mutate(data, draw)
    except (struct.error, ValueError, RecursionError):
        return mutation.mutate(data, draw)
    what = draw.random()
    if what < 0.3:
        header = draw.choice([part for _, part in structure.retyped(header)])
    elif what < 0.7:
        header = neff.changed(header, draw)
    else:
        program = neff.mutate(program, draw)
    if isinstance(header, dict) and draw.random() < 0.95:
        header["neff_sha256"] = hashlib.sha256(program).hexdigest()
        header["module_sha256"] = hashlib.sha256(code).hexdigest()
    return assembled(header, code, program)


def parts_of(data: bytes) -> tuple[Any, bytes, bytes]:
    """Header, module and NEFF. Raises struct.error, ValueError, RecursionError."""
    start = len(MAGIC) + LENGTHS.size
    header_size, code_size = LENGTHS.unpack_from(data, len(MAGIC))
    header = json.loads(data[start : start + header_size])
    return header, data[start + header_size :][:code_size], data[start + header_size + code_size :]


def assembled(header: Any, code: bytes, program: bytes) -> bytes:
    text = json.dumps(header).encode()
    return MAGIC + LENGTHS.pack(len(text), len(code)) + text + code + program
