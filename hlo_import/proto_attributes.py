"""Fields of a decoded ``HloInstructionProto`` -> the attribute texts XLA would print.

Going through text keeps one table of attribute rules (``attributes``); the texts are short and memoised by the caller.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from neuronx_cc.hlo_import.attribute_text import braces, dim_labels_text, padding_text, quote, window_text
from neuronx_cc.hlo_import.attributes import CALLED, DOT_DIMS, FIELDS, GATHER_DIMS, SCATTER_DIMS, Attributes
from neuronx_cc.hlo_import.schema import (
    ALGORITHMS,
    API_VERSIONS,
    FFT_TYPES,
    PADDING_TYPES,
    PRECISIONS,
    RNG_ALGORITHMS,
    RNG_DISTRIBUTIONS,
    SCHEDULES,
    TRANSPOSES,
    TRISTATE,
)
from neuronx_cc.hlo_import.sharding_text import iota_groups_text, mesh_groups_text, sharding_text
from neuronx_cc.hlo_import.wire import Message
from neuronx_cc.ir import hlo

_BOOLEANS = (
    "use_global_device_ids",
    "custom_call_has_side_effect",
    "is_host_transfer",
    "is_composite",
    "is_stable",
    "indices_are_sorted",
    "unique_indices",
)


@cache
def _fields(opcode: str) -> frozenset[str]:
    """The properties of an op that attributes of their own say."""
    return frozenset(field.property for field in FIELDS.get(opcode, ()))


@cache
def _called_by(opcode: str) -> tuple[str, ...]:
    """The attributes that name the computations an op calls, in the proto's order."""
    if opcode == "select-and-scatter":
        return ("select", "scatter")
    return tuple(sorted(field.name for field in FIELDS.get(opcode, ()) if field.read is CALLED))


class ProtoAttributes:
    """Converts the instructions of one module. ``computation`` and ``instruction`` map ids to names."""

    def __init__(self, computation: Callable[[int], str], shape_text: Callable[[tuple[int, int]], str]):
        self.computation = computation
        self.shape_text = shape_text

    def texts(self, opcode: str, proto: Message, control: list[str]) -> Attributes:
        """Attribute name -> text. Raises ValueError and KeyError on values XLA never writes."""
        out: Attributes = {}
        specific = _BY_OPCODE.get(opcode)
        if specific is not None:
            specific(proto, out)
        self._calls(opcode, proto, out)
        for name in _BOOLEANS:
            if proto.get(name):
                out[name] = "true"
        if proto.get("channel_id", 0) > 0:
            out["channel_id"] = str(proto["channel_id"])
        self._collective(opcode, proto, out)
        if "sharding" in proto:
            out["sharding"] = sharding_text(proto["sharding"])
        if proto.get("frontend_attributes", {}).get("map"):
            out["frontend_attributes"] = frontend_text(proto["frontend_attributes"])
        if proto.get("backend_config"):
            out["backend_config"] = config_text(proto["backend_config"], opcode == "custom-call")
        if control:
            out["control-predecessors"] = f"{{{', '.join(control)}}}"
        if aliases := proto.get("output_operand_aliasing"):
            out["output_to_operand_aliasing"] = f"{{{', '.join(map(_operand_alias, aliases))}}}"
        if proto.get("async_execution_thread") not in (None, "", "main"):
            out["async_execution_thread"] = quote(proto["async_execution_thread"])
        if "cross_program_prefetch_index" in proto:
            out["cross_program_prefetch_index"] = str(proto["cross_program_prefetch_index"])
        if leaves := proto.get("parameter_replication", {}).get("replicated_at_leaf_buffers"):
            out["parameter_replication"] = braces(tuple("true" if leaf else "false" for leaf in leaves))
        if proto.get("padding_type"):
            out["padding_type"] = PADDING_TYPES[proto["padding_type"]]
        if accuracy := accuracy_text(proto.get("result_accuracy", {})):
            out["result_accuracy"] = accuracy
        self._custom(opcode, proto, out)
        return out

    def _calls(self, opcode: str, proto: Message, out: Attributes) -> None:
        names = [self.computation(number) for number in proto.get("called_computation_ids", ())]
        if opcode == "conditional":
            out["branch_computations"] = braces(tuple(names))
        elif opcode == "custom-call":
            if names:
                out["called_computations"] = braces(tuple(names))
        elif wanted := _called_by(opcode):
            if len(names) != len(wanted):
                raise ValueError(f"expected {len(wanted)} called computations, found {len(names)}")
            out.update(zip(wanted, names, strict=True))

    def _collective(self, opcode: str, proto: Message, out: Attributes) -> None:
        devices = proto.get("collective_device_list", {})
        groups = devices.get("replica_groups") or proto.get("replica_groups")
        if iota := proto.get("iota_collective_device_list") or devices.get("iota_replica_group_list"):
            out["replica_groups"] = iota_groups_text(iota)
        elif mesh := proto.get("mesh_axes_replica_group_list"):
            out["replica_groups"] = mesh_groups_text(mesh)
        elif groups:
            out["replica_groups"] = braces(tuple(braces(tuple(group.get("replica_ids", ()))) for group in groups))
        elif "replica_groups" in _fields(opcode):
            out["replica_groups"] = "{}"
        if opcode in ("collective-permute", "collective-permute-start"):
            pairs = proto.get("source_target_pairs", ())
            out["source_target_pairs"] = braces(
                tuple(braces((pair.get("source", 0), pair.get("target", 0))) for pair in pairs)
            )

    def _custom(self, opcode: str, proto: Message, out: Attributes) -> None:
        if opcode == "outfeed" and "outfeed_shape" in proto:
            out["outfeed_shape"] = self.shape_text(proto["outfeed_shape"][-1])
        if opcode != "custom-call":
            return
        if proto.get("constrain_layout"):
            shapes = ", ".join(map(self.shape_text, proto.get("operand_shapes_with_layout", ())))
            out["operand_layout_constraints"] = f"{{{shapes}}}"
        if proto.get("custom_call_schedule"):
            out["schedule"] = SCHEDULES[proto["custom_call_schedule"]]
        if proto.get("custom_call_api_version", 0) > 1:
            out["api_version"] = API_VERSIONS[proto["custom_call_api_version"]]
        if "window" in proto and proto["window"].get("dimensions"):
            _window(proto, out)
        if "convolution_dimension_numbers" in proto:
            out["dim_labels"] = dim_labels_text(_conv_dims(proto["convolution_dimension_numbers"]))


