"""Lowerings of ops that are kernels of their own, by opcode."""

from collections.abc import Callable

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions import kernel as conv_kernel
from neuronx_cc.codegen.dots import kernel as dot_kernel
from neuronx_cc.codegen.exchange import collective_kernel, host_kernel
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.indexing import gather_kernel, indexed_kernel, scatter_kernel, sort_kernel
from neuronx_cc.codegen.movement import concatenate_kernel as movement_kernel
from neuronx_cc.codegen.reductions import reduce_kernel, select_scatter_kernel, window_kernel

LOWERINGS: dict[str, Callable[..., None]] = {
    "all-gather": collective_kernel.lower,
    "all-reduce": collective_kernel.lower,
    "all-to-all": collective_kernel.lower,
    "bitcast-convert": movement_kernel.bitcast_convert,
    "collective-broadcast": collective_kernel.lower,
    "collective-permute": collective_kernel.lower,
    "concatenate": movement_kernel.concatenate,
    "custom-call": host_kernel.lower,
    "dynamic-slice": indexed_kernel.dynamic_slice,
    "dynamic-update-slice": indexed_kernel.dynamic_update_slice,
    "gather": gather_kernel.gather,
    "pad": movement_kernel.pad,
    "partition-id": collective_kernel.device_number,
    "reduce": reduce_kernel.lower,
    "reduce-scatter": collective_kernel.lower,
    "reduce-window": window_kernel.lower,
    "replica-id": collective_kernel.device_number,
    "scatter": scatter_kernel.scatter,
    "select-and-scatter": select_scatter_kernel.lower,
    "sort": sort_kernel.sort,
    "topk": sort_kernel.topk,
}
"""opcode -> ``lower(context, op, step)``, which gives the op's results homes."""

CONTRACTIONS: dict[str, Callable[[Context, Kernel, int], None]] = {
    "convolution": conv_kernel.lower,
    "dot": dot_kernel.lower,
}
"""The same, of those whose kernels have epilogues, by the opcode of the first op: ``lower(context, kernel, step)``."""
