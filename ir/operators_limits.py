"""Predicates of the coverage table's constraints: ``predicate(op, module) -> bool``, True when the op keeps it.

They read ops through their properties only, so that importing the table does not import the IR.
"""

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from neuronx_cc.ir import hlo

_SHAPELESS = frozenset(["bitcast", "broadcast", "convert", "copy", "reshape"])


def _constant(value: Any, module: "hlo.HloModule") -> Any:
    """The pooled array behind ``value`` when only shape changes and conversions lie between, else None."""
    owner = value.owner
    while getattr(owner, "opcode", "") in _SHAPELESS:
        owner = owner.operands[0].owner
    if getattr(owner, "opcode", "") != "constant":
        return None
    return module.constants[owner.value.data]


def _body(op: Any, module: "hlo.HloModule") -> list[Any]:
    """Ops of the first called computation, without its return."""
    return [inner for inner in module.computation(op.to_apply.data[0]).block.ops if hasattr(inner, "opcode")]


def _combines_two_by(op: Any, module: "hlo.HloModule", opcodes: frozenset[str]) -> bool:
    """Whether an op with one operand and one initial value combines by one of ``opcodes`` alone."""
    body = _body(op, module)
    if len(op.operands) != 2 or len(body) != 1 or body[0].opcode not in opcodes:
        return False
    return {operand.owner for operand in body[0].operands} == {body[0].parent} and len(set(body[0].operands)) == 2


def computations_are_elementwise(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    """Whether the computations that ``op`` calls consist of operators on scalars."""
    from neuronx_cc.ir.hlo.scalar_bodies import is_elementwise

    return all(is_elementwise(module.computation(name)) for name in cast(Any, op).to_apply.data)


def exponent_is_constant_integer(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    array = _constant(op.operands[1], module)
    return array is not None and array.size > 0 and bool((array == array.astype(int)).all())


def gather_dims_disjoint(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    """``start_index_map`` names no operand dim that an offset dim of the result walks."""
    dims = cast(Any, op).dims.data
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    return gone.issuperset(dims.start_index_map)


def never(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    return False


_PLAIN = frozenset(["add", "maximum", "minimum", "multiply"])


def reduce_is_plain(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    return _combines_two_by(op, module, _PLAIN) and _constant(op.operands[1], module) is not None


def _element(value: Any) -> int:
    """Which element of its computation's one parameter ``value`` is; -1 for anything else."""
    owner = value.owner
    while getattr(owner, "opcode", "") in _SHAPELESS:
        owner = owner.operands[0].owner
    if getattr(owner, "opcode", "") != "get-tuple-element" or hasattr(owner.operands[0].owner, "opcode"):
        return -1
    return int(owner.index.data)


def _following(op: Any, module: "hlo.HloModule", index: int) -> Any:
    """Element ``index`` of the state after one trip of the loop ``op``."""
    root: Any = module.computation(op.body.data[0]).root
    return root.owner.operands[index] if getattr(root.owner, "opcode", "") == "tuple" else root


def _start(op: Any, module: "hlo.HloModule", index: int) -> Any:
    """The constant that element ``index`` of the state of the loop ``op`` starts as, else None."""
    state = op.operands[0].owner
    return _constant(state.operands[index], module) if getattr(state, "opcode", "") == "tuple" else None


def _is_fixed(op: Any, module: "hlo.HloModule", value: Any) -> bool:
    """Whether ``value``, in a computation of the loop ``op``, is a constant or never changes from one."""
    index = _element(value)
    if index < 0:
        return _constant(value, module) is not None
    return _element(_following(op, module, index)) == index and _start(op, module, index) is not None


def trips_are_static(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    """Whether a loop counts: from a constant, by a constant, as far as a constant."""
    test = cast(Any, module.computation(cast(Any, op).condition.data[0]).root.owner)
    if getattr(test, "opcode", "") != "compare":
        return False
    for counter, bound in (test.operands, test.operands[::-1]):
        index = _element(counter)
        if index < 0 or _start(op, module, index) is None or not _is_fixed(op, module, bound):
            continue
        step = cast(Any, _following(op, module, index)).owner
        if getattr(step, "opcode", "") in ("add", "subtract") and index in map(_element, step.operands):
            return any(_is_fixed(op, module, operand) for operand in step.operands)
    return False


def starts_are_constant(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    return all(_constant(start, module) is not None for start in op.operands[2:])
