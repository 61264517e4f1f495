"""The result type of an op from its operands and attributes, for HLO text that leaves it out.

XLA infers the types of these opcodes and of no others (hlo_parser.cc), but for set-dimension-size, whose result would
be dynamic; what is inferred here is checked by the rule of the op like a type that was written, so a function only says
what the type is where the op is well formed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from neuronx_cc.ir.hlo import (
    TOKEN,
    ArrayType,
    Attribute,
    ComputationOp,
    ConvertOp,
    ElementwiseOp,
    ReducePrecisionOp,
    StochasticConvertOp,
    TupleType,
    array_type,
    opcodes,
    tuple_type,
)
from neuronx_cc.ir.types import Shape, bits
from neuronx_cc.ir.verify.compute import dot_result, window_result

Properties = Mapping[str, Any]
Computations = Mapping[str, ComputationOp]
Infer = Callable[[Properties, list[Any], Computations], Attribute]

_PARTS = {"c64": "f32", "c128": "f64"}
_WHOLES = {"f32": "c64", "f64": "c128"}


class CannotInfer(Exception):
    """Why the type of a result does not follow."""


def infer_type(opcode: str, properties: Properties, operands: list[Attribute], known: Computations) -> Attribute:
    """The type of the result. Raises ``CannotInfer``."""
    rule = _RULES.get(opcode)
    if opcode == "set-dimension-size":
        raise CannotInfer("expected the type of the result, which would be dynamic, found none")
    if rule is None:
        raise CannotInfer(f"expected the type of the result, which XLA infers for other ops than {opcode} only")
    try:
        return rule(properties, operands, known)
    except (IndexError, KeyError, ValueError, AttributeError, TypeError):
        raise CannotInfer("expected operands and attributes that make a type, found others") from None


def _array(type_: Attribute) -> Shape:
    if not isinstance(type_, ArrayType):
        raise CannotInfer("expected arrays as operands, found a tuple or token")
    return type_.data


def _like(index: int) -> Infer:
    return lambda _, operands, __: operands[index]


def _typed(dtype: str | dict[str, str]) -> Infer:
    """The dims of the first operand, of type ``dtype``; of a mapping, what it makes of the operand's."""

    def infer(_: Properties, operands: list[Any], __: Computations) -> Attribute:
        shape = _array(operands[0])
        return array_type(dtype if isinstance(dtype, str) else dtype.get(shape.dtype, shape.dtype), shape.dims)

    return infer


def _several(types: list[Attribute]) -> Attribute:
    return types[0] if len(types) == 1 else tuple_type(tuple(types))


def _callee(field: str) -> Infer:
    return lambda properties, _, known: known[properties[field].data[0]].root.type


