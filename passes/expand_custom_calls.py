"""Rewrites custom calls as plain ops: one rule for each target, in the table ``RULES``.

Input: any module. Output: no custom call whose target the coverage table (``ir.operators_table.CUSTOM_CALLS``) says is
decomposed or folded, but those that ``expand_linear_algebra`` takes. Arithmetic is FP32 whatever the element type.
Operands and the ``backend_config`` are those that the vendor's open front ends emit (transformers-neuronx, nkipy,
neuronx-distributed-inference), and for resizing those of PyTorch/XLA; what they leave open is an error.
"""

import re
from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, ops_of, replace, users
from neuronx_cc.ir.operators_table import CUSTOM_CALLS
from neuronx_cc.ir.types import FLOATS, INTEGERS
from neuronx_cc.passes.analysis.values import highest, lowest
from neuronx_cc.passes.expansions import lapack_calls, resizing
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements
from neuronx_cc.passes.manager import PassContext, only_for

Rule = Callable[[Build, hlo.CustomCallOp], None]


@only_for(hlo.CustomCallOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if isinstance(op, hlo.CustomCallOp) and op.target.data in RULES:
                RULES[op.target.data](Build.before(module, op), op)


def _bad(op: hlo.CustomCallOp, what: str) -> CompileError:
    return CompileError("EVRF001", f"custom call {op.target.data}: {what}", "write it with plain operators", op.loc)


def _config(op: hlo.CustomCallOp) -> str:
    return op.backend_config.data if op.backend_config is not None else ""


def _number(op: hlo.CustomCallOp) -> int:
    """The decimal number that is the whole configuration."""
    found = re.fullmatch(r'"?\s*(-?\d+)\s*"?', _config(op))
    if found is None:
        raise _bad(op, f"expected a number as backend_config, found {_config(op)!r}")
    return int(found[1])


def _axis(op: hlo.CustomCallOp) -> int:
    rank = hlo.shape_of(op.args[0]).rank
    axis = _number(op)
    if not -rank <= axis < rank:
        raise _bad(op, f"dimension {axis} of an operand of rank {rank}")
    return axis % rank


def _operands(b: Build, op: hlo.CustomCallOp, *counts: int) -> list[Value]:
    """The operands in FP32; their number must be one of ``counts``."""
    if len(op.args) not in counts:
        raise _bad(op, f"expected {' or '.join(map(str, counts))} operands, found {len(op.args)}")
    return [b.convert(operand, "f32") for operand in op.args]


def _finish(b: Build, op: hlo.CustomCallOp, value: Value) -> None:
    result = op.results[0].type
    if not isinstance(result, hlo.ArrayType) or result.data.dims != hlo.shape_of(value).dims:
        raise _bad(op, f"expected a result of dimensions {list(hlo.shape_of(value).dims)}, found {result}")
    replace(op, b.convert(value, result.data.dtype))


# activations


def _scaled(b: Build, value: Value, factor: float) -> Value:
    return b.mul(value, b.number_like(factor, value))


def _plus(b: Build, value: Value, number: float) -> Value:
    return b.add(value, b.number_like(number, value))


def _normal(b: Build, x: Value) -> Value:
    """The distribution function of the standard normal distribution."""
    return _scaled(b, _plus(b, b.each(hlo.ErfOp, _scaled(b, x, sqrt(0.5))), 1), 0.5)


def _gelu(b: Build, x: Value) -> Value:
    return b.mul(x, _normal(b, x))


def _gelu_tanh(b: Build, x: Value) -> Value:
    cubic = b.add(x, _scaled(b, b.mul(b.mul(x, x), x), 0.044715))
    return b.mul(_scaled(b, x, 0.5), _plus(b, b.each(hlo.TanhOp, _scaled(b, cubic, sqrt(2 / pi))), 1))


def _gelu_slope(b: Build, x: Value) -> Value:
    density = _scaled(b, b.each(hlo.ExponentialOp, _scaled(b, b.mul(x, x), -0.5)), 1 / sqrt(2 * pi))
    return b.add(_normal(b, x), b.mul(x, density))


def _silu(b: Build, x: Value) -> Value:
    return b.mul(x, b.each(hlo.LogisticOp, x))


def _silu_slope(b: Build, x: Value) -> Value:
    """``s (1 + x (1 - s))`` with ``s = logistic(x)``."""
    s = b.each(hlo.LogisticOp, x)
    return b.mul(s, _plus(b, b.mul(x, b.sub(b.number_like(1, s), s)), 1))


def _unary(function: Callable[[Build, Value], Value]) -> Rule:
    def rule(b: Build, op: hlo.CustomCallOp) -> None:
        _finish(b, op, function(b, _operands(b, op, 1)[0]))

    return rule


def _slope(function: Callable[[Build, Value], Value]) -> Rule:
    """The derivative at the last operand, times the gradient where that is the first of two."""

    def rule(b: Build, op: hlo.CustomCallOp) -> None:
        *gradient, x = _operands(b, op, 1, 2)
        slope = function(b, x)
        _finish(b, op, b.mul(gradient[0], slope) if gradient else slope)

    return rule


# normalisation


def _spread(b: Build, rows: Value, like: Value, axis: int) -> Value:
    dims = hlo.shape_of(like).dims
    return b.broadcast(rows, dims, [dim for dim in range(len(dims)) if dim != axis])


def _softmax(b: Build, op: hlo.CustomCallOp) -> None:
    (x,) = _operands(b, op, 1)
    axis = _axis(op)
    largest = b.reduce(hlo.MaximumOp, x, [axis], -np.inf)
    powers = b.each(hlo.ExponentialOp, b.sub(x, _spread(b, largest, x, axis)))
    _finish(b, op, b.div(powers, _spread(b, b.sum(powers, [axis]), x, axis)))


def _softmax_gradient(b: Build, op: hlo.CustomCallOp) -> None:
    """``y (g - sum(g y))`` of the gradient and the softmax's result."""
    gradient, y = _operands(b, op, 2)
    axis = _axis(op)
    total = b.sum(b.mul(gradient, y), [axis])
    _finish(b, op, b.mul(y, b.sub(gradient, _spread(b, total, y, axis))))


def _rms_norm(b: Build, op: hlo.CustomCallOp) -> None:
    """``x / sqrt(mean(x**2) + epsilon) * weight`` along one dim; the weight is a vector of that dim."""
    x, weight, epsilon = _operands(b, op, 3)
    axis, shape = _axis(op), hlo.shape_of(x)
    if hlo.shape_of(weight).dims != (shape.dims[axis],) or hlo.shape_of(epsilon).size != 1:
        raise _bad(op, f"expected a weight of dimensions [{shape.dims[axis]}] and a scalar epsilon")
    mean = _scaled(b, b.sum(b.mul(x, x), [axis]), 1 / max(1, shape.dims[axis]))
    floor = b.broadcast(b.reshape(epsilon, ()), hlo.shape_of(mean).dims)
    factor = _spread(b, b.each(hlo.RsqrtOp, b.add(mean, floor)), x, axis)
    _finish(b, op, b.mul(b.mul(x, factor), b.broadcast(weight, shape.dims, [axis])))


# indices


def _argument(largest: bool) -> Rule:
    """The place of the extreme value along a dim: the first one of several, or of a NaN."""

    def rule(b: Build, op: hlo.CustomCallOp) -> None:
        if len(op.args) != 1:
            raise _bad(op, f"expected 1 operand, found {len(op.args)}")
        x, axis = op.args[0], _axis(op)
        dtype = hlo.shape_of(x).dtype
        start = lowest(dtype) if largest else highest(dtype)
        assert start is not None, "element types are checked before"
        kind: type[hlo.HloOp] = hlo.MaximumOp if largest else hlo.MinimumOp
        best = _spread(b, b.reduce(kind, x, [axis], start), x, axis)
        found = b.compare(x, best, "EQ")
        if dtype in FLOATS:
            found = b.each(hlo.OrOp, found, b.compare(x, x, "NE"))
        dims = hlo.shape_of(x).dims
        last = b.number(max(0, dims[axis] - 1), "s32", dims)
        place = b.select(found, b.iota(dims, axis), last)
        _finish(b, op, b.reduce(hlo.MinimumOp, place, [axis], max(0, dims[axis] - 1)))

    return rule


def _top_k(b: Build, op: hlo.CustomCallOp) -> None:
    """(values, places) of the k largest of the last dim; without a configuration the result says k."""
    result = op.results[0].type
    if len(op.args) != 1 or not isinstance(result, hlo.TupleType) or len(result.data) != 2:
        raise _bad(op, "expected one operand and a pair of results")
    shape, types = hlo.shape_of(op.args[0]), [part.data for part in result.data]  # type: ignore[attr-defined]
    k = _number(op) if _config(op) else types[0].dims[-1]
    dims = (*shape.dims[:-1], k)
    if not shape.rank or not 0 <= k <= shape.dims[-1] or any(part.dims != dims for part in types):
        raise _bad(op, f"results of dimensions {list(types[0].dims)} for k = {k} of {list(shape.dims)}")
    pair = hlo.tuple_type((hlo.array_type(shape.dtype, dims), hlo.array_type("s32", dims)))
    both = b.typed(hlo.TopkOp, op.args, pair, k=hlo.IntAttr(k), largest=hlo.BoolAttr(True))
    replace_elements(op, [b.convert(b.element(both, place), types[place].dtype) for place in range(2)])


def _partial_sort(b: Build, op: hlo.CustomCallOp) -> None:
    """The first elements in the order of the called comparator, exactly: n operands, then n initial values."""
    result = op.results[0].type
    count = len(op.args) // 2
    types = [part.data for part in result.data] if isinstance(result, hlo.TupleType) else [result.data]  # type: ignore[attr-defined]
    if op.called is None or len(op.args) != 2 * count or len(types) != count:
        raise _bad(op, "expected a comparator, n operands, n initial values and n results")
    operands, shape = list(op.args[:count]), hlo.shape_of(op.args[0])
    named = re.search(r'reduction_dim"?\s*[=:]\s*(\d+)', _config(op))
    cut = [axis for axis, size in enumerate(shape.dims) if size != types[0].dims[axis]]
    axis = int(named[1]) if named else cut[0] if cut else shape.rank - 1
    kinds = tuple(operand.type for operand in operands)
    properties: dict[str, hlo.Attribute] = {
        "dimension": hlo.IntAttr(axis),
        "is_stable": hlo.BoolAttr(True),
        "to_apply": hlo.StrsAttr(op.called.data[:1]),
    }
    done = b.typed(hlo.SortOp, operands, kinds[0] if count == 1 else hlo.tuple_type(kinds), **properties)
    parts = [done] if count == 1 else [b.element(done, index) for index in range(count)]
    found = [b.slice(part, axis, 0, types[0].dims[axis]) for part in parts]
    if isinstance(result, hlo.TupleType):
        replace_elements(op, found)
    else:
        replace(op, found[0])


# contractions


def _collective_matmul(b: Build, op: hlo.CustomCallOp) -> None:
    """``dot(all-gather(lhs), rhs)``; of one device, the dot alone."""
    settings = dict(part.split("=", 1) for part in _config(op).strip('"').split(",") if "=" in part)
    degree, contracted = settings.get("tp_degree", "1").strip(), settings.get("rhs_contracting_dim", "0").strip()
    if degree != "1" or contracted not in ("0", "1"):
        raise _bad(op, f"tp_degree {degree} gathers over devices; only 1 compiles, with rhs_contracting_dim 0 or 1")
    lhs, rhs = op.args
    dims = hlo.DotDims((1,), (int(contracted),))
    shapes = hlo.shape_of(lhs), hlo.shape_of(rhs)
    if any(shape.rank != 2 for shape in shapes) or shapes[0].dims[1] != shapes[1].dims[int(contracted)]:
        raise _bad(op, f"expected matrices that contract, found {shapes[0]} and {shapes[1]}")
    result = (shapes[0].dims[0], shapes[1].dims[1 - int(contracted)])
    product = hlo.array_type(shapes[0].dtype, result)
    _finish(b, op, b.typed(hlo.DotOp, (lhs, rhs), product, dims=hlo.DotDimsAttr(dims)))


# identities


def _identity(b: Build, op: hlo.CustomCallOp) -> None:
    """Markers, placements and shardings of one device: results are the operands, or there are none."""
    result = op.results[0].type
    if isinstance(result, hlo.TupleType) and not result.data and not users(op.results[0]):
        erase(op)
        return
    wanted = list(result.data) if isinstance(result, hlo.TupleType) else [result]
    if [operand.type for operand in op.args] != wanted:
        raise _bad(op, "results differ from operands: the program is partitioned over several devices")
    if isinstance(result, hlo.TupleType):
        replace_elements(op, list(op.args))
    else:
        replace(op, op.args[0])


def _resize(
    function: Callable[[Build, Value, tuple[int, ...], str], Value],
) -> Rule:
    """Images [batch, height, width, feature]; the configuration is two digits: align corners, half-pixel centres."""

    def rule(b: Build, op: hlo.CustomCallOp) -> None:
        found = re.fullmatch(r"\W*([01]{2})\W*", _config(op))
        result = op.results[0].type
        rank = hlo.shape_of(op.args[0]).rank
        if found is None or len(op.args) != 1 or rank != 4 or not isinstance(result, hlo.ArrayType):
            raise _bad(
                op, f"expected one array of rank 4 and two binary digits as backend_config, found {_config(op)!r}"
            )
        x = op.args[0]
        whole = hlo.shape_of(x).dtype in INTEGERS
        if whole and function is not resizing.nearest:
            raise _bad(op, "integers are not interpolated")
        value = x if function is resizing.nearest else b.convert(x, "f32")
        _finish(b, op, function(b, value, result.data.dims, found[1]))

    return rule


RULES: dict[str, Rule] = {
    "ApproxTopK": _partial_sort,
    "AwsNeuronArgMax": _argument(True),
    "AwsNeuronArgMin": _argument(False),
    "AwsNeuronCollectiveMatmul": _collective_matmul,
    "AwsNeuronErf": _unary(lambda b, x: b.each(hlo.ErfOp, x)),
    "AwsNeuronGelu": _unary(_gelu),
    "AwsNeuronGeluApprxTanh": _unary(_gelu_tanh),
    "AwsNeuronGeluBackward": _slope(_gelu_slope),
    "AwsNeuronRmsNorm": _rms_norm,
    "AwsNeuronSilu": _unary(_silu),
    "AwsNeuronSiluBackward": _slope(_silu_slope),
    "AwsNeuronSoftmax": _softmax,
    "AwsNeuronSoftmaxBackward": _softmax_gradient,
    "AwsNeuronTopK": _top_k,
    "PartialReduce": _partial_sort,
    "ResizeBilinear": _resize(resizing.bilinear),
    "ResizeNearest": _resize(resizing.nearest),
    "ResizeNearestGrad": _resize(resizing.nearest_gradient),
    "TopK": _top_k,
    **lapack_calls.RULES,
    **{target: _identity for target, call in CUSTOM_CALLS.items() if call.status == "folded"},
}
"""Target -> ``rule(builder above the call, call)``, which replaces it."""
