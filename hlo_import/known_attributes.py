"""Which attributes XLA's text has on which opcode and in a header; all others are refused, as XLA does."""

from neuronx_cc.hlo_import.attributes import DOT_DIMS, FIELDS, GATHER_DIMS, SCATTER_DIMS
from neuronx_cc.hlo_import.kept_text import check_text

EVERYWHERE = frozenset(
    [
        "backend_config",
        "control-predecessors",
        "frontend_attributes",
        "metadata",
        "origin",
        "parameter_replication",
        "sharding",
        "statistics",
    ]
)
HEADER = frozenset(
    [
        "alias_passthrough_params",
        "allow_spmd_sharding_propagation_to_output",
        "allow_spmd_sharding_propagation_to_parameters",
        "buffer_donor",
        "entry_computation_layout",
        "frontend_attributes",
        "input_output_alias",
        "is_scheduled",
        "num_partitions",
        "origin_recovery_table",
        "replica_count",
    ]
)
INLINE_CALLS = frozenset(
    ["to_apply", "body", "condition", "calls", "true_computation", "false_computation", "select", "scatter"]
)
"""Attributes whose computation may stand in place."""
ASYNC_ATTRIBUTES = frozenset(
    ["async_execution_thread", "backend_config", "control-predecessors", "frontend_attributes", "metadata", "sharding"]
)
"""Attributes of an asynchronous op itself when its short spelling also carries those of the op it wraps."""
COUNTS = ("replica_count", "num_partitions")
FLAGS = ("is_scheduled", "alias_passthrough_params")
_ROUNDED = (
    "acos acosh asin asinh atan atanh cbrt cosh cosine erf exponential exponential-minus-one log log-plus-one logistic "
    "rsqrt sine sinh sqrt tan tanh"
)
_REDUCING = "channel_id constrain_layout mode use_global_device_ids"
_TRANSFER = "channel_id is_host_transfer"
_ASYNC = "async_execution_thread calls"
_UNREAD: dict[str, str] = {
    **dict.fromkeys(_ROUNDED.split(), "result_accuracy"),
    "all-gather": _REDUCING,
    "all-gather-start": _REDUCING,
    "all-reduce": _REDUCING,
    "all-reduce-start": _REDUCING,
    "all-to-all": "channel_id constrain_layout",
    "async-done": _ASYNC,
    "async-start": f"{_ASYNC} output_to_operand_aliasing",
    "async-update": _ASYNC,
    "call": "is_composite",
    "collective-broadcast": "channel_id",
    "collective-permute": "channel_id slice_sizes",
    "collective-permute-start": "channel_id slice_sizes",
    "collective-reduce": "channel_id",
    "conditional": "branch_computations false_computation true_computation",
    "convolution": "convolution_kind sparsity_config",
    "copy-start": "cross_program_prefetch_index",
    "custom-call": "api_version batch_group_count custom_call_has_side_effect dim_labels feature_group_count literal "
    "operand_layout_constraints operand_precision output_to_operand_aliasing padding_type "
    "schedule window",
    "domain": "domain",
    "dot": " ".join(DOT_DIMS),
    "fusion": "output_to_operand_aliasing",
    "gather": " ".join(GATHER_DIMS),
    "infeed": "infeed_config",
    "map": "dimensions",
    "outfeed": "outfeed_config outfeed_shape",
    "ragged-all-to-all": "channel_id dimensions",
    "ragged-dot": " ".join(DOT_DIMS),
    "recv": _TRANSFER,
    "recv-done": _TRANSFER,
    "reduce-scatter": _REDUCING,
    "reshape": "inferred_dimension",
    "scaled-dot": f"algorithm operand_precision {' '.join(DOT_DIMS)}",
    "scan": "is_associative",
    "scatter": " ".join(SCATTER_DIMS),
    "select-and-scatter": "scatter select",
    "send": _TRANSFER,
    "send-done": _TRANSFER,
}
"""Attributes beside those of ``FIELDS``: several make one property, others are kept as text."""
KNOWN = {
    opcode: EVERYWHERE | {field.name for field in FIELDS.get(opcode, ())} | set(_UNREAD.get(opcode, "").split())
    for opcode in FIELDS.keys() | _UNREAD.keys()
}


def attribute_problem(opcode: str, attributes: dict[str, str]) -> tuple[str, str]:
    """The name of an attribute that XLA would refuse on ``opcode``, and what is wrong with it; two "" for none."""
    known = KNOWN.get(opcode, EVERYWHERE)
    read = {field.name for field in FIELDS.get(opcode, ())}
    for name, text in attributes.items():
        if name not in known:
            own = ", ".join(sorted(known - EVERYWHERE)) or "none of its own"
            return name, f"expected an attribute of {opcode} ({own}), found {name}"
        if name not in read or name in EVERYWHERE:
            try:
                check_text(name, text)
            except ValueError as problem:
                return name, f"{problem} in {name}"
    return "", ""
