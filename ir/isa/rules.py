"""Verifies instructions against the instruction table and the access rules of the machine.

``verify_instr(instr, machine)`` raises CompileError EBIR903 naming every rule that is broken. Access rules: legal start
partitions, contiguous partitions, free dims and their 16-bit fields, elements per instruction, capacity, PSUM banks,
and which operands must agree in counts. Addresses are checked with registers at 0; the loader checks their range.
Source: hardware sheet sections 1.4 to 1.6 and 3.4.
"""

from collections.abc import Iterator
from math import prod

from neuronx_cc.ir.errors import PLAN_ANEW, CompileError
from neuronx_cc.ir.isa.program import DMA_STREAMS, MAX_FREE_DIMS, Instr, Ref, Space
from neuronx_cc.ir.isa.table import BITVEC, TABLE, Role, Row
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.types import itemsize

MAX_COUNT = 65535
MAX_STRIDE = 32768
"""Limits of the 16-bit fields of an access pattern; strides in elements."""
SQUARE = 32
"""Most rows and columns of a transpose on Vector."""


def verify_instr(instr: Instr, machine: Machine) -> None:
    """Raises CompileError EBIR903 when ``instr`` breaks a rule."""
    found = list(problems(instr, machine))
    if found:
        raise CompileError("EBIR903", f"{instr.op} on {instr.stream.name.lower()}: {'; '.join(found)}", PLAN_ANEW)


def problems(instr: Instr, machine: Machine) -> Iterator[str]:
    """Sentences about the rules that ``instr`` breaks."""
    yield from structure(instr)
    row = TABLE.get(instr.op)
    known = row is not None and None not in (
        _roles(row.outs, instr, len(instr.outs)),
        _roles(row.ins, instr, len(instr.ins)),
    )
    if not known or any(not ref.dims for ref in (*instr.outs, *instr.ins)):
        return
    for role, ref in _operands(instr):
        for problem in _access(ref, machine, instr.stream in DMA_STREAMS):
            yield f"{role.name}: {problem}"
    yield from _capacity(instr, machine)


def structure(instr: Instr) -> Iterator[str]:
    """Sentences about what no machine makes good: what the instruction is, and how its operands fit each other."""
    row = TABLE.get(instr.op)
    if row is None:
        yield f"there is no instruction {instr.op!r}"
        return
    if instr.stream not in row.streams:
        yield f"runs on {', '.join(sorted(stream.name.lower() for stream in row.streams))} only"
    if _roles(row.outs, instr, len(instr.outs)) is None or _roles(row.ins, instr, len(instr.ins)) is None:
        yield f"{len(instr.outs)} results and {len(instr.ins)} sources do not fit its operands and flags"
        return
    yield from _modifiers(instr, row)
    operands = _operands(instr)
    broken = [f"{role.name}: {problem}" for role, ref in operands for problem in _operand(role, ref)]
    yield from broken
    if not broken:
        yield from _counts(instr, row, operands)


def _operands(instr: Instr) -> list[tuple[Role, Ref]]:
    """The operands with their roles, of which there are as many."""
    row = TABLE[instr.op]
    outs, ins = _roles(row.outs, instr, len(instr.outs)), _roles(row.ins, instr, len(instr.ins))
    assert outs is not None
    assert ins is not None
    return [*zip(outs, instr.outs, strict=True), *zip(ins, instr.ins, strict=True)]


def _roles(roles: tuple[Role, ...], instr: Instr, given: int) -> list[Role] | None:
    """The roles of the operands at hand, or None when their number is wrong."""
    needed = [role for role in roles if not role.when or role.when in instr.flags]
    optional = [role for role in roles if role.when == "optional"]
    if given == len(needed):
        return needed
    return [*needed, *optional] if given == len(needed) + len(optional) else None


