"""Runs of drawn instruction streams by NumPy and by the kernels of each x86 level of the native core."""

import numpy as np

from neuronx_cc.ir.isa.program import Program, Space
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.native.executor import NativeExecutor
from neuronx_cc.runtime.values import Executor

LEVELS = [name for name in ("base", "avx2", "avx512") if library.level(name)]


def memory_after(program: Program, data: np.ndarray, level: str | None, observed: bool = True) -> Memory:
    """The memories after a run by the kernels of ``level``, None: by NumPy. HBM begins with ``data``, of FP32; memories
    on chip hold 0.5 everywhere. ``observed``: all that is written is kept.
    """
    memory = Memory(program.hbm_bytes)
    memory.poison([])
    for space in (Space.SBUF, Space.PSUM):
        memory.bytes[space].view(np.float32)[:] = 0.5
    memory.array(0, program.hbm_bytes, "f32", data.shape)[...] = data
    executor = Executor(program, memory) if level is None else NativeExecutor(program, memory, level, observed=observed)
    with np.errstate(all="ignore"):
        executor.run()
    executor.end()
    return memory
