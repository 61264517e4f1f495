"""Layouts: what is read is printed, from text and from protos, and a pass's own ops are row-major."""

import random
import re

import pytest
from jaxlib import _hlo
from opcode_texts import TEXTS, entry

from neuronx_cc.hlo_import.load import load_module
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError

UNKNOWN_TO_XLA = {"atan", "collective-reduce", "shuffle"}
UNREAD = {"add-dependency", "recv", "recv-done", "send"}
"""Of these, XLA overlooks the layout that is written."""
SPELLED_OTHERWISE = {"all-reduce", "async-done", "async-start", "async-update", "bitcast"}
"""Groups become lists, wrapped computations get names, and bitcasts become plain ops where layouts matter."""
_TYPE = re.compile(r"\b(?:pred|[suf]\d+|bf16|c64|f8e\w+)\[([\d,]*)\]")
_RESTS = ("", "", "", ":T(8,128)", ":T(8,128)(2,1)", ":S(1)", ":T(128)E(32)S(3)", ":L(4)", ":M(8)")


def with_layouts(text: str, chance: random.Random) -> str:
    """``text`` with layouts on half of its types."""

    def put(match: re.Match[str]) -> str:
        dims = list(range(match[1].count(",") + 1)) if match[1] else []
        rest = chance.choice(_RESTS)
        if chance.random() < 0.5 or not (dims or rest):
            return match[0]
        chance.shuffle(dims)
        return f"{match[0]}{{{','.join(map(str, dims))}{rest}}}"

    return _TYPE.sub(put, text)


def shown(module: object) -> list[str]:
    """XLA's print of each computation, without names, which other orders of computations change."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    text = module.to_string(options)  # type: ignore[attr-defined]
    return sorted(re.sub(r"[\w.\-]+: |%[\w.\-]+", "", part) for part in text.split("\n\n"))


@pytest.mark.parametrize("seed", range(4))
def test_xla_reads_the_same_module_in_what_is_printed(seed: int) -> None:
    for opcode in sorted(TEXTS.keys() - UNKNOWN_TO_XLA - UNREAD - SPELLED_OTHERWISE):
        text = with_layouts(TEXTS[opcode], random.Random(f"{opcode}{seed}"))
        expected = _hlo.hlo_module_from_text(text)
        printed = print_module(parse_text(text))
        assert shown(_hlo.hlo_module_from_text(printed)) == shown(expected), text
        assert print_module(parse_text(printed)) == printed


@pytest.mark.parametrize("rest", sorted(set(_RESTS)))
def test_a_proto_has_the_layouts_of_its_text(rest: str) -> None:
    text = entry(f"a = (f32[2,3]{{0,1{rest}}}, s8[]) parameter(0)", "r = f32[2,3]{0,1} get-tuple-element(a), index=0")
    module = _hlo.hlo_module_from_text(text)
    assert print_module(load_module(module.as_serialized_hlo_module_proto())) == print_module(parse_text(text))


INFERRED = {
    "negate(a)": "{0,1}",
    "add(b, a)": "{1,0}",
    "clamp(z, a, z)": "{0,1}",
    "compare(a, b), direction=LT": "{0,1}",
    "reverse(a), dimensions={0}": "{0,1}",
    "transpose(b), dimensions={1,0}": "{0,1}",
    "transpose(a), dimensions={1,0}": "{1,0}",
    "concatenate(a, a), dimensions={0}": "{1,0}",
}


@pytest.mark.parametrize("instruction", INFERRED)
def test_layouts_that_xla_infers(instruction: str) -> None:
    text = entry(
        "a = f32[2,3]{0,1} parameter(0)", "b = f32[2,3] parameter(1)", "z = f32[] parameter(2)", f"r = {instruction}"
    )
    theirs = shown(_hlo.hlo_module_from_text(text))
    assert shown(_hlo.hlo_module_from_text(print_module(parse_text(text)))) == theirs
    assert f"{INFERRED[instruction]} {instruction[:3]}" in "".join(theirs).replace(" =", "")


def test_a_bitcast_reads_what_xla_infers() -> None:
    """Elements in storage order: those of the turned operand."""
    text = entry("a = f32[2,3] parameter(0)", "t = transpose(a), dimensions={1,0}", "r = f32[6] bitcast(t)")
    printed = print_module(parse_text(text))
    assert printed.count("transpose(") == 2


def test_what_a_bitcast_reads_is_row_major() -> None:
    module = parse_text(entry("a = f32[2,3]{0,1} parameter(0)", "b = f32[2,3] copy(a)", "r = f32[6] bitcast(b)"))
    copy, bitcast = (op for op in module.entry.block.ops if isinstance(op, hlo.HloOp))
    assert "f32[2,3]{0,1} parameter" in print_module(module)
    bitcast.operands[0] = copy.operands[0]  # as a pass does that drops the copy
    assert "f32[2,3] parameter" in print_module(module)


def test_a_layout_goes_with_its_type() -> None:
    module = parse_text(entry("a = f32[2,3]{0,1} parameter(0)", "r = f32[2,3]{0,1:S(1)} negate(a)"))
    negate = next(op for op in module.entry.block.ops if isinstance(op, hlo.HloOp))
    assert "f32[2,3]{0,1:S(1)} negate" in print_module(module)
    other = hlo.NegateOp.make([negate.operands[0]], negate.results[0].type)
    module.entry.block.insert_op_before(other, negate)
    negate.results[0].replace_all_uses_with(other.results[0])
    assert "f32[2,3] negate" in print_module(module)


@pytest.mark.parametrize("layout", ["{}", "{0}", "{0,0}", "{2,1}", "{1,0:S(1)T(8)}", "{1,0:P(f32[2])}", "{1,0:X(1)}"])
def test_refused_like_there(layout: str) -> None:
    with pytest.raises(CompileError):
        parse_text(entry(f"a = f32[2,3]{layout} parameter(0)"))
