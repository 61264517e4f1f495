"""Long rows in stages: tiles hold sections of rows, and each stage goes through all sections.

A stage ends where ops need what is folded of whole rows: the fold of what it has folded of each section. What a stage
needs of elements that an earlier one has made is made again, from operands that stay on chip where there is room, and
are loaded again elsewhere. So rows of any length are one kernel, and what one engine makes of a section, loads and
stores go on beside the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from neuronx_cc.codegen.emission.interleave import AHEAD
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses, tiles_alive
from neuronx_cc.codegen.maps.overlap import tile_count
from neuronx_cc.codegen.maps.space import loops_of, streamed_elements
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

SEVERAL = 2
"""Sections that are emitted together, where there is room."""
WAYS = tuple(
    (sections, several, buffers, held, apart)
    for helds, ways, lengths in (
        ((2, 1), ((SEVERAL, 2), (SEVERAL, 1)), (2, 1)),
        ((2, 1), ((1, 1),), (1,)),
        ((0,), ((SEVERAL, 2), (SEVERAL, 1), (1, 1)), (1,)),
    )
    for held, (several, buffers), sections, apart in product(helds, ways, lengths, (True, False))
)
"""How long sections are at least, how many are emitted together, buffers of what each of them makes, those of what
stays for all stages, and whether each stage has memory of its own, so that the first one may begin while the last one
works on the tile before: in the order in which what fits is taken.
"""
LEAST_SECTION = 512
"""Elements of a section from which instructions take as long as their elements do."""
STORING = 4
"""Buffers of what is stored, which waits for the queue and its latency."""


@dataclass(frozen=True, slots=True)
class Stage:
    """``ops`` make elements, and fold them, section by section; ``rows`` come before them, once."""

    rows: tuple[hlo.HloOp, ...]
    ops: tuple[hlo.HloOp, ...]
    again: frozenset[hlo.SSAValue]
    """What earlier stages have made."""
    there: frozenset[hlo.SSAValue]
    """What ``ops`` read of elements that earlier stages have left on chip."""
    inputs: frozenset[hlo.SSAValue]
    """What ``ops`` read of what others made, or counts."""
    fusion: Fusion
    """Which of ``ops`` are computed inside another's instruction."""
    places: Mapping[hlo.HloOp, int]
    """Arithmetic that is -> which operand is one value a partition."""
    dying: Mapping[int, list[hlo.SSAValue]]
    """Number of one of ``ops`` -> elements that nothing after it reads."""

    @property
    def folds(self) -> tuple[hlo.ReduceOp, ...]:
        return tuple(op for op in self.ops if isinstance(op, hlo.ReduceOp))

    def made(self, kernel: Kernel, elsewhere: Set[hlo.SSAValue]) -> int:
        """Bytes of an element of all that it makes and that is alive at once, but for what lies ``elsewhere``."""
        alive = tiles_alive(replace(kernel, ops=list(self.ops)), (), self.dying, {*self.fusion.within}, elsewhere)
        return alive.element_bytes


@dataclass(frozen=True, slots=True)
class Staged:
    """How the rows of a kernel are taken."""

    stages: tuple[Stage, ...]
    loops: tuple[tuple[int, int], ...]
    """(free dim, step) of the loops over sections, outermost first."""
    kept: tuple[hlo.SSAValue, ...]
    """Operands that stay on chip for all stages."""
    kept_buffers: int
    """Of each of these."""
    made: tuple[hlo.SSAValue, ...]
    """What a stage makes that stays on chip for the next ones."""
    under_way: int
    """Sections that are emitted together."""
    buffers: int
    """Of what each of them makes."""
    loading: int
    """Of what each of them loads."""
    apart: bool
    """Whether each stage has memory of its own."""


Defer = Callable[[Fusion, Sequence[hlo.HloOp]], Mapping[hlo.HloOp, int]]
"""Adds what else of some ops is part of another's instruction; which operand is one value a partition."""


