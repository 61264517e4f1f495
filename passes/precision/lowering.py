"""Gives the FP32 values of one computation the types decided on: ``--auto-cast all``, and rules for results.

Part of the pass ``auto_cast``; the operands of contractions have been cast before. Elementwise ops and data movement
compute in their type, but for those of which integers alone are made (``precision.integers``), those that are made of
integers and constants alone (``precision.from_integers``), those that recurrences meet (``precision.recurrences``), and
those on single numbers, such as the factors of an optimizer's step, which differ little from one; what takes or
replaces a part of an array that is given in FP32, such as one layer of all in a loop, casts that part. Reductions add
in FP32, unless they are told otherwise, and contractions always do: their results are FP32 and are cast where the next
op takes them, or at once where a rule gives the result a type. The other ops (sort, scatter, bitcast-convert, random
numbers, collectives, control flow and its tuples) compute in FP32 on cast values. Inputs and outputs of a computation
keep FP32.

With tf32, types stay f32 and every computed value is rounded by ``reduce-precision(8, 10)``; movement and selection
keep what is rounded already.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, ops_of, retype, viewed
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.analysis.attentions import scores_of
from neuronx_cc.passes.analysis.stored import is_stored
from neuronx_cc.passes.analysis.values import constant_of
from neuronx_cc.passes.expansions.combiners import combiner_in
from neuronx_cc.passes.manager import PassContext
from neuronx_cc.passes.precision import from_integers, integers, recurrences
from neuronx_cc.passes.precision.casts import TF32_BITS, Casts
from neuronx_cc.passes.precision.decisions import Contraction, Decision, is_f32, of_result, sums_in_f32

PARTS = hlo.SliceOp | hlo.DynamicSliceOp | hlo.GatherOp | hlo.DynamicUpdateSliceOp
"""Ops that take or replace a part of their first operand."""

BY_BYTES = hlo.DynamicUpdateSliceOp | hlo.GatherOp
"""Ops that take less time where elements have fewer bytes: never left in FP32, as other movement is."""


MANY = 4
"""How many times the elements of a table are taken for which it is cast first."""
LONG = 128
"""Elements of a row from which it is: long ones take as long as they have bytes."""


class Lowering:
    """Changes one computation; a value is *low* once its own type has been changed from f32."""

    def __init__(self, module: HloModule, context: PassContext, operands: Casts):
        """``operands``: casts that contractions have got."""
        self._module = module
        self._context = context
        self._operands = operands
        self._casts = Casts(module)
        self._low: set[hlo.SSAValue] = set()
        self._exact: set[hlo.SSAValue] = set()
        """f32 values that tf32 holds."""
        self._moved: set[hlo.SSAValue] = set()
        """f32 values that are given ones in another order."""
        self._wide: dict[hlo.SSAValue, hlo.SSAValue] = {}

    def run(self, computation: hlo.ComputationOp) -> None:
        exact = dict.fromkeys(from_integers.made_of_integers(computation, self._module), from_integers.REASON)
        exact |= dict.fromkeys(integers.only_for_integers(computation), integers.REASON)
        held = recurrences.of_recurrences(computation, self._context.options)
        entry = computation is self._module.entry
        left = _moved_out(computation) if entry else frozenset()
        for op in ops_of(computation.block):
            if op.results[0] in self._operands:
                continue
            decision = of_result(op, self._context.options)
            if op in exact and not self._meets_rounded(op, exact[op]):
                decision = Decision("f32", exact[op], True)
            elif not decision.ruled and op in held:
                decision = Decision("f32", recurrences.REASON, True)
            elif not decision.ruled and isinstance(op, hlo.ElementwiseOp) and not op.shape.rank:
                decision = Decision("f32", "a single number", True)
            if not computes_in_any_float(op):
                self._keep(op, decision)
            elif not decision.ruled and (op in left or (entry and self._moves_given(op))):
                op.operands = [self._widened(op, operand) for operand in op.operands]
                self._record(op, "result", "f32", "moved, not computed with")
            elif decision.dtype == "tf32":
                self._round(op, decision)
            elif decision.dtype == "f32":
                self._stay(op, decision)
            else:
                self._lower(op, decision)
        last = computation.block.last_op
        assert last is not None
        last.operands = [self._widened(last, operand) for operand in last.operands]

    def _meets_rounded(self, op: hlo.HloOp, reason: str) -> bool:
        """Whether ``op`` compares what is folded of numbers, and rounded since, with such as are not: no element would
        be the greatest of its row. What is drawn may be less than something else without that.
        """
        if not isinstance(op, hlo.CompareOp) or (
            reason == from_integers.REASON and op.direction.data not in ("EQ", "NE")
        ):
            return False
        rounded = [operand in self._low or operand in self._exact for operand in op.operands]
        return any(rounded) and not all(rounded) and _is_folded(op.operands[rounded.index(True)])

    def _lower(self, op: hlo.HloOp, decision: Decision) -> None:
        if isinstance(op, PARTS) and self._takes_given(op):
            self._lower_part(op, decision)
            return
        op.operands = [self._lowered(op, operand, decision.dtype) for operand in op.operands]
        result = op.results[0]
        if is_f32(result):
            retype(result, hlo.array_type(decision.dtype, op.shape.dims))
            self._low.add(result)
            self._record(op, "result", decision.dtype, decision.reason)

    def _moves_given(self, op: hlo.HloOp) -> bool:
        """Whether ``op`` moves FP32 arrays that are given, and nothing else: what computes with them casts them. Where
        it makes more elements of them, it is to have few bytes for each.
        """
        if not isinstance(op, hlo.MovementOp) or isinstance(op, BY_BYTES) or not is_f32(op.results[0]):
            return False
        arrays = [each for each in op.operands if is_f32(each) and constant_of(each, self._module) is None]
        repeats = not isinstance(op, hlo.ViewOp) and sum(hlo.shape_of(each).size for each in arrays) < op.shape.size
        given = bool(arrays) and not repeats and all(each in self._moved or self._is_given(each) for each in arrays)
        if given:
            self._moved.add(op.results[0])
        return given

    def _takes_given(self, op: hlo.HloOp) -> bool:
        """Whether ``op`` takes or replaces parts of what is given, or few of what is that in another order."""
        whole = op.operands[0]
        if whole not in self._moved:
            return self._is_given(whole)
        few = op.shape.size < MANY * hlo.shape_of(whole).size
        return isinstance(op, hlo.GatherOp) and few and prod(op.slice_sizes.data) < LONG

    def _is_given(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` is an FP32 array in HBM that all of would have to be cast."""
        return (
            is_f32(value) and value not in self._low and is_stored(value) and constant_of(value, self._module) is None
        )

    def _lower_part(self, op: hlo.HloOp, decision: Decision) -> None:
        whole, *others = op.operands
        if isinstance(op, hlo.DynamicUpdateSliceOp):
            part = self._lowered(op, others[0], decision.dtype)
            self._low.add(part)
            others[0] = self._widened(op, part)
        op.operands = [whole, *others]
        if not isinstance(op, hlo.DynamicUpdateSliceOp):
            self._record(op, "result", decision.dtype, decision.reason)
            self._round_result(op, decision.dtype)

    def _round(self, op: hlo.HloOp, decision: Decision) -> None:
        operands = [self._widened(op, operand) for operand in op.operands]
        op.operands = [
            self._casts.rounded(op, operand, "tf32") if is_f32(operand) and operand not in self._exact else operand
            for operand in operands
        ]
        self._exact.update(op.operands)
        if not is_f32(op.results[0]):
            return
        self._record(op, "result", "tf32", decision.reason)
        if isinstance(op, hlo.MovementOp | hlo.ChoosingOp):
            self._exact.add(op.results[0])
        else:
            self._round_result(op, "tf32")

    def _keep(self, op: hlo.HloOp, decision: Decision) -> None:
        """Ops that compute in FP32; their results are rounded where a rule says so."""
        if isinstance(op, hlo.ReducePrecisionOp) and op.mantissa_bits.data <= 10 and op.exponent_bits.data <= 8:
            self._exact.add(op.results[0])
        if isinstance(op, hlo.ReduceOp) and self._adds_narrow(op, decision):
            name = combiner_in(self._module, op.to_apply.data[0], "f32", decision.dtype)
            op.properties["to_apply"] = hlo.StrsAttr((name,))
            self._lower(op, decision)
            return
        op.operands = [self._widened(op, operand) for operand in op.operands]
        result = op.results[0]
        if isinstance(op, hlo.ConstantOp) or not isinstance(result.type, hlo.ArrayType):
            return
        if decision.ruled and is_f32(result) and decision.dtype != "f32" and not isinstance(op, hlo.FormatOp):
            self._record(op, "result", decision.dtype, decision.reason)
            self._round_result(op, decision.dtype)
        elif isinstance(op, Contraction):
            self._record(op, "result", hlo.shape_of(result).dtype, "FP32 accumulation")
        elif is_f32(result):
            reason = "FP32 accumulation" if isinstance(op, hlo.ReduceOp) else f"{op.opcode} stays in FP32"
            self._record(op, "result", "f32", reason)

    def _stay(self, op: hlo.HloOp, decision: Decision) -> None:
        op.operands = [self._widened(op, operand) for operand in op.operands]
        if decision.ruled and is_f32(op.results[0]):
            self._record(op, "result", "f32", decision.reason)

    def _adds_narrow(self, op: hlo.ReduceOp, decision: Decision) -> bool:
        if len(op.operands) != 2 or not is_f32(op.results[0]) or decision.dtype in ("f32", "tf32"):
            return False
        return not sums_in_f32(op, self._context.options)

    def _round_result(self, op: hlo.HloOp, dtype: str) -> None:
        """Users of the result take it rounded."""
        result, following = op.results[0], op.next_op
        assert following is not None
        users = [(use.operation, use.index) for use in result.uses]
        if dtype == "tf32":
            rounded = insert_before(following, hlo.ReducePrecisionOp, (result,), result.type, op.loc, TF32_BITS)
            self._exact.add(rounded)
        else:
            rounded = self._casts.rounded(following, result, dtype)
            self._low.add(rounded)
        for user, index in users:
            user.operands[index] = rounded

    def _lowered(self, anchor: hlo.HloOp, value: hlo.SSAValue, dtype: str) -> hlo.SSAValue:
        is_other = value in self._low and hlo.shape_of(value).dtype != dtype
        return self._casts.rounded(anchor, value, dtype) if is_other or is_f32(value) else value

    def _widened(self, anchor: hlo.Operation, value: hlo.SSAValue) -> hlo.SSAValue:
        if value not in self._low:
            return value
        if value not in self._wide:
            type_ = hlo.array_type("f32", hlo.shape_of(value).dims)
            self._wide[value] = insert_before(anchor, hlo.ConvertOp, (value,), type_, hlo.loc_of(value))
        return self._wide[value]

    def _record(self, op: hlo.HloOp, place: str, dtype: str, reason: str) -> None:
        self._context.precision.append(record(op.loc, op.opcode, place, "f32", dtype, reason))


