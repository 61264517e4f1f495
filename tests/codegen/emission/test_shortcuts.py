"""What synchronisation and emission need not look at changes no instruction and no wait."""

from collections.abc import Sequence
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of

from neuronx_cc.codegen.emission import history, sync
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder


def attention(q, k, v):
    return jax.nn.softmax(q @ k.swapaxes(1, 2), -1) @ v


def layers(x, w, u):
    """Products of many chunks, of rows that are transposed, and what is made of them."""
    for _ in range(3):
        x = x + jax.nn.gelu(x @ w) @ u
    return x, x.sum(0)


def loops(x, w):
    """Iterations that overlap, of different trip counts."""
    x = jax.lax.fori_loop(0, 6, lambda i, x: jnp.tanh(x @ w) + i, x)
    return jax.lax.scan(lambda c, row: (c + row, c * row), x[0], jnp.concatenate([x, x]))


def images(x, w):
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
    return jax.lax.reduce_window(y, -np.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")


def pieces(x):
    """Many pieces of memory: rows put together out of order."""
    return jnp.concatenate([x[(7 * at) % 150 : (7 * at) % 150 + 1] * at for at in range(150)])


def branches(x, flag):
    return jax.lax.cond(flag > 0, lambda x: x @ x, lambda x: jnp.exp(x) + x.T, x)


PROGRAMS = {
    attention: [(4, 300, 64)] * 3,
    layers: [(260, 300), (300, 1030), (1030, 300)],
    loops: [(130, 130), (130, 130)],
    images: [(2, 40, 30, 30), (150, 40, 3, 3)],
    pieces: [(160, 70)],
    branches: [(200, 200), ()],
}


def one_by_one(self: Builder, several: Sequence[tuple[Block, ...]], flags: Sequence[str] = (), adds=None) -> None:
    """``Builder.multiply_each``, product by product."""
    for at in range(several[0][0].dims[1].size):
        more = [] if adds is None or at < adds else ["accumulate"]
        for sums, left, right in several:
            self.multiply(*(block.index(1, Affine(at)) for block in (sums, left, right)), [*more, *flags])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_same_records_without_shortcuts(program, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(program, *(np.ones(dims, np.float32) for dims in PROGRAMS[program]))
    quick, numbers = compile_text(text, auto_cast="matmult").program, count()
    monkeypatch.setattr(Builder, "multiply_each", one_by_one)
    monkeypatch.setattr(history, "FEWEST", 1 << 30)
    monkeypatch.setattr(sync.Synchroniser, "epoch", property(lambda self: next(numbers), lambda self, _: None), False)
    for few in (2, 1 << 30):
        monkeypatch.setattr(history, "FEW", few)
        slow = compile_text(text, auto_cast="matmult").program
        assert slow.records == quick.records
        assert [getattr(each, "origins", ()) for each in slow.records] == [
            getattr(each, "origins", ()) for each in quick.records
        ]
        assert slow.owners == quick.owners
