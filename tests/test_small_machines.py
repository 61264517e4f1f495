"""The examples on machines with a half, a quarter and an eighth of the memories on chip, and few banks of PSUM."""

from pathlib import Path
from unittest import mock

import mamba
import pytest
from full_size import PROGRAMS
from generated import compile_text
from lowering import differences

from neuronx_cc.codegen import compile as lowering
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).parent / "machines"


def small(name: str, banks: int = 0) -> Machine:
    machine = find_machine(MACHINES / f"{name}.toml")
    return machine.with_settings([f"memory.psum_partition_bytes={banks * machine.sizes().bank_bytes}"] * (banks > 0))


def test_less_stays_on_chip_where_tiles_have_no_room() -> None:
    model = mamba.build(mamba.Config(layers=3, vocabulary=512))
    machine = small("eighth").with_settings(["memory.sbuf_partition_bytes=32768"])
    with mock.patch.object(lowering, "PARTS", lowering.PARTS[:1]), pytest.raises(CompileError, match="EXSP001"):
        compile_text(model.text, machine)
    found = compile_text(model.text, machine).run(model.arguments)
    assert differences(found, model.expected).largest < 1e-5


def test_what_lies_between_elements_of_repeated_rows_counts() -> None:
    """The states of all steps, which every partition reads: one element in twenty of what is loaded."""
    model = mamba.build(mamba.Config(layers=5, vocabulary=512))
    with mock.patch.object(lowering, "PARTS", lowering.PARTS[:1]):
        compile_text(model.text, small("quarter"))


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["half", "quarter", "eighth"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_full_size_examples_compile(name: str, machine: str) -> None:
    text = PROGRAMS[name]().text
    for banks in (0, 1):
        compile_text(text, small(machine, banks))
