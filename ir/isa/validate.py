"""Checks decoded tables before anything trusts them, and merges the streams into emission order.

Input: ``Encoded`` tables of any origin. Output: ``Merged``, one table of records in emission order with their operands
and waits. Every number is held against its range: names, counts, registers, streams, debug indices; loops are
balanced, and the same in every stream that takes part, regions in all streams; each address stays inside its memory for
all values of its registers. Failure is RunError EBIR902, which says where.
"""

import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.format import (
    BRANCH,
    ELSE,
    END,
    INSTRUCTION,
    LOOP,
    OPERAND,
    RECORD,
    STARTS,
    WAIT,
    WHILE,
    Encoded,
    Names,
    Table,
)
from neuronx_cc.ir.isa.program import DECIDER, Space, Stream
from neuronx_cc.ir.isa.registers import Load, RegisterRanges
from neuronx_cc.ir.types import NUMPY_DTYPE

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_STREAMS = np.zeros(256, bool)
_STREAMS[[int(stream) for stream in Stream]] = True


@dataclass(slots=True)
class Merged:
    """All streams in emission order. ``streams``: the stream of each instruction; of other records, any that has it."""

    records: Table
    streams: Table
    operands: Table
    waits: Table
    loop_streams: dict[int, frozenset[Stream]]
    """Row of a loop's start -> streams that take part."""


def check(encoded: Encoded, debug_count: int, hbm_bytes: int) -> Merged:
    """Merge the streams; raises RunError EBIR902 for the first field that is not acceptable."""
    _check_names(encoded.names)
    for stream, tables in encoded.streams.items():
        where = f"stream {stream.name.lower()}"
        for table, dtype in ((tables.records, RECORD), (tables.operands, OPERAND), (tables.waits, WAIT)):
            if table.dtype != dtype or table.ndim != 1:
                _fail(f"{where}: a table is not of its format")
        _check_records(where, tables.records, encoded.names, debug_count)
        _check_operands(where, tables.operands, encoded.names)
        _check_waits(where, tables.waits)
        instructions = tables.records[tables.records["kind"] == INSTRUCTION]
        if int((instructions["outs"].astype(np.int64) + instructions["ins"]).sum()) != len(tables.operands):
            _fail(f"{where}: {len(tables.operands)} operands, but its instructions have another number")
        if int(instructions["waits"].sum(dtype=np.int64)) != len(tables.waits):
            _fail(f"{where}: {len(tables.waits)} waits, but its instructions have another number")
    merged = _merge(encoded)
    _check_addresses(merged, encoded.names, hbm_bytes)
    return merged


def _fail(message: str) -> NoReturn:
    raise RunError("EBIR902", f"malformed instruction stream: {message}", "compile the module again")


def _require(condition: Any, where: str, rule: str) -> None:
    """``condition``, an array of truth values, must hold in every row."""
    if not condition.all():
        row = int(np.argmin(condition if condition.ndim == 1 else condition.all(axis=1)))
        _fail(f"{where}, row {row}: {rule}")


def _check_names(names: Names) -> None:
    for dtype in names.dtypes:
        if dtype not in NUMPY_DTYPE:
            _fail(f"unknown element type {dtype!r}")
    for name in (*names.opcodes, *names.alu, *names.flags):
        if not _NAME.fullmatch(name):
            _fail(f"bad name {name!r}")
    for group in (names.opcodes, names.alu, names.flags, names.dtypes):
        if list(group) != sorted(set(group)):
            _fail("names are not sorted")
    if len(names.flags) > limits.MAX_FLAGS:
        _fail(f"more than {limits.MAX_FLAGS} flags")


