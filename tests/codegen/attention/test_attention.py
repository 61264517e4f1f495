"""Attention as one kernel: spellings, masks, heads, sizes around the limits of TensorE, and what must stay apart."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose, kernel
from neuronx_cc.codegen.attention.schedule import Schedule

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=98304"])


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, too, are one kernel here."""
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)


def plain(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), axis=-1) @ v


def by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("...qd,...kd->...qk", q * 0.25, k)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("...qk,...kd->...qd", weights / weights.sum(-1, keepdims=True), v)


def transposed(q: Any, k: Any, v: Any) -> Any:
    """Keys as they lie for the product, results with the features first."""
    return jnp.einsum("...qk,...kd->...dq", jax.nn.softmax(jnp.einsum("...qd,...kd->...qk", q, k), axis=-1), v)


def causal(fill: float) -> Function:
    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("...qd,...kd->...qk", q, k) * 0.3
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jax.nn.softmax(jnp.where(mask, scores, fill), axis=-1) @ v

    return function


def softcap(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("...qd,...kd->...qk", q, k) * 0.2
    return jax.nn.softmax(jnp.tanh(scores / 5) * 5, axis=-1) @ v


def exponentials(q: Any, k: Any) -> Any:
    scores = jnp.einsum("...qd,...kd->...qk", q, k) * 0.3
    return jnp.exp(scores - scores.max(-1, keepdims=True))


def divided_after(q: Any, k: Any, v: Any) -> Any:
    weights = exponentials(q, k)
    return jnp.einsum("...qk,...kd->...qd", weights, v) / weights.sum(-1, keepdims=True)


def multiplied_after(q: Any, k: Any, v: Any) -> Any:
    weights = exponentials(q, k)
    return jnp.einsum("...qk,...kd->...dq", weights, v) * (1 / weights.sum(-1))[..., None, :]


def divided_turned(q: Any, k: Any, v: Any) -> Any:
    """Where rows and dims around have changed places before the division."""
    weights = exponentials(q, k)
    return jnp.moveaxis(weights @ v, -2, 0) / jnp.moveaxis(weights.sum(-1, keepdims=True), -2, 0)


def by_logarithms(q: Any, k: Any, v: Any) -> Any:
    return jnp.exp(jax.nn.log_softmax(q @ jnp.swapaxes(k, -1, -2) * 0.3, axis=-1)) @ v


SPELLINGS: dict[str, Function] = {
    "divided after": divided_after,
    "multiplied after": multiplied_after,
    "divided turned": divided_turned,
    "by logarithms": by_logarithms,
    "plain": plain,
    "by hand": by_hand,
    "transposed": transposed,
    "softcap": softcap,
    "causal -inf": causal(-np.inf),
    "causal -1e30": causal(-1e30),
    "causal -1e4": causal(-1e4),
    "causal -5": causal(-5.0),
}
SIZES = [
    *((1, 17, 64, 64), (17, 1024, 8, 8), (64, 64, 64, 64), (127, 129, 33, 65), (129, 127, 128, 128)),
    *((128, 512, 129, 17), (130, 513, 64, 200), (257, 511, 16, 1), (300, 640, 7, 64)),
]
"""Rows, columns, depth, width."""


def drawn(random: np.random.Generator, *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Array]:
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def check(
    function: Function, inputs: list[Array], relative: float = 2e-5, fused: bool = True, **options: Any
) -> list[Array]:
    """Values against the function itself in FP64, on a program of one kernel where it is ``fused``."""
    compiled = compile_text(text_of(function, *inputs), **options)
    assert any("attention" in name for name in compiled.program.kernels) is fused, compiled.program.kernels
    found = compiled.run(inputs)
    with jax.enable_x64(True):
        wide = [x if x.dtype == bool else np.asarray(x, np.float64) for x in inputs]
        want = jax.tree.leaves(jax.jit(function)(*wide))
    for result, wanted in zip(found, want, strict=True):
        assert_close(np.asarray(result, np.float32), np.asarray(wanted, np.float32), relative)
    return found


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, sizes: tuple[int, int, int, int], random: np.random.Generator) -> None:
    rows, columns, depth, width = sizes
    check(SPELLINGS[name], drawn(random, (rows, depth), (columns, depth), (columns, width)))


