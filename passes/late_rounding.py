"""What an epilogue makes of 16-bit sums of products is rounded at its end, not after every op.

Input: canonical hlo. Output: a contraction, or convolution, of a 16-bit float type gives FP32, as its sums are, where
elementwise ops of that type follow of which others read one result only; these compute in FP32, and that result is
cast back. So sums leave PSUM through the ops that follow, unrounded: a scale, a bias and an activation are one
instruction. Scores of a softmax stay as they are: attention has forms of its own for them. Does nothing when
mixed-precision accumulation is off. Values have fewer roundings, as XLA allows itself between ops of a fusion
(``xla_allow_excess_precision``).
"""

from collections.abc import Container, MutableMapping
from heapq import heappop, heappush
from itertools import count

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, erase, insert_before, ops_of, replace, users
from neuronx_cc.ir.types import NARROW
from neuronx_cc.passes.accumulate_f32 import record
from neuronx_cc.passes.analysis.convolutions import is_depthwise, is_kernel_gradient
from neuronx_cc.passes.analysis.stored import is_stored
from neuronx_cc.passes.analysis.values import combiner_kind
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.precision.decisions import lowers_all

REASON = "rounded once after a contraction"
MOST = 24
"""Ops that follow one contraction, and those of an epilogue."""
DEPTH = 8
"""Ops between an operand and what was there before the contraction."""

BEFORE = (hlo.ViewOp, hlo.ElementwiseOp)
"""Ops that may stand ahead of a contraction as well as after it, if they do not read its result."""

Kinds = tuple[type[hlo.HloOp], ...]
Places = MutableMapping[hlo.Operation, int]
"""Of the ops in their computation; an op that takes another's place has its number."""


