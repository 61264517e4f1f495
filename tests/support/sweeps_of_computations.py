"""Variants of windows and of linear algebra (see ``sweeps``)."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from op_cases import ROUNDING, Array, combiner, random_array, shaped
from sweep_variants import Dims, Variant, variant

from neuronx_cc.ir.types import NUMPY_DTYPE

Window = Sequence[tuple[int, int, int, int, int, int]]
"""For each spatial dim: size, stride, padding low and high, dilation of the operand and of the window."""


def _window_text(window: Window) -> str:
    sizes, strides, low, high, operand, own = zip(*window, strict=True)
    pads = "x".join(f"{a}_{b}" for a, b in zip(low, high, strict=True))
    parts = [f"size={_by_x(sizes)} stride={_by_x(strides)} pad={pads}"]
    parts += [f"lhs_dilate={_by_x(operand)} rhs_dilate={_by_x(own)}"]
    return "window={" + " ".join(parts) + "}"


def _by_x(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def _extent(size: int, window: tuple[int, int, int, int, int, int]) -> int:
    """How many positions a window has on a dim of ``size``."""
    count, stride, low, high, dilation, spread = window
    dilated = (size - 1) * dilation + 1 if size else 0
    padded = dilated + low + high
    reach = (count - 1) * spread + 1
    return max(0, (padded - reach) // stride + 1)


PLAIN = (1, 1, 0, 0, 1, 1)


def convolution(dtype: str) -> Iterator[Variant]:
    """[batch, spatial, features] by [spatial, in, out]; ``groups`` of features, then of the batch."""
    cases: list[tuple[int, Dims, int, int, Window, tuple[int, int]]] = [
        (1, (9,), 3, 4, [(3, 1, 1, 1, 1, 1)], (1, 1)),
        (2, (8, 9), 3, 5, [(3, 1, 1, 1, 1, 1), (2, 2, 0, 1, 1, 1)], (1, 1)),
        (1, (14, 14), 130, 129, [(1, 1, 0, 0, 1, 1)] * 2, (1, 1)),
        (1, (5, 6), 4, 6, [(3, 1, 2, 1, 2, 1), (3, 1, 0, 2, 3, 1)], (1, 1)),
        (1, (9, 9), 4, 6, [(3, 1, 2, 2, 1, 2), (2, 3, 0, 0, 2, 3)], (1, 1)),
        (2, (7, 7), 6, 8, [(3, 1, 1, 1, 1, 1)] * 2, (2, 1)),
        (1, (7, 7), 129, 129, [(3, 2, 1, 1, 1, 1)] * 2, (129, 1)),
        (4, (5, 5), 3, 4, [(2, 1, 0, 0, 1, 1)] * 2, (1, 2)),
        (1, (4, 5, 6), 2, 3, [(2, 1, 1, 0, 1, 1)] * 3, (1, 1)),
        # dilated, since jaxlib's CPU client reads outside the operand where a plain convolution crops it
        (1, (6, 6), 2, 3, [(3, 1, -1, 1, 2, 1)] * 2, (1, 1)),
        (3, (), 5, 7, [], (1, 1)),
        (1, (513,), 1, 1, [(5, 1, 4, 0, 1, 1)], (1, 1)),
    ]
    for batch, spatial, features, outputs, window, (groups, batches) in cases:
        digits = "012"[: len(spatial)]
        positions = tuple(_extent(size, each) for size, each in zip(spatial, window, strict=True))
        kernel = (*(each[0] for each in window), features // groups, outputs)
        inputs = [random_array(dtype, (batch, *spatial, features), "x", -1, 1), random_array(dtype, kernel, "k", -1, 1)]
        attributes = f", {_window_text(window)}" if window else ""
        attributes += f", dim_labels=b{digits}f_{digits}io->b{digits}f"
        attributes += f", feature_group_count={groups}" if groups > 1 else ""
        attributes += f", batch_group_count={batches}" if batches > 1 else ""
        result = (batch // batches, *positions, outputs)
        yield variant("convolution", dtype, result, inputs, attributes, tolerance=16 * ROUNDING.get(dtype, 0))


def reduce_window(dtype: str) -> Iterator[Variant]:
    kinds = ["or", "and"] if dtype == "pred" else ["add", "maximum", "minimum"]
    neutral = {"add": 0, "or": 0, "and": 1, "maximum": 0, "minimum": 1}
    cases: list[tuple[Dims, Window]] = [
        ((9, 11), [(3, 2, 1, 1, 1, 1), (2, 1, 0, 1, 1, 1)]),
        ((129, 5), [PLAIN, (5, 1, 4, 0, 1, 1)]),
        ((130, 3), [(130, 1, 129, 0, 1, 1), PLAIN]),
        ((513,), [(513, 1, 0, 512, 1, 1)]),
        ((2, 8, 9, 3), [PLAIN, (3, 2, 0, 1, 1, 1), (3, 2, 1, 0, 1, 1), PLAIN]),
        ((7, 8), [(2, 1, 0, 0, 2, 1), (3, 2, 1, 1, 1, 2)]),
        ((5,), [(7, 1, 0, 0, 1, 1)]),
        ((1, 1), [(1, 1, 0, 0, 1, 1)] * 2),
        ((0, 4), [PLAIN, (2, 1, 0, 0, 1, 1)]),
        ((2, 1, 3, 1, 2, 1, 2, 1), [PLAIN, PLAIN, (2, 1, 1, 0, 1, 1), PLAIN, PLAIN, PLAIN, (2, 2, 0, 0, 1, 1), PLAIN]),
        ((129, 2, 3), [(2, 3, 0, 1, 1, 1), (2, 1, 1, 1, 1, 1), PLAIN]),
        ((3, 1031), [PLAIN, (31, 31, 0, 0, 1, 1)]),
        ((6, 6), [(3, 1, -1, 1, 1, 1)] * 2),
    ]
    for number, (dims, window) in enumerate(cases):
        kind = kinds[number % len(kinds)]
        result = tuple(_extent(size, each) for size, each in zip(dims, window, strict=True))
        inputs = (random_array(dtype, dims, kind, -1, 1), np.asarray(neutral[kind], NUMPY_DTYPE[dtype]))
        attributes = f", {_window_text(window)}, to_apply={kind}_computation"
        tolerance = 64 * ROUNDING.get(dtype, 0) if kind == "add" else 0.0
        yield variant("reduce-window", dtype, result, inputs, attributes, combiner(kind, dtype), tolerance)


def select_and_scatter(dtype: str) -> Iterator[Variant]:
    """Of equal elements the first (GE) or the last (GT) one counts, padding left out: there jaxlib's choice varies."""
    cases: list[tuple[Dims, Window]] = [
        ((9, 11), [(3, 2, 1, 1, 1, 1), (2, 2, 0, 1, 1, 1)]),
        ((2, 8, 8, 3), [PLAIN, (3, 2, 1, 1, 1, 1), (3, 2, 1, 1, 1, 1), PLAIN]),
        ((129, 4), [(2, 2, 0, 1, 1, 1), (2, 1, 0, 0, 1, 1)]),
        ((6, 9), [(2, 2, 0, 0, 1, 1), (3, 2, 0, 0, 1, 1)]),
        ((2, 130, 3), [PLAIN, (3, 3, 0, 0, 1, 1), (3, 1, 0, 0, 1, 1)]),
        ((7,), [(7, 1, 0, 0, 1, 1)]),
        ((1, 1), [PLAIN] * 2),
        ((0, 4), [PLAIN, (2, 2, 0, 0, 1, 1)]),
    ]
    for dims, window in cases:
        positions = tuple(_extent(size, each) for size, each in zip(dims, window, strict=True))
        padded = any(low or high for _, _, low, high, _, _ in window)
        for direction in ("GE", "GT"):
            select = f"{direction}_{dtype} {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
            select += f"  ROOT c = pred[] compare(a, b), direction={direction}\n}}\n"
            ties = np.round(random_array("f32", dims, direction, 0, 3)).astype(NUMPY_DTYPE[dtype])
            distinct = np.random.default_rng(7).permutation(prod(dims)).reshape(dims)
            if dtype == "bf16":  # neighbouring values: it has not enough whole numbers
                distinct = (distinct + 0x3F00).astype(np.uint16).view(NUMPY_DTYPE[dtype])
            inputs = (
                distinct.astype(NUMPY_DTYPE[dtype]) if padded else ties,
                random_array(dtype, positions, "s", -1, 1),
                np.zeros((), NUMPY_DTYPE[dtype]),
            )
            text = _window_text(window).split(" lhs_dilate")[0] + "}"
            attributes = f", {text}, select={direction}_{dtype}, scatter=add_computation"
            computations = select + combiner("add", dtype)
            tolerance = 16 * ROUNDING.get(dtype, 0)
            if padded and NUMPY_DTYPE[dtype].itemsize == 1:
                continue  # too few values for all to differ
            yield variant("select-and-scatter", dtype, dims, inputs, attributes, computations, tolerance)


