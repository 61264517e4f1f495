"""Variants of gather, scatter, sort and top-k (see ``sweeps``)."""

from collections.abc import Callable, Iterator

import numpy as np
from op_cases import ROUNDING, Array, combiner, random_array, shaped
from sweep_variants import Dims, Variant, braces, escaped, variant


def _indices(shape: Dims, limit: int, seed: str) -> Array:
    """Some inside, some outside, some equal."""
    return (random_array("s32", shape, seed) % np.int32(limit + 3) - 1).astype(np.int32)


def gather(dtype: str) -> Iterator[Variant]:
    none: Dims = ()
    for dims, shape, sizes, offset, collapsed, mapped, vector, shared in (
        ((19, 8), (2, 3), (1, 8), (2,), (0,), (0,), 2, (none, none)),
        ((129, 3), (127,), (1, 3), (1,), (0,), (0,), 1, (none, none)),
        ((513,), (128,), (1,), (), (0,), (0,), 1, (none, none)),
        ((6, 7, 5), (4, 2), (1, 1, 5), (1,), (0, 1), (0, 1), 1, (none, none)),
        ((6, 7, 5), (2, 4), (1, 3, 2), (0, 2), (0,), (1, 0), 0, (none, none)),
        ((9, 20), (3, 2), (4, 5), (1, 2), (), (0, 1), 1, (none, none)),
        ((9, 4), (0,), (1, 4), (1,), (0,), (0,), 1, (none, none)),
        ((5, 6), (3,), (5, 1), (0,), (1,), (1,), 1, (none, none)),
        ((5, 6), (1,), (2, 3), (0, 1), (), (1,), 0, (none, none)),
        ((2, 3, 1, 2, 2, 1, 2), (3, 2), (1, 2, 1, 1, 2, 1, 2), (1, 2, 3, 4), (0, 2, 3), (3, 0), 1, (none, none)),
        # batching dims of the operand and of the indices
        ((3, 17, 4), (3, 5, 1), (1, 1, 4), (2,), (1,), (1,), 2, ((0,), (0,))),
        ((129, 2, 7), (2, 129), (1, 1, 1), (), (2,), (2,), 2, ((0, 1), (1, 0))),
        ((2, 9, 3, 8), (3, 4, 2, 2), (1, 2, 1, 5), (1, 2), (), (3, 1), 3, ((0, 2), (2, 0))),
        ((0, 4), (0, 3), (0, 1), (), (1,), (1,), 2, ((0,), (0,))),
    ):
        kept = [size for axis, size in enumerate(sizes) if axis not in (*collapsed, *shared[0])]
        result = list(shape[:vector] + shape[vector + 1 :])
        for axis, size in zip(offset, kept, strict=True):
            result.insert(axis, size)
        inputs = (random_array(dtype, dims, "x"), _indices(shape, max(dims), f"i{sizes}"))
        attributes = (
            f", offset_dims={braces(offset)}, collapsed_slice_dims={braces(collapsed)}, "
            f"start_index_map={braces(mapped)}, index_vector_dim={vector}, slice_sizes={braces(sizes)}"
        )
        if shared[0]:
            attributes += (
                f", operand_batching_dims={braces(shared[0])}, start_indices_batching_dims={braces(shared[1])}"
            )
        yield variant("gather", dtype, tuple(result), inputs, attributes)


SET = "set_{0} {{\n  a = {0}[] parameter(0)\n  ROOT b = {0}[] parameter(1)\n}}\n"
"""The combiner that stores the update."""


def scatter(dtype: str) -> Iterator[Variant]:
    kinds = ["add", "multiply", *([] if dtype == "c64" else ["maximum", "minimum"])]
    kinds = ["or", "and"] if dtype == "pred" else kinds
    none: Dims = ()
    for number, (dims, shape, updates, window, inserted, mapped, vector, shared) in enumerate(
        (
            ((19, 8), (2, 3), (2, 3, 8), (2,), (0,), (0,), 2, (none, none)),
            ((129, 3), (127,), (127, 3), (1,), (0,), (0,), 1, (none, none)),
            ((513,), (128,), (128,), (), (0,), (0,), 1, (none, none)),
            ((6, 7, 5), (4, 2), (4, 5), (1,), (0, 1), (0, 1), 1, (none, none)),
            ((9, 20), (3, 2), (3, 4, 5), (1, 2), (), (0, 1), 1, (none, none)),
            ((9, 4), (0,), (0, 4), (1,), (0,), (0,), 1, (none, none)),
            ((5, 6), (3,), (5, 3), (0,), (1,), (1,), 1, (none, none)),
            ((5, 6), (1,), (2, 3), (0, 1), (), (1,), 0, (none, none)),
            ((0, 6), (3,), (3, 6), (1,), (0,), (0,), 1, (none, none)),
            ((2, 3, 1, 2, 2, 1, 2), (3, 1), (2, 3, 1, 1, 2), (0, 2, 3, 4), (0, 2, 3), (3,), 1, (none, none)),
            # batching dims of the operand and of the indices
            ((3, 17, 4), (3, 5, 1), (3, 5, 4), (2,), (1,), (1,), 2, ((0,), (0,))),
            ((129, 2, 7), (2, 129), (2, 129), (), (2,), (2,), 2, ((0, 1), (1, 0))),
            ((2, 9, 3, 8), (3, 4, 2, 2), (3, 2, 5, 4, 2), (1, 2), (), (3, 1), 3, ((0, 2), (2, 0))),
        )
    ):
        kind = kinds[number % len(kinds)]
        low, high = (0.5, 1.5) if kind == "multiply" else (-1, 1)
        where = _indices(shape, max(dims), f"i{updates}")
        inputs = (random_array(dtype, dims, "x", low, high), where, random_array(dtype, updates, "u", low, high))
        attributes = (
            f", update_window_dims={braces(window)}, inserted_window_dims={braces(inserted)}, "
            f"scatter_dims_to_operand_dims={braces(mapped)}, index_vector_dim={vector}"
        )
        if shared[0]:
            attributes += (
                f", input_batching_dims={braces(shared[0])}, scatter_indices_batching_dims={braces(shared[1])}"
            )
        applied = f"{attributes}, to_apply={kind}_computation"
        tolerance = 16 * ROUNDING.get(dtype, 0) if kind in ("add", "multiply") else 0.0
        yield variant("scatter", dtype, dims, inputs, applied, combiner(kind, dtype), tolerance)
        if where.ndim == 1:  # which of several updates stays is open: distinct places, some outside
            step = np.arange(where.size, dtype=np.int32) * 5 % np.int32(max(1, where.size))
            distinct = (inputs[0], step if where.size % 5 else where.cumsum(dtype=np.int32) * 0 + step, inputs[2])
            if len(set(distinct[1].tolist())) == where.size:
                applied = f"{attributes}, to_apply=set_{dtype}"
                yield variant("scatter", dtype, dims, distinct, applied, SET.format(dtype))


