"""Records in binary: fixed-size little-endian structured arrays, one set of tables per stream.

Input of ``encode``: the records of a program in emission order. Output: ``Encoded``, which holds for each stream a
table of records (``RECORD``: instruction, loop or region), and beside it the operands (``OPERAND``) and waits
(``WAIT``) of its instructions in the same order. Loop records stand in the tables of all streams that take part,
region records in those of all streams.
Every record carries its emission index, by which ``decoding`` merges the streams.

Mnemonics, ALU operators, flags and element types are stored as numbers that index the sorted ``Names`` of the
program, so the format does not change when an instruction is added.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.format import (
    BRANCH,
    ELSE,
    END,
    INSTRUCTION,
    LOOP,
    OPERAND,
    RECORD,
    WAIT,
    WHILE,
    Encoded,
    Names,
    StreamTables,
    Table,
)
from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Record, Ref, Stream, Wait, While

KINDS: dict[type, int] = {
    Instr: INSTRUCTION,
    Loop: LOOP,
    End: END,
    While: WHILE,
    Branch: BRANCH,
    Else: ELSE,
}
"""Class of a record -> its kind."""
_alu, _imm, _dims, _coefs = map(attrgetter, ("alu", "imm", "dims", "coefs"))


def encode(records: Sequence[Record]) -> Encoded:
    """Encode records in emission order.

    Raises CompileError EBIR901 when an instruction exceeds a limit of the format or a loop is malformed.
    """
    instructions = [record for record in records if type(record) is Instr]
    refs = [ref for instr in instructions for ref in (*instr.outs, *instr.ins)]
    waits = list(chain.from_iterable(map(attrgetter("waits"), instructions)))
    names = _collect_names(instructions, refs)
    table, positions = _record_table(records, instructions, names)
    operands = _operand_table(refs, names)
    wait_table = _wait_table(waits)
    if _over_limits(table, operands, wait_table):
        _check_limits(records, instructions, refs, waits)

    members = _members(records, {instr.stream for instr in instructions})
    streams = np.full(len(records), 255, np.uint8)
    streams[positions] = np.fromiter((instr.stream for instr in instructions), np.uint8, len(instructions))
    operand_stream = np.repeat(streams, table["outs"].astype(np.intp) + table["ins"])
    wait_stream = np.repeat(streams, table["waits"])
    result = {}
    for stream in sorted({*members, *map(Stream, np.unique(streams[positions]).tolist())}):
        mine = streams == stream
        mine[members.get(stream, [])] = True
        result[stream] = StreamTables(
            table[mine], operands[operand_stream == stream], wait_table[wait_stream == stream]
        )
    return Encoded(names, result)


def _collect_names(instructions: list[Instr], refs: list[Ref]) -> Names:
    names = Names(
        tuple(sorted({instr.op for instr in instructions})),
        tuple(sorted({name for instr in instructions for name in instr.alu})),
        tuple(sorted(set().union(*{instr.flags for instr in instructions}))),
        tuple(sorted({ref.dtype for ref in refs})),
    )
    _limit("different instructions", len(names.opcodes), 256)
    _limit("different flags", len(names.flags), limits.MAX_FLAGS)
    _limit("different ALU operators", len(names.alu), 1 << 16)
    _limit("different element types", len(names.dtypes), 256)
    return names


def _limit(what: str, found: int, most: int, where: str = "") -> None:
    if found > most:
        raise CompileError("EBIR901", f"{where}{found} {what}; the instruction format holds {most}")


def _column(values: Iterable[Any], dtype: str, count: int) -> Table:
    return np.fromiter(values, dtype, count)


def _index(names: tuple[str, ...]) -> Callable[[str], int]:
    return {name: number for number, name in enumerate(names)}.__getitem__


def _fill(target: Table, lengths: Table, values: Iterable[Any]) -> None:
    """Row i of the 2-d ``target`` begins with the next ``lengths[i]`` of ``values``."""
    flat = np.fromiter(values, target.dtype, int(lengths.sum()))
    target[np.arange(target.shape[1]) < lengths[:, None]] = flat


def _fill_pairs(first: Table, second: Table, lengths: Table, tuples: Iterable[Any]) -> None:
    """Row i of both 2-d tables begins with the pairs that the next of ``tuples`` holds, ``lengths[i]`` of them."""
    pairs = list(chain.from_iterable(tuples))
    if not {2}.issuperset(map(len, pairs)):
        raise ValueError("more or less than two numbers")
    flat = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * int(lengths.sum()))
    used = np.arange(first.shape[1]) < lengths[:, None]
    numbers = flat[::2]
    if ((numbers < 0) | (numbers > np.iinfo(first.dtype).max)).any():
        raise OverflowError("a number beyond its field")
    first[used], second[used] = numbers, flat[1::2]


def _record_table(records: Sequence[Record], instructions: list[Instr], names: Names) -> tuple[Table, Table]:
    """The table of all records, and the rows of the instructions in it."""
    table = np.zeros(len(records), RECORD)
    table["kind"] = _column((KINDS[type(record)] for record in records), "u1", len(records))
    table["index"] = np.arange(len(records))
    positions = np.flatnonzero(table["kind"] == INSTRUCTION)
    count = len(instructions)
    part = np.zeros(count, RECORD)
    part["index"] = positions
    try:
        opcode, alu = _index(names.opcodes), _index(names.alu)
        masks = {
            flags: sum(1 << bit for bit, name in enumerate(names.flags) if name in flags)
            for flags in {instr.flags for instr in instructions}
        }
        part["opcode"] = _column(map(opcode, map(attrgetter("op"), instructions)), "u1", count)
        part["flags"] = _column(map(masks.__getitem__, map(attrgetter("flags"), instructions)), "u4", count)
        part["debug"] = _column(map(attrgetter("debug"), instructions), "u4", count)
        for name in ("outs", "ins", "waits"):
            part[name] = _column(map(len, map(attrgetter(name), instructions)), "u1", count)
        part["alus"] = _column(map(len, map(_alu, instructions)), "u1", count)
        part["imms"] = _column(map(len, map(_imm, instructions)), "u1", count)
        _fill(part["alu"], part["alus"], map(alu, chain.from_iterable(map(_alu, instructions))))
        _fill(part["immediates"], part["imms"], chain.from_iterable(map(_imm, instructions)))
        for row in np.flatnonzero(part["imms"]).tolist():
            part["integers"][row] = sum(1 << i for i, x in enumerate(instructions[row].imm) if isinstance(x, int))
        table[positions] = part
        for row in np.flatnonzero(table["kind"] == LOOP).tolist():
            _encode_loop(table[row], records[row])
        for row in np.flatnonzero((table["kind"] == WHILE) | (table["kind"] == BRANCH)).tolist():
            _encode_region(table[row], records[row])
    except (OverflowError, ValueError, IndexError):
        _check_limits(records, instructions, [], [])
        raise
    return table, positions


def _encode_loop(row: Any, loop: Record) -> None:
    assert isinstance(loop, Loop)
    row["count"], row["register"], row["n_phases"] = loop.count, loop.register, len(loop.phases)
    for i, (register, modulus) in enumerate(loop.phases):
        row["phases"][i], row["moduli"][i] = register, modulus


def _encode_region(row: Any, region: Record) -> None:
    assert isinstance(region, While | Branch)
    row["register"] = region.register
    row["count"] = region.count if isinstance(region, While) else region.cases


def _operand_table(refs: list[Ref], names: Names) -> Table:
    table = np.zeros(len(refs), OPERAND)
    dtype = _index(names.dtypes)
    try:
        table["offset"] = _column(map(attrgetter("offset"), refs), "i8", len(refs))
        table["space"] = _column(map(attrgetter("space"), refs), "u1", len(refs))
        table["dtype"] = _column(map(dtype, map(attrgetter("dtype"), refs)), "u1", len(refs))
        table["partition"] = _column(map(attrgetter("partition"), refs), "u1", len(refs))
        table["rank"] = _column(map(len, map(_dims, refs)), "u1", len(refs))
        table["n_coefs"] = _column(map(len, map(_coefs, refs)), "u1", len(refs))
        _fill_pairs(table["counts"], table["strides"], table["rank"], map(_dims, refs))
        _fill_pairs(table["registers"], table["coefs"], table["n_coefs"], map(_coefs, refs))
    except (OverflowError, ValueError, IndexError):
        _check_limits((), [], refs, [])
        raise
    return table


def _wait_table(waits: list[Wait]) -> Table:
    table = np.zeros(len(waits), WAIT)
    try:
        table["count"] = _column(map(attrgetter("count"), waits), "i8", len(waits))
        table["stream"] = _column(map(attrgetter("stream"), waits), "u1", len(waits))
        table["n_coefs"] = _column(map(len, map(_coefs, waits)), "u1", len(waits))
        _fill_pairs(table["registers"], table["coefs"], table["n_coefs"], map(_coefs, waits))
    except (OverflowError, ValueError, IndexError):
        _check_limits((), [], [], waits)
        raise
    return table


def _over_limits(table: Table, operands: Table, waits: Table) -> bool:
    """Whether there is something for ``_check_limits`` to name."""
    used = np.arange(limits.MAX_DIMS) < operands["rank"][:, None]
    large = np.abs(table["immediates"]) >= 2.0**53
    addresses = (operands["offset"], operands["strides"], operands["coefs"], waits["count"], waits["coefs"])
    loops = table[table["kind"] == LOOP]
    phases = np.arange(limits.MAX_PHASES) < loops["n_phases"][:, None]
    regions = table[(table["kind"] == WHILE) | (table["kind"] == BRANCH)]
    registers = (operands["registers"], waits["registers"], loops["register"], loops["phases"], regions["register"])
    return bool(
        (table["outs"].astype(int) + table["ins"] > limits.MAX_OPERANDS).any()
        or (table["waits"] > limits.MAX_WAITS).any()
        or (large.any(axis=1) & (table["integers"] > 0)).any()
        or any((numbers >> 62 != numbers >> 63).any() for numbers in addresses)
        or ((operands["counts"] == 0) & used).any()
        or (operands["partition"] >= limits.PARTITIONS).any()
        or any((numbers >= limits.REGISTERS).any() for numbers in registers)
        or (loops["count"] == 0).any()
        or ((regions["count"] == 0) & (regions["kind"] == BRANCH)).any()
        or ((loops["moduli"] == 0) & phases).any()
    )


def _check_limits(records: Sequence[Record], instructions: list[Instr], refs: list[Ref], waits: list[Wait]) -> None:
    """Name the first thing that the tables cannot hold."""
    for instr in instructions:
        where = f"{instr.op} on stream {instr.stream.name.lower()}: "
        _limit("operands", len(instr.outs) + len(instr.ins), limits.MAX_OPERANDS, where)
        _limit("waits", len(instr.waits), limits.MAX_WAITS, where)
        _limit("ALU operators", len(instr.alu), limits.MAX_ALU, where)
        _limit("immediates", len(instr.imm), limits.MAX_IMMEDIATES, where)
        for value in instr.imm:
            if isinstance(value, int) and int(float(value)) != value:
                raise CompileError("EBIR901", f"{where}the immediate {value} is not exact in 64 bits")
        if not 0 <= instr.debug < 1 << 32:
            raise CompileError("EBIR901", f"{where}debug index {instr.debug}")
    for ref in refs:
        where = f"operand {ref}: "
        _limit("dims", len(ref.dims), limits.MAX_DIMS, where)
        _limit("address registers", len(ref.coefs), limits.MAX_OPERAND_COEFS, where)
        numbers = (ref.offset, *(stride for _, stride in ref.dims), *(stride for _, stride in ref.coefs))
        if not all(-(1 << 62) < number < 1 << 62 for number in numbers):
            raise CompileError("EBIR901", f"{where}an address beyond 62 bits")
        if not all(1 <= count < 1 << 32 for count, _ in ref.dims):
            raise CompileError("EBIR901", f"{where}a count outside 1..2^32-1")
        if not 0 <= ref.partition < limits.PARTITIONS:
            raise CompileError("EBIR901", f"{where}partition outside 0..{limits.PARTITIONS - 1}")
        _check_registers(where, (register for register, _ in ref.coefs))
    for wait in waits:
        where = f"wait for {wait.stream.name.lower()}: "
        _limit("registers", len(wait.coefs), limits.MAX_WAIT_COEFS, where)
        if not all(-(1 << 62) < number < 1 << 62 for number in (wait.count, *(coef for _, coef in wait.coefs))):
            raise CompileError("EBIR901", f"{where}a threshold beyond 62 bits")
        _check_registers(where, (register for register, _ in wait.coefs))
    for record in records:
        if isinstance(record, Loop):
            where = f"loop over {record.count}: "
            _limit("phase registers", len(record.phases), limits.MAX_PHASES, where)
            if not all(1 <= number < 1 << 32 for number in (record.count, *(modulus for _, modulus in record.phases))):
                raise CompileError("EBIR901", f"{where}trip count or modulus outside 1..2^32-1")
            _check_registers(where, (record.register, *(register for register, _ in record.phases)))
        elif isinstance(record, While | Branch):
            where, least = ("while: ", 0) if isinstance(record, While) else ("branch: ", 1)
            number = record.count if isinstance(record, While) else record.cases
            if not least <= number < 1 << 32:
                raise CompileError("EBIR901", f"{where}a count of {number}")
            _check_registers(where, (record.register,))


def _check_registers(where: str, registers: Iterable[int]) -> None:
    for register in registers:
        if not 0 <= register < limits.REGISTERS:
            raise CompileError("EBIR901", f"{where}register {register} outside 0..{limits.REGISTERS - 1}")


def _members(records: Sequence[Record], everybody: set[Stream]) -> dict[Stream, list[int]]:
    """For each stream, the rows of the loop and region records that it takes part in."""
    members: dict[Stream, list[int]] = {}
    starts: list[tuple[int, set[Stream]]] = []
    """Open loops with the streams seen inside, and open regions."""
    cases: list[int] = []
    """Cases begun of each open region."""
    for row, record in enumerate(records):
        if isinstance(record, Instr):
            if starts and record.stream not in starts[-1][1]:
                starts[-1][1].add(record.stream)
        elif isinstance(record, Loop):
            starts.append((row, set(record.streams)))
        elif isinstance(record, While | Branch):
            if not everybody:
                raise CompileError("EBIR901", f"the region at record {row} is in a program without instructions")
            if starts and type(records[starts[-1][0]]) is Loop:
                raise CompileError("EBIR901", f"the region at record {row} is inside a counted loop")
            starts.append((row, set()))
            cases.append(1)
            _join(members, everybody, row)
        elif isinstance(record, Else):
            if not starts or type(records[starts[-1][0]]) is not Branch:
                raise CompileError("EBIR901", f"record {row} begins a case, but no branch is open")
            cases[-1] += 1
            _join(members, everybody, row)
        else:
            if not starts:
                raise CompileError("EBIR901", f"record {row} ends a loop, but none is open")
            start, streams = starts.pop()
            loop = records[start]
            if not isinstance(loop, Loop):
                begun = cases.pop()
                if isinstance(loop, Branch) and begun != loop.cases:
                    raise CompileError("EBIR901", f"the branch at record {start} has {begun} cases, not {loop.cases}")
                _join(members, everybody, row)
                continue
            if not streams:
                raise CompileError("EBIR901", f"the loop at record {start} is empty")
            if loop.streams and streams != loop.streams:
                missing = ", ".join(sorted(stream.name.lower() for stream in streams - loop.streams))
                raise CompileError("EBIR901", f"the loop at record {start} does not name {missing}, which works inside")
            _join(members, streams, start, row)
            if starts:
                starts[-1][1].update(streams)
    if starts:
        raise CompileError("EBIR901", f"the loop at record {starts[-1][0]} has no end")
    return members


def _join(members: dict[Stream, list[int]], streams: set[Stream], *rows: int) -> None:
    for stream in streams:
        members.setdefault(stream, []).extend(rows)
