"""Element types as the engines see them: read as f32, compute, round once on the way out.

``reader(dtype)`` gives a function from a stored array to f32, ``writer(dtype, state)`` one that rounds an f32 array
into a stored array: floats to nearest even (or stochastically), integers to nearest even and saturating, ``pred`` as
"is not zero". Casts never run arithmetic on small-float arrays, which NumPy does slowly.
Sources: hardware sheet 3.4 (arithmetic through fp32), 5.2 (rounding, saturation).
"""

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.outside import Host, Port
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, SIGNED, bits

Array: TypeAlias = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)

STORAGE: dict[str, np.dtype[Any]] = {**NUMPY_DTYPE, "pred": np.dtype(np.uint8)}
"""How memory holds an element type; ``pred`` is a byte, so that poison in it is harmless."""


def in_bytes(array: Array, dtype: str) -> Array:
    """``array`` as memory holds it: integers of 2 and 4 bits are numbers of 8, whatever the host has above them."""
    unused = 8 * array.itemsize - bits(dtype)
    if not unused:
        return array
    numbers = array.view(np.int8 if dtype in SIGNED else np.uint8)
    amount = numbers.dtype.type(unused)
    extended: Array = ((numbers << amount) >> amount).view(array.dtype)
    return extended


def mix(words: Array) -> Array:
    """A hash of u32 words with good avalanche (the finaliser of MurmurHash3)."""
    words = np.multiply(words ^ (words >> np.uint32(16)), np.uint32(0x85EBCA6B))
    words = np.multiply(words ^ (words >> np.uint32(13)), np.uint32(0xC2B2AE35))
    mixed: Array = words ^ (words >> np.uint32(16))
    return mixed


@dataclass(slots=True)
class StochasticRounding:
    """Draws from a hash of (seed, dynamic instruction number, element index): the same in every run and order."""

    seed: int
    instruction: int = 0

    def round(self, values: Array, dtype: np.dtype[Any]) -> Array:
        """``values`` (f32) in ``dtype``: up or down with a probability proportional to the distance."""
        nearest = values.astype(dtype)
        back = nearest.astype(F32)
        error = values - back
        bits = nearest.view(f"u{dtype.itemsize}").astype(np.int32)
        top = np.int32(1 << (dtype.itemsize * 8 - 1))
        away = (error > 0) == ((bits & top) == 0)
        at_zero = (bits & ~top) == 0
        stepped = np.where(away, bits + 1, bits - 1)
        stepped = np.where(at_zero, np.where(error < 0, top | 1, 1), stepped)
        other = stepped.astype(f"u{dtype.itemsize}").view(dtype)
        gap = np.abs(other.astype(F32) - back)
        key = mix(np.array([self.seed & 0xFFFFFFFF, self.instruction & 0xFFFFFFFF], np.uint32))
        index = np.arange(values.size, dtype=np.uint32).reshape(values.shape) * np.uint32(0x9E3779B9)
        draw = (mix(mix(index + key[0]) ^ key[1]) >> np.uint32(8)).astype(F32) * F32.type(2.0**-24)
        moves = np.isfinite(error) & (error != 0) & np.isfinite(gap) & (draw * gap < np.abs(error))
        return np.where(moves, other, nearest)


@dataclass(slots=True)
class State:
    """What instructions keep outside the memories: PE weights, sequencer registers, the rounding mode."""

    weights: Array = field(default_factory=lambda: np.full((128, 128), np.nan, np.float32))
    """[K, M] f32, as the last ``load_stationary`` left it; NaN before."""
    borrowed: bool = False
    """``weights`` is a view of SBUF, valid as long as nothing writes there."""
    finite: bool = False
    """``weights`` certainly has neither infinities nor NaN."""
    registers: MutableSequence[int] = field(default_factory=list)
    run: int = 0
    """Number of the run."""
    rounding: StochasticRounding | None = None
    port: Port | None = None
    """The connection to other devices, if there are any."""
    host: Host | None = None
    """What carries out calls of the host's functions, if it is there."""

    def connected(self) -> Port:
        """The connection to other devices. Raises RunError ERUN916 when the device runs alone."""
        if self.port is None:
            raise RunError("ERUN916", "the program exchanges data with other devices", "run it with --devices")
        return self.port

    def hosted(self) -> Host:
        """The host. Raises RunError ERUN918 when there is none that has the functions."""
        if self.host is None:
            raise RunError("ERUN918", "the program calls functions of the process that compiled it", "run it there")
        return self.host

    def settle(self) -> None:
        """Copy borrowed weights: SBUF may be written from here on."""
        if self.borrowed:
            self.weights = self.weights.copy()
            self.borrowed = False