def _check_records(where: str, table: Table, names: Names, debug_count: int) -> None:
    kind = table["kind"]
    _require(kind <= ELSE, where, "unknown kind of record")
    index = table["index"].astype(np.int64)
    _require(np.diff(index, prepend=-1) > 0, where, "emission order is not ascending")
    is_instruction = kind == INSTRUCTION
    slots = np.arange(limits.MAX_ALU)
    alu_ok = (table["alu"] < len(names.alu)) | (slots >= table["alus"][:, None])
    for condition, rule in (
        (table["opcode"] < len(names.opcodes), "unknown opcode"),
        (table["debug"] < max(debug_count, 1), "debug index out of range"),
        (table["flags"].astype(np.int64) < 1 << len(names.flags), "unknown flag"),
        (table["outs"].astype(int) + table["ins"] <= limits.MAX_OPERANDS, "too many operands"),
        (table["waits"] <= limits.MAX_WAITS, "too many waits"),
        (table["alus"] <= limits.MAX_ALU, "too many ALU operators"),
        (table["imms"] <= limits.MAX_IMMEDIATES, "too many immediates"),
        (table["integers"].astype(int) >> table["imms"] == 0, "integer mark without an immediate"),
        (alu_ok.all(axis=1), "unknown ALU operator"),
    ):
        _require(condition | ~is_instruction, where, rule)
    marked = (table["integers"][:, None] >> np.arange(limits.MAX_IMMEDIATES)) & 1 == 1
    with np.errstate(invalid="ignore"):
        integral = np.floor(table["immediates"]) == table["immediates"]
    integral &= np.abs(table["immediates"]) < 2.0**63
    _require((integral | ~marked) | ~is_instruction[:, None], where, "an immediate is not the integer it claims to be")
    is_loop = kind == LOOP
    slots = np.arange(limits.MAX_PHASES)
    unused = slots >= table["n_phases"][:, None]
    for condition, rule in (
        (table["count"] >= 1, "a loop without iterations"),
        (table["register"] < limits.REGISTERS, "unknown register"),
        (table["n_phases"] <= limits.MAX_PHASES, "too many phase registers"),
        (((table["phases"] < limits.REGISTERS) | unused).all(axis=1), "unknown register"),
        (((table["moduli"] >= 1) | unused).all(axis=1), "a modulus of 0"),
    ):
        _require(condition | ~is_loop, where, rule)
    is_region = (kind == WHILE) | (kind == BRANCH)
    _require((table["register"] < limits.REGISTERS) | ~is_region, where, "unknown register")
    _require((table["count"] >= 1) | (kind != BRANCH), where, "a branch without cases")


def _check_operands(where: str, table: Table, names: Names) -> None:
    where += " operands"
    slots = np.arange(limits.MAX_DIMS)
    on_chip = table["space"] != Space.HBM
    last = table["partition"].astype(np.int64) + table["counts"][:, 0]
    coef_slots = np.arange(limits.MAX_OPERAND_COEFS)
    unused = coef_slots >= table["n_coefs"][:, None]
    for condition, rule in (
        (table["space"] <= Space.PSUM, "unknown memory"),
        (table["dtype"] < len(names.dtypes), "unknown element type"),
        (table["rank"] <= limits.MAX_DIMS, "too many dims"),
        (~on_chip | (table["rank"] >= 1), "no partition dim"),
        (((table["counts"] >= 1) | (slots >= table["rank"][:, None])).all(axis=1), "a count of 0"),
        (~on_chip | (last <= limits.PARTITIONS), f"beyond partition {limits.PARTITIONS - 1}"),
        (~on_chip | (table["strides"][:, 0] == 0), "a partition stride"),
        (on_chip | (table["partition"] == 0), "a partition in HBM"),
        (table["n_coefs"] <= limits.MAX_OPERAND_COEFS, "too many address registers"),
        (((table["registers"] < limits.REGISTERS) | unused).all(axis=1), "unknown register"),
        (table["reserved"] == 0, "reserved field in use"),
    ):
        _require(condition, where, rule)


def _check_waits(where: str, table: Table) -> None:
    where += " waits"
    unused = np.arange(limits.MAX_WAIT_COEFS) >= table["n_coefs"][:, None]
    for condition, rule in (
        (_STREAMS[table["stream"]], "unknown stream"),
        (table["n_coefs"] <= limits.MAX_WAIT_COEFS, "too many registers"),
        (((table["registers"] < limits.REGISTERS) | unused).all(axis=1), "unknown register"),
        (table["reserved"] == 0, "reserved field in use"),
    ):
        _require(condition, where, rule)


