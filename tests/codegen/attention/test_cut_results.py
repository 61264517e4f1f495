"""What is cut from the result of an attention before it is cast or divided is no result of that kernel, and what is cut
from its weights is no attention with all of the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_schedules import drawn_schedules
from generated import check_function

from neuronx_cc.ir.hlo import HloOp, ReduceOp
from neuronx_cc.passes import narrow_contractions


def cast(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k) * 0.1, -1)
    return jnp.einsum("bhst,bhtd->bhsd", weights, v)[..., :63].astype(jnp.bfloat16)


def divided(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * 0.1
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bhst,bhtd->bhsd", weights, v)[..., :63] / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("function", [cast, divided])
def test_values(function: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 4, rows, 64)).astype(np.float32) for rows in (96, 256, 256))
    with drawn_schedules(None):
        check_function(function, q, k, v, relative=1e-2)


demands = narrow_contractions._demands


def all_but_folds(op: HloOp, box: narrow_contractions.Box) -> list[narrow_contractions.Box | None]:
    """As before folds: the second product alone is made in part."""
    return [None, None] if isinstance(op, ReduceOp) else demands(op, box)


PARTS = [np.s_[:1], np.s_[1], np.s_[::2], np.s_[:, 0], np.s_[:, :, 0], np.s_[:, :, -1:], np.s_[..., :3]]


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("narrowed", [True, False])
@pytest.mark.parametrize("batch", [2, 3])
def test_part_of_the_result(part: Any, batch: int, narrowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not narrowed:
        monkeypatch.setattr(narrow_contractions, "_demands", all_but_folds)

    def attend(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k), -1)
        return jnp.einsum("bhst,bhtd->bhsd", weights, v)[part] * 2

    random = np.random.default_rng(0)
    check_function(attend, *(random.standard_normal((batch, 2, 17, 8)).astype(np.float32) for _ in range(3)))


@pytest.mark.parametrize("part", [np.s_[::2], np.s_[:, ::2], np.s_[:, :, ::2]], ids=str)
def test_part_of_the_weights(part: Any) -> None:
    """From the first to the last, so that scores are not made for less."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k), -1)[part]
        return jnp.einsum("bhst,bhtd->bhsd", weights, v if len(part) == 3 else v[part])

    part = part if isinstance(part, tuple) else (part,)
    random = np.random.default_rng(0)
    check_function(attend, *(random.standard_normal((3, 3, 17, 8)).astype(np.float32) for _ in range(3)))
