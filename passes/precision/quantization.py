"""Weights in 8 bits: symmetric, with a scale for each output channel.

``codes * scale`` is what a weight becomes. The scale is the largest magnitude of the channel (all elements that are
contracted, for one index of the other dims) over the largest number of the type; zeros stay zeros, exactly. A format
``int8@99.9`` takes a percentile of the magnitudes in place of the largest: what is greater is clipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import NUMPY_DTYPE, WIDE_FLOATS
from neuronx_cc.passes.analysis.constant_stacks import constant_of_stack
from neuronx_cc.passes.analysis.contracted import contracted_by

Array = np.ndarray[Any, np.dtype[Any]]
FORMATS = {"int8": ("s8", 127.0), "fp8_e4m3": ("f8e4m3", 240.0)}
"""What policies and ``--quantize-weights`` call a format -> element type of the codes, its largest number."""
LEAST_PERCENTILE = 50.0


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant operand of a contraction, or one of a stack of such, as of a loop over layers."""

    operand: int
    contracted: tuple[int, ...]
    array: Array
    """With the dims of the operand after those of the stack."""
    places: tuple[hlo.SSAValue, ...] = ()
    """Of the operand in each dim of the stack."""

    def codes(self, form: str) -> tuple[Array, Array]:
        """Codes and scales in ``form``, of the whole stack."""
        return quantized(self.array, [len(self.places) + axis for axis in self.contracted], form)


def is_format(text: str) -> bool:
    """Whether ``text`` names a format, with or without a percentile."""
    name, mark, percentile = text.partition("@")
    if not mark:
        return name in FORMATS
    try:
        return name in FORMATS and LEAST_PERCENTILE <= float(percentile) <= 100
    except ValueError:
        return False


def stored_as(form: str) -> tuple[str, float, float]:
    """Element type of the codes, its largest number, and the percentile of magnitudes that becomes that."""
    name, _, percentile = form.partition("@")
    return (*FORMATS[name], float(percentile or 100))


def quantized(array: Array, contracted: Sequence[int], form: str) -> tuple[Array, Array]:
    """Codes of ``array``'s dims, and FP32 scales of the dims that are not ``contracted``."""
    dtype, most, percentile = stored_as(form)
    values, axes = array.astype(np.float32), tuple(contracted)
    magnitudes = np.abs(values)
    largest = magnitudes.max(axis=axes, keepdims=True, initial=0)
    if percentile < 100 and magnitudes.size:
        reached = np.percentile(magnitudes, percentile, axis=axes, keepdims=True).astype(np.float32)
        largest = np.where(reached > 0, reached, largest)  # of a channel of zeros but few
    scale = (largest / np.float32(most)).astype(np.float32)
    scale[scale == 0] = 1  # of nothing, or of what is too small to divide by
    ratio = np.clip(values / scale, -most, most)
    codes = np.rint(ratio) if dtype == "s8" else ratio
    return codes.astype(NUMPY_DTYPE[dtype]), scale.squeeze(tuple(contracted))


def rounded_weight(array: Array, contracted: Sequence[int], form: str) -> Array:
    """What ``array`` becomes, in FP32."""
    codes, scales = quantized(array, contracted, form)
    wide: Array = codes.astype(np.float32) * np.expand_dims(scales, tuple(contracted))
    return wide


def weight_of(module: hlo.HloModule, op: hlo.HloOp) -> Weight | None:
    """The operand of a contraction that is a finite constant and no splat, where the other one is none; of a
    convolution the kernel.
    """
    weight = _weight_of(module, op)
    return None if weight is None or not_finite(weight) else weight


def not_finite_of(module: hlo.HloModule, op: hlo.HloOp) -> int:
    """How many elements keep such a constant from being stored in 8 bits."""
    weight = _weight_of(module, op)
    return 0 if weight is None else not_finite(weight)


def not_finite(weight: Weight) -> int:
    """Elements that are NaN or infinite, of which there are no codes."""
    return int(weight.array.size - np.isfinite(weight.array.astype(np.float32)).sum())


def _weight_of(module: hlo.HloModule, op: hlo.HloOp) -> Weight | None:
    """The same with elements that are not finite."""
    if not isinstance(op, hlo.DotOp | hlo.ConvolutionOp) or op.shape.dtype not in WIDE_FLOATS:
        return None
    among = [operand if hlo.shape_of(operand).dtype in WIDE_FLOATS else None for operand in op.operands]
    found = [None if operand is None else constant_of_stack(module, operand) for operand in among]
    if sum(each is not None for each in found) != 1:
        return None
    ((index, stack),) = ((number, each) for number, each in enumerate(found) if each is not None)
    contracted = contracted_by(op, index)
    return Weight(index, contracted, stack.array, stack.places) if contracted and stack.array.size else None
