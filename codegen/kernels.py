"""Lowerings of ops that are kernels of their own, by opcode."""

from collections.abc import Callable
from dataclasses import dataclass

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions import kernel as conv_kernel
from neuronx_cc.codegen.dots import kernel as dot_kernel
from neuronx_cc.codegen.exchange import collective_kernel, host_kernel
from neuronx_cc.codegen.factors import cholesky_kernel, lu_kernel
from neuronx_cc.codegen.indexing import gather_kernel, indexed_kernel, scatter_kernel, sort_kernel
from neuronx_cc.codegen.movement import concatenate_kernel as movement_kernel
from neuronx_cc.codegen.movement import tail_kernel
from neuronx_cc.codegen.reductions import reduce_kernel, select_scatter_kernel, window_kernel
from neuronx_cc.ir import hlo
from neuronx_cc.ir.factors import CHOLESKY, LU


@dataclass(frozen=True, slots=True)
class Lowering:
    """How an op becomes a kernel."""

    lower: Callable[..., None]
    """``lower(context, op, step)``, of a contraction ``lower(context, kernel, step)``: gives results homes."""
    in_part: str = ""
    """Why the kernel may leave elements of its operands unread; empty if it reads all (``needs``)."""


_TARGETS = {CHOLESKY: cholesky_kernel.lower, LU: lu_kernel.lower}
"""Custom calls that passes make; others are calls of the host."""


def _called(context: Context, op: hlo.CustomCallOp, step: int) -> None:
    _TARGETS.get(op.target.data, host_kernel.lower)(context, op, step)


_EXCHANGE = Lowering(collective_kernel.lower, "one instruction between whole arrays")
_NUMBER = Lowering(collective_kernel.device_number, "no operands")

CONTRACTIONS: dict[str, Lowering] = {
    "convolution": Lowering(conv_kernel.lower, "strides step over elements"),
    "dot": Lowering(dot_kernel.lower),
}
"""Ops whose kernels have epilogues, by the opcode of the first op."""
LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("all-gather", "all-reduce", "all-to-all", "reduce-scatter"), _EXCHANGE),
    **dict.fromkeys(("collective-broadcast", "collective-permute"), _EXCHANGE),
    **dict.fromkeys(("partition-id", "replica-id"), _NUMBER),
    "bitcast-convert": Lowering(movement_kernel.bitcast_convert),
    "concatenate": Lowering(movement_kernel.concatenate),
    "custom-call": Lowering(_called, "one instruction with a buffer of its own, or one triangle"),
    "dynamic-slice": Lowering(indexed_kernel.dynamic_slice, "a window"),
    "dynamic-update-slice": Lowering(
        indexed_kernel.dynamic_update_slice, "what the update replaces is not read, the rest may stay where it is"
    ),
    "gather": Lowering(gather_kernel.gather, "what the indices say"),
    "pad": Lowering(movement_kernel.pad, "negative padding cuts elements off"),
    "reduce": Lowering(reduce_kernel.lower),
    "reduce-window": Lowering(window_kernel.lower, "windows may lie apart"),
    "scatter": Lowering(scatter_kernel.scatter, "rows that are replaced, and updates that lie outside"),
    "select": Lowering(tail_kernel.lower, "all but the tail stays where it is"),
    "select-and-scatter": Lowering(select_scatter_kernel.lower, "windows may lie apart"),
    "sort": Lowering(sort_kernel.sort),
    "topk": Lowering(sort_kernel.topk),
}
"""All other ops that are kernels of their own. Loops and branches, whose kernels have needs of their own, are
``control``'s; maps and attentions are several ops each, and read all elements."""