@only_for(hlo.DotOp, hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    options = context.options
    if not options.mixed_precision_accumulation:
        return
    # programs that are written in 16 bits are rounded where they were
    before = (*BEFORE, hlo.ReduceOp) if lowers_all(options) else BEFORE
    for computation in module.computations():
        ops = list(ops_of(computation.block))
        if any(map(_is_narrow_sum, ops)):
            place: Places = {op: at for at, op in enumerate(ops)}
            for op in ops:
                followers = _followers(op, place, before) if _is_narrow_sum(op) else []
                if followers and not _is_score(followers[-1].results[0], module):
                    _widen([op, *followers], place, context)


def _is_narrow_sum(op: hlo.Operation) -> bool:
    if isinstance(op, hlo.ConvolutionOp) and (is_kernel_gradient(op) or is_depthwise(op)):
        return False  # these have no epilogue
    return isinstance(op, hlo.DotOp | hlo.ConvolutionOp) and op.shape.dtype in NARROW and op.shape.size > 0


def _followers(first: hlo.HloOp, place: Places, before: Kinds) -> list[hlo.HloOp]:
    """The ops after ``first``, in order, of which nothing else reads any result but that of the last one."""
    inside: dict[hlo.HloOp, None] = {first: None}
    pending: list[tuple[int, int, hlo.Operation]] = []
    number = count()
    best = 1

    def await_users(op: hlo.HloOp) -> None:
        for user in dict.fromkeys(users(op.results[0])):
            if user in place:  # unlike what ends the computation
                heappush(pending, (place[user], next(number), user))

    await_users(first)
    while pending and len(inside) <= MOST:
        *_, op = heappop(pending)
        if op in inside or not _may_follow(op, first, inside, place, before):
            continue
        assert isinstance(op, hlo.HloOp)
        inside[op] = None
        await_users(op)
        alone = all(user in inside for each in inside if each is not op for user in users(each.results[0]))
        if alone and hlo.shape_of(op.results[0]).dtype in NARROW:
            best = len(inside)
    return list(inside)[1:best]


def _may_follow(op: hlo.Operation, first: hlo.HloOp, inside: Container[object], place: Places, before: Kinds) -> bool:
    """Whether ``op`` computes alike in FP32, with what is made of the sums and what was there before them."""
    if not isinstance(op, hlo.ElementwiseOp) or isinstance(op, hlo.ConvertOp):
        return False
    if op.shape.dims != first.shape.dims or op.shape.dtype not in (first.shape.dtype, "pred"):
        return False
    return all(value.owner in inside or _precedes(value, first, place, before, DEPTH) for value in op.operands)


def _precedes(value: hlo.SSAValue, first: hlo.HloOp, place: Places, before: Kinds, depth: int) -> bool:
    op = value.owner
    if not isinstance(op, hlo.HloOp) or place[op] < place[first] or isinstance(op, hlo.ConstantOp | hlo.IotaOp):
        return True
    if not depth or op is first or not isinstance(op, before):
        return False
    return all(_precedes(operand, first, place, before, depth - 1) for operand in op.operands)


def _is_score(value: hlo.SSAValue, module: HloModule, depth: int = DEPTH) -> bool:
    """Whether the greatest of a row is found of what elementwise ops make of ``value``."""
    for user in users(value):
        if isinstance(user, hlo.ReduceOp) and len(user.operands) == 2 and combiner_kind(user, module) == "maximum":
            return True
        if depth and isinstance(user, hlo.ElementwiseOp) and _is_score(user.results[0], module, depth - 1):
            return True
    return False


def _widen(ops: list[hlo.HloOp], place: Places, context: PassContext) -> None:
    """Let the first of ``ops`` give FP32, those after it compute so, and cast the last one's result."""
    wide: dict[hlo.SSAValue, hlo.SSAValue] = {}
    for op in ops:
        dtype, dims = op.shape.dtype, op.shape.dims
        operands = list(op.operands)
        if op is not ops[0]:
            operands = [_in_f32(op, value, wide, place) for value in operands]
        made = copy_op(op, operands, hlo.array_type("f32" if dtype in NARROW else dtype, dims))
        block = op.parent
        assert block is not None
        block.insert_op_before(made, op)
        wide[op.results[0]], place[made] = made.results[0], place[op]
        if dtype in NARROW:
            context.precision.append(record(op.loc, op.opcode, "result", dtype, "f32", REASON))
    last = ops.pop()
    kept = insert_before(last, hlo.ConvertOp, (wide[last.results[0]],), last.results[0].type, last.loc)
    place[kept.owner] = place[last]  # type: ignore[index]  # an op's result
    replace(last, kept)
    for op in reversed(ops):
        erase(op)


def _in_f32(op: hlo.HloOp, value: hlo.SSAValue, wide: dict[hlo.SSAValue, hlo.SSAValue], place: Places) -> hlo.SSAValue:
    shape = hlo.shape_of(value)
    if value not in wide and shape.dtype in NARROW:
        made = _before_cast(op, value, op.shape.size, place)
        if made is None:
            made = insert_before(op, hlo.ConvertOp, (value,), hlo.array_type("f32", shape.dims), op.loc)
            place[made.owner] = place[op]  # type: ignore[index]  # an op's result
        wide[value] = made
    return wide.get(value, value)


def _before_cast(op: hlo.HloOp, value: hlo.SSAValue, size: int, place: Places) -> hlo.SSAValue | None:
    """``value``, which ``op`` of so many elements reads, as it was before a cast of what lies in HBM, or of less that
    is repeated, as a bias is; None for others: another kernel stores those in 16 bits.
    """
    cast = value.owner
    if isinstance(cast, hlo.ConvertOp):
        shape, kept = hlo.shape_of(cast.operand), is_stored(cast.operand) and cast.result.has_one_use()
        return cast.operand if shape.dtype == "f32" and (kept or shape.size < size) else None
    if not isinstance(cast, hlo.ViewOp) or len(cast.operands) != 1:
        return None
    source = _before_cast(op, cast.operands[0], size, place)
    if source is None:
        return None
    made = copy_op(cast, (source,), hlo.array_type("f32", hlo.shape_of(value).dims))
    block = op.parent
    assert block is not None
    block.insert_op_before(made, op)
    place[made] = place[op]
    return made.results[0]