def stages_of(
    kernel: Kernel, member: Member, fusion: Fusion, wanted: Set[hlo.SSAValue], on_chip: Set[hlo.SSAValue], defer: Defer
) -> tuple[Stage, ...]:
    """The stages of ``kernel``, of which others read ``wanted``; what lies ``on_chip`` is there for later ones."""
    level, sources = _levels(kernel, member)
    found: list[Stage] = []
    made: set[hlo.SSAValue] = set()
    for number in range(max(level.values()) + 1):
        here = [op for op in kernel.ops if level[op.results[0]] == number]
        rows = tuple(op for op in here if kernel.is_row(op.shape) and not isinstance(op, hlo.ReduceOp))
        needed = {op for op in here if isinstance(op, hlo.ReduceOp) or (op.results[0] in wanted and op not in rows)}
        for op in reversed(kernel.ops):
            if op in needed:
                there = (value for value in sources[op] if not (value in made and value in on_chip))
                needed.update(
                    value.op  # type: ignore[misc]
                    for value in there
                    if isinstance(value, hlo.OpResult) and not kernel.is_row(hlo.shape_of(value))
                )
        ops = tuple(op for op in kernel.ops if op in needed)
        results = {op.results[0] for op in ops}
        read = frozenset(operand for op in ops for operand in op.sources if trace(operand, kernel, member) is None)
        elements = {value for value in results if not kernel.is_row(hlo.shape_of(value))} | read
        fused = fusion.copy()
        places = defer(fused, ops)
        last = last_uses(kernel, member, _last_readers(ops, sources, fused), ops)
        dying = {at: [value for value in values if value in elements] for at, values in last.items()}
        there_already = {value for op in ops for value in sources[op]} & made & on_chip
        found.append(Stage(rows, ops, frozenset(made & results), frozenset(there_already), read, fused, places, dying))
        made |= results
    return tuple(found)


def _levels(kernel: Kernel, member: Member) -> tuple[dict[hlo.SSAValue, int], dict[hlo.HloOp, list[hlo.SSAValue]]]:
    """Folds of rows ahead of each value, and what ops read of what the kernel makes."""
    level: dict[hlo.SSAValue, int] = {}
    sources: dict[hlo.HloOp, list[hlo.SSAValue]] = {}
    for op in kernel.ops:
        traced = (trace(operand, kernel, member) for operand in op.sources)
        sources[op] = [source for source in traced if source is not None]
        after = (level[source] + isinstance(source.owner, hlo.ReduceOp) for source in sources[op])
        level[op.results[0]] = max(after, default=0)
    return level, sources


def _last_readers(
    ops: Sequence[hlo.HloOp], sources: Mapping[hlo.HloOp, Sequence[hlo.SSAValue]], fusion: Fusion
) -> dict[hlo.HloOp, hlo.HloOp]:
    """Those of ``ops`` that have no instruction -> the last of their readers, whose instruction does them."""
    readers = {source.owner: op for op in ops for source in sources[op]}
    return {op: readers[op] for op in ops if op in fusion and op in readers}


def steps_of(kernel: Kernel, ops: Sequence[hlo.HloOp], fusion: Fusion, as_made: Set[hlo.HloOp]) -> int:
    """Instructions for all elements that ``ops`` take: none for sums of what Scalar adds up ``as_made``."""
    folds = (isinstance(op, hlo.ReduceOp) and op not in as_made for op in ops)
    return sum(op not in fusion and (fold or not kernel.is_row(op.shape)) for op, fold in zip(ops, folds, strict=True))


