"""That the native core agrees with NumPy: programs of a bench, run by both, and whole memories compared."""

from math import prod

import numpy as np
import pytest

from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.native.executor import NativeExecutor
from neuronx_cc.runtime.values import Executor

built = pytest.mark.skipif(library.load() is None, reason="the native core was not built")
LEVELS = [name for name in ("base", "avx2", "avx512") if library.level(name)]
INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32"]
SPECIAL = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.1754944e-38, 3.4e38),
        *(65520.0, 65519.0, 448.0, 464.0, 1e9, -1e9, 2147483520.0, 2147483648.0, -2147483648.0, 4294967040.0, 1e-7),
        *(4294967296.0, 127.5, 128.5, -128.5, 254.5, 255.5, 32767.5, 65535.5, 2.0**-24, 2.0**-25, 88.7, 89.0, -103.9),
    ],
    np.float32,
)


def values(rng, dtype, counts):
    """Random data, a third of it special."""
    storage, n = STORAGE[dtype], prod(counts)
    if storage.kind in "iu":
        info = np.iinfo(storage)
        wide = rng.integers(info.min, info.max, n, endpoint=True, dtype=storage)
        small = rng.integers(max(info.min, -3), 4, n).astype(storage)
        return np.where(rng.random(n) < 0.5, wide, small).reshape(counts)
    data = (rng.standard_normal(n) * 10 ** rng.uniform(-3, 3, n)).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.where(rng.random(n) < 0.3, rng.choice(SPECIAL, n), data).astype(storage).reshape(counts)


MEMORIES = {}


def execute(program, inputs, level=None):
    """The memory after a run by NumPy, or by the kernels of a level, and what was left to Python.

    Each level has one memory, which its next run overwrites.
    """
    if level not in MEMORIES:
        MEMORIES[level] = Memory(1 << 20)
    memory = MEMORIES[level]
    assert program.hbm_bytes <= memory.size[Space.HBM]
    memory.poison([(0, program.hbm_bytes)])
    for variable, data in zip([v for v in program.variables if v.kind == "input"], inputs, strict=True):
        memory.array(variable.offset, variable.nbytes, variable.dtype, variable.dims)[...] = data
    executor = Executor(program, memory) if level is None else NativeExecutor(program, memory, level)
    executor.run()
    left = {} if level is None else executor._python_steps
    return memory, [program.records[number].op for number in left]


def tiles(memory, ref):
    """The bytes of an operand as its elements."""
    pitch = memory.pitch[ref.space]
    strides = (pitch, *(stride for _, stride in ref.dims[1:]))
    offset = ref.partition * pitch + ref.offset
    return np.ndarray(ref.counts, STORAGE[ref.dtype], memory.bytes[ref.space], offset, strides).copy()


def agree(bench, refs, tolerance=0, native=True, levels=LEVELS):
    """Run the bench's program by NumPy and each level; ``tolerance`` is relative, NaN is NaN, 0 asks for equal bits."""
    bench.program.hbm_bytes = bench.hbm
    expected, _ = execute(bench.program, bench.inputs)
    results = [execute(bench.program, bench.inputs, level) for level in levels]
    for memory, left in results:
        if native:
            assert left == []
        for ref in refs:
            want, got = tiles(expected, ref), tiles(memory, ref)
            if tolerance:
                wide = want.astype(np.float64)
                np.testing.assert_allclose(got.astype(np.float64), wide, rtol=tolerance, atol=tolerance * 1e-37)
                continue
            bits = f"u{want.dtype.itemsize}"
            nan = want != want if want.dtype.kind not in "iub" else np.zeros(want.shape, bool)
            np.testing.assert_array_equal(np.where(nan, want, got).view(bits), want.view(bits))
            if nan.any():
                assert np.isnan(got.astype(np.float32)[nan]).all()
        for space in (Space.SBUF, Space.PSUM):
            assert (results[0][0].bytes[space] == memory.bytes[space]).all()
    return results
