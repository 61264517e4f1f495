"""Makes every 64-bit integer 32 bits wide: s64 -> s32, u64 -> u32. Refuses f64.

Input: an inlined module without tuples. Output: no s64 or u64 value but the entry's parameters and results, which keep
their types with a ``convert`` right behind the parameter or before the root. Values wrap as on the device. What may not
fit is warned about with its location (``intervals`` proves what it can); a u64 constant that needs more than 32
bits is an error (ESFH002), except as a bound (the largest value of its type in a comparison, minimum or maximum), which
becomes the bound of the narrow type. ``bitcast-convert`` between 64-bit parameters or results and their words stays
(``passes.expansions.wide_words``).
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import argument_block, defining_op, insert_before, ops_of, retype
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.intervals import NARROW, Intervals, is_integer, narrow_range, type_range
from neuronx_cc.passes.expansions import wide_words
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    if not context.options.fp64_as_fp32:
        _refuse_f64(module)
    if not any(_is_wide(value.type) for value in _values(module)):
        return
    wide_words.run(module, context)
    for computation in module.computations():
        _warn(module, computation, context)
    for computation in module.computations():
        _narrow(module, computation, context)


def _values(module: HloModule) -> list[hlo.SSAValue]:
    found: list[hlo.SSAValue] = []
    for computation in module.computations():
        found.extend(computation.block.args)
        found.extend(op.results[0] for op in ops_of(computation.block))
    return found


def _refuse_f64(module: HloModule) -> None:
    for value in _values(module):
        if _mentions(value.type, "f64"):
            raise CompileError(
                "ESPP004",
                "element type f64 is not supported on the device",
                "use f32 (jax_enable_x64 off, or dtype=jnp.float32), or compile with --fp64-as-fp32",
                hlo.loc_of(value),
            )


def _mentions(type_: hlo.Attribute, dtype: str) -> bool:
    if isinstance(type_, hlo.TupleType):
        return any(_mentions(part, dtype) for part in type_.data)
    return isinstance(type_, hlo.ArrayType) and type_.data.dtype == dtype


def _is_wide(type_: hlo.Attribute) -> bool:
    if isinstance(type_, hlo.TupleType):
        return any(_is_wide(part) for part in type_.data)
    return isinstance(type_, hlo.ArrayType) and type_.data.dtype in NARROW


def narrowed(type_: hlo.Attribute) -> hlo.Attribute:
    """``type_`` with its 64-bit integers made 32 bits wide."""
    if isinstance(type_, hlo.TupleType):
        return hlo.tuple_type(tuple(narrowed(part) for part in type_.data))
    if isinstance(type_, hlo.ArrayType) and type_.data.dtype in NARROW:
        return hlo.array_type(NARROW[type_.data.dtype], type_.data.dims)
    return type_


# warnings

_PROVED = (
    hlo.AddOp,
    hlo.SubtractOp,
    hlo.MultiplyOp,
    hlo.NegateOp,
    hlo.ShiftLeftOp,
    hlo.IotaOp,
    hlo.ConvertOp,
    hlo.ReduceOp,
)
"""Ops whose result can leave the range that their operands keep."""

_BY_BITS = (hlo.PopcntOp, hlo.CountLeadingZerosOp, hlo.ShiftRightLogicalOp, hlo.MulhiOp)
"""Ops that give other values on 32 bits than on 64."""


def _warn(module: HloModule, computation: hlo.ComputationOp, context: PassContext) -> None:
    if computation.is_entry.data:
        cut = [arg for arg in computation.block.args if _is_wide(arg.type) and _is_cut(arg)]
        names = [hlo.loc_of(arg).name for arg in cut]
        if names:
            context.warn("ESFH002", f"64-bit integer inputs are truncated to 32 bits: {', '.join(names)}")
    intervals = Intervals(module)
    for op in ops_of(computation.block):
        if not is_integer(op.results[0]):
            continue
        low, high = intervals.visit(op)
        dtype = op.shape.dtype
        if dtype not in NARROW:
            continue
        least, most = narrow_range(dtype)
        if isinstance(op, _PROVED) and (low < least or high > most):
            message = (
                f"{op.opcode} on {dtype} may leave the range of {NARROW[dtype]} (bounds {low} to {high}); it wraps"
            )
            context.warn("ESFH002", message, op.loc)
        elif isinstance(op, _BY_BITS):
            context.warn("ESFH002", f"{op.opcode} on {dtype} is computed on 32 bits", op.loc)


# rewriting


def _narrow(module: HloModule, computation: hlo.ComputationOp, context: PassContext) -> None:
    block = computation.block
    result_type = computation.root.type
    for op in ops_of(block):
        if _keeps_words(op):
            continue
        if isinstance(op, hlo.ConstantOp):
            _narrow_constant(module, op, context)
        elif _is_wide(op.results[0].type):
            retype(op.results[0], narrowed(op.results[0].type))
    if computation.is_entry.data:
        _convert_parameters(computation)
        _widen_results(computation, result_type)
        return
    for arg in block.args:
        retype(arg, narrowed(arg.type))


def _keeps_words(op: hlo.Operation) -> bool:
    """Whether ``op`` is a bit cast between 64-bit parameters or results of the program and their words."""
    if not isinstance(op, hlo.BitcastConvertOp) or _is_wide(op.operand.type) == _is_wide(op.results[0].type):
        return False
    return wide_words.at_boundary(op)


def _is_cut(arg: hlo.SSAValue) -> bool:
    """Whether anything but a bit cast reads ``arg``."""
    return arg.first_use is None or not all(_keeps_words(use.operation) for use in arg.uses)


def _convert_parameters(entry: hlo.ComputationOp) -> None:
    first = entry.block.first_op
    assert first is not None
    for arg in entry.block.args:
        if _is_wide(arg.type) and arg.first_use is not None:
            converted = insert_before(first, hlo.ConvertOp, (arg,), narrowed(arg.type), hlo.loc_of(arg))
            producer = defining_op(converted)
            for use in list(arg.uses):
                if use.operation is not producer and not _keeps_words(use.operation):
                    use.operation.operands[use.index] = converted


def _narrow_constant(module: HloModule, op: hlo.ConstantOp, context: PassContext) -> None:
    dtype = op.shape.dtype
    if dtype not in NARROW:
        return
    array = module.constants[op.value.data]
    low, high = narrow_range(dtype)
    if array.size and (int(array.min()) < low or int(array.max()) > high):
        extremes = np.isin(array, [bound for bound in type_range(dtype) if bound])
        out = (array < low) | (array > high)
        if bool((out <= extremes).all()) and _is_bound(op.results[0]):
            array = np.asarray(np.clip(array, low, high))
        elif dtype == "u64":
            raise CompileError(
                "ESFH002", f"u64 constant {array.max()} does not fit 32 bits", "use a smaller constant", op.loc
            )
        else:
            worst = array[out].flat[0]
            context.warn("ESFH002", f"s64 constant {worst} does not fit 32 bits and wraps", op.loc)
    digest = module.constants.add(np.asarray(array.astype(NUMPY_DTYPE[NARROW[dtype]])), NARROW[dtype])
    op.properties["value"] = hlo.ConstantAttr(digest)
    retype(op.results[0], narrowed(op.results[0].type))


def _is_bound(value: hlo.SSAValue) -> bool:
    """Whether ``value`` only ever bounds others."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, hlo.BroadcastOp | hlo.ReshapeOp):
            if not _is_bound(user.results[0]):
                return False
        elif isinstance(user, hlo.ReduceOp):
            if use.index < len(user.operands) // 2:
                return False
        elif not isinstance(user, hlo.MaximumOp | hlo.MinimumOp | hlo.ClampOp | hlo.CompareOp):
            return False
    return True


def _widen_results(entry: hlo.ComputationOp, wanted: hlo.Attribute) -> None:
    """Gives the values that leave the program their types back."""
    last = entry.block.last_op
    assert last is not None
    pack = defining_op(entry.root)
    if isinstance(wanted, hlo.ArrayType):
        last.operands = [_widened(last, entry.root, wanted)]
    elif isinstance(wanted, hlo.TupleType) and isinstance(pack, hlo.TupleOp):
        pack.operands = [_widened(pack, value, type_) for value, type_ in zip(pack.operands, wanted.data, strict=True)]
        retype(entry.root, wanted)


def _widened(anchor: hlo.Operation, value: hlo.SSAValue, wanted: hlo.Attribute) -> hlo.SSAValue:
    if value.type == wanted:
        return value
    source = defining_op(value)
    if isinstance(source, hlo.ConvertOp) and argument_block(source.operand) and source.operand.type == wanted:
        return source.operand
    return insert_before(anchor, hlo.ConvertOp, (value,), wanted, hlo.loc_of(value))
