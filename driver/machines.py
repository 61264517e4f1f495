"""The machine that a compilation plans for: the target's description, ``--machine`` and ``--set``.

Afterwards ``--set`` alone says it, as settings of the target's own description: what keys, reproducers, serialized
programs and the NEFF record needs no file.
"""

from dataclasses import replace

from neuronx_cc.driver.parse import Parsed
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

LEAST_SBUF = 16 << 10
"""Bytes of SBUF a partition below which nothing is planned."""


def planned_machine(parsed: Parsed) -> Machine:
    """The machine to plan for; ``parsed`` then says it by its target and ``set`` alone.

    Raises UsageError EFIL901 or EARG907 for descriptions and settings that are not valid.
    """
    target = find_machine(parsed.text("target") if "target" in parsed.values else "trn1")
    path = parsed.text_or_none("machine")
    given = (target if path is None else find_machine(path)).with_settings(parsed.names("set"))
    _check_sizes(given)
    parsed.values["set"] = given.differences(target)
    parsed.values["machine"] = None
    return replace(target.with_settings(parsed.names("set")), name=given.name)


def _check_sizes(machine: Machine) -> None:
    """Refuse sizes that the instruction format cannot address, or that leave no room for a tile."""
    sizes, bank = machine.sizes(), int(machine["memory.psum_bank_bytes"])
    bounds = (
        ("memory.partitions", sizes.partitions, limits.PARTITIONS, limits.PARTITIONS),
        ("pe.rows", sizes.rows, limits.PARTITIONS, limits.PARTITIONS),
        ("pe.columns", sizes.columns, limits.PARTITIONS, limits.PARTITIONS),
        ("memory.sbuf_partition_bytes", sizes.sbuf_bytes, LEAST_SBUF, limits.SBUF_PARTITION_BYTES),
        ("memory.psum_partition_bytes", sizes.psum_bytes, bank, limits.PSUM_PARTITION_BYTES),
        ("memory.hbm_bytes", sizes.hbm_bytes, 1, limits.HBM_BYTES),
    )
    for key, size, least, most in bounds:
        if not least <= size <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            raise UsageError("EARG907", f"{key} leaves {size}; programs are planned for {expected}")
