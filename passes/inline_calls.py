"""Puts the bodies of calls where they are called, and drops wrappers that compute nothing.

Input: any hlo module. Output: no ``call``, ``fusion``, ``map``, asynchronous pair, ``domain``, ``copy`` or token op,
and no ``conditional`` whose predicate is a constant. Bodies of reduce, scatter, sort, while and the other conditionals
stay computations. Callees come before callers, so one sweep suffices; a body called once is moved, not copied.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, insert_before, ops_of, replace
from neuronx_cc.passes.analysis.calls import called_names, property_names
from neuronx_cc.passes.dce import remove_uncalled
from neuronx_cc.passes.expansions.bodies import apply_body, is_elementwise
from neuronx_cc.passes.manager import PassContext

MOST_COPIES = 1_000_000
"""Ops that inlining may add: calls of calls of calls can name more than any memory holds."""


class _Inliner:
    def __init__(self, module: HloModule):
        self.module = module
        self.copies = 0
        self.computations = {c.computation_name: c for c in module.computations()}
        self.references: Counter[str] = Counter()
        for computation in self.computations.values():
            for op in ops_of(computation.block):
                self.references.update(called_names(op))

    def run(self) -> None:
        for computation in list(self.computations.values()):
            for op in ops_of(computation.block):
                handler = HANDLERS.get(type(op))
                if handler is not None:
                    handler(self, op)

    def body(self, op: hlo.HloOp, name: str) -> hlo.ComputationOp:
        if name not in self.computations:
            raise CompileError("EVRF064", f"{op.opcode} calls computation {name!r}, which the module lacks", loc=op.loc)
        return self.computations[name]

    def expand(self, op: hlo.HloOp, name: str, arguments: Sequence[hlo.SSAValue]) -> hlo.SSAValue:
        """The root of computation ``name`` applied to ``arguments``, built above ``op``."""
        callee = self.body(op, name)
        if len(callee.block.args) != len(arguments):
            raise CompileError(
                "EVRF064",
                f"{op.opcode} passes {len(arguments)} operands to {name!r}, "
                f"which has {len(callee.block.args)} parameters",
                loc=op.loc,
            )
        self.references[name] -= 1
        if self.references[name] == 0:
            return self._move(callee, op, arguments)
        return self._copy(callee, op, arguments)

    def _move(self, callee: hlo.ComputationOp, op: hlo.HloOp, arguments: Sequence[hlo.SSAValue]) -> hlo.SSAValue:
        block = op.parent
        assert block is not None
        for parameter, argument in zip(callee.block.args, arguments, strict=True):
            parameter.replace_all_uses_with(argument)
        for inner in ops_of(callee.block):
            callee.block.detach_op(inner)
            block.insert_op_before(inner, op)
        root = callee.root
        # a parameter that is the root was replaced by its argument
        del self.computations[callee.computation_name]
        erase(callee)
        return root

    def _copy(self, callee: hlo.ComputationOp, op: hlo.HloOp, arguments: Sequence[hlo.SSAValue]) -> hlo.SSAValue:
        block = op.parent
        assert block is not None
        inner_ops = list(ops_of(callee.block))
        self.copies += len(inner_ops)
        if self.copies > MOST_COPIES:
            raise CompileError(
                "EVRF007",
                f"{op.opcode} of {callee.computation_name!r}: inlining all calls makes more than {MOST_COPIES:,} ops",
                "call in a loop, or fewer times",
                loc=op.loc,
            )
        values: dict[hlo.SSAValue, hlo.SSAValue] = dict(zip(callee.block.args, arguments, strict=True))
        for inner in inner_ops:
            self.references.update(called_names(inner))
            copied = copy_op(inner, [values[operand] for operand in inner.operands])
            block.insert_op_before(copied, op)
            values[inner.results[0]] = copied.results[0]
        return values[callee.root]


Handler = Callable[[_Inliner, hlo.HloOp], None]


def _inline_call(inliner: _Inliner, op: hlo.HloOp) -> None:
    (name,) = called_names(op)
    replace(op, inliner.expand(op, name, op.operands))


def _inline_map(inliner: _Inliner, op: hlo.HloOp) -> None:
    """The scalar body, applied to whole arrays; a body with non-elementwise ops is left for the operator check."""
    (name,) = called_names(op)
    body = inliner.body(op, name)
    if not is_elementwise(body):
        return
    (value,) = apply_body(op, body, op.operands, op.shape.dims)
    inliner.references[name] -= 1
    replace(op, value)


def _forward_operand(inliner: _Inliner, op: hlo.HloOp) -> None:
    replace(op, op.operands[0])


def _inline_conditional(inliner: _Inliner, op: hlo.HloOp) -> None:
    assert isinstance(op, hlo.ConditionalOp)
    chooser = defining_op(op.operands[0])
    if not isinstance(chooser, hlo.ConstantOp):
        return
    value = inliner.module.constants[chooser.value.data].item()
    count = len(op.branches.data)
    index = int(not value) if isinstance(value, bool) else value
    if not 0 <= index < count:
        index = count - 1  # HLO runs the last branch for an index out of range
    for skipped, name in enumerate(op.branches.data):
        if skipped != index:
            inliner.references[name] -= 1
    replace(op, inliner.expand(op, op.branches.data[index], (op.operands[1 + index],)))


def _finish_async(inliner: _Inliner, op: hlo.HloOp) -> None:
    start = _start_of(op)
    if isinstance(start, hlo.AsyncStartOp):
        (name,) = called_names(start)
        replace(op, inliner.expand(op, name, start.operands))


def _finish_copy(inliner: _Inliner, op: hlo.HloOp) -> None:
    start = _start_of(op)
    if isinstance(start, hlo.CopyStartOp):
        replace(op, start.operands[0])


def _finish_collective(inliner: _Inliner, op: hlo.HloOp) -> None:
    """``all-reduce-done(all-reduce-start(x))`` is ``all-reduce(x)``; the halves share the properties."""
    start = _start_of(op)
    kind = COLLECTIVES.get(type(start)) if start is not None else None
    if kind is None or start is None:
        return
    declared = property_names(kind)
    properties = {name: attr for name, attr in start.properties.items() if name in declared}
    inliner.references.update(called_names(start))
    replace(op, insert_before(op, kind, start.operands, op.results[0].type, start.loc, properties))


def _start_of(op: hlo.HloOp) -> hlo.HloOp | None:
    start = defining_op(op.operands[0])
    while isinstance(start, hlo.AsyncUpdateOp):
        start = defining_op(start.operands[0])
    return start if isinstance(start, hlo.HloOp) else None


COLLECTIVES: dict[type, type[hlo.HloOp]] = {
    hlo.AllReduceStartOp: hlo.AllReduceOp,
    hlo.AllGatherStartOp: hlo.AllGatherOp,
    hlo.CollectivePermuteStartOp: hlo.CollectivePermuteOp,
}

HANDLERS: dict[type, Handler] = {
    hlo.CallOp: _inline_call,
    hlo.FusionOp: _inline_call,
    hlo.MapOp: _inline_map,
    hlo.ConditionalOp: _inline_conditional,
    hlo.CopyOp: _forward_operand,
    hlo.DomainOp: _forward_operand,
    hlo.AddDependencyOp: _forward_operand,
    hlo.AsyncDoneOp: _finish_async,
    hlo.CopyDoneOp: _finish_copy,
    hlo.AllReduceDoneOp: _finish_collective,
    hlo.AllGatherDoneOp: _finish_collective,
    hlo.CollectivePermuteDoneOp: _finish_collective,
}

WRAPPERS = (
    hlo.AsyncStartOp,
    hlo.AsyncUpdateOp,
    hlo.CopyStartOp,
    hlo.AllReduceStartOp,
    hlo.AllGatherStartOp,
    hlo.CollectivePermuteStartOp,
    hlo.AfterAllOp,
)


def run(module: HloModule, context: PassContext) -> None:
    _Inliner(module).run()
    for computation in module.computations():
        # users first: an update goes before its start
        for op in reversed(list(ops_of(computation.block))):
            if type(op) in WRAPPERS and op.results[0].first_use is None:
                erase(op)
    remove_uncalled(module)
