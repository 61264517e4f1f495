"""Convolutions that XLA's partitioner computes wrongly are divided in another way.

Where an image is split in space by some mesh axes and is the same over others, XLA exchanges rows between the wrong
devices if features are split by these others, and adds up gradients of kernels as often as the image is there. Here the
other axes divide the batch (of gradients of kernels: features), where they can, for as long as the convolution takes.
Else the kernel is whole, or, of gradients of kernels, the image is.
"""

from math import prod
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_shardings import (
    Axes,
    Constraints,
    Found,
    ops_named,
    shape_of,
    shardings_of,
)


def prepare_convolutions(module: Any) -> None:
    """Constrain such convolutions in ``module``, StableHLO with Shardy's annotations."""
    constrain = Constraints.of(module)
    ops = list(ops_named(module, ("stablehlo.convolution",)))
    if constrain is None or not ops or len(constrain.sizes) < 2:
        return
    for op, found in zip(ops, shardings_of(module, ops), strict=True):
        if found is not None:
            _divide(op, found, constrain)


def _divide(op: Any, found: Found, constrain: Constraints) -> None:
    (image, kernel), (made,) = found.operands, found.results
    if image is None or kernel is None or made is None:
        return
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    space = {axis for dim in numbers.input_spatial_dimensions for axis in image[dim]}
    if not space:
        return
    batch, result = numbers.input_batch_dimension, numbers.output_batch_dimension
    inputs, outputs = numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension
    held = {axis for dim in image for axis in dim}
    summed = any(axis in space for dim in numbers.kernel_spatial_dimensions for axis in kernel[dim])
    if summed:  # over the devices that have parts of the space
        others = tuple(axis for axis in constrain.sizes if axis not in held)
    else:
        used = (*made[result], *kernel[inputs], *kernel[outputs], *made[numbers.output_feature_dimension])
        others = tuple(dict.fromkeys(axis for axis in used if axis not in held))
    if not others:
        return
    made = constrain.without(made, others)
    if _fits(op.operands[0], image, batch, others, constrain):
        image, made = _with(image, batch, others), _with(made, result, others)
        kernel = constrain.without(kernel, others)
    elif summed:
        image, kernel = constrain.without(image, space), constrain.without(kernel, space)
    else:
        kernel = ((),) * len(kernel)
    constrain.operand(op, 0, image, closed=True)
    constrain.operand(op, 1, kernel, closed=True)
    constrain.value(op, op.results[0], made, closed=True)


def _fits(value: Any, axes: Axes, dim: int, added: tuple[str, ...], constrain: Constraints) -> bool:
    """Whether ``added`` divide the dim, too."""
    return bool(shape_of(value)[dim] % prod(constrain.sizes[axis] for axis in (*axes[dim], *added)) == 0)


def _with(axes: Axes, dim: int, added: tuple[str, ...]) -> Axes:
    return tuple((*each, *added) if at == dim else each for at, each in enumerate(axes))
