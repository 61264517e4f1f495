"""Whether an attention is one kernel, by estimate: the choice takes little longer than the better one, by the clock."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of

from neuronx_cc.codegen.attention import choose
from neuronx_cc.runtime.executable import Executable

SIZES = [(1, 1, 512, 32), (1, 64, 128, 128), (4, 16, 512, 64), (4, 128, 128, 32), (12, 256, 128, 64), (2, 200, 700, 80)]
SIZES += [(12, 1, 1000, 64), (7, 3, 777, 80), (8, 8, 500, 64)]
"""Heads, rows, columns, depth."""


def nanoseconds(sizes: tuple[int, int, int, int]) -> float:
    heads, rows, columns, depth = sizes

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(depth)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)

    inputs = [np.zeros((heads, length, depth), np.float32) for length in (rows, columns, columns)]
    compiled = compile_text(text_of(attention, *inputs), auto_cast="matmult")
    run = Executable(compiled.program, compiled.constants).run([], timing_only=True, check_races=False)
    return float(run.report.kernel_ns)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_choice(sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, found = nanoseconds(sizes), []
    for limit in (0.0, math.inf):
        monkeypatch.setattr(choose, "apart", lambda *_, limit=limit: limit)
        found.append(nanoseconds(sizes))
    assert found[0] != found[1]
    assert chosen <= 1.2 * min(found)
