"""Loops that are computed at once: what is left of them, values on the simulator, and loops that must stay."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from after_passes import compiled
from generated import check_function, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

LANES = (5, 3)


def drawn(seed, *dims):
    return np.random.default_rng(seed).uniform(-1, 1, dims).astype(np.float32)


def scanned(step, start, reverse=False, unroll=1, keeps=True):
    """The states of all steps and the last one, or the last one alone."""

    def run(*arrays):
        def body(carry, row):
            carry = step(carry, *row)
            return carry, carry if keeps else None

        first = jnp.broadcast_to(jnp.asarray(start, arrays[0].dtype), arrays[0].shape[1:])
        return lax.scan(body, first, arrays, reverse=reverse, unroll=unroll), [array[0] for array in arrays]

    return run


STEPS = {
    "sum": lambda c, a, b: c + a,
    "difference": lambda c, a, b: c - a,
    "turned difference": lambda c, a, b: a - c,
    "product": lambda c, a, b: c * a,
    "quotient": lambda c, a, b: c / (2 + a) + b,
    "greatest": lambda c, a, b: jnp.maximum(c, a),
    "least of sums": lambda c, a, b: jnp.minimum(c + a, b),
    "greatest, moved": lambda c, a, b: jnp.maximum(c, b) + a,
    "average": lambda c, a, b: 0.9 * c + 0.1 * a,
    "towards": lambda c, a, b: c + 0.1 * (a - c),
    "gated": lambda c, a, b: (1 - jax.nn.sigmoid(a)) * c + jax.nn.sigmoid(a) * b,
    "two factors": lambda c, a, b: 0.9 * (c * jnp.tanh(a)) * 0.8 - b,
    "negated": lambda c, a, b: b - -c * a,
    "masked": lambda c, a, b: jnp.where(a > 0, 0.5 * c + b, c),
    "twice": lambda c, a, b: 0.4 * c * jnp.tanh(a) + c * (0.4 * jnp.tanh(b)) + 1,
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences_are_no_loops(name, reverse):
    run = scanned(STEPS[name], 0.5, reverse)
    arrays = [drawn(seed, 24, *LANES) for seed in range(2)]
    _, counts, error = compiled(run, *arrays)
    assert not counts["while"]
    assert error <= 4e-6
    check_function(run, *arrays, relative=4e-6)


def a_loop(generator):
    """A loop of random steps, of several states that read each other, and its arrays."""
    names = generator.sample([*STEPS], 3)
    trips, rows = generator.choice((2, 3, 17, 64, 130)), generator.choice(((), (1,), (7,), (130,), (4, 33), (2, 3, 5)))
    reverse, unroll, keeps = generator.random() < 0.5, generator.choice((1, 1, 2, 3)), generator.random() < 0.8
    starts = [generator.choice((0.0, 1.0, -0.3)) for _ in names]
    kinds = [generator.choice(("alone", "before", "last")) for _ in names]

    def run(a, b):
        def body(carry, row):
            made, given = [], row
            for name, kind, state in zip(names, kinds, carry, strict=True):
                after = STEPS[name](state, *given) if kind != "last" else given[0] * 0.5
                given = (given[1], state if kind == "before" else after)
                made.append(after)
            return tuple(made), (jnp.tanh(given[0]), *made[1:]) if keeps else None

        first = tuple(jnp.full(rows, start, jnp.float32) for start in starts)
        return lax.scan(body, first, (a, b), reverse=reverse, unroll=unroll)

    return run, [drawn(generator.randrange(1000), trips, *rows) for _ in range(2)]


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 120))])
def test_random_loops(seed):
    run, arrays = a_loop(random.Random(seed))
    check_function(run, *arrays, relative=2e-5)


def advantages(reward, value, done):
    def step(carry, row):
        total, after = carry
        r, v, d = row
        total = r + 0.99 * after * (1 - d) - v + 0.95 * 0.99 * (1 - d) * total
        return (total, v), total

    return lax.scan(step, (jnp.zeros(reward.shape[1:]), value[-1]), (reward, value, done), reverse=True)[1]


def returns_by_index(reward):
    def body(i, carry):
        total, out = carry
        at = reward.shape[0] - 1 - i
        total = reward[at] + 0.99 * total
        return total, out.at[at].set(total)

    return lax.fori_loop(0, reward.shape[0], body, (jnp.zeros(reward.shape[1:]), jnp.zeros_like(reward)))[1]


def moments(x):
    def step(carry, row):
        mean, square, count = carry
        mean, square, count = 0.9 * mean + 0.1 * row, 0.99 * square + 0.01 * row * row, count + 1
        return (mean, square, count), mean / (jnp.sqrt(square) + 0.1) * count.astype(jnp.float32)

    return lax.scan(step, (jnp.zeros(x.shape[1:]), jnp.zeros(x.shape[1:]), jnp.int32(0)), x)[1]


def diagonal_states(x, rate, into, out_of):
    def step(state, row):
        u, b, c = row
        state = jnp.exp(-rate * jnp.abs(u)[:, None]) * state + u[:, None] * b
        return state, state @ c

    return lax.scan(step, jnp.zeros(rate.shape), (x, into, out_of))[1]


def gated_unit(x, w, v):
    def step(state, row):
        gate = jax.nn.sigmoid(row @ w)
        state = (1 - gate) * state + gate * (row @ v)
        return state, state

    return lax.scan(step, jnp.zeros((x.shape[1], w.shape[1])), x)[1]


def sums_of_gradients(w, x, y):
    def step(total, batch):
        a, b = batch
        return total + jax.grad(lambda w: ((a @ w - b) ** 2).mean())(w), None

    return lax.scan(step, jnp.zeros_like(w), (x, y))[0]


def every_second(x):
    return lax.fori_loop(0, 9, lambda i, c: 0.5 * c + x[3 + 2 * i], jnp.zeros(x.shape[1:]))


def part_written(x):
    return lax.fori_loop(0, 9, lambda i, out: out.at[i + 2].set(x[i] * 2), x)


def nested(x):
    def outer(total, row):
        return total + lax.scan(lambda c, e: (0.5 * c + e, None), jnp.zeros(row.shape[1:]), row)[0], None

    return lax.scan(outer, jnp.zeros(x.shape[2:]), x)[0]


PROGRAMS = {
    "advantages": (advantages, [(40, 12)] * 3),
    "advantages of many": (advantages, [(100, 260)] * 3),
    "returns by index": (returns_by_index, [(33, 6)]),
    "moments": (moments, [(50, 20)]),
    "diagonal states": (diagonal_states, [(30, 16), (16, 4), (30, 4), (30, 4)]),
    "gated unit": (gated_unit, [(20, 3, 16), (16, 24), (16, 24)]),
    "sums of gradients": (sums_of_gradients, [(12, 6), (8, 10, 12), (8, 10, 6)]),
    "gradient": (
        jax.grad(lambda *given: (diagonal_states(*given) ** 2).sum(), (0, 1)),
        [(20, 8), (8, 4), (20, 4), (20, 4)],
    ),
    "every second row": (every_second, [(40, 7)]),
    "part written": (part_written, [(20, 7)]),
    "nested": (nested, [(6, 10, 9)]),
    "map": (lambda x, w: lax.map(lambda row: jax.nn.softmax(row @ w), x), [(9, 4, 12), (12, 5)]),
    "vector": (lambda x: lax.scan(lambda c, e: (0.9 * c + e,) * 2, 0.0, x)[1], [(700,)]),
    "few steps of many": (scanned(STEPS["gated"], 0.0), [(4, 4096)] * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_without_loops(name):
    function, dims = PROGRAMS[name]
    arrays = [drawn(index, *each) for index, each in enumerate(dims)]
    _, counts, _ = compiled(function, *arrays)
    assert not counts["while"]
    check_function(function, *arrays, relative=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(3100, 130), (6500, 128), (70, 4, 64), (200, 3, 50, 2), (64, 1024), (300, 32, 40)])
@pytest.mark.parametrize("reverse", [False, True])
def test_long_and_wide(dims, reverse):
    run = scanned(lambda c, a, b: jnp.tanh(a) * c + b, 0.25, reverse)
    check_function(run, *[drawn(seed, *dims) for seed in range(2)], relative=2e-5)


def test_infinite_states_are_forgotten():
    """A state that a step replaces is gone, whatever it was: such a loop stays."""
    run = scanned(lambda c, a, b: jnp.where(a > 0, b, c * 1e30), 1.0)
    arrays = [drawn(seed, 24, 5) for seed in range(2)]
    check_function(run, *arrays, relative=1e-5)


def test_infinite_factors_at_the_start():
    def run(a, b):
        return lax.scan(lambda c, row: (row[0] * c + row[1],) * 2, jnp.zeros(3), (a, b))[1]

    a = np.full((8, 3), 0.5, np.float32)
    a[0, 1], a[3, 2] = np.inf, np.inf
    check_function(run, a, np.ones((8, 3), np.float32), relative=1e-6)


def test_integers_wrap():
    def run(x):
        return lax.scan(lambda c, row: (c + row,) * 2, jnp.full(4, 2**31 - 5, jnp.int32), x)[1]

    check_function(run, np.arange(48, dtype=np.int32).reshape(12, 4))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("step", ["sum", "product", "affine", "greatest", "turned difference"])
def test_narrow_floats_are_rounded_once(dtype, step):
    """States of 16 bits are those of FP32, rounded; with sums in the type itself they are rounded in every step."""
    update = {**STEPS, "affine": lambda c, a, b: c * (a * 0.5) + b}[step]
    wide = scanned(lambda c, *row: update(c, *row).astype(c.dtype), 0.5)
    arrays = [drawn(seed, 40, *LANES).astype(dtype) for seed in (0, 1)]
    module = parse_text(text_of(wide, *arrays))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions()))
    assert not any(isinstance(op, hlo.WhileOp) for op in ops_of(module.entry.block))
    found = evaluate(module, arrays)
    for one, other in zip(found, jax.tree.leaves(wide(*[x.astype(np.float32) for x in arrays])), strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one.astype(np.float32), np.asarray(other), rtol=1e-2, atol=1e-2)
    check_function(wide, *arrays, relative=0.1)
    module = parse_text(text_of(wide, *arrays))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(mixed_precision_accumulation=False)))
    assert any(isinstance(op, hlo.WhileOp) for op in ops_of(module.entry.block)) == (step != "greatest")


KEPT = {
    "not affine": lambda c, a, b: jnp.tanh(c) * a + b,
    "squared": lambda c, a, b: 0.1 * c * c * a + 0.1 * b,
    "in the divisor": lambda c, a, b: a / (2 + c * c),
    "chosen by itself": lambda c, a, b: jnp.where(c > 0, c * a, c * b),
    "other elements": lambda c, a, b: 0.5 * jnp.roll(c, 1, -1) + a,
    "summed": lambda c, a, b: 0.1 * c.sum(-1, keepdims=True) + a,
    "greatest between": lambda c, a, b: jnp.maximum(0.5 * c, a) * b,
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    run = scanned(KEPT[name], 0.5)
    arrays = [drawn(seed, 40, *LANES) for seed in range(2)]
    _, counts, error = compiled(run, *arrays)
    assert counts["while"]
    assert error <= 1e-5
    check_function(run, *arrays, relative=1e-5)


def test_states_that_read_each_other_stay():
    def run(x):
        def step(carry, row):
            p, q = carry
            return (0.9 * p + 0.1 * q, 0.8 * q - 0.2 * p + row), p

        return lax.scan(step, (jnp.zeros(6), jnp.ones(6)), x)

    check_function(run, drawn(0, 30, 6), relative=1e-5)


def test_writes_beyond_the_array():
    """A scatter drops what lies beyond the array, an update moves it in."""

    def run(x):
        out = lax.fori_loop(0, 8, lambda i, out: out.at[i + 4].set(x[i], mode="drop"), jnp.zeros_like(x))
        moved = lax.fori_loop(
            0, 8, lambda i, out: lax.dynamic_update_slice(out, x[i][None] + 1, (i + 4, 0)), jnp.zeros_like(x)
        )
        return out, moved

    check_function(run, drawn(0, 8, 5))


def added(a, b):
    return a[0] + b[0], a[1] + b[1]


OF_PAIRS = {
    "sorted with places": lambda s, x: lax.sort((s, x), num_keys=1)[1] + s,
    "places": lambda s, x: s + jnp.argsort(s, 1).astype(s.dtype) + x,
    "argmax": lambda s, x: s + jnp.argmax(s, 1, keepdims=True).astype(s.dtype),
    "top": lambda s, x: s + lax.top_k(s, 1)[0] + x,
    "reduced": lambda s, x: s + lax.reduce((s, x), (0.0, 0.0), added, (1,))[0][:, None],
}


@pytest.mark.parametrize("form", OF_PAIRS)
def test_ops_of_several_results_read_what_is_carried(form: str) -> None:
    """A sort of two arrays in a loop's body has no single shape."""
    x = np.random.default_rng(1).integers(0, 50, (4, 9)).astype(np.float32)

    def function(x):
        return lax.fori_loop(0, 3, lambda _, s: (s[0] + x, OF_PAIRS[form](s[0], x) + 0 * s[1]), (x, x))

    check_function(function, x)


