"""Reference semantics of rng-bit-generator, bit for bit as XLA expands it, of rng and of rng-get-and-update-state.

ThreeFry-2x32 and Philox-4x32 after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.reference.values import Array, Value, narrow

_LOW = np.uint64(0xFFFFFFFF)


def _halves(word: Array) -> tuple[Array, Array]:
    """Low and high 32 bits."""
    return (word & _LOW).astype(np.uint32), (word >> np.uint64(32)).astype(np.uint32)


def _join(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def three_fry(counter: tuple[Array, Array], key: tuple[Array, Array]) -> tuple[Array, Array]:
    """The 20-round ThreeFry-2x32 block function on u32 arrays."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    for group in range(5):
        for rotation in rotations[group % 2]:
            first = first + second
            second = (second << np.uint32(rotation)) | (second >> np.uint32(32 - rotation))
            second = second ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def philox(counter: Sequence[Array], key: tuple[Array, Array]) -> list[Array]:
    """The 10-round Philox-4x32 block function on u32 arrays."""
    words, (key0, key1) = list(counter), key
    for _ in range(10):
        low0, high0 = _halves(words[0].astype(np.uint64) * np.uint64(0xD2511F53))
        low1, high1 = _halves(words[2].astype(np.uint64) * np.uint64(0xCD9E8D57))
        words = [high1 ^ words[1] ^ key0, low1, high0 ^ words[3] ^ key1, low0]
        key0, key1 = key0 + np.uint32(0x9E3779B9), key1 + np.uint32(0xBB67AE85)
    return words


def _three_fry_bits(key: Array, state: Array, dims: tuple[int, ...], wide: bool) -> tuple[Array, Array]:
    """(bits, advanced state); 32-bit numbers are made in two halves along the first even (else longest) dim."""
    split, halved = 0, list(dims) or [1]
    if not wide:
        even = [i for i, size in enumerate(dims) if size % 2 == 0]
        split = even[0] if even else max(range(len(dims)), key=lambda i: dims[i], default=0)
        halved[split] = (halved[split] + 1) // 2
    count = int(np.prod(halved, dtype=np.int64))
    counter = (state[0] + np.arange(count, dtype=np.uint64)).reshape(halved)
    low, high = three_fry(_halves(counter), _halves(key))
    advanced = state + np.uint64(count)
    if wide:
        return _join(low, high).reshape(dims), advanced
    paired = np.stack([low, high], split + 1)
    merged = paired.reshape([2 * size if i == split else size for i, size in enumerate(halved)])
    cut = np.take(merged, range(dims[split] if dims else 1), split)
    return cut.reshape(dims), advanced