def frontend_text(attributes: Message) -> str:
    """``{a="b",c="d"}``."""
    pairs = sorted((entry.get("key", ""), entry.get("value", "")) for entry in attributes.get("map", ()))
    shown = [f"{key}={value if value.startswith('{') else quote(value)}" for key, value in pairs]
    return braces(tuple(shown))


def config_text(config: bytes, quoted: bool) -> str:
    """A backend config: JSON objects stand as they are, their keys sorted as XLA prints them; the rest is quoted."""
    text = config.decode("utf-8", "replace")
    if quoted or not text.startswith("{"):
        return quote(text)
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return quote(text)


def accuracy_text(accuracy: Message) -> str:
    if tolerance := accuracy.get("tolerance"):
        fields = [tolerance.get("atol", 0.0), tolerance.get("rtol", 0.0), tolerance.get("ulps", 0)]
        return f"{{tolerance={{atol={fields[0]!r}, rtol={fields[1]!r}, ulps={fields[2]}}}}}"
    return "{mode=highest}" if accuracy.get("mode") == 1 else ""


def _operand_alias(alias: Message) -> str:
    output, operand = alias.get("output_shape_index", ()), alias.get("operand_shape_index", ())
    return f"{_index(output)}: ({alias.get('operand_index', 0)}, {_index(operand)})"


def _index(numbers: Any) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _dimensions(proto: Message, out: Attributes) -> None:
    out["dimensions"] = _index(proto.get("dimensions", ()))


def _optional_dimensions(proto: Message, out: Attributes) -> None:
    if proto.get("dimensions"):
        _dimensions(proto, out)


def _window(proto: Message, out: Attributes) -> None:
    dims = proto.get("window", {}).get("dimensions", ())
    if dims:
        out["window"] = window_text(
            tuple(
                hlo.WindowDim(
                    dim.get("size", 0),
                    dim.get("stride", 0),
                    dim.get("padding_low", 0),
                    dim.get("padding_high", 0),
                    dim.get("base_dilation", 0),
                    dim.get("window_dilation", 0),
                    dim.get("window_reversal", False),
                )
                for dim in dims
            )
        )


