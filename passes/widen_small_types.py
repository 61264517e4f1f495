"""Gives values of types that the core has not (2- and 4-bit integers, 8-bit floats of other chips) types that it has.

Input: an inlined module. Output: no such value but the entry's parameters and results, which keep their types. A small
integer is carried as the s8 or u8 number that it is, a small float as its code, a u8; what moves elements moves those.
What computes does so on the integers, wrapped afterwards, or in FP32, encoded afterwards; contractions of floats take
BF16, which holds them all. Computations of reductions, windows, scatters and sorts get FP32 numbers: like other narrow
sums, those of 8-bit floats are rounded once.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import (
    copy_op,
    defining_op,
    erase,
    has_dtype,
    ops_of,
    replace,
    retype,
    values_of,
    with_dtypes,
)
from neuronx_cc.ir.small_types import COMPUTED
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, bits, itemsize
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.values import computation_kind
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.eight_bit_floats import DTYPES, decode, encode, encode_stochastically
from neuronx_cc.passes.expansions.sub_byte_integers import BITS, BYTE, clamped, low_bits, packed, unpacked, wrapped
from neuronx_cc.passes.manager import PassContext

CARRIED = {**BYTE, **dict.fromkeys(DTYPES, "u8")}

MOVES = (hlo.MovementOp, hlo.ExchangeOp, hlo.RegionOp, hlo.TupleOp, hlo.GetTupleElementOp)
"""Ops that never look at elements."""
SUBNORMAL = frozenset(["f8e5m2fnuz"])
"""Types some of whose numbers are subnormal in FP16."""


def run(module: HloModule, context: PassContext) -> None:
    del context
    computations = list(module.computations())
    if any(has_dtype(value.type, CARRIED) for computation in computations for value in values_of(computation)):
        widener = _Widener(module)
        for computation in computations:
            widener.computation(computation)


class _Widener:
    """Rewrites computations, callees first; remembers which small type stands behind a value."""

    def __init__(self, module: HloModule):
        self.module = module
        self.small: dict[Value, str] = {}
        """Carried value -> the type that it had."""
        ops = [op for computation in module.computations() for op in ops_of(computation.block)]
        callers = [op for op in ops if not isinstance(op, hlo.RegionOp)]
        self.scalar = {name for op in callers for name in called_names(op)}
        """Computations on scalars, whose values are computed ones."""
        self.kinds = {c.computation_name: computation_kind(c) for c in module.computations()}

    def computation(self, computation: hlo.ComputationOp) -> None:
        if computation.computation_name in self.scalar:
            self._scalars(computation)
            return
        ops, wanted, first = list(ops_of(computation.block)), computation.root.type, computation.block.first_op
        for index, argument in enumerate(computation.block.args):
            if not has_dtype(argument.type, CARRIED):
                continue
            if computation.is_entry.data:
                assert first is not None
                self._read(Build(self.module, first, computation.parameter_loc(index)), argument)
            else:
                self._carry(argument)
        for op in ops:
            if has_dtype(op.results[0].type, CARRIED) or any(operand in self.small for operand in op.operands):
                self._widen(op)
        if computation.is_entry.data:
            self._write(computation, wanted)

    # the edge of the program

    def _read(self, b: Build, argument: Value) -> None:
        shape = hlo.shape_of(argument)
        uses = [(use.operation, use.index) for use in argument.uses]
        if shape.dtype in BITS:  # the runtime sees to it that bytes are the numbers
            value = b.convert(argument, BYTE[shape.dtype])
        else:
            value = b.op(hlo.BitcastConvertOp, (argument,), "u8", shape.dims)
        self.small[value] = shape.dtype
        for user, index in uses:
            user.operands[index] = value

    def _write(self, entry: hlo.ComputationOp, wanted: hlo.Attribute) -> None:
        pack, last = defining_op(entry.root), entry.block.last_op
        assert last is not None
        if isinstance(wanted, hlo.TupleType):
            assert isinstance(pack, hlo.TupleOp)
            b = Build(self.module, pack, pack.loc)
            pack.operands = [self._stored(b, x, type_) for x, type_ in zip(pack.operands, wanted.data, strict=True)]
            retype(entry.root, wanted)
        else:
            last.operands = [self._stored(Build(self.module, last, hlo.loc_of(entry.root)), entry.root, wanted)]

    def _stored(self, b: Build, value: Value, wanted: hlo.Attribute) -> Value:
        if value.type == wanted:
            return value
        dtype = self.small[value]
        if dtype in BITS:
            return b.typed(hlo.ConvertOp, [low_bits(b, value, BITS[dtype])], wanted)
        return b.typed(hlo.BitcastConvertOp, [value], wanted)

    # computations on scalars

    def _scalars(self, computation: hlo.ComputationOp) -> None:
        """Small floats are FP32 numbers all along; small integers are wrapped, unless the caller does it."""
        wraps = not self.kinds[computation.computation_name]
        for argument in computation.block.args:
            retype(argument, with_dtypes(argument.type, COMPUTED))
        for op in list(ops_of(computation.block)):
            result = op.results[0]
            dtype = result.type.data.dtype if isinstance(result.type, hlo.ArrayType) else ""
            if isinstance(op, hlo.ConstantOp) and dtype in COMPUTED:
                self._constant(op, COMPUTED[dtype])
            elif (dtype in COMPUTED and isinstance(op, hlo.HighBitsOp | hlo.BitcastConvertOp)) or (
                dtype in BITS and isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype in FLOATS
            ):
                raise _refusal(op, dtype)
            retype(result, with_dtypes(result.type, COMPUTED))
            if wraps and dtype in BITS and not isinstance(op, (hlo.InRangeOp, *MOVES, hlo.ConstantOp)):
                self._after(op, result, partial(wrapped, dtype=dtype))

    def _after(self, op: hlo.HloOp, result: Value, make: Callable[[Build, Value], Value]) -> Value:
        """``make(result)`` below ``op`` in the place of ``result``."""
        assert op.next_op is not None
        uses = [(use.operation, use.index) for use in result.uses]
        made = make(Build(self.module, op.next_op, op.loc), result)
        for user, index in uses:
            user.operands[index] = made
        return made

    # ops

    def _widen(self, op: hlo.HloOp) -> None:
        result = op.results[0]
        dtype = result.type.data.dtype if isinstance(result.type, hlo.ArrayType) else ""
        if isinstance(op, hlo.StochasticConvertOp) and self._is_rounded(op, dtype):
            self._round_stochastically(op, dtype)
        elif isinstance(op, hlo.RandomOp | hlo.StochasticConvertOp):
            raise _refusal(op, dtype or "a small type")
        elif isinstance(op, hlo.ConstantOp):
            self._constant(op, CARRIED[dtype])
            self._carry(result)
        elif isinstance(op, hlo.BitcastConvertOp):
            self._bits(op)
        elif isinstance(op, MOVES):
            self._carry(result)
        elif isinstance(op, hlo.ScatterOp) and self._replaces(op):
            op.properties["to_apply"] = hlo.StrsAttr((self._replacement(op, CARRIED.get(dtype, dtype)),))
            self._carry(result)
        elif dtype in BITS and isinstance(op, hlo.HighBitsOp):
            self._becomes(op, self._of_bits(Build.before(self.module, op), op, dtype), dtype)
        elif isinstance(op, hlo.ReducePrecisionOp) and dtype in SUBNORMAL:
            self._reduce_precision(op, dtype)
        else:
            self._compute(op)

    def _carry(self, value: Value) -> None:
        if isinstance(value.type, hlo.ArrayType) and value.type.data.dtype in CARRIED:
            self.small[value] = value.type.data.dtype
        retype(value, with_dtypes(value.type, CARRIED))

    def _becomes(self, op: hlo.HloOp, value: Value, dtype: str) -> None:
        if dtype in CARRIED:
            self.small[value] = dtype
        replace(op, value)

    def _constant(self, op: hlo.ConstantOp, dtype: str) -> None:
        array = self.module.constants[op.value.data]
        small = op.shape.dtype
        as_codes = small in DTYPES and dtype == "u8"
        held = array.view(np.uint8) if as_codes else array.astype(NUMPY_DTYPE[dtype])
        op.properties["value"] = hlo.ConstantAttr(self.module.constants.add(held, dtype))

    def _replaces(self, op: hlo.ScatterOp) -> bool:
        """Whether a scatter of one array replaces elements."""
        (name,) = op.to_apply.data
        body = self.module.computation(name)
        return len(op.operands) == 3 and body.root is body.block.args[1]

    def _replacement(self, op: hlo.ScatterOp, dtype: str) -> str:
        """The same computation of what elements are carried as: others may fold numbers with that of ``op``."""
        name, scalar = f"replace.{dtype}.scalar", hlo.array_type(dtype, ())
        if all(computation.computation_name != name for computation in self.module.computations()):
            made, _ = Build.before(self.module, op).computation(name, [scalar, scalar], shared=True)
            made.block.last_op.operands = [made.block.args[1]]  # type: ignore[union-attr]
        return name

    def _number(self, b: Build, value: Value, dtype: str = "f32") -> Value:
        """What a carried value stands for: an s8 or u8 array, or one of ``dtype``."""
        small = self.small.get(value)
        if small is None or small in BITS:
            return value
        return b.convert(decode(b, value, small), dtype)

    def _compute(self, op: hlo.HloOp) -> None:
        b = Build.before(self.module, op)
        result, type_ = op.results[0], with_dtypes(op.results[0].type, COMPUTED)
        operands = [self._number(b, operand, self._operand_type(op)) for operand in op.operands]
        if isinstance(op, hlo.ContractionOp):
            operands = [self._like_the_others(b, op, x, old) for x, old in zip(operands, op.operands, strict=True)]
        new = copy_op(op, operands, type_)
        assert op.parent is not None
        op.parent.insert_op_before(new, op)
        value = new.results[0]
        if isinstance(result.type, hlo.ArrayType):
            small = result.type.data.dtype
            self._becomes(op, self._rounded(b, value, op, small), small)
            return
        for use in list(result.uses):
            element = use.operation
            assert isinstance(element, hlo.GetTupleElementOp)
            part = element.results[0]
            assert isinstance(part.type, hlo.ArrayType)
            small = part.type.data.dtype
            element.operands[0] = value
            if small in COMPUTED:
                retype(part, with_dtypes(part.type, COMPUTED))
                made = self._after(element, part, partial(self._rounded, op=op, small=small))
                self.small[made] = small
        erase(op)

    def _is_rounded(self, op: hlo.StochasticConvertOp, dtype: str) -> bool:
        random = op.operands[1]
        return dtype in DTYPES and random not in self.small and itemsize(hlo.shape_of(random).dtype) <= 4

    def _round_stochastically(self, op: hlo.StochasticConvertOp, dtype: str) -> None:
        b = Build.before(self.module, op)
        number = b.convert(self._number(b, op.operands[0]), "f32")
        self._becomes(op, encode_stochastically(b, number, op.operands[1], dtype), dtype)

    def _reduce_precision(self, op: hlo.ReducePrecisionOp, dtype: str) -> None:
        """In FP16, where XLA rounds 8-bit floats: a number may be subnormal there, and fewer exponents lose it."""
        b = Build.before(self.module, op)
        value = self._number(b, op.operand, "f16")
        bits_kept = {"exponent_bits": op.exponent_bits, "mantissa_bits": op.mantissa_bits}
        rounded = b.typed(hlo.ReducePrecisionOp, (value,), value.type, **bits_kept)
        self._becomes(op, encode(b, b.convert(rounded, "f32"), dtype), dtype)

    def _operand_type(self, op: hlo.HloOp) -> str:
        """The element type of decoded floats: BF16 for contractions of 8- and 16-bit ones."""
        dtypes = [hlo.shape_of(operand).dtype for operand in op.operands if operand not in self.small]
        narrow = all(dtype not in FLOATS or itemsize(dtype) == 1 or dtype == "bf16" for dtype in dtypes)
        return "bf16" if isinstance(op, hlo.ContractionOp) and narrow else "f32"

    def _like_the_others(self, b: Build, op: hlo.HloOp, value: Value, old: Value) -> Value:
        """Both operands of a contraction of small floats have one type."""
        decoded = any(self.small.get(operand, "") in DTYPES for operand in op.operands)
        if not decoded or old in self.small or hlo.shape_of(value).dtype not in FLOATS:
            return value
        return b.convert(value, self._operand_type(op))

    def _rounded(self, b: Build, value: Value, op: hlo.HloOp, small: str) -> Value:
        """A computed value as it is carried."""
        if small in DTYPES:
            return encode(b, value, small)
        if small not in BITS or isinstance(op, hlo.InRangeOp) or (isinstance(op, hlo.NotOp) and small.startswith("s")):
            return value
        if isinstance(op, hlo.ConvertOp) and hlo.shape_of(op.operand).dtype in FLOATS:
            return clamped(b, value, small)
        if isinstance(op, hlo.ConvertOp) and self.small.get(op.operand, "") in DTYPES:
            return clamped(b, value, small)
        return wrapped(b, value, small)

    def _of_bits(self, b: Build, op: hlo.HloOp, dtype: str) -> Value:
        """Ops on the bits of integers, without the copies of the sign above them."""
        width = BITS[dtype]
        if isinstance(op, hlo.MulhiOp):
            product = b.mul(*op.operands)
            kind = hlo.ShiftRightArithmeticOp if dtype.startswith("s") else hlo.ShiftRightLogicalOp
            return wrapped(b, b.each(kind, product, b.number_like(width, product)), dtype)
        if isinstance(op, hlo.ShiftRightArithmeticOp):  # the highest bit is a sign in unsigned types, too
            signed = wrapped(b, b.convert(op.operands[0], "s8"), f"s{width}")
            shifted = b.each(hlo.ShiftRightArithmeticOp, signed, b.convert(op.operands[1], "s8"))
            return wrapped(b, b.convert(shifted, BYTE[dtype]), dtype)
        bare = low_bits(b, op.operands[0], width)
        value = b.each(type(op), bare, *op.operands[1:])
        if isinstance(op, hlo.CountLeadingZerosOp):
            value = b.sub(value, b.number_like(8 - width, value))
        return wrapped(b, value, dtype)

    def _bits(self, op: hlo.BitcastConvertOp) -> None:
        """Through arrays of bytes, or of parts of them."""
        b, value = Build.before(self.module, op), op.operand
        source, target = self.small.get(value, hlo.shape_of(value).dtype), op.shape.dtype
        old, new = bits(source), bits(target)
        if source in BITS:
            value = b.convert(value, "u8")
        elif source not in DTYPES and source != "u8":
            dims = hlo.shape_of(value).dims
            value = b.op(hlo.BitcastConvertOp, (value,), "u8", dims if old == 8 else (*dims, old // 8))
        have, want = min(old, 8), min(new, 8)
        dims = op.shape.dims if new <= 8 else (*op.shape.dims, new // 8)
        if have < want:
            value = packed(b, b.reshape(value, (*dims, want // have)), have)
        elif have > want:
            value = b.reshape(unpacked(b, value, have, want), dims)
        value = b.reshape(value, dims)
        if target in BITS:
            value = wrapped(b, b.convert(value, BYTE[target]), target)
        elif target not in DTYPES and target != "u8":
            value = b.typed(hlo.BitcastConvertOp, [value], op.results[0].type)
        if value is op.operand:  # bytes that are one thing here and another one there are two values
            value = b.op(hlo.BitcastConvertOp, (value,), "u8", dims)
        self._becomes(op, value, target)


def _refusal(op: hlo.HloOp, dtype: str) -> CompileError:
    return CompileError("ESPP004", f"{op.opcode} of {dtype} is not supported", "use an 8-bit integer, or bf16", op.loc)
