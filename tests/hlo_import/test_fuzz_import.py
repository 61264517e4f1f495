"""Damaged modules: whatever bytes arrive, only our own errors come out, and soon."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib import _hlo
from opcode_texts import TEXTS

from neuronx_cc.hlo_import import load_module
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.proto import parse_proto
from neuronx_cc.ir.errors import NeuronError
from tests.support.seconds import at_most

PIECES = [
    *"(){}[],=%\"'/ab",
    *(
        "/*",
        "*/",
        "//",
        "\\",
        "ROOT",
        "ENTRY",
        "HloModule",
        "f32[2]",
        "f32[]",
        "s32[<=4]",
        "(f32[],s32[])",
        "add",
        "add(",
    ),
    *("parameter(0)", "constant({1,2})", "constant(nan)", "to_apply=add", "{1,0}", "dimensions={0}", "[2,4]<=[8]"),
    *("T(1,0)", 'metadata={op_name="x"}', "99999999999999999999", "-1", "\u00e9", "\x00"),
]

TEXT_CORPUS = [TEXTS[opcode] for opcode in sorted(TEXTS)]
SECONDS = 5.0
"""CPU seconds one small input may take; a hang or an exponential scan is far above."""

LIMITS = settings(max_examples=150)


@pytest.fixture(scope="module")
def protos() -> list[bytes]:
    unknown = {"atan", "collective-reduce", "shuffle"}
    return [
        _hlo.hlo_module_from_text(TEXTS[opcode]).as_serialized_hlo_module_proto()
        for opcode in sorted(set(TEXTS) - unknown)
    ]


def survives(read: Any, data: Any) -> None:
    """``read(data)`` returns or raises one of our errors within the time."""
    with at_most(SECONDS):
        try:
            read(data, "fuzz")
        except NeuronError as error:
            shown = str(error)
            assert shown.startswith("[NCC_")


@LIMITS
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_text_with_pieces_changed(seed: int, changes: int) -> None:
    chance = random.Random(seed)
    text = chance.choice(TEXT_CORPUS)
    for _ in range(changes):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice([0, 0, 1, 2, 5, 20]))
        text = text[:start] + chance.choice([*PIECES, ""]) + text[end:]
    survives(parse_text, text)


@LIMITS
@given(st.integers(0, 2**32))
def test_text_cut_and_spliced(seed: int) -> None:
    chance = random.Random(seed)
    first, second = chance.choice(TEXT_CORPUS), chance.choice(TEXT_CORPUS)
    survives(parse_text, first[: chance.randrange(len(first))] + second[chance.randrange(len(second)) :])
    lines = first.splitlines()
    chance.shuffle(lines)
    survives(parse_text, "HloModule m\n" + "\n".join(lines))


@LIMITS
@given(st.text(alphabet=st.sampled_from([*'(){}[],=%"/*:.<>-+ \n', *"ROTENYHlfs0129abc_"]), max_size=300))
def test_text_of_nothing_but_marks(tail: str) -> None:
    survives(parse_text, "HloModule m\nENTRY e {\n" + tail)


@LIMITS
@given(st.text(max_size=80))
def test_literals_of_any_text(inside: str) -> None:
    for dtype in ("f32[2]", "s32[2,2]", "c64[1]", "pred[]", "f8e4m3fn[0]"):
        survives(parse_text, f"HloModule m\nENTRY e {{\n ROOT a = {dtype} constant({inside})\n}}")


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_proto_with_bytes_changed(protos: list[bytes], seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(chance.choice(protos))
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(len(data))
        action = chance.randrange(5)
        if action == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif action == 1:
            data[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif action == 2:
            del data[place : place + chance.choice([1, 4, 50])]
        elif action == 3:
            data[place:place] = chance.randbytes(chance.choice([1, 4, 10]))
        else:
            other = chance.choice(protos)
            start = chance.randrange(len(other))
            data[place : place + chance.choice([0, 30])] = other[start : start + chance.randrange(60)]
        if not data:
            break
    survives(parse_proto, bytes(data))


def test_proto_cut_anywhere(protos: list[bytes]) -> None:
    data = max(protos, key=len)
    for end in range(len(data)):
        survives(parse_proto, data[:end])


@LIMITS
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    # StableHLO goes to jaxlib's own readers
    if not data.lstrip()[:8].startswith((b"ML\xef", b"module", b"#", b"func", b'"', b"vhlo", b"!")):
        survives(load_module, data)
