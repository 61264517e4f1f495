"""Rewrites ``rng-bit-generator``, ``rng`` and ``rng-get-and-update-state`` as integer arithmetic on 32-bit words.

Input: a module whose 64-bit integers are not narrowed yet. Output: none of the three; 64-bit states are read and
written as pairs of words through ``bitcast-convert``, so that no bit of them is lost. ThreeFry-2x32 and Philox-4x32
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) give the bits of ``ir.reference.random``, which
are XLA's. ``rng`` draws Philox numbers whose key is the checksum of the instruction's name: the same in every run.
"""

from collections.abc import Callable, Sequence
from math import pi, prod
from typing import cast

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.reference.random import INITIAL_STATE, instruction_key, updates_before
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, shape
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements
from neuronx_cc.passes.manager import PassContext, only_for

Wide = tuple[Value, Value]
"""Low and high u32 words of 64-bit integers."""


@only_for(hlo.RandomOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if isinstance(op, hlo.RngBitGeneratorOp):
                _expand_generator(op, _Words(Build.before(module, op)))
            elif isinstance(op, hlo.RngOp):
                _expand_distribution(op, _Words(Build.before(module, op)))
        updates = [op for op in ops_of(computation.block) if isinstance(op, hlo.RngGetAndUpdateStateOp)]
        for op in reversed(updates):  # those above say where one starts
            _expand_state(op, _Words(Build.before(module, op)))


class _Words:
    """32-bit words of arrays of one shape, and 64-bit integers made of two."""

    def __init__(self, build: Build):
        self.build = build

    def constant(self, number: int, like: Value) -> Value:
        return self.build.number_like(number & 0xFFFFFFFF, like)

    def shifted(self, kind: type[hlo.HloOp], value: Value, count: int) -> Value:
        return self.build.each(kind, value, self.constant(count, value))

    def rotated(self, value: Value, count: int) -> Value:
        left = self.shifted(hlo.ShiftLeftOp, value, count)
        return self.build.each(hlo.OrOp, left, self.shifted(hlo.ShiftRightLogicalOp, value, 32 - count))

    def xor(self, first: Value, *others: Value) -> Value:
        for other in others:
            first = self.build.each(hlo.XorOp, first, other)
        return first

    def plus(self, value: Value, number: int) -> Value:
        return self.build.add(value, self.constant(number, value))

    def carried(self, high: Value, total: Value, part: Value) -> Value:
        """``high`` plus the carry of a sum ``total`` of which ``part`` is a term."""
        carry = self.build.convert(self.build.compare(total, part, "LT"), "u32")
        return self.build.add(high, carry)

    def advanced(self, wide: Wide, number: int) -> Wide:
        low = self.plus(wide[0], number)
        return low, self.carried(self.plus(wide[1], number >> 32), low, wide[0])

    def counted(self, start: Wide, count: int) -> Wide:
        """``start + i`` for i below ``count``: vectors."""
        b = self.build
        first = b.broadcast(start[0], (count,))
        low = b.add(first, b.iota((count,), 0, "u32"))
        return low, self.carried(b.broadcast(start[1], (count,)), low, first)

    def spread(self, value: Value, like: Value) -> Value:
        return self.build.broadcast(value, hlo.shape_of(like).dims)

    def interleaved(self, words: Sequence[Value], axis: int) -> Value:
        """The arrays side by side along a new dim ``axis``: chosen element by element, for all lie on one tile."""
        b = self.build
        dims = list(hlo.shape_of(words[0]).dims)
        kept = [dim for dim in range(len(dims) + 1) if dim != axis]
        dims.insert(axis, len(words))
        result = b.broadcast(words[-1], dims, kept)
        place = b.iota(dims, axis)
        for index in reversed(range(len(words) - 1)):
            chosen = b.compare(place, b.number(index, "s32", dims), "EQ")
            result = b.select(chosen, b.broadcast(words[index], dims, kept), result)
        return result

    def parts(self, state: Value) -> list[Wide]:
        """The words of a u64 vector, as scalars."""
        b = self.build
        count = hlo.shape_of(state).dims[0]
        made = defining_op(state)
        if isinstance(made, hlo.BitcastConvertOp) and hlo.shape_of(made.operand).dtype == "u32":
            words = made.operand
        else:
            words = b.op(hlo.BitcastConvertOp, (state,), "u32", (count, 2))
        flat = b.reshape(words, (2 * count,))
        scalars = [b.reshape(b.slice(flat, 0, index, index + 1), ()) for index in range(2 * count)]
        return list(zip(scalars[::2], scalars[1::2], strict=True))

    def joined(self, wides: Sequence[Wide]) -> Value:
        """A u64 vector of scalars."""
        b = self.build
        words = [b.reshape(word, (1,)) for wide in wides for word in wide]
        pairs = b.reshape(b.concatenate(words, 0), (len(wides), 2))
        return b.op(hlo.BitcastConvertOp, (pairs,), "u64", (len(wides),))

    def three_fry(self, counter: Wide, key: Wide) -> Wide:
        """The 20-round block function."""
        b = self.build
        last = self.xor(key[0], key[1], self.constant(0x1BD11BDA, key[0]))
        keys = [self.spread(word, counter[0]) for word in (*key, last)]
        first, second = b.add(counter[0], keys[0]), b.add(counter[1], keys[1])
        for group in range(5):
            for count in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                first = b.add(first, second)
                second = self.xor(self.rotated(second, count), first)
            first = b.add(first, keys[(group + 1) % 3])
            second = b.add(second, self.plus(keys[(group + 2) % 3], group + 1))
        return first, second

    def philox(self, low: Wide, high: Wide, key: Wide) -> list[Value]:
        """The 10-round block function of a 128-bit counter."""
        words = [*low, *high]
        for step in range(10):
            keys = [
                self.spread(self.plus(word, step * weyl), low[0])
                for word, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
            ]
            low0, high0 = self.product(words[0], 0xD2511F53)
            low1, high1 = self.product(words[2], 0xCD9E8D57)
            words = [self.xor(high1, words[1], keys[0]), low1, self.xor(high0, words[3], keys[1]), low0]
        return words

    def product(self, value: Value, factor: int) -> Wide:
        constant = self.constant(factor, value)
        return self.build.mul(value, constant), self.build.each(hlo.MulhiOp, value, constant)


def _expand_generator(op: hlo.RngBitGeneratorOp, words: _Words) -> None:
    state, result_type = hlo.shape_of(op.operand), op.results[0].type
    three = op.algorithm.data == "rng_three_fry"
    lengths = (2,) if three else (2, 3)
    if state.dtype != "u64" or state.rank != 1 or state.dims[0] not in lengths:
        raise CompileError(
            "EVRF064",
            f"{op.algorithm.data}: expected a state of u64[2]{'' if three else ' or u64[3]'}, found {state.dtype}"
            f"{list(state.dims)}",
            "pass a state of that shape",
            op.loc,
        )
    bits = cast(hlo.ArrayType, result_type.data[1] if isinstance(result_type, hlo.TupleType) else result_type).data
    key, *counter = words.parts(op.operand)
    if three:
        made, advanced = _three_fry_bits(words, key, counter[0], bits)
        following = [key, advanced]
    else:
        pair = (counter[0], counter[1] if len(counter) == 2 else key)
        made, next_low, next_high = _philox_bits(words, key, pair, bits)
        following = [key, next_low, next_high][: state.dims[0]]
    if isinstance(result_type, hlo.TupleType):
        replace_elements(op, [words.joined(following), made])
    else:
        replace(op, made)


def _in_type(words: _Words, bits: Value, wanted: hlo.Shape) -> Value:
    """32-bit numbers (or, for 64-bit types, pairs of words in a last dim) as the wanted type."""
    b = words.build
    if NUMPY_DTYPE[wanted.dtype].itemsize == 8:
        return b.op(hlo.BitcastConvertOp, (b.reshape(bits, (*wanted.dims, 2)),), wanted.dtype, wanted.dims)
    bits = b.reshape(bits, wanted.dims)
    return b.convert(bits, wanted.dtype)


def _three_fry_bits(words: _Words, key: Wide, start: Wide, wanted: hlo.Shape) -> tuple[Value, Wide]:
    """(bits, advanced counter). 32-bit numbers are made in two halves along the first even (else longest) dim."""
    b = words.build
    dims, wide = wanted.dims, NUMPY_DTYPE[wanted.dtype].itemsize == 8
    halved, split = list(dims) or [1], 0
    if not wide:
        even = [i for i, size in enumerate(dims) if size % 2 == 0]
        split = even[0] if even else max(range(len(dims)), key=lambda i: dims[i], default=0)
        halved[split] = (halved[split] + 1) // 2
    count = prod(halved)
    advanced = words.advanced(start, count)
    if not wanted.size:
        return b.number(0, wanted.dtype, dims), advanced
    block = words.three_fry(words.counted(start, count), key)
    if wide:
        return _in_type(words, words.interleaved(block, 1), wanted), advanced
    paired = words.interleaved([b.reshape(word, halved) for word in block], split + 1)
    merged = b.reshape(paired, [2 * size if i == split else size for i, size in enumerate(halved)])
    return _in_type(words, b.slice(merged, split, 0, dims[split] if dims else 1), wanted), advanced


def _philox_bits(words: _Words, key: Wide, start: tuple[Wide, Wide], wanted: hlo.Shape) -> tuple[Value, Wide, Wide]:
    """(bits, advanced low and high half of the counter); each block gives four 32-bit neighbours."""
    b = words.build
    wide = NUMPY_DTYPE[wanted.dtype].itemsize == 8
    needed = wanted.size * (2 if wide else 1)
    blocks = -(-needed // 4)
    next_low = words.advanced(start[0], blocks)
    next_high = _carry_over(words, start[1], next_low, start[0])
    if not wanted.size:
        return b.number(0, wanted.dtype, wanted.dims), next_low, next_high
    low = words.counted(start[0], blocks)
    spread = [words.spread(word, low[0]) for word in (*start[0], *start[1])]
    high = _carry_over(words, (spread[2], spread[3]), low, (spread[0], spread[1]))
    block = words.interleaved(words.philox(low, high, key), 1)
    flat = b.slice(b.reshape(block, (4 * blocks,)), 0, 0, needed)
    return _in_type(words, flat, wanted), next_low, next_high


def _carry_over(words: _Words, high: Wide, total: Wide, part: Wide) -> Wide:
    """``high`` plus the carry of the 64-bit sum ``total`` of which ``part`` is a term."""
    b = words.build
    below = b.compare(total[1], part[1], "LT")
    same = b.compare(total[1], part[1], "EQ")
    less = b.compare(total[0], part[0], "LT")
    carry = b.convert(b.each(hlo.OrOp, below, b.each(hlo.AndOp, same, less)), "u32")
    low = b.add(high[0], carry)
    return low, words.carried(high[1], low, high[0])


def _expand_state(op: hlo.RngGetAndUpdateStateOp, words: _Words) -> None:
    """The state at this place of the program: it starts from a constant in every run, and deltas are constants."""
    b, state = words.build, INITIAL_STATE + updates_before(op)
    scalar = b.number(0, "u32")
    parts = [words.constant(state >> shift, scalar) for shift in (0, 32, 64, 96)]
    replace(op, words.joined([(parts[0], parts[1]), (parts[2], parts[3])]))


def _expand_distribution(op: hlo.RngOp, words: _Words) -> None:
    dims, dtype = op.shape.dims, op.shape.dtype
    if not op.shape.size:
        replace(op, words.build.number(0, dtype, dims))
        return
    first, second = op.args
    normal = op.distribution.data.endswith("normal")
    bits = _drawn(words, instruction_key(op.loc.name), op.shape.size * (2 if normal else 1))
    draw: Callable[..., Value] = _normal if normal else _uniform if dtype in FLOATS else _whole
    replace(op, draw(words.build, bits, first, second, op.shape))


def _drawn(words: _Words, key: int, count: int) -> Value:
    b = words.build
    zero = b.number(0, "u32")
    wide = (words.constant(key, zero), words.constant(key >> 32, zero))
    return _philox_bits(words, wide, ((zero, zero), (zero, zero)), shape("u32", (count,)))[0]


def _unit(b: Build, bits: Value) -> Value:
    """f32 in [0, 1) with steps of 2**-23."""
    top = b.each(hlo.ShiftRightLogicalOp, bits, b.number_like(9, bits))
    one = b.each(hlo.OrOp, top, b.number_like(0x3F800000, bits))
    value = b.op(hlo.BitcastConvertOp, (one,), "f32", hlo.shape_of(bits).dims)
    return b.sub(value, b.number_like(1, value))


def _uniform(b: Build, bits: Value, low: Value, high: Value, wanted: hlo.Shape) -> Value:
    """``low + u (high - low)``, below ``high`` also where rounding would reach it."""
    unit = b.reshape(_unit(b, bits), wanted.dims)
    start, end = (b.broadcast(b.convert(bound, "f32"), wanted.dims) for bound in (low, high))
    value = b.convert(b.add(start, b.mul(unit, b.sub(end, start))), wanted.dtype)
    first = b.broadcast(low, wanted.dims)
    return b.select(b.compare(value, b.broadcast(high, wanted.dims), "LT"), value, first)


def _whole(b: Build, bits: Value, low: Value, high: Value, wanted: hlo.Shape) -> Value:
    """``low`` plus the remainder of the bits by the range."""
    width = b.convert(b.sub(high, low), "u32")
    rest = b.each(hlo.RemainderOp, b.reshape(bits, wanted.dims), b.broadcast(width, wanted.dims))
    return b.add(b.broadcast(low, wanted.dims), b.convert(rest, wanted.dtype))


def _normal(b: Build, bits: Value, mean: Value, deviation: Value, wanted: hlo.Shape) -> Value:
    """Box and Muller: ``sqrt(-2 log(1 - u)) cos(2 pi v)``."""
    u, v = (
        b.reshape(_unit(b, b.slice(bits, 0, start, start + wanted.size)), wanted.dims) for start in (0, wanted.size)
    )
    logarithm = b.each(hlo.LogOp, b.sub(b.number_like(1, u), u))
    radius = b.each(hlo.SqrtOp, b.mul(logarithm, b.number_like(-2, u)))
    value = b.mul(radius, b.each(hlo.CosineOp, b.mul(v, b.number_like(2 * pi, v))))
    scale, shift = (b.broadcast(b.convert(x, "f32"), wanted.dims) for x in (deviation, mean))
    return b.convert(b.add(b.mul(value, scale), shift), wanted.dtype)