def _few(dtype: str, dims: Dims, seed: str) -> Array:
    """Keys of which many are equal."""
    if dtype == "pred":
        return random_array(dtype, dims, seed)
    return (np.abs(random_array("s8", dims, seed).astype(np.int32)) % 5).astype(random_array(dtype, (), "").dtype)


def sort(dtype: str) -> Iterator[Variant]:
    sizes: tuple[tuple[Dims, int], ...] = (
        *(((1,), 0), ((127,), 0), ((128, 3), 0), ((3, 129), 1), ((2, 513), 1), ((0, 3), 0), ((5, 0), 1)),
        *(((1031,), 0), ((2, 3, 1, 2, 1, 2, 1, 5), 7), ((3, 7, 2), 1)),
    )
    for number, (dims, axis) in enumerate(sizes):
        direction = ("LT", "GT")[number % 2]
        name = f"{direction}_{dtype}"
        less = f"{name} {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
        less += f"  ROOT c = pred[] compare(a, b), direction={direction}\n}}\n"
        attributes = f", dimensions={{{axis}}}, is_stable=true, to_apply={name}"
        yield variant("sort", dtype, dims, (random_array(dtype, dims, "x"),), attributes, less)
    for dims, axis in (((129,), 0), ((3, 130), 1), ((37, 5), 0), ((1, 4), 0), ((0,), 0), ((2, 513), 1)):
        yield from _sort_of_several(dtype, dims, axis)


def _sort_of_several(dtype: str, dims: Dims, axis: int) -> Iterator[Variant]:
    """Equal keys keep their order; then by a second key, downwards, where the first ones are equal."""
    scalars = (dtype, dtype, "s32", "s32")
    parameters = "".join(f"  {'abcd'[i]} = {scalar}[] parameter({i})\n" for i, scalar in enumerate(scalars))
    one = f"one_key_{dtype} {{\n{parameters}  ROOT e = pred[] compare(a, b), direction=LT\n}}\n"
    two = (
        f"two_keys_{dtype} {{\n{parameters}  e = pred[] compare(a, b), direction=EQ\n"
        "  f = pred[] compare(a, b), direction=LT\n  g = pred[] compare(c, d), direction=GT\n"
        "  ROOT h = pred[] select(e, g, f)\n}\n"
    )
    inputs = (_few(dtype, dims, "keys"), random_array("s32", dims, "places"))
    pair = f"({shaped(dtype, dims)}, {shaped('s32', dims)})"
    for text in (one, two):
        name = text.split(" ")[0]
        attributes = f", dimensions={{{axis}}}, is_stable=true, to_apply={name}"
        line = f"{pair} sort({{0}}, {{1}}){escaped(attributes)}"
        for element, kind in enumerate((dtype, "s32")):
            label = f"{pair} {name} element {element}"
            body = f"get-tuple-element({{a}}), index={element}"
            yield Variant(label, inputs, shaped(kind, dims), body, text, 0.0, (line,))


def topk(dtype: str) -> Iterator[Variant]:
    for dims, k in (
        ((5, 37), 6),
        ((1,), 1),
        ((3, 129), 1),
        ((2, 513), 8),
        ((2, 3, 40), 5),
        ((0, 5), 2),
        ((128, 127), 127),
    ):
        for largest in ("true", "false"):
            result = (*dims[:-1], k)
            pair = f"({shaped(dtype, result)}, {shaped('s32', result)})"
            for element, kind in enumerate((dtype, "s32")):
                inputs = (_few(dtype, dims, "x") if element else random_array(dtype, dims, "x"),)
                line = f"{pair} topk({{0}}), k={k}, largest={largest}"
                body = f"get-tuple-element({{a}}), index={element}"
                label = f"{list(dims)} k={k} largest={largest} element {element}"
                yield Variant(label, inputs, shaped(kind, result), body, "", 0.0, (line,))


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {
    "gather": gather,
    "scatter": scatter,
    "sort": sort,
    "topk": topk,
}
