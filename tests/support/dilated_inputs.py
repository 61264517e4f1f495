"""What kernels that are not finite make of dilated inputs: the reference of convolutions with two kinds of zeros.

Zeros between the elements of a dilated input are not multiplied: a NaN of the kernel that only meets those reaches no
output. Zeros around an input are. XLA's CPU client multiplies both kinds in some convolutions and neither in others;
the reference multiplies both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from neuronx_cc.codegen.convolutions.axis import axis_of
from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.reference.compute import convolution

Array = np.ndarray[Any, Any]


@contextlib.contextmanager
def holes_left_out() -> Iterator[None]:
    """The reference computes convolutions as kernels do."""
    with mock.patch.dict(reference.REFERENCE, convolution=without_holes):
        yield


def without_holes(op: hlo.ConvolutionOp, lhs: Array, rhs: Array) -> Array:
    """The convolution, of which elements of the kernel that are not finite meet no hole."""
    finite = np.isfinite(rhs.astype(np.float64))
    dims, window = op.dims.data, op.window.data
    if finite.all() or all(dim.lhs_dilation == 1 for dim in window):
        return convolution(op, lhs, rhs)
    none = np.zeros((), rhs.dtype)
    total = convolution(op, lhs, np.where(finite, rhs, none))
    spatial = np.moveaxis(~finite, dims.rhs_spatial, range(len(window)))
    for place in np.argwhere(spatial.reshape(*spatial.shape[: len(window)], -1).any(-1)):
        met = np.ones((1,) * total.ndim, bool)
        here = np.zeros(rhs.shape, bool)
        at = [slice(None)] * rhs.ndim
        for axis, (index, dim) in enumerate(zip(place, window, strict=True)):
            at[dims.rhs_spatial[axis]] = index
            out = total.shape[dims.out_spatial[axis]]
            found = axis_of(lhs.shape[dims.lhs_spatial[axis]], out, dim)
            meets = [index in (taps.first + taps.step * np.arange(taps.count)) for taps in found.taps]
            shape = [1] * total.ndim
            shape[dims.out_spatial[axis]] = out
            met = met & np.resize(np.array(meets), out).reshape(shape)
        here[tuple(at)] = True
        part = convolution(op, lhs, np.where(here & ~finite, rhs, none))
        total = np.where(met, total + part, total)
    return np.asarray(total)
