"""``--auto-cast all``: every FP32 intermediate of a computation becomes the cast type.

Part of the pass ``auto_cast``; dots have been cast before. Elementwise ops and data movement compute in the cast type.
Reductions accumulate in FP32 (unless mixed-precision accumulation is off) and dots do always: their operands are cast
values, their results are FP32 and are cast where the next op takes them. The other ops (sort, scatter, bitcast-convert,
random numbers, collectives, control flow and its tuples) compute in FP32 on cast values. Inputs and outputs of a
computation keep FP32.

With tf32, types stay f32 and every computed value is rounded by ``reduce-precision(8, 10)``; movement and selection
keep what is rounded already.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, ops_of, retype
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.auto_cast import TF32_BITS, Casts, Contraction, code_computations
from neuronx_cc.passes.expansions.combiners import combiner_in
from neuronx_cc.passes.manager import PassContext

MOVEMENT = (
    hlo.BroadcastOp,
    hlo.ReshapeOp,
    hlo.TransposeOp,
    hlo.ReverseOp,
    hlo.SliceOp,
    hlo.PadOp,
    hlo.ConcatenateOp,
    hlo.GatherOp,
    hlo.DynamicSliceOp,
    hlo.DynamicUpdateSliceOp,
    hlo.CopyOp,
    hlo.OptBarrierOp,
)

CHOOSING = (hlo.SelectOp, hlo.ClampOp, hlo.MaximumOp, hlo.MinimumOp, hlo.NegateOp, hlo.AbsOp)
"""Elementwise ops whose result is one of the operands, or its negative."""

COMPUTING = (hlo.ElementwiseUnaryOp, hlo.ElementwiseBinaryOp)

KEPT = (hlo.ReducePrecisionOp, hlo.StochasticConvertOp, hlo.ComplexOp, hlo.RealOp, hlo.ImagOp)
"""Elementwise ops that are about the format itself."""

TF32_EXACT = (*MOVEMENT, *CHOOSING)


def cast_all(module: HloModule, context: PassContext, dtype: str) -> None:
    """Apply the mode to every code computation of ``module``."""
    entry = module.entry
    for index, arg in enumerate(entry.block.args):
        if _is_f32(arg):
            loc = entry.parameter_loc(index)
            context.precision.append(record(loc, "parameter", "result", "f32", "f32", "program input"))
    for computation in code_computations(module):
        if dtype == "tf32":
            _round_all(computation, context)
        else:
            _Lowering(module, context, dtype).run(computation)


class _Lowering:
    """Changes one computation to ``dtype``; a value is *low* once its own type has been changed from f32."""

    def __init__(self, module: HloModule, context: PassContext, dtype: str):
        self.module = module
        self.context = context
        self.dtype = dtype
        self.low: set[hlo.SSAValue] = set()
        self.casts = Casts()
        self.wide: dict[hlo.SSAValue, hlo.SSAValue] = {}

    def run(self, computation: hlo.ComputationOp) -> None:
        for op in ops_of(computation.block):
            if _computes_in_any_float(op):
                self._lower(op)
            elif isinstance(op, hlo.ReduceOp) and not self.context.options.mixed_precision_accumulation:
                self._lower_reduce(op)
            else:
                self._keep(op)
        last = computation.block.last_op
        assert last is not None
        last.operands = [self._widened(last, operand) for operand in last.operands]

    def _lower(self, op: hlo.HloOp) -> None:
        op.operands = [self._lowered(op, operand) for operand in op.operands]
        result = op.results[0]
        if _is_f32(result):
            retype(result, hlo.array_type(self.dtype, op.shape.dims))
            self.low.add(result)
            self._record(op, "result", self.dtype, "--auto-cast all")

    def _lower_reduce(self, op: hlo.ReduceOp) -> None:
        if len(op.operands) != 2 or not _is_f32(op.results[0]):
            self._keep(op)
            return
        op.properties["to_apply"] = hlo.StrsAttr((combiner_in(self.module, op.to_apply.data[0], "f32", self.dtype),))
        self._lower(op)

    def _keep(self, op: hlo.HloOp) -> None:
        if isinstance(op, Contraction):
            return self._keep_contraction(op)
        if not self.low.isdisjoint(op.operands):
            op.operands = [self._widened(op, operand) for operand in op.operands]
        if _is_f32(op.results[0]) and not isinstance(op, hlo.ConstantOp):
            reason = "FP32 accumulation" if isinstance(op, hlo.ReduceOp) else f"{op.opcode} stays in FP32"
            self._record(op, "result", "f32", reason)
        return None

    def _keep_contraction(self, op: Contraction) -> None:
        """Operands of the cast type stay behind their convert; operands of exempt dots are cast values in FP32."""
        op.operands = [self._widened(op, operand) for operand in op.operands]
        self._record(op, "result", hlo.shape_of(op.results[0]).dtype, "FP32 accumulation")

    def _lowered(self, anchor: hlo.HloOp, value: hlo.SSAValue) -> hlo.SSAValue:
        if value in self.low or not _is_f32(value):
            return value
        return self.casts.rounded(anchor, value, self.dtype)

    def _widened(self, anchor: hlo.Operation, value: hlo.SSAValue) -> hlo.SSAValue:
        if value not in self.low:
            return value
        if value not in self.wide:
            type_ = hlo.array_type("f32", hlo.shape_of(value).dims)
            self.wide[value] = insert_before(anchor, hlo.ConvertOp, (value,), type_, hlo.loc_of(value))
        return self.wide[value]

    def _record(self, op: hlo.HloOp, place: str, dtype: str, reason: str) -> None:
        self.context.precision.append(record(op.loc, op.opcode, place, "f32", dtype, reason))


def _computes_in_any_float(op: hlo.HloOp) -> bool:
    if isinstance(op, KEPT) or not isinstance(op.results[0].type, hlo.ArrayType):
        return False
    return isinstance(op, (*MOVEMENT, *CHOOSING, *COMPUTING))


def _is_f32(value: hlo.SSAValue) -> bool:
    return isinstance(value.type, hlo.ArrayType) and value.type.data.dtype == "f32"


def _round_all(computation: hlo.ComputationOp, context: PassContext) -> None:
    """tf32: round every FP32 value that an op computes, and every operand that came from elsewhere unrounded."""
    exact: set[hlo.SSAValue] = set()
    casts = Casts()
    for op in ops_of(computation.block):
        computing = isinstance(op, COMPUTING) and not isinstance(op, KEPT)
        if isinstance(op, hlo.ReducePrecisionOp) or not (computing or isinstance(op, TF32_EXACT)):
            # dots have their operands rounded; reductions and the rest take what is rounded already
            if isinstance(op, hlo.ReducePrecisionOp) and op.mantissa_bits.data <= 10 and op.exponent_bits.data <= 8:
                exact.add(op.results[0])
            continue
        if not isinstance(op.results[0].type, hlo.ArrayType):
            continue
        op.operands = [
            casts.rounded(op, operand, "tf32") if _is_f32(operand) and operand not in exact else operand
            for operand in op.operands
        ]
        exact.update(op.operands)
        result = op.results[0]
        if not _is_f32(result):
            continue
        context.precision.append(record(op.loc, op.opcode, "result", "f32", "tf32", "--auto-cast all"))
        if isinstance(op, TF32_EXACT):
            exact.add(result)
            continue
        following = op.next_op
        assert following is not None
        users = [(use.operation, use.index) for use in result.uses]
        rounded = insert_before(following, hlo.ReducePrecisionOp, (result,), result.type, op.loc, TF32_BITS)
        for user, index in users:
            user.operands[index] = rounded
        exact.add(rounded)
