"""Conformance cases of sorting, top-k and random numbers (see ``op_cases``)."""

from collections.abc import Callable

import numpy as np
from op_cases import Case, module_text, random_array


def _generator(opcode: str, dtype: str) -> Case:
    body = f"  ROOT r = (u64[2], {dtype}[3,7]) rng-bit-generator(p0), algorithm=rng_three_fry"
    return Case(opcode, dtype, module_text([("u64", (2,))], body), (np.array([2**40 + 7, 2**64 - 3], np.uint64),))


def _distribution(opcode: str, dtype: str) -> Case:
    bounds = (random_array(dtype, (), "low", -2, -1), random_array(dtype, (), "high", 1, 3))
    if bounds[0].dtype.kind in "iu":
        bounds = (np.full((), 3, bounds[0].dtype), np.full((), 90, bounds[0].dtype))
    body = f"  ROOT r = {dtype}[5,29] rng(p0, p1), distribution=rng_uniform"
    return Case(opcode, dtype, module_text([(dtype, ())] * 2, body), bounds)


def _state(opcode: str, dtype: str) -> Case:
    body = "  ROOT r = u64[2] rng-get-and-update-state(), delta=3"
    return Case(opcode, dtype, module_text([], body), ())


BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "rng": _distribution,
    "rng-bit-generator": _generator,
    "rng-get-and-update-state": _state,
}
