"""What a ``collective`` instruction computes from the contributions of the devices of its group.

Operands are HBM patterns; where the result or the source has one block for each member of the group, that is its first
dim. Reductions go through the members in the order of the group, so that the result does not depend on who comes first:
floats in FP32, rounded once, integers exactly (hardware sheet 6.4; the vendor lowers integers through FP32).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.isa.elements import Array, State, reader, writer
from neuronx_cc.ir.isa.outside import Exchange
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.types import FLOATS

SHORT = {"maximum": "max", "minimum": "min"}
"""Opcodes of HLO that instructions call otherwise."""
REDUCTIONS = {SHORT.get(kind, kind): function for kind, function in COMBINERS.items()}
REDUCING = frozenset(["all_reduce", "reduce_scatter"])
KINDS = REDUCING | {"all_gather", "all_to_all", "broadcast", "permute"}

Groups = tuple[tuple[int, ...], ...]
"""Device numbers of each group, or (source, target) pairs."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one device is in the groups of a collective."""

    members: tuple[int, ...]
    """Whom it meets, in order of their numbers; nobody where it belongs to no group."""
    order: tuple[int, ...]
    """The order of their sources."""
    place: int
    """Its own place there; of a permute: that of its source, or -1."""
    exchange: Exchange


def exchange_of(instr: Instr) -> Exchange:
    """What a ``collective`` instruction exchanges, whatever its groups."""
    source = instr.ins[0]
    return Exchange(instr.alu[0], instr.alu[1] if len(instr.alu) > 1 else "", source.dtype, source.counts)


def role_of(exchange: Exchange, groups: Groups, device: int) -> Role:
    """``device`` in the ``groups`` of a collective."""
    if exchange.kind == "permute":
        members = tuple(sorted({each for pair in groups for each in pair}))
        if device not in members:
            return Role((), (), -1, exchange)
        source = next((source for source, target in groups if target == device), None)
        place = members.index(source) if source is not None else -1
        return Role(members, members, place, replace(exchange, groups=tuple(sorted(groups))))
    for group in groups:
        if device in group:
            return Role(tuple(sorted(group)), group, group.index(device), replace(exchange, groups=(group,)))
    return Role((), (), -1, exchange)


def collective(instr: Instr, state: State) -> Callable[[Array, Array], None]:
    """The kernel ``(target, source)`` of a ``collective`` instruction."""
    kind, groups, exchange = instr.alu[0], int(instr.imm[0]), exchange_of(instr)
    dtype = instr.ins[0].dtype
    reduce = _reducer(instr.alu[1], dtype, state) if kind in REDUCING else None

    def run(target: Array, source: Array) -> None:
        meeting = state.connected().meet(exchange, groups, source)
        parts, place = meeting.parts, meeting.place
        if kind == "all_reduce":
            assert reduce is not None
            reduce(target, parts)
        elif kind == "reduce_scatter":
            assert reduce is not None
            reduce(target, [part[place] for part in parts])
        elif kind == "all_gather":
            for block, part in zip(target, parts, strict=True):
                block[...] = part
        elif kind == "all_to_all":
            for block, part in zip(target, parts, strict=True):
                block[...] = part[place]
        elif place < 0:
            target[...] = np.zeros((), target.dtype)
        else:
            target[...] = parts[place if kind == "permute" else 0]

    return run


def _reducer(name: str, dtype: str, state: State) -> Callable[[Array, Sequence[Array]], None]:
    combine = REDUCTIONS[name]
    if dtype not in FLOATS:

        def reduce_exactly(target: Array, parts: Sequence[Array]) -> None:
            total = parts[0].copy()
            for part in parts[1:]:
                combine(total, part, out=total)
            target[...] = total

        return reduce_exactly
    read, write = reader(dtype), writer(dtype, state)

    def reduce_floats(target: Array, parts: Sequence[Array]) -> None:
        total = np.array(read(parts[0]), np.float32)
        for part in parts[1:]:
            combine(total, read(part), out=total)
        write(target, total)

    return reduce_floats
