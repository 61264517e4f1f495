"""What ``iota`` writes and where ``affine_select`` fills depends on the instruction alone: arrays of the program.

Input: a program. The core finds the arrays in a memory of its own after those of HBM, so that these instructions
become a copy, and a copy with a fill where a mask says so. NumPy makes the arrays, by the instruction table.
"""

from dataclasses import replace

import numpy as np

from neuronx_cc.ir.isa.elements import STORAGE, Array, State
from neuronx_cc.ir.isa.program import Instr, Program, Ref, Space
from neuronx_cc.ir.isa.table import TABLE

MAX_BYTES = 1 << 25
"""Of all arrays; instructions beyond them are left to Python."""
ALIGNMENT = 64
LITERAL = frozenset(["iota", "affine_select"])


class Literals:
    """``data`` has the arrays of a program; offset 0 of it is at ``start``, after the end of HBM."""

    def __init__(self, program: Program, start: int) -> None:
        self.start = start
        self._arrays: list[Array] = []
        self._offsets: dict[tuple[object, ...], int] = {}
        self._end = 0
        self._found: dict[int, Ref] = {}
        for number, record in enumerate(program.records):
            if isinstance(record, Instr) and record.op in LITERAL:
                self._found |= {number: ref} if (ref := self._of(record)) is not None else {}
        self.data = np.zeros(max(self._end, ALIGNMENT), np.uint8)
        for offset, array in zip(self._offsets.values(), self._arrays, strict=True):
            self.data[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)

    def rewritten(self, number: int, instr: Instr) -> list[Instr]:
        """The same as copies and fills; the instruction itself where there is no array for it."""
        ref = self._found.get(number)
        if ref is None:
            return [instr]
        if instr.op == "iota":
            return [Instr("tensor_copy", instr.stream, instr.outs, (ref,))]
        copy = Instr("tensor_copy", instr.stream, instr.outs, instr.ins)
        return [copy, Instr("copy_predicated", instr.stream, instr.outs, (ref,), (), instr.imm[:1])]

    def _of(self, instr: Instr) -> Ref | None:
        """Where the array of an instruction is; dims along which it is the same have one element."""
        y = instr.outs[0]
        steps = [*instr.imm[1:], *[0] * len(y.counts)] if instr.op == "iota" else [*instr.imm[2:], *[0] * len(y.counts)]
        counts = tuple(count if step else 1 for count, step in zip(y.counts, steps, strict=False))
        dtype = y.dtype if instr.op == "iota" else "u8"
        key = (instr.op, instr.alu, repr(instr.imm), y.dtype, counts)
        if key not in self._offsets:
            array = _values(instr, counts)
            if self._end + array.nbytes > MAX_BYTES:
                return None
            self._offsets[key] = self._end
            self._arrays.append(array)
            self._end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        stride, dims = STORAGE[dtype].itemsize, []
        for count, whole in zip(reversed(counts), reversed(y.counts), strict=True):
            dims.append((whole, stride if count > 1 else 0))
            stride *= count
        return Ref(Space.HBM, dtype, self.start + self._offsets[key], tuple(reversed(dims)))


def _values(instr: Instr, counts: tuple[int, ...]) -> Array:
    """What ``iota`` writes, and where ``affine_select`` fills."""
    small = Ref(Space.SBUF, instr.outs[0].dtype, 0, tuple((count, 0) for count in counts))
    if instr.op == "iota":
        result = np.zeros(counts, STORAGE[small.dtype])
        TABLE["iota"].semantics(replace(instr, outs=(small,)), State())(result)
        return result
    # the same mask, as the bytes that it leaves of ones when it fills with zeros
    mask = replace(small, dtype="u8")
    kept = np.zeros(counts, np.uint8)
    select = replace(instr, outs=(mask,), ins=(mask,), imm=(0, *instr.imm[1:]))
    TABLE["affine_select"].semantics(select, State())(kept, np.ones(counts, np.uint8))
    return 1 - kept