def _conv_dims(numbers: Message) -> hlo.ConvDims:
    spatial = [tuple(numbers.get(f"{side}_spatial_dimensions", ())) for side in ("input", "kernel", "output")]
    dims = hlo.ConvDims(
        numbers.get("input_batch_dimension", 0),
        numbers.get("input_feature_dimension", 0),
        spatial[0],
        numbers.get("kernel_input_feature_dimension", 0),
        numbers.get("kernel_output_feature_dimension", 0),
        spatial[1],
        numbers.get("output_batch_dimension", 0),
        numbers.get("output_feature_dimension", 0),
        spatial[2],
    )
    sides = (
        (dims.lhs_batch, dims.lhs_feature, *dims.lhs_spatial),
        (dims.rhs_input_feature, dims.rhs_output_feature, *dims.rhs_spatial),
        (dims.out_batch, dims.out_feature, *dims.out_spatial),
    )
    for side in sides:
        if sorted(side) != list(range(len(side))):
            raise ValueError(f"expected convolution dimension numbers that permute the dims, found {side}")
    return dims


def _precision(proto: Message, out: Attributes) -> None:
    config = proto.get("precision_config", {})
    precisions = config.get("operand_precision", ())
    if any(precisions):
        out["operand_precision"] = braces(tuple(PRECISIONS[one] for one in precisions))
    if config.get("algorithm"):
        out["algorithm"] = ALGORITHMS[config["algorithm"]]


def _dot(proto: Message, out: Attributes) -> None:
    ragged = proto.get("ragged_dot_dimension_numbers", {})
    numbers = proto.get("dot_dimension_numbers") or ragged.get("dot_dimension_numbers", {})
    for name, field in DOT_DIMS.items():
        if field in numbers:
            out[name] = _index(numbers[field])
    if ragged:
        out["lhs_ragged_dims"] = _index(ragged.get("lhs_ragged_dimensions", ()))
        out["rhs_group_dims"] = _index(ragged.get("rhs_group_dimensions", ()))
    _precision(proto, out)


def _convolution(proto: Message, out: Attributes) -> None:
    _window(proto, out)
    out["dim_labels"] = dim_labels_text(_conv_dims(proto.get("convolution_dimension_numbers", {})))
    out["feature_group_count"] = str(proto.get("feature_group_count", 1) or 1)
    out["batch_group_count"] = str(proto.get("batch_group_count", 1) or 1)
    _precision(proto, out)


def _indexed(field: str, names: tuple[str, ...]) -> Callable[[Message, Attributes], None]:
    def convert(proto: Message, out: Attributes) -> None:
        numbers = proto.get(field, {})
        for name in names:
            if name == "index_vector_dim":
                out[name] = str(numbers.get(name, 0))
            elif name in numbers:
                out[name] = _index(numbers[name])
        if field == "gather_dimension_numbers":
            out["slice_sizes"] = _index(proto.get("gather_slice_sizes", ()))

    return convert


def _slice(proto: Message, out: Attributes) -> None:
    parts = [
        f"[{d.get('start', 0)}:{d.get('limit', 0)}:{d.get('stride', 0)}]" for d in proto.get("slice_dimensions", ())
    ]
    out["slice"] = f"{{{', '.join(parts)}}}"


def _pad(proto: Message, out: Attributes) -> None:
    dims = proto.get("padding_config", {}).get("dimensions", ())
    out["padding"] = padding_text(
        tuple(
            hlo.PadDim(d.get("edge_padding_low", 0), d.get("edge_padding_high", 0), d.get("interior_padding", 0))
            for d in dims
        )
    )


def _norm(proto: Message, out: Attributes) -> None:
    out["epsilon"] = f"{proto.get('epsilon', 0.0):.9g}"
    out["feature_index"] = str(proto.get("feature_index", 0))


def _compare(proto: Message, out: Attributes) -> None:
    out["direction"] = proto.get("comparison_direction", "")
    if proto.get("comparison_type"):
        out["type"] = proto["comparison_type"]