def _moved_out(computation: hlo.ComputationOp) -> frozenset[hlo.HloOp]:
    """Movement of what nothing but the results of ``computation`` is made of, which are FP32."""
    found = set[hlo.Operation](each for each in reversed(list(computation.block.ops)) if isinstance(each, hlo.ReturnOp))
    for op in reversed(list(ops_of(computation.block))):
        moves = isinstance(op, hlo.TupleOp | hlo.MovementOp) and not isinstance(op, hlo.DynamicUpdateSliceOp)
        moves = moves and not (isinstance(op, hlo.TransposeOp) and _is_attended(op.operand))
        if moves and op.results[0].first_use is not None and all(use.operation in found for use in op.results[0].uses):
            found.add(op)
    return frozenset(op for op in found if isinstance(op, hlo.MovementOp))


def _is_attended(value: hlo.SSAValue) -> bool:
    """Whether an attention makes ``value``: its kernel puts narrow numbers in order in less time."""
    made = viewed(value).owner
    return isinstance(made, hlo.DotOp) and scores_of(made) is not None


def computes_in_any_float(op: hlo.HloOp) -> bool:
    if isinstance(op, hlo.FormatOp) or not isinstance(op.results[0].type, hlo.ArrayType):
        return False
    return isinstance(op, hlo.MovementOp | hlo.ElementwiseOp)


def _is_folded(value: hlo.SSAValue) -> bool:
    """Whether ``value`` repeats or moves what a reduction makes, in any type."""
    while isinstance(op := value.owner, hlo.MovementOp | hlo.ConvertOp | hlo.ReducePrecisionOp):
        value = op.operands[0]
    return isinstance(op, hlo.ReduceOp)
