"""Short parts of rows that are padded: the array is split once, on chip."""

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from bit_patterns import bits, descriptors
from generated import check_function, compile_text, text_of
from jax import lax


@pytest.mark.parametrize("seed", range(16))
def test_parts(seed: int) -> None:
    """Bit for bit, whichever parts are padded, and by whatever; others read the array as well."""
    draw = random.Random(seed)
    dims = [draw.choice((1, 3, 30, 64, 129)) for _ in range(draw.randint(1, 3))]
    while np.prod(dims) < 500:
        dims[draw.randrange(len(dims))] *= 5
    width, count = draw.choice((1, 2, 11, 16)), draw.choice((2, 3, 7, 25))
    dtype = draw.choice(("float32", "bfloat16", "int8"))
    array = bits(np.random.default_rng(seed), dtype, *dims, count * width)
    taken = [draw.randrange(count) for _ in range(draw.randint(1, count + 2))]
    low = [[draw.choice((-1, 0, 2)) if size > 1 else 1 for size in dims] for _ in taken]

    def parts(module: Any, x: Any) -> Any:
        cut = [x[..., at * width : (at + 1) * width] for at in taken]
        if module is jnp:
            zero = jnp.zeros((), x.dtype)
            made = [
                lax.pad(part, zero, [*((before, 1, 0) for before in each), (0, 0, 0)])
                for part, each in zip(cut, low, strict=True)
            ]
        else:
            made = []
            for part, each in zip(cut, low, strict=True):
                kept = part[tuple(slice(max(0, -before), None) for before in each)]
                made.append(np.pad(kept, [*((max(0, before), 1) for before in each), (0, 0)]))
        return [*made, x]

    results = compile_text(text_of(lambda x: parts(jnp, x), array)).run([array])
    for result, wanted in zip(results, parts(np, array), strict=True):
        assert result.tobytes() == np.ascontiguousarray(wanted).tobytes()


def windows(y: Any) -> Any:
    """The gradient of windows side by side."""
    cut = [y[..., 11 * at : 11 * (at + 1)] for at in range(25)]
    return sum(jnp.pad(part, ((at // 5, 4 - at // 5), (at % 5, 4 - at % 5), (0, 0))) for at, part in enumerate(cut))


def test_windows_side_by_side() -> None:
    y = np.random.default_rng(0).standard_normal((40, 40, 275)).astype(np.float32)
    check_function(windows, y)
    check_function(lambda y, w: windows(jnp.tanh(y) @ w), y, np.eye(275, dtype=np.float32)[::-1])
    assert descriptors(compile_text(text_of(windows, y))) < 12_000  # of the parts alone 40,000
