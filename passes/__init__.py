"""HLO to HLO passes: one file a pass, found by name through loaders so that nothing is imported before it runs."""

from collections.abc import Callable
from importlib import import_module

if __name__ != "neuronx_cc.passes":
    raise ImportError("import this package as neuronx_cc.passes, not as passes")


def _loader(name: str) -> Callable[[], Callable[..., None]]:
    def load() -> Callable[..., None]:
        run: Callable[..., None] = import_module(f"neuronx_cc.passes.{name}").run
        return run

    return load


PASSES = {
    name: _loader(name)
    for name in (
        "accumulate_f32",
        "auto_cast",
        "batch_dims_first",
        "batch_loops",
        "canonical_indexing",
        "canonicalize",
        "cast_on_load",
        "check_operators",
        "check_shares",
        "chunk_scans",
        "clean_casts",
        "cse",
        "dce",
        "decode_floats",
        "decompose",
        "delay_sums",
        "demote_f64",
        "dequantize",
        "device_masks",
        "device_places",
        "dedupe_computations",
        "dissolve_tuples",
        "drop_tokens",
        "even_rows",
        "exact_integer_dots",
        "expand_argument_reductions",
        "expand_batch_norm",
        "expand_dots",
        "expand_fft",
        "expand_linear_algebra",
        "expand_custom_calls",
        "expand_ragged_dots",
        "expand_random",
        "expand_reductions",
        "expand_scan",
        "expand_select_and_scatter",
        "expand_windows",
        "features_first",
        "few_terms",
        "find_ragged_dots",
        "find_scans",
        "flatten_control",
        "expand_sort",
        "fold_constants",
        "fold_f64_constants",
        "fold_large_constants",
        "hoist_invariants",
        "hoist_products",
        "images_of_features",
        "implicit_integer_downcast",
        "inline_calls",
        "invert_divisors",
        "known_compares",
        "late_fills",
        "late_rounding",
        "lay_out_stacks",
        "merge_contracted",
        "merge_gathers",
        "moments",
        "narrow_contractions",
        "narrow_operands",
        "narrow_state",
        "nested_stacks",
        "one_counter",
        "ordered_states",
        "pointwise_convolutions",
        "remove_barriers",
        "repeated_in_order",
        "repeated_operands",
        "query_rows",
        "permuted_scatters",
        "quantize_weights",
        "reroll",
        "selected_coefficients",
        "resolve_collectives",
        "resolve_host_calls",
        "scalar_computations",
        "saturate_infinity",
        "scans_in_rows",
        "scatter_sums",
        "shared_matrices",
        "simplify_control",
        "sink_reshapes",
        "split_complex",
        "split_int64",
        "split_large_windows",
        "split_long_rows",
        "stack_parameters",
        "sums_after_loops",
        "table_functions",
        "thin_dots",
        "turn_products",
        "unroll_loops",
        "update_stacks",
        "views_before_sums",
        "widen_small_types",
    )
}
"""Pass name -> loader of its ``run(module, context)``; the name is also the file's and the command line's."""
