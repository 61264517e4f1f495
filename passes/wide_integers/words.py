"""What becomes of 64-bit values: two u32 arrays, or one of 32 bits where that is enough or all that is kept."""

from collections.abc import Sequence
from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import argument_block, defining_op, ops_of, with_dtypes
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.intervals import NARROW, inside, narrow_range
from neuronx_cc.passes.analysis.ranges import Ranges
from neuronx_cc.passes.analysis.values import constant_of, splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.wide_integers import arithmetic
from neuronx_cc.passes.wide_integers.arithmetic import Pair
from neuronx_cc.passes.wide_integers.warnings import Warnings

VIEWS = (hlo.ViewOp, hlo.IdentityOp, hlo.ConcatenateOp)


def is_wide(type_: hlo.Attribute) -> bool:
    return isinstance(type_, hlo.ArrayType) and type_.data.dtype in NARROW


def word(type_: hlo.Attribute) -> hlo.Attribute:
    assert isinstance(type_, hlo.ArrayType)
    return hlo.array_type("u32", type_.data.dims)


class Words:
    """The words of 64-bit values, made where they are first asked for."""

    def __init__(self, module: HloModule, ranges: Ranges, exact: bool):
        self.module, self.ranges, self.exact = module, ranges, exact
        self.warnings = Warnings(module, ranges, exact)
        self.words: dict[Value, Pair] = {}
        self.short: dict[Value, Value] = {}
        """Values in 32 bits."""
        self.asked = set() if exact else _asked(module)
        self.dead: list[hlo.Operation] = []
        self.done: set[hlo.Operation] = set()
        """Elements of results that were taken care of with these."""
        self.pairs: dict[hlo.HloOp, str] = {}
        """Kinds of the reductions of pairs, which depend on more than the computation."""
        self.kinds: dict[str, str] = {}
        """What computations on scalars do (``combining.kind_of``)."""
        self.widths: dict[str, list[bool]] = {}
        """Which results of theirs are two words (``combining.whole_elements``)."""
        self.devices = prod(device_counts(module))

    def is_whole(self, value: Value) -> bool:
        """Whether ``value``, of 64 bits, becomes two words."""
        if not self.exact:
            return value in self.asked
        return not inside(self.ranges.of(value), narrow_range(hlo.shape_of(value).dtype))

    def pair(self, b: Build, value: Value) -> Pair:
        """The words of ``value``; those of what has 32 bits extend it."""
        if value not in self.words:
            shape, number = hlo.shape_of(value), splat_number(value, self.module)
            if number is not None or constant_of(value, self.module) is not None:
                b = Build(self.module, b.anchor, hlo.loc_of(value))
            if number is not None:
                bits = int(number)
                self.words[value] = (
                    b.number(bits & 0xFFFFFFFF, "u32", shape.dims),
                    b.number(bits >> 32 & 0xFFFFFFFF, "u32", shape.dims),
                )
            elif (array := constant_of(value, self.module)) is not None:
                both = np.ascontiguousarray(array).reshape(-1).view("<u4").reshape(*shape.dims, 2)
                self.words[value] = b.array(both[..., 0], "u32"), b.array(both[..., 1], "u32")
            else:
                self.words[value] = arithmetic.extended(b, self.low(b, value))
        return self.words[value]

    def low(self, b: Build, value: Value) -> Value:
        """``value`` in 32 bits, s32 or u32; of any other type, itself."""
        if not is_wide(value.type):
            return value
        if value not in self.short:
            shape, number = hlo.shape_of(value), splat_number(value, self.module)
            self.warnings.cut(value)
            if number is not None or constant_of(value, self.module) is not None:
                b = Build(self.module, b.anchor, hlo.loc_of(value))
            if number is not None:
                dtype = NARROW[shape.dtype]
                wrapped = np.asarray(int(number) & 0xFFFFFFFF, np.uint32).view(NUMPY_DTYPE[dtype])
                self.short[value] = b.number(wrapped.item(), dtype, shape.dims)
            elif (array := constant_of(value, self.module)) is not None:
                dtype = NARROW[shape.dtype]
                self.short[value] = b.array(array.astype(NUMPY_DTYPE[dtype]), dtype)
            elif argument_block(value) is not None and not self.exact:
                self.short[value] = b.convert(value, NARROW[shape.dtype])
            else:
                self.short[value] = arithmetic.cast(b, self.words[value][0], NARROW[shape.dtype])
        return self.short[value]

    def saturated(self, b: Build, value: Value) -> Value:
        """``value`` in 32 bits: the end of their range where it lies outside."""
        if not is_wide(value.type):
            return value
        dtype = NARROW[hlo.shape_of(value).dtype]
        least, most = narrow_range(dtype)
        number = splat_number(value, self.module)
        if number is not None:
            b = Build(self.module, b.anchor, hlo.loc_of(value))
            return b.number(min(max(int(number), least), most), dtype, hlo.shape_of(value).dims)
        if not self.exact or not self.is_whole(value):
            return self.low(b, value)
        pair, signed = self.pair(b, value), dtype == "s32"
        for bound, choose in ((least, arithmetic.maximum), (most, arithmetic.minimum)):
            pair = choose(b, pair, arithmetic.number_like(b, bound, pair), signed)
        return arithmetic.cast(b, pair[0], dtype)

    def becomes(self, b: Build, op: hlo.HloOp, result: Pair | Value) -> None:
        """``result`` is what ``op``, of 64 bits, gives: words, or 32 bits."""
        value = op.results[0]
        if not isinstance(result, tuple):
            self.short[value] = result
        elif self.is_whole(value):
            self.words[value] = result
        else:
            self.short[value] = arithmetic.cast(b, result[0], NARROW[op.shape.dtype])
        self.dead.append(op)

    def flattened(self, b: Build, values: Sequence[Value], whole: Sequence[bool]) -> list[Value]:
        """The elements of a tuple, of which ``whole`` are two words."""
        found: list[Value] = []
        for value, two in zip(values, whole, strict=True):
            found += self.pair(b, value) if two else [self.low(b, value)]
        return found

    def given(self, b: Build, value: Value) -> Pair:
        """The words of a 64-bit ``value`` in memory."""
        dims = hlo.shape_of(value).dims
        both = b.op(hlo.BitcastConvertOp, (value,), "u32", (*dims, 2))
        low, high = (b.reshape(b.slice(both, len(dims), place, place + 1), dims) for place in (0, 1))
        return low, high

    def stored(self, b: Build, value: Value) -> Value:
        """``value`` with its 64 bits side by side."""
        if argument_block(value) is not None:
            return value
        b, shape = Build(self.module, b.anchor, hlo.loc_of(value)), hlo.shape_of(value)
        if not self.is_whole(value):
            return b.convert(self.low(b, value), shape.dtype)
        words = [b.reshape(part, (*shape.dims, 1)) for part in self.pair(b, value)]
        return b.op(hlo.BitcastConvertOp, (b.concatenate(words, shape.rank),), shape.dtype, shape.dims)


