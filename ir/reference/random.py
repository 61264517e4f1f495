"""Reference semantics of rng-bit-generator, bit for bit as XLA expands it, and of rng.

ThreeFry-2x32 and Philox-4x32 after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

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
    """(new state, bits). The state is u64: the key, then a 64-bit counter (ThreeFry) or a 64- or 128-bit one (Philox).

    ``rng_default`` is Philox, as on XLA's CPU; a 64-bit counter has the key for its high half.
    """
    result_type = op.results[0].type
    assert isinstance(result_type, hlo.TupleType)
    bits_type = result_type.data[1]
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
    return (np.concatenate([state[:1], counter]), narrow(bits, dtype))


def rng(op: hlo.RngOp, first: Array, second: Array) -> Array:
    """Numbers of ``rng_uniform`` on [first, second) or ``rng_normal`` (mean, deviation), from a fixed seed.

    HLO leaves the generator open, so the values are reproducible here but equal to no other implementation's.
    """
    generator = np.random.Generator(np.random.Philox(0))
    dims, dtype = op.shape.dims, op.shape.dtype
    if op.distribution.data.endswith("normal"):
        return narrow(generator.normal(float(first), float(second), dims), dtype)
    if op.shape.numpy_dtype.kind in "iu":
        return narrow(generator.integers(int(first), int(second), dims), dtype)
    return narrow(generator.uniform(float(first), float(second), dims), dtype)


RANDOM: dict[str, Callable[..., Value]] = {"rng": rng, "rng-bit-generator": rng_bit_generator}
