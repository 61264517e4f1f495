"""What of a map kernel is alive when: the last use of each value, and the bytes that its tiles need at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps import scan_rows
from neuronx_cc.ir import hlo
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import INTEGERS, itemsize

Member = dict[hlo.SSAValue, Kernel]


def last_uses(
    kernel: Kernel,
    member: Member,
    deferred: Mapping[hlo.HloOp, hlo.HloOp] | None = None,
    ops: Sequence[hlo.HloOp] | None = None,
) -> dict[int, list[hlo.SSAValue]]:
    """Op index -> values that nothing later reads of the kernel's ``ops``, by default all."""
    last: dict[hlo.SSAValue, int] = {}
    position = {op: index for index, op in enumerate(kernel.ops if ops is None else ops)}
    for op, index in position.items():
        last[op.results[0]] = index
        reader = op
        while deferred and reader in deferred:
            reader = deferred[reader]
        read_at = position[reader]
        for operand in op.sources:
            source = trace(operand, kernel, member)
            used = operand if source is None else source
            last[used] = max(last.get(used, 0), read_at)
    dying: dict[int, list[hlo.SSAValue]] = {}
    for value, index in last.items():
        dying.setdefault(index, []).append(value)
    return dying


@dataclass(frozen=True, slots=True)
class Alive:
    """The most tiles of a kernel alive at once."""

    tiles: Mapping[int, int]
    """Bytes of an element -> how many tiles of such elements."""
    rows: int
    """How many values with one element a row."""
    scans: int
    """Bytes of scratch that scans take for each element."""

    @property
    def element_bytes(self) -> int:
        """Bytes that one element of the space needs; rows count nothing."""
        return max(1, sum(size * count for size, count in self.tiles.items()) + self.scans)

    def aligned(self, elements: int, rows: int, alignment: int) -> int:
        """Bytes a partition as the allocator counts them, for tiles of ``elements`` in ``rows`` rows."""
        tiles = sum(count * up(size * elements, alignment) for size, count in self.tiles.items())
        return tiles + self.rows * up(4 * rows, alignment) + up(self.scans * elements, alignment)


def up(nbytes: int, alignment: int) -> int:
    """``nbytes`` in whole multiples of ``alignment``."""
    return -(-nbytes // alignment) * alignment


def tiles_alive(
    kernel: Kernel,
    operands: Sequence[hlo.SSAValue],
    dying: Mapping[int, list[hlo.SSAValue]],
    deferred: Set[hlo.HloOp] = frozenset(),
    resident: Set[hlo.SSAValue] = frozenset(),
) -> Alive:
    """For each element size, the most tiles alive at once; ``operands`` are loaded ahead of the first op.

    The results of ``deferred`` ops and ``resident`` ones need no tile.
    """
    sizes = {value: itemsize(hlo.shape_of(value).dtype) for value in operands}
    alive = Counter(sizes.values())
    most = Counter(alive)
    rows: set[hlo.SSAValue] = set()
    most_rows = 0
    scans = max((scan_rows.bytes_wanted(op) for op in kernel.ops if scan_of(op) is not None), default=0)
    for index, op in enumerate(kernel.ops):
        own = itemsize(op.shape.dtype)
        is_row = kernel.is_row(op.shape)
        if op not in deferred and op.results[0] not in resident and not kernel.sums_columns(op):
            if is_row:
                rows.add(op.results[0])
                most_rows = max(most_rows, len(rows))
            else:
                sizes[op.results[0]] = own
                alive[own] += 1
        # a clamp, or a reduction of integers, needs a tile of its own
        spare = op.opcode == "clamp" or (isinstance(op, hlo.ReduceOp) and op.shape.dtype in INTEGERS)
        most[own] = max(most[own], alive[own] + spare)  # of other sizes there are no more than before
        for value in dying.get(index, ()):
            rows.discard(value)
            if value in sizes:
                alive[sizes.pop(value)] -= 1
    return Alive(most, most_rows, scans)
