"""Loops and branches: generated, run with the race check on, equal to XLA."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, check_text, compile_text, text_of
from jax import lax

from neuronx_cc.ir.isa.program import Branch, Instr, Loop, Program, While

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype(np.float32)
W = RNG.normal(size=(8, 8)).astype(np.float32)
XS = RNG.normal(size=(5, 4, 8)).astype(np.float32)
ROWS = (np.arange(7 * 160, dtype=np.int32) % 11 - 3).reshape(7, 160)
BIG = RNG.normal(size=(300, 700)).astype(np.float32)


def _step(h: Any, x: Any, w: Any) -> Any:
    return jnp.tanh(h @ w + x)


def scan(xs: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = _step(h, x, w)
        return h, h * 2

    return lax.scan(step, jnp.zeros((4, 8), jnp.float32), xs)


def reverse_scan(xs: Any) -> Any:
    return lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.ones((4, 8), jnp.float32), xs, reverse=True)


def fori(x: Any) -> Any:
    return lax.fori_loop(0, 6, lambda i, a: a * 1.5 + i, x)


def run_time_fori(x: Any, n: Any) -> Any:
    return lax.fori_loop(2, n, lambda i, a: a * 1.5 + i, x)


def swap(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[2], s[1]), (0, x, x * 2))


def rotate(x: Any, n: Any) -> Any:
    def body(s: Any) -> Any:
        i, a, b, c = s
        return i + 1, b, c + a, a[::-1]

    return lax.while_loop(lambda s: s[0] < n, body, (0, x, x * 2, x - 1))


def interleaved_state(keys: Any) -> Any:
    """The state lies on four partitions; its next value is a view of a larger array in HBM, of two dims."""

    def step(keys: Any, _: Any) -> Any:
        mixed = jnp.stack([keys.reshape(2, 2) * 3, keys.reshape(2, 2) ^ 7], -1)
        return mixed.transpose(1, 0, 2).reshape(2, 4)[0], keys.sum()

    return lax.scan(step, keys, None, length=5)


def _columns(y: Any, w: Any) -> Any:
    """Kernels whose results take up memory on chip."""
    z = (y % 16)[:, :3]
    for _ in range(3):
        z = lax.cummin(z @ w, 0)
    return z


def kept_loop(x: Any, w: Any, n: Any) -> Any:
    """What the loop leaves is read by other kernels, and is a result."""
    y = lax.fori_loop(0, n, lambda i, a: jnp.clip(a + i, -50, 50), x)
    return y, _columns(y, w)


def kept_branch(x: Any, w: Any, p: Any) -> Any:
    y, z = lax.cond(p, lambda a: (a * 2, a + 3), lambda a: (a[::-1] + 1, a), x)
    return y, _columns(y + z, w), z


def branch(p: Any, x: Any) -> Any:
    return lax.cond(p, lambda a: (a * 2, a.sum()), lambda a: (a - 1, a.max()), x)


def switch(i: Any, x: Any) -> Any:
    return lax.switch(i, [lambda a: a * 2, lambda a: a, lambda a: jnp.zeros_like(a), lambda a: a.T.reshape(4, 8)], x)


def loops_in_loops(x: Any, n: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        return lax.fori_loop(0, i + 1, lambda j, b: b * 0.5 + jnp.float32(j), a) + 1

    return lax.fori_loop(0, n, body, x)


def branches_in_loops(xs: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        c = lax.cond(jnp.sum(x) > 0, lambda a: a + x, lambda a: a - x * 2, c)
        return c, c.sum()

    return lax.scan(step, jnp.zeros((4, 8), jnp.float32), xs)


def loops_in_branches_in_loops(xs: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        def many(a: Any) -> Any:
            return lax.while_loop(lambda s: s[0].sum() < 10, lambda s: (s[0] + jnp.abs(x) + 0.1, s[1] + 1), (a, 0))[0]

        c = lax.cond(x[0, 0] > 0, many, lambda a: a * 0.5, c)
        return c, c[0]

    return lax.scan(step, jnp.zeros((4, 8), jnp.float32), xs)


def state_of_many_types(x: Any, b: Any, n: Any) -> Any:
    def body(s: Any) -> Any:
        f, p, k, h, u = s
        return f * 1.25, ~p, k + 1, h * jnp.bfloat16(1.5), u ^ (u << 1)

    start = (x, b, jnp.int8(0), x.astype(jnp.bfloat16), jnp.arange(5, dtype=jnp.uint32))
    return lax.while_loop(lambda s: s[2] < n, body, start)


def update_in_place(big: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, a: lax.dynamic_update_slice(a, a[7:9, 3:50] + 1, (i * 2, i)), big)


def big_state(big: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[1] < n, lambda s: (s[0] * 0.5 + s[0][::-1], s[1] + 1), (big, 0))


def same_value_twice(x: Any, n: Any) -> Any:
    def body(s: Any) -> Any:
        y = s[1] + s[2]
        return s[0] + 1, y, y

    return lax.while_loop(lambda s: s[0] < n, body, (0, x, x))


def empty_state(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2, s[2] + 1), (0, x, x[:, :0]))


def lstm(xs: Any, wx: Any, wh: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ wx + h @ wh, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((4, 8), jnp.float32)
    return lax.scan(step, (zeros, zeros), xs)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scan": (scan, (XS, W)),
    "scan of none": (scan, (XS[:0], W)),
    "scan of one": (scan, (XS[:1], W)),
    "reverse scan": (reverse_scan, (XS,)),
    "state of two dims": (interleaved_state, (np.arange(4, dtype=np.uint32),)),
    "loop kept": (kept_loop, (ROWS, np.eye(3, dtype=np.int32), np.int32(3))),
    "branch kept": (kept_branch, (ROWS, np.eye(3, dtype=np.int32), np.bool_(True))),
    "fori": (fori, (X,)),
    **{f"fori to {n}": (run_time_fori, (X, np.int32(n))) for n in (-5, 2, 3, 6)},
    **{f"swap {n}": (swap, (X, np.int32(n))) for n in (0, 1, 4)},
    **{f"rotate {n}": (rotate, (X, np.int32(n))) for n in (0, 5)},
    **{f"empty state {n}": (empty_state, (X, np.int32(n))) for n in (0, 2)},
    **{f"branch {p}": (branch, (np.bool_(p), X)) for p in (True, False)},
    **{f"switch {i}": (switch, (np.int32(i), X)) for i in (-1, 0, 1, 2, 3, 7)},
    "loops in loops": (loops_in_loops, (X, np.int32(4))),
    "branches in loops": (branches_in_loops, (XS,)),
    "loops in branches in loops": (loops_in_branches_in_loops, (XS,)),
    "many types": (state_of_many_types, (X, np.array([True, False]), np.int8(3))),
    "update in place": (update_in_place, (BIG, np.int32(3))),
    "big state": (big_state, (BIG, np.int32(3))),
    "same value twice": (same_value_twice, (X, np.int32(3))),
    "lstm": (lstm, (XS, np.tile(W, 4) * 0.3, np.tile(W, 4) * 0.2)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_xla(name: str) -> None:
    function, inputs = CASES[name]
    check_function(function, *inputs)


def _instructions(program: Program) -> list[Instr]:
    return [record for record in program.records if isinstance(record, Instr)]


def test_length_does_not_show_in_the_program() -> None:
    programs = [compile_text(text_of(scan, np.zeros((n, 4, 8), np.float32), W)).program for n in (10, 10_000)]
    shapes = [[(instr.op, instr.stream) for instr in _instructions(program)] for program in programs]
    fills = [shape.count(("memset", shape[0][1])) for shape in shapes]
    assert abs(len(shapes[0]) - len(shapes[1])) <= 2 + max(fills)  # the results are filled in tiles
    assert 10_000 in [record.count for record in programs[1].records if isinstance(record, While | Loop)]


def test_ten_thousand_steps() -> None:
    xs = RNG.normal(size=(10_000, 4)).astype(np.float32)
    check_function(lambda xs: lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.zeros(4), xs), xs)


@pytest.mark.parametrize("n", [0, 3])
def test_wide_counter(n: int) -> None:
    """64-bit integers in the state become 32 bits wide in the loop, its body and its condition alike."""
    text = """HloModule wide
