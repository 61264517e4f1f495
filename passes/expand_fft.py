"""Rewrites ``fft`` as contractions with Fourier matrices, which TensorE does.

Input: any module. Output: no ``fft``; complex numbers only in ``real``, ``imag`` and ``complex`` at the edges, so that
``split_complex`` has nothing to compute.

Between the stages the two parts of the numbers are one more dim of size 2 (the *plane*): a stage of length n contracts
(plane, n) with one constant matrix. A length above ``DIRECT`` is cut into two factors (Cooley and Tukey): transforms of
the one, a product with the twiddle factors, transforms of the other. A prime above it becomes a convolution of a power
of two (Bluestein). Constants are computed in FP64; the contractions carry the highest precision, so that
auto-cast does not touch them: the mode is about products of data, and 8 bits would leave nothing of a spectrum.
"""

from collections.abc import Sequence
from math import isqrt

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

DIRECT = 512
"""Longest transform done as one contraction. Its constant is 4 MiB; up to there TensorE beats any cut by far."""


@only_for(hlo.FftOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.FftOp):
                replace(op, _expand(Build.before(module, op), op))


def _expand(b: Build, op: hlo.FftOp) -> Value:
    shape, kind = op.shape, op.fft_type.data
    if shape.size == 0 or hlo.shape_of(op.operand).size == 0:
        return b.number(0, shape.dtype, shape.dims)
    axes = list(range(shape.rank - len(op.fft_length.data), shape.rank))
    stages = _Stages(b, op.operand, kind in ("IFFT", "IRFFT"))
    if kind == "IRFFT":
        for axis in reversed(axes[:-1]):
            stages.transform(axis)
        return stages.to_real(axes[-1], op.fft_length.data[-1])
    stages.transform(axes[-1], shape.dims[-1])
    for axis in reversed(axes[:-1]):
        stages.transform(axis)
    return b.op(hlo.ComplexOp, [stages.part(0), stages.part(1)], shape.dtype, shape.dims)


