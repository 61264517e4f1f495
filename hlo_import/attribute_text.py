"""Properties of the hlo ops -> HLO text attributes: the inverse of ``attributes``."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from neuronx_cc.hlo_import.attributes import DOT_DIMS, FIELDS, GATHER_DIMS, SCATTER_DIMS
from neuronx_cc.ir import hlo

Reference = Callable[[str], str]
"""Computation name -> its text, with ``%`` or without."""


_ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f]')
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote(text: str) -> str:
    """A C-escaped quoted string."""
    escaped = _ESCAPED.sub(lambda match: _SHORT.get(match[0], "\\" + format(ord(match[0]), "03o")), text)
    return f'"{escaped}"'


def braces(values: tuple[Any, ...]) -> str:
    return f"{{{','.join(map(str, values))}}}"


def window_text(window: tuple[hlo.WindowDim, ...]) -> str:
    """``{size=3x3 pad=1_1x1_1}``; fields that all have their default are left out."""
    columns = [
        ("size", [str(dim.size) for dim in window], ""),
        ("stride", [str(dim.stride) for dim in window], "1"),
        ("pad", [f"{dim.pad_low}_{dim.pad_high}" for dim in window], "0_0"),
        ("lhs_dilate", [str(dim.lhs_dilation) for dim in window], "1"),
        ("rhs_dilate", [str(dim.rhs_dilation) for dim in window], "1"),
        ("rhs_reversal", [str(int(dim.reversal)) for dim in window], "0"),
    ]
    shown = [f"{name}={'x'.join(column)}" for name, column, default in columns if any(v != default for v in column)]
    return f"{{{' '.join(shown)}}}"


def dim_labels_text(dims: hlo.ConvDims) -> str:
    """``bf01_oi01->bf01``."""

    def labels(first: tuple[str, int], second: tuple[str, int], spatial: tuple[int, ...]) -> str:
        places = {first[1]: first[0], second[1]: second[0], **{place: str(n) for n, place in enumerate(spatial)}}
        return "".join(places[place] for place in sorted(places))

    lhs = labels(("b", dims.lhs_batch), ("f", dims.lhs_feature), dims.lhs_spatial)
    rhs = labels(("i", dims.rhs_input_feature), ("o", dims.rhs_output_feature), dims.rhs_spatial)
    out = labels(("b", dims.out_batch), ("f", dims.out_feature), dims.out_spatial)
    return f"{lhs}_{rhs}->{out}"


def _slices(dims: tuple[hlo.SliceDim, ...]) -> str:
    texts = [f"[{d.start}:{d.limit}]" if d.stride == 1 else f"[{d.start}:{d.limit}:{d.stride}]" for d in dims]
    return f"{{{', '.join(texts)}}}"


def padding_text(dims: tuple[hlo.PadDim, ...]) -> str:
    """``1_2_1x0_-1``."""
    return "x".join(f"{d.low}_{d.high}_{d.interior}" if d.interior else f"{d.low}_{d.high}" for d in dims)


def _value_text(attribute: hlo.Attribute) -> str:
    if isinstance(attribute, hlo.BoolAttr):
        return "true" if attribute.data else "false"
    if isinstance(attribute, hlo.IntsAttr | hlo.StrsAttr):
        return braces(attribute.data)
    if isinstance(attribute, hlo.GroupsAttr):
        return braces(tuple(map(braces, attribute.data)))
    if isinstance(attribute, hlo.WindowAttr):
        return window_text(attribute.data)
    if isinstance(attribute, hlo.SliceAttr):
        return _slices(attribute.data)
    if isinstance(attribute, hlo.PaddingAttr):
        return padding_text(attribute.data)
    if isinstance(attribute, hlo.ConvDimsAttr):
        return dim_labels_text(attribute.data)
    if isinstance(attribute, hlo.FloatAttr):
        return str(np.float32(attribute.data))
    return str(attribute.data)  # type: ignore[attr-defined]


_SINGLE_DIM = frozenset(["all_gather_dimension", "split_dimension", "scatter_dimension", "dimension"])
_QUOTED = frozenset(["target", "backend_config"])
_CALLS = frozenset(["to_apply", "calls", "body", "condition"])
_HIDDEN_DEFAULTS: dict[str, Any] = {
    "indices_are_sorted": False,
    "unique_indices": False,
    "is_stable": False,
    "feature_group_count": 1,
    "batch_group_count": 1,
    "left_side": False,
    "unit_diagonal": False,
}


def attribute_texts(op: hlo.HloOp, reference: Reference) -> Iterator[tuple[str, str]]:
    """(name, text) of the attributes of ``op`` in a fixed order, ``extra`` last."""
    opcode, properties = op.opcode, op.properties
    yield from _grouped(op, reference)
    printed: set[str] = set()
    for field in FIELDS.get(opcode, ()):
        attribute: Any = properties.get(field.property)
        if attribute is None or field.property in printed:
            continue
        printed.add(field.property)
        data = attribute.data
        if _HIDDEN_DEFAULTS.get(field.property, _HIDDEN_DEFAULTS) == data:
            continue
        if field.property == "comparison_type":
            if data == "TOTALORDER":
                yield "type", data
        elif field.property in _SINGLE_DIM:
            yield field.name, f"{{{data}}}"
        elif field.property in _CALLS:
            yield field.name, reference(data[0])
        elif field.property == "called":
            yield field.name, braces(tuple(map(reference, data)))
        elif field.property in _QUOTED:
            yield field.name, quote(data)
        elif field.property == "window" and not data:
            continue
        else:
            yield field.name, _value_text(attribute)
    extra = properties.get("extra")
    if isinstance(extra, hlo.ExtraAttr):
        yield from extra.data


def _grouped(op: hlo.HloOp, reference: Reference) -> Iterator[tuple[str, str]]:
    """Properties that HLO text spreads over several attributes."""
    if isinstance(op, hlo.DotOp | hlo.RaggedDotOp | hlo.ScaledDotOp):
        dot = op.dims.data
        for name, field in DOT_DIMS.items():
            dims = getattr(dot, field)
            if dims or name.endswith("contracting_dims"):
                yield name, braces(dims)
    elif isinstance(op, hlo.GatherOp | hlo.ScatterOp):
        indexed = op.dims.data
        for name in GATHER_DIMS if isinstance(op, hlo.GatherOp) else SCATTER_DIMS:
            value = getattr(indexed, name)
            if name == "index_vector_dim":
                yield name, str(value)
            elif value or "batching" not in name:
                yield name, braces(value)
    elif isinstance(op, hlo.SelectAndScatterOp):
        yield "select", reference(op.to_apply.data[0])
        yield "scatter", reference(op.to_apply.data[1])
    elif isinstance(op, hlo.ConditionalOp):
        branches = op.branches.data
        selector = op.operands[0].type if op.operands else None
        if isinstance(selector, hlo.ArrayType) and selector.data.dtype == "pred" and len(branches) == 2:
            yield "true_computation", reference(branches[0])
            yield "false_computation", reference(branches[1])
        else:
            yield "branch_computations", braces(tuple(map(reference, branches)))