def _rounded(dtype: str, exact: Array) -> dict[str, Any]:
    """Tolerance, and the result where XLA rounds each step to a narrow type."""
    if dtype in ("f32", "c64"):
        return {"tolerance": 1e-4}
    return {"tolerance": 4 * ROUNDING[dtype], "wanted": exact.astype(NUMPY_DTYPE[dtype])}


def cholesky(dtype: str) -> Iterator[Variant]:
    wide = np.complex128 if dtype == "c64" else np.float64
    for size, batch in ((1, ()), (5, ()), (33, ()), (129, ()), (7, (3,)), (4, (2, 2)), (4, (0,)), (0, ())):
        for lower in ("true", "false"):
            factor = random_array(dtype, (*batch, size, size), "a", -1, 1).astype(wide)
            matrix = (factor @ np.swapaxes(factor, -1, -2).conj() + size * np.eye(size)).astype(NUMPY_DTYPE[dtype])
            result = np.linalg.cholesky(matrix.astype(wide))
            if lower == "false":
                result = np.swapaxes(result, -1, -2).conj()
            shape = shaped(dtype, matrix.shape)
            # the other triangle is not specified
            mask = (np.tril if lower == "true" else np.triu)(np.ones(matrix.shape)).astype(matrix.dtype)
            line = f"{shape} cholesky({{0}}), lower={lower}"
            label = f"{shape} lower={lower}"
            compared = _rounded(dtype, result)
            yield Variant(label, (matrix, mask), shape, "multiply({a}, {1})", lines=(line,), **compared)


