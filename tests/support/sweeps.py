"""Shapes and attributes at the limits for each opcode: the rows of the conformance matrix.

``sweep(opcode, dtype)`` yields ``Variant``s: one op on arrays of its own. Sizes are 0, 1, the partitions of a core and
their neighbours, the elements of a PSUM bank and theirs, primes; ranks go from 0 to 8.
"""

from collections.abc import Callable, Iterator
from itertools import permutations

import numpy as np
import sweeps_of_algorithms
import sweeps_of_computations
import sweeps_of_control
import sweeps_of_custom_calls
import sweeps_of_indices
import sweeps_of_reductions
import sweeps_of_special_values
import sweeps_of_values
from op_cases import _BINARY, _DOMAIN, _EXACT, _UNARY, ROUNDING, Array, _words, random_array
from sweep_variants import SHAPES, Variant, braces, variant

from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE

COMPLEX = _words(
    """
    add broadcast cholesky concatenate convolution copy divide dot dynamic-slice dynamic-update-slice fft gather
    multiply negate pad reduce reshape reverse scatter select slice subtract transpose triangular-solve
    """
)
"""Opcodes whose variants are valid on complex numbers."""


def sweep(opcode: str, dtype: str) -> Iterator[Variant]:
    """The variants of one opcode and element type; none for opcodes that have no shapes to vary."""
    if dtype == "c64" and opcode not in COMPLEX:
        return
    if opcode in _UNARY or opcode in _BINARY:
        yield from _elementwise(opcode, dtype)
    elif opcode in SWEEPS:
        yield from SWEEPS[opcode](dtype)
    yield from sweeps_of_special_values.more(opcode, dtype)


def _elementwise(opcode: str, dtype: str) -> Iterator[Variant]:
    exact = opcode in _EXACT and (dtype != "c64" or opcode in ("add", "copy", "negate", "subtract"))
    tolerance = 0.0 if exact else ROUNDING.get(dtype, 0.0)
    for dims in SHAPES:
        if opcode in _UNARY:
            inputs: tuple[Array, ...] = (random_array(dtype, dims, opcode, *_DOMAIN.get(opcode, (-4, 4))),)
        else:
            low, high = (0.2, 3) if opcode == "power" else (-4, 4)
            inputs = tuple(random_array(dtype, dims, opcode + side, low, high) for side in "lr")
            if opcode == "power" and dtype in INTEGERS:
                inputs = (inputs[0], np.clip(inputs[1], 0 if dtype[0] == "u" else -7, 40))
        yield variant(opcode, dtype, dims, inputs, tolerance=tolerance)


def _compare(dtype: str) -> Iterator[Variant]:
    for number, direction in enumerate(("EQ", "NE", "LT", "LE", "GT", "GE")):
        for dims in SHAPES[number % 3 :: 3]:
            a = random_array(dtype, dims, "a", -1, 1)
            b = np.where(random_array("pred", dims, "p"), a, random_array(dtype, dims, "b", -1, 1))
            yield variant("compare", "pred", dims, (a, b.astype(a.dtype)), f", direction={direction}")


def _select(dtype: str) -> Iterator[Variant]:
    for dims in SHAPES:
        for predicate in {dims, ()}:
            inputs = (random_array("pred", predicate, "p"), *(random_array(dtype, dims, side) for side in "ab"))
            yield variant("select", dtype, dims, inputs)


def _clamp(dtype: str) -> Iterator[Variant]:
    for dims in SHAPES:
        for bound in {dims, ()}:
            low, high = (np.full(bound, value, NUMPY_DTYPE[dtype]) for value in (1, 3))
            yield variant("clamp", dtype, dims, (low, random_array(dtype, dims, "x"), high))


def _convert(dtype: str) -> Iterator[Variant]:
    for target in ("f32", "bf16", "f16", "s32", "s16", "s8", "u32", "u16", "u8", "pred", dtype):
        for dims in ((), (0,), (129,), (131, 17)):
            low, high = (0, 100) if target[0] == "u" else (-100, 100)
            if dtype in ("f8e4m3", "f8e5m2"):
                low, high = max(low, -16), 16
            yield variant("convert", target, dims, (random_array(dtype, dims, target, low, high),))


def _broadcast(dtype: str) -> Iterator[Variant]:
    for source, dims, mapped in (
        ((), (5,), ()),
        ((), (), ()),
        ((), (3, 129), ()),
        ((3,), (3, 129), (0,)),
        ((129,), (2, 129), (1,)),
        ((2, 3), (3, 128, 2), (2, 0)),
        ((1,), (1, 513), (0,)),
        ((0,), (0, 3), (0,)),
        ((5,), (0, 5), (1,)),
        ((127, 2), (127, 3, 2), (0, 2)),
        ((2, 3), (2, 1, 1, 3, 1, 2, 1, 2), (0, 3)),
    ):
        yield variant("broadcast", dtype, dims, (random_array(dtype, source, "x"),), f", dimensions={braces(mapped)}")


