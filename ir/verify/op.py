"""One op against its rule."""

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import ArrayType, ComputationOp, GroupsAttr, HloOp, StrsAttr
from neuronx_cc.ir.verify.rule import ANY, RULES, ArrayRule, CallRule, show

CALL_FIELDS = ("to_apply", "calls", "body", "condition", "branches", "called")
"""Properties that name computations."""


def verify_op(op: HloOp, computations: Mapping[str, ComputationOp] | None = None) -> None:
    """Raises ``CompileError`` EVRF064 when ``op`` breaks its rule.

    ``computations`` are those it may call, by name; without them those of the module around the op count.
    """
    if problem := op_problem(op, computations):
        raise CompileError("EVRF064", f"{op.opcode}: {problem}", loc=op.loc)


def op_problem(op: HloOp, computations: Mapping[str, ComputationOp] | None = None) -> str:
    """ "" or what is wrong with ``op``: "expected ..., found ..."."""
    rule = RULES.get(op.opcode)
    if rule is None:
        return f"expected an opcode with a rule, found {op.opcode}"
    operands = [operand.type for operand in op.sources]
    if not rule.least <= len(operands) <= rule.most:
        return _count(rule.least, rule.most, len(operands))
    if problem := _groups_problem(op):
        return problem
    result = op.results[0].type
    if isinstance(rule, ArrayRule):
        if type(result) is not ArrayType:
            return f"expected an array as result, found {show(result)}"
        shapes = [type_.data for type_ in operands if type(type_) is ArrayType]
        if len(shapes) != len(operands):
            found = next(type_ for type_ in operands if type(type_) is not ArrayType)
            return f"expected arrays as operands, found {show(found)}"
        return rule.check(op, shapes, result.data)
    if not isinstance(rule, CallRule):
        return rule.check(op, operands, result)
    known = module_computations(op) if computations is None else computations
    for field in CALL_FIELDS:
        names = op.properties.get(field)
        for name in names.data if isinstance(names, StrsAttr) else ():
            if name not in known:
                return f"expected a computation of this module, found {name}"
    wanted = 2 if op.name == "hlo.select_and_scatter" else 1
    called = op.properties.get("to_apply")
    if isinstance(called, StrsAttr) and len(called.data) != wanted:
        return f"expected {wanted} computation{'s' if wanted > 1 else ''} to apply, found {len(called.data)}"
    return rule.check(op, operands, result, known)


def _groups_problem(op: HloOp) -> str:
    """What is wrong with the groups of devices, or pairs of source and target, of a collective."""
    pairs = op.properties.get("source_target_pairs")
    if isinstance(pairs, GroupsAttr):
        unique = all(len(set(side)) == len(pairs.data) for side in zip(*pairs.data, strict=False))
        if any(len(pair) != 2 for pair in pairs.data) or not unique:
            return "expected pairs of different sources and different targets, found others"
    groups = op.properties.get("replica_groups")
    if isinstance(groups, GroupsAttr):
        members = [number for group in groups.data for number in group]
        if not all(groups.data) or len(set(members)) != len(members):
            return "expected groups of one or more devices, each device once, found others"
    return ""


def module_computations(op: HloOp) -> dict[str, ComputationOp]:
    """The computations of the module around ``op``, by name."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, ModuleOp):
        parent = parent.parent_op()
    if parent is None:
        return {}
    return {
        computation.computation_name: computation
        for computation in parent.body.block.ops
        if isinstance(computation, ComputationOp)
    }


def _count(least: int, most: int, found: int) -> str:
    if least == most:
        wanted = f"{least} operand{'' if least == 1 else 's'}"
    elif most == ANY:
        wanted = f"at least {least} operand{'' if least == 1 else 's'}"
    else:
        wanted = f"{least} to {most} operands"
    return f"expected {wanted}, found {found}"
