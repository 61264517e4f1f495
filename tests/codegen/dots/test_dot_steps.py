"""Simulated time of contractions grows with their work: no neighbour takes much more for each unit of it."""

from itertools import pairwise

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate

MOST = 1.5


def time(form: str, m: int, k: int, n: int, dtype: type) -> float:
    sizes = {"m": m, "k": k, "n": n}
    inputs = [np.broadcast_to(dtype(0), [sizes[letter] for letter in side]) for side in form.split(",")]
    compiled = compile_text(text_of(lambda x, y: jnp.einsum(f"{form}->mn", x, y), *inputs))
    return simulate(compiled.program, TRN1).total / (m * k * n)


@pytest.mark.parametrize("form", ["mk,kn", "km,kn"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_along_the_contracted_dim(form: str, dtype: type) -> None:
    times = [time(form, 1024, k, 1024, dtype) for k in (4096, 6144, 8192, 12_288, 16_384)]
    assert max(after / before for before, after in pairwise(times)) < MOST


@pytest.mark.parametrize("shape", [(11_008, 3072, 256), (8192, 2048, 128), (1024, 1024, 1024)])
def test_order_of_the_stationary_operand(shape: tuple[int, int, int]) -> None:
    """Rows that stream past come in wide blocks, whichever dim of the operand is contiguous."""
    rows, columns = (time(form, *shape, ml_dtypes.bfloat16) for form in ("mk,kn", "km,kn"))
    assert max(rows, columns) < MOST * min(rows, columns)


@pytest.mark.parametrize("form", ["mk,kn", "km,kn", "mk,nk", "km,nk"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("m", "n"), [(128, 1536), (129, 640), (16, 1024)])
def test_terms_beside_whole_chunks(form: str, dtype: type, m: int, n: int) -> None:
    """Terms beyond whole chunks of 128 come with the others: loaded by themselves, they were runs of a few bytes."""
    for whole in (128, 256, 2048):
        below, exact, above, next_one = (
            time(form, m, k, n, dtype) * k for k in (whole - 1, whole, whole + 1, whole + 128)
        )
        assert below < 1.4 * exact
        assert above < 1.4 * max(exact, next_one)
