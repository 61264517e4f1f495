"""What XLA's parser accepts, ours accepts and takes for the same module; what XLA refuses, ours refuses.

Texts of every opcode and form, as they are and changed in spelling by seed. The oracle of the meaning is the proto that
XLA makes of the text; where our verifier refuses what XLA's parser reads, XLA's compiler is asked, which verifies.
"""

import random
from collections.abc import Iterator

import pytest
from text_changes import ALL, CHANGES, Change
from text_verdicts import Judge


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


def test_texts_as_they_are(judge: Judge) -> None:
    for name, text in ALL.items():
        kind, why = judge(text)
        assert kind == judge.SAME, f"{name}: {kind} {why}\n{text}"


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_same_verdict_and_same_meaning(change: Change, seed: int, judge: Judge) -> None:
    for name, text in ALL.items():
        changed = change(text, random.Random(f"{name}{seed}"))
        kind, why = judge(changed)
        assert kind not in judge.DIFFERENCES, f"{name}: {kind} {why}\n{changed}"
