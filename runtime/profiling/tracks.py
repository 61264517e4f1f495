"""Which track of a timeline shows an instruction, and what its slice says.

A track never shows two slices at once: an engine or queue has as many tracks as it has work in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuronx_cc.ir.isa.assembly import operand
from neuronx_cc.ir.isa.program import Program, Stream
from neuronx_cc.runtime.clock_program import LOAD, MULTIPLY, Node
from neuronx_cc.runtime.report import ENGINE_NAME

TRACKS = 1000
"""Thread numbers of a stream start at so many times its number plus one."""
TENSOR_TRACKS = {LOAD: (0, "tensor: stationary"), MULTIPLY: (1, "tensor: products")}
"""TensorE loads one tile while it multiplies with another; each kind has one track."""


@dataclass(slots=True)
class Tracks:
    """Where the next instruction of one stream can be shown. Times in whole ns."""

    ends: list[int] = field(default_factory=list)
    """When each track is free again."""

    def take(self, node: Node, begin: int, end: int) -> int:
        """The track of an instruction; instructions come in order of their starts."""
        fixed = TENSOR_TRACKS.get(node.kind)
        if fixed is not None:
            track = fixed[0]
            self.ends += [0] * (track + 1 - len(self.ends))
        else:
            track = next((track for track, free in enumerate(self.ends) if free <= begin), len(self.ends))
            if track == len(self.ends):
                self.ends.append(0)
        self.ends[track] = end
        return track


def track_number(stream: int, track: int) -> int:
    """The number of a track among those of all streams."""
    return TRACKS * (stream + 1) + track


def track_name(stream: Stream, track: int) -> str:
    """What a track is called."""
    if stream is Stream.TENSOR:
        return next((name for number, name in TENSOR_TRACKS.values() if number == track), "tensor")
    name = ENGINE_NAME.get(stream, f"q{stream.name.lower()}")
    return name if track == 0 else f"{name} ({track + 1})"


def slice_name(program: Program, node: Node) -> str:
    """Opcode and HLO op."""
    instr = node.instr
    debug = program.debug[instr.debug] if instr.debug < len(program.debug) else None
    words = [instr.op, *instr.alu[:1]]
    return " ".join(words + ([debug.hlo] if debug is not None and debug.hlo else []))


def slice_facts(program: Program, node: Node) -> dict[str, Any]:
    """What a slice tells about its instruction."""
    instr = node.instr
    facts: dict[str, Any] = {"record": node.index, "opcode": instr.op}
    if instr.alu:
        facts["operators"] = " ".join(instr.alu)
    if node.nbytes:
        facts |= {"bytes": node.nbytes, "descriptors": node.descriptors}
    if instr.outs:
        facts["results"] = ", ".join(map(operand, instr.outs))
    if instr.ins:
        facts["operands"] = ", ".join(map(operand, instr.ins))
    if instr.op == "collective":
        facts["groups"] = str(program.groups[int(instr.imm[0])])
    if instr.debug < len(program.debug):
        debug = program.debug[instr.debug]
        facts |= {"kernel": debug.kernel, "hlo_name": debug.hlo, "op_name": debug.op_name}
        if debug.opcode:
            facts |= {"hlo_opcode": debug.opcode, "shape": debug.shape}
        if debug.place:
            facts["source"] = debug.place
    return facts
