"""Tables back to records: the inverse of ``encoding``, for tables of any origin.

Input: ``Encoded``. Output: the records in emission order. ``validate.check`` accepts every field before any is made.
"""

from typing import Any

import numpy as np

from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.format import BRANCH, ELSE, INSTRUCTION, LOOP, WHILE, Encoded, Names, Table
from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Record, Ref, Space, Stream, Wait, While
from neuronx_cc.ir.isa.validate import check

_STREAM = {int(stream): stream for stream in Stream}
_SPACE = {int(space): space for space in Space}


def decode(encoded: Encoded, debug_count: int, hbm_bytes: int) -> list[Record]:
    """The records in emission order, after ``validate.check`` has accepted every field.

    ``debug_count`` and ``hbm_bytes`` bound the debug indices and the HBM addresses. Raises RunError EBIR902.
    """
    merged = check(encoded, debug_count, hbm_bytes)
    names, table = encoded.names, merged.records
    refs = _refs(merged.operands, names)
    waits = _waits(merged.waits)
    instructions = table[table["kind"] == INSTRUCTION]
    alu = _slices([names.alu[i] for i in _used(instructions["alu"], instructions["alus"])], instructions["alus"])
    marks = _used(instructions["integers"][:, None] >> np.arange(limits.MAX_IMMEDIATES) & 1, instructions["imms"])
    values = _used(instructions["immediates"], instructions["imms"])
    numbers = [int(value) if mark else value for mark, value in zip(marks, values, strict=True)]
    immediates = _slices(numbers, instructions["imms"])
    flag_sets = {
        mask: frozenset(name for bit, name in enumerate(names.flags) if mask >> bit & 1)
        for mask in np.unique(instructions["flags"]).tolist()
    }
    decoded = iter(
        [
            Instr(names.opcodes[opcode], _STREAM[stream], outs, ins, alus, imms, flag_sets[flags], waiting, debug)
            for opcode, stream, outs, ins, alus, imms, flags, waiting, debug in zip(
                instructions["opcode"].tolist(),
                merged.streams[table["kind"] == INSTRUCTION].tolist(),
                *_halves(refs, instructions["outs"], instructions["ins"]),
                alu,
                immediates,
                instructions["flags"].tolist(),
                _slices(waits, instructions["waits"]),
                instructions["debug"].tolist(),
                strict=True,
            )
        ]
    )
    result: list[Record] = []
    for row, kind in enumerate(table["kind"].tolist()):
        if kind == INSTRUCTION:
            result.append(next(decoded))
        elif kind == LOOP:
            loop = table[row]
            n = int(loop["n_phases"])
            phases = zip(loop["phases"].tolist()[:n], loop["moduli"].tolist()[:n], strict=True)
            result.append(Loop(int(loop["count"]), int(loop["register"]), tuple(phases), merged.loop_streams[row]))
        elif kind == WHILE:
            result.append(While(int(table["register"][row]), int(table["count"][row])))
        elif kind == BRANCH:
            result.append(Branch(int(table["register"][row]), int(table["count"][row])))
        else:
            result.append(Else() if kind == ELSE else End())
    return result


def _used(slots: Table, lengths: Table) -> list[Any]:
    """The first ``lengths[i]`` values of row i of the 2-d ``slots``, row after row."""
    values: list[Any] = slots[np.arange(slots.shape[1]) < lengths[:, None]].tolist()
    return values


def _slices(values: list[Any], lengths: Table) -> list[tuple[Any, ...]]:
    """``values`` cut into tuples of the given lengths."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [tuple(values[start:end]) if start < end else () for start, end in zip([0, *ends], ends, strict=False)]


def _halves(refs: list[Ref], outs: Table, ins: Table) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Results and sources of each instruction; ``refs`` holds the results, then the sources, of one after the other."""
    both = _slices(refs, np.stack([outs, ins], axis=1).reshape(-1))
    return both[0::2], both[1::2]


def _pairs(table: Table, first: str, second: str, lengths: str) -> list[tuple[Any, ...]]:
    pairs = zip(_used(table[first], table[lengths]), _used(table[second], table[lengths]), strict=True)
    return _slices(list(pairs), table[lengths])


def _refs(table: Table, names: Names) -> list[Ref]:
    return [
        Ref(_SPACE[space], names.dtypes[dtype], offset, dims, partition, coefs)
        for space, dtype, offset, dims, partition, coefs in zip(
            table["space"].tolist(),
            table["dtype"].tolist(),
            table["offset"].tolist(),
            _pairs(table, "counts", "strides", "rank"),
            table["partition"].tolist(),
            _pairs(table, "registers", "coefs", "n_coefs"),
            strict=True,
        )
    ]


def _waits(table: Table) -> list[Wait]:
    return [
        Wait(_STREAM[stream], count, coefs)
        for stream, count, coefs in zip(
            table["stream"].tolist(),
            table["count"].tolist(),
            _pairs(table, "registers", "coefs", "n_coefs"),
            strict=True,
        )
    ]