def _merge(encoded: Encoded) -> Merged:
    tables = list(encoded.streams.values())
    records = np.concatenate([np.zeros(0, RECORD), *(part.records for part in tables)])
    streams = np.repeat(
        np.array([int(stream) for stream in encoded.streams], np.uint8),
        np.array([len(part.records) for part in tables], np.intp),
    )
    order = np.argsort(records["index"], kind="stable")
    records, streams = records[order], streams[order]
    first = np.diff(records["index"].astype(np.int64), prepend=-1) > 0
    group = np.cumsum(first) - 1
    leaders = records[first]
    if len(leaders) and int(leaders["index"][-1]) != len(leaders) - 1:
        _fail("emission order has gaps")
    of_leader = leaders[group]
    if not ((records["kind"] == of_leader["kind"]) & (first | (records["kind"] != INSTRUCTION))).all():
        _fail("two records at one place of the emission order")
    loops = np.isin(records["kind"], (LOOP, WHILE, BRANCH))
    for name in ("count", "register", "n_phases", "phases", "moduli"):
        if not (records[name][loops] == of_leader[name][loops]).all():
            _fail("streams disagree about a loop")
    sharers: dict[int, set[Stream]] = {}
    shared = np.flatnonzero(records["kind"] != INSTRUCTION)
    for row, stream in zip(group[shared].tolist(), streams[shared].tolist(), strict=True):
        sharers.setdefault(row, set()).add(Stream(stream))
    # operands and waits follow their records; streams are concatenated, so sort by the owner's emission index
    owners_of = {
        name: np.concatenate([np.zeros(0, np.uint32), *(_owners(part.records, name) for part in tables)])
        for name in ("operands", "waits")
    }
    operands = np.concatenate([np.zeros(0, OPERAND), *(part.operands for part in tables)])
    waits = np.concatenate([np.zeros(0, WAIT), *(part.waits for part in tables)])
    loop_streams = _check_nesting(leaders, streams[first], sharers, frozenset(encoded.streams))
    return Merged(
        leaders,
        streams[first],
        operands[np.argsort(owners_of["operands"], kind="stable")],
        waits[np.argsort(owners_of["waits"], kind="stable")],
        loop_streams,
    )


def _owners(records: Table, name: str) -> Table:
    return np.repeat(records["index"], _counts(records, name))


def _counts(records: Table, name: str) -> Table:
    """How many operands, or waits, belong to each record."""
    counts = records["waits"].astype(np.int64) if name == "waits" else records["outs"].astype(np.int64) + records["ins"]
    return np.where(records["kind"] == INSTRUCTION, counts, 0)


def _check_nesting(
    table: Table, streams: Table, sharers: dict[int, set[Stream]], everybody: frozenset[Stream]
) -> dict[int, frozenset[Stream]]:
    """Loops nest, end in the streams that they start in, and hold instructions of no other stream.

    Regions stand in all streams and inside no loop; a branch has the cases that it says.
    """
    loop_streams: dict[int, frozenset[Stream]] = {}
    stack: list[tuple[int, frozenset[Stream], int]] = []
    """Of what is open: kind, streams, cases still to come."""
    kinds, ends = table["kind"], table["kind"] == END
    nested = np.cumsum(np.isin(kinds, STARTS)) > np.cumsum(ends)
    rows = np.flatnonzero(nested | (kinds != INSTRUCTION))  # outside of loops an instruction may be of any stream
    for row, kind, stream, count in zip(
        rows.tolist(), kinds[rows].tolist(), streams[rows].tolist(), table["count"][rows].tolist(), strict=True
    ):
        opened, inside, cases = stack[-1] if stack else (-1, everybody, 0)
        if kind == INSTRUCTION:
            if stream not in inside:
                _fail(f"record {row} of stream {stream} is inside a loop that its stream does not take part in")
            continue
        members = frozenset(sharers[row])
        if kind == LOOP:
            if not members <= inside:
                _fail(f"the loop at record {row} is inside a loop that its streams do not take part in")
            loop_streams[row] = members
            stack.append((kind, members, 0))
        elif kind in (WHILE, BRANCH):
            if opened == LOOP:
                _fail(f"the region at record {row} is inside a counted loop")
            if members != everybody:
                _fail(f"the region at record {row} is missing in a stream")
            stack.append((kind, members, count - 1 if kind == BRANCH else 0))
        elif members != inside or not stack:
            _fail(f"record {row} ends a loop that is not open in its streams")
        elif kind == ELSE:
            if cases < 1:
                _fail(f"record {row} begins a case of no branch, or one too many")
            stack[-1] = (opened, inside, cases - 1)
        else:
            if cases:
                _fail(f"record {row} ends a branch that lacks {cases} cases")
            stack.pop()
    if stack:
        _fail("a loop has no end")
    return loop_streams


