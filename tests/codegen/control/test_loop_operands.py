"""Operands of contractions that loops do not change are staged once: the same values as XLA, and nothing read again."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax import lax

from neuronx_cc.ir.isa.program import Else, End, Instr, Loop, Program, Space, While
from neuronx_cc.ir.types import itemsize

RNG = np.random.default_rng(0)


def normal(*dims: int) -> Any:
    return (RNG.standard_normal(dims) * dims[-1] ** -0.5).astype(np.float32)


def repeated(step: Callable[[Any, Any], Any], times: int = 3) -> Callable[[Any, Any], Any]:
    """``x = step(x, w)`` some times over."""
    return lambda x, w: lax.fori_loop(0, times, lambda _, x: step(x, w), x)


def einsum(spec: str) -> Callable[[Any, Any], Any]:
    return repeated(lambda x, w: jnp.tanh(jnp.einsum(spec, x, w)) + x)


def narrow(x: Any, w: Any) -> Any:
    """The weights are cast where they are read."""
    y = jnp.matmul(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return jnp.tanh(y)


FORMS = {
    "rows": (einsum("mk,kn->mn"), (20, 64), (64, 64)),
    "columns": (einsum("mk,nk->mn"), (20, 64), (64, 64)),
    "first operand": (einsum("km,nk->nm"), (64, 20), (64, 64)),
    "first operand, transposed": (einsum("km,kn->nm"), (64, 20), (64, 64)),
    "two segments": (einsum("mk,kn->mn"), (7, 149), (149, 149)),
    "two segments, columns": (einsum("mk,nk->mn"), (7, 149), (149, 149)),
    "chunks and a rest": (einsum("mk,nk->mn"), (5, 265), (265, 265)),
    "equal chunks": (einsum("mk,kn->mn"), (5, 192), (192, 192)),
    "many rows": (einsum("mk,kn->mn"), (140, 40), (40, 40)),
    "batch": (einsum("mbk,bkn->mbn"), (4, 3, 40), (3, 40, 40)),
    "batch, columns": (einsum("mbk,bnk->mbn"), (4, 6, 40), (6, 40, 40)),
    "two free dims": (repeated(lambda x, w: jnp.einsum("mk,kpq->mpq", x, w)[:, 1] + x), (6, 33), (33, 3, 33)),
    "free dims around": (repeated(lambda x, w: jnp.einsum("mk,pkq->mpq", x, w)[:, 1] + x), (6, 33), (3, 33, 33)),
    "window": (repeated(lambda x, w: jnp.tanh(x @ w[3:53, 7:57])), (9, 50), (60, 70)),
    "cast": (repeated(narrow), (9, 130), (130, 130)),
    "two contracted": (repeated(lambda x, w: jnp.einsum("mkl,lkp->mp", x, w)[..., None] + x), (5, 8, 6), (6, 8, 8)),
    "vector": (repeated(lambda x, w: jnp.tanh(w @ x)), (70,), (70, 70)),
    "one trip": (repeated(lambda x, w: jnp.tanh(x @ w), 1), (9, 50), (50, 50)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    function, x, w = FORMS[name]
    check_function(function, normal(*x), normal(*w), relative=1e-2 if name == "cast" else 1e-5)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=lambda t: np.dtype(t).name)
def test_narrow_types(dtype: Any) -> None:
    for spec in ("mk,kn->mn", "mk,nk->mn"):
        check_function(einsum(spec), normal(6, 150).astype(dtype), normal(150, 150).astype(dtype), relative=2e-2)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_run_time_trips(n: int) -> None:
    def function(x: Any, w: Any, n: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.tanh(s[1] @ w)), (0, x))

    check_function(function, normal(4, 40), normal(40, 40), np.int32(n))


def nested(x: Any, w: Any, v: Any, big: Any, n: Any) -> Any:
    """Loops in loops and branches; ``v`` changes in the outer loop only, ``u`` nowhere."""
    u = np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32)

    def inner(state: Any) -> Any:
        i, y, v = state
        y = lax.cond(y[0, 0] > 0, lambda y: jnp.tanh(y @ w), lambda y: jnp.tanh(y @ v.T) - 0.1, y)
        return i + 1, y + jnp.tanh(y @ u) * 0.1, v

    def outer(i: Any, state: Any) -> Any:
        y, v = state
        _, y, _ = lax.while_loop(lambda s: s[0] < n + i, inner, (0, y, v))
        return y, v * 0.9 + w * 0.1 + jnp.sum(y @ big) * 1e-3

    return lax.fori_loop(0, 3, outer, (x, v))


def test_nested() -> None:
    check_function(nested, normal(5, 32), normal(32, 32), normal(32, 32), normal(32, 9), np.int32(2))


def test_weights_that_change() -> None:
    def function(x: Any, w: Any, v: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, s: (jnp.tanh(s[0] @ s[1] @ v), s[2], s[1] * 0.5), (x, w, v))

    check_function(function, normal(4, 40), normal(40, 40), normal(40, 40))


def test_equal_loops() -> None:
    """Loops that share a body, each with weights of its own."""

    def function(x: Any, w: Any, v: Any) -> Any:
        for weights in (w, v):
            x = lax.fori_loop(0, 3, lambda _, y, weights=weights: jnp.tanh(y @ weights), x)
        return x

    check_function(function, normal(4, 40), normal(40, 40), normal(40, 40))


def test_one_operand_in_two_contractions() -> None:
    def function(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(jnp.tanh(y @ w) @ w) + jnp.tanh(y @ w.T), x)

    check_function(function, normal(4, 40), normal(40, 40))


def _bytes_read_in_loops(program: Program) -> int:
    """Bytes that loads inside loops of the program move from HBM in one iteration."""
    total, opened = 0, []
    for record in program.records:
        if isinstance(record, While | Loop):
            opened.append(record)
        elif isinstance(record, End):
            opened.pop()
        elif isinstance(record, Instr) and record.op == "dma_copy" and any(isinstance(o, While) for o in opened):
            (source,) = record.ins[:1]
            # iterations that overlap are a loop in a region that is run once
            around = [region.count for region in opened if isinstance(region, While)].count(1)
            times = prod([loop.count for loop in opened if isinstance(loop, Loop)][around:])
            total += times * prod(source.counts) * itemsize(source.dtype) * (source.space is Space.HBM)
        assert not isinstance(record, Else)
    return total


@pytest.mark.parametrize(("width", "kept"), [(650, True), (1024, True), (3000, False)])
def test_what_fits_is_read_once(width: int, kept: bool) -> None:
    """A recurrent layer of 20 rows: its weights stay on chip, if they fit."""
    hidden = 4 * width if width < 1000 else width

    def function(xs: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            y = jnp.tanh(h @ w)
            return y[:, :width] * y[:, -width:] + x, None

        return lax.scan(step, xs[0], xs)[0]

    text = text_of(function, np.zeros((6, 20, width), np.float32), np.zeros((width, hidden), np.float32))
    moved = _bytes_read_in_loops(compile_text(text).program)
    assert (moved < width * hidden * 4 // 10) == kept


def test_more_than_fits() -> None:
    """Three operands of which two stay on chip."""

    def function(x: Any, a: Any, b: Any, c: Any) -> Any:
        def body(at: Any, y: Any) -> Any:
            for weights in (a, b, c):
                y = lax.dynamic_slice_in_dim(jnp.tanh(y @ weights), 1000 * at, 60, 1)  # any columns may be wanted
            return y

        return lax.fori_loop(0, 2, body, x)

    inputs = [normal(60, 14000) for _ in range(3)]
    program = check_function(function, normal(3, 60), *inputs).program
    assert inputs[0].nbytes <= _bytes_read_in_loops(program) < 1.5 * inputs[0].nbytes


def recurrent(xs: Any, w: Any, v: Any, b: Any, reverse: bool = False) -> Any:
    """Products of the inputs with one matrix, of the state with another one."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ w + b + h @ v)
        return h, h

    return lax.scan(step, jnp.zeros((xs.shape[1], v.shape[0]), xs.dtype), xs, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_products_of_inputs(reverse: bool) -> None:
    inputs = normal(7, 5, 40), normal(40, 70), normal(70, 70), normal(70)
    compiled = check_function(lambda *inputs: recurrent(*inputs, reverse=reverse), *inputs)
    start = next(row for row, record in enumerate(compiled.program.records) if isinstance(record, While))
    inside = [record for record in compiled.program.records[start:] if isinstance(record, Instr)]
    assert sum(instr.op == "multiply_moving" and instr.outs[0].counts == (5, 70) for instr in inside) == 1


def test_gradient_of_a_recurrent_layer() -> None:
    inputs = normal(6, 5, 30), normal(30, 50), normal(50, 50), normal(50)
    check_function(jax.grad(lambda *inputs: jnp.sum(recurrent(*inputs)[1] ** 2), argnums=(0, 1, 2, 3)), *inputs)


@pytest.mark.parametrize("rows", [False, True], ids=["elementwise", "long rows"])
def test_room_for_other_kernels(rows: bool) -> None:
    """Weights fill what they may beside kernels with many values alive, and beside long rows that are reduced."""

    def function(x: Any, *weights: Any) -> Any:
        def body(_: Any, y: Any) -> Any:
            for each in weights:
                wide = y @ each
                kept = [wide * (i + 1) + jnp.abs(wide) for i in range(12)]
                total = kept[0]
                for value in kept[1:]:
                    total = jnp.maximum(total, -value) - value * 0.1
                for value in kept:
                    total = total + value
                wide = jax.nn.softmax(wide) + total * 1e-4 if rows else jnp.tanh(total * 4e-3)
                y = wide[:, 1000:1060]
            return y

        return lax.fori_loop(0, 2, body, x)

    check_function(function, normal(9, 60), *(normal(60, 9000) for _ in range(4)), relative=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns", "transposed"), [(20, 650, True), (2, 640, True), (32, 705, True), (33, 640, False)]
)
def test_few_rows_stream_past_resident_columns(
    rows: int, columns: int, transposed: bool, random: np.random.Generator
) -> None:
    """Vector turns the sums, with what is added to them and without."""
    weights = random.standard_normal((columns, columns)).astype(np.float32) * np.float32(columns**-0.5)
    start, terms = random.standard_normal((rows, columns)), random.standard_normal((3, rows, columns))

    def step(state: jax.Array, term: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ weights + term)
        state = jnp.tanh(state @ weights)
        return state, state

    compiled = check_function(lambda *x: lax.scan(step, *x), start.astype(np.float32), terms.astype(np.float32))
    made = [record for record in compiled.program.records if isinstance(record, Instr) and record.op == "transpose"]
    assert any(instr.ins[0].space is Space.PSUM for instr in made) is transposed
