"""Variants of the custom calls that become plain ops, compared with NumPy in FP64 (see ``sweeps``)."""

from collections.abc import Callable, Iterator
from math import erf, pi, sqrt

import numpy as np
from op_cases import ROUNDING, Array, random_array, shaped
from sweep_variants import Dims, Variant, variant

from neuronx_cc.ir.types import FLOATS, INTEGERS, NUMPY_DTYPE

SHAPES: tuple[Dims, ...] = ((), (1,), (0, 3), (127,), (129, 5), (3, 130), (513,), (2, 1, 3, 1, 2, 1, 2, 1))


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _normal(x: Array) -> Array:
    return 0.5 * (1 + np.vectorize(erf, otypes=[np.float64])(x * sqrt(0.5)))


UNARY: dict[str, Callable[[Array], Array]] = {
    "AwsNeuronErf": np.vectorize(erf, otypes=[np.float64]),
    "AwsNeuronGelu": lambda x: x * _normal(x),
    "AwsNeuronGeluApprxTanh": lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "AwsNeuronGeluBackward": lambda x: _normal(x) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi),
    "AwsNeuronSilu": lambda x: x * _logistic(x),
    "AwsNeuronSiluBackward": lambda x: _logistic(x) * (1 + x * (1 - _logistic(x))),
}


def _call(
    target: str, dtype: str, wanted: Array, inputs: tuple[Array, ...], config: str = "", tolerance: float = 0.0
) -> Variant:
    attributes = f', custom_call_target="{target}"' + (f', backend_config="{config}"' if config else "")
    return variant("custom-call", dtype, wanted.shape, inputs, attributes, "", tolerance, wanted)


def custom_call(dtype: str) -> Iterator[Variant]:
    for dims in SHAPES:
        x = random_array(dtype, dims, "marked")
        yield _call("NeuronBoundaryMarker-Start", dtype, x, (x,))
    if dtype in FLOATS:
        yield from _of_floats(dtype)
    if dtype in FLOATS or dtype in INTEGERS:
        yield from _of_places(dtype)


def _of_floats(dtype: str) -> Iterator[Variant]:
    numpy, tolerance = NUMPY_DTYPE[dtype], 2 * ROUNDING[dtype]
    for target, function in UNARY.items():
        for dims in SHAPES:
            x = random_array(dtype, dims, target)
            yield _call(target, dtype, np.asarray(function(x.astype(np.float64))).astype(numpy), (x,), "", tolerance)
    for dims, axis in (((3, 130), 1), ((129, 5), 0), ((513,), 0), ((2, 3, 4), -2), ((4, 1), 1)):
        x, weight = random_array(dtype, dims, "x"), random_array(dtype, (dims[axis],), "w", 0.5, 1.5)
        wide = x.astype(np.float64)
        powers = np.exp(wide - wide.max(axis, keepdims=True))
        y = (powers / powers.sum(axis, keepdims=True)).astype(numpy)
        yield _call("AwsNeuronSoftmax", dtype, y, (x,), str(axis), tolerance)
        along = wide * y
        slope = y.astype(np.float64) * (wide - along.sum(axis, keepdims=True))
        yield _call("AwsNeuronSoftmaxBackward", dtype, slope.astype(numpy), (x, y), str(axis), tolerance)
        epsilon = np.asarray(0.015625, numpy)
        column = weight.astype(np.float64).reshape([-1 if i == axis % len(dims) else 1 for i in range(len(dims))])
        norm = wide / np.sqrt((wide**2).mean(axis, keepdims=True) + float(epsilon)) * column
        yield _call("AwsNeuronRmsNorm", dtype, norm.astype(numpy), (x, weight, epsilon), str(axis), tolerance)


def _of_places(dtype: str) -> Iterator[Variant]:
    """Places of extremes and of the largest values, with many that are equal."""
    for dims, axis in (((3, 130), 1), ((129, 5), 0), ((513,), 0), ((2, 3, 4), 1), ((1, 1), 0)):
        x = (np.abs(random_array("s8", dims, "x").astype(np.int32)) % 7).astype(NUMPY_DTYPE[dtype])
        wide = x.astype(np.float64)
        for target, function in (("AwsNeuronArgMax", np.argmax), ("AwsNeuronArgMin", np.argmin)):
            yield _call(target, "s32", np.asarray(function(wide, axis)).astype(np.int32), (x,), str(axis))
    for dims, k in (((3, 130), 5), ((129, 5), 5), ((513,), 1), ((1, 1), 1)):
        x = (np.abs(random_array("s8", dims, "x").astype(np.int32)) % 7).astype(NUMPY_DTYPE[dtype])
        order = np.argsort(-x.astype(np.float64), -1, stable=True)[..., :k]
        result = (*dims[:-1], k)
        for target in ("AwsNeuronTopK", "TopK"):
            config = f', backend_config="{k}"' if target == "AwsNeuronTopK" else ""
            pair = f"({shaped(dtype, result)}, {shaped('s32', result)})"
            line = f'{pair} custom-call({{0}}), custom_call_target="{target}"{config}'
            for element, wanted in enumerate((np.take_along_axis(x, order, -1), order.astype(np.int32))):
                body = f"get-tuple-element({{a}}), index={element}"
                shape = shaped((dtype, "s32")[element], result)
                yield Variant(f"{target} {pair} element {element}", (x,), shape, body, "", 0.0, (line,), wanted)


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {"custom-call": custom_call}
