"""HLO text attributes -> properties of the hlo ops: one table row per opcode.

``read_attributes`` takes the attributes of one instruction as text and returns the op's properties; what no
property covers is kept, as text, in the ``extra`` property.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.hlo_import.raw import Properties
from neuronx_cc.hlo_import.replica_groups import replica_groups
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import (
    BoolAttr,
    ConvDims,
    ConvDimsAttr,
    DotDims,
    DotDimsAttr,
    ExtraAttr,
    FloatAttr,
    GatherDims,
    GatherDimsAttr,
    GroupsAttr,
    IntAttr,
    IntsAttr,
    PadDim,
    PaddingAttr,
    ScatterDims,
    ScatterDimsAttr,
    SliceAttr,
    SliceDim,
    StrAttr,
    StrsAttr,
    WindowAttr,
    WindowDim,
)

Attributes = dict[str, str]
_ESCAPES = dict(zip("abfnrtv\\?'\"", "\a\b\f\n\r\t\v\\?'\"", strict=True))
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]+)|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))", re.DOTALL)
_ENDS = {quote: re.compile(rf"(?<!\\)(?:\\\\)*{quote}") for quote in "\"'"}
"""A quote that no backslash takes away."""


class MalformedAttribute(Exception):
    """What is wrong with attribute ``name``."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name
        self.message = message


def unquote(text: str) -> str:
    """A quoted string without its quotes and C escapes; what is not UTF-8 is read as Latin-1.

    Raises ValueError on text without quotes and on what is no escape.
    """
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        raise ValueError(f"expected a quoted string, found {text[:60]!r}")
    body = text[1:-1]
    if text[0] in body and _ENDS[text[0]].search(body):
        raise ValueError(f"expected one quoted string, found {text[:60]!r}")
    if "\\" not in body:
        return body

    def plain(match: re.Match[str]) -> bytes:
        octal, hexadecimal, short, long, letter = match.groups()
        if octal or hexadecimal:
            code = int(octal, 8) if octal else int(hexadecimal, 16)
            if code < 256:
                return bytes([code])
        elif short or long:
            code = int(short or long, 16)
            if code < 0x110000 and not 0xD800 <= code < 0xE000:
                return chr(code).encode()
        elif letter in _ESCAPES:
            return _ESCAPES[letter].encode()
        raise ValueError(f"expected an escape of C such as \\n or \\x41, found {match.group()!r}")

    parts, end = [], 0
    for match in _ESCAPE.finditer(body):
        parts += [body[end : match.start()].encode(), plain(match)]
        end = match.end()
    data = b"".join([*parts, body[end:].encode()])
    try:
        return data.decode()
    except UnicodeError:
        return data.decode("latin-1")


def integer(text: str) -> int:
    """An int64. Raises ValueError."""
    text = text.strip()
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise ValueError(f"expected an integer, found {text[:60]!r}")
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"expected a 64-bit integer, found {text}")
    return value


def single_precision(text: str) -> float:
    """A number as XLA keeps it, in f32. Raises ValueError."""
    with np.errstate(over="ignore"):
        return float(np.float32(text))


