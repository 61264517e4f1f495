"""Prepares a program for the clock: what each static instruction costs, and one record tree per stream.

Input: a ``Program`` and a machine description. Output: the program as a sequence of straight pieces and of regions,
whose cases are such sequences. A piece has for each stream a tree of loops whose leaves are ``Node``s with all times in
ns. Nothing here depends on data: addresses have no influence on time, and what regions do is asked later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from neuronx_cc.ir.isa import cost
from neuronx_cc.ir.isa.program import DMA_STREAMS, Branch, Else, End, Instr, Loop, Program, Ref, Space, Stream, While
from neuronx_cc.ir.isa.timing import arrival_ns, duration_ns, latency_ns
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.types import itemsize

ENGINE, LOAD, MULTIPLY, DMA, CONTROL = range(5)
"""Kinds of nodes: which resources an instruction needs."""

TABLE_SET = {
    "exp": "natural_log_exp_and_others",
    "log": "natural_log_exp_and_others",
    "softplus": "natural_log_exp_and_others",
    "sqrt": "reciprocal_sqrt_and_small",
    "rsqrt": "reciprocal_sqrt_and_small",
    "reciprocal": "reciprocal_and_small",
    "arctan": "reciprocal_and_small",
    "sin": "reciprocal_and_small",
    "gelu": "gelu_and_others",
    "gelu_apprx_tanh": "gelu_and_others",
    "silu": "gelu_and_others",
    "sigmoid": "gelu_and_others",
    "tanh": "gelu_and_others",
    "erf": "gelu_and_others",
}
"""Activation function -> set of function tables; functions not listed are in every set. Only the names of the sets
are published (hardware sheet 4.1); the membership is assumed."""


@dataclass(slots=True, eq=False)
class Node:
    """A static instruction with its times, and what happened to it."""

    index: int
    """Number in the emission order."""
    instr: Instr
    kind: int
    duration: float = 0.0
    """Occupies its engine; for DMAs the shared engines."""
    latency: float = 0.0
    """From the end of the occupation until the result is visible."""
    dependent: tuple[bool, bool] = (False, False)
    """Reads or overwrites what the previous, and the last but one, instruction of the engine wrote."""
    waits: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...] = ()
    software: float = 0.0
    uses_sbuf: bool = False
    uses_psum: bool = False
    table_set: str = ""
    read: float = 0.0
    """Of a transfer: how long it keeps reads of HBM busy; ``write``: the same of writes."""
    write: float = 0.0
    nbytes: int = 0
    hbm_bytes: int = 0
    descriptors: int = 0
    # measured
    count: int = 0
    busy: float = 0.0
    first: float = -1.0
    last: float = 0.0


@dataclass(slots=True, eq=False)
class Nest:
    """A loop of one stream."""

    count: int
    register: int
    phases: tuple[tuple[int, int], ...]
    body: list[Item] = field(default_factory=list)
    begun: int = 0


Item: TypeAlias = Node | Nest
Counts: TypeAlias = dict[int, int]


@dataclass(slots=True, eq=False)
class Piece:
    """Records between two barriers: the record tree of every stream that has instructions there."""

    trees: dict[Stream, list[Item]] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    base: dict[int, int] = field(default_factory=dict)
    """Stream -> what its progress semaphore says at the start."""


@dataclass(slots=True, eq=False)
class Area:
    """A region: what each case does."""

    repeated: bool
    cases: list[Block] = field(default_factory=lambda: [[]])


Block: TypeAlias = "list[Piece | Area]"
"""Pieces and regions in order."""


def prepare(program: Program, machine: Machine) -> tuple[Block, list[Node]]:
    """The program as a block, and all nodes in emission order."""
    nodes: list[Node] = []
    root: Block = []
    blocks = [root]
    areas: list[Area] = []
    counts: list[Counts] = [{}]
    """Instructions of each stream in the open case, for the program and each open region."""
    recent: dict[Stream, list[Instr]] = {}
    open_loops: list[Loop] = []
    nests: list[dict[Stream, Nest]] = []
    piece: Piece | None = None
    for index, record in enumerate(program.records):
        if isinstance(record, Instr):
            if piece is None:
                piece = Piece(base=dict(counts[-1]))
                blocks[-1].append(piece)
            node = make_node(index, record, machine, recent.setdefault(record.stream, []))
            nodes.append(node)
            piece.nodes.append(node)
            times = 1
            body = piece.trees.setdefault(record.stream, [])
            for loop, members in zip(open_loops, nests, strict=True):
                times *= loop.count
                nest = members.get(record.stream)
                if nest is None:
                    nest = members[record.stream] = Nest(loop.count, loop.register, loop.phases)
                    body.append(nest)
                body = nest.body
            body.append(node)
            counts[-1][int(record.stream)] = counts[-1].get(int(record.stream), 0) + times
        elif isinstance(record, Loop):
            open_loops.append(record)
            nests.append({})
        elif isinstance(record, End) and open_loops:
            open_loops.pop()
            nests.pop()
        else:
            piece = None
            recent.clear()  # a barrier: all results are there
            _turn(record, blocks, areas, counts)
    return root, nodes


def _turn(record: While | Branch | Else | End, blocks: list[Block], areas: list[Area], counts: list[Counts]) -> None:
    """Begin or end a region, or begin its next case."""
    if isinstance(record, While | Branch):
        areas.append(Area(isinstance(record, While)))
        blocks[-1].append(areas[-1])
        blocks.append(areas[-1].cases[0])
        counts.append({})
    elif isinstance(record, Else):
        areas[-1].cases.append([])
        blocks[-1] = areas[-1].cases[-1]
        counts[-1] = {}
    else:
        areas.pop()
        blocks.pop()
        counts.pop()


def make_node(index: int, instr: Instr, machine: Machine, recent: list[Instr]) -> Node:
    """The node of an instruction; ``recent`` holds the engine's last two and is brought forward."""
    waits = tuple((int(wait.stream), wait.count, wait.coefs) for wait in instr.waits)
    if instr.op in ("nop", "reg_load", "host_call"):
        return Node(index, instr, CONTROL, cost.control_ns(instr, machine), waits=waits)
    if instr.op == "collective":
        return Node(index, instr, CONTROL, cost.collective_ns(instr, machine), waits=waits)
    if instr.stream in DMA_STREAMS:
        dma = cost.dma_cost(instr, machine)
        latency = arrival_ns(dma, machine) - dma.alone_ns
        return Node(
            index,
            instr,
            DMA,
            dma.service_ns,
            latency,
            waits=waits,
            software=dma.software_ns,
            read=dma.read_ns,
            write=dma.write_ns,
            nbytes=dma.nbytes,
            hbm_bytes=dma.hbm_bytes,
            descriptors=dma.descriptors,
        )
    duration, latency = duration_ns(instr, machine), latency_ns(instr, machine)
    if instr.stream is Stream.TENSOR:
        return Node(index, instr, LOAD if instr.op == "load_stationary" else MULTIPLY, duration, latency, waits=waits)
    spaces = {ref.space for ref in (*instr.outs, *instr.ins)}
    node = Node(
        index,
        instr,
        ENGINE,
        duration,
        latency,
        (depends(instr, recent[-1:]), depends(instr, recent[-2:-1])),
        waits,
        uses_sbuf=Space.SBUF in spaces,
        uses_psum=Space.PSUM in spaces,
        table_set=TABLE_SET.get(instr.alu[0], "") if instr.op == "activation" else "",
    )
    recent[:] = [*recent[-1:], instr]
    return node


def depends(instr: Instr, earlier: Sequence[Instr]) -> bool:
    """Whether ``instr`` reads or overwrites a result of ``earlier`` in the same iteration (byte hulls)."""
    return any(overlap(ref, out) for before in earlier for out in before.outs for ref in (*instr.ins, *instr.outs))


def overlap(a: Ref, b: Ref) -> bool:
    """Whether two on-chip operands with the same registers in their addresses touch a common byte (by hulls)."""
    if a.space is not b.space or a.coefs != b.coefs:
        return False
    if a.partition >= b.partition + b.dims[0][0] or b.partition >= a.partition + a.dims[0][0]:
        return False
    low_a, high_a = hull(a)
    low_b, high_b = hull(b)
    return low_a < high_b and low_b < high_a


def hull(ref: Ref) -> tuple[int, int]:
    """Least byte and end of the bytes in a partition that an operand touches, registers at 0."""
    reach = [(count - 1) * stride for count, stride in ref.dims[1:]]
    low = ref.offset + sum(min(r, 0) for r in reach)
    return low, ref.offset + sum(max(r, 0) for r in reach) + itemsize(ref.dtype)
