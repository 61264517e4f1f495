"""Data movement checked bit by bit against NumPy, on any bit patterns, and the transfers that it takes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from generated import Compiled, compile_text, text_of

from neuronx_cc.ir.isa.cost import contiguous_runs
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr

Array = np.ndarray[Any, Any]


def bits(random: np.random.Generator, dtype: str, *dims: int) -> Array:
    """Any bit patterns: NaNs of every payload, infinities, zeros of either sign."""
    kind = np.dtype(jnp.dtype(dtype))
    if dtype == "bool":
        return random.integers(0, 2, dims).astype(bool)
    count = int(np.prod(dims)) * kind.itemsize
    return random.integers(0, 256, count, np.uint8).view(kind).reshape(dims)


def same_bits(function: Any, *inputs: Array, oracle: Any = None) -> Compiled:
    """``function`` as compiled and as NumPy has it, bit for bit; ``oracle``: what NumPy computes instead."""
    compiled = compile_text(text_of(function, *inputs))
    for got, want in zip(compiled.run(inputs), [(oracle or function)(*inputs)], strict=True):
        assert got.shape == want.shape
        assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()
    return compiled


def descriptors(compiled: Compiled) -> int:
    """Runs that the DMAs of a program without loops, or of one iteration of each, consist of."""
    transfers = [r for r in compiled.program.records if isinstance(r, Instr) and r.stream in DMA_STREAMS]
    return sum(contiguous_runs(instr.outs[0], instr.ins[0])[0] for instr in transfers)