def _small_float_reader(dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    table = np.arange(256, dtype=np.uint8).view(dtype).astype(F32)

    def read(x: Array) -> Array:
        return np.take(table, x.view(np.uint8))

    return read


def reader(dtype: str) -> Callable[[Array], Array]:
    """A function that returns a stored array as f32: the array itself when it is f32, else a fresh one."""
    storage = STORAGE[dtype]
    if storage == F32:
        return lambda x: x
    if dtype in FLOATS and storage.itemsize == 1:
        return _small_float_reader(storage)
    return lambda x: x.astype(F32)


def writer(dtype: str, state: State) -> Callable[[Array, Array], None]:
    """A function ``(target, values)`` that rounds f32 values into a stored array."""
    storage = STORAGE[dtype]
    if dtype == "pred":
        return _write_pred
    if dtype in FLOATS:
        if state.rounding is None or storage.itemsize >= 4:
            return _write_float
        return _stochastic_writer(storage, state.rounding)
    return _integer_writer(storage)


def _write_float(target: Array, values: Array) -> None:
    target[...] = values


def _write_pred(target: Array, values: Array) -> None:
    np.not_equal(values, 0, out=target.view(np.bool_))


def _stochastic_writer(storage: np.dtype[Any], rounding: StochasticRounding) -> Callable[[Array, Array], None]:
    def write(target: Array, values: Array) -> None:
        target[...] = rounding.round(np.broadcast_to(values, target.shape), storage)

    return write


def _integer_writer(storage: np.dtype[Any]) -> Callable[[Array, Array], None]:
    info = np.iinfo(storage)
    # the largest float64 below 2^63 or 2^64 stands in for the greatest 64-bit integers
    high = float(info.max) if storage.itemsize < 8 else float(np.nextafter(float(info.max), 0))
    low, top = np.float32(info.min), np.float32(info.max)

    def write(target: Array, values: Array) -> None:
        whole = np.clip(np.rint(values.astype(np.float64)), float(info.min), high)
        target[...] = np.where(np.isnan(whole), 0, whole)

    def write_short(target: Array, values: Array) -> None:
        whole = np.clip(values, low, top)
        np.rint(whole, out=whole)
        if np.isnan(np.add.reduce(whole, axis=None)):
            np.copyto(whole, 0, where=np.isnan(whole))
        target[...] = whole

    return write if storage.itemsize > 2 else write_short


def raw(x: Array) -> Array:
    """The same bits as unsigned integers."""
    return x.view(f"u{x.dtype.itemsize}")


def caster(source: str, target: str, state: State) -> Callable[[Array, Array], None]:
    """A function ``(target, source)`` that copies bits when the types agree and else goes through f32."""
    if STORAGE[source] == STORAGE[target]:
        return _copy_bits_wide if STORAGE[source].isbuiltin == 1 else _copy_bits
    read, write = reader(source), writer(target, state)

    def cast(y: Array, x: Array) -> None:
        write(y, read(x))

    return cast


def _copy_bits_wide(y: Array, x: Array) -> None:
    np.copyto(y, x)


def _copy_bits(y: Array, x: Array) -> None:
    np.copyto(raw(y), raw(x))


def constant(value: float, dtype: str) -> Array:
    """A 0-d array of ``dtype``: integers exact and wrapping, floats rounded."""
    storage = STORAGE[dtype]
    if storage.kind in "iu" and float(value).is_integer():
        bits = int(value) & ((1 << storage.itemsize * 8) - 1)
        return np.array(bits, f"u{storage.itemsize}").view(storage)
    if storage.kind in "iu":
        result = np.zeros(1, storage)
        _integer_writer(storage)(result, np.full(1, value, np.float64))
        return result.reshape(())
    return np.asarray(value, np.float32).astype(storage) if dtype != "f64" else np.asarray(value, np.float64)