def _modifiers(instr: Instr, row: Row) -> Iterator[str]:
    if not len(row.alu) - row.alu_optional <= len(instr.alu) <= len(row.alu):
        yield f"{len(instr.alu)} operators, takes {len(row.alu)}"
    for op, allowed in zip(instr.alu, row.alu, strict=False):
        if op not in allowed:
            yield f"has no operator {op!r}"
    least, most = row.imm
    if not least <= len(instr.imm) <= most:
        yield f"{len(instr.imm)} constants, takes {least} to {most}"
    unknown = instr.flags - row.flags
    if unknown:
        yield f"has no flag {', '.join(sorted(unknown))}"
    if any(role.when == "optional" for role in row.ins) and len(instr.ins) == 1 and not instr.imm:
        yield "needs a constant or a second source"
    bitwise = [op in BITVEC or op == "bitwise_not" for op in instr.alu]
    if any(bitwise) and row.alu and BITVEC & row.alu[0]:
        if not all(bitwise):
            yield "mixes arithmetic and bit operators"
        if len({itemsize(ref.dtype) for ref in (*instr.outs, *instr.ins)}) > 1:
            yield "bit operators need elements of one width"


def _operand(role: Role, ref: Ref) -> Iterator[str]:
    if ref.space not in role.spaces:
        yield f"lies in {ref.space.name}, not in {' or '.join(sorted(space.name for space in role.spaces))}"
    if ref.dtype not in role.dtypes:
        yield f"element type {ref.dtype}"
        return
    if any(count < 1 for count in ref.counts):
        yield f"counts {list(ref.counts)}"
    if len(ref.dims) > MAX_FREE_DIMS + 1:
        yield f"{len(ref.dims)} dims"
    if ref.space is not Space.HBM and not ref.dims:
        yield "no partition dim"
    elif ref.space is not Space.HBM and ref.dims[0][1] != 0:
        yield "a partition stride"


def _access(ref: Ref, machine: Machine, by_dma: bool) -> Iterator[str]:
    """How the operand may lie in the memories of a machine."""
    if ref.space is Space.HBM:
        return
    partitions, free = ref.dims[0][0], ref.dims[1:]
    if ref.partition + partitions > machine["memory.partitions"]:
        yield f"{partitions} partitions from {ref.partition} on"
    elif not by_dma and ref.partition not in starts(partitions):
        yield f"{partitions} partitions cannot start at {ref.partition}"
    size = itemsize(ref.dtype)
    for count, stride in free:
        if count > MAX_COUNT:
            yield f"a count of {count}"
        if not by_dma and not -MAX_STRIDE <= stride // size < MAX_STRIDE:
            yield f"a stride of {stride // size} elements"
        if stride % size and count > 1:
            yield f"a stride of {stride} bytes for {ref.dtype}"
    elements = prod(count for count, _ in free)
    limit = machine["memory.psum_max_elements" if ref.space is Space.PSUM else "memory.sbuf_max_elements"]
    if not by_dma and elements > limit:
        yield f"{elements} elements a partition, at most {limit}"
    reach = [(count - 1) * stride for count, stride in free]
    low = ref.offset + sum(min(r, 0) for r in reach)
    high = ref.offset + sum(max(r, 0) for r in reach) + size
    capacity = machine["memory.psum_partition_bytes"]
    if ref.space is Space.SBUF:
        capacity = machine["memory.sbuf_partition_bytes"] - machine["sbuf.reserved_bytes"]
    if low < 0 or high > capacity:
        yield f"bytes [{low}, {high}) leave the {capacity} bytes of a partition"
    bank = machine["memory.psum_bank_bytes"]
    if ref.space is Space.PSUM and low // bank != (high - 1) // bank:
        yield f"bytes [{low}, {high}) cross a PSUM bank"


def starts(partitions: int) -> tuple[int, ...]:
    """Partitions at which an access of ``partitions`` may start (hardware sheet 1.5)."""
    if partitions > 64:
        return (0,)
    return (0, 64) if partitions > 32 else (0, 32, 64, 96)


