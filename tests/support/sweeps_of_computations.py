"""Variants of the ops that have a window, indices, a computation or an algorithm of their own (see ``sweeps``)."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from op_cases import ROUNDING, Array, combiner, random_array, shaped
from sweep_variants import Dims, Variant, braces, variant

from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE

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
        (1, (6, 6), 2, 3, [(3, 1, -1, 1, 1, 1)] * 2, (1, 1)),
        (3, (), 5, 7, [], (1, 1)),
        (1, (513,), 1, 1, [(5, 1, 4, 0, 1, 1)], (1, 1)),
    ]
    for batch, spatial, features, outputs, window, (groups, batches) in cases:
        digits = "012"[: len(spatial)]
        positions = tuple(_extent(size, each) for size, each in zip(spatial, window, strict=True))
        kernel = (*(each[0] for each in window), features // groups, outputs)
        inputs = [random_array(dtype, (batch, *spatial, features), "x", -1, 1), random_array(dtype, kernel, "k", -1, 1)]
        if dtype in INTEGERS:
            inputs = [array % 5 for array in inputs]
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
    ]
    for number, (dims, window) in enumerate(cases):
        kind = kinds[number % len(kinds)]
        result = tuple(_extent(size, each) for size, each in zip(dims, window, strict=True))
        inputs = (random_array(dtype, dims, kind, -1, 1), np.asarray(neutral[kind], NUMPY_DTYPE[dtype]))
        attributes = f", {_window_text(window)}, to_apply={kind}_computation"
        tolerance = 64 * ROUNDING.get(dtype, 0) if kind == "add" else 0.0
        yield variant("reduce-window", dtype, result, inputs, attributes, combiner(kind, dtype), tolerance)


def select_and_scatter(dtype: str) -> Iterator[Variant]:
    if dtype == "pred":
        return
    ge = f"ge_{dtype} {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
    ge += "  ROOT c = pred[] compare(a, b), direction=GE\n}\n"
    cases: list[tuple[Dims, Window]] = [
        ((9, 11), [(3, 2, 1, 1, 1, 1), (2, 2, 0, 1, 1, 1)]),
        ((2, 8, 8, 3), [PLAIN, (3, 2, 1, 1, 1, 1), (3, 2, 1, 1, 1, 1), PLAIN]),
        ((129, 4), [(2, 2, 0, 1, 1, 1), (2, 1, 0, 0, 1, 1)]),
    ]
    for dims, window in cases:
        positions = tuple(_extent(size, each) for size, each in zip(dims, window, strict=True))
        inputs = (
            random_array(dtype, dims, "x", -1, 1),
            random_array(dtype, positions, "s", -1, 1),
            np.zeros((), NUMPY_DTYPE[dtype]),
        )
        text = _window_text(window).split(" lhs_dilate")[0] + "}"
        attributes = f", {text}, select=ge_{dtype}, scatter=add_computation"
        tolerance = 16 * ROUNDING.get(dtype, 0)
        yield variant("select-and-scatter", dtype, dims, inputs, attributes, ge + combiner("add", dtype), tolerance)


def _indices(shape: Dims, limit: int, seed: str) -> Array:
    """Some inside, some outside, some equal."""
    return (random_array("s32", shape, seed) % np.int32(limit + 3) - 1).astype(np.int32)


def gather(dtype: str) -> Iterator[Variant]:
    for dims, shape, sizes, offset, collapsed, mapped, vector in (
        ((19, 8), (2, 3), (1, 8), (2,), (0,), (0,), 2),
        ((129, 3), (127,), (1, 3), (1,), (0,), (0,), 1),
        ((513,), (128,), (1,), (), (0,), (0,), 1),
        ((6, 7, 5), (4, 2), (1, 1, 5), (1,), (0, 1), (0, 1), 1),
        ((6, 7, 5), (2, 4), (1, 3, 2), (0, 2), (0,), (1, 0), 0),
        ((9, 20), (3, 2), (4, 5), (1, 2), (), (0, 1), 1),
        ((9, 4), (0,), (1, 4), (1,), (0,), (0,), 1),
        ((5, 6), (3,), (5, 1), (0,), (1,), (1,), 1),
    ):
        batch = list(shape[:vector] + shape[vector + 1 :])
        kept = [size for axis, size in enumerate(sizes) if axis not in collapsed]
        result = list(batch)
        for axis, size in zip(offset, kept, strict=True):
            result.insert(axis, size)
        inputs = (random_array(dtype, dims, "x"), _indices(shape, max(dims), f"i{sizes}"))
        attributes = (
            f", offset_dims={braces(offset)}, collapsed_slice_dims={braces(collapsed)}, "
            f"start_index_map={braces(mapped)}, index_vector_dim={vector}, slice_sizes={braces(sizes)}"
        )
        yield variant("gather", dtype, tuple(result), inputs, attributes)


def scatter(dtype: str) -> Iterator[Variant]:
    kinds = ["or", "and"] if dtype == "pred" else ["add", "maximum", "minimum"]
    for number, (dims, shape, updates, window, inserted, mapped, vector) in enumerate(
        (
            ((19, 8), (2, 3), (2, 3, 8), (2,), (0,), (0,), 2),
            ((129, 3), (127,), (127, 3), (1,), (0,), (0,), 1),
            ((513,), (128,), (128,), (), (0,), (0,), 1),
            ((6, 7, 5), (4, 2), (4, 5), (1,), (0, 1), (0, 1), 1),
            ((9, 20), (3, 2), (3, 4, 5), (1, 2), (), (0, 1), 1),
            ((9, 4), (0,), (0, 4), (1,), (0,), (0,), 1),
            ((5, 6), (3,), (5, 3), (0,), (1,), (1,), 1),
        )
    ):
        kind = kinds[number % len(kinds)]
        low, high = (-1, 1)
        inputs = (
            random_array(dtype, dims, "x", low, high),
            _indices(shape, max(dims), f"i{updates}"),
            random_array(dtype, updates, "u", low, high),
        )
        attributes = (
            f", update_window_dims={braces(window)}, inserted_window_dims={braces(inserted)}, "
            f"scatter_dims_to_operand_dims={braces(mapped)}, index_vector_dim={vector}, to_apply={kind}_computation"
        )
        tolerance = 16 * ROUNDING.get(dtype, 0) if kind == "add" else 0.0
        yield variant("scatter", dtype, dims, inputs, attributes, combiner(kind, dtype), tolerance)


def sort(dtype: str) -> Iterator[Variant]:
    for number, (dims, axis) in enumerate(
        (((1,), 0), ((127,), 0), ((128, 3), 0), ((3, 129), 1), ((2, 513), 1), ((0, 3), 0), ((5, 0), 1), ((1031,), 0))
    ):
        direction = ("LT", "GT")[number % 2]
        name = f"{direction}_{dtype}"
        less = f"{name} {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
        less += f"  ROOT c = pred[] compare(a, b), direction={direction}\n}}\n"
        attributes = f", dimensions={{{axis}}}, is_stable=true, to_apply={name}"
        yield variant("sort", dtype, dims, (random_array(dtype, dims, "x"),), attributes, less)


def control(opcode: str) -> Callable[[str], Iterator[Variant]]:
    """Doubling an array three times, or no time, in a loop or in a branch."""

    def sweep(dtype: str) -> Iterator[Variant]:
        for dims in ((), (1,), (129,), (131, 17), (3, 0, 5), (2, 1, 3, 1, 2, 1, 2, 1)):
            shape = shaped(dtype, dims)
            mark = f"{dtype}_{'x'.join(map(str, dims))}"
            for count in (0, 3):
                if opcode == "while":
                    state = f"(s32[], {shape})"
                    computations = (
                        f"body_{mark} {{\n  p = {state} parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n"
                        f"  x = {shape} get-tuple-element(p), index=1\n  one = s32[] constant(1)\n"
                        f"  j = s32[] add(i, one)\n  y = {shape} maximum(x, x)\n  z = {shape} add(x, y)\n"
                        f"  ROOT t = {state} tuple(j, z)\n}}\n"
                        f"condition_{mark}_{count} {{\n  p = {state} parameter(0)\n"
                        f"  i = s32[] get-tuple-element(p), index=0\n  n = s32[] constant({count})\n"
                        "  ROOT c = pred[] compare(i, n), direction=LT\n}\n"
                    )
                    inputs = (np.zeros((), np.int32), random_array(dtype, dims, "x", -1, 1))
                    lines = (
                        f"{state} tuple({{0}}, {{1}})",
                        f"{state} while({{a}}), condition=condition_{mark}_{count}, body=body_{mark}",
                    )
                    yield Variant(
                        f"{shape} {count} times",
                        inputs,
                        shape,
                        "get-tuple-element({b}), index=1",
                        computations,
                        8 * ROUNDING.get(dtype, 0),
                        lines,
                    )
                    continue
                computations = (
                    f"twice_{mark} {{\n  x = {shape} parameter(0)\n  ROOT y = {shape} add(x, x)\n}}\n"
                    f"same_{mark} {{\n  x = {shape} parameter(0)\n  ROOT y = {shape} maximum(x, x)\n}}\n"
                )
                chosen: Array = np.asarray(count == 3)
                inputs = (chosen, random_array(dtype, dims, "x", -1, 1))
                yield Variant(
                    f"{shape} {chosen}",
                    inputs,
                    shape,
                    f"conditional({{0}}, {{1}}, {{1}}), true_computation=twice_{mark}, false_computation=same_{mark}",
                    computations,
                    ROUNDING.get(dtype, 0),
                )

    return sweep


def cholesky(dtype: str) -> Iterator[Variant]:
    for size, batch in ((1, ()), (5, ()), (33, ()), (129, ()), (7, (3,)), (4, (2, 2))):
        for lower in ("true", "false"):
            factor = random_array(dtype, (*batch, size, size), "a", -1, 1).astype(np.float64)
            matrix = factor @ np.swapaxes(factor, -1, -2) + size * np.eye(size)
            inputs = (matrix.astype(NUMPY_DTYPE[dtype]),)
            shape = shaped(dtype, matrix.shape)
            # the other triangle is not specified
            mask = (np.tril if lower == "true" else np.triu)(np.ones_like(matrix)).astype(NUMPY_DTYPE[dtype])
            line = f"{shape} cholesky({{0}}), lower={lower}"
            label = f"{shape} lower={lower}"
            yield Variant(label, (*inputs, mask), shape, "multiply({a}, {1})", "", 1e-4, (line,))


def triangular_solve(dtype: str) -> Iterator[Variant]:
    for size, columns, batch in ((1, 1, ()), (5, 3, ()), (129, 2, ()), (7, 4, (3,))):
        for left in ("true", "false"):
            for lower, transpose, unit in (("true", "NO_TRANSPOSE", "false"), ("false", "TRANSPOSE", "true")):
                a = random_array(dtype, (*batch, size, size), "a", -1, 1).astype(np.float64)
                a = a / size + np.eye(size) * 2
                b = random_array(dtype, (*batch, *((size, columns) if left == "true" else (columns, size))), "b", -1, 1)
                attributes = f", left_side={left}, lower={lower}, transpose_a={transpose}, unit_diagonal={unit}"
                inputs = (a.astype(NUMPY_DTYPE[dtype]), b)
                yield variant("triangular-solve", dtype, b.shape, inputs, attributes, tolerance=1e-4)


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {
    "cholesky": cholesky,
    "conditional": control("conditional"),
    "convolution": convolution,
    "gather": gather,
    "reduce-window": reduce_window,
    "scatter": scatter,
    "select-and-scatter": select_and_scatter,
    "sort": sort,
    "triangular-solve": triangular_solve,
    "while": control("while"),
}
