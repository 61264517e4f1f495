"""Tells what several devices compute alike, because its operands are gathered for it.

Input: ``flatten_control``'s form, collectives as ``resolve_collectives`` leaves them. Output: the same module, a
warning for each operator that more devices would share if an all-gather did not stand before it, and all of them in the
module's header, where ``as_text()`` shows them. What the program itself wants whole (weights that are not split) is no
matter of this pass, nor is what costs no more than its operands' bytes: elementwise ops and movements.
"""

from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.shares import Shares
from neuronx_cc.passes.manager import PassContext

APART = (hlo.TupleOp, hlo.GetTupleElementOp, hlo.RegionOp, hlo.CollectiveOp)
"""Ops that compute nothing themselves, or that devices compute together."""
HEADER = "frontend_attributes"


@dataclass(frozen=True, slots=True)
class Whole:
    """An operator that devices compute alike."""

    op: hlo.HloOp
    devices: int
    """How many compute the same."""
    gathered: int
    """Bytes of the arrays that are gathered for it, on each device."""

    def __str__(self) -> str:
        shape = self.op.results[0].type
        made = f" {hlo.shape_of(self.op.results[0])}" if isinstance(shape, hlo.ArrayType) else ""
        return f"{self.op.opcode}{made} is computed alike on {self.devices} devices: {self.gathered} bytes are gathered"


def run(module: HloModule, context: PassContext) -> None:
    if device_counts(module)[1] == 1:
        return
    shares = Shares(module)
    found = [
        whole
        for computation in module.computations()
        for op in ops_of(computation.block)
        if not _is_light(op) and not isinstance(op, APART) and (whole := _whole(op, shares)) is not None
    ]
    found.sort(key=lambda whole: -whole.gathered)
    for whole in found:
        context.warn("EJAX903", str(whole), whole.op.loc)
    if found and HEADER not in dict(module.header):
        texts = "; ".join(f"{whole} (at {whole.op.loc})" for whole in found).replace('"', "'").replace("\\", "/")
        module.header = (*module.header, (HEADER, f'{{computed_alike="{texts}"}}'))


def _is_light(op: hlo.Operation) -> bool:
    """Whether ``op`` costs no more than its operands' bytes; what a gather reads of a table, its indices say."""
    light = isinstance(op, hlo.ElementwiseOp | hlo.MovementOp | hlo.BitcastConvertOp)
    return light and not isinstance(op, hlo.GatherOp)


def _whole(op: hlo.HloOp, shares: Shares) -> Whole | None:
    gathers: dict[hlo.AllGatherOp, None] = {}
    before = []
    for operand in op.operands:
        after = _gathers(operand)
        gathers.update(dict.fromkeys(after))
        before += [shares.of(each.operands[0]) for each in after] or [shares.of(operand)]
    if not gathers or (isinstance(op, hlo.ReduceOp) and all(_one_each(each) for each in gathers)):
        return None
    kinds = len(set(shares.of(op.results[0])))
    if kinds >= len(set(shares.join(before))):
        return None
    gathered = sum(hlo.shape_of(each.results[0]).nbytes for each in gathers)
    return Whole(op, shares.devices // kinds, gathered)


def _one_each(op: hlo.AllGatherOp) -> bool:
    """Whether every device has one row: what it has reduced, which all of them combine."""
    return hlo.shape_of(op.operands[0]).dims[op.all_gather_dimension.data] == 1


def _gathers(value: hlo.SSAValue) -> list[hlo.AllGatherOp]:
    """The all-gathers that ``value`` is made of by light ops."""
    found: dict[hlo.AllGatherOp, None] = {}
    seen: set[hlo.SSAValue] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        op = defining_op(value)
        if value in seen or op is None:
            continue
        seen.add(value)
        if isinstance(op, hlo.AllGatherOp):
            found[op] = None
        elif _is_light(op):
            waiting += op.operands
    return list(found)
