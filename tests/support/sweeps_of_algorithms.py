"""Variants of normalisation, Fourier transforms, random bits and the dots of groups and of scales (see ``sweeps``)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from op_cases import ROUNDING, Array, random_array, shaped
from sweep_variants import Dims, Variant, braces, escaped, variant

from neuronx_cc.ir.types import NUMPY_DTYPE

FEATURES: tuple[tuple[Dims, int], ...] = (
    *(((6, 5), 1), ((1, 1), 1), ((7,), 0), ((129, 3), 0), ((2, 130, 3, 3), 1), ((513, 2), 1)),
    *(((3, 4, 7), 0), ((2, 3, 2, 2, 4), 2), ((127, 1), 1), ((3, 0), 1), ((2, 1, 3, 1, 2, 1, 2, 1), 2)),
)
"""Dims and the dim of the features."""
EPSILON = 0.01


def _normalised(opcode: str, feature: int, inputs: list[Array]) -> list[Array]:
    """Batch normalisation in FP64: XLA rounds every step of narrow types."""
    x, *vectors = (array.astype(np.float64) for array in inputs)
    axes = tuple(axis for axis in range(x.ndim) if axis != feature)
    size = np.prod([x.shape[axis] for axis in axes])
    gradient = vectors.pop() if opcode == "batch-norm-grad" else x
    wide = [vector.reshape([-1 if axis == feature else 1 for axis in range(x.ndim)]) for vector in vectors]
    if opcode == "batch-norm-training":
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        result = (x - mean) / np.sqrt(variance + EPSILON) * wide[0] + wide[1]
        return [result, mean.reshape(-1), variance.reshape(-1)]
    if opcode == "batch-norm-inference":
        scale, offset, mean, variance = wide
        return [(x - mean) / np.sqrt(variance + EPSILON) * scale + offset]
    scale, mean, variance = wide
    factor = 1 / np.sqrt(variance + EPSILON)
    total, along = gradient.sum(axes, keepdims=True), (gradient * (x - mean)).sum(axes, keepdims=True)
    result = scale * factor * (gradient - total / size - (x - mean) * factor**2 * along / size)
    return [result, (along * factor).reshape(-1), total.reshape(-1)]


def batch_norm(opcode: str) -> Callable[[str], Iterator[Variant]]:
    def sweep(dtype: str) -> Iterator[Variant]:
        for dims, feature in FEATURES:
            count = dims[feature : feature + 1]
            names = {"training": "so", "inference": "somv", "grad": "smv"}[opcode.split("-")[2]]
            domains = {"s": (0.5, 1.5), "o": (-1, 1), "m": (-0.5, 0.5), "v": (1, 3)}
            inputs = [random_array(dtype, dims, "x", -2, 2)]
            inputs += [random_array(dtype, count, name, *domains[name]) for name in names]
            if opcode == "batch-norm-grad":
                inputs.append(random_array(dtype, dims, "g", -1, 1))
            shapes = [shaped(dtype, dims), shaped(dtype, count), shaped(dtype, count)]
            attributes = f", epsilon={EPSILON}, feature_index={feature}"
            wanted = _normalised(opcode, feature, inputs)
            compared: list[Array | None] = [x.astype(NUMPY_DTYPE[dtype]) for x in wanted]
            # sums of up to 513 values, and XLA takes the variance as a difference of squares
            tolerance = 32 * ROUNDING[dtype] if dtype == "f32" else 4 * ROUNDING[dtype]
            if dtype == "f32":
                compared = [None] * len(wanted)
            if len(wanted) == 1:
                yield variant(opcode, dtype, dims, inputs, attributes, "", tolerance, compared[0])
                continue
            arguments = ", ".join(f"{{{i}}}" for i in range(len(inputs)))
            line = f"({', '.join(shapes)}) {opcode}({arguments}){escaped(attributes)}"
            for element, (shape, value) in enumerate(zip(shapes, compared, strict=True)):
                body = f"get-tuple-element({{a}}), index={element}"
                label = f"{shapes[0]}{attributes} element {element}"
                yield Variant(label, tuple(inputs), shape, body, "", tolerance, (line,), value)

    return sweep


LENGTHS = (1, 2, 3, 8, 127, 128, 129, 512, 513, 521)


def fft(dtype: str) -> Iterator[Variant]:
    """Complex transforms and their inverses; of real numbers with ``f32``. Of one dim and of several."""
    cases: list[tuple[Dims, int]] = [((2, length), 1) for length in LENGTHS]
    cases += [((3, 4, 5), 2), ((2, 3, 8), 3), ((0, 6), 1), ((7,), 1)]
    for dims, rank in cases:
        lengths = dims[len(dims) - rank :]
        half = (*dims[:-1], dims[-1] // 2 + 1)
        kinds = [("RFFT", dims, half, "f32", "c64"), ("IRFFT", half, dims, "c64", "f32")]
        if dtype == "c64":
            kinds = [(kind, dims, dims, "c64", "c64") for kind in ("FFT", "IFFT")]
        for kind, taken, given, source, target in kinds:
            attributes = f", fft_type={kind}, fft_length={braces(lengths)}"
            inputs = (random_array(source, taken, kind, -1, 1),)
            yield variant("fft", target, given, inputs, attributes, tolerance=2.0**-15)


def rng_bit_generator(dtype: str) -> Iterator[Variant]:
    state = np.array([2**63 + 12345, 2**64 - 3, 2**64 - 1], np.uint64)
    for algorithm, words in (("rng_three_fry", 2), ("rng_philox", 3), ("rng_philox", 2), ("rng_default", 2)):
        for dims in ((), (0,), (1,), (127,), (129, 3), (3, 5, 7), (1031,), (2, 1, 3, 1, 2, 1, 2, 1)):
            pair = f"(u64[{words}], {shaped(dtype, dims)})"
            line = f"{pair} rng-bit-generator({{0}}), algorithm={algorithm}"
            for element, shape in enumerate((f"u64[{words}]", shaped(dtype, dims))):
                body = f"get-tuple-element({{a}}), index={element}"
                label = f"{algorithm} {pair} element {element}"
                yield Variant(label, (state[:words],), shape, body, "", 0.0, (line,))


def ragged_dot(dtype: str) -> Iterator[Variant]:
    """[rows, k] by [groups, k, columns]; rows behind the last group are zero."""
    for rows, depth, columns, sizes in (
        (9, 4, 5, (4, 0, 3)),
        (129, 127, 3, (128, 1)),
        (1, 1, 1, (1,)),
        (5, 513, 7, (0, 0, 5)),
        (0, 3, 4, (0, 0)),
        (130, 8, 129, (7,) * 18),
    ):
        inputs = [random_array(dtype, (rows, depth), "l", -1, 1)]
        inputs.append(random_array(dtype, (len(sizes), depth, columns), "r", -1, 1))
        group = np.repeat(np.arange(len(sizes) + 1), [*sizes, rows - sum(sizes)])
        wide = np.concatenate([inputs[1].astype(np.float64), np.zeros((1, depth, columns))])
        exact = np.einsum("rk,rkc->rc", inputs[0].astype(np.float64), wide[group])
        attributes = ", lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
        yield _exactly("ragged-dot", dtype, exact, [*inputs, np.array(sizes, np.int32)], attributes)


def scaled_dot(dtype: str) -> Iterator[Variant]:
    """Each scale belongs to a block of the contracted dim."""
    for rows, depth, columns, left, right in (
        (6, 8, 5, 2, 2),
        (129, 64, 3, 4, 1),
        (1, 1, 1, 1, 1),
        (3, 512, 130, 16, 16),
        (2, 127, 7, 1, 127),
    ):
        shapes = ((rows, depth), (depth, columns), (rows, left), (right, columns))
        inputs = [random_array(dtype, dims, f"{dims}", -1, 1) for dims in shapes]
        lhs, rhs, lhs_scale, rhs_scale = (array.astype(np.float64) for array in inputs)
        exact = (lhs * np.repeat(lhs_scale, depth // left, 1)) @ (rhs * np.repeat(rhs_scale, depth // right, 0))
        attributes = ", lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        yield _exactly("scaled-dot", dtype, exact, inputs, attributes)


def _exactly(opcode: str, dtype: str, exact: Array, inputs: list[Any], attributes: str) -> Variant:
    """Compared with FP64."""
    wanted = exact.astype(NUMPY_DTYPE[dtype])
    return variant(opcode, dtype, exact.shape, inputs, attributes, "", 4 * ROUNDING[dtype], wanted)


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {
    **{f"batch-norm-{kind}": batch_norm(f"batch-norm-{kind}") for kind in ("grad", "inference", "training")},
    "fft": fft,
    "ragged-dot": ragged_dot,
    "rng-bit-generator": rng_bit_generator,
    "scaled-dot": scaled_dot,
}