EXTREMES = {
    "greatest of sums": lambda c, a, b: jnp.maximum(c + a, b),
    "a queue": lambda c, a, b: jnp.maximum(c + a - b, 0.0),
    "least of sums": lambda c, a, b: jnp.minimum(b, c - a + b * 0.3),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize(("steps", "dtype"), [(100, np.float32), (4000, np.float32), (100, jnp.bfloat16)])
def test_what_an_extreme_is_taken_of(name, steps, dtype):
    """Gradients ask which operand the extreme is, which sums in another order, or rounded once, are not."""
    step = EXTREMES[name]

    def run(a, b):
        def body(c, row):
            after = step(c, *row)
            return after, after

        return (lax.scan(body, a[0], (a, b))[1] * jnp.sin(jnp.arange(steps)).astype(dtype)).sum()

    def is_one(a, b):
        def body(c, row):
            after, both = step(c, *row), (c + row[0], row[1])
            return after, tuple(after == each for each in both)

        return lax.scan(body, a[0], (a, b))[1] if name == "greatest of sums" else (a, b)

    arrays = [drawn(seed, steps).astype(dtype) for seed in range(2)]
    _, counts, _ = compiled(run, *arrays)
    assert not counts["while"]
    check_function(jax.grad(run, (0, 1)), *arrays, relative=1e-5 if dtype == np.float32 else 0.05)
    if dtype == np.float32:
        check_function(is_one, *arrays)