def triangular_solve(dtype: str) -> Iterator[Variant]:
    wide = np.complex128 if dtype == "c64" else np.float64
    for size, columns, batch in ((1, 1, ()), (5, 3, ()), (129, 2, ()), (7, 4, (3,)), (3, 0, ())):
        for left in (True, False):
            for lower, transpose, unit in ((True, "NO_TRANSPOSE", False), (False, "ADJOINT", True)):
                a = random_array(dtype, (*batch, size, size), "a", -1, 1).astype(wide)
                a = (a / size + np.eye(size) * 2).astype(NUMPY_DTYPE[dtype])
                b = random_array(dtype, (*batch, *((size, columns) if left else (columns, size))), "b", -1, 1)
                attributes = (
                    f", left_side={str(left).lower()}, lower={str(lower).lower()}, transpose_a={transpose}, "
                    f"unit_diagonal={str(unit).lower()}"
                )
                matrix = (np.tril if lower else np.triu)(a.astype(wide))
                if unit:
                    matrix = matrix * (1 - np.eye(size)) + np.eye(size)
                if transpose == "ADJOINT":
                    matrix = np.swapaxes(matrix, -1, -2).conj()
                flipped = np.swapaxes(matrix, -1, -2), np.swapaxes(b.astype(wide), -1, -2)
                exact = (
                    np.linalg.solve(matrix, b.astype(wide)) if left else np.swapaxes(np.linalg.solve(*flipped), -1, -2)
                )
                compared = _rounded(dtype, exact)
                yield variant("triangular-solve", dtype, b.shape, (a, b), attributes, **compared)


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {
    "cholesky": cholesky,
    "convolution": convolution,
    "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter,
    "triangular-solve": triangular_solve,
}
