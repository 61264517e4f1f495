"""StableHLO as MLIR bytecode, as portable artifacts and as text. jaxlib's own parser reads them first."""

import os
from collections.abc import Callable
from io import BytesIO
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import modules


def _looping(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) * i, x)


def _mixed(x: Any) -> Any:
    rows = jnp.sort(x, 0)[jnp.argmax(x, 1) % 4]
    return jax.lax.cond(x[0, 0] > 0, lambda y: y @ y.T, lambda y: jnp.cumsum(y, 1)[:, :4], rows)


FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    jnp.tanh,
    _looping,
    _mixed,
    jax.grad(lambda x: jax.nn.softmax(x).sum() + jnp.linalg.norm(x)),
    lambda x: jax.lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"),
    lambda x: x.at[jnp.array([0, 2])].add(1.0).reshape(2, -1).astype(jnp.bfloat16),
    lambda x: jnp.fft.fft(x).real + jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "SAME"),
    lambda x: jax.random.uniform(jax.random.key(0), x.shape) + x,
)


def seeds() -> list[bytes]:
    found = []
    for function in FUNCTIONS:
        lowered = jax.jit(function).lower(jax.ShapeDtypeStruct((4, 8), jnp.float32))
        module = lowered.compiler_ir("stablehlo")
        output = BytesIO()
        module.operation.write_bytecode(output)
        found += [output.getvalue(), str(module).encode()]
        found.append(
            jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((4, 8), jnp.float32)).mlir_module_serialized
        )
    return found


def run(data: bytes) -> None:
    modules.compile_module(data)
