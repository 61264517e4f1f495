"""Applies scalar computations that loop to whole arrays: each loop runs until no element goes on. No pass.

An element for which a loop's condition does not hold any more keeps what it has, whatever is computed of it meanwhile.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.hlo.scalar_bodies import is_scalar
from neuronx_cc.passes.expansions.bodies import apply_op
from neuronx_cc.passes.expansions.build import Build, Value


def loops_on_scalars(module: HloModule, body: hlo.ComputationOp) -> bool:
    """Whether ``body`` has loops, and consists of them and of operators on scalars, and so do they."""
    return any(isinstance(op, hlo.WhileOp) for op in ops_of(body.block)) and _is_applicable(module, body)


def _is_applicable(module: HloModule, body: hlo.ComputationOp) -> bool:
    return all(
        isinstance(op, hlo.TupleOp | hlo.GetTupleElementOp)
        or is_scalar(op)
        or (isinstance(op, hlo.WhileOp) and _is_loop_of_scalars(module, op))
        for op in ops_of(body.block)
    )


def _is_loop_of_scalars(module: HloModule, op: hlo.WhileOp) -> bool:
    state = op.results[0].type
    if not isinstance(state, hlo.TupleType):
        return False
    if not all(isinstance(part, hlo.ArrayType) and part.data.rank == 0 for part in state.data):
        return False
    return all(_is_applicable(module, module.computation(name)) for name in (*op.condition.data, *op.body.data))


def apply_loops(
    b: Build,
    body: hlo.ComputationOp,
    operands: Sequence[Value],
    dims: tuple[int, ...],
    live: Value | None = None,
) -> list[Value]:
    """The results of ``body`` with each scalar replaced by an array of ``dims``, as of ``bodies.apply_body``.

    ``operands``: one for each parameter, or for each element of the one that is a tuple. ``live`` (pred, of ``dims``):
    the elements whose results count; no loop waits for the others.
    """
    values: dict[Value, Value] = {}
    packs: dict[Value, list[Value]] = {}
    arguments = list(body.block.args)
    if len(arguments) == 1 and isinstance(arguments[0].type, hlo.TupleType):
        packs[arguments[0]] = list(operands)
    else:
        values.update(zip(arguments, operands, strict=True))
    for op in ops_of(body.block):
        result = op.results[0]
        if isinstance(op, hlo.TupleOp):
            packs[result] = [values[operand] for operand in op.operands]
        elif isinstance(op, hlo.GetTupleElementOp):
            values[result] = packs[op.operands[0]][op.index.data]
        elif isinstance(op, hlo.WhileOp):
            packs[result] = _loop(b, op, packs[op.operands[0]], dims, live)
        else:
            values[result] = apply_op(b.anchor, op, [values[operand] for operand in op.operands], dims)
    root = body.root
    return packs[root] if root in packs else [values[root]]


def _loop(b: Build, op: hlo.WhileOp, start: list[Value], dims: tuple[int, ...], live: Value | None) -> list[Value]:
    """The state of all elements; the loop carries it behind a mask of those that go on."""
    condition, step = (b.module.computation(names.data[0]) for names in (op.condition, op.body))
    (goes_on,) = apply_loops(b, condition, start, dims, live)
    if live is not None:
        goes_on = b.each(hlo.AndOp, goes_on, live)
    types = (goes_on.type, *(value.type for value in start))
    carried = hlo.tuple_type(types)
    body, inner = b.computation(b.fresh_name("masked_body"), [carried])
    mask, *state = (inner.element(body.block.args[0], index) for index in range(len(types)))
    following = apply_loops(inner, step, state, dims, mask)
    state = [inner.select(mask, new, old) for new, old in zip(following, state, strict=True)]
    (again,) = apply_loops(inner, condition, state, dims, mask)
    packed = inner.typed(hlo.TupleOp, [inner.each(hlo.AndOp, mask, again), *state], carried)
    body.block.last_op.operands = [packed]  # type: ignore[union-attr]
    test, inner = b.computation(b.fresh_name("masked_test"), [carried])
    any_goes_on = inner.reduce(hlo.OrOp, inner.element(test.block.args[0], 0), range(len(dims)), 0)
    test.block.last_op.operands = [any_goes_on]  # type: ignore[union-attr]
    names = {"condition": test.computation_name, "body": body.computation_name}
    attributes = {key: hlo.StrsAttr((name,)) for key, name in names.items()}
    done = b.typed(hlo.WhileOp, [b.typed(hlo.TupleOp, [goes_on, *start], carried)], carried, **attributes)
    return [b.element(done, index + 1) for index in range(len(start))]
