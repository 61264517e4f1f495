"""What transfers move, for tests of their runs."""

from math import prod

from neuronx_cc.ir.isa.program import Instr, Ref, Space
from neuronx_cc.ir.types import itemsize


def run_of(ref: Ref) -> int:
    """Bytes of neighbours in memory that follow each other."""
    run = itemsize(ref.dtype)
    for count, stride in reversed(ref.dims):
        if stride != run:
            break
        run *= count
    return run


def runs_in_hbm(instr: Instr) -> list[int]:
    """How many runs of neighbours a transfer moves, of each side of it that lies in HBM."""
    refs = [ref for ref in (*instr.outs, *instr.ins) if ref.space is Space.HBM]
    return [prod(ref.counts) * itemsize(ref.dtype) // run_of(ref) for ref in refs]