def _triangular_solve(proto: Message, out: Attributes) -> None:
    options = proto.get("triangular_solve_options", {})
    for name in ("left_side", "lower", "unit_diagonal"):
        out[name] = "true" if options.get(name) else "false"
    out["transpose_a"] = TRANSPOSES[options.get("transpose_a", 1)]


def _numbers(*fields: str) -> Callable[[Message, Attributes], None]:
    def convert(proto: Message, out: Attributes) -> None:
        out.update({name: str(proto.get(name, 0)) for name in fields})

    return convert


def _domain(proto: Message, out: Attributes) -> None:
    # the text names them by the user's side, the proto by the operand's
    entry, exit_ = (sharding_text(proto.get(f"domain_{side}_sharding", {})) for side in ("exit", "entry"))
    out["domain"] = f'{{kind="sharding", entry={entry}, exit={exit_}}}'


def _one(target: str, convert: Callable[[Message], str]) -> Callable[[Message, Attributes], None]:
    def apply(proto: Message, out: Attributes) -> None:
        out[target] = convert(proto)

    return apply


def _scan(proto: Message, out: Attributes) -> None:
    _dimensions(proto, out)
    out["num_carries"] = str(proto.get("num_carries", 0))
    if proto.get("is_reverse"):
        out["is_reverse"] = "true"
    if proto.get("is_associative"):
        out["is_associative"] = TRISTATE[proto["is_associative"]]


def _fft(proto: Message, out: Attributes) -> None:
    out["fft_type"] = FFT_TYPES[proto.get("fft_type", 0)]
    out["fft_length"] = _index(proto.get("fft_length", ()))


def _topk(proto: Message, out: Attributes) -> None:
    out["k"] = str(proto.get("k", 0))
    out["largest"] = "true" if proto.get("largest") else "false"


def _config(name: str) -> Callable[[Message, Attributes], None]:
    def convert(proto: Message, out: Attributes) -> None:
        if proto.get(name):
            out[name] = quote(proto[name].decode("utf-8", "replace"))

    return convert


_BY_OPCODE: dict[str, Callable[[Message, Attributes], None]] = {
    "all-gather": _dimensions,
    "all-gather-start": _dimensions,
    "all-to-all": _optional_dimensions,
    "batch-norm-grad": _norm,
    "batch-norm-inference": _norm,
    "batch-norm-training": _norm,
    "broadcast": _dimensions,
    "cholesky": _one("lower", lambda p: "true" if p.get("cholesky_options", {}).get("lower") else "false"),
    "compare": _compare,
    "concatenate": _dimensions,
    "convolution": _convolution,
    "custom-call": _one("custom_call_target", lambda p: quote(p.get("custom_call_target", ""))),
    "domain": _domain,
    "dot": _dot,
    "dynamic-slice": _one("dynamic_slice_sizes", lambda p: _index(p.get("dynamic_slice_sizes", ()))),
    "fft": _fft,
    "fusion": _one("kind", lambda p: p.get("fusion_kind", "kCustom")),
    "gather": _indexed("gather_dimension_numbers", GATHER_DIMS),
    "get-dimension-size": _dimensions,
    "get-tuple-element": _one("index", lambda p: str(p.get("tuple_index", 0))),
    "infeed": _config("infeed_config"),
    "iota": _one("iota_dimension", lambda p: str((p.get("dimensions") or [0])[0])),
    "map": _optional_dimensions,
    "outfeed": _config("outfeed_config"),
    "pad": _pad,
    "ragged-dot": _dot,
    "reduce": _dimensions,
    "reduce-precision": _numbers("exponent_bits", "mantissa_bits"),
    "reduce-scatter": _dimensions,
    "reduce-window": _window,
    "reverse": _dimensions,
    "rng": _one("distribution", lambda p: RNG_DISTRIBUTIONS[p.get("distribution", 0)]),
    "rng-bit-generator": _one("algorithm", lambda p: RNG_ALGORITHMS[p.get("rng_algorithm", 0)]),
    "rng-get-and-update-state": _numbers("delta"),
    "scaled-dot": _dot,
    "scan": _scan,
    "scatter": _indexed("scatter_dimension_numbers", SCATTER_DIMS),
    "select-and-scatter": _window,
    "set-dimension-size": _dimensions,
    "slice": _slice,
    "sort": _dimensions,
    "topk": _topk,
    "transpose": _dimensions,
    "triangular-solve": _triangular_solve,
}