def _broadcast(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    """Without a type, ``dimensions`` are sizes in front of the operand's, as of XlaBuilder's Broadcast."""
    shape = _array(operands[0])
    return array_type(shape.dtype, (*properties["dimensions"].data, *shape.dims))


def _transpose(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    shape = _array(operands[0])
    return array_type(shape.dtype, tuple(shape.dims[dim] for dim in properties["dimensions"].data))


def _concatenate(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    shapes, dim = [_array(operand) for operand in operands], properties["dimension"].data
    dims = list(shapes[0].dims)
    dims[dim] = sum(shape.dims[dim] for shape in shapes)
    return array_type(shapes[0].dtype, tuple(dims))


def _pad(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    shape = _array(operands[0])
    sizes = [
        size + each.low + each.high + max(size - 1, 0) * each.interior
        for size, each in zip(shape.dims, properties["padding"].data, strict=True)
    ]
    return _sized(shape.dtype, sizes)


def _sized(dtype: str, dims: list[int]) -> Attribute:
    if min(dims, default=0) < 0 or _product(dims) * bits(dtype) > 2**50:
        raise CannotInfer(f"expected a result of sizes of 0 or more and at most 2**47 bytes, found {dims}")
    return array_type(dtype, tuple(dims))


def _product(dims: list[int]) -> int:
    total = 1
    for size in dims:
        total *= max(size, 1)
    return total


def _dot(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    """Batch dims, free dims of both sides; the type is that of the wider side."""
    lhs, rhs = _array(operands[0]), _array(operands[1])
    return array_type(_wider(lhs.dtype, rhs.dtype), dot_result(properties["dims"].data, lhs, rhs))


def _wider(first: str, second: str) -> str:
    return first if bits(first) >= bits(second) else second


def _ragged_dot(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    lhs, rhs, sizes = (_array(operand) for operand in operands)
    dims, ragged = properties["dims"].data, properties["ragged_dims"].data
    leading = (sizes.dims[-1],) if ragged[0] in dims.lhs_contracting else ()
    result = dot_result(dims, lhs, rhs, properties["group_dims"].data)
    return array_type(_wider(lhs.dtype, rhs.dtype), (*leading, *result))


def _convolution(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    lhs, rhs, dims = _array(operands[0]), _array(operands[1]), properties["dims"].data
    spatial, problem = window_result(tuple(lhs.dims[dim] for dim in dims.lhs_spatial), properties["window"].data)
    if problem:
        raise CannotInfer(problem)
    sizes = [0] * lhs.rank
    sizes[dims.out_batch] = lhs.dims[dims.lhs_batch] // properties["batch_group_count"].data
    sizes[dims.out_feature] = rhs.dims[dims.rhs_output_feature]
    for dim, size in zip(dims.out_spatial, spatial, strict=True):
        sizes[dim] = size
    return _sized(_wider(lhs.dtype, rhs.dtype), sizes)


def _returned(properties: Properties, known: Computations) -> list[str]:
    """Element types of what ``to_apply`` returns."""
    root = known[properties["to_apply"].data[0]].root.type
    return [_array(part).dtype for part in (root.data if isinstance(root, TupleType) else (root,))]


def _reduce(properties: Properties, operands: list[Any], known: Computations) -> Attribute:
    gone = set(properties["dimensions"].data)
    dims = tuple(size for dim, size in enumerate(_array(operands[0]).dims) if dim not in gone)
    return _several([array_type(dtype, dims) for dtype in _returned(properties, known)])


def _reduce_window(properties: Properties, operands: list[Any], known: Computations) -> Attribute:
    dims, problem = window_result(_array(operands[0]).dims, properties["window"].data)
    if problem:
        raise CannotInfer(problem)
    return _several([_sized(dtype, list(dims)) for dtype in _returned(properties, known)])


def _map(properties: Properties, operands: list[Any], known: Computations) -> Attribute:
    return array_type(_returned(properties, known)[0], _array(operands[0]).dims)


def _scatter(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    return _several(operands[: len(operands) // 2])


def _gather(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    operand, indices = _array(operands[0]), _array(operands[1])
    dims = properties["dims"].data
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    window = [size for dim, size in enumerate(properties["slice_sizes"].data) if dim not in gone]
    batch = [size for dim, size in enumerate(indices.dims) if dim != dims.index_vector_dim]
    places = set(dims.offset_dims)
    parts = {True: iter(window), False: iter(batch)}
    return _sized(operand.dtype, [next(parts[dim in places], -1) for dim in range(len(window) + len(batch))])


def _element(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    if not isinstance(operands[0], TupleType) or properties["index"].data < 0:
        raise CannotInfer("expected an element of a tuple")
    found: Attribute = operands[0].data[properties["index"].data]
    return found


def _fft(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    shape, kind, lengths = _array(operands[0]), properties["fft_type"].data, properties["fft_length"].data
    if kind == "RFFT":
        return _sized(_WHOLES[shape.dtype], [*shape.dims[:-1], lengths[-1] // 2 + 1 if lengths[-1] else 0])
    if kind == "IRFFT":
        return _sized(_PARTS[shape.dtype], [*shape.dims[:-1], lengths[-1]])
    return operands[0]  # type: ignore[no-any-return]


def _normalised(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    shape = _array(operands[0])
    feature = array_type(shape.dtype, (shape.dims[properties["feature_index"].data],))
    return tuple_type((operands[0], feature, feature))


def _topk(properties: Properties, operands: list[Any], _: Computations) -> Attribute:
    shape = _array(operands[0])
    dims = [*shape.dims[:-1], properties["k"].data]
    return tuple_type((_sized(shape.dtype, dims), _sized("s32", dims)))


def _scan(properties: Properties, operands: list[Any], known: Computations) -> Attribute:
    """What the body makes at each step gets the scanned dim, in front of the carries."""
    carries, axis = properties["num_carries"].data, properties["dimension"].data
    root = known[properties["to_apply"].data[0]].root.type
    parts = list(root.data) if isinstance(root, TupleType) else [root]
    size = _array(operands[0]).dims[axis] if len(operands) > carries else 0
    made = [_array(part) for part in parts[: len(parts) - carries]]
    whole = [_sized(part.dtype, [*part.dims[:axis], size, *part.dims[axis:]]) for part in made]
    return tuple_type((*whole, *parts[len(made) :]))


_AS_THE_FIRST = frozenset(
    ["add-dependency", "batch-norm-inference", "cholesky", "domain", "reverse", "select-and-scatter", "while"]
) | (opcodes(ElementwiseOp) - opcodes(ConvertOp, ReducePrecisionOp, StochasticConvertOp))
_RULES: dict[str, Infer] = {
    **dict.fromkeys(_AS_THE_FIRST, _like(0)),
    "abs": _typed(_PARTS),
    "after-all": lambda *_: TOKEN,
    "batch-norm-grad": _normalised,
    "batch-norm-training": _normalised,
    "broadcast": _broadcast,
    "call": _callee("to_apply"),
    "clamp": _like(1),
    "compare": _typed("pred"),
    "complex": _typed(_WHOLES),
    "concatenate": _concatenate,
    "conditional": _callee("branches"),
    "convolution": _convolution,
    "dot": _dot,
    "fft": _fft,
    "gather": _gather,
    "get-dimension-size": lambda *_: array_type("s32", ()),
    "get-tuple-element": _element,
    "imag": _typed(_PARTS),
    "is-finite": _typed("pred"),
    "map": _map,
    "pad": _pad,
    "partition-id": lambda *_: array_type("u32", ()),
    "ragged-dot": _ragged_dot,
    "real": _typed(_PARTS),
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "replica-id": lambda *_: array_type("u32", ()),
    "scan": _scan,
    "scatter": _scatter,
    "select": _like(1),
    "sort": lambda _, operands, __: _several(operands),
    "topk": _topk,
    "transpose": _transpose,
    "triangular-solve": _like(1),
    "tuple": lambda _, operands, __: tuple_type(tuple(operands)),
}
