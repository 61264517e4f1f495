"""Computes FP64 in FP32 where ``--fp64-as-fp32`` asks for it: f64 becomes f32, c128 becomes c64.

Input: an inlined module whose entry returns one array or one ``tuple`` op. Output: no f64 or c128 value but the
entry's parameters and results, which keep their types with conversions after the parameters and before the root (a
c128 array part by part). Constants are rounded. One warning says so.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import argument_block, defining_op, has_dtype, ops_of, retype, values_of, with_dtypes
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext

NARROW = {"f64": "f32", "c128": "c64"}
PART = {"c64": "f32", "c128": "f64"}


def run(module: HloModule, context: PassContext) -> None:
    if context.options.fp64_as_fp32 and demote(module):
        context.warn("ESPP004", "FP64 is computed in FP32 (--fp64-as-fp32)")


def demote(module: HloModule) -> bool:
    """The same without asking, of modules with calls too; whether there was any FP64."""
    values = [value for computation in module.computations() for value in values_of(computation)]
    if not any(has_dtype(value.type, NARROW) for value in values):
        return False
    for computation in module.computations():
        wanted = computation.root.type
        for op in ops_of(computation.block):
            _demote(module, op)
        if computation.is_entry.data:
            _convert_parameters(module, computation)
            _convert_results(module, computation, wanted)
        else:
            for arg in computation.block.args:
                retype(arg, with_dtypes(arg.type, NARROW))
    return True


def _demote(module: HloModule, op: hlo.HloOp) -> None:
    result = op.results[0]
    if isinstance(op, hlo.BitcastConvertOp) and any(has_dtype(x.type, NARROW) for x in (op.operand, result)):
        raise CompileError("ESPP004", "the bits of FP64 numbers are not available in FP32", "use f32", op.loc)
    type_ = with_dtypes(result.type, NARROW)
    if type_ == result.type:
        return
    if isinstance(op, hlo.ConstantOp):
        assert isinstance(type_, hlo.ArrayType)
        dtype = type_.data.dtype
        array = module.constants[op.value.data].astype(NUMPY_DTYPE[dtype])
        op.properties["value"] = hlo.ConstantAttr(module.constants.add(array, dtype))
    retype(result, type_)


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