def _transpose(dtype: str) -> Iterator[Variant]:
    cases = [((128, 129), (1, 0)), ((513, 3), (1, 0)), ((1, 127), (1, 0)), ((0, 3), (1, 0)), ((600, 257), (1, 0))]
    cases += [((5, 7, 130), order) for order in permutations(range(3))]
    cases += [((3, 129, 2, 5), order) for order in [(0, 2, 1, 3), (3, 2, 1, 0), (2, 3, 0, 1), (0, 3, 1, 2)]]
    cases += [((2, 3, 1, 2, 1, 2, 3, 2), tuple(reversed(range(8)))), ((), ())]
    for dims, order in cases:
        result = tuple(dims[axis] for axis in order)
        yield variant("transpose", dtype, result, (random_array(dtype, dims, "x"),), f", dimensions={braces(order)}")


def _reshape(dtype: str) -> Iterator[Variant]:
    for dims, result in (
        ((128, 129), (129, 128)),
        ((2, 3, 5, 7), (210,)),
        ((210,), (7, 5, 6)),
        ((1,), ()),
        ((), (1, 1)),
        ((0, 3), (5, 0)),
        ((2, 3, 1, 2, 1, 2, 3, 2), (144,)),
        ((513, 4), (4, 513)),
        ((127, 6), (2, 127, 3)),
    ):
        yield variant("reshape", dtype, result, (random_array(dtype, dims, "x"),))


