"""The binary format of records: structured array types and the tables that one program is made of.

Used by ``encoding`` (to and from records) and ``validate`` (checks of decoded tables). All fields are
little-endian and packed; unused slots are zero.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.program import Stream

Table = np.ndarray[Any, np.dtype[Any]]

INSTRUCTION, LOOP, END, WHILE, BRANCH, ELSE = range(6)
"""Values of the field ``kind``."""
STARTS = (LOOP, WHILE, BRANCH)
"""Kinds that an ``END`` closes."""

RECORD = np.dtype(
    [
        ("immediates", "<f8", (limits.MAX_IMMEDIATES,)),
        ("index", "<u4"),  # position in emission order
        ("debug", "<u4"),
        ("flags", "<u4"),  # bit i: the flag Names.flags[i]
        ("count", "<u4"),  # of a loop or region: trips (0: run-time) or cases
        ("moduli", "<u4", (limits.MAX_PHASES,)),  # of a loop's phase registers
        ("alu", "<u2", (limits.MAX_ALU,)),
        ("phases", "u1", (limits.MAX_PHASES,)),  # registers of a loop
        ("register", "u1"),  # of a loop or region
        ("kind", "u1"),
        ("opcode", "u1"),
        ("outs", "u1"),  # from here on: how many of each there are
        ("ins", "u1"),
        ("waits", "u1"),
        ("alus", "u1"),
        ("imms", "u1"),
        ("integers", "u1"),  # bit i: immediate i is an integer
        ("n_phases", "u1"),
    ]
)
OPERAND = np.dtype(
    [
        ("offset", "<i8"),
        ("strides", "<i8", (limits.MAX_DIMS,)),
        ("coefs", "<i8", (limits.MAX_OPERAND_COEFS,)),
        ("counts", "<u4", (limits.MAX_DIMS,)),
        ("registers", "u1", (limits.MAX_OPERAND_COEFS,)),
        ("space", "u1"),
        ("dtype", "u1"),
        ("partition", "u1"),
        ("rank", "u1"),
        ("n_coefs", "u1"),
        ("reserved", "u1"),
    ]
)
WAIT = np.dtype(
    [
        ("count", "<i8"),
        ("coefs", "<i8", (limits.MAX_WAIT_COEFS,)),
        ("registers", "u1", (limits.MAX_WAIT_COEFS,)),
        ("stream", "u1"),
        ("n_coefs", "u1"),
        ("reserved", "<u2"),
    ]
)


@dataclass(slots=True, frozen=True)
class Names:
    """The strings of a program, each list sorted; records hold indices into them."""

    opcodes: tuple[str, ...] = ()
    alu: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(slots=True)
class StreamTables:
    """What one stream holds: 1-d arrays of ``RECORD``, ``OPERAND`` and ``WAIT``."""

    records: Table = field(default_factory=lambda: np.zeros(0, RECORD))
    operands: Table = field(default_factory=lambda: np.zeros(0, OPERAND))
    waits: Table = field(default_factory=lambda: np.zeros(0, WAIT))


@dataclass(slots=True)
class Encoded:
    names: Names
    streams: dict[Stream, StreamTables]
    """By ascending stream; streams without work are absent."""
