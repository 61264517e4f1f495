"""Gathers of short rows from tables on chip, in each form that is a candidate, on the simulator, against XLA."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of
from indexing_cases import values

import neuronx_cc
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.indexing import gather, gather_plan
from neuronx_cc.passes.indexing.costs import Costs
from neuronx_cc.passes.indexing.gather_plan import Asked, Plan
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes

DTYPES = [np.float32, np.int32, np.uint8, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
FORMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "columns": (lambda x, i: jnp.take(x, i, axis=1, mode="clip"), (6, 90), (301,)),
    "rows": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), (90, 6), (301,)),
    "rows across": (lambda x, i: jnp.take(x, i, axis=0, mode="clip").T, (90, 6), (301,)),
    "position biases": (lambda x, i: jnp.transpose(x[i], (2, 0, 1)), (90, 6), (13, 17)),
    "flat position biases": (
        lambda x, i: jnp.transpose(x[i.reshape(-1)].reshape(13, 17, -1), (2, 0, 1)),
        (90, 6),
        (13, 17),
    ),
    "middle": (lambda x, i: jnp.take(x, i, axis=1, mode="clip"), (4, 90, 3), (301,)),
    "a table of each list": (jax.vmap(lambda x, i: jnp.take(x, i, axis=1, mode="clip")), (3, 4, 90), (3, 129)),
    "tables of two dims": (
        jax.vmap(lambda x, i: jnp.take(x, i, axis=2, mode="clip").transpose(2, 0, 1)),
        (2, 3, 4, 90),
        (2, 129),
    ),
}


def _take(monkeypatch: pytest.MonkeyPatch, number: int, shares: int) -> list[Plan]:
    """Let the pass take candidate ``number``, with lists dealt to ``shares`` processors; the plans that it takes."""
    taken: list[Plan] = []

    def choose(costs: Costs, asked: Asked) -> Plan:
        plans = [plan for plan in gather_plan.candidates(costs, asked) if plan.form == "groups"]
        taken.append(plans[number % len(plans)])
        return taken[-1]

    monkeypatch.setattr(gather, "choose", choose)
    if shares:
        monkeypatch.setattr(Costs, "shares", lambda self, tables: min(shares, self.copies(tables.count)))
    return taken


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", range(8))
def test_every_form(form: str, number: int, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator) -> None:
    function, table, listed = FORMS[form]
    dtype, shares = DTYPES[number % len(DTYPES)], int(random.integers(0, 9))
    taken = _take(monkeypatch, number, shares)
    x, i = values(random, dtype, list(table)), random.integers(0, 90, listed).astype(np.int32)
    i.flat[:4] = [-1, 95, 89, 0]
    check_function(function, x, np.clip(i, 0, 89) if "biases" in form else i)
    assert len(taken) == 1


@pytest.mark.parametrize("count", [1, 2, 7, 127, 129, 2049])
@pytest.mark.parametrize("shares", [1, 3, 8])
def test_lists_that_processors_do_not_divide(
    count: int, shares: int, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    taken = _take(monkeypatch, count, shares)
    x, i = values(random, np.float32, [5, 33]), random.integers(-3, 40, count).astype(np.int32)
    check_function(lambda x, i: jnp.take(x, i, axis=1, mode="clip"), x, i)
    check_function(lambda x, i: jnp.take(x, i, axis=1, mode="clip"), x[:1], i)
    assert taken or count == 1


@pytest.mark.parametrize(("rows", "height"), [(2, 100_000), (4, 70_001), (40, 9000)])
def test_rows_brought_together_from_tables_larger_than_their_partitions(
    rows: int, height: int, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    def widest(costs: Costs, asked: Asked) -> Plan:
        plans = [plan for plan in gather_plan.candidates(costs, asked) if plan.form == "groups"]
        return max(plans, key=lambda plan: (plan.across, plan.lead))

    monkeypatch.setattr(gather, "choose", widest)
    x, i = values(random, np.float32, [rows, height]), random.integers(0, height, 3000).astype(np.int32)
    check_function(lambda x, i: jnp.take(x, i, axis=1, mode="clip"), x, i)


@pytest.mark.parametrize(("rows", "height", "count"), [(32, 50, 3500), (18, 33, 3001), (40, 16, 3584)])
@pytest.mark.parametrize("across", [1, 2])
def test_tables_one_after_the_other(
    rows: int, height: int, count: int, across: int, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    """What tables and lists leave of their tiles is filled by transfers, which wait for no engine."""

    def of_some(costs: Costs, asked: Asked) -> Plan:
        return next(
            plan for plan in gather_plan.candidates(costs, asked) if (plan.form, plan.across) == ("groups", across)
        )

    monkeypatch.setattr(gather, "choose", of_some)
    x, i = values(random, np.float32, [rows, height]), random.integers(-1, height + 1, count).astype(np.int32)
    compiled = check_function(lambda x, i: jnp.take(x, i, axis=1, mode="clip"), x, i)
    assert not any(getattr(record, "op", "") == "memset" for record in compiled.program.records)


def _gathers(function: Callable[..., Any], *inputs: Any) -> list[tuple[int, ...]]:
    """Results of the gathers that the passes leave."""
    module = parse_text(text_of(function, *inputs))
    run_passes(module, pipelines.pass_names(pipelines.DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    ops = [op for block in module.computations() for op in ops_of(block.block)]
    assert not any(isinstance(op, hlo.TransposeOp) for op in ops)
    return [op.shape.dims for op in ops if isinstance(op, hlo.GatherOp)]


def test_one_walk_for_all_heads() -> None:
    """However the biases of heads are laid out, no head has a walk of its own, and nothing is transposed after."""
    i = np.zeros((196, 196), np.int32)
    heads = np.zeros((4, 196), np.float32)
    assert _gathers(lambda x, i: x[:, i], heads, i) == [(1, 4, 38416, 1)]
    assert _gathers(lambda x, i: jnp.transpose(x[i], (2, 0, 1)), heads.T, i) == [(1, 1, 4, 38416)]


@pytest.mark.parametrize(
    ("rows", "height", "count", "axis"),
    [(4, 200, 40_000, 1), (1, 2000, 3001, 1), (16, 200, 3001, 1), (16, 2000, 40_000, 0), (8, 70_000, 20_000, 1)],
)
def test_estimates(rows: int, height: int, count: int, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Plan] = []

    def choose(costs: Costs, asked: Asked) -> Plan:
        taken.append(gather_plan.choose(costs, asked))
        return taken[-1]

    monkeypatch.setattr(gather, "choose", choose)
    x = np.zeros((rows, height) if axis else (height, rows), np.float32)
    text = text_of(lambda x, i: jnp.take(x, i, axis=axis, mode="clip"), x, np.zeros(count, np.int32))
    report = neuronx_cc.compile(text, auto_cast="none").run([], timing_only=True).report
    assert taken[0].form == "groups"
    assert 0.8 < taken[0].ns / report.kernel_ns < 1.2


def test_plans_are_the_same_every_time() -> None:
    text = text_of(lambda x, i: x[:, i], np.zeros((6, 50), np.float32), np.zeros((3000,), np.int32))
    first, second = (compile_text(text, TRN1).program for _ in range(2))
    assert [str(record) for record in first.records] == [str(record) for record in second.records]


@pytest.mark.parametrize("method", ["set", "add", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, ml_dtypes.bfloat16])
def test_updates_of_all_heads_by_one_list(method: str, dtype: Any, random: np.random.Generator) -> None:
    """The elements of all heads are one row, so that its number is looked at once."""
    x, u = values(random, dtype, [6, 90]), values(random, dtype, [6, 20_000])
    i = random.integers(-3, 93, 20_000).astype(np.int32)
    i[:3] = [-1, -(2**31), 2**31 - 1]
    if method == "add" and dtype is ml_dtypes.bfloat16:
        u = np.sign(u)  # sums in the order of the list, rounded each time
    text = text_of(lambda x, i, u: getattr(x.at[:, i], method)(u, mode="drop"), x, i, u)
    module = parse_text(text)
    run_passes(module, pipelines.pass_names(pipelines.DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    ops = [op for block in module.computations() for op in ops_of(block.block)]
    looks = [hlo.shape_of(op.args[1]).size for op in ops if isinstance(op, hlo.ScatterOp)]
    if not (method == "add" and dtype is ml_dtypes.bfloat16):  # processors would round sums of their own
        assert max(looks) < 21_000
    check_function(lambda x, i, u: getattr(x.at[:, i], method)(u, mode="drop"), x, i, u)


def test_gradient_of_position_biases(random: np.random.Generator) -> None:
    x, i = values(random, np.float32, [4, 49]), random.integers(0, 49, (49, 49)).astype(np.int32)
    scores = values(random, np.float32, [4, 49, 49])
    check_function(jax.grad(lambda x, i, s: jnp.sum(jnp.tanh(x[:, i]) * s)), x, i, scores)
