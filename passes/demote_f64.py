"""Computes FP64 in FP32 where ``--fp64-as-fp32`` asks for it: f64 becomes f32, c128 becomes c64.

Input: an inlined module whose entry returns one array or one ``tuple`` op. Output: no f64 or c128 value but the
entry's parameters and results, which keep their types with conversions after the parameters and before the root (a
c128 array part by part). Constants are rounded. Bits of FP64 numbers are those of the FP32 ones, where 64-bit integers
are exact. One warning says so.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import (
    argument_block,
    defining_op,
    has_dtype,
    ops_of,
    replace,
    retype,
    values_of,
    with_dtypes,
)
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.double_bits import from_bits, to_bits
from neuronx_cc.passes.manager import PassContext

NARROW = {"f64": "f32", "c128": "c64"}
PART = {"c64": "f32", "c128": "f64"}


def run(module: HloModule, context: PassContext) -> None:
    if context.options.fp64_as_fp32 and demote(module, context.options.int64 == "exact"):
        context.warn("ESPP004", "FP64 is computed in FP32 (--fp64-as-fp32)")


def demote(module: HloModule, with_bits: bool = False) -> bool:
    """The same without asking, of modules with calls too; whether there was any FP64. ``with_bits``: 64-bit integers
    are exact.
    """
    values = [value for computation in module.computations() for value in values_of(computation)]
    if not any(has_dtype(value.type, NARROW) for value in values):
        return False
    for computation in module.computations():
        wanted = computation.root.type
        for op in ops_of(computation.block):
            _demote(module, op, with_bits)
        if computation.is_entry.data:
            _convert_parameters(module, computation)
            _convert_results(module, computation, wanted)
        else:
            for arg in computation.block.args:
                retype(arg, with_dtypes(arg.type, NARROW))
    return True


def _demote(module: HloModule, op: hlo.HloOp, with_bits: bool) -> None:
    result = op.results[0]
    if isinstance(op, hlo.BitcastConvertOp) and _is_of_bits(op):
        return _demote_bits(module, op, with_bits)
    type_ = with_dtypes(result.type, NARROW)
    if type_ == result.type:
        return
    if isinstance(op, hlo.ConstantOp):
        assert isinstance(type_, hlo.ArrayType)
        dtype = type_.data.dtype
        array = module.constants[op.value.data].astype(NUMPY_DTYPE[dtype])
        op.properties["value"] = hlo.ConstantAttr(module.constants.add(array, dtype))
    retype(result, type_)


def _is_of_bits(op: hlo.BitcastConvertOp) -> bool:
    """Whether it takes or gives bits of FP64 numbers; its operand may have been demoted before."""
    source, wanted = hlo.shape_of(op.operand), op.shape
    fits = source.size * itemsize(source.dtype) == wanted.size * itemsize(wanted.dtype)
    return not fits or any(has_dtype(value.type, NARROW) for value in (op.operand, op.result))


def _demote_bits(module: HloModule, op: hlo.BitcastConvertOp, with_bits: bool) -> None:
    source, wanted = hlo.shape_of(op.operand), op.shape
    b = Build.before(module, op)
    if with_bits and wanted.dtype == "f64" and source.dtype in ("s64", "u64"):
        replace(op, from_bits(b, op.operand))
    elif with_bits and wanted.dtype in ("s64", "u64") and source.dims == wanted.dims:
        replace(op, to_bits(b, op.operand, wanted.dtype))
    else:
        remedy = "use f32, or integers of 64 bits with --int64 exact"
        raise CompileError("ESPP004", "the bits of FP64 numbers are not available in FP32", remedy, op.loc)


def _convert_parameters(module: HloModule, entry: hlo.ComputationOp) -> None:
    first = entry.block.first_op
    assert first is not None
    for index, arg in enumerate(entry.block.args):
        uses = [(use.operation, use.index) for use in arg.uses]
        if has_dtype(arg.type, NARROW) and uses:
            converted = _converted(Build(module, first, entry.parameter_loc(index)), arg, with_dtypes(arg.type, NARROW))
            for user, at in uses:
                user.operands[at] = converted


def _convert_results(module: HloModule, entry: hlo.ComputationOp, wanted: hlo.Attribute) -> None:
    last = entry.block.last_op
    assert last is not None
    pack = defining_op(entry.root)
    if isinstance(wanted, hlo.TupleType):
        assert isinstance(pack, hlo.TupleOp)
        b = Build(module, pack, pack.loc)
        pack.operands = [_converted(b, x, type_) for x, type_ in zip(pack.operands, wanted.data, strict=True)]
        retype(entry.root, wanted)
    else:
        last.operands = [_converted(Build(module, last, hlo.loc_of(entry.root)), entry.root, wanted)]


def _converted(b: Build, value: Value, wanted: hlo.Attribute) -> Value:
    if value.type == wanted or not isinstance(wanted, hlo.ArrayType):
        return value
    origin = defining_op(value)
    if isinstance(origin, hlo.ConvertOp) and argument_block(origin.operand) and origin.operand.type == wanted:
        return origin.operand  # a parameter that is a result keeps its bits
    source, target = hlo.shape_of(value), wanted.data
    if target.dtype not in PART:
        return b.convert(value, target.dtype)
    parts = [b.op(kind, [value], PART[source.dtype], source.dims) for kind in (hlo.RealOp, hlo.ImagOp)]
    return b.typed(hlo.ComplexOp, [b.convert(part, PART[target.dtype]) for part in parts], wanted)
