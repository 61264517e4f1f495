"""Times of a chain as one kernel, and of kernels apart, whose scores stay on chip or pass through HBM.

As one kernel, a block of rows waits for each of its steps, while others are under way; engines have what all blocks
have for them. Apart, each op goes over all blocks, and engines overlap little.
"""

from __future__ import annotations

from math import ceil, prod

from neuronx_cc.codegen.chains.pattern import Chain, depth_of
from neuronx_cc.codegen.chains.schedule import Schedule
from neuronx_cc.codegen.dots.problem import pe_dtype
from neuronx_cc.codegen.formation.graph import base, squeeze
from neuronx_cc.codegen.maps.elementwise import ACTIVATION
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, Tile, Timing, Work, total

OVERLAP = 0.55
"""How much longer blocks of rows take than their busiest engine, of ops that are fewer as they are emitted."""
NEAR_ENGINES = 1.7
"""The same of engines in kernels apart, one after the other, where what they hand over is on chip."""
AROUND = 4
"""Transfers before and after, one after the other, that kernels apart hand over on chip."""
ALIVE = 6
"""Arrays of scores that have to fit on chip together, with what lies there besides, so that none passes through HBM."""


def estimate(chain: Chain, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds of one kernel."""
    s = schedule
    blocks = prod(chain.dims[:-1]) / s.row_parts
    steps = [_work(op, chain, s, timing) for op in chain.ops]
    steps = [step.times(s.share) for step in steps]
    waits = sum(step.bound + timing.latency(Stream.VECTOR) for step in steps)
    through = max(blocks * total(steps).bound * OVERLAP, blocks / s.under_way * waits)
    return waits + through + AROUND * _computed(chain) * timing.transfer_latency


def _computed(chain: Chain) -> bool:
    """Whether what it reads was just computed."""
    given = [*(x for op in chain.sources for x in op.operands), *(sink.other for sink in chain.sinks)]
    makers = [base(x).owner for x in given]
    makers = [base(op.operand).owner if isinstance(op, hlo.ConvertOp) else op for op in makers]
    return any(isinstance(op, hlo.ElementwiseOp | hlo.ContractionOp) for op in makers)


def apart(chain: Chain, schedule: Schedule, timing: Timing, room: int) -> float:
    """Nanoseconds of the same in kernels apart, for which ``room`` bytes a partition are there.

    What others need anyway takes none while it stays on chip. Else it is stored, which a chain makes needless.
    """
    scores = 4 * prod(chain.dims)
    near = ALIVE * scores <= room * timing.sizes.partitions
    anyway = near or chain.needed.issuperset(chain.sources)  # as of a forward pass, which is a kernel, only a part is
    own = [op for op in chain.ops if not anyway or op not in chain.needed]
    steps = total(_work(op, chain, schedule, timing) for op in own)
    engines = prod(chain.dims[:-1]) / schedule.row_parts * (steps.tensor + steps.vector + steps.scalar)
    engines += len(own) * 2 * timing.latency(Stream.VECTOR)
    products = sum(isinstance(op, hlo.DotOp) for op in own)
    moved = timing.transfer(2 * scores * products, timing.long_run).bound + products * timing.transfer_latency
    if near and not _computed(chain):
        engines += products * timing.transfer_latency
    return NEAR_ENGINES * engines if near else engines + moved


def _work(op: hlo.HloOp, chain: Chain, s: Schedule, timing: Timing) -> Work:
    """Of a block of rows."""
    sizes = timing.sizes
    if isinstance(op, hlo.DotOp) and squeeze(op.shape.dims) == chain.dims and op in chain.sources:
        each = timing.product(s.row_parts, min(s.columns, sizes.bank_columns), pe_dtype(op))
        return each.times(ceil(depth_of(op) / sizes.rows) * ceil(s.columns / sizes.bank_columns))
    if isinstance(op, hlo.DotOp):
        (sink,) = (sink for sink in chain.sinks if sink.op is op)
        each = timing.product(s.column_parts, sink.width, pe_dtype(op))
        if not sink.across:
            each += timing.transpose(s.row_parts, s.column_parts, "bf16")
        return each.times(s.column_chunks)
    if squeeze(op.shape.dims) != chain.dims and not isinstance(op, hlo.ReduceOp):
        return timing.engine("tensor_tensor", Stream.VECTOR, 1)
    if op.opcode in ACTIVATION:
        return timing.engine("activation", Stream.SCALAR, s.columns, (F32,), (F32,), ("exp",))
    if isinstance(op, hlo.ReduceOp):
        return timing.engine("tensor_reduce", Stream.VECTOR, s.columns, (F32,), (F32_PSUM,), ("max",))
    if isinstance(op, hlo.ConvertOp):
        return timing.engine("tensor_copy", Stream.VECTOR, s.columns, (Tile("bf16"),), (F32,))
    return timing.engine("tensor_tensor", Stream.VECTOR, s.columns, (F32,), (F32, F32_PSUM))
