"""Variants of ops on each element for itself, of calls, and of bits and parts of values (see ``sweeps``)."""

from collections.abc import Callable, Iterator

import numpy as np
from op_cases import random_array, shaped
from sweep_variants import SHAPES, Variant, braces, variant

from neuronx_cc.ir.types import NUMPY_DTYPE

ONE_BY_ONE: dict[str, tuple[str, str]] = {
    "bitcast-convert": ("", ""),
    "call": ("", ", to_apply=greatest_{mark}"),
    "complex": ("c64", ""),
    "fusion": ("", ", kind=kLoop, calls=greatest_{mark}"),
    "imag": ("", ""),
    "is-finite": ("pred", ""),
    "map": ("", ", dimensions={dims}, to_apply=greatest_{mark}"),
    "opt-barrier": ("", ""),
    "real": ("", ""),
    "reduce-precision": ("", ", exponent_bits=5, mantissa_bits=2"),
}
"""Ops whose result has the dims of their operands: its element type, "" for theirs, and attributes."""


def _one_by_one(opcode: str) -> Callable[[str], Iterator[Variant]]:
    def sweep(dtype: str) -> Iterator[Variant]:
        result, attributes = ONE_BY_ONE[opcode]
        width = NUMPY_DTYPE[dtype].itemsize * 8
        if opcode == "bitcast-convert" and dtype != "pred":
            result = f"u{width}" if dtype[0] in "fbs" else f"s{width}"
        for dims in SHAPES:
            sides = "ab" if opcode in ("complex", "map") else "a"
            inputs = [random_array(dtype, dims, f"{opcode}{side}") for side in sides]
            if opcode == "is-finite" and inputs[0].size > 2:
                inputs[0].reshape(-1)[:3] = np.array([np.nan, np.inf, -np.inf], np.float32).astype(inputs[0].dtype)
            scalars = dims if opcode != "map" else ()
            mark = f"{dtype}_{opcode}_{'x'.join(map(str, scalars))}"
            shape = shaped(dtype, scalars)
            parameters = "".join(f"  {side} = {shape} parameter({i})\n" for i, side in enumerate(sides))
            computation = f"greatest_{mark} {{\n{parameters}  ROOT r = {shape} maximum({sides[0]}, {sides[-1]})\n}}\n"
            given = attributes.format(mark=mark, dims=braces(range(len(dims))))
            computations = computation if "greatest" in given else ""
            # jaxlib's CPU client rejects what it makes itself of a fusion of no elements
            wanted = inputs[0] if opcode == "fusion" else None
            yield variant(opcode, result or dtype, dims, inputs, given, computations, wanted=wanted)

    return sweep


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {opcode: _one_by_one(opcode) for opcode in ONE_BY_ONE}
