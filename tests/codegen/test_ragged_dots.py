"""Contractions of rows by group, drawn by seed and beside jaxlib's CPU client: every kind of sizes, forms and types."""

import random
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.expansions import group_plan
from neuronx_cc.passes.manager import PassContext, run_passes

Array = np.ndarray[Any, Any]
EAGER = TRN1.with_settings(["dma.swdge_descriptor_ns=0.001", "dma.bw_per_engine=0.02", "dma.bw_both_per_engine=0.02"])
"""A machine on which matrices of few groups are read where they lie, however small."""
ROWS = (1, 2, 15, 64, 127, 128, 129, 131, 256, 300, 513)
SIZES = ("even", "random", "one", "empty ones", "fewer", "none", "too many")
TYPES = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "s8": np.int8,
    "s32": np.int32,
}
TERMS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
BATCHED = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [1], [2])
BATCHED_TERMS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((0,), (0,))), [1], [])


def rows(x: Any, w: Any, y: Any, s: Any) -> Any:
    return lax.ragged_dot(x, w, s)


def gradients(x: Any, w: Any, y: Any, s: Any) -> Any:
    return jax.vjp(lambda x, w: lax.ragged_dot(x, w, s), x, w)[1](y)


def terms(x: Any, w: Any, y: Any, s: Any) -> Any:
    return lax.ragged_dot_general(x, y, s, TERMS)


def batched(x: Any, w: Any, y: Any, s: Any) -> Any:
    both, more = jnp.stack([x, x[::-1]]), jnp.stack([w, -w]).transpose(0, 2, 1, 3)
    return lax.ragged_dot_general(both, more, s, BATCHED)


def batched_terms(x: Any, w: Any, y: Any, s: Any) -> Any:
    return lax.ragged_dot_general(jnp.stack([x, -x]), jnp.stack([y, y[::-1]]), s, BATCHED_TERMS)


def vectorised(x: Any, w: Any, y: Any, s: Any) -> Any:
    return jax.vmap(lax.ragged_dot)(jnp.stack([x, x[::-1]]), jnp.stack([w, -w]), jnp.stack([s, s[::-1]]))


def layers(x: Any, w: Any, y: Any, s: Any) -> Any:
    """Two of them, with what stands between and behind in networks."""
    hidden = jnp.tanh(lax.ragged_dot(x, w, s))
    return lax.ragged_dot(hidden * 0.5 + y, w.transpose(0, 2, 1), s) + x


def experts(x: Any, w: Any, y: Any, s: Any) -> Any:
    """Gate and values side by side, as networks have them, with what rows of no group become; what lies between is
    read as well.
    """
    first, second = jnp.split(lax.ragged_dot(x, jnp.concatenate([w, -w], 2), s), 2, -1)
    hidden = jax.nn.silu(first + 1) * second
    made = lax.ragged_dot(hidden, w.transpose(0, 2, 1), s) * 0.5 - 1
    return made, hidden[::-1]


def trained(x: Any, w: Any, y: Any, s: Any) -> Any:
    """A step of the same: the loss lies between contractions of one chain."""

    def loss(x: Any, w: Any) -> Any:
        hidden = jnp.tanh(lax.ragged_dot(x, w, s))
        return (lax.ragged_dot(hidden, w.transpose(0, 2, 1), s) ** 2).sum() + (hidden * y).sum()

    return jax.grad(loss, (0, 1))(x, w)


def weighted(x: Any, w: Any, y: Any, s: Any) -> Any:
    """What is computed, in several steps, of what is put back anyway."""
    hidden = lax.ragged_dot(x, w, s)
    gated = jnp.tanh(jnp.sin(hidden)) * y
    return lax.ragged_dot(gated, w.transpose(0, 2, 1), s), hidden[::-1]


ALL_FORMS = rows, gradients, terms, batched, batched_terms, vectorised, layers, experts, trained, weighted
FORMS = {each.__name__: each for each in ALL_FORMS}


