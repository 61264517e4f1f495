"""SBUF in fragments: what lives long leaves gaps, in which kernels find room for their tiles or make them smaller."""

from typing import Any

import numpy as np
import pytest
from generated import check_function

from neuronx_cc.codegen.emission import builder
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.ir.isa.program import Space


def leave(monkeypatch: pytest.MonkeyPatch, gap: int, cursor: int = 0) -> None:
    """Let programs begin with one gap of ``gap`` bytes in SBUF, in which ``cursor`` bytes were allocated last."""

    def arena(space: Space, capacity: int, alignment: int) -> Arena:
        made = Arena(space, capacity, alignment)
        if space is Space.SBUF:
            taken = made.allocate(capacity - gap), made.allocate(cursor)
            assert taken[0] is not None
            assert taken[1] is not None
            made.free(taken[1])
        return made

    monkeypatch.setattr(builder, "Arena", arena)


@pytest.mark.parametrize(("dims", "order"), [((256, 128, 16), (2, 1, 0)), ((128, 64, 64), (1, 0, 2))], ids=str)
def test_copies(
    dims: tuple[int, ...], order: tuple[int, ...], random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of 64 KB before and after the reordering."""
    leave(monkeypatch, 163840, 34816)
    x = random.standard_normal(dims).astype(np.float32)
    check_function(lambda x: x.transpose(order), x, relative=0)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("gap", [20480, 36864, 40960])
def test_long_rows(gap: int, dtype: Any, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, gap)
    x = (random.standard_normal((3, 96, 9216)) * 5).astype(dtype)
    check_function(lambda x: (x.sum((0, 2)), x.max((0, 2)), x[0].sum(1)), x)
    check_function(lambda x: (x - x.max(2, keepdims=True)).min((0, 2)), x)
