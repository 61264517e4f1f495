"""The pass pipelines as data: ordered stages, each a name and its passes in order.

The order matters in these places: rerolling sees the expansions that JAX emits before folding changes them; operators
are checked before anything is narrowed or cast, so that errors speak of the user's program; casts come after
simplification, so that a constant or a reshape never splits a cast from its dot; barriers fall last, after the last
CSE, because they exist to keep recomputation apart.
"""

Pipeline = tuple[tuple[str, tuple[str, ...]], ...]

IMPORT_CLEANUP = (
    "drop_tokens",
    "expand_scan",
    "inline_calls",
    "resolve_collectives",
    "flatten_control",
    "dissolve_tuples",
    "scalar_computations",
    "dce",
    "dedupe_computations",
)

DEFAULT_PIPELINE: Pipeline = (
    ("import-cleanup", IMPORT_CLEANUP),
    ("operators", ("fold_f64_constants", "check_operators", "check_shares")),
    (
        "expand",
        (
            "widen_small_types",
            "expand_custom_calls",
            "expand_random",
            "demote_f64",
            "expand_batch_norm",
            "find_ragged_dots",
            "expand_ragged_dots",
            "expand_dots",
            "expand_fft",
            "expand_linear_algebra",
            "resolve_host_calls",
            "split_complex",
            "implicit_integer_downcast",
            "split_int64",
            "batch_loops",
            "unroll_loops",
            "one_counter",
            "find_scans",
            "expand_reductions",
            "expand_windows",
            "expand_select_and_scatter",
        ),
    ),
    ("narrowing", ("fold_constants", "exact_integer_dots")),
    (
        "simplify",
        (
            "reroll",
            "dce",
            "canonicalize",
            "selected_coefficients",
            "fold_constants",
            "simplify_control",
            "device_places",
            "device_masks",
            "views_before_sums",
            "scatter_sums",
            "delay_sums",
            "decompose",
            "permuted_scatters",
            "expand_argument_reductions",
            "expand_sort",
            "merge_gathers",
            "canonical_indexing",
            "known_compares",
            "canonicalize",
            "late_fills",
            "shared_matrices",
            "narrow_contractions",
            "batch_dims_first",
            "repeated_in_order",
            "repeated_operands",
            "dequantize",
            "update_stacks",
            "hoist_invariants",
            "hoist_products",
            "sums_after_loops",
            "canonicalize",
            "cse",
            "dce",
        ),
    ),
    (
        "layout",
        (
            "even_rows",
            "query_rows",
            "nested_stacks",
            "lay_out_stacks",
            "thin_dots",
            "scans_in_rows",
            "chunk_scans",
            "merge_contracted",
            "images_of_features",
            "features_first",
            "pointwise_convolutions",
            "thin_dots",
            "ordered_states",
            "split_large_windows",
            "turn_products",
            "dce",
        ),
    ),
    (
        "precision",
        (
            "accumulate_f32",
            "sink_reshapes",
            "late_rounding",
            "few_terms",
            "moments",
            "split_long_rows",
            "quantize_weights",
            "auto_cast",
            "clean_casts",
            "narrow_state",
            "clean_casts",
            "narrow_results",
            "late_rounding",
            "values_of_rows",
            "narrow_operands",
            "decode_floats",
            "saturate_infinity",
            "invert_divisors",
        ),
    ),
    (
        "cleanup",
        (
            "fold_constants",
            "canonicalize",
            "lay_out_stacks",
            "fold_large_constants",
            "cse",
            "stack_parameters",
            "cast_on_load",
            "table_functions",
            "convert_rounded",
            "remove_barriers",
            "simplify_control",
            "dce",
        ),
    ),
)

PIPELINES: dict[str, Pipeline] = {"default": DEFAULT_PIPELINE, "import": (("import-cleanup", IMPORT_CLEANUP),)}


def pass_names(pipeline: Pipeline) -> list[str]:
    """The passes of ``pipeline`` in order, stages flattened."""
    return [name for _, names in pipeline for name in names]
