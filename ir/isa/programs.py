"""What the GpSimd instructions and the DMA transfers compute: one small NumPy function each.

Same form as ``semantics``: ``f(instr, state)`` returns a function of the operand arrays, results first.
GpSimd instructions other than copies run as programs on its processors and follow HLO's rules exactly.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronx_cc.ir.isa import functions, integers
from neuronx_cc.ir.isa.elements import STORAGE, Array, State, caster, constant, raw, reader, writer
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.semantics import ARITHMETIC, BITVEC, COMPARE, Kernel
from neuronx_cc.ir.types import FLOATS


def affine(counts: tuple[int, ...], imm: tuple[float, ...]) -> Array:
    """``base + sum(step * index)`` over the dims of ``counts`` in wrapping int32; ``imm`` is (base, steps...)."""
    total = np.full(counts, int(imm[0]), np.int64)
    for dim, step in enumerate(imm[1:]):
        index = np.arange(counts[dim], dtype=np.int64) * int(step)
        total += index.reshape(-1, *(1,) * (len(counts) - dim - 1))
    return total.astype(np.int32)


def iota(i: Instr, state: State) -> Kernel:
    values = affine(i.outs[0].counts, i.imm)
    storage = STORAGE[i.outs[0].dtype]
    if storage.kind in "iu":
        values = values.astype(storage)
        return lambda y: np.copyto(y, values)
    write, floats = writer(i.outs[0].dtype, state), values.astype(np.float32)
    return lambda y: write(y, floats)


def affine_select(i: Instr, state: State) -> Kernel:
    keep = COMPARE[i.alu[0]](affine(i.outs[0].counts, i.imm[1:]), 0)
    fill, cast = constant(i.imm[0], i.outs[0].dtype), caster(i.ins[0].dtype, i.outs[0].dtype, state)
    bits, drop = raw(fill), ~keep

    def run(y: Array, x: Array) -> None:
        cast(y, x)
        np.copyto(raw(y), bits, where=drop)

    return run


def int_tensor_tensor(i: Instr, state: State) -> Kernel:
    op, storage, reverse = i.alu[0], STORAGE[i.ins[0].dtype], "reverse" in i.flags
    function = integers.COMPARE.get(op) or integers.BINARY[op]
    fixed = constant(i.imm[0], i.ins[0].dtype) if len(i.ins) == 1 else None

    into = isinstance(function, np.ufunc) and STORAGE[i.outs[0].dtype] == storage and op not in integers.COMPARE

    def run(y: Array, a: Array, *rest: Array) -> None:
        b = fixed if fixed is not None else rest[0].astype(storage, copy=False)
        if into:
            function(b, a, out=y) if reverse else function(a, b, out=y)  # type: ignore[call-arg]
            return
        b = np.broadcast_to(b, a.shape)
        y[...] = function(b, a) if reverse else function(a, b)

    return run


def _integer_unary(op: str, dtype: str) -> Callable[[Array], Any]:
    table: dict[str, Callable[[Array], Any]] = {
        "not": (lambda x: x == 0) if dtype == "pred" else np.bitwise_not,
        "negate": np.negative,
        "abs": np.abs,
        "sign": np.sign,
        "popcnt": integers.population_count,
        "count-leading-zeros": integers.count_leading_zeros,
    }
    return table[op]


def program_unary(i: Instr, state: State) -> Kernel:
    op, dtype = i.alu[0], i.ins[0].dtype
    if dtype not in FLOATS and op in ("not", "negate", "abs", "sign", "popcnt", "count-leading-zeros"):
        whole = _integer_unary(op, dtype)

        def run_integer(y: Array, x: Array) -> None:
            y[...] = whole(x)

        return run_integer
    read, write = reader(dtype), writer(i.outs[0].dtype, state)
    if op == "is-finite":
        return lambda y, x: write(y, np.isfinite(read(x)).astype(np.float32))
    if op == "reduce-precision":
        exponent, mantissa = int(i.imm[0]), int(i.imm[1])
        return lambda y, x: write(y, functions.reduce_precision(read(x), exponent, mantissa))
    function = functions.UNARY[op]
    return lambda y, x: write(y, function(read(x)))


def program_binary(i: Instr, state: State) -> Kernel:
    op, dtype, reverse = i.alu[0], i.ins[0].dtype, "reverse" in i.flags
    if op == "stochastic-convert":
        return _stochastic_convert(i, state)
    read, write = reader(dtype), writer(i.outs[0].dtype, state)
    fixed = constant(i.imm[0], dtype) if len(i.ins) == 1 else None
    if op.startswith("compare-totalorder-"):
        order = integers.COMPARE["compare-" + op.rsplit("-", 1)[1]]

        def run_order(y: Array, a: Array, *rest: Array) -> None:
            b = np.broadcast_to(fixed, a.shape) if fixed is not None else rest[0]
            keys = [integers.total_order_key(x) for x in ((b, a) if reverse else (a, b))]
            write(y, order(*keys).astype(np.float32))

        return run_order
    function = functions.BINARY[op]

    def run(y: Array, a: Array, *rest: Array) -> None:
        b = read(np.broadcast_to(fixed, a.shape) if fixed is not None else rest[0])
        write(y, function(b, read(a)) if reverse else function(read(a), b))

    return run


def _stochastic_convert(i: Instr, state: State) -> Kernel:
    """``x`` rounded up in magnitude where the random bits fall below the part that is cut off."""
    storage = STORAGE[i.outs[0].dtype]
    read = reader(i.ins[0].dtype)

    def run(y: Array, x: Array, random: Array) -> None:
        value = read(x)
        width = random.dtype.itemsize * 8
        if storage.kind in "iu":
            size = np.abs(value.astype(np.float64))
            low = np.floor(size)
            up = np.floor((size - low) * 2.0**width) > raw(random).astype(np.float64)
            info = np.iinfo(storage)
            whole = np.copysign(low + up, value)
            y[...] = np.nan_to_num(np.clip(whole, float(info.min), float(info.max)))
            return
        nearest = value.astype(storage)
        back = nearest.astype(np.float32)
        bits = raw(nearest).astype(np.int64)
        low = np.where(np.abs(back) > np.abs(value), bits - 1, bits)
        below, above = (raw_to(storage, b).astype(np.float64) for b in (low, low + 1))
        fraction = (np.abs(value.astype(np.float64)) - np.abs(below)) / np.abs(above - below)
        up = np.floor(fraction * 2.0**width) > raw(random).astype(np.float64)
        rounded = raw_to(storage, np.where(up, low + 1, low))
        y[...] = np.where(np.isfinite(value) & (back != value), rounded, nearest)

    return run


def raw_to(storage: np.dtype[Any], bits: Array) -> Array:
    """Integers as the bit patterns of ``storage``."""
    return bits.astype(f"u{storage.itemsize}").view(storage)


def convert(i: Instr, state: State) -> Kernel:
    source, target = i.ins[0].dtype, i.outs[0].dtype
    storage = STORAGE[target]
    if STORAGE[source] == storage:
        return caster(source, target, state)
    if target == "pred":
        return lambda y, x: np.copyto(y.view(np.bool_), (x if source not in FLOATS else reader(source)(x)) != 0)
    if target in FLOATS:
        return caster(source, target, state)
    if source in FLOATS:
        return _truncate(reader(source), storage)
    return lambda y, x: np.copyto(y, x, casting="unsafe")


def _truncate(read: Callable[[Array], Array], storage: np.dtype[Any]) -> Kernel:
    info = np.iinfo(storage)
    high = float(info.max) if storage.itemsize < 8 else float(np.nextafter(float(info.max), 0))

    def run(y: Array, x: Array) -> None:
        whole = np.trunc(read(x).astype(np.float64))
        y[...] = np.where(np.isnan(whole), 0, np.clip(whole, float(info.min), high))

    return run


def partition_reduce(i: Instr, state: State) -> Kernel:
    op, dtype = i.alu[0], i.ins[0].dtype
    if op in BITVEC:
        bits = BITVEC[op]
        return lambda y, x: np.copyto(raw(y), bits.reduce(raw(x), axis=0, keepdims=True))
    ufunc = ARITHMETIC[op]
    if dtype not in FLOATS and dtype == i.outs[0].dtype:
        storage = STORAGE[dtype]
        return lambda y, x: np.copyto(y, ufunc.reduce(x, axis=0, keepdims=True, dtype=storage))
    read, write = reader(dtype), writer(i.outs[0].dtype, state)
    return lambda y, x: write(y, ufunc.reduce(read(x), axis=0, keepdims=True))


def partition_broadcast(i: Instr, state: State) -> Kernel:
    cast = caster(i.ins[0].dtype, i.outs[0].dtype, state)
    return lambda y, x: cast(y, np.broadcast_to(x, y.shape))


def dma_copy(i: Instr, state: State) -> Kernel:
    return caster(i.ins[0].dtype, i.outs[0].dtype, state)


def _rows(index: Array, count: int, clamp: bool, skip: bool) -> tuple[Array, Array]:
    """Row numbers, and which partitions take part. An index outside ``range(count)`` without leave is a fault."""
    rows = index.reshape(len(index)).astype(np.int64)
    if clamp:
        return np.clip(rows, 0, count - 1), np.ones(len(rows), np.bool_)
    inside = (rows >= 0) & (rows < count)
    if not skip and not inside.all():
        partition = int(np.argmin(inside))
        raise IndexError(f"index {rows[partition]} of partition {partition} is outside the {count} rows")
    return rows, inside


def dma_gather(i: Instr, state: State) -> Kernel:
    cast, clamp = caster(i.ins[0].dtype, i.outs[0].dtype, state), "clamp" in i.flags

    def run(y: Array, x: Array, index: Array) -> None:
        rows, _ = _rows(index, len(x), clamp, False)
        cast(y, x[rows].reshape(y.shape))

    return run


def dma_scatter(i: Instr, state: State) -> Kernel:
    out, add, skip = i.outs[0].dtype, "add" in i.flags, "skip" in i.flags
    cast, read_x, read_y = caster(i.ins[0].dtype, out, state), reader(i.ins[0].dtype), reader(out)
    write = writer(out, state)

    def run(y: Array, x: Array, index: Array) -> None:
        rows, inside = _rows(index, len(y), False, skip)
        for partition in np.flatnonzero(inside).tolist():
            target, source = y[rows[partition]], x[partition].reshape(y.shape[1:])
            if add:
                write(target[None], (read_y(target) + read_x(source))[None])
            else:
                cast(target[None], source[None])

    return run