def flat_types(types: Sequence[hlo.Attribute], whole: Sequence[bool]) -> tuple[hlo.Attribute, ...]:
    """``types`` with two u32 arrays for each that is ``whole``, and 32 bits for the other 64-bit ones."""
    found: list[hlo.Attribute] = []
    for type_, two in zip(types, whole, strict=True):
        found += [word(type_)] * 2 if two else [with_dtypes(type_, NARROW)]
    return tuple(found)


def _asked(module: HloModule) -> set[Value]:
    """Values of the entry whose words are all there (read, constant, bit casts, or views) and asked for: by bit casts,
    or as results."""
    entry = module.entry
    known: set[Value] = {arg for arg in entry.block.args if is_wide(arg.type)}
    for op in ops_of(entry.block):
        given = isinstance(op, hlo.ConstantOp | hlo.BitcastConvertOp)
        if is_wide(op.results[0].type) and (given or (isinstance(op, VIEWS) and all(x in known for x in op.operands))):
            known.add(op.results[0])
    results = defining_op(entry.root)
    asked: set[Value] = {entry.root, *(results.operands if isinstance(results, hlo.TupleOp) else ())} & known
    for op in reversed(list(ops_of(entry.block))):
        if isinstance(op, hlo.BitcastConvertOp) or (isinstance(op, VIEWS) and op.results[0] in asked):
            asked.update(x for x in op.operands if x in known)
    return asked
