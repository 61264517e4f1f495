"""Conformance cases of sorting, top-k, custom calls and random numbers (see ``op_cases``)."""

from collections.abc import Callable

import numpy as np
from op_cases import Case, module_text, random_array


def _sort(opcode: str, dtype: str) -> Case:
    """Keys with equal ones among them, and places, which show whether the sort is stable."""
    dims = (37, 5)
    keys, places = random_array(dtype, dims, opcode), random_array("s32", dims, "places")
    keys[::3] = keys[0]
    less = (
        f"less {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n  c = s32[] parameter(2)\n"
        "  d = s32[] parameter(3)\n  ROOT e = pred[] compare(a, b), direction=LT\n}\n"
    )
    root = f"  ROOT r = ({dtype}[37,5], s32[37,5]) sort(p0, p1), dimensions={{0}}, is_stable=true, to_apply=less"
    return Case(opcode, dtype, module_text([(dtype, dims), ("s32", dims)], root, less), (keys, places))


def _topk(opcode: str, dtype: str) -> Case:
    values = random_array(dtype, (5, 37), opcode)
    values[:, ::4] = values[:, :1]
    root = f"  ROOT r = ({dtype}[5,6], s32[5,6]) topk(p0), k=6, largest=true"
    return Case(opcode, dtype, module_text([(dtype, (5, 37))], root), (values,))


def _custom_call(opcode: str, dtype: str) -> Case:
    """A marker, which compiles to nothing."""
    shape = f"{dtype}[5,37]"
    root = f'  ROOT r = {shape} custom-call(p0), custom_call_target="NeuronBoundaryMarker-Start"'
    return Case(opcode, dtype, module_text([(dtype, (5, 37))], root), (random_array(dtype, (5, 37), opcode),))


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
    "custom-call": _custom_call,
    "rng": _distribution,
    "rng-bit-generator": _generator,
    "rng-get-and-update-state": _state,
    "sort": _sort,
    "topk": _topk,
}
