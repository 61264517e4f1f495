"""Contractions with several free dims: blocks are cut along one whose elements are neighbours, where that is faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc

SIZES = {"s": 64, "w": 128, "k": 128, "f": 64, "g": 4}
MOST = 9
"""Times as long as with the same dims the other way round: runs are of a few elements, not of one (20 and more)."""


@pytest.mark.parametrize("form", ["gsk,egck->gsec", "ewgc,gwf->gecf"])
@pytest.mark.parametrize("sizes", [(48, 8), (37, 5), (96, 4)])
def test_the_longer_dim_is_not_always_cut(form, sizes):
    """``e`` and ``c`` are free dims of one operand; ``c`` is the last in memory, of the result or of the operand."""
    first, second = form.split("->")[0].split(",")
    random = np.random.default_rng(0)
    times = []
    for e, c in (sizes, sizes[::-1]):
        of = {**SIZES, "e": e, "c": c}
        x, y = (random.standard_normal([of[dim] for dim in dims]).astype(np.float32) for dims in (first, second))
        program = neuronx_cc.compile(jax.jit(lambda x, y: jnp.einsum(form, x, y)), x, y, auto_cast="none")
        result = program.run([x, y])
        np.testing.assert_allclose(result.outputs[0], np.einsum(form, x, y), rtol=1e-4, atol=1e-4)
        times.append(result.report.time_ns)
    assert times[0] < MOST * times[1]