@pytest.mark.parametrize("name", ["plain", "causal -inf", "softcap", "divided after", "divided turned"])
@pytest.mark.parametrize("heads", [(3,), (2, 3), (40,)], ids=str)
def test_heads(name: str, heads: tuple[int, ...], random: np.random.Generator) -> None:
    check(SPELLINGS[name], drawn(random, (*heads, 70, 16), (*heads, 90, 16), (*heads, 90, 24)))


@pytest.mark.parametrize("dims", [(1, 256, 4, 4), (2, 130, 6, 2), (2, 40, 8, 1), (1, 300, 34, 1)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups(dims: tuple[int, int, int, int], masked: bool, dtype: str, random: np.random.Generator) -> None:
    """``jax.nn.dot_product_attention``, keys and values shared by several heads of queries."""
    batch, length, heads, shared = dims
    shapes = (batch, length, heads, 32), (batch, length, shared, 32), (batch, length, shared, 32)
    relative = 2e-5 if dtype == "float32" else 2e-2

    def function(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=masked)

    check(function, drawn(random, *shapes, dtype=jnp.dtype(dtype)), relative)


def masked_by(kind: str) -> Function:
    def function(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.5
        if kind == "select":
            scores = jnp.where(mask, scores, -jnp.inf)
        else:
            scores = scores * mask if kind == "multiply" else scores + mask
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    return function


@pytest.mark.parametrize(
    "shape",
    [(2, 1, 1, 150), (1, 1, 140, 150), (2, 3, 140, 150), (1, 3, 1, 150), (1, 3, 1, 1), (2, 3, 140, 1)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["add", "multiply", "select"])
def test_masks_that_are_read(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> None:
    inputs = drawn(random, (2, 3, 140, 16), (2, 3, 150, 16), (2, 3, 150, 16), shape)
    if kind == "select":
        inputs[3] = inputs[3] > -1
        inputs[3][..., 0] = True
    check(masked_by(kind), inputs)


@pytest.mark.parametrize("width", [512, 513, 784])
@pytest.mark.parametrize(("rows", "columns"), [(2, 200), (12, 12), (64, 600)])
def test_features_beyond_a_bank(rows: int, columns: int, width: int, random: np.random.Generator) -> None:
    """Sums of one row of values fill a bank of PSUM at most in one kernel; other products are apart."""
    inputs = drawn(random, (4, rows, 64), (4, columns, 64), (4, columns, width))
    check(plain, inputs, fused=width <= 512)


def test_rows_that_are_wholly_masked(random: np.random.Generator) -> None:
    """They are NaN, and no other row is."""
    inputs = drawn(random, (1, 2, 140, 16), (1, 2, 150, 16), (1, 2, 150, 16))
    mask = np.ones((1, 1, 140, 150), bool)
    mask[:, :, 7] = False
    compiled = compile_text(text_of(masked_by("select"), *inputs, mask), fast_relayout=False)
    assert any("attention" in name for name in compiled.program.kernels)
    (found,) = compiled.run([*inputs, mask])
    rows = np.isnan(found).all(-1)
    assert (np.isnan(found).any(-1) == rows).all()
    assert (np.flatnonzero(rows[0, 0]) == [7]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(value: float, random: np.random.Generator) -> None:
    """Of queries, keys and values, as in XLA."""
    for place in range(3):
        inputs = drawn(random, (140, 16), (150, 16), (150, 16))
        inputs[place][5, 3] = value
        compiled = compile_text(text_of(plain, *inputs), fast_relayout=False)
        (found,) = compiled.run(inputs)
        want = np.asarray(jax.jit(plain)(*inputs))
        assert (np.isnan(found) == np.isnan(want)).all()
        finite = np.isfinite(want)
        assert_close(found[finite], want[finite])


def test_matmult_casts(random: np.random.Generator) -> None:
    inputs = drawn(random, (2, 200, 64), (2, 300, 64), (2, 300, 64))
    check(plain, inputs, 2e-2, auto_cast="matmult")


def kept_weights(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(q @ k.T, axis=-1)
    return weights @ v, weights


def kept_scores(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T
    return jax.nn.softmax(scores, axis=-1) @ v, scores.sum()


def along_rows(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T, axis=0) @ v


def other_sums(q: Any, k: Any, v: Any) -> Any:
    weights = jnp.exp(q @ k.T - (q @ k.T).max(-1, keepdims=True))
    return (weights / weights.sum(0)) @ v


def kept_sums(q: Any, k: Any, v: Any) -> Any:
    weights = exponentials(q, k)
    return weights @ v / weights.sum(-1, keepdims=True), weights.sum(-1)


def kept_product(q: Any, k: Any, v: Any) -> Any:
    weights = exponentials(q, k)
    product = weights @ v
    return product / weights.sum(-1, keepdims=True), product


def of_columns(q: Any, k: Any, v: Any) -> Any:
    """As many features as rows, divided by sums that belong to rows."""
    weights = exponentials(q, k)
    return (weights @ jnp.tile(v, (1, 7))[:, :100]) / weights.sum(-1)


def other_way(q: Any, k: Any, v: Any) -> Any:
    weights = exponentials(q, k)
    return weights.sum(-1, keepdims=True) / (weights @ jnp.abs(v))


APART = [kept_weights, kept_scores, along_rows, other_sums, kept_sums, kept_product, of_columns, other_way]


@pytest.mark.parametrize("function", APART)
def test_what_stays_apart(function: Function, random: np.random.Generator) -> None:
    check(function, drawn(random, (100, 16), (100, 16), (100, 16)), fused=False)


@pytest.mark.parametrize("sizes", [(200, 64), (3000, 64), (700, 5000)], ids=str)
def test_little_room(sizes: tuple[int, int], random: np.random.Generator) -> None:
    """Many columns are taken by sections; where not even one of them fits, the kernels are apart."""
    columns, depth = sizes
    inputs = drawn(random, (260, depth), (columns, depth), (columns, 64))
    check(plain, [inputs[0] / math.sqrt(depth), *inputs[1:]], fused=depth < 1000, machine=SMALL)


class Cut:
    """Draws sizes, masks and sections for attentions by sections."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.rows, self.columns = (int(random.integers(1, limit)) for limit in (700, 2600))
        self.depth, self.width = (int(random.integers(1, 140)) for _ in range(2))
        self.heads, self.shared = ((1, 1), (2, 1), (3, 3))[random.integers(3)]
        self.mask = ("none", "causal", "added", "select", "late")[random.integers(5)]
        self.bunch, self.buffers = int(random.choice([1, 2, 4])), int(random.integers(1, 3))
        self.fill = float(random.choice([-np.inf, -1e9, float(np.finfo(np.float32).min)]))
        shapes = (
            (self.heads, self.rows, self.depth),
            *((self.shared, self.columns, n) for n in (self.depth, self.width)),
        )
        self.inputs = drawn(random, *shapes, (self.rows, self.columns))
        if self.mask in ("select", "late"):
            self.inputs[3] = self.inputs[3] > (-1 if self.mask == "select" else 1)
            self.inputs[3][:, -1] = True
        if self.mask == "late":
            self.inputs[3][:, : self.columns // 2] = self.columns < 2

    def __call__(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        k, v = (jnp.repeat(x, self.heads // self.shared, 0) for x in (k, v))
        scores = jnp.einsum("hqd,hkd->hqk", q, k) / np.sqrt(self.depth)
        if self.mask == "added":
            scores = scores + mask
        if self.mask == "causal":
            scores = jnp.where(jnp.tril(jnp.ones(mask.shape, bool)), scores, self.fill)
        if self.mask in ("select", "late"):
            scores = jnp.where(mask, scores, self.fill)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


@pytest.mark.parametrize("seed", range(24))
def test_sections(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values do not depend on how columns are cut, nor on what the sections before hold."""
    cut = Cut(seed)
    blocks = min(Schedule(cut.buffers, 1, 512, 1).span, -(-cut.rows // 128)) if cut.mask != "causal" else 1
    forced = Schedule(cut.buffers, cut.buffers, 512, cut.bunch, alternating=blocks)
    monkeypatch.setattr(choose, "choose", lambda *_: forced)
    monkeypatch.setattr(kernel, "choose", lambda *_: forced)
    inputs = cut.inputs if cut.mask in ("added", "select", "late") else [*cut.inputs[:3], np.zeros_like(cut.inputs[3])]
    check(cut, inputs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_by_sections(
    value: float, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of queries, keys and values in each section, as in XLA."""
    monkeypatch.setattr(kernel, "choose", lambda *_: Schedule(2, 2, 512, 4))
    for place in range(3):
        for row in (5, 900):
            inputs = drawn(random, (140, 16), (1100, 16), (1100, 16))
            inputs[place][row % len(inputs[place]), 3] = value
            compiled = compile_text(text_of(plain, *inputs), fast_relayout=False)
            (found,) = compiled.run(inputs)
            want = np.asarray(jax.jit(plain)(*inputs))
            assert (np.isnan(found) == np.isnan(want)).all()
            assert_close(found[np.isfinite(want)], want[np.isfinite(want)])


def test_rows_that_are_wholly_masked_by_sections(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a score in all sections are NaN; those without one in the first or the last are not."""
    monkeypatch.setattr(kernel, "choose", lambda *_: Schedule(2, 2, 512, 4))
    inputs = drawn(random, (1, 2, 140, 16), (1, 2, 1100, 16), (1, 2, 1100, 16))
    mask = np.ones((1, 1, 140, 1100), bool)
    mask[:, :, 7], mask[:, :, 8, :1050], mask[:, :, 9, 100:] = False, False, False
    compiled = compile_text(text_of(masked_by("select"), *inputs, mask), fast_relayout=False)
    (found,) = compiled.run([*inputs, mask])
    want = np.asarray(jax.jit(masked_by("select"))(*inputs, mask))
    assert (np.isnan(found) == np.isnan(want)).all()
    assert_close(found[np.isfinite(want)], want[np.isfinite(want)])


def test_room_that_is_gone_when_it_is_wanted(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays on chip may leave less than was thought: then the kernels are apart after all."""
    monkeypatch.setattr(choose, "LEFT", 100.0)
    inputs = drawn(random, (140, 5000), (600, 5000), (600, 32))
    check(plain, [inputs[0] / 70, *inputs[1:]], fused=False, machine=SMALL)


def test_gradient(random: np.random.Generator) -> None:
    """Training keeps what it needs."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jax.grad(lambda *x: (plain(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)

    inputs = drawn(random, (70, 16), (90, 16), (90, 16))
    compiled = compile_text(text_of(loss, *inputs))
    for found, want in zip(compiled.run(inputs), jax.jit(loss)(*inputs), strict=True):
        assert_close(found, np.asarray(want), 1e-4)


def test_nothing_of_the_scores_is_in_memory(random: np.random.Generator) -> None:
    inputs = drawn(random, (512, 64), (2048, 64), (2048, 64))
    compiled = compile_text(text_of(plain, *inputs))
    arrays = sum(array.nbytes for array in inputs) + inputs[0].nbytes
    assert compiled.program.hbm_bytes < arrays + 512 * 2048