def _check_addresses(merged: Merged, names: Names, hbm_bytes: int) -> None:
    """Registers are defined where they are used, and no operand leaves its memory."""
    table, operands = merged.records, merged.operands
    spread_low, spread_high = _register_spread(merged, names)
    on_chip = operands["space"] != Space.HBM
    slots = np.arange(limits.MAX_DIMS)
    used = (slots < operands["rank"][:, None]) & ~(on_chip[:, None] & (slots == 0))
    # in floating point: exact wherever an address can be valid, and no overflow for hostile numbers
    reach = np.where(used, (operands["counts"] - 1.0) * operands["strides"].astype(np.float64), 0.0)
    low = operands["offset"] + np.minimum(reach, 0).sum(axis=1) + spread_low
    itemsizes = np.array([NUMPY_DTYPE[dtype].itemsize for dtype in names.dtypes] or [0])
    high = operands["offset"] + np.maximum(reach, 0).sum(axis=1) + spread_high + itemsizes[operands["dtype"]]
    size_of = np.array([hbm_bytes, limits.SBUF_PARTITION_BYTES, limits.PSUM_PARTITION_BYTES], np.float64)
    inside = (low >= 0) & (high <= size_of[operands["space"]])
    if not inside.all():
        operand = int(np.argmin(inside))
        owner = np.repeat(
            np.arange(len(table)), np.where(table["kind"] == INSTRUCTION, table["outs"] + table["ins"], 0)
        )
        space = Space(int(operands["space"][operand])).name
        row = int(owner[operand])
        name = names.opcodes[int(table["opcode"][row])]
        span = f"[{low[operand]:.0f}, {high[operand]:.0f})"
        _fail(f"record {row} ({name}): an operand at bytes {span} leaves {space}")


