"""Results that the program wants in another order, and rows of windows, which lie in several dims."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate

FORMS = ("jn,ajk->ank", "ij,ajk->aik", "ajbk,jn->anbk", "ajk,kn->nja", "bxyi,xyio->bxyo", "bij,bjk->kbi", "aij,jk->kia")
SIZES = (3, 8, 16, 33, 49, 130, 300)


def time(function: Any, *sizes: tuple[int, ...]) -> float:
    """Microseconds."""
    inputs = [np.broadcast_to(np.float32(0), size) for size in sizes]
    return simulate(compile_text(text_of(function, *inputs)).program, TRN1).total / 1e3


@pytest.mark.parametrize("seed", range(28))
def test_other_orders(seed: int) -> None:
    draw, form = np.random.default_rng(seed), FORMS[seed % len(FORMS)]
    sizes = {letter: int(draw.choice(SIZES[: 5 if "y" in form else 7])) for letter in form if letter.isalpha()}
    inputs = [
        draw.standard_normal([sizes[letter] for letter in part]).astype(np.float32)
        for part in form.split("->")[0].split(",")
    ]
    dtype = [jnp.float32, jnp.bfloat16, jnp.float16][seed % 3]
    inputs = [np.asarray(each.astype(dtype)) for each in inputs]

    def function(x: Any, y: Any) -> Any:
        found = jnp.einsum(form, x, y)
        # other readers, or the same result twice
        return [found, (found, x * 2), (found, found.reshape(-1))][seed // len(FORMS) % 3]

    expected = function(*inputs)
    machine = TRN1.with_settings(["memory.sbuf_partition_bytes=57344"]) if seed % 4 == 0 else TRN1
    found = compile_text(text_of(function, *inputs), machine).run(inputs)
    for one, other in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert_close(one.astype(np.float32), np.asarray(other, np.float32), 1e-5 if dtype == jnp.float32 else 2e-2)


@pytest.mark.parametrize("terms", [8, 49])
def test_tiles_go_where_they_belong(terms: int) -> None:
    """In hardly more time than where no order is asked for."""
    turned = time(lambda x, y: jnp.einsum("jn,ajk->ank", x, y), (terms, 576), (8, terms, 512))
    assert turned < 1.2 * time(lambda x, y: x.T @ y, (terms, 576), (terms, 4096))


@pytest.mark.parametrize("order", ["ij,ajbk,lk->aibl", "lk,ajbk,ij->aibl"])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_transforms_of_blocks(order: str, size: int) -> None:
    """Of an image, along both dims of each block: in a small multiple of a copy, however the products are ordered."""
    image = (1024 // size, size, 256 // size, size)

    def transform(x: Any, matrix: Any) -> Any:
        return jnp.einsum(order, matrix, x, matrix)

    assert time(transform, image, (size, size)) < 14 * time(lambda x: x[::-1] * 2, image)


@pytest.mark.parametrize("features", [96, 192, 384])
def test_windows_are_as_quick_as_rows(features: int) -> None:
    def windows(x: Any, w: Any) -> Any:
        x = x.reshape(4, 7, 4, 7, features).transpose(0, 2, 1, 3, 4).reshape(16, 49, features)
        return x @ w

    weights = (features, 3 * features)
    copied = time(lambda x: x[::-1] * 2, (784, features))
    rows = time(lambda x, w: x @ w, (784, features), weights)
    assert time(windows, (28, 28, features), weights) < rows + copied
