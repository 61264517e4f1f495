"""Operands of short rows that are neighbours in memory: several come to one partition, for long runs."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_text, compile_text

from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.clock_regions import simulate

Array = np.ndarray[Any, Any]
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "s8": np.int8}
MOST_LONGER = 2.5
"""Tiles of fewer partitions are transposed in as much time."""
QUARTER = find_machine(Path(__file__).parents[2] / "machines" / "quarter.toml")


def product(form: str, batch: int, m: int, k: int, n: int, dtype: str) -> tuple[str, list[Array]]:
    """HLO text of a batched product and whole-number inputs; ``form``: the order of both operands' dims after b."""
    sizes = {"m": m, "k": k, "n": n}
    left, right = form.split()
    shapes = [(batch, *(sizes[dim] for dim in dims)) for dims in (left, right)]
    x, w = (",".join(map(str, shape)) for shape in shapes)
    wide = "s32" if dtype == "s8" else "f32"
    numbers = f"lhs_contracting_dims={{{1 + left.index('k')}}}, rhs_contracting_dims={{{1 + right.index('k')}}}"
    text = f"""
ENTRY main {{
  x = {dtype}[{x}] parameter(0)
  w = {dtype}[{w}] parameter(1)
  ROOT d = {wide}[{batch},{m},{n}] dot(x, w), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, {numbers}
}}
"""
    random = np.random.default_rng(m * k + n)
    return text, [random.integers(-3, 4, shape).astype(DTYPES[dtype]) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["mk nk", "mk kn", "km kn", "km nk"])
@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [(1, 1, 64, 1024), (3, 4, 64, 1023), (2, 129, 1, 513), (2, 5, 1024, 64), (1, 3, 1000, 7), (1, 300, 96, 700)],
)
def test_rows_side_by_side(form: str, batch: int, m: int, k: int, n: int, dtype: str) -> None:
    text, inputs = product(form, batch, m, k, n, dtype)
    check_text(text, *inputs, relative=0.0)


@pytest.mark.parametrize("form", ["mk nk", "mk kn", "km nk"])
@pytest.mark.parametrize(("m", "k", "n"), [(4, 64, 1000), (260, 33, 1024), (2, 2048, 40)])
def test_on_a_quarter_of_the_memory(form: str, m: int, k: int, n: int) -> None:
    text, inputs = product(form, 2, m, k, n, "f32")
    check_text(text, *inputs, relative=0.0, machine=QUARTER)


@pytest.mark.parametrize(
    ("form", "shapes"),
    [("mk kn", [(2048, 32), (1024, 64), (960, 68), (512, 128)]), ("mk nk", [(128, 512), (100, 656), (64, 1024)])],
)
def test_short_rows_take_little_longer_than_long_ones(form: str, shapes: list[tuple[int, int]]) -> None:
    """Equal bytes; rows by themselves would move at a fifth of the rate or less."""
    times = []
    for k, n in shapes:
        text, _ = product(form, 8, 1, k, n, "bf16")
        times.append(simulate(compile_text(text).program, TRN1).total)
    assert max(times) <= MOST_LONGER * min(times), times
