"""Rules of tuples, calls, control flow, tokens, asynchronous forms and collectives."""

from typing import Any

from neuronx_cc.ir.hlo import TOKEN, ArrayType, TupleType, array_type, tuple_type
from neuronx_cc.ir.types import INTEGERS, Shape
from neuronx_cc.ir.verify.compute import _arrays, _results, _scalars
from neuronx_cc.ir.verify.rule import (
    ANY,
    Computations,
    array_rule,
    call_rule,
    dims_in_range,
    expect_dtype,
    expect_type,
    show,
    type_rule,
)


@type_rule("tuple", operands=(0, ANY))
def _tuple(op: Any, operands: list[Any], result: Any) -> str:
    return expect_type("a result", tuple_type(tuple(operands)), result)


@type_rule("get-tuple-element")
def _get_tuple_element(op: Any, operands: list[Any], result: Any) -> str:
    index, parts = op.index.data, operands[0]
    if not isinstance(parts, TupleType):
        return f"expected a tuple as operand, found {show(parts)}"
    if not 0 <= index < len(parts.data):
        return f"expected an index between 0 and {len(parts.data) - 1}, found {index}"
    return expect_type("a result", parts.data[index], result)


def _signature(name: str, operands: list[Any], result: Any, computations: Computations) -> str:
    """Whether computation ``name`` takes ``operands`` and returns ``result``."""
    called = computations[name]
    arguments = [argument.type for argument in called.block.args]
    if len(arguments) != len(operands):
        return f"expected {len(arguments)} operands, the parameters of {name}, found {len(operands)}"
    for index, (argument, operand) in enumerate(zip(arguments, operands, strict=True)):
        if argument != operand:
            return f"expected operand {index} of type {show(argument)}, as {name} takes, found {show(operand)}"
    root = called.root.type
    return "" if root == result else f"expected a result of type {show(root)}, as {name} returns, found {show(result)}"


