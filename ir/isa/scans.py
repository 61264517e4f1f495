"""What the scan instructions compute: one small NumPy function each.

Same form as ``semantics``. Scans run along the free elements of each partition in the order of the access pattern,
which may walk backwards. Source: hardware sheet 3.4 (``tensor_tensor_scan``).
"""

import numpy as np

from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.isa.elements import F32, STORAGE, Array, State, constant, reader, writer
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.semantics import ARITHMETIC, Kernel, alu


def tensor_tensor_scan(i: Instr, state: State) -> Kernel:
    """``r[k] = op1(op0(a[k], r[k - 1]), b[k])`` with an FP32 state; ``r[-1]`` is the constant or the partition's
    scalar.
    """
    read_a, read_b, write = reader(i.ins[0].dtype), reader(i.ins[1].dtype), writer(i.outs[0].dtype, state)
    first, second, ap = alu(i.alu[0]), alu(i.alu[1]), "ap0" in i.flags
    start = np.float32(0.0 if ap else i.imm[0])
    ufunc = ARITHMETIC.get(i.alu[0])
    running = i.alu[1] == "multiply" and i.alu[0] in ("add", "multiply", "max", "min")

    def run(y: Array, a: Array, b: Array, *scalars: Array) -> None:
        partitions = len(a)
        state_ = scalars[0].reshape(partitions).astype(F32) if ap else np.full(partitions, start, F32)
        values = np.array(read_a(a), F32, order="C").reshape(partitions, -1)
        if running and bool((np.unique(b) == 1).all() if not _repeats(b) else b.flat[0] == 1):
            assert ufunc is not None
            values[:, 0] = ufunc(values[:, 0], state_)
            write(y, ufunc.accumulate(values, axis=1).reshape(y.shape))
            return
        columns, others = values.T.copy(), np.array(read_b(b), F32).reshape(partitions, -1).T.copy()
        for column, other in zip(columns, others, strict=True):
            state_ = second(first(column, state_), other)
            column[...] = state_
        write(y, columns.T.reshape(y.shape))

    return run


def _repeats(x: Array) -> bool:
    """Whether one element is read again and again."""
    return not any(stride for stride, size in zip(x.strides[1:], x.shape[1:], strict=True) if size > 1) and len(x) == 1


def int_scan(i: Instr, state: State) -> Kernel:
    """``r[k] = r[k - 1] op x[k]`` in exact wrapping integers."""
    ufunc, storage = COMBINERS[i.alu[0]], STORAGE[i.ins[0].dtype]
    fixed = constant(i.imm[0], i.ins[0].dtype) if "ap0" not in i.flags else None

    def run(y: Array, x: Array, *scalars: Array) -> None:
        values = np.array(x, storage, order="C").reshape(len(x), -1)
        start = fixed if fixed is not None else scalars[0].reshape(len(x))
        values[:, 0] = ufunc(start, values[:, 0])
        y[...] = ufunc.accumulate(values, axis=1, dtype=storage).reshape(y.shape)

    return run
