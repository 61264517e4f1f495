"""Variants of reductions: plain ones, and ones of a value and its place (see ``sweeps``)."""

from collections.abc import Callable, Iterator

import numpy as np
from op_cases import ROUNDING, combiner, random_array, shaped
from sweep_variants import Dims, Variant, braces, escaped, variant

from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE


def reduce(dtype: str) -> Iterator[Variant]:
    kinds = ["add", "multiply", *([] if dtype == "c64" else ["maximum", "minimum"])]
    kinds = ["or", "and", "maximum"] if dtype == "pred" else kinds
    # XLA drops the initial value of a reduction over one element, which HLO allows since it should be neutral
    greatest = np.iinfo(NUMPY_DTYPE[dtype]).max if dtype in INTEGERS else 1
    least = np.iinfo(NUMPY_DTYPE[dtype]).min if dtype in INTEGERS else 0 if dtype == "pred" else -1
    neutral = {"add": 0, "multiply": 1, "or": 0, "and": 1, "maximum": least, "minimum": greatest}
    cases: list[tuple[Dims, Dims]] = [
        ((129, 5), (0,)),
        ((129, 5), (1,)),
        ((129, 5), (0, 1)),
        ((3, 129, 7), (1,)),
        ((3, 129, 7), (0, 2)),
        ((513,), (0,)),
        ((1031,), (0,)),
        ((2, 3, 4, 5), (1, 3)),
        ((0, 4), (0,)),
        ((4, 0), (1,)),
        ((1, 1), (0,)),
        ((2, 3), ()),
        ((2, 1, 3, 1, 2, 1, 2, 2), (0, 4, 7)),
    ]
    for number, (dims, axes) in enumerate(cases):
        kind = kinds[number % len(kinds)]
        result = tuple(size for axis, size in enumerate(dims) if axis not in axes)
        low, high = (0.9, 1.1) if kind == "multiply" else (-1, 1)
        inputs = (random_array(dtype, dims, kind, low, high), np.asarray(neutral[kind], NUMPY_DTYPE[dtype]))
        attributes = f", dimensions={braces(axes)}, to_apply={kind}_computation"
        # the order of summation is free: each addition may round
        tolerance = {"add": 64, "multiply": 64}.get(kind, 0) * ROUNDING.get(dtype, 0)
        yield variant("reduce", dtype, result, inputs, attributes, combiner(kind, dtype), tolerance)
    if dtype != "c64":
        yield from _of_pairs(dtype)


def _of_pairs(dtype: str) -> Iterator[Variant]:
    """The largest value and the first place it stands at; the smallest and the largest value."""
    scalar, places = f"{dtype}[]", "s32[]"
    for dims, axes in (
        ((129, 5), (0,)),
        ((129, 5), (1,)),
        ((3, 129, 7), (0, 2)),
        ((513,), (0,)),
        ((1, 4), (0,)),
        ((0, 4), (0,)),
    ):
        result = tuple(size for axis, size in enumerate(dims) if axis not in axes)
        x = np.round(random_array("f32", dims, "x", 0, 2)).astype(NUMPY_DTYPE[dtype])
        y = random_array(dtype, dims, "y", -1, 1)
        whole = dtype in INTEGERS
        least = np.asarray(np.iinfo(NUMPY_DTYPE[dtype]).min if whole else 0 if dtype == "pred" else -200.0)
        greatest = np.asarray(np.iinfo(NUMPY_DTYPE[dtype]).max if whole else 1 if dtype == "pred" else 200.0)
        first = (
            f"first_{dtype} {{\n  a = {scalar} parameter(0)\n  i = {places} parameter(1)\n"
            f"  b = {scalar} parameter(2)\n  j = {places} parameter(3)\n  gt = pred[] compare(a, b), direction=GT\n"
            "  eq = pred[] compare(a, b), direction=EQ\n  lt = pred[] compare(i, j), direction=LT\n"
            "  tie = pred[] and(eq, lt)\n  left = pred[] or(gt, tie)\n"
            f"  v = {scalar} select(left, a, b)\n  k = {places} select(left, i, j)\n"
            f"  ROOT t = ({scalar}, {places}) tuple(v, k)\n}}\n"
        )
        extremes = (
            f"extremes_{dtype} {{\n  a = {scalar} parameter(0)\n  c = {scalar} parameter(1)\n"
            f"  b = {scalar} parameter(2)\n  d = {scalar} parameter(3)\n  v = {scalar} minimum(a, b)\n"
            f"  w = {scalar} maximum(c, d)\n  ROOT t = ({scalar}, {scalar}) tuple(v, w)\n}}\n"
        )
        counted = np.arange(x.size, dtype=np.int32).reshape(dims)
        starts = [start.astype(NUMPY_DTYPE[dtype]) for start in (least, greatest)]
        for text, inputs, kinds in (
            (first, (x, counted, starts[0], np.asarray(2**31 - 1, np.int32)), (dtype, "s32")),
            (extremes, (x, y, starts[1], starts[0]), (dtype, dtype)),
        ):
            pair = f"({', '.join(shaped(kind, result) for kind in kinds)})"
            attributes = f", dimensions={braces(axes)}, to_apply={text.split(' ')[0]}"
            line = f"{pair} reduce({{0}}, {{1}}, {{2}}, {{3}}){escaped(attributes)}"
            for element, kind in enumerate(kinds):
                label = f"{list(dims)} {attributes} element {element}"
                body = f"get-tuple-element({{a}}), index={element}"
                yield Variant(label, inputs, shaped(kind, result), body, text, 0.0, (line,))


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {"reduce": reduce}