def _register_spread(merged: Merged, names: Names) -> tuple[Table, Table]:
    """For each operand, the least and greatest that its registers add to its address."""
    table, operands, waits = merged.records, merged.operands, merged.waits
    low, high = np.zeros(len(operands)), np.zeros(len(operands))
    n_coefs, n_wait_coefs = operands["n_coefs"].tolist(), waits["n_coefs"].tolist()
    kinds, streams = table["kind"].tolist(), merged.streams.tolist()
    loads = _register_loads(merged, names)
    registers = RegisterRanges(kinds, loads)
    open_records: list[int] = []
    everybody = [int(stream) for stream in np.unique(merged.streams).tolist()]
    counts = {name: _counts(table, name) for name in ("operands", "waits")}
    owners = {name: np.repeat(np.arange(len(table)), counts[name]) for name in counts}
    starts = {name: (np.cumsum(counts[name]) - counts[name]).tolist() for name in counts}
    concerned = table["kind"] != INSTRUCTION
    concerned[[load.row for load in loads]] = True
    concerned[owners["operands"][operands["n_coefs"] > 0]] = True
    concerned[owners["waits"][waits["n_coefs"] > 0]] = True
    for row in np.flatnonzero(concerned).tolist():
        kind, stream = kinds[row], streams[row]
        if kind == LOOP:
            open_records.append(row)
            loop = table[row]
            n_phases = int(loop["n_phases"])
            phases = zip(loop["phases"].tolist()[:n_phases], loop["moduli"].tolist()[:n_phases], strict=True)
            counted = [(int(loop["register"]), int(loop["count"])), *phases]
            clash = registers.enter(row, merged.loop_streams[row], counted)
            if clash is not None:
                _fail(f"the loop at record {row} uses register {clash}, which an enclosing loop uses")
            continue
        if kind != INSTRUCTION:
            _follow(registers, table, row, open_records, everybody)
            continue
        at, at_wait = starts["operands"][row], starts["waits"][row]
        for i in range(at, at + int(counts["operands"][row])):
            for slot in range(n_coefs[i]):
                least, most = _range_of(registers, stream, int(operands["registers"][i, slot]), row)
                stride = int(operands["coefs"][i, slot])
                low[i] += min(stride * least, stride * most)
                high[i] += max(stride * least, stride * most)
        for i in range(at_wait, at_wait + int(counts["waits"][row])):
            for slot in range(n_wait_coefs[i]):
                _range_of(registers, stream, int(waits["registers"][i, slot]), row)
        registers.step(row)
    return low, high


def _follow(registers: RegisterRanges, table: Table, row: int, open_records: list[int], everybody: list[int]) -> None:
    """Let ``registers`` enter or leave the region, or leave the loop, at ``row``; what decides a region is defined."""
    kind, count, register = (int(table[name][row]) for name in ("kind", "count", "register"))
    if kind in (WHILE, BRANCH):
        open_records.append(row)
        if kind == BRANCH or not count:
            least, most = _range_of(registers, int(DECIDER), register, row)
            if kind == BRANCH and (least < 0 or most >= count):
                _fail(f"record {row}: a branch of {count} cases on a register that holds {least} to {most}")
        counted = (register, count) if kind == WHILE and count else None
        if registers.enter_region(row, everybody, counted) is not None:
            _fail(f"the region at record {row} counts in register {register}, which an enclosing one uses")
    elif kind == ELSE:
        registers.next_case()
    else:
        start = open_records.pop()
        if int(table["kind"][start]) == LOOP:
            registers.leave()
        else:
            if int(table["kind"][start]) == WHILE and not int(table["count"][start]):
                _range_of(registers, int(DECIDER), int(table["register"][start]), row)
            registers.leave_region(bool(table["kind"][start] == BRANCH or table["count"][start]))


def _range_of(registers: RegisterRanges, stream: int, register: int, row: int) -> tuple[int, int]:
    found = registers.range_of(stream, register)
    if found is None:
        _fail(f"record {row} uses register {register}, which nothing sets")
    return found


def _register_loads(merged: Merged, names: Names) -> list[Load]:
    if "reg_load" not in names.opcodes:
        return []
    table = merged.records
    loads = (table["kind"] == INSTRUCTION) & (table["opcode"] == names.opcodes.index("reg_load"))
    return [
        Load(row, int(merged.streams[row]), *_register_load(row, int(table["imms"][row]), table["immediates"][row]))
        for row in np.flatnonzero(loads).tolist()
    ]


def _register_load(row: int, count: int, immediates: Table) -> tuple[int, int, int]:
    """Register, least and greatest value."""
    if count != 3:
        _fail(f"record {row}: reg_load needs a register and its least and greatest value")
    values = immediates.tolist()[:3]
    if not all(np.isfinite(value) and value == int(value) for value in values):
        _fail(f"record {row}: reg_load with {values}")
    register, least, most = (int(value) for value in values)
    if not 0 <= register < limits.REGISTERS or least > most or least < -(1 << 31) or most >= 1 << 32:
        _fail(f"record {row}: reg_load of register {register} with range {least}..{most}")
    return register, least, most
