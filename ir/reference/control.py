"""Reference semantics of tuples, calls, control flow and asynchronous forms.

``CONTROL`` holds pure functions, ``CONTROL_CALLING`` those that take the evaluator first.
"""

from collections.abc import Callable

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.reference.evaluator import Evaluator, as_tuple, unpack
from neuronx_cc.ir.reference.values import Array, Value
from neuronx_cc.ir.types import NUMPY_DTYPE


def add_dependency(op: hlo.HloOp, value: Value, token: Value) -> Value:
    """First operand, after the token."""
    return value


def after_all(op: hlo.HloOp, *tokens: Value) -> Value:
    """Joins tokens."""
    return None


def done(op: hlo.HloOp, started: Value) -> Value:
    """Ends ``all-gather-start``, ``async-start`` and ``collective-permute-start``: the second tuple element."""
    return started[1]


def copy_done(op: hlo.HloOp, started: Value) -> Value:
    """Ends ``copy-start``: the first tuple element is the destination."""
    return started[0]


def copy_start(op: hlo.HloOp, x: Array) -> Value:
    """(destination, source, context)."""
    return (x, x, np.zeros((), np.uint32))


def get_tuple_element(op: hlo.GetTupleElementOp, value: Value) -> Value:
    """Element ``index`` of a tuple."""
    return value[op.index.data]


def identity(op: hlo.HloOp, value: Value) -> Value:
    """``async-update``, ``domain``, ``opt-barrier``, ``all-reduce-done``."""
    return value


def tuple_(op: hlo.HloOp, *parts: Value) -> Value:
    """Packs values."""
    return parts


def async_start(evaluator: Evaluator, op: hlo.AsyncStartOp, *arguments: Value) -> Value:
    """(operands, results, context): the call is made at once."""
    return (arguments, evaluator.call(op.calls.data[0], *arguments), np.zeros((), np.uint32))


def call(evaluator: Evaluator, op: hlo.CallOp, *arguments: Value) -> Value:
    """Calls ``to_apply``."""
    return evaluator.call(op.to_apply.data[0], *arguments)


def conditional(evaluator: Evaluator, op: hlo.ConditionalOp, selector: Array, *arguments: Value) -> Value:
    """Branch 0 when a pred selector is true, else branch 1; an out-of-range index selects the last branch."""
    branches = op.branches.data
    if selector.dtype == np.bool_:
        index = 0 if selector else 1
    else:
        index = int(selector) if 0 <= int(selector) < len(branches) else len(branches) - 1
    return evaluator.call(branches[index], arguments[index])


def constant(evaluator: Evaluator, op: hlo.ConstantOp) -> Array:
    """A literal of the module's constant pool."""
    return evaluator.module.constants[op.value.data]


def fusion(evaluator: Evaluator, op: hlo.FusionOp, *arguments: Value) -> Value:
    """Calls ``calls``."""
    return evaluator.call(op.calls.data[0], *arguments)


def map_(evaluator: Evaluator, op: hlo.MapOp, *arrays: Array) -> Value:
    """``to_apply`` on the operands' elements."""
    return unpack(evaluator.call_on_arrays(op.to_apply.data[0], *arrays))


def scan(evaluator: Evaluator, op: hlo.ScanOp, *operands: Array) -> Value:
    """``to_apply`` on slices of the inputs and on carries, which gives slices of the outputs and carries."""
    axis, carries = op.dimension.data, op.num_carries.data
    type_ = op.results[0].type
    parts = type_.data if isinstance(type_, hlo.TupleType) else (type_,)
    shapes = [part.data for part in parts if isinstance(part, hlo.ArrayType)]
    inputs, state = operands[: len(operands) - carries], operands[len(operands) - carries :]
    outputs = [np.zeros(shape.dims, NUMPY_DTYPE[shape.dtype]) for shape in shapes[: len(shapes) - carries]]
    steps = range([*inputs, *outputs][0].shape[axis])
    for index in reversed(steps) if op.is_reverse.data else steps:
        slices = [np.asarray(x.take(index, axis)) for x in inputs]
        found = as_tuple(evaluator.call(op.to_apply.data[0], *slices, *state))
        for output, part in zip(outputs, found[: len(outputs)], strict=True):
            np.moveaxis(output, axis, 0)[index] = part
        state = found[len(outputs) :]
    return unpack([*outputs, *state])


def while_(evaluator: Evaluator, op: hlo.WhileOp, state: Value) -> Value:
    """Repeats ``body`` while ``condition`` holds."""
    condition, body = op.condition.data[0], op.body.data[0]
    while as_tuple(evaluator.call(condition, state))[0]:
        state = evaluator.call(body, state)
    return state


CONTROL: dict[str, Callable[..., Value]] = {
    "add-dependency": add_dependency,
    "after-all": after_all,
    "all-gather-done": done,
    "all-reduce-done": identity,
    "async-done": done,
    "async-update": identity,
    "collective-permute-done": done,
    "copy-done": copy_done,
    "copy-start": copy_start,
    "domain": identity,
    "get-tuple-element": get_tuple_element,
    "opt-barrier": identity,
    "tuple": tuple_,
}

CONTROL_CALLING: dict[str, Callable[..., Value]] = {
    "async-start": async_start,
    "call": call,
    "conditional": conditional,
    "constant": constant,
    "fusion": fusion,
    "map": map_,
    "scan": scan,
    "while": while_,
}
