"""Blocks whose rows alternate, so that neighbours are stored in one run: any number of rows, layouts, heads, masks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.codegen.attention import choose
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.runtime.executable import Executable

ROWS = (129, 131, 197, 255, 256, 257, 384, 511, 513, 577, 641, 1031)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)


@pytest.mark.parametrize("seed", range(24))
def test_values(seed: int) -> None:
    draw = np.random.default_rng(seed)
    heads, groups, columns = int(draw.integers(1, 6)), int(draw.integers(1, 3)), int(draw.choice([20, 77, 128, 300]))
    rows, depth, width = int(draw.choice(ROWS)), int(draw.choice([8, 40, 64])), int(draw.choice([1, 33, 64]))
    layout, mask = str(draw.choice(["hgqd", "qhgd", "hqgd"])), str(draw.choice(["none", "columns", "each", "heads"]))
    sizes = {"h": heads, "g": groups, "q": rows, "d": depth}
    biases = {"columns": (columns,), "each": (rows, columns), "heads": (heads, 1, rows, columns)}

    def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = jnp.einsum(f"{layout},hkd->hgqk", q, k) * depth**-0.5
        scores = scores if mask == "none" else scores + bias
        return jnp.einsum(f"hgqk,hkd->{layout}", jax.nn.softmax(scores, -1), v)

    shapes = [sizes[each] for each in layout], (heads, columns, depth), (heads, columns, width), biases.get(mask, (1,))
    check_function(attention, *(draw.standard_normal(shape).astype(np.float32) for shape in shapes))


@pytest.mark.parametrize(
    ("heads", "rows", "columns", "depth"), [(8, 1024, 77, 40), (2, 2048, 256, 64), (1, 4099, 128, 64)]
)
def test_transfers_take_little_more_than_their_bytes(heads: int, rows: int, columns: int, depth: int) -> None:
    """Of heads whose rows are short runs in HBM."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), -1)
        return jnp.einsum("hqk,hkd->hqd", weights, v, preferred_element_type=jnp.float32)

    q, k = (jax.ShapeDtypeStruct((heads, each, depth), jnp.bfloat16) for each in (rows, columns))
    compiled = compile_text(text_of(attention, q, k, k))
    (line,) = compiled.program.schedules.values()
    assert "4 rows stored side by side" in line
    run = Executable(compiled.program, compiled.constants).run([], timing_only=True, check_races=False)
    busy = sum(kernel.busy_ns["dma"] for kernel in run.report.kernels)
    assert busy <= 4 * heads * (rows * 6 + columns * 4) * depth / Timing(TRN1).dma_rate
