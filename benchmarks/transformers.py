"""Forward passes of transformers beside their roofline: layers of many models at many sizes.

    python benchmarks/transformers.py [--kernels] [--constants] [--auto-cast none matmult] [NAME ...]

Two layers of each model, on activations [batch, rows, width] in FP32, with weights as parameters, or as constants. The
roofline is the greater of the operations of the products at TensorE's peak and the bytes of parameters and results at
HBM's bandwidth. ``--kernels`` also prints each kernel's time on the critical path. Only plans are made and timed,
without preamble and postamble.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
from layers import layer_norm, linear
from mamba import rms_norm
from programs import Work, flops, nbytes, roofline

import neuronx_cc

LAYERS = 2


@dataclass(frozen=True)
class Kind:
    """A family of layers, at one size."""

    batch: int
    rows: int
    width: int
    heads: int
    hidden: int
    norm: str = "after"
    """``after``, ``before`` (layer norms around each half) or ``rms`` (before it)."""
    activation: str = "gelu"
    """``gelu``, ``relu`` or ``swiglu``."""
    mask: str = "padding"
    """``padding``, ``causal``, ``none`` or ``bias`` (of each head, rows and columns)."""
    joined: bool = False
    """One product for queries, keys and values."""
    groups: int = 0
    """Heads of keys and values, if fewer."""
    biased: bool = True
    rotary: bool = False


BERT = Kind(8, 128, 768, 12, 3072)
LARGE = Kind(8, 128, 1024, 16, 4096)
GPT2 = Kind(1, 512, 1024, 16, 4096, "before", "gelu", "causal", True)
VIT = Kind(8, 197, 768, 12, 3072, "before", "gelu", "none", True)
T5 = Kind(8, 128, 768, 12, 3072, "rms", "relu", "bias", biased=False)
LLAMA = Kind(1, 512, 2048, 32, 5632, "rms", "swiglu", "causal", False, 4, False, True)
KINDS = {
    "bert b2": replace(BERT, batch=2),
    "bert b8": BERT,
    "bert b16": replace(BERT, batch=16),
    "bert b32": replace(BERT, batch=32),
    "bert b4 s512": replace(BERT, batch=4, rows=512),
    "bert b8 s256": replace(BERT, rows=256),
    "bert-large b1": replace(LARGE, batch=1),
    "bert-large b8": LARGE,
    "bert-large b4 s384": replace(LARGE, batch=4, rows=384),
    "gpt2-medium s512": GPT2,
    "gpt2-medium s1024": replace(GPT2, rows=1024),
    "gpt2-small b4 s128": Kind(4, 128, 768, 12, 3072, "before", "gelu", "causal", True),
    "vit-b16 b8": VIT,
    "vit-b16 b1": replace(VIT, batch=1),
    "t5-base b8": T5,
    "t5-base b2 s512": replace(T5, batch=2, rows=512),
    "llama s512": LLAMA,
    "llama s128": replace(LLAMA, rows=128),
}


def shapes(kind: Kind) -> dict[str, Any]:
    """Weights of one layer, as nested dims."""
    width, size = kind.width, kind.width // kind.heads
    inner = size * (kind.groups or kind.heads)

    def dense(fan_in: int, fan_out: int) -> dict[str, Any]:
        return {"kernel": (fan_in, fan_out)} | ({"bias": (fan_out,)} if kind.biased else {})

    projections = {"query": width, "key": inner, "value": inner}
    attention = {"qkv": dense(width, sum(projections.values()))} if kind.joined else {}
    attention |= {name: dense(width, out) for name, out in projections.items() if not kind.joined}
    hidden = {"up": dense(width, kind.hidden), "down": dense(kind.hidden, width), "out": dense(width, width)}
    hidden |= {"gate": dense(width, kind.hidden)} if kind.activation == "swiglu" else {}
    norms = {name: {"gain": (width,), "bias": (width,)} for name in ("ln1", "ln2")}
    return attention | hidden | norms


def product(x: Any, weights: dict[str, Any]) -> Any:
    return linear(x, weights) if "bias" in weights else x @ weights["kernel"]


def rotated(x: Any) -> Any:
    """x [batch, heads, rows, features], turned by its rows' angles."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[2])[:, None] * np.exp(-np.log(1e4) / half * np.arange(half))
    sine, cosine = (jnp.asarray(each, jnp.float32) for each in (np.sin(angles), np.cos(angles)))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def attention(x: Any, bias: Any, weights: Any, kind: Kind) -> Any:
    batch, rows, width = x.shape
    size = width // kind.heads
    if kind.joined:
        parts = jnp.split(product(x, weights["qkv"]), 3, -1)
    else:
        parts = [product(x, weights[name]) for name in ("query", "key", "value")]
    query, key, value = (part.reshape(batch, rows, -1, size).transpose(0, 2, 1, 3) for part in parts)
    if kind.rotary:
        query, key = rotated(query), rotated(key)
    if kind.groups:
        key, value = (jnp.repeat(each, kind.heads // kind.groups, 1) for each in (key, value))
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(size)
    if kind.mask == "causal":
        scores = jnp.where(jnp.tril(jnp.ones((rows, rows), bool)), scores, -jnp.inf)
    elif kind.mask != "none":
        scores = scores + bias
    mixed = jax.nn.softmax(scores, -1) @ value
    return product(mixed.transpose(0, 2, 1, 3).reshape(batch, rows, width), weights["out"])


def feed_forward(x: Any, weights: Any, kind: Kind) -> Any:
    up = product(x, weights["up"])
    if kind.activation == "swiglu":
        up = jax.nn.silu(product(x, weights["gate"])) * up
    else:
        up = jax.nn.gelu(up, approximate=kind.mask == "causal") if kind.activation == "gelu" else jax.nn.relu(up)
    return product(up, weights["down"])


def forward(kind: Kind, weights: Any, x: Any, bias: Any) -> Any:
    def norm(x: Any, each: Any) -> Any:
        return rms_norm(x, each["gain"]) if kind.norm == "rms" else layer_norm(x, each, 1e-5)

    for layer in weights:
        if kind.norm == "after":
            x = norm(x + attention(x, bias, layer, kind), layer["ln1"])
            x = norm(x + feed_forward(x, layer, kind), layer["ln2"])
        else:
            x = x + attention(norm(x, layer["ln1"]), bias, layer, kind)
            x = x + feed_forward(norm(x, layer["ln2"]), layer, kind)
    return x


def measure(name: str, auto_cast: str, constants: bool, kernels: bool) -> float:
    """Prints a line; gives the time as a multiple of the roofline."""
    kind = KINDS[name]
    dims = {"bias": (1, kind.heads, kind.rows, kind.rows)}.get(kind.mask, (kind.batch, 1, 1, kind.rows))
    floats = jnp.float32
    inputs = [jax.ShapeDtypeStruct(each, floats) for each in ((kind.batch, kind.rows, kind.width), dims)]
    layers = [shapes(kind)] * LAYERS
    weights = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each, floats), layers, is_leaf=lambda e: type(e) is tuple)
    jaxpr = jax.make_jaxpr(lambda *given: forward(kind, *given))(weights, *inputs).jaxpr
    bound = roofline(Work(flops(jaxpr), sum(map(nbytes, (*jaxpr.invars, *jaxpr.outvars)))), auto_cast)
    if constants:
        random = np.random.default_rng(0)
        known = jax.tree.map(lambda each: 0.02 * random.standard_normal(each.shape, np.float32), weights)
        lowered = jax.jit(lambda *given: forward(kind, known, *given)).lower(*inputs)
    else:
        lowered = jax.jit(lambda *given: forward(kind, *given)).lower(weights, *inputs)
    executable = neuronx_cc.compile(lowered, auto_cast=auto_cast)
    report = executable.run([], timing_only=True, check_races=False).report
    seconds = report.kernel_ns * 1e-9
    print(f"{name:<20}{auto_cast:<8}{seconds * 1e6:>9.0f}{bound * 1e6:>9.0f}{seconds / bound:>7.2f}", flush=True)
    if kernels:
        print(report)
    return float(seconds / bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KINDS))
    parser.add_argument("--auto-cast", nargs="+", default=["matmult"], choices=("none", "matmult", "all"))
    parser.add_argument("--constants", action="store_true", help="weights are constants")
    parser.add_argument("--kernels", action="store_true", help="where the time goes")
    options = parser.parse_args()
    unknown = set(options.names) - set(KINDS)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; models: {', '.join(KINDS)}")
    print(f"{'model':<20}{'cast':<8}{'us':>9}{'bound':>9}{'ratio':>7}")
    for auto_cast in options.auto_cast:
        ratios = [measure(name, auto_cast, options.constants, options.kernels) for name in options.names or KINDS]
        mean = geometric_mean(ratios)
        print(f"{auto_cast}: geometric mean {mean:.2f}, worst {max(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
