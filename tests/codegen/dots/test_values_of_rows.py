"""Values of rows in what follows a contraction, where rows lie side by side on a partition for long runs in HBM."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

from neuronx_cc.ir.isa.program import Instr, Space

FORMS: dict[str, Callable[..., Any]] = {
    "distances": lambda x, w, b, c, r: b[:, None] + c - 2 * (x @ w),
    "kernel": lambda x, w, b, c, r: jnp.exp(x @ w - jnp.square(x).mean(1, keepdims=True)),
    "scaled": lambda x, w, b, c, r: jax.nn.relu((x @ w) * b[:, None]),
    "all": lambda x, w, b, c, r: jnp.tanh((x @ w) * b[:, None] + c) + r,
    "two": lambda x, w, b, c, r: ((x @ w) - b[:, None]) * jnp.sin(b)[:, None],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("terms", "columns"), [(64, 128), (16, 8), (48, 300), (3, 64), (64, 513)])
@pytest.mark.parametrize("rows", [127, 513, 1024, 2048])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forms(form: str, rows: int, terms: int, columns: int, dtype: str, random: np.random.Generator) -> None:
    kind = jnp.dtype(dtype)
    x, w, r = (random.standard_normal(dims).astype(kind) for dims in ((rows, terms), (terms, columns), (rows, columns)))
    b, c = (random.standard_normal(size).astype(kind) for size in (rows, columns))
    check_function(FORMS[form], x, w / terms, b, c, r, relative=1e-5 if dtype == "float32" else 3e-2)


def test_rows_are_loaded_in_runs(random: np.random.Generator) -> None:
    x, w = random.standard_normal((8192, 64)).astype(np.float32), random.standard_normal((64, 128)).astype(np.float32)
    b = random.standard_normal(8192).astype(np.float32)
    compiled = check_function(lambda x, w, b: x @ w - b[:, None], x, w, b, relative=1e-4)
    moved = [each for each in compiled.program.records if isinstance(each, Instr) and each.op == "dma_copy"]
    loads = [ref for each in moved for ref in each.ins if ref.space is Space.HBM and prod(ref.counts) <= 4 * 128 * 16]
    assert any(ref.dims[-1][1] == 4 and ref.dims[-1][0] > 1 for ref in loads if ref.dims[-1][0] <= 16)