def _philox_bits(key: Array, state: Array, dims: tuple[int, ...], wide: bool) -> tuple[Array, Array]:
    """(bits, advanced 128-bit state); each block gives four 32-bit (or two 64-bit) neighbours."""
    size = int(np.prod(dims, dtype=np.int64))
    blocks = -(-size // (2 if wide else 4))
    low = state[0] + np.arange(blocks, dtype=np.uint64)
    high = state[1] + (low < state[0]).astype(np.uint64)
    words = philox([*_halves(low), *_halves(high)], _halves(key))
    if wide:
        words = [_join(words[0], words[1]), _join(words[2], words[3])]
    bits = np.stack(words, 1).reshape(-1)[:size].reshape(dims)
    next_low = state[0] + np.uint64(blocks)
    return bits, np.array([next_low, state[1] + np.uint64(next_low < state[0])], np.uint64)


def rng_bit_generator(op: hlo.RngBitGeneratorOp, state: Array) -> Value:
    """(new state, bits), or the bits alone.

    The state is u64: the key, then a 64-bit counter (ThreeFry) or a 64- or 128-bit one (Philox).

    ``rng_default`` is Philox, as on XLA's CPU; a 64-bit counter has the key for its high half.
    """
    result_type = op.results[0].type
    bits_type = result_type.data[1] if isinstance(result_type, hlo.TupleType) else result_type
    assert isinstance(bits_type, hlo.ArrayType)
    dtype, dims = bits_type.data.dtype, bits_type.data.dims
    wide = dtype in ("u64", "s64")
    three = op.algorithm.data == "rng_three_fry"
    if state.dtype != np.uint64 or state.size not in ((2,) if three else (2, 3)):
        raise CompileError(
            "EVRF064",
            f"{op.algorithm.data}: expected a state of u64[2]{'' if three else ' or u64[3]'}, found {state.dtype}"
            f"{list(state.shape)}",
            "pass a state of that shape",
            op.loc,
        )
    key, counter = state[0], state[1:]
    if three:
        bits, counter = _three_fry_bits(key, counter, dims, wide)
    else:
        bits, advanced = _philox_bits(key, counter if state.size == 3 else state[[1, 0]], dims, wide)
        counter = advanced[: state.size - 1]
    if bits_type is result_type:
        return narrow(bits, dtype)
    return (np.concatenate([state[:1], counter]), narrow(bits, dtype))


def instruction_key(name: str) -> int:
    """The 64-bit Philox key of the ``rng`` instruction ``name``: two checksums of it."""
    text = name.encode()
    return zlib.crc32(text) << 32 | zlib.crc32(b"rng " + text)


def _unit(bits: Array) -> Array:
    """f32 in [0, 1) with steps of 2**-23."""
    return (bits >> np.uint32(9) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)


def rng(op: hlo.RngOp, first: Array, second: Array) -> Array:
    """Numbers of ``rng_uniform`` on [first, second) or ``rng_normal`` (mean, deviation).

    HLO leaves the generator open: these are Philox numbers whose key is a checksum of the instruction's name, so they
    are the same in every run, and equal to no other implementation's.
    """
    dims, dtype, size = op.shape.dims, op.shape.dtype, op.shape.size
    normal = op.distribution.data.endswith("normal")
    key, counter = np.asarray(instruction_key(op.loc.name), np.uint64), np.zeros(2, np.uint64)
    bits = _philox_bits(key, counter, (size * (2 if normal else 1),), False)[0].astype(np.uint32)
    if normal:
        u, v = _unit(bits[:size]), _unit(bits[size:])
        radius = np.sqrt(np.log(1 - u) * np.float32(-2))
        value = radius * np.cos(v * np.float32(2 * np.pi))
        return narrow((value * second.astype(np.float32) + first.astype(np.float32)).reshape(dims), dtype)
    if op.shape.numpy_dtype.kind in "iu":
        width = (second - first).astype(np.uint32)
        rest = bits % width if width else bits
        return narrow((first + rest.astype(op.shape.numpy_dtype)).reshape(dims), dtype)
    start, end = first.astype(np.float32), second.astype(np.float32)
    scaled = narrow((start + _unit(bits) * (end - start)).reshape(dims), dtype)
    return narrow(np.where(scaled.astype(np.float32) < end, scaled, first), dtype)


INITIAL_STATE = 0x7012395
"""128-bit state with which every run starts; a new executable of XLA's CPU client starts with it, too."""


def updates_before(op: hlo.RngGetAndUpdateStateOp) -> int:
    """The sum of the deltas of the updates above ``op`` in its computation."""
    total, above = 0, op.prev_op
    while above is not None:
        if isinstance(above, hlo.RngGetAndUpdateStateOp):
            total += above.delta.data
        above = above.prev_op
    return total


def rng_get_and_update_state(op: hlo.RngGetAndUpdateStateOp) -> Array:
    """The state before the update, low word first."""
    state = INITIAL_STATE + updates_before(op)
    return np.array([state & (1 << 64) - 1, state >> 64], np.uint64)


RANDOM: dict[str, Callable[..., Value]] = {
    "rng": rng,
    "rng-bit-generator": rng_bit_generator,
    "rng-get-and-update-state": rng_get_and_update_state,
}