def _counts(instr: Instr, row: Row, operands: list[tuple[Role, Ref]]) -> Iterator[str]:
    tiles = {ref.counts for role, ref in operands if role.shape == "tile"}
    if len(tiles) > 1:
        yield f"counts differ: {', '.join(str(list(counts)) for counts in sorted(tiles))}"
    partitions = {counts[:1] for counts in tiles}
    for role, ref in operands:
        if role.shape == "partition" and (prod(ref.counts[1:]) != 1 or ref.counts[:1] not in partitions):
            yield f"{role.name}: counts {list(ref.counts)}, expected one element a partition"
    streamed = [ref for role, ref in operands[len(instr.outs) :] if role.shape == "tile"]
    if len(streamed) == 2 and all(ref.space is Space.PSUM for ref in streamed):
        yield "both sources lie in PSUM"
    counts = [ref.counts for _, ref in operands]
    if row.rule == "affine":
        steps = len(instr.imm) - (2 if row.alu else 1)
        if steps != len(counts[0]):
            yield f"{steps} steps for {len(counts[0])} dims"
    elif row.rule not in ("same", "stationary") and not (all(counts) and _agree(row.rule, counts)):
        yield f"counts {', '.join(str(list(c)) for c in counts)} do not fit each other"


def _capacity(instr: Instr, machine: Machine) -> Iterator[str]:
    """What the array of TensorE takes."""
    counts = [ref.counts for ref in (*instr.outs, *instr.ins)]
    row, limits = TABLE[instr.op], [int(machine[f"pe.{name}"]) for name in ("rows", "columns", "max_moving")]
    if row.rule == "stationary" and (counts[0][0] > limits[0] or prod(counts[0][1:]) > limits[1]):
        yield f"counts {list(counts[0])}, at most {limits[0]} x {limits[1]}"
    if row.rule == "multiply" and (counts[0][0] > limits[1] or prod(counts[0][1:]) > limits[2]):
        yield f"counts {list(counts[0])}, at most {limits[1]} x {limits[2]}"


def _agree(rule: str, counts: list[tuple[int, ...]]) -> bool:
    first, second = counts[0], counts[-1]
    if rule == "multiply":
        return prod(first[1:]) == prod(second[1:])
    if rule == "reduce":
        whole = len(first) <= 2 and prod(first[1:]) == 1 and first[0] == second[0]
        return whole or first == second[: len(first)]
    if rule == "transpose":
        return len(first) == len(second) == 2 and first == second[::-1] and max(first) <= SQUARE
    if rule == "partition_reduce":
        return first[0] == 1 and first[1:] == second[1:]
    if rule == "partition_broadcast":
        return second[0] == 1 and first[1:] == second[1:]
    if rule == "sort":
        return len(first) == 4 and first == second
    if rule == "topk":
        fits = len(first) == len(second) == 3 and first[:2] == second[:2] and first[2] <= second[2]
        return fits and counts[1] == first
    if rule == "host":
        return len(first) == len(second) == 1
    if rule == "collective":
        return first == second or first[1:] == second or first == second[1:]
    if rule in ("group_gather", "group_scatter"):
        lists, tables = (first, counts[1]) if rule == "group_gather" else (counts[1], first)
        same_rows = len(first) == len(counts[1]) == 3 and lists[2] == tables[2]
        return same_rows and first[0] % 16 == 0 and lists[0] == tables[0] and counts[2] == lists[:2]
    if rule == "select_scatter":
        result, inputs, windows, bounds = counts
        ranks = {len(result), len(inputs), len(windows)}
        return len(ranks) == 1 and len({c[0] for c in counts}) == 1 and prod(bounds[1:]) == 5 * (len(inputs) - 1)
    if rule == "one":
        return prod(first) == 1
    tile, rows = (counts[0], counts[1]) if rule == "gather" else (counts[1], counts[0])
    return tile[1:] == rows[1:] and tile[0] == counts[2][0] and prod(counts[2][1:]) == 1
