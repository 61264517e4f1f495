"""Brings calls of functions of the host to one form: arrays that memory holds as operands, a tuple of such as result.

Input: custom calls with the target ``HOST_CALL``. Their ``backend_config`` is the number of the function, and after a
blank, if the call is made once for all partitions, the number of the partition that makes it. Output: the same, without
arrays ``pred[0]``, in which there is nothing and which stand for tokens, with two f32 arrays for each c64 array, and
with a tuple as result, of which every element is read by a ``get-tuple-element``. A call with effects that one
partition makes is followed by a broadcast of its results; every partition makes those without. Calls with effects stand
in the order of their numbers, which is that of the program they come from, as far as values allow.
"""

from collections.abc import Mapping
from typing import TypeGuard

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.isa.host import HOST_CALL
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.drop_tokens import NOTHING
from neuronx_cc.passes.expansions.build import Build, Value, replace_results
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.CustomCallOp)
def run(module: HloModule, context: PassContext) -> None:
    counts = device_counts(module)
    least: dict[str, int] = {}
    for computation in module.computations():
        numbers = {op: number for op in ops_of(computation.block) if (number := _number(op, least)) is not None}
        if numbers:
            least[computation.computation_name] = min(numbers.values())
            _sort(computation, numbers)
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if op.parent is not None and _is_call(op):
                _resolve(Build.before(module, op), op, counts)


def _is_call(op: hlo.HloOp) -> TypeGuard[hlo.CustomCallOp]:
    return isinstance(op, hlo.CustomCallOp) and op.target.data == HOST_CALL


def _number(op: hlo.HloOp, least: Mapping[str, int]) -> int | None:
    """The number of a call with effects, or the smallest in the computations ``op`` calls; ``least``: theirs."""
    if _is_call(op):
        return function_and_partition(op)[0] if has_effects(op) else None
    return min((least[name] for name in called_names(op) if name in least), default=None)


def _sort(computation: hlo.ComputationOp, numbers: Mapping[hlo.HloOp, int]) -> None:
    """Bring the ops ``numbers`` into their order: each moves up, after what it needs, which moves with it."""
    wanted = sorted(numbers, key=lambda op: numbers[op])
    if wanted == list(numbers):
        return
    block = computation.block
    placed: dict[hlo.Operation, None] = {}
    for op in [*wanted, *ops_of(block)]:
        pending: list[hlo.Operation] = [op]
        while pending:
            needed = [source for operand in pending[-1].operands if (source := defining_op(operand)) not in placed]
            missing = [source for source in needed if source is not None]
            if missing and pending[-1] not in placed:
                pending += missing
            else:
                placed.setdefault(pending.pop())
    last = block.last_op
    assert last is not None
    for each in placed:
        block.detach_op(each)
        block.insert_op_before(each, last)


def function_and_partition(op: hlo.CustomCallOp) -> tuple[int, int]:
    """The number of the function, and the only partition that calls it or -1. Raises CompileError EVRF001."""
    words = (op.backend_config.data if op.backend_config is not None else "").strip('"').split()
    if len(words) not in (1, 2) or not all(word.isdigit() for word in words):
        found = " ".join(words)
        raise CompileError(
            "EVRF001",
            f"custom call {HOST_CALL}: expected the number of a function as backend_config, found {found!r}",
            "lower the program with JAX's neuron backend",
            op.loc,
        )
    return int(words[0]), int(words[1]) if len(words) == 2 else -1


def _resolve(b: Build, op: hlo.CustomCallOp, counts: tuple[int, int]) -> None:
    replicas, partitions = counts
    function, partition = function_and_partition(op)
    alone = partition >= 0 and partitions > 1 and has_effects(op)
    operands = [part for operand in op.operands if operand.type != NOTHING for part in _parts(b, operand)]
    type_ = op.results[0].type
    wanted = list(type_.data) if isinstance(type_, hlo.TupleType) else [type_]
    types: list[hlo.Attribute] = []
    for part in wanted:
        if part != NOTHING:
            types += [_half(part)] * 2 if _is_complex(part) else [part]
    properties = {key: value for key, value in op.properties.items() if key != "backend_config"}
    config = f"{function} {partition}" if alone else str(function)
    called = b.typed(
        hlo.CustomCallOp, operands, hlo.tuple_type(tuple(types)), **properties, backend_config=hlo.StrAttr(config)
    )
    elements = [b.element(called, index) for index in range(len(types))]
    if alone:
        elements = [_sent(b, element, partition, replicas, partitions) for element in elements]
    results: list[Value] = []
    for part in wanted:
        if part == NOTHING:
            results.append(b.number(0, "pred", (0,)))
        elif _is_complex(part):
            results.append(b.typed(hlo.ComplexOp, [elements.pop(0), elements.pop(0)], part))
        else:
            results.append(elements.pop(0))
    replace_results(op, results)


def _is_complex(type_: hlo.Attribute) -> bool:
    return isinstance(type_, hlo.ArrayType) and type_.data.dtype == "c64"


def _half(type_: hlo.Attribute) -> hlo.Attribute:
    assert isinstance(type_, hlo.ArrayType)
    return hlo.array_type("f32", type_.data.dims)


def _parts(b: Build, operand: Value) -> list[Value]:
    """What stands for ``operand``."""
    if not _is_complex(operand.type):
        return [operand]
    return [b.typed(kind, [operand], _half(operand.type)) for kind in (hlo.RealOp, hlo.ImagOp)]


def _sent(b: Build, element: Value, partition: int, replicas: int, partitions: int) -> Value:
    """``element`` of one partition, in all."""
    groups = []
    for replica in range(replicas):
        members = [replica * partitions + each for each in range(partitions)]
        sender = members.pop(partition)
        groups.append((sender, *members))
    return b.typed(hlo.CollectiveBroadcastOp, [element], element.type, replica_groups=hlo.GroupsAttr(tuple(groups)))
