"""Every opcode: imports from text and proto to the same module, prints to text XLA accepts, and prints stably."""

import re

import pytest
from jaxlib import _hlo
from opcode_texts import TEXTS

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.hlo_import.proto import parse_proto
from neuronx_cc.ir import hlo

UNKNOWN_TO_XLA = {"atan", "collective-reduce", "shuffle"}
"""Opcodes of the dialect that the installed XLA does not parse."""

ASYNC = {"async-start", "async-update", "async-done"}
"""XLA prints these in a short form without the name of the computation they call."""


def xla_text(module: object) -> str:
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options)  # type: ignore[attr-defined,no-any-return]


def test_every_opcode_has_a_text() -> None:
    assert set(TEXTS) == {*hlo.OPCODES, "parameter"}


@pytest.mark.parametrize("opcode", sorted(TEXTS))
def test_print_is_a_fixed_point(opcode: str) -> None:
    printed = print_module(parse_text(TEXTS[opcode]))
    assert f" {opcode}(" in printed
    assert print_module(parse_text(printed)) == printed


@pytest.mark.parametrize("opcode", sorted(set(TEXTS) - UNKNOWN_TO_XLA))
def test_xla_reads_what_we_print(opcode: str) -> None:
    original = _hlo.hlo_module_from_text(TEXTS[opcode])
    again = _hlo.hlo_module_from_text(print_module(parse_text(TEXTS[opcode])))
    ours, theirs = _instructions(again), _instructions(original)
    assert ours == theirs


def _instructions(module: object) -> list[str]:
    """XLA's own print of the entry, with replica groups spelled one way."""
    text = xla_text(module)
    text = text.replace("[2,4]<=[4,2]T(1,0)", "{{0,2,4,6},{1,3,5,7}}")
    return text[text.index("ENTRY") :].splitlines()


@pytest.mark.parametrize("opcode", sorted(set(TEXTS) - UNKNOWN_TO_XLA))
def test_proto_and_text_give_the_same_module(opcode: str) -> None:
    module = _hlo.hlo_module_from_text(TEXTS[opcode])
    from_text = print_module(parse_text(xla_text(module)))
    from_proto = print_module(parse_proto(module.as_serialized_hlo_module_proto()))
    if opcode in ASYNC:
        from_text, from_proto = (
            re.sub(r"calls=[\w.]+", "calls=f", text[text.index("ENTRY") :]) for text in (from_text, from_proto)
        )
    assert from_text == from_proto