def sizes_of(kind: str, groups: int, count: int, draw: np.random.Generator) -> Array:
    shares = {
        "even": lambda: np.full(groups, count // groups),
        "random": lambda: np.bincount(draw.integers(0, groups, count), minlength=groups),
        "one": lambda: np.eye(groups, dtype=int)[draw.integers(0, groups)] * count,
        "empty ones": lambda: np.bincount(draw.integers(0, max(1, groups // 4), count) * 3 % groups, minlength=groups),
        "fewer": lambda: np.bincount(draw.integers(0, groups, count // 2), minlength=groups),
        "none": lambda: np.zeros(groups, int),
        "too many": lambda: np.bincount(draw.integers(0, groups, count), minlength=groups) * 2,
    }
    return shares[kind]().astype(np.int32)


@dataclass(frozen=True)
class Drawn:
    form: str
    dtype: str
    inputs: list[Array]
    first: int
    """Rows of each group that are taken at once, where not the plan of the machine: 0."""
    tile: int
    machine: Machine


def drawn(seed: int) -> Drawn:
    chooser, draw = random.Random(seed), np.random.default_rng(seed)
    count, groups = chooser.choice(ROWS), chooser.choice((1, 2, 3, 7, 16, 40))
    depth, columns = chooser.choice((1, 3, 16, 65, 128)), chooser.choice((1, 5, 32, 127, 130))
    form, dtype = chooser.choice(list(FORMS)), chooser.choice(("f32", "f32", "bf16", "f16", "s8", "s32"))
    if dtype.startswith("s") and form in ("gradients", "layers", "experts", "trained", "weighted"):
        form = "rows"
    shapes = (count, depth), (groups, depth, columns), (count, columns)
    if dtype.startswith("s"):
        arrays = [draw.integers(-5, 5, shape).astype(TYPES[dtype]) for shape in shapes]
    else:
        arrays = [draw.standard_normal(shape).astype(TYPES[dtype]) for shape in shapes]
    inputs = [*arrays, sizes_of(chooser.choice(SIZES), groups, count, draw)]
    first = chooser.choice((0, 1, 3, 8, 16, 48))
    machine = chooser.choice((TRN1, TRN1, TRN1, EAGER, EAGER, find_machine("tests/machines/quarter.toml")))
    return Drawn(form, dtype, inputs, min(first, count), min(chooser.choice((1, 8, 32, 100)), count), machine)


@pytest.mark.parametrize("seed", range(48))
def test_drawn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn(seed)
    if case.first:
        plan = group_plan.Plan(0.0, case.first, case.tile)
        monkeypatch.setattr(group_plan, "choose", lambda timing, work: plan)
        monkeypatch.setattr(group_plan, "together", lambda timing, linked: plan)
    check_function(FORMS[case.form], *case.inputs, relative=2e-5, machine=case.machine)


@pytest.mark.parametrize("form", [experts, trained, layers, weighted], ids=lambda form: form.__name__)
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("first", [1, 8, 40])
def test_chains(form: Any, kind: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stay together from one contraction to the next, those beyond the first ones in one loop."""
    plan = group_plan.Plan(0.0, first, 16)
    monkeypatch.setattr(group_plan, "choose", lambda timing, work: plan)
    monkeypatch.setattr(group_plan, "together", lambda timing, linked: plan)
    draw = np.random.default_rng(first)
    shapes = (130, 12), (5, 12, 24), (130, 24)
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    check_function(form, *arrays, sizes_of(kind, 5, 130, draw), relative=1e-4)


def test_long_ways_between_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's recursion ends at a depth of 1,000."""
    plan = group_plan.Plan(0.0, 8, 16)
    monkeypatch.setattr(group_plan, "together", lambda timing, linked: plan)

    def network(x: Any, w: Any, s: Any) -> Any:
        hidden = lax.ragged_dot(x, w, s)
        for _ in range(700):
            hidden = jnp.tanh(hidden) * 1.01
        return lax.ragged_dot(hidden, w.transpose(0, 2, 1), s)

    given = np.ones((64, 8), np.float32), np.ones((8, 8, 4), np.float32), np.full(8, 8, np.int32)
    compile_text(text_of(network, *given))


def test_experts_put_rows_back_once() -> None:
    """Microseconds: each contraction by itself took 2,097."""
    draw = np.random.default_rng(0)
    shapes = (2048, 1024), (8, 1024, 2816), (8, 1024, 2816), (8, 2816, 1024)
    x, gate, up, down = (np.ones(dims, ml_dtypes.bfloat16) for dims in shapes)

    def network(x: Any, gate: Any, up: Any, down: Any, s: Any) -> Any:
        return lax.ragged_dot(jax.nn.silu(lax.ragged_dot(x, gate, s)) * lax.ragged_dot(x, up, s), down, s)

    assert times(network, x, gate, up, down, sizes_of("random", 8, 2048, draw)) < 1300


def test_skewed_sums_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows in one group: its sum of 64 tiles is that of FP32, rounded to BF16."""
    draw = np.random.default_rng(0)
    x, y = (draw.uniform(1, 2, (512, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    sizes = np.array([0, 512, 0], np.int32)
    monkeypatch.setattr(group_plan, "choose", lambda timing, work: group_plan.Plan(0.0, 8, 8))
    text = text_of(lambda x, y, s: lax.ragged_dot_general(x, y, s, TERMS), x, y, sizes)
    (result,) = compile_text(text).run([x, y, sizes])
    exact = x.astype(np.float64).T @ y.astype(np.float64)
    np.testing.assert_allclose(result[1].astype(np.float64), exact, 2.0**-8)
    np.testing.assert_array_equal(result[[0, 2]].astype(np.float32), 0)


def found(function: Any, *inputs: Any) -> int:
    """How many ragged contractions are recognised in what JAX lowers for CPUs: those without sizes of each batch."""
    module = parse_text(text_of(function, *inputs))
    names = pipelines.pass_names(pipelines.DEFAULT_PIPELINE)
    run_passes(module, names[: names.index("find_ragged_dots") + 1], PassContext())
    return print_module(module).count(" ragged-dot(")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [2, 9])
def test_recognised(form: str, groups: int) -> None:
    inputs = np.ones((20, 6), np.float32), np.ones((groups, 6, 5), np.float32), np.ones((20, 5), np.float32)
    count = {"rows": 1, "gradients": 2, "terms": 1, "layers": 2, "experts": 2, "trained": 6, "weighted": 2}.get(form, 0)
    assert found(FORMS[form], *inputs, np.full(groups, 2, np.int32)) == count


def times(function: Any, *inputs: Any) -> float:
    from neuronx_cc.runtime.executable import Executable

    compiled = compile_text(text_of(function, *inputs))
    return Executable(compiled.program, compiled.constants).run(list(inputs)).report.kernel_ns / 1e3


@pytest.mark.parametrize(("count", "groups", "most"), [(512, 64, 260), (2048, 16, 330)])
def test_work_follows_the_rows(count: int, groups: int, most: float) -> None:
    """Microseconds; masked rows took 1,041 and 681."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((count, 512)).astype(ml_dtypes.bfloat16)
    w = draw.standard_normal((groups, 512, 512)).astype(ml_dtypes.bfloat16)
    assert times(lambda x, w, s: lax.ragged_dot(x, w, s), x, w, sizes_of("random", groups, count, draw)) < most


@pytest.mark.parametrize(
    ("groups", "count", "way"), [(4, 16, "masked"), (64, 16, "few"), (64, 4096, "first"), (8, 4096, "first")]
)
def test_ways(groups: int, count: int, way: str) -> None:
    """By estimate."""
    plan = group_plan.choose(Timing(TRN1), group_plan.Grouped(groups, count, 512, 512, 2, "bf16", False))
    assert (plan.first > 0, plan.few) == (way == "first", way == "few")


def test_few_rows_read_their_matrices_alone() -> None:
    """Microseconds; all matrices take 155."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((16, 512)).astype(ml_dtypes.bfloat16)
    w = draw.standard_normal((64, 512, 512)).astype(ml_dtypes.bfloat16)
    sizes = sizes_of("random", 64, 16, draw)
    assert times(lambda x, w, s: lax.ragged_dot(x, w, s), x, w, sizes) < 90
    check_function(lambda x, w, s: lax.ragged_dot(x, w, s), x, w, sizes)
