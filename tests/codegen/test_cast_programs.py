"""``--auto-cast all``: what it makes of FP32 programs takes no longer than the same programs written in 16 bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of
from jax import lax

from neuronx_cc.runtime.clock_regions import simulate

LONGER = 1.3
"""Times as long: what is given is twice the bytes."""
SMALL = np.float32(0.06)
"""What is given, so that no recurrence is chaotic."""


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) / 8 + mask, -1) @ v


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return jnp.tanh(jax.nn.gelu(x @ w + b) * 0.5 + r)


def image(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y * b + 0.5) + r


def recurrence(h: Any, w: Any, xs: Any) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, h, xs)[1]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "attention": (attention, [(2, 4, 256, 64)] * 3 + [(2, 1, 1, 256)]),
    "attention of other rows": (attention, [(1, 3, 384, 32), (1, 3, 640, 32), (1, 3, 640, 32), (1, 1, 384, 640)]),
    "layer": (layer, [(512, 256), (256, 640), (640,), (512, 640)]),
    "few rows": (layer, [(20, 300), (300, 130), (130,), (20, 130)]),
    "image": (image, [(2, 14, 14, 64), (3, 3, 64, 96), (96,), (2, 14, 14, 96)]),
    "recurrence": (recurrence, [(20, 256), (256, 256), (12, 20, 256)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_times(name: str, random: np.random.Generator) -> None:
    function, dims = PROGRAMS[name]
    wide = [SMALL * random.standard_normal(each, np.float32) for each in dims]
    narrow = [array.astype(jnp.bfloat16) for array in wide]
    cast = compile_text(text_of(function, *wide), TRN1, auto_cast="all")
    written = compile_text(text_of(function, *narrow), TRN1)
    times = [simulate(each.program, TRN1).total for each in (cast, written)]
    assert times[0] <= LONGER * times[1], times
    (result,) = cast.run(wide)
    want = np.asarray(function(*(jnp.asarray(array) for array in wide)), np.float64)
    assert np.abs(result - want).max() <= 0.05 * np.abs(want).max()
