"""Fourier transforms and the matrix of mel bands."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.onnx.shapes import normal
from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal
from neuronx_cc.driver.frontends.onnx.types import checked, dtype_of, tabled


def _complex(x: Value) -> Value:
    """Elements of a trailing dimension of 2 as complex numbers, those of a dimension of 1 as real ones."""
    if x.shape[-1] not in (1, 2):
        raise refusal(f"expected a last dimension of 1 or 2, found {x.shape[-1]}", code="EVRF064")
    wide = x if np.dtype(x.dtype).itemsize >= 4 and x.dtype != np.dtype("bfloat16") else x.astype(np.float32)
    return wide[..., 0] if wide.shape[-1] == 1 else wide[..., 0] + wide[..., 1] * np.complex64(1j)


def _parts(x: Value, dtype: Any) -> Value:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1).astype(dtype)


@op("DFT", static=("dft_length", "axis"))
def dft(
    input: Value,
    dft_length: Value = None,
    axis: Value = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    version: int = 20,
) -> Value:
    default = 1 if version < 20 else -2
    along = normal(default if axis is None else int(np.asarray(axis).reshape(())), input.ndim)
    length = None if dft_length is None else int(np.asarray(dft_length).reshape(()))
    if length is not None:
        checked([length])
    signal = _complex(jnp.asarray(input))
    if inverse and onesided:
        return jnp.fft.irfft(signal, length, along)[..., None].astype(input.dtype)
    if inverse:
        return _parts(jnp.fft.ifft(signal, length, along), input.dtype)
    made = jnp.fft.fft(signal, length, along)
    if onesided:
        made = jnp.take(made, np.arange(made.shape[along] // 2 + 1), along)
    return _parts(made, input.dtype)


@op("STFT", static=("frame_step", "frame_length"))
def stft(
    signal: Value, frame_step: Value, window: Value = None, frame_length: Value = None, *, onesided: int = 1
) -> Value:
    step = int(frame_step.reshape(()))
    if frame_length is None and window is None:
        raise refusal("expected a window or a frame_length", code="EVRF064")
    length = window.shape[0] if frame_length is None else int(frame_length.reshape(()))
    samples = _complex(jnp.asarray(signal) if signal.ndim == 3 else jnp.asarray(signal)[..., None])
    count = 1 + (samples.shape[1] - length) // step
    tabled([count, length])
    frames = samples[:, np.arange(count)[:, None] * step + np.arange(length)[None, :]]
    made = jnp.fft.fft(frames if window is None else frames * window, axis=-1)
    return _parts(made[..., : length // 2 + 1] if onesided else made, signal.dtype)


@op("MelWeightMatrix", static=("bins", "dft_length", "sample_rate", "lowest", "highest"))
def mel_weight_matrix(
    bins: Value, dft_length: Value, sample_rate: Value, lowest: Value, highest: Value, *, output_datatype: int = 1
) -> Value:
    """[frequencies, bands]: triangles whose corners are even on the mel scale."""
    bands, length, rate = (int(value.reshape(())) for value in (bins, dft_length, sample_rate))
    rows = length // 2 + 1
    tabled([rows, bands])
    mels = [2595 * np.log10(1 + float(edge.reshape(())) / 700) for edge in (lowest, highest)]
    points = mels[0] + np.arange(bands + 2) * ((mels[1] - mels[0]) / (bands + 2))
    places = ((length + 1) * (700 * (10 ** (points / 2595) - 1)) // rate).astype(int)
    made = np.zeros((rows, bands))
    for band in range(bands):
        low, centre, high = places[band : band + 3]
        if low == centre:
            made[centre, band] = 1
        else:
            made[low : centre + 1, band] = np.arange(centre - low + 1) / (centre - low)
        if high > centre:
            made[centre:high, band] = (high - np.arange(centre, high)) / (high - centre)
    return made.astype(dtype_of(output_datatype, "the result"))
