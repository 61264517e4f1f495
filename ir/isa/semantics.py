"""What the instructions of TensorE, VectorE and ScalarE compute: one small NumPy function each.

``f(instr, state)`` specialises an instruction (types, operators, flags) and returns a function of its operand arrays,
results first, which carries it out. Arrays are views of the memories, partition dim first; operands are read before
results are written wherever they overlap.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.extremes import Extreme, maximum, minimum
from neuronx_cc.ir.isa import blas, functions
from neuronx_cc.ir.isa.elements import F32, STORAGE, Array, State, caster, constant, raw, reader, writer
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.types import FLOATS

Kernel: TypeAlias = Callable[..., Any]
"""What it returns is ignored."""
Binary: TypeAlias = Callable[..., Array]

ARITHMETIC: dict[str, np.ufunc | Extreme] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "max": maximum,
    "min": minimum,
}
COMPARE: dict[str, np.ufunc] = {
    "is_equal": np.equal,
    "not_equal": np.not_equal,
    "is_ge": np.greater_equal,
    "is_gt": np.greater,
    "is_le": np.less_equal,
    "is_lt": np.less,
}
BITVEC: dict[str, np.ufunc] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "logical_shift_left": np.left_shift,
    "logical_shift_right": np.right_shift,
}
UNARY_ALU = ("abs", "bitwise_not")


def alu(op: str, reverse: bool = False) -> Binary:
    """``f(x, s, out=None)`` in f32; comparisons give 1 or 0."""
    if op == "abs":
        return lambda x, s, out=None: np.abs(x, out=out)
    ufunc = ARITHMETIC.get(op) or COMPARE[op]
    if op in ARITHMETIC:
        return (lambda x, s, out=None: ufunc(s, x, out=out)) if reverse else ufunc

    def compare(x: Array, s: Array, out: Array | None = None) -> Array:
        result: Array = (ufunc(s, x) if reverse else ufunc(x, s)).astype(F32)
        if out is not None:
            out[...] = result
        return result

    return compare


def _lanes(rank: int) -> Callable[[Array], Array]:
    """Per-partition scalars [P] or [P, 1] as f32 that broadcast over ``rank`` dims."""
    ones = (1,) * (rank - 1)
    return lambda s: s.reshape(len(s), *ones).astype(F32, copy=False)


def load_stationary(i: Instr, state: State) -> Kernel:
    """Borrows a tile that BLAS can read where it is; whoever writes SBUF next must call ``state.settle`` first."""
    read, columns = reader(i.ins[0].dtype), int(np.prod(i.ins[0].counts[1:], dtype=np.int64))
    plain = i.ins[0].dtype == "f32"
    borrows = plain and len(i.ins[0].dims) == 2 and i.ins[0].dims[1][1] == 4
    finite = i.ins[0].dtype not in FLOATS

    def run(x: Array) -> None:
        weights = read(x)
        if plain and not borrows:
            weights = weights.copy()
        state.weights = weights.reshape(len(x), columns)
        state.borrowed, state.finite = borrows, finite

    return run


def multiply_moving(i: Instr, state: State) -> Kernel:
    """A product with the identity is a transpose. The flag ``constant``, which programs cannot have, says that the
    moving tile is the same throughout a run."""
    read, tf32, accumulate = reader(i.ins[0].dtype), "tf32" in i.flags, "accumulate" in i.flags
    columns = int(np.prod(i.ins[0].counts[1:], dtype=np.int64))
    rows, partitions = i.outs[0].counts[0], i.ins[0].counts[0]
    flat = len(i.ins[0].dims) == 2 and (i.ins[0].dtype != "f32" or i.ins[0].dims[1][1] == 4)
    direct = len(i.outs[0].dims) == 2 and i.outs[0].dims[1][1] == 4
    square, constant = partitions == columns and not accumulate, "constant" in i.flags
    seen, transposes = -1, False

    def run(y: Array, x: Array) -> None:
        nonlocal seen, transposes
        weights, moving = state.weights, read(x)
        if weights.shape != (partitions, rows):
            raise ValueError(
                f"the stationary tile is {list(weights.shape)}, the instruction wants [{partitions}, {rows}]"
            )
        if not flat:
            moving = np.ascontiguousarray(moving).reshape(partitions, columns)
        if tf32:
            weights, moving = functions.round_mantissa(weights, 10), functions.round_mantissa(moving, 10)
        if square and not (constant and seen == state.run):
            seen, transposes = state.run, is_identity(moving)
        if transposes and (state.finite or finite(weights)):
            np.add(weights.T, 0, out=y) if direct else np.copyto(y, (weights.T + 0).reshape(y.shape))
        elif direct:
            blas.multiply(weights, moving, y, accumulate)
        else:
            product = np.empty((rows, columns), F32)
            blas.multiply(weights, moving, product, False)
            np.copyto(y, y + product.reshape(y.shape) if accumulate else product.reshape(y.shape))

    return run


_IDENTITY = np.eye(128, dtype=np.float32)


def is_identity(x: Array) -> bool:
    """Whether a square tile is the identity matrix; usually decided by two elements."""
    if x[0, 0] != 1 or x[0, -1] != (len(x) == 1):
        return False
    return not np.not_equal(x, _IDENTITY[: len(x), : len(x)]).any()


def finite(x: Array) -> bool:
    """Whether an array certainly has neither infinities nor NaN (False also for some huge values)."""
    return bool(np.isfinite(np.add.reduce(x, axis=None)))


def tensor_copy(i: Instr, state: State) -> Kernel:
    return caster(i.ins[0].dtype, i.outs[0].dtype, state)


def memset(i: Instr, state: State) -> Kernel:
    value = constant(i.imm[0], i.outs[0].dtype)

    def run(y: Array) -> None:
        y[...] = value

    return run


def tensor_tensor(i: Instr, state: State) -> Kernel:
    op, out = i.alu[0], i.outs[0].dtype
    if op in BITVEC:
        ufunc = BITVEC[op]
        return lambda y, a, b: ufunc(raw(a), raw(b), out=raw(y))
    read_a, read_b = reader(i.ins[0].dtype), reader(i.ins[1].dtype)
    if op in COMPARE and out in ("pred", "u8"):
        ufunc = COMPARE[op]
        return lambda y, a, b: ufunc(read_a(a), read_b(b), out=y.view(np.bool_))
    function, write = alu(op), writer(out, state)
    if out == "f32":
        return lambda y, a, b: function(read_a(a), read_b(b), out=y)
    return lambda y, a, b: write(y, function(read_a(a), read_b(b)))


def _bitvec_scalar(i: Instr) -> Kernel:
    dtype = f"u{STORAGE[i.ins[0].dtype].itemsize}"
    steps = []
    for k, op in enumerate(i.alu):
        value = (
            None if f"ap{k}" in i.flags or op in UNARY_ALU else np.array(int(_immediate(i, k)) & _mask(dtype), dtype)
        )
        steps.append((op, value, f"reverse{k}" in i.flags))

    def run(y: Array, x: Array, *scalars: Array) -> None:
        value, left = raw(x), list(scalars)
        for op, s, reverse in steps:
            if op == "bitwise_not":
                value = ~value
                continue
            if s is None:
                s = raw(left.pop(0)).reshape(len(x), *(1,) * (x.ndim - 1)).astype(dtype)
            value = BITVEC[op](s, value) if reverse else BITVEC[op](value, s)
        raw(y)[...] = value

    return run


def _mask(dtype: str) -> int:
    return (1 << np.dtype(dtype).itemsize * 8) - 1


def _immediate(i: Instr, k: int) -> float:
    """Constant of the k-th operator; operators with an AP operand may have a place holder in ``imm`` or none."""
    if len(i.imm) >= len(i.alu):
        return i.imm[k]
    return i.imm[k - sum(f"ap{j}" in i.flags for j in range(k))] if i.imm else 0.0


def tensor_scalar(i: Instr, state: State) -> Kernel:
    if i.alu[0] in BITVEC or i.alu[0] == "bitwise_not":
        return _bitvec_scalar(i)
    read, write, out = reader(i.ins[0].dtype), writer(i.outs[0].dtype, state), i.outs[0].dtype
    partitions = _lanes(len(i.ins[0].dims))
    functions_ = [alu(op, f"reverse{k}" in i.flags) for k, op in enumerate(i.alu)]
    values = [None if f"ap{k}" in i.flags else np.float32(_immediate(i, k)) for k in range(len(i.alu))]
    if i.alu[0] in COMPARE and len(i.alu) == 1 and out in ("pred", "u8") and not i.flags:
        compare, limit = COMPARE[i.alu[0]], values[0]
        return lambda y, x: compare(read(x), limit, out=y.view(np.bool_))
    direct = out == "f32"

    def run(y: Array, x: Array, *scalars: Array) -> None:
        value, left = read(x), list(scalars)
        for function, s in zip(functions_[:-1], values[:-1], strict=True):
            value = function(value, partitions(left.pop(0)) if s is None else s)
        last = partitions(left.pop(0)) if values[-1] is None else values[-1]
        if direct:
            functions_[-1](value, last, out=y)
        else:
            write(y, functions_[-1](value, last))

    return run


def scalar_tensor_tensor(i: Instr, state: State) -> Kernel:
    read_x, read_y, write = reader(i.ins[0].dtype), reader(i.ins[1].dtype), writer(i.outs[0].dtype, state)
    first, second = (alu(op, f"reverse{k}" in i.flags) for k, op in enumerate(i.alu))
    partitions, ap = _lanes(len(i.ins[0].dims)), "ap0" in i.flags
    value = np.float32(0.0 if ap else i.imm[0])

    def run(y: Array, x: Array, other: Array, *scalars: Array) -> None:
        write(y, second(first(read_x(x), partitions(scalars[0]) if ap else value), read_y(other)))

    return run


def reduced_axes(i: Instr) -> tuple[int, ...]:
    """The trailing dims of the source that the result does not have."""
    outer = len(i.outs[0].dims)
    if i.outs[0].counts != i.ins[0].counts[:outer]:
        outer = 1
    return tuple(range(outer, len(i.ins[0].dims)))


def tensor_reduce(i: Instr, state: State) -> Kernel:
    axes, op, negate = reduced_axes(i), i.alu[0], "negate" in i.flags
    shape = i.outs[0].counts
    if op in BITVEC:
        bits = BITVEC[op]

        def run_bits(y: Array, x: Array) -> None:
            raw(y)[...] = bits.reduce(raw(x), axis=axes).reshape(shape)

        return run_bits
    ufunc, read, write = ARITHMETIC[op], reader(i.ins[0].dtype), writer(i.outs[0].dtype, state)

    def run(y: Array, x: Array) -> None:
        total = ufunc.reduce(read(x), axis=axes).reshape(shape)
        write(y, np.negative(total) if negate else total)

    return run


def copy_predicated(i: Instr, state: State) -> Kernel:
    out, reverse = i.outs[0].dtype, "reverse" in i.flags
    test = np.equal if reverse else np.not_equal
    if len(i.ins) == 1:
        value = constant(i.imm[0], out)
        bits = raw(value)
        return lambda y, pred: np.copyto(raw(y), bits, where=test(pred, 0))
    if STORAGE[i.ins[1].dtype] == STORAGE[out]:
        return lambda y, pred, src: np.copyto(raw(y), raw(src), where=test(pred, 0))
    read, storage = reader(i.ins[1].dtype), STORAGE[out]
    write = writer(out, state)

    def run(y: Array, pred: Array, src: Array) -> None:
        cast = np.empty(y.shape, storage)
        write(cast, read(src))
        np.copyto(raw(y), raw(cast), where=test(pred, 0))

    return run


def transpose(i: Instr, state: State) -> Kernel:
    return lambda y, x: np.copyto(raw(y), raw(x).T)


def reciprocal(i: Instr, state: State) -> Kernel:
    read, write = reader(i.ins[0].dtype), writer(i.outs[0].dtype, state)
    return lambda y, x: write(y, functions.reciprocal(read(x)))


def activation(i: Instr, state: State) -> Kernel:
    read, out = reader(i.ins[0].dtype), i.outs[0].dtype
    write, partitions = writer(out, state), _lanes(len(i.ins[0].dims))
    function = functions.ACTIVATION[i.alu[0]]
    scale = np.float32(i.imm[0] if i.imm else 1.0)
    scale_ap, bias_ap, accumulate = "scale_ap" in i.flags, "bias" in i.flags, "accumulate" in i.flags
    into = isinstance(function, np.ufunc) and out == "f32"
    if function is np.positive and not into:
        function = _same
    axes = tuple(range(1, len(i.outs[0].dims)))

    def run(*operands: Array) -> None:
        y, x = operands[0], operands[2 if accumulate else 1]
        scalars = operands[3 if accumulate else 2 :]
        value = read(x)
        if scale_ap:
            value = value * partitions(scalars[0])
        elif scale != 1:
            value = value * scale
        if bias_ap:
            value = value + partitions(scalars[-1])
        if into:
            result = function(value, out=y)  # type: ignore[call-arg]
        else:
            result = function(value)
            write(y, result)
        if accumulate:
            operands[1][...] = np.add.reduce(result, axis=axes).reshape(operands[1].shape)

    return run


def _same(x: Array) -> Array:
    return x


def nop(i: Instr, state: State) -> Kernel:
    return lambda: None


def reg_load(i: Instr, state: State) -> Kernel:
    """``imm`` here has the register's place in ``state.registers`` after the three public immediates."""
    least, most, place = int(i.imm[1]), int(i.imm[2]), int(i.imm[3])

    def run(x: Array) -> None:
        state.registers[place] = min(max(int(x.reshape(-1)[0]), least), most)

    return run
