"""Lowerings of ops that are kernels of their own, by opcode."""

from collections.abc import Callable

from neuronx_cc.codegen import indexed_kernel, movement_kernel, reduce_kernel

LOWERINGS: dict[str, Callable[..., None]] = {
    "bitcast-convert": movement_kernel.bitcast_convert,
    "concatenate": movement_kernel.concatenate,
    "dynamic-slice": indexed_kernel.dynamic_slice,
    "dynamic-update-slice": indexed_kernel.dynamic_update_slice,
    "gather": indexed_kernel.gather,
    "pad": movement_kernel.pad,
    "reduce": reduce_kernel.lower,
}
"""opcode -> ``lower(context, op, step)``, which gives the op's results homes."""
