"""Copies in HBM that nothing reads: what a kernel made for itself, or for those after it, and did not use."""

from __future__ import annotations

from neuronx_cc.ir.isa.program import Instr, Program, Space


def unread(program: Program) -> list[str]:
    """Kernels and arrays of the pieces of HBM that are written and never read, results of the program apart.

    The program has to be the compiler's own: no file says which piece of memory an operand means.
    """
    results = [(each.offset, each.offset + each.nbytes) for each in program.variables if each.kind == "output"]
    written: dict[int, int] = {}
    read: set[int] = set()
    for record in program.records:
        if not isinstance(record, Instr):
            continue
        operands = zip((*record.outs, *record.ins), record.origins, strict=True)
        for place, (operand, (owner, _)) in enumerate(operands):
            if operand.space is Space.HBM and place < len(record.outs):
                written.setdefault(owner, record.debug)
            elif operand.space is Space.HBM:
                read.add(owner)
    lost = [(program.owners[owner], program.debug[debug]) for owner, debug in written.items() if owner not in read]
    return [
        f"{debug.kernel} writes {piece.hi - piece.lo} bytes of {piece.name}"
        for piece, debug in lost
        if not any(low <= piece.lo < high for low, high in results)
    ]