def to_keep(
    kernel: Kernel,
    member: Member,
    fusion: Fusion,
    loaded: Mapping[hlo.SSAValue, bool],
    on_chip: Set[hlo.SSAValue],
    room: int,
    elements: int,
) -> tuple[hlo.SSAValue, ...]:
    """What the first stage makes that later ones read, if that takes less room than what it is made of, which is
    ``loaded``: such as a sum with a residual, of two operands.

    ``on_chip``: what is there anyway; ``room``: most bytes a partition, for tiles of so many ``elements``.
    """
    level, sources = _levels(kernel, member)
    first = {op: op.results[0] for op in kernel.ops if not level[op.results[0]] and not kernel.is_row(op.shape)}
    later = [op for op in kernel.ops if level[op.results[0]]]
    stays = {value for op in later for value in sources[op]} - on_chip
    made = [value for op, value in first.items() if op not in fusion and value in stays]
    direct = {operand for op in later for operand in op.sources}
    origins, wanted = set[hlo.SSAValue](), set[hlo.SSAValue](made)
    for op, value in reversed(first.items()):
        if value in wanted:
            origins.update(operand for operand in op.sources if operand in loaded)
            wanted.update(sources[op])
    bytes_of = [sum(itemsize(hlo.shape_of(value).dtype) for value in values) for values in (made, origins - direct)]
    return tuple(made) if bytes_of[0] < bytes_of[1] and bytes_of[0] * elements <= room else ()


@dataclass(frozen=True, slots=True)
class Room:
    """What sections may take."""

    sbuf: int
    """Bytes a partition."""
    stored: Sequence[hlo.SSAValue]
    """Results that leave for HBM."""
    banks: int
    """Of PSUM, for sections of rows that are repeated over the partitions."""
    rows: int
    """Such rows that a stage reads."""


def choose(
    kernel: Kernel,
    stages: tuple[Stage, ...],
    timing: Timing,
    sizes: Sequence[int],
    loaded: Mapping[hlo.SSAValue, bool],
    made: Sequence[hlo.SSAValue],
    room: Room,
) -> Staged:
    """How the rows of tiles of ``sizes``, a row a partition, are taken.

    ``loaded``: operands with as many elements -> whether they may stay on chip; ``made``: what stays of what is made.
    """
    elements, aligned = prod(sizes), timing.sizes.aligned
    again = [value for value in loaded if loaded[value] and sum(value in stage.inputs for stage in stages) > 1]
    whole = sum(aligned(elements * itemsize(hlo.shape_of(value).dtype)) for value in again)
    left = room.sbuf - sum(aligned(elements * itemsize(hlo.shape_of(value).dtype)) for value in made)
    made_of = [stage.made(kernel, {*room.stored, *made}) + itemsize("f32") for stage in stages]  # and a temporary
    stored = STORING * sum(itemsize(hlo.shape_of(value).dtype) for value in room.stored)
    for sections, several, buffers, held, apart in WAYS:
        kept = tuple(again) if held else ()
        read = [value for value in loaded if value not in kept]
        each = buffers * several * (sum(made_of) if apart else max(made_of)) + stored
        ahead = (several + AHEAD) * max(_bytes_read(stage, read) for stage in stages)
        section = (left - held * whole) // (each + ahead)
        most = min(streamed_elements(timing, itemsize("f32")), elements)
        if room.rows:
            most = min(most, timing.sizes.bank_columns * max(1, room.banks // (room.rows * (several + AHEAD))))
        if section >= min(sections * LEAST_SECTION, most):
            break
    loops = loops_of(sizes, set(), max(1, min(section, most)))
    even = tuple((dim, ceil(sizes[dim] / ceil(sizes[dim] / step))) for dim, step in loops)
    section, count = prod({**dict(enumerate(sizes)), **dict(even)}.values()), tile_count(sizes, even)
    loading = (left - held * whole - each * section) // max(1, ahead * section)
    loading = max(1, min(loading, ceil(count / (several + AHEAD))))
    return Staged(stages, even, kept, held, tuple(made), several, buffers, loading, apart)


def _bytes_read(stage: Stage, loaded: Sequence[hlo.SSAValue]) -> int:
    """Bytes of an element of each of ``loaded`` that it reads."""
    return sum(itemsize(hlo.shape_of(value).dtype) for value in loaded if value in stage.inputs)
