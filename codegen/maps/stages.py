"""Long rows in stages: tiles hold sections of rows, and each stage goes through all sections.

A stage ends where ops need what is folded of whole rows: the fold of what it has folded of each section. What a stage
needs of elements that an earlier one has made is made again, from operands that stay on chip where there is room, and
are loaded again elsewhere. So rows of any length are one kernel, and what one engine makes of a section, loads and
stores go on beside the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Alive, Member, last_uses, tiles_alive, up
from neuronx_cc.codegen.maps.space import loops_of, streamed_elements
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

UNDER_WAY = ((2, 2), (2, 1), (1, 1))
"""Sections that are emitted together, and buffers of what each of them makes and loads."""
LEAST_SECTION = 768
"""Elements of a section from which operands stay on chip beside it."""


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
    dying: Mapping[int, list[hlo.SSAValue]]
    """Number of one of ``ops`` -> elements that nothing after it reads."""

    @property
    def folds(self) -> tuple[hlo.ReduceOp, ...]:
        return tuple(op for op in self.ops if isinstance(op, hlo.ReduceOp))

    def alive(self, kernel: Kernel, loaded: Sequence[hlo.SSAValue], within: Set[hlo.HloOp]) -> Alive:
        """Its tiles alive at once, of ``loaded`` those that it reads."""
        read = [value for value in loaded if value in self.inputs]
        return tiles_alive(replace(kernel, ops=list(self.ops)), read, self.dying, within)


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
    under_way: int
    """Sections that are emitted together."""
    buffers: int
    """Of what each of them makes and loads."""


def stages_of(
    kernel: Kernel, member: Member, fusion: Fusion, wanted: Set[hlo.SSAValue], on_chip: Set[hlo.SSAValue]
) -> tuple[Stage, ...]:
    """The stages of ``kernel``, of which others read ``wanted``; what lies ``on_chip`` is there for later ones."""
    level: dict[hlo.SSAValue, int] = {}
    sources: dict[hlo.HloOp, list[hlo.SSAValue]] = {}
    for op in kernel.ops:
        traced = (trace(operand, kernel, member) for operand in op.sources)
        sources[op] = [source for source in traced if source is not None]
        after = (level[source] + isinstance(source.owner, hlo.ReduceOp) for source in sources[op])
        level[op.results[0]] = max(after, default=0)
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
        last = last_uses(kernel, member, _last_readers(ops, sources, fusion), ops)
        dying = {at: [value for value in values if value in elements] for at, values in last.items()}
        there_already = {value for op in ops for value in sources[op]} & made & on_chip
        found.append(Stage(rows, ops, frozenset(made & results), frozenset(there_already), read, dying))
        made |= results
    return tuple(found)


def _last_readers(
    ops: Sequence[hlo.HloOp], sources: Mapping[hlo.HloOp, Sequence[hlo.SSAValue]], fusion: Fusion
) -> dict[hlo.HloOp, hlo.HloOp]:
    """Those of ``ops`` that have no instruction -> the last of their readers, whose instruction does them."""
    readers = {source.owner: op for op in ops for source in sources[op]}
    return {op: readers[op] for op in ops if op in fusion and op in readers}


def choose(
    kernel: Kernel,
    stages: tuple[Stage, ...],
    timing: Timing,
    sizes: Sequence[int],
    loaded: Mapping[hlo.SSAValue, bool],
    within: Set[hlo.HloOp],
    room: int,
    alignment: int,
) -> Staged:
    """How the rows of tiles of ``sizes``, a row a partition, are taken with ``room`` bytes a partition.

    ``loaded``: operands with as many elements -> whether they may stay on chip.
    """
    elements = prod(sizes)
    again = [value for value in loaded if loaded[value] and sum(value in stage.inputs for stage in stages) > 1]
    whole = sum(up(elements * itemsize(hlo.shape_of(value).dtype), alignment) for value in again)
    most = min(streamed_elements(timing, itemsize("f32")), elements)
    for held, (several, buffers) in product((2, 1, 0), UNDER_WAY):
        kept = tuple(again) if held else ()
        read = [value for value in loaded if value not in kept]
        each = max(stage.alive(kernel, read, within).element_bytes for stage in stages)
        ahead = sum(itemsize(hlo.shape_of(value).dtype) for value in read) + itemsize("f32")  # and a temporary
        section = (room - held * whole) // (buffers * (several * each + ahead))
        if section >= LEAST_SECTION:
            break
    loops = loops_of(sizes, set(), max(1, min(section, most)))
    even = tuple((dim, ceil(sizes[dim] / ceil(sizes[dim] / step))) for dim, step in loops)
    return Staged(stages, even, kept, held, several, buffers)
