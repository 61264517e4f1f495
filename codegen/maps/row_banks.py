"""Values of rows that lie side by side on a partition, in PSUM.

Vector reads them there beside a tile in SBUF at the rate of one operand; two in SBUF take twice as long (hardware sheet
1.7).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any

from neuronx_cc.codegen.emission.builder import Ring
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.formation.graph import Kernel, base, reads
from neuronx_cc.codegen.maps.elementwise import ROUNDED
from neuronx_cc.ir import hlo
from neuronx_cc.ir.machine import Sizes

FEWEST = 16
"""Of a tile, from which it pays."""
BUFFERS = 2


def read_beside(kernel: Kernel) -> list[hlo.SSAValue]:
    """Values of rows that arithmetic on whole tiles reads, made and read by Vector and Scalar alone; of a division of
    tiles by values of rows its result, for the inverses.
    """
    found = list[hlo.SSAValue]()
    for op in kernel.ops:
        rows = kernel.is_row(op.shape) and _is_float(op) and _users_take(kernel, op.results[0])
        divides = (
            op.opcode == "divide" and not kernel.is_row(op.shape) and kernel.is_row(hlo.shape_of(base(op.operands[1])))
        )
        if rows or (divides and _is_float(op)):
            found.append(op.results[0])
    return found


def read_at_once(
    kernel: Kernel, within: Mapping[hlo.HloOp, hlo.HloOp], stored: Container[hlo.SSAValue]
) -> set[hlo.HloOp]:
    """Sums over the partitions that only the next instruction reads, which finds them where TensorE left them.

    ``within``: ops without an instruction -> that by whose instruction they are done; ``stored``: what has a place.
    """
    found = set[hlo.HloOp]()
    for op, after in pairwise(op for op in kernel.ops if op not in within):
        if not isinstance(op, hlo.ReduceOp) or op.result in stored or isinstance(after, hlo.ReduceOp):
            continue
        users = {use.operation for use in reads(op.result)}
        while not users.isdisjoint(within):
            users = {within.get(user, user) for user in users}
        if users == {after} and _is_float(after):
            found.add(op)
    return found


def banks_of(pool: TilePool, wanted: Sequence[hlo.SSAValue], rows: int, together: int) -> Mapping[hlo.SSAValue, Ring]:
    """A ring of banks for each of those of ``wanted`` for which there is room.

    ``rows``: of a tile. ``together``: tiles that are emitted together, each of which needs a bank of its own.
    """
    sizes, psum, buffers = pool.builder.sizes, pool.builder.psum, max(BUFFERS, together)
    found = dict[hlo.SSAValue, Ring]()
    for value in wanted if fits(sizes, rows) else ():
        if psum.largest_gap() < buffers * sizes.bank_bytes:  # what is taken may leave two gaps of one
            break
        found[value] = pool.psum(buffers, "values of rows")
    return found


def fits(sizes: Sizes, rows: int) -> bool:
    """Whether so many values are worth a bank, and fit one."""
    return FEWEST <= rows <= sizes.bank_columns


def _is_float(op: hlo.HloOp) -> bool:
    arithmetic = isinstance(op, hlo.ReduceOp) or op.opcode in ROUNDED
    return arithmetic and all(hlo.shape_of(value).dtype == "f32" for value in (*op.sources, op.results[0]))


def _users_take(kernel: Kernel, value: hlo.SSAValue) -> bool:
    users = [use for use in reads(value) if use.operation in kernel.ops]
    beside = [use for use in users if not kernel.is_row(use.operation.shape) and not _divides(use)]
    return all(_is_float(use.operation) for use in users) and bool(beside)


def _divides(use: Any) -> bool:
    """Whether ``use`` is that of a divisor, of which the inverse is read."""
    return bool(use.operation.opcode == "divide" and use.index == 1)