def braced(text: str) -> str:
    """The text between the braces. Raises ValueError."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(f"expected a list in braces, found {text[:60]!r}")
    return text[1:-1].strip()


def integers(text: str) -> tuple[int, ...]:
    """``{1,2}`` as a tuple of ints."""
    inside = braced(text)
    return tuple(integer(part) for part in inside.split(",")) if inside else ()


def names(text: str) -> tuple[str, ...]:
    """``{%a, b}`` or a single name, without ``%``."""
    inside = braced(text) if text.startswith("{") else text
    return tuple(part.strip().removeprefix("%") for part in inside.split(",")) if inside else ()


def computations(text: str) -> tuple[str, ...]:
    """As ``names``, of computations: at least one, none empty. Raises ValueError."""
    found = names(text)
    if not found or not all(found):
        raise ValueError(f"expected the name of a computation, found {text[:60]!r}")
    return found


def boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, found {text[:60]!r}")
    return text == "true"


def slice_dims(text: str) -> tuple[SliceDim, ...]:
    """``{[0:1], [0:8:2]}``."""
    if re.search(r"\d\s+[-\d]", text):
        raise ValueError(f"expected [start:limit:stride], found {text[:60]!r}")
    inside = "".join(braced(text).split())
    if not inside:
        return ()
    dims = []
    for part in re.split(r"(?<=\]),", inside):
        match = re.fullmatch(r"\[(-?\d{1,19}):(-?\d{1,19})(?::(-?\d{1,19}))?\]", part)
        if match is None:
            raise ValueError(f"expected [start:limit:stride], found {part[:60]!r}")
        dims.append(SliceDim(integer(match[1]), integer(match[2]), integer(match[3]) if match[3] else 1))
    return tuple(dims)


def padding(text: str) -> tuple[PadDim, ...]:
    """``1_2_1x0_-1``: low, high and optional interior padding a dimension."""
    if not text.strip():
        return ()
    dims = []
    for part in text.split("x"):
        amounts = [integer(amount) for amount in part.split("_")]
        if len(amounts) not in (2, 3):
            raise ValueError(f"expected low_high or low_high_interior, found {part[:60]!r}")
        dims.append(PadDim(*amounts))
    return tuple(dims)


def window(text: str) -> tuple[WindowDim, ...]:
    """``{size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=.. rhs_dilate=.. rhs_reversal=..}``."""
    fields: dict[str, list[str]] = {}
    for part in braced(text).split():
        key, _, value = part.partition("=")
        if key in fields:
            raise ValueError(f"expected window {key} once, found it twice")
        if key not in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal"):
            raise ValueError(f"expected size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal, found {key[:60]!r}")
        fields[key] = value.split("x")
    rank = len(fields.get("size", ()))
    for key, values in fields.items():
        if len(values) != rank:
            raise ValueError(f"expected {rank} values for window {key}, found {len(values)}")

    def column(key: str, default: int) -> list[int]:
        return [integer(value) for value in fields[key]] if key in fields else [default] * rank

    pads = [PadDim(0, 0)] * rank if "pad" not in fields else list(padding("x".join(fields["pad"])))
    rows = zip(
        column("size", 1),
        column("stride", 1),
        pads,
        column("lhs_dilate", 1),
        column("rhs_dilate", 1),
        column("rhs_reversal", 0),
        strict=True,
    )
    return tuple(
        WindowDim(size, stride, pad.low, pad.high, lhs, rhs, reversal == 1)
        for size, stride, pad, lhs, rhs, reversal in rows
    )


def dim_labels(text: str) -> ConvDims:
    """``bf01_oi01->bf01``."""
    match = re.fullmatch(r"([bf\d?]+)_([io\d?]+)->([bf\d?]+)", text)
    if match is None:
        raise ValueError(f"expected labels such as b01f_01io->b01f, found {text[:60]!r}")
    spatial = len(match[1]) - 2
    if spatial < 0 or spatial > 8:
        raise ValueError(f"expected 0 to 8 spatial dimensions, found {text[:60]!r}")

    def places(labels: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
        wanted = first + second + "".join(map(str, range(spatial)))
        if sorted(labels) != sorted(wanted):
            raise ValueError(f"expected the labels {wanted} in some order, found {labels[:60]!r}")
        return labels.index(first), labels.index(second), tuple(labels.index(str(n)) for n in range(spatial))

    lhs, rhs, out = places(match[1], "b", "f"), places(match[2], "i", "o"), places(match[3], "b", "f")
    return ConvDims(*lhs, *rhs, *out)


Reader = Callable[[str], hlo.Attribute]


def _wrap(attribute: Callable[[Any], hlo.Attribute], convert: Callable[[str], Any]) -> Reader:
    return lambda text: attribute(convert(text))


INT = _wrap(IntAttr, integer)
INTS = _wrap(IntsAttr, integers)
BOOL = _wrap(BoolAttr, boolean)
STR = _wrap(StrAttr, unquote)
CONFIG = _wrap(StrAttr, lambda text: text if text.startswith("{") else unquote(text))
CALLED = _wrap(StrsAttr, computations)
GROUPS = _wrap(GroupsAttr, replica_groups)
FLOAT = _wrap(FloatAttr, single_precision)


def _choice(*words: str) -> Reader:
    """One of ``words``, not quoted; XLA reads those in lower case in either."""

    def read(text: str) -> hlo.Attribute:
        text = text.lower() if words[0].islower() else text
        if text not in words:
            raise ValueError(f"expected {', '.join(words)}, found {text[:60]!r}")
        return StrAttr(text)

    return read


PRECISIONS = ("default", "high", "highest", "packed_nibble", "original")
_BF16, _TF32, _F8 = "dot_bf16_bf16_f32", "dot_tf32_tf32_f32", "dot_any_f8_any_f8"
_ALGORITHM = _choice(
    "dot_f16_f16_f16", "dot_f16_f16_f32", "dot_bf16_bf16_bf16", _BF16, f"{_BF16}_x3", f"{_BF16}_x6", f"{_BF16}_x9",
    _TF32, f"{_TF32}_x3", "dot_f32_f32_f32", "dot_f64_f64_f64", f"{_F8}_f32", f"{_F8}_f32_fast_accum", f"{_F8}_any",
    f"{_F8}_any_fast_accum",
)  # fmt: skip


def precisions(text: str) -> tuple[str, ...]:
    """``{high,default}``."""
    words = names(text)
    if not text.startswith("{") or any(word.lower() not in PRECISIONS for word in words):
        raise ValueError(f"expected a list of {', '.join(PRECISIONS)}, found {text[:60]!r}")
    return words


def _single(text: str) -> hlo.Attribute:
    values = integers(text)
    if len(values) != 1:
        raise ValueError(f"expected one dimension, found {text[:60]}")
    return IntAttr(values[0])


def _first(text: str) -> hlo.Attribute:
    """The first dimension; XLA overlooks those after it."""
    if not (values := integers(text)):
        raise ValueError("expected a dimension, found {}")
    return IntAttr(values[0])


_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Field:
    """Attribute ``name`` becomes property ``property``; without it the property gets ``default`` (None: is absent)."""

    name: str
    property: str
    read: Reader
    default: Any = _REQUIRED


NO, YES, ONE, NONE = BoolAttr(False), BoolAttr(True), IntAttr(1), IntsAttr(())
_TO_APPLY = Field("to_apply", "to_apply", CALLED)
_CALLS = Field("calls", "calls", CALLED)
_DIMENSIONS = Field("dimensions", "dimensions", INTS)
_GROUPS = Field("replica_groups", "replica_groups", GROUPS, None)
_PAIRS = Field("source_target_pairs", "source_target_pairs", GROUPS)
_PRECISION = Field("operand_precision", "operand_precision", _wrap(StrsAttr, precisions), None)
_WINDOW = Field("window", "window", _wrap(WindowAttr, window), WindowAttr(()))
_SORTED = Field("indices_are_sorted", "indices_are_sorted", BOOL, NO)
_NORM = (Field("epsilon", "epsilon", FLOAT), Field("feature_index", "feature_index", INT))


def _gathered(name: str, read: Reader = _single) -> Field:
    return Field("dimensions", name, read)


FIELDS: dict[str, tuple[Field, ...]] = {
    "all-gather": (_gathered("all_gather_dimension", _first), _GROUPS),
    "all-gather-start": (_gathered("all_gather_dimension", _first), _GROUPS),
    "all-reduce": (_TO_APPLY, _GROUPS),
    "all-reduce-start": (_TO_APPLY, _GROUPS),
    "all-to-all": (Field("dimensions", "split_dimension", _single, None), _GROUPS),
    "async-start": (_CALLS,),
    "batch-norm-grad": _NORM,
    "batch-norm-inference": _NORM,
    "batch-norm-training": _NORM,
    "broadcast": (Field("dimensions", "dimensions", INTS, NONE),),
    "call": (_TO_APPLY,),
    "cholesky": (Field("lower", "lower", BOOL, NO),),
    "collective-broadcast": (_GROUPS,),
    "collective-permute": (_PAIRS,),
    "collective-permute-start": (_PAIRS,),
    "collective-reduce": (_TO_APPLY, _GROUPS),
    "compare": (
        Field("direction", "direction", _choice("EQ", "NE", "GE", "GT", "LE", "LT")),
        Field("type", "comparison_type", _choice("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"), None),
    ),
    "concatenate": (_gathered("dimension"),),
    "convolution": (
        _WINDOW,
        Field("dim_labels", "dims", _wrap(ConvDimsAttr, dim_labels)),
        Field("feature_group_count", "feature_group_count", INT, ONE),
        Field("batch_group_count", "batch_group_count", INT, ONE),
        _PRECISION,
    ),
    "custom-call": (
        Field("custom_call_target", "target", STR),
        Field("backend_config", "backend_config", CONFIG, None),
        Field("called_computations", "called", CALLED, None),
        Field("to_apply", "called", CALLED, None),
    ),
    "dot": (_PRECISION, Field("algorithm", "algorithm", _ALGORITHM, None)),
    "dynamic-slice": (Field("dynamic_slice_sizes", "dynamic_slice_sizes", INTS),),
    "fft": (
        Field("fft_type", "fft_type", _choice("FFT", "IFFT", "RFFT", "IRFFT")),
        Field("fft_length", "fft_length", INTS),
    ),
    "fusion": (Field("kind", "kind", _choice("kLoop", "kInput", "kOutput", "kCustom")), _CALLS),
    "gather": (Field("slice_sizes", "slice_sizes", INTS), _SORTED),
    "get-dimension-size": (_gathered("dimension", _first),),
    "get-tuple-element": (Field("index", "index", INT),),
    "iota": (Field("iota_dimension", "iota_dimension", INT),),
    "map": (_TO_APPLY,),
    "pad": (Field("padding", "padding", _wrap(PaddingAttr, padding)),),
    "ragged-all-to-all": (_GROUPS,),
    "ragged-dot": (
        Field("lhs_ragged_dims", "ragged_dims", INTS, NONE),
        Field("rhs_group_dims", "group_dims", INTS, NONE),
        _PRECISION,
    ),
    "reduce": (_DIMENSIONS, _TO_APPLY),
    "reduce-precision": (
        Field("exponent_bits", "exponent_bits", INT),
        Field("mantissa_bits", "mantissa_bits", INT),
    ),
    "reduce-scatter": (_gathered("scatter_dimension", _first), _TO_APPLY, _GROUPS),
    "reduce-window": (_WINDOW, _TO_APPLY),
    "reverse": (_DIMENSIONS,),
    "rng": (Field("distribution", "distribution", _choice("rng_uniform", "rng_normal")),),
    "rng-bit-generator": (Field("algorithm", "algorithm", _choice("rng_default", "rng_philox", "rng_three_fry")),),
    "rng-get-and-update-state": (Field("delta", "delta", INT),),
    "scan": (
        _gathered("dimension"),
        Field("num_carries", "num_carries", INT),
        Field("is_reverse", "is_reverse", BOOL, NO),
        _TO_APPLY,
    ),
    "scatter": (_SORTED, Field("unique_indices", "unique_indices", BOOL, NO), _TO_APPLY),
    "select-and-scatter": (_WINDOW,),
    "set-dimension-size": (_gathered("dimension", _first),),
    "slice": (Field("slice", "slice", _wrap(SliceAttr, slice_dims)),),
    "sort": (_gathered("dimension"), Field("is_stable", "is_stable", BOOL, NO), _TO_APPLY),
    "topk": (Field("k", "k", INT), Field("largest", "largest", BOOL, YES)),
    "transpose": (_DIMENSIONS,),
    "triangular-solve": (
        Field("left_side", "left_side", BOOL, NO),
        Field("lower", "lower", BOOL, NO),
        Field("unit_diagonal", "unit_diagonal", BOOL, NO),
        Field("transpose_a", "transpose_a", _choice("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"), StrAttr("NO_TRANSPOSE")),
    ),
    "while": (Field("condition", "condition", CALLED), Field("body", "body", CALLED)),
}

DOT_DIMS = {
    "lhs_contracting_dims": "lhs_contracting",
    "rhs_contracting_dims": "rhs_contracting",
    "lhs_batch_dims": "lhs_batch",
    "rhs_batch_dims": "rhs_batch",
}
GATHER_DIMS = (
    "offset_dims",
    "collapsed_slice_dims",
    "start_index_map",
    "index_vector_dim",
    "operand_batching_dims",
    "start_indices_batching_dims",
)
SCATTER_DIMS = (
    "update_window_dims",
    "inserted_window_dims",
    "scatter_dims_to_operand_dims",
    "index_vector_dim",
    "input_batching_dims",
    "scatter_indices_batching_dims",
)


def _convert(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, OverflowError) as problem:
        raise MalformedAttribute(name, f"{problem} in {name}") from None


def _dot_dims(attributes: Attributes) -> Properties:
    fields = {
        field: _convert(name, attributes.pop(name), integers) for name, field in DOT_DIMS.items() if name in attributes
    }
    return {"dims": DotDimsAttr(DotDims(**fields))}


def _indexed_dims(opcode: str, attributes: Attributes) -> Properties:
    wanted = GATHER_DIMS if opcode == "gather" else SCATTER_DIMS
    if "index_vector_dim" not in attributes:
        raise MalformedAttribute("", f"expected attribute index_vector_dim on {opcode}")
    fields = {
        name: _convert(name, attributes.pop(name), integer if name == "index_vector_dim" else integers)
        for name in wanted
        if name in attributes
    }
    if opcode == "gather":
        return {"dims": GatherDimsAttr(GatherDims(**fields))}
    return {"dims": ScatterDimsAttr(ScatterDims(**fields))}


def _branches(attributes: Attributes) -> Properties:
    if "branch_computations" in attributes:
        name = "branch_computations"
        return {"branches": _convert(name, attributes.pop(name), CALLED)}
    if "true_computation" in attributes and "false_computation" in attributes:
        both = [attributes.pop("true_computation"), attributes.pop("false_computation")]
        return {"branches": StrsAttr(tuple(name.removeprefix("%") for name in both))}
    raise MalformedAttribute(
        "", "expected branch_computations, or true_computation and false_computation, on conditional"
    )


def _select_and_scatter(attributes: Attributes) -> Properties:
    if "select" not in attributes or "scatter" not in attributes:
        raise MalformedAttribute("", "expected attributes select and scatter on select-and-scatter")
    both = [attributes.pop("select"), attributes.pop("scatter")]
    return {"to_apply": StrsAttr(tuple(name.removeprefix("%") for name in both))}


def read_attributes(opcode: str, attributes: Attributes) -> Properties:
    """Properties of an op from its text attributes. Raises ``MalformedAttribute``."""
    left = dict(attributes)
    properties: Properties = {}
    if opcode in ("dot", "ragged-dot", "scaled-dot"):
        properties.update(_dot_dims(left))
    elif opcode in ("gather", "scatter"):
        properties.update(_indexed_dims(opcode, left))
    elif opcode == "conditional":
        properties.update(_branches(left))
    elif opcode == "select-and-scatter":
        properties.update(_select_and_scatter(left))
    for field in FIELDS.get(opcode, ()):
        text = left.pop(field.name, None)
        if text is not None:
            properties[field.property] = _convert(field.name, text, field.read)
        elif field.default is _REQUIRED:
            raise MalformedAttribute("", f"expected attribute {field.name} on {opcode}")
        elif field.default is not None:
            properties[field.property] = field.default
    if left:
        properties["extra"] = ExtraAttr(tuple(sorted(left.items())))
    return properties
