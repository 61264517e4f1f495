"""Microseconds per HLO instruction of import and print, beside XLA's own parser on the same text.

    python benchmarks/import_speed.py [LAYERS]

The module is the forward and backward pass of a plain transformer stack in JAX; LAYERS (default 12) sets its size.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib import _hlo
from stopwatch import best

from neuronx_cc.hlo_import import load_module
from neuronx_cc.hlo_import.parser import TextParser, parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.verify import verify_module


def transformer(layers: int) -> Any:
    """HLO of a loss and its gradient, every layer unrolled."""
    width, heads = 64, 4

    def norm(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

    def layer(x: Any, weights: Any) -> Any:
        q, k, v = jnp.split(norm(x) @ weights["qkv"], 3, -1)
        q, k, v = (part.reshape(-1, heads, width // heads) for part in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / 4.0)
        x = x + jnp.einsum("hqk,khd->qhd", scores, v).reshape(x.shape) @ weights["out"]
        return x + jax.nn.gelu(norm(x) @ weights["up"], approximate=False) @ weights["down"]

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = layer(x, one)
        return (norm(x) ** 3).sum()

    sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    weights = [{name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}] * layers
    example = jax.ShapeDtypeStruct((32, width), jnp.float32)
    return jax.jit(jax.value_and_grad(loss)).lower(weights, example).compiler_ir("hlo")


def constant_module(elements: int) -> Any:
    """HLO that closes over one f32 array."""
    values = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    return jax.jit(lambda x: x + values).lower(jax.ShapeDtypeStruct((elements,), jnp.float32)).compiler_ir("hlo")


def main() -> None:
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    module = transformer(layers)
    text, proto = module.as_hlo_text(), module.as_serialized_hlo_module_proto()
    full = _hlo.HloModule.from_serialized_hlo_module_proto(proto).to_string()
    count = sum(1 for line in text.splitlines() if " = " in line)
    imported = parse_text(text)
    rows = [
        ("XLA: parse text", best(lambda: _hlo.hlo_module_from_text(text))),
        ("parse text to records", best(lambda: TextParser(text).module())),
        ("text to verified module", best(lambda: load_module(text.encode()))),
        ("text with metadata to verified module", best(lambda: load_module(full.encode()))),
        ("proto to verified module", best(lambda: load_module(proto))),
        ("verify module", best(lambda: verify_module(imported))),
        ("print module", best(lambda: print_module(imported))),
    ]
    print(f"{layers} layers, {count} instructions, {len(text) / 1e6:.2f} MB of text")
    for what, seconds in rows:
        print(f"  {what:40s} {1e6 * seconds / count:7.1f} us an instruction  {seconds:6.3f} s")

    data = constant_module(110_000_000).as_serialized_hlo_module_proto()
    print(f"  proto with a constant of {len(data) / 1e6:.0f} MB: {best(lambda: load_module(data), 1):.2f} s")
    million = constant_module(1_000_000).as_hlo_text(print_large_constants=True)
    print(f"  text with a constant of 1 M floats: {best(lambda: load_module(million.encode())):.2f} s", end="")
    print(f" (XLA {best(lambda: _hlo.hlo_module_from_text(million)):.2f} s)")


if __name__ == "__main__":
    main()