@call_rule("call")
def _call(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    return _signature(op.to_apply.data[0], operands, result, computations)


@call_rule("fusion")
def _fusion(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    return _signature(op.calls.data[0], operands, result, computations)


@call_rule("while", operands=1)
def _while(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    state = operands[0]
    return (
        expect_type("a result", state, result)
        or _signature(op.body.data[0], operands, state, computations)
        or _signature(op.condition.data[0], operands, array_type("pred", ()), computations)
    )


@call_rule("conditional", operands=(2, ANY))
def _conditional(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    branches, selector = op.branches.data, operands[0]
    if selector == array_type("pred", ()):
        if len(branches) != 2:
            return f"expected 2 branches for a pred[] selector, found {len(branches)}"
    elif selector != array_type("s32", ()):
        return f"expected a selector of pred[] or s32[], found {show(selector)}"
    if len(operands) != len(branches) + 1:
        return f"expected one operand for each of {len(branches)} branches, found {len(operands) - 1}"
    for branch, operand in zip(branches, operands[1:], strict=True):
        if problem := _signature(branch, [operand], result, computations):
            return problem
    return ""


@call_rule("custom-call")
def _custom_call(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    return "" if op.target.data else "expected the name of a target, found none"


@type_rule("opt-barrier", "domain")
def _identity(op: Any, operands: list[Any], result: Any) -> str:
    return expect_type("a result", operands[0], result)


@type_rule("after-all", operands=(0, ANY))
def _after_all(op: Any, operands: list[Any], result: Any) -> str:
    for operand in operands:
        if operand != TOKEN:
            return f"expected tokens as operands, found {show(operand)}"
    return expect_type("a result", TOKEN, result)


@type_rule("add-dependency", operands=2)
def _add_dependency(op: Any, operands: list[Any], result: Any) -> str:
    return expect_type("operand 1", TOKEN, operands[1]) or expect_type("a result", operands[0], result)


@call_rule("async-start")
def _async_start(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    parts = result.data if isinstance(result, TupleType) else ()
    if len(parts) < 2 or parts[0] != tuple_type(tuple(operands)):
        return f"expected a result of (({', '.join(map(show, operands[:8]))}), result, ...), found {show(result)}"
    return _signature(op.calls.data[0], operands, parts[1], computations)


@type_rule("async-update")
def _async_update(op: Any, operands: list[Any], result: Any) -> str:
    return expect_type("a result", operands[0], result)


@type_rule("async-done", "copy-done", "all-gather-done", "collective-permute-done")
def _done(op: Any, operands: list[Any], result: Any) -> str:
    parts = operands[0].data if isinstance(operands[0], TupleType) else ()
    if len(parts) < 2:
        return f"expected the tuple of the start as operand, found {show(operands[0])}"
    return expect_type("a result", parts[0 if op.name == "hlo.copy_done" else 1], result)


@type_rule("all-reduce-done")
def _all_reduce_done(op: Any, operands: list[Any], result: Any) -> str:
    return expect_type("a result", operands[0], result)


@type_rule("copy-start")
def _copy_start(op: Any, operands: list[Any], result: Any) -> str:
    parts = result.data if isinstance(result, TupleType) else ()
    if len(parts) < 2 or parts[0] != operands[0] or parts[1] != operands[0]:
        return f"expected a result of ({show(operands[0])}, {show(operands[0])}, ...), found {show(result)}"
    return ""


@type_rule("infeed", "outfeed", "send", "send-done", "recv", "recv-done", operands=(0, ANY))
def _channel(op: Any, operands: list[Any], result: Any) -> str:
    if not operands:
        return "expected operands, found none"
    if op.name in ("hlo.infeed", "hlo.outfeed", "hlo.send", "hlo.recv") and operands[-1] != TOKEN:
        return f"expected a token as last operand, found {show(operands[-1])}"
    count = {"hlo.infeed": 1, "hlo.recv": 1, "hlo.outfeed": 2, "hlo.send": 2}.get(op.name, len(operands))
    if len(operands) != count:
        return f"expected {count} operand{'s' * (count > 1)}, the last a token, found {len(operands)}"
    return ""


@array_rule("partition-id", "replica-id", operands=0)
def _identifier(op: Any, shapes: list[Shape], result: Shape) -> str:
    return "" if result == Shape("u32", ()) else f"expected a result of u32[], found {result}"


@call_rule("all-reduce", "all-reduce-start", "collective-reduce")
def _all_reduce(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    shapes = _arrays(operands)
    if not shapes:
        return "expected arrays as operands"
    expected = tuple_type(tuple(operands)) if isinstance(result, TupleType) or len(operands) > 1 else operands[0]
    name, dtype = op.to_apply.data[0], shapes[0].dtype
    return expect_type("a result", expected, result) or _scalars(name, computations[name], [dtype] * 2, [dtype])


@call_rule("reduce-scatter")
def _reduce_scatter(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    shapes, results = _arrays(operands), _results(result)
    if not shapes or results is None or len(shapes) != len(results):
        return "expected arrays and as many results"
    if len(shapes) == 1 and not shapes[0].rank:
        return "expected an array of rank 1 or more as only operand, found a scalar"
    for shape, part in zip(shapes, results, strict=True):
        if problem := _split("a result", part, shape, op.scatter_dimension.data, shape):
            return problem
    name, dtype = op.to_apply.data[0], shapes[0].dtype
    return _scalars(name, computations[name], [dtype] * 2, [dtype])


@type_rule("all-gather", operands=(1, ANY))
def _all_gather(op: Any, operands: list[Any], result: Any) -> str:
    shapes, results = _arrays(operands), _results(result)
    if shapes is None or results is None or len(shapes) != len(results):
        return "expected arrays and as many results"
    if len(shapes) == 1 and not shapes[0].rank:
        return "expected an array of rank 1 or more as only operand, found a scalar"
    for shape, whole in zip(shapes, results, strict=True):
        if problem := _split("an operand", shape, whole, op.all_gather_dimension.data, shape):
            return problem
    return ""


def _split(what: str, part: Shape, whole: Shape, dim: int, operand: Shape) -> str:
    """Whether ``whole`` is some number of ``part`` along ``dim``; a scalar among arrays, PyTorch/XLA's token, stays."""
    if not operand.rank:
        return "" if part == whole else f"expected a scalar operand as its own result, found {part} and {whole}"
    if problem := dims_in_range("dimensions", (dim,), operand.rank):
        return problem
    agree = part.rank == whole.rank and all(
        a == b or n == dim for n, (a, b) in enumerate(zip(part.dims, whole.dims, strict=True))
    )
    if not agree or (part.dims[dim] == 0) != (whole.dims[dim] == 0) or whole.dims[dim] % max(part.dims[dim], 1):
        return f"expected {what} that divides {whole} along dimension {dim}, found {part}"
    return expect_dtype(what, whole.dtype, part.dtype)


@type_rule("all-to-all", operands=(1, ANY))
def _all_to_all(op: Any, operands: list[Any], result: Any) -> str:
    shapes = _arrays(operands)
    if shapes is None:
        return "expected arrays as operands"
    if op.split_dimension is None:
        return expect_type("a result", tuple_type(tuple(operands)), result)
    if not isinstance(result, ArrayType) or result.data.size != shapes[0].size:
        return f"expected a result of {shapes[0].size} elements, found {show(result)}"
    return dims_in_range("dimensions", (op.split_dimension.data,), shapes[0].rank)


@type_rule("collective-permute", "collective-broadcast", operands=(1, ANY))
def _permuted(op: Any, operands: list[Any], result: Any) -> str:
    # four or more operands are the in-place form: source, target and offsets
    if op.name == "hlo.collective_permute" and len(operands) >= 4:
        return ""
    expected = operands[0] if len(operands) == 1 else tuple_type(tuple(operands))
    return expect_type("a result", expected, result)


@array_rule("ragged-all-to-all", operands=6)
def _ragged_all_to_all(op: Any, shapes: list[Shape], result: Shape) -> str:
    sent, output, *numbers = shapes
    if not sent.rank or sent.dims[1:] != output.dims[1:] or sent.dtype != output.dtype:
        return f"expected arrays of equal rows, found {sent} and {output}"
    if any(each.rank != 1 or each.dtype not in INTEGERS or each.dims != numbers[0].dims for each in numbers):
        return f"expected vectors of equally many offsets and sizes, found {', '.join(map(str, numbers))}"
    return "" if result == output else f"expected a result {output}, found {result}"


@type_rule("all-gather-start", operands=(1, ANY))
def _all_gather_start(op: Any, operands: list[Any], result: Any) -> str:
    problem, parts = _started(operands, result)
    return problem or _all_gather(op, operands, parts[1])


@type_rule("collective-permute-start", operands=(1, ANY))
def _permute_start(op: Any, operands: list[Any], result: Any) -> str:
    if len(operands) >= 4:
        return ""
    problem, parts = _started(operands, result)
    return problem or expect_type("a second part of the result", parts[0], parts[1])


def _started(operands: list[Any], result: Any) -> tuple[str, list[Any]]:
    """What is wrong with (operands, results, contexts...), and these parts."""
    parts = list(result.data) if isinstance(result, TupleType) else []
    if len(parts) < 2:
        return f"expected a tuple of operands and results, found {show(result)}", parts
    expected = operands[0] if len(operands) == 1 else tuple_type(tuple(operands))
    return expect_type("a first part of the result", expected, parts[0]), parts
