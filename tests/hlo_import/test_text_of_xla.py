"""What XLA's parser accepts, ours accepts and takes for the same module; what XLA refuses, ours refuses.

Texts of every opcode and form, as they are and changed in spelling by seed. The oracle of the meaning is the proto that
XLA makes of the text; where our verifier refuses what XLA's parser reads, XLA's compiler is asked, which verifies.
"""

import random
from collections.abc import Iterator

import pytest
from jaxlib import _hlo
from text_changes import ALL, CHANGES, Change
from text_forms import EITHER
from text_verdicts import Judge

from neuronx_cc.hlo_import.lexer import RESERVED, UNSUPPORTED_DTYPES
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.types import NUMPY_DTYPE


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


def test_texts_as_they_are(judge: Judge) -> None:
    for name, text in ALL.items():
        kind, why = judge(text)
        assert kind == judge.SAME, f"{name}: {kind} {why}\n{text}"


@pytest.mark.parametrize("kind", sorted({name.partition(" ")[0] for name in EITHER}))
def test_forms_that_xla_reads_or_refuses(kind: str, judge: Judge) -> None:
    said = set()
    for name, text in EITHER.items():
        if name.partition(" ")[0] == kind:
            verdict, why = judge(text)
            assert verdict not in judge.DIFFERENCES, f"{name}: {verdict} {why}\n{text}"
            said.add(verdict)
    assert judge.SAME in said


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_same_verdict_and_same_meaning(change: Change, seed: int, judge: Judge) -> None:
    for name, text in ALL.items():
        changed = change(text, random.Random(f"{name}{seed}"))
        kind, why = judge(changed)
        assert kind not in judge.DIFFERENCES, f"{name}: {kind} {why}\n{changed}"


@pytest.mark.parametrize("word", sorted(RESERVED | UNSUPPORTED_DTYPES | NUMPY_DTYPE.keys()))
def test_words_that_are_no_names(word: str) -> None:
    text = (
        f"HloModule m\n\nENTRY e {{\n  {word} = f32[3]{{0}} parameter(0)\n  ROOT r = f32[3]{{0}} negate({word})\n}}\n"
    )
    assert _is_read(text) == _is_read_by_xla(text)


def _is_read(text: str) -> bool:
    try:
        parse_text(text)
    except CompileError:
        return False
    return True


def _is_read_by_xla(text: str) -> bool:
    try:
        _hlo.hlo_module_from_text(text)
    except RuntimeError:
        return False
    return True
