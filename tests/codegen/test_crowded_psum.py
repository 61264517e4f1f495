"""Kernels find their banks of PSUM wherever the kernels before them left its cursor, and do with few of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function
from jax import lax

from neuronx_cc.codegen.emission.builder import Builder
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).parents[1] / "machines"
BANKS = range(Timing(TRN1).sizes.banks)


def attention(q: Any, k: Any) -> Any:
    return jax.nn.softmax(q @ k.T) @ k


def convolution(x: Any, w: Any) -> Any:
    return lax.conv(x, w, (1, 1), "SAME")


def convolution_gradient(x: Any, w: Any) -> Any:
    return jax.grad(lambda *args: (convolution(*args) ** 2).sum(), (0, 1))(x, w)


def depthwise(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=w.shape[0])


def groups(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), [(1, 0), (3, 4)], feature_group_count=w.shape[0])


def recurrence(x: Any, w: Any) -> Any:
    return lax.scan(lambda state, row: (jnp.tanh(state @ w * 0.1 + row),) * 2, x[0], x)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "attention": (attention, [(300, 64), (700, 64)]),
    "convolution": (convolution, [(2, 20, 9, 9), (33, 20, 3, 3)]),
    "gradients": (convolution_gradient, [(2, 20, 9, 9), (33, 20, 3, 3)]),
    "depthwise": (depthwise, [(2, 12, 11, 11), (12, 1, 3, 3)]),
    "dot": (lambda x, w: x.T @ w.T, [(130, 260), (60, 130)]),
    "groups": (groups, [(3, 16, 8, 56), (16, 1, 3, 7)]),
    "means": (lambda x, y: (x.mean((0, 2)), x.sum(0) * y), [(9, 140, 33), (140, 33)]),
    "recurrence": (recurrence, [(5, 40), (40, 40)]),
    "scan": (lambda x, y: jnp.cumsum(x) @ y, [(3000,), (3000,)]),
    "transpose": (lambda x, y: x.T * y, [(200, 140), (140, 1)]),
}


@pytest.mark.parametrize("bank", BANKS)
@pytest.mark.parametrize("name", CASES)
def test_any_bank_may_be_next(name: str, bank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Builder.__post_init__

    def moved(builder: Builder) -> None:
        built(builder)
        if bank:
            used = builder.psum.allocate(bank * builder.sizes.bank_bytes)
            assert used is not None
            builder.psum.free(used)

    monkeypatch.setattr(Builder, "__post_init__", moved)
    function, shapes = CASES[name]
    random = np.random.default_rng(bank)
    check_function(function, *(random.standard_normal(shape).astype(np.float32) for shape in shapes))


@pytest.mark.parametrize("banks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_few_banks_and_little_memory(name: str, banks: int) -> None:
    nbytes = banks * TRN1.sizes().bank_bytes
    machine = find_machine(MACHINES / "eighth.toml").with_settings([f"memory.psum_partition_bytes={nbytes}"])
    function, shapes = CASES[name]
    random = np.random.default_rng(banks)
    check_function(function, *(random.standard_normal(shape).astype(np.float32) for shape in shapes), machine=machine)
