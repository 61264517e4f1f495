"""What of a map kernel is alive when: the last use of each value, and the bytes that its tiles need at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from neuronx_cc.codegen.formation.graph import Kernel, squeeze, trace
from neuronx_cc.codegen.maps import scan_rows
from neuronx_cc.ir import hlo
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import INTEGERS, itemsize

Member = dict[hlo.SSAValue, Kernel]


def last_uses(
    kernel: Kernel, member: Member, deferred: Mapping[hlo.HloOp, hlo.HloOp] | None = None
) -> dict[int, list[hlo.SSAValue]]:
    """Op index -> values that nothing later in the kernel reads."""
    last: dict[hlo.SSAValue, int] = {}
    position = {op: index for index, op in enumerate(kernel.ops)}
    for op, index in position.items():
        last[op.results[0]] = index
        read_at = position[deferred[op]] if deferred and op in deferred else index
        for operand in op.operands:
            source = trace(operand, kernel, member)
            used = operand if source is None else source
            last[used] = max(last.get(used, 0), read_at)
    dying: dict[int, list[hlo.SSAValue]] = {}
    for value, index in last.items():
        dying.setdefault(index, []).append(value)
    return dying


def bytes_alive(
    kernel: Kernel,
    operands: Sequence[hlo.SSAValue],
    dying: Mapping[int, list[hlo.SSAValue]],
    deferred: Set[hlo.HloOp] = frozenset(),
    resident: Set[hlo.SSAValue] = frozenset(),
) -> int:
    """Bytes of the tiles that one element of the space needs: for each element size, the most alive at once.

    Rows count nothing, nor do the results of ``deferred`` ops and ``resident`` ones, which need no tile.
    """
    sizes = {value: itemsize(hlo.shape_of(value).dtype) for value in operands}
    alive = Counter(sizes.values())
    most = Counter(alive)
    scans = max((scan_rows.bytes_wanted(op) for op in kernel.ops if scan_of(op) is not None), default=0)
    for index, op in enumerate(kernel.ops):
        own = itemsize(op.shape.dtype)
        is_row = kernel.reduced and squeeze(op.shape.dims) == kernel.rows
        if op not in deferred and not is_row and op.results[0] not in resident:
            sizes[op.results[0]] = own
            alive[own] += 1
        # a clamp, or a reduction of integers, needs a tile of its own
        spare = op.opcode == "clamp" or (isinstance(op, hlo.ReduceOp) and op.shape.dtype in INTEGERS)
        for size, count in alive.items():
            most[size] = max(most[size], count + (spare and size == own))
        for value in dying.get(index, ()):
            if value in sizes:
                alive[sizes.pop(value)] -= 1
    return max(1, sum(size * count for size, count in most.items()) + scans)
