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


def _body_opcodes(op: Any, module: "hlo.HloModule") -> list[str]:
    """Opcodes of the first called computation, without its return."""
    body = module.computation(op.to_apply.data[0])
    return [cast(Any, inner).opcode for inner in body.block.ops if hasattr(inner, "opcode")]


def exponent_is_constant_integer(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    array = _constant(op.operands[1], module)
    return array is not None and array.size > 0 and bool((array == array.astype(int)).all())


def gather_dims_disjoint(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    """``start_index_map`` names no operand dim that an offset dim of the result walks."""
    dims = cast(Any, op).dims.data
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    return gone.issuperset(dims.start_index_map)


def gather_is_lookup(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    gather = cast(Any, op)
    dims, sizes = gather.dims.data, gather.slice_sizes.data
    operand = gather.operands[0].type.data.dims
    if len(dims.start_index_map) != 1 or dims.operand_batching_dims:
        return False
    others = [i for i in range(len(sizes)) if i not in dims.start_index_map]
    whole = all(sizes[i] == operand[i] for i in others)
    return whole and bool(sizes[dims.start_index_map[0]] == 1)


def never(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    return False


def reduce_is_generated(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    opcodes = _body_opcodes(op, module)
    if len(op.operands) == 2:
        return len(opcodes) == 1 and opcodes[0] in ("add", "and", "maximum", "minimum", "multiply", "or")
    choosing = {"and", "compare", "constant", "not", "or", "select", "tuple"}
    return len(op.operands) == 4 and choosing.issuperset(opcodes)


def reduce_is_plain(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    opcodes = _body_opcodes(op, module)
    plain = len(opcodes) == 1 and opcodes[0] in ("add", "maximum", "minimum", "multiply")
    return len(op.operands) == 2 and plain and _constant(op.operands[1], module) is not None


def starts_are_constant(op: "hlo.HloOp", module: "hlo.HloModule") -> bool:
    return all(_constant(start, module) is not None for start in op.operands[2:])
