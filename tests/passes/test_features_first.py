"""Images with features first: the transposes that are left, and the values, by jaxlib before and after."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import text_of
from jax import lax
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 9, 11, 5), np.float32)
K1 = RANDOM.standard_normal((3, 3, 5, 7), np.float32)
K2 = RANDOM.standard_normal((3, 3, 7, 7), np.float32)
GAIN = RANDOM.standard_normal(7, np.float32)
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(x: Any, kernel: Any, layout: tuple[str, str, str] = NHWC) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def chain(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    y = jax.nn.relu(conv(x, k1) * gain)
    mean = jnp.mean(y, axis=(0, 1, 2))
    y = (y - mean) * jnp.where(mean > 0, 1.0, gain)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 1, 1), "SAME")
    y = jnp.pad(y, ((0, 0), (1, 1), (0, 2), (0, 0)))[:, :, ::2]
    return conv(jnp.concatenate([y, jnp.flip(y, 2)], axis=1), k2)


def gradient(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    def loss(k1: Any, k2: Any) -> Any:
        y = conv(jax.nn.relu(conv(x, k1)), k2)
        return jnp.sum(jnp.square(y - jnp.mean(y, axis=(0, 1, 2))) * gain)

    return jax.grad(loss, (0, 1))(k1, k2)


def features_last_of_features_first(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    y = conv(x.transpose(0, 3, 1, 2), k1, ("NCHW", "HWIO", "NCHW")).transpose(0, 2, 3, 1)
    return conv(jax.nn.relu(y) * lax.iota(jnp.float32, 7), k2)


def meets_an_operand_in_the_old_order(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    y = conv(x, k1)
    return conv(y + jnp.concatenate([x, x[..., :2]], axis=-1), k2) + y


def leaves_the_batch_out(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    return jnp.einsum("hwc,cd->hwd", jnp.tanh(conv(x[:1], k1)[0] * gain), k2[0, 0])


def pooled(x: Any, k1: Any, k2: Any, gain: Any, layout: tuple[str, str, str] = NHWC) -> Any:
    """The gradient of pooling where many elements of a window are equal: the first one has it."""

    def pool(y: Any) -> Any:
        window = (1, 3, 2, 1) if layout is NHWC else (3, 1, 1, 2)
        return lax.reduce_window(y, -jnp.inf, lax.max, window, (1, 1, 1, 1), "VALID")

    most, pull = jax.vjp(pool, jnp.round(conv(x, k1, layout)))
    return conv(pull(jnp.cos(most))[0], k2, layout)


def pooled_in_another_order(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    """Windows whose positions change their order where features come first."""
    return pooled(x.transpose(2, 0, 3, 1), k1, k2, gain, ("WNCH", "HWIO", "WNCH"))


def grouped(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    """Features are split, and positions merged, for norms of groups, and put together again."""
    y = jnp.pad(conv(x, k1), ((0, 0), (0, 0), (0, 0), (0, 1))) + 1
    groups = y.reshape(2, 99, 2, 4)
    groups = groups / jnp.sqrt(jnp.square(groups).mean((1, 3), keepdims=True))
    return conv(groups.reshape(y.shape)[..., :7], k2)


def grouped_gradient(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    return jax.grad(lambda k1, k2: jnp.sum(jnp.sin(grouped(x, k1, k2, gain))), (0, 1))(k1, k2)


def flattened(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    """Positions and features merge, which are no neighbours where features come first."""
    return jnp.tanh(conv(x, k1)).reshape(2, -1)


def tokens(x: Any, k1: Any, k2: Any, gain: Any) -> Any:
    """Positions merge for a contraction, which reads any order."""
    return jnp.einsum("btc,cd->btd", jnp.tanh(conv(x, k1)).reshape(2, 99, 7), k2[0, 0])


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (grouped, 1),
        (grouped_gradient, 1),
        (flattened, 2),
        (tokens, 2),
        (pooled, 1),
        (pooled_in_another_order, 3),
        (leaves_the_batch_out, 1),
        (chain, 1),
        (gradient, 1),
        (features_last_of_features_first, 1),
        (meets_an_operand_in_the_old_order, 3),
    ],
)
def test_values_stay_and_transposes_go(function: Callable[..., Any], left: int) -> None:
    """``left``: transposes of images that remain; those of the program's own images and results are among them."""
    inputs = [X, K1, K2, GAIN]
    module = parse_text(text_of(function, *inputs))
    wanted = run_text(print_module(module), inputs)
    names = [name for _, stage in DEFAULT_PIPELINE for name in stage]
    names = names[: names.index("features_first") + 1]
    context = PassContext(PassOptions(auto_cast="none"))
    run_passes(module, [*names, "canonicalize", "cse", "dce"], context, verify_each=True)
    transposes = [op for op in ops_of(module.entry.block) if isinstance(op, hlo.TransposeOp) and op.shape.rank == 4]
    assert len(transposes) == left
    for result, want in zip(run_text(print_module(module), inputs), wanted, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
