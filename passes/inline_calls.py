"""Puts the bodies of calls where they are called, and drops wrappers that compute nothing.

Input: any hlo module. Output: no ``call``, ``fusion``, ``map``, asynchronous pair, ``domain``, ``copy`` or token op,
and no ``conditional`` whose predicate is a constant, or that has one branch. Bodies of reduce, scatter, sort, while and
the other conditionals stay computations. Callees come before callers, so one sweep suffices; a body called once is
moved, not copied, and expanded where it comes to stand, so that nested calls move each op once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace as with_fields

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, insert_before, ops_of, replace
from neuronx_cc.passes.analysis.calls import called_names, property_names
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.dce import remove_uncalled
from neuronx_cc.passes.expansions.bodies import apply_body, is_elementwise
from neuronx_cc.passes.manager import PassContext

MOST_COPIES = 200_000
"""Ops that calls, loops and branches may repeat: calls of calls of calls can name more than any memory holds."""
REGION_COST = 48
"""Plain ops that compile in the time of a loop or branch, which is barriers and a kernel at least."""


class _Inliner:
    def __init__(self, module: HloModule):
        self.module = module
        self.unfinished = False
        """Whether the body that came last has calls of its own, or branches that its arguments may decide."""
        self.computations = {c.computation_name: c for c in module.computations()}
        self.references: Counter[str] = Counter()
        for computation in self.computations.values():
            for op in ops_of(computation.block):
                self.references.update(called_names(op))
        self.shared = {name for name, count in self.references.items() if count > 1}
        self.moving = {
            name
            for computation in self.computations.values()
            for op in ops_of(computation.block)
            if type(op) in (hlo.CallOp, hlo.FusionOp)
            for name in called_names(op)
            if self.references[name] == 1
        }
        """Computations with one call, which are expanded in their caller."""

    def run(self) -> None:
        for name, computation in list(self.computations.items()):
            if name not in self.moving:
                self._expand_all(computation.block)

    def _expand_all(self, block: hlo.Block) -> None:
        op = block.first_op
        while op is not None:
            before, following = op.prev_op, op.next_op
            handler = HANDLERS.get(type(op))
            if handler is not None:
                handler(self, op)  # type: ignore[arg-type]  # the handled types are HLO ops
            if self.unfinished:
                following = before.next_op if before is not None else block.first_op
                self.unfinished = False
            op = following

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
        inner_ops, shared = list(ops_of(callee.block)), callee.computation_name in self.shared
        for inner in inner_ops:
            name_under(inner, op, shared)
            callee.block.detach_op(inner)
            block.insert_op_before(inner, op)
        root = callee.root
        # a parameter that is the root was replaced by its argument
        self.unfinished = callee.computation_name in self.moving or _branches(inner_ops)
        del self.computations[callee.computation_name]
        erase(callee)
        return root

    def _copy(self, callee: hlo.ComputationOp, op: hlo.HloOp, arguments: Sequence[hlo.SSAValue]) -> hlo.SSAValue:
        block = op.parent
        assert block is not None
        inner_ops, shared = list(ops_of(callee.block)), callee.computation_name in self.shared
        values: dict[hlo.SSAValue, hlo.SSAValue] = dict(zip(callee.block.args, arguments, strict=True))
        for inner in inner_ops:
            self.references.update(called_names(inner))
            copied = copy_op(inner, [values[operand] for operand in inner.operands])
            name_under(copied, op, shared)
            block.insert_op_before(copied, op)
            values[inner.results[0]] = copied.results[0]
        self.unfinished = _branches(inner_ops)
        return values[callee.root]


def _branches(ops: Sequence[hlo.HloOp]) -> bool:
    return any(isinstance(op, hlo.ConditionalOp) for op in ops)


def name_under(inner: hlo.HloOp, call: hlo.HloOp, shared: bool) -> None:
    """Tell ``inner`` which op calls it, and whether others do, that it can be told from its copies.

    It gets the whole name stack, of which JAX writes what is inside alone where several calls share a function.

    What says no line, such as the functions of a library that leaves its own out, has the line of the call.
    """
    loc, above = inner.loc.called_by(call.loc, shared), call.loc
    if isinstance(call, hlo.RegionOp):  # "f/while" has "f/while/body/dot_general"
        above = with_fields(above, op_name=above.op_name.rpartition("/")[0])
    if above.op_name and loc.op_name and not loc.op_name.startswith(("jit(", above.op_name.partition("/")[0] + "/")):
        loc = with_fields(loc, op_name=f"{above.op_name}/{loc.op_name}")
    if above.source_file and not loc.source_file:
        loc = with_fields(loc, source_file=above.source_file, source_line=above.source_line)
    if loc is not inner.loc:
        inner.attributes["loc"] = hlo.LocAttr(loc)


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


def taken_branch(module: HloModule, op: hlo.ConditionalOp) -> int | None:
    """The number of the only branch that is ever taken, where that is known."""
    count = len(op.branches.data)
    value = splat_number(op.operands[0], module) if count > 1 else 0
    if value is None:
        return None
    index = int(value) if hlo.shape_of(op.operands[0]).dtype != "pred" else int(not value)
    return index if 0 <= index < count else count - 1  # HLO runs the last branch for an index out of range


def _inline_conditional(inliner: _Inliner, op: hlo.HloOp) -> None:
    assert isinstance(op, hlo.ConditionalOp)
    index = taken_branch(inliner.module, op)
    if index is None:
        return
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
    if not isinstance(start, hlo.StartOp):
        return
    kind = hlo.OPCODES[start.opcode.removesuffix("-start")]
    declared = property_names(kind)
    properties = {name: attr for name, attr in start.properties.items() if name in declared}
    inliner.references.update(called_names(start))
    replace(op, insert_before(op, kind, start.operands, op.results[0].type, start.loc, properties))


def _start_of(op: hlo.HloOp) -> hlo.HloOp | None:
    start = defining_op(op.operands[0])
    while isinstance(start, hlo.AsyncUpdateOp):
        start = defining_op(start.operands[0])
    return start if isinstance(start, hlo.HloOp) else None


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

MOST_NESTED = 48
"""Loops and branches inside one another; each holds a sequencer register, and the kernels inside need some."""

REPEATING = (hlo.CallOp, hlo.FusionOp, hlo.MapOp, hlo.AsyncStartOp, hlo.RegionOp)
"""Ops each of which gets instructions of its own for the computations that it calls."""

WRAPPERS = (hlo.StartOp, hlo.AsyncUpdateOp, hlo.AfterAllOp)


def _cost(op: hlo.HloOp) -> int:
    return REGION_COST if isinstance(op, hlo.RegionOp) else 1


def check_repeats(module: HloModule) -> None:
    """Raise CompileError EVRF007 when bodies that are called several times make too many ops, before any is copied.

    EVRF901 when loops and branches are nested deeper than there are registers for.
    """
    most = MOST_COPIES + sum(_cost(op) for computation in module.computations() for op in ops_of(computation.block))
    sizes: dict[str, int] = {}
    depths: dict[str, int] = {}
    for computation in module.computations():
        size = depth = 0
        for op in ops_of(computation.block):
            size += _cost(op)
            if isinstance(op, REPEATING):
                names = called_names(op)
                size += sum(sizes.get(name, 0) for name in names)
                own = isinstance(op, hlo.RegionOp)
                depth = max(depth, own + max((depths.get(name, 0) for name in names), default=0))
            if size > most:
                raise CompileError(
                    "EVRF007",
                    f"{op.opcode} of {called_names(op)[0]!r}: with the body of each call in its place, the program has "
                    f"more than {most:,} instructions, of which a loop or branch counts {REGION_COST}",
                    "put what is called again and again into a loop, or call it fewer times",
                    loc=op.loc,
                )
            if depth > MOST_NESTED:
                raise CompileError(
                    "EVRF901",
                    f"{op.opcode}: expected loops and branches nested at most {MOST_NESTED} deep, found {depth}",
                    "make one loop of several, or select values instead of branching",
                    loc=op.loc,
                )
        sizes[computation.computation_name], depths[computation.computation_name] = size, depth


def run(module: HloModule, context: PassContext) -> None:
    inline(module)


def inline(module: HloModule) -> None:
    check_repeats(module)
    _Inliner(module).run()
    for computation in module.computations():
        # users first: an update goes before its start
        for op in reversed(list(ops_of(computation.block))):
            if isinstance(op, WRAPPERS) and op.results[0].first_use is None:
                erase(op)
    remove_uncalled(module)
