"""Tiles of rows that are staged together, and rows whose terms on the partitions are no neighbours in memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of
from jax import lax

from neuronx_cc.codegen import choose
from neuronx_cc.codegen.dots import candidates as candidates_of_dots
from neuronx_cc.codegen.dots import copies
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.schedule import Sums

LITTLE = TRN1.with_settings(["memory.sbuf_partition_bytes=65536"])


def rows_of(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def layer(x: Any, first: Any, row: Any, second: Any) -> Any:
    """Results that stay on chip, tile by tile of rows, and are read again."""
    hidden = jnp.tanh(rows_of(x) @ first.T + row)
    return rows_of(hidden @ second.T + x)


def check(function: Any, inputs: list[Any], machine: Any = TRN1, **options: Any) -> list[str]:
    compiled = compile_text(text_of(function, *inputs), machine, **options)
    (found,) = compiled.run(inputs)
    with jax.enable_x64(True):
        want = jax.jit(function)(*(np.asarray(each, np.float64) for each in inputs))
    assert_close(np.asarray(found, np.float32), np.asarray(want, np.float32), 3e-2 if options else 3e-5)
    return list(compiled.program.schedules.values())


def wide_layer(x: Any, first: Any, row: Any, second: Any) -> Any:
    """The same with weights that stream past as they lie."""
    return layer(x, first.T, row, second.T)


def take_groups(monkeypatch: pytest.MonkeyPatch, sums: Sums) -> None:
    """Schedules that stage several tiles together, wherever there are any."""
    family = choose.FAMILIES[Problem]
    monkeypatch.setattr(candidates_of_dots, "_is_small", lambda *_: True)

    def candidates(problem: Any, timing: Any) -> Any:
        found = list(family.candidates(problem, timing))
        groups = [each for each in found if each.group > 1 and each.sums is sums]
        return iter(groups or found)

    monkeypatch.setitem(choose.FAMILIES, Problem, family._replace(candidates=candidates))


@pytest.mark.parametrize("sums", [Sums.PSUM, Sums.SBUF])
@pytest.mark.parametrize("rows", [256, 300, 640, 1280])
@pytest.mark.parametrize("depth", [200, 520])
@pytest.mark.parametrize("cast", ["none", "matmult"])
def test_values(sums: Sums, rows: int, depth: int, cast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_groups(monkeypatch, sums)
    random = np.random.default_rng(rows + depth)
    shapes = (rows, depth), (200, depth), (200,), (depth, 200)
    inputs = [random.standard_normal(shape).astype(np.float32) * 0.3 for shape in shapes]
    schedules = check(layer, inputs, LITTLE, **({"auto_cast": cast} if cast != "none" else {}))
    assert rows > 1000 or any("in groups of" in line for line in schedules), schedules


@pytest.mark.parametrize("rows", [192, 250, 256])
@pytest.mark.parametrize("cast", ["none", "matmult"])
def test_weights_that_stream_past(rows: int, cast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_groups(monkeypatch, Sums.BANKS)
    random = np.random.default_rng(rows)
    shapes = (rows, 768), (768, 640), (640,), (640, 768)
    inputs = [random.standard_normal(shape).astype(np.float32) * 0.2 for shape in shapes]
    schedules = check(wide_layer, inputs, **({"auto_cast": cast} if cast != "none" else {}))
    assert any("in groups of 2" in line and "in banks" in line for line in schedules), schedules


SCATTERED = {
    "features outermost": ((256, 7, 7), (40, 256, 7, 7), "chw,nchw->n"),
    "features between": ((128, 5, 30), (40, 5, 128, 30), "cij,nicj->n"),
    "many features": ((512, 11), (130, 512, 11), "ci,nci->n"),
    "features innermost": ((256, 9), (40, 9, 256), "ci,nic->n"),
}


@pytest.mark.parametrize("name", SCATTERED)
@pytest.mark.parametrize("copied", [True, False])
def test_terms_that_are_no_neighbours(name: str, copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not copied:
        monkeypatch.setattr(copies, "_is_slow", lambda *_: False)
    *shapes, letters = SCATTERED[name]
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) * 0.2 for shape in shapes)
    for cast in ({}, {"auto_cast": "matmult"}):
        check(lambda x, w: jnp.einsum(letters, jnp.tanh(x), w), [x, w], **cast)