class _Stages:
    """An array under transformation axis by axis; ``order`` names the axis of the operand that each dim is."""

    def __init__(self, b: Build, operand: Value, inverse: bool):
        shape = hlo.shape_of(operand)
        self.b = b
        self.fourier = Fourier(b, inverse)
        self.parts = [operand]
        if shape.dtype == "c64":
            self.parts = [b.op(kind, [operand], "f32", shape.dims) for kind in (hlo.RealOp, hlo.ImagOp)]
        self.plane: int | None = None
        self.order = list(range(shape.rank))

    def transform(self, axis: int, kept: int | None = None) -> None:
        """Along ``axis``, of whose results the first ``kept`` are wanted."""
        value = self.fourier.along(self.parts, self.plane, self.order.index(axis), kept)
        self.parts = [value]
        self.order = [*(other for other in self.order if other not in (axis, -1)), -1, axis]
        self.plane = len(self.order) - 2

    def part(self, half: int) -> Value:
        """The real or the imaginary part, dims in the operand's order."""
        order = [axis for axis in self.order if axis >= 0]
        value = plane_of(self.b, self.parts[0], self.plane, half) if self.plane is not None else self.parts[half]
        return self.b.transpose(value, np.argsort(order).tolist())

    def to_real(self, axis: int, length: int) -> Value:
        """The inverse transform of half a spectrum along the last axis; imaginary parts at its ends do not count."""
        b, last = self.b, hlo.shape_of(self.part(0)).rank - 1
        halves = [self.part(0), self.part(1)]
        if length <= DIRECT:
            row = np.arange(length // 2 + 1)
            weights = np.where((row == 0) | (2 * row == length), 1, 2)[:, None] / length
            wave = roots(np.outer(row, np.arange(length)), length, inverse=True)
            matrices = (weights * wave.real, -weights * wave.imag)
            products = [
                b.dot(half, b.array(matrix), ((last,), (0,))) for half, matrix in zip(halves, matrices, strict=True)
            ]
            return b.add(*products)
        whole = []
        for half, value in enumerate(halves):
            mirrored = b.reverse(b.slice(value, last, 1, (length + 1) // 2), [last])
            whole.append(b.concatenate([value, b.neg(mirrored) if half else mirrored], last))
        result = self.fourier.along(whole, None, last)
        return plane_of(b, result, last, 0)


def plane_of(b: Build, value: Value, plane: int, half: int) -> Value:
    """``value`` at ``half`` of its plane dim, without that dim."""
    dims = hlo.shape_of(value).dims
    return b.reshape(b.slice(value, plane, half, half + 1), dims[:plane] + dims[plane + 1 :])


def roots(powers: np.ndarray, length: int, inverse: bool) -> np.ndarray:
    """``exp(-2 pi i powers / length)`` in complex128; with a plus for the inverse."""
    angle = 2 * np.pi * (powers % length) / length
    return np.asarray(np.exp((1j if inverse else -1j) * angle))


class Fourier:
    """Transforms along one dim; the inverse is scaled by one over the length."""

    def __init__(self, b: Build, inverse: bool):
        self.b = b
        self.inverse = inverse

    def along(self, parts: Sequence[Value], plane: int | None, axis: int, kept: int | None = None) -> Value:
        """The transform along dim ``axis``; the result's dims are the others in order, the plane, ``axis``.

        ``parts``: one array with a plane dim ``plane``, or real and imaginary part (or the real part alone) without.
        """
        dims = hlo.shape_of(parts[0]).dims
        length = dims[axis]
        if length <= DIRECT:
            return self._direct(parts, plane, axis, kept or length)
        inner = _divisor(length)
        value = self._chirp(parts, plane, axis) if inner == 1 else self._cut(parts, plane, axis, inner)
        return self.b.slice(value, len(hlo.shape_of(value).dims) - 1, 0, kept or length)

    def _direct(self, parts: Sequence[Value], plane: int | None, axis: int, kept: int) -> Value:
        """One contraction; with the parts apart, a sum of two."""
        b, length = self.b, hlo.shape_of(parts[0]).dims[axis]
        wave = roots(np.outer(np.arange(length), np.arange(kept)), length, self.inverse)
        wave = wave / length if self.inverse else wave
        matrix = np.stack([np.stack([wave.real, wave.imag], 1), np.stack([-wave.imag, wave.real], 1)])
        if plane is not None:
            return b.dot(parts[0], b.array(matrix), ((plane, axis), (0, 1)))
        products = [b.dot(part, b.array(half), ((axis,), (0,))) for part, half in zip(parts, matrix, strict=False)]
        return products[0] if len(products) == 1 else b.add(*products)

    def _cut(self, parts: Sequence[Value], plane: int | None, axis: int, outer: int) -> Value:
        """``outer`` interleaved transforms' worth: index (j1, j2) of the operand gives (k2, k1) of the result."""
        b, dims = self.b, hlo.shape_of(parts[0]).dims
        inner = dims[axis] // outer
        dims = (*dims[:axis], outer, inner, *dims[axis + 1 :])
        if plane is not None and plane > axis:
            plane += 1
        first = self.along([b.reshape(part, dims) for part in parts], plane, axis)
        rest = axis if plane is None or plane > axis else axis - 1
        powers = np.outer(np.arange(inner), np.arange(outer))
        twisted = self._times(first, roots(powers, inner * outer, self.inverse), [rest, len(dims_of(first)) - 1])
        second = self.along([twisted], len(dims_of(twisted)) - 2, rest)
        rank = len(dims_of(second))
        ordered = b.transpose(second, [*range(rank - 3), rank - 2, rank - 1, rank - 3])
        return b.reshape(ordered, (*dims_of(ordered)[:-2], inner * outer))

    def _times(self, value: Value, factor: np.ndarray, axes: list[int]) -> Value:
        """``value`` (plane in the last dim but one) times complex constants along ``axes``, which end with its last."""
        b, dims = self.b, dims_of(value)
        plane = len(dims) - 2
        real = b.broadcast(b.array(factor.real), dims, axes)
        crossed = np.stack([-factor.imag, factor.imag], -2)
        imag = b.broadcast(b.array(crossed), dims, [*axes[:-1], plane, axes[-1]])
        return b.add(b.mul(value, real), b.mul(b.reverse(value, [plane]), imag))

    def _chirp(self, parts: Sequence[Value], plane: int | None, axis: int) -> Value:
        """``j k = (j^2 + k^2 - (k - j)^2) / 2``: products with a chirp around a cyclic convolution with another."""
        b = self.b
        value = self._planes(parts, plane, axis)
        last = len(dims_of(value)) - 1
        length = dims_of(value)[last]
        padded = 1 << (2 * length - 2).bit_length()
        squares = np.arange(length, dtype=np.int64) ** 2
        chirp = roots(squares, 2 * length, self.inverse)
        kernel = np.zeros(padded, np.complex128)
        kernel[:length] = chirp.conj()
        kernel[padded - length + 1 :] = chirp.conj()[:0:-1]
        room = [(0, 0)] * last + [(0, padded - length)]
        spectrum = Fourier(b, False).along([b.pad(self._times(value, chirp, [last]), room)], last - 1, last)
        filtered = self._times(spectrum, np.fft.fft(kernel), [last])
        result = b.slice(Fourier(b, True).along([filtered], last - 1, last), last, 0, length)
        return self._times(result, chirp / length if self.inverse else chirp, [last])

    def _planes(self, parts: Sequence[Value], plane: int | None, axis: int) -> Value:
        """One array with dims others, plane, ``axis``."""
        b = self.b
        if plane is None:
            both = [*parts, b.number_like(0, parts[0])][:2]
            value = b.concatenate([b.reshape(part, (1, *dims_of(part))) for part in both], 0)
            plane, axis = 0, axis + 1
        else:
            value = parts[0]
        others = [dim for dim in range(len(dims_of(value))) if dim not in (plane, axis)]
        return b.transpose(value, [*others, plane, axis])


def dims_of(value: Value) -> tuple[int, ...]:
    return hlo.shape_of(value).dims


def _divisor(length: int) -> int:
    """The divisor of ``length`` up to ``DIRECT`` that is nearest to its root; 1 when there is none."""
    below = max((size for size in range(1, min(isqrt(length), DIRECT) + 1) if length % size == 0), default=1)
    above = next((size for size in range(isqrt(length) + 1, min(DIRECT, length - 1) + 1) if length % size == 0), below)
    return below if below > 1 else above
