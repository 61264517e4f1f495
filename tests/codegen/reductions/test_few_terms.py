"""Sums over few elements of a middle dim, of what is given and of what elementwise ops make."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, compile_text, text_of

from neuronx_cc.runtime.executable import Executable


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dims", [(1024, 2, 128), (333, 3, 4, 77), (2, 4, 33000), (1, 2, 140000), (515, 4, 129)])
def test_sums(dims: tuple[int, ...], dtype: type) -> None:
    draw = np.random.default_rng(0)
    x, s = draw.standard_normal(dims).astype(dtype), draw.standard_normal(dims[:2]).astype(dtype)

    def function(x, s):
        weighted = x * s.reshape(*s.shape, *[1] * (x.ndim - 2))
        return x.sum(1), weighted.sum(1), jnp.tanh(weighted - x.max()).sum(1), (weighted, (weighted + 1).sum(1))

    check_function(function, x, s, relative=2e-5)


def test_zeros_of_negative_terms_are_positive() -> None:
    x = -np.zeros((2048, 2, 128), np.float32)
    (result,) = compile_text(text_of(lambda x: x.sum(1), x)).run([x])
    assert not np.signbit(result).any()


def test_tokens_add_up_two_experts() -> None:
    """Microseconds; a sum of rows after the products took 158."""
    x, s = np.ones((2048, 2, 512), ml_dtypes.bfloat16), np.ones((2048, 2), ml_dtypes.bfloat16)
    compiled = compile_text(text_of(lambda x, s: (x * s[..., None]).sum(1), x, s))
    report = Executable(compiled.program, compiled.constants).run([x, s]).report
    assert report.kernel_ns < 100e3
