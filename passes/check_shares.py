"""Tells what several devices compute alike, because its operands are gathered for it, or summed over the devices.

Input: ``flatten_control``'s form, collectives as ``resolve_collectives`` leaves them. Output: the same module, a
warning for each operator that more devices would share if an all-gather did not stand before it, or an all-reduce
before a contraction, and for random bits of which each device keeps a part; and all of them in the module's header,
where ``as_text()`` shows them. What the program itself wants whole (weights that are not split) is no matter of this
pass, nor is what costs no more than its operands' bytes: elementwise ops and movements, products of matrices with one
vector.
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
    bytes: int
    """Of the arrays that are gathered or summed for it, on each device; of random bits, these."""
    how: str
    """``gathered``, ``summed`` or ``made``."""

    def __str__(self) -> str:
        shape = self.op.results[0].type
        made = f" {hlo.shape_of(self.op.results[0])}" if isinstance(shape, hlo.ArrayType) else ""
        return f"{self.op.opcode}{made} is computed alike on {self.devices} devices: {self.bytes} bytes are {self.how}"


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
    found.sort(key=lambda whole: -whole.bytes)
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
    if isinstance(op, hlo.RngBitGeneratorOp):
        return _made_whole(op, shares)
    kind: tuple[type[hlo.CollectiveOp], ...] = (hlo.AllGatherOp,)
    if isinstance(op, hlo.ContractionOp) and _multiplies_much(op):
        kind = (hlo.AllGatherOp, hlo.AllReduceOp)
    sources: dict[hlo.CollectiveOp, None] = {}
    before = []
    for operand in op.operands:
        after = _exchanges(operand, kind)
        sources.update(dict.fromkeys(after))
        before += [shares.of(each.operands[0]) for each in after] or [shares.of(operand)]
    if not sources or (isinstance(op, hlo.ReduceOp) and all(_one_each(each) for each in sources)):
        return None
    kinds = len(set(shares.of(op.results[0])))
    if kinds >= len(set(shares.join(before))):
        return None
    how = "gathered" if any(isinstance(each, hlo.AllGatherOp) for each in sources) else "summed"
    nbytes = sum(hlo.shape_of(each.results[0]).nbytes for each in sources)
    return Whole(op, shares.devices // kinds, nbytes, how)


def _made_whole(op: hlo.RngBitGeneratorOp, shares: Shares) -> Whole | None:
    """Random bits of which more devices keep a part each than make different ones."""
    kinds, waiting, seen = len(set(shares.of(op.results[0]))), [op.results[0]], set()
    while waiting:
        value = waiting.pop()
        for use in value.uses:
            user = use.operation
            if isinstance(user, hlo.DynamicSliceOp) and len(set(shares.of(user.results[0]))) > kinds:
                return Whole(op, shares.devices // kinds, hlo.shape_of(user.operands[0]).nbytes, "made")
            follows = _is_light(user) or isinstance(user, hlo.GetTupleElementOp)
            if follows and isinstance(user, hlo.HloOp) and user not in seen:
                seen.add(user)
                waiting.append(user.results[0])
    return None


def _multiplies_much(op: hlo.ContractionOp) -> bool:
    """Whether an element of an operand is multiplied more than once on average: not where one operand is a vector."""
    lhs, rhs, out = (hlo.shape_of(each).size for each in (*op.operands[:2], op.results[0]))
    # of dots without batch dims: (m k) (k n) (m n) is the square of the multiplications
    return lhs * rhs * out > (lhs + rhs) ** 2


def _one_each(op: hlo.CollectiveOp) -> bool:
    """Whether every device has one row: what it has reduced, which all of them combine."""
    return isinstance(op, hlo.AllGatherOp) and hlo.shape_of(op.operands[0]).dims[op.all_gather_dimension.data] == 1


def _exchanges(value: hlo.SSAValue, kind: tuple[type[hlo.CollectiveOp], ...]) -> list[hlo.CollectiveOp]:
    """The collectives of this kind that ``value`` is made of by light ops."""
    found: dict[hlo.CollectiveOp, None] = {}
    seen: set[hlo.SSAValue] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        op = defining_op(value)
        if value in seen or op is None:
            continue
        seen.add(value)
        if isinstance(op, kind):
            found[op] = None
        elif _is_light(op):
            waiting += op.operands
    return list(found)