def _slice(dtype: str) -> Iterator[Variant]:
    for dims, bounds in (
        ((131, 17), ((5, 127, 1), (3, 17, 1))),
        ((131, 17), ((33, 97, 1), (0, 17, 4))),
        ((257, 130), ((0, 257, 3), (129, 130, 1))),
        ((513,), ((1, 513, 2),)),
        ((513,), ((7, 7, 1),)),
        ((3, 5, 7), ((1, 2, 1), (0, 5, 1), (2, 7, 5))),
        ((2, 3, 2, 1, 2, 3), ((0, 2, 1), (1, 3, 1), (1, 2, 1), (0, 1, 1), (0, 2, 1), (0, 3, 2))),
    ):
        result = tuple(-(-(high - low) // step) for low, high, step in bounds)
        text = ", ".join(f"[{low}:{high}:{step}]" for low, high, step in bounds)
        yield variant("slice", dtype, result, (random_array(dtype, dims, "x"),), f", slice={{{text}}}")


def _pad(dtype: str) -> Iterator[Variant]:
    for dims, padding in (
        ((4, 6), ((-1, 0, 2), (7, 1, 0))),
        ((129, 3), ((0, 1, 0), (2, 2, 0))),
        ((5, 127), ((1, 1, 1), (-3, -4, 0))),
        ((0,), ((2, 3, 0),)),
        ((513,), ((-513, 5, 0),)),
        ((7,), ((0, 0, 3),)),
        ((2, 3, 4), ((0, 0, 0), (1, -1, 2), (0, 3, 1))),
    ):
        sizes = zip(dims, padding, strict=True)
        result = tuple(low + high + size + max(size - 1, 0) * inner for size, (low, high, inner) in sizes)
        text = "x".join(f"{low}_{high}_{inner}" for low, high, inner in padding)
        inputs = (random_array(dtype, dims, "x"), random_array(dtype, (), "value"))
        yield variant("pad", dtype, result, inputs, f", padding={text}")


def _concatenate(dtype: str) -> Iterator[Variant]:
    for axis, parts in (
        (0, [(127,), (1,), (129,)]),
        (0, [(3, 5), (0, 5), (128, 5)]),
        (1, [(129, 1), (129, 127), (129, 2)]),
        (2, [(2, 3, 5), (2, 3, 1)]),
        (1, [(2, 3, 5)] * 5),
        (0, [(4,)]),
    ):
        result = list(parts[0])
        result[axis] = sum(dims[axis] for dims in parts)
        inputs = [random_array(dtype, dims, str(i)) for i, dims in enumerate(parts)]
        yield variant("concatenate", dtype, tuple(result), inputs, f", dimensions={{{axis}}}")


def _reverse(dtype: str) -> Iterator[Variant]:
    for dims, axes in (
        ((127, 5), (0,)),
        ((3, 129), (1,)),
        ((3, 129), (0, 1)),
        ((513,), (0,)),
        ((0, 2), (0,)),
        ((), ()),
    ):
        yield variant("reverse", dtype, dims, (random_array(dtype, dims, "x"),), f", dimensions={braces(axes)}")


def _iota(dtype: str) -> Iterator[Variant]:
    for dims, axis in (((1,), 0), ((0, 3), 1), ((129, 3), 0), ((3, 100), 1), ((2, 3, 50), 1), ((127,), 0)):
        yield variant("iota", dtype, dims, (), f", iota_dimension={axis}")


def _dot(dtype: str) -> Iterator[Variant]:
    for lhs, rhs, contracting, batch in (
        ((1, 1), (1, 1), ((1,), (0,)), ((), ())),
        ((127, 128), (128, 129), ((1,), (0,)), ((), ())),
        ((128, 127), (129, 128), ((0,), (1,)), ((), ())),
        ((5, 0), (0, 7), ((1,), (0,)), ((), ())),
        ((0, 3), (3, 4), ((1,), (0,)), ((), ())),
        ((1, 513), (513, 2), ((1,), (0,)), ((), ())),
        ((130, 3), (3, 600), ((1,), (0,)), ((), ())),
        ((257,), (257,), ((0,), (0,)), ((), ())),
        ((131, 17), (17,), ((1,), (0,)), ((), ())),
        ((17,), (17, 131), ((0,), (0,)), ((), ())),
        ((3, 129, 5), (3, 5, 7), ((2,), (1,)), ((0,), (0,))),
        ((5, 3, 9), (7, 9, 3), ((2,), (1,)), ((1,), (2,))),
        ((4, 5, 6), (6, 4, 3), ((0, 2), (1, 0)), ((), ())),
        ((2, 3, 4, 5), (3, 2, 5, 6), ((3,), (2,)), ((0, 1), (1, 0))),
        ((3,), (4,), ((), ()), ((), ())),
        ((), (4,), ((), ()), ((), ())),
        ((0, 3, 4), (0, 4, 2), ((2,), (1,)), ((0,), (0,))),
        ((3, 5, 0), (3, 0, 2), ((2,), (1,)), ((0,), (0,))),
        ((2, 3, 4, 5, 2), (5, 2, 4, 3), ((1, 3), (3, 0)), ((2,), (2,))),
        ((2, 1, 3, 1, 2, 1, 2, 1), (2, 2, 3, 1), ((0, 6), (0, 1)), ((2, 3), (2, 3))),
        ((129, 2), (129, 2), ((), ()), ((0, 1), (0, 1))),
        ((2, 129, 3), (129, 2, 7), ((0,), (1,)), ((1,), (0,))),
    ):
        inputs = [random_array(dtype, dims, side, -1, 1) for side, dims in zip("lr", (lhs, rhs), strict=True)]
        result = [lhs[axis] for axis in batch[0]]
        for dims, axes, shared in ((lhs, contracting[0], batch[0]), (rhs, contracting[1], batch[1])):
            result += [size for axis, size in enumerate(dims) if axis not in (*axes, *shared)]
        attributes = "".join(
            f", {side}_{kind}_dims={braces(axes)}"
            for kind, pair in (("batch", batch), ("contracting", contracting))
            for side, axes in zip(("lhs", "rhs"), pair, strict=True)
            if axes
        )
        tolerance = 16 * ROUNDING.get(dtype, 0)
        yield variant("dot", dtype, tuple(result), inputs, attributes, tolerance=tolerance)


def _dynamic_slice(dtype: str) -> Iterator[Variant]:
    for dims, sizes, starts in (
        ((9, 20), (4, 5), (3, 18)),
        ((513,), (1,), (-7,)),
        ((129, 3), (128, 3), (5, 0)),
        ((3, 129), (3, 127), (0, 1)),
        ((2, 3, 4), (0, 3, 4), (1, 1, 1)),
    ):
        inputs = (random_array(dtype, dims, "x"), *(np.asarray(start, np.int32) for start in starts))
        yield variant("dynamic-slice", dtype, sizes, inputs, f", dynamic_slice_sizes={braces(sizes)}")


def _dynamic_update_slice(dtype: str) -> Iterator[Variant]:
    for dims, sizes, starts in (
        ((9, 20), (4, 5), (-2, 7)),
        ((513,), (1,), (600,)),
        ((129, 3), (128, 3), (1, 0)),
        ((3, 129), (1, 129), (2, 0)),
        ((2, 3, 4), (2, 0, 4), (0, 1, 0)),
    ):
        inputs = (random_array(dtype, dims, "x"), random_array(dtype, sizes, "u"))
        yield variant("dynamic-update-slice", dtype, dims, (*inputs, *(np.asarray(s, np.int32) for s in starts)))


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {
    "broadcast": _broadcast,
    "clamp": _clamp,
    "compare": _compare,
    "concatenate": _concatenate,
    "convert": _convert,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "select": _select,
    "slice": _slice,
    "transpose": _transpose,
    **sweeps_of_algorithms.SWEEPS,
    **sweeps_of_computations.SWEEPS,
    **sweeps_of_control.SWEEPS,
    **sweeps_of_custom_calls.SWEEPS,
    **sweeps_of_indices.SWEEPS,
    **sweeps_of_reductions.SWEEPS,
    **sweeps_of_values.SWEEPS,
}