body { s = (s64[], f32[4], (u64[3])) parameter(0)
  i = s64[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  p = (u64[3]) get-tuple-element(s), index=2
  u = u64[3] get-tuple-element(p), index=0
  one = s64[] constant(1)
  j = s64[] add(i, one)
  f = f32[] convert(i)
  fs = f32[4] broadcast(f), dimensions={}
  y = f32[4] add(x, fs)
  v = u64[3] add(u, u)
  q = (u64[3]) tuple(v)
  ROOT r = (s64[], f32[4], (u64[3])) tuple(j, y, q) }
cond { s = (s64[], f32[4], (u64[3])) parameter(0)
  i = s64[] get-tuple-element(s), index=0
  n = s64[] constant(LIMIT)
  ROOT c = pred[] compare(i, n), direction=LT }
ENTRY main {
  i = s64[] parameter(0)
  x = f32[4] parameter(1)
  u = u64[3] parameter(2)
  p = (u64[3]) tuple(u)
  s = (s64[], f32[4], (u64[3])) tuple(i, x, p)
  ROOT w = (s64[], f32[4], (u64[3])) while(s), condition=cond, body=body
}""".replace("LIMIT", str(n))
    check_text(text, np.int64(0), np.arange(4, dtype=np.float32), np.array([1, 2, 3], np.uint64))


def test_index_out_of_range_takes_the_last_branch() -> None:
    text = """HloModule m
a { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
b { x = f32[4] parameter(0) ROOT y = f32[4] add(x, x) }
c { x = f32[4] parameter(0) ROOT y = f32[4] multiply(x, x) }
ENTRY main { i = s32[] parameter(0) x = f32[4] parameter(1)
  ROOT r = f32[4] conditional(i, x, x, x), branch_computations={a, b, c} }"""
    for index in (-(2**31), -1, 0, 1, 2, 3, 2**31 - 1):
        compiled = check_text(text, np.int32(index), np.arange(4, dtype=np.float32))
    assert [record.cases for record in compiled.program.records if isinstance(record, Branch)] == [3]


def test_windows_of_a_counted_loop_are_read_in_place() -> None:
    """No register is loaded, no counter computed, and the only stores are those of the state and of the results."""
    program = check_function(scan, XS, W).program
    start = next(row for row, record in enumerate(program.records) if isinstance(record, While))
    body = [record for record in program.records[start:] if isinstance(record, Instr)]
    assert "reg_load" not in {instr.op for instr in body}
    assert sum(instr.op == "dma_copy" and instr.outs[0].space == 0 for instr in body) == 2


def windows(xs: Any, big: Any) -> Any:
    """Starts of all kinds: reversed, scaled, beyond the end, negative, of an inner loop, also computed with."""

    def body(i: Any, state: Any) -> Any:
        a, b = state
        a = lax.dynamic_update_slice(a, lax.dynamic_slice(big, (3 * i, 6 - i), (3, 5)) + i, (2 * i - 3, 4 - i))
        a = a + lax.dynamic_slice(a, (i, 0), (1, a.shape[1]))

        def inner(j: Any, c: Any) -> Any:
            row = lax.dynamic_slice(xs, (i, j, 0), (1, 1, 8))[0, 0]
            return lax.dynamic_update_slice(c, (c[0] + row * j)[None], (i + j, 0))

        return a, lax.fori_loop(0, 3, inner, b) + a[0, 0]

    return lax.fori_loop(0, 4, body, (big[:9, :11], jnp.zeros((6, 8), jnp.float32)))


def test_windows() -> None:
    check_function(windows, XS, BIG)


def cache(big: Any, rows: Any) -> Any:
    """A big array that branches and inner loops update in place."""

    def step(cache: Any, row: Any) -> Any:
        def write(c: Any) -> Any:
            return lax.fori_loop(0, 2, lambda i, d: lax.dynamic_update_slice(d, (row * i)[None], (3 * i, 0)), c)

        cache = lax.cond(row[0] > 0, write, lambda c: c, cache)
        return cache, row.sum()

    return lax.scan(step, big, rows)


def test_big_state_is_not_copied() -> None:
    program = check_function(cache, BIG, RNG.normal(size=(6, 700)).astype(np.float32)).program
    start = next(row for row, record in enumerate(program.records) if isinstance(record, While))
    moved = [
        int(np.prod(ref.counts))
        for record in program.records[start:]
        if isinstance(record, Instr)
        for ref in record.outs
    ]
    assert max(moved) <= 700


def some(seed: int) -> Callable[..., Any]:
    """A random nest of loops and branches over two arrays and three integers."""
    random = np.random.default_rng(seed)

    def element() -> Callable[..., Any]:
        factor = random.choice([0.5, -0.75, 1.25])
        kinds: list[Callable[..., Any]] = [
            lambda s: (s[0] * factor + s[1], s[1], s[2] + 1),
            lambda s: (s[1], s[0] - factor, s[2] * 3),
            lambda s: (jnp.tanh(s[0]), s[1] + s[0][::-1] * 0.1, s[2]),
            lambda s: (jnp.tanh(s[0] @ W), s[1], s[2]),
            lambda s: (s[0], lax.dynamic_update_slice(s[1], s[0][1:3, 2:4], (abs(s[2][0]) % 3, s[2][1])), s[2]),
        ]
        return kinds[random.integers(len(kinds))]

    def nest(depth: int) -> Callable[..., Any]:
        kind = random.integers(6) if depth else 5
        if kind == 5:
            return element()
        f, g, n = nest(depth - 1), nest(depth - 1), int(random.integers(4))

        def scanned(s: Any) -> Any:
            def step(t: Any, x: Any) -> Any:
                t = f((t[0] + x, t[1], t[2]))
                return t, t[0][0]

            t, ys = lax.scan(step, s, jnp.asarray(XS[: n + 1]))
            return t[0], t[1] + ys.sum(0), t[2]

        kinds: list[Callable[..., Any]] = [
            lambda s: lax.fori_loop(0, n, lambda i, t: f((t[0], t[1], t[2] + i)), s),
            lambda s: lax.while_loop(lambda t: t[1] < abs(s[2][0]) % 4, lambda t: (f(t[0]), t[1] + 1), (s, 0))[0],
            lambda s: lax.cond(s[0].sum() > s[2][1], f, g, s),
            lambda s: lax.switch(s[2][0] % 3, [f, g, lambda t: t], s),
            scanned,
        ]
        return kinds[kind]

    parts = [nest(3), nest(2)]
    return lambda *state: parts[1](parts[0](state))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 60))])
def test_random_nests(seed: int) -> None:
    check_function(some(seed), X, X * 0.5, np.array([seed, 2, 5], np.int32), relative=1e-4)


def test_large_arrays_are_updated_where_they_are() -> None:
    def train(p: Any, m: Any, n: Any) -> Any:
        def body(s: Any) -> Any:
            i, p, m = s
            m = m * 0.5 + p * 0.25
            return i + 1, p - m * 0.125, m

        return lax.while_loop(lambda s: s[0] < n, body, (0, p, m))

    big = np.linspace(-1, 1, 128 * 14000, dtype=np.float32).reshape(128, 14000)
    program = check_function(train, big, big[::-1].copy(), np.int32(2)).program
    start = next(row for row, record in enumerate(program.records) if isinstance(record, While))
    for record in program.records[start:]:
        if isinstance(record, Instr) and record.op == "dma_copy":
            assert not (record.ins[0].space == record.outs[0].space == 0)
