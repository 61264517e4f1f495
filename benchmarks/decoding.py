"""A step of decoding beside the reading of weights and cache: layers of many decoders, drawn by seed.

    python benchmarks/decoding.py [--seed 1] [--count 30] [--kernels] [--save FILE] [--before FILE]

What is drawn: widths and numbers of heads, with as many heads of keys and values or fewer, rows a step, positions of
the cache, norms, activations, types, and how a program says it: in which order the cache's dims lie, whether heads of
keys are repeated or queries grouped, rotary embedding by halves or by pairs, one position for all rows or one for each,
layers unrolled or under ``lax.scan``. The cache is donated. The bound is the reading of all weights and of the whole
cache at the rate of all DMA engines, or the products, with ``LATENCY`` for each layer.
"""

import argparse
import json
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from programs import Work, flops, roofline

import neuronx_cc
from neuronx_cc.ir.targets import find_machine

LATENCY = 10e-6
"""Seconds of a layer: a load, an op and a store that wait for each other."""
CHANGED = 0.03


@dataclass(frozen=True)
class Kind:
    """Layers of a decoder, and how they are written."""

    layers: int
    width: int
    heads: int
    groups: int
    size: int
    hidden: int
    batch: int
    cache: int
    dtype: str
    norm: str
    """``rms`` or ``layer``."""
    activation: str
    """``swiglu``, ``gelu`` or ``relu``."""
    rotary: str
    """``halves``, ``pairs`` or ``none``."""
    order: str
    """Dims of the cache: ``bgpf`` or ``bpgf``."""
    repeated: bool
    each: bool
    """A position for each row."""
    scanned: bool


def drawn(seed: int) -> Kind:
    draw = random.Random(f"decoding {seed}")
    size = draw.choice((64, 64, 80, 96, 128, 128))
    heads = draw.choice((6, 8, 12, 14, 16, 20, 24, 32))
    groups = draw.choice(
        [each for each in (1, 2, 4, heads // 4, heads // 2, heads, heads) if each and heads % each == 0]
    )
    width = heads * size if draw.random() < 0.8 else max(256, heads * size // 3 * 2 // 64 * 64)
    activation = draw.choice(("swiglu", "swiglu", "gelu", "relu"))
    hidden = round(width * draw.choice((2.6875, 3.5, 4) if activation == "swiglu" else (4, 4, 3))) // 16 * 16
    return Kind(
        layers=2,
        width=width,
        heads=heads,
        groups=groups,
        size=size,
        hidden=hidden,
        batch=draw.choice((1, 1, 1, 2, 3, 4, 8, 16)),
        cache=draw.choice((64, 128, 200, 256, 512, 1000, 1024, 2048, 4096)),
        dtype=draw.choice(("bfloat16", "bfloat16", "float32")),
        norm=draw.choice(("rms", "rms", "layer")),
        activation=activation,
        rotary=draw.choice(("halves", "halves", "pairs", "none")),
        order=draw.choice(("bgpf", "bpgf")),
        repeated=draw.random() < 0.4,
        each=draw.random() < 0.3,
        scanned=draw.random() < 0.3,
    )


def shapes(kind: Kind) -> dict[str, tuple[int, ...]]:
    """Weights of one layer."""
    width, inner = kind.width, kind.groups * kind.size
    found: dict[str, tuple[int, ...]] = {
        "query": (width, kind.heads * kind.size),
        "key": (width, inner),
        "value": (width, inner),
        "output": (kind.heads * kind.size, width),
        "up": (width, kind.hidden),
        "down": (kind.hidden, width),
        "gain1": (width,),
        "gain2": (width,),
    }
    if kind.activation == "swiglu":
        found["gate"] = (width, kind.hidden)
    if kind.norm == "layer":
        found |= {"bias1": (width,), "bias2": (width,)}
    return found


def normed(x: Any, weights: Any, which: str, kind: Kind) -> Any:
    wide = x.astype(jnp.float32)
    if kind.norm == "layer":
        centred = wide - wide.mean(-1, keepdims=True)
        scaled = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return scaled.astype(x.dtype) * weights["gain" + which] + weights["bias" + which]
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * weights["gain" + which]


def rotated(x: Any, position: Any, kind: Kind) -> Any:
    """x [batch, heads, features] at ``position`` (a scalar, or [batch])."""
    if kind.rotary == "none":
        return x
    half = x.shape[-1] // 2
    rates = jnp.exp(-math.log(1e4) / half * jnp.arange(half))
    angles = position[..., None].astype(jnp.float32) * rates
    if kind.each:
        angles = angles[:, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    wide = x.astype(jnp.float32)
    if kind.rotary == "pairs":
        first, second = wide[..., ::2], wide[..., 1::2]
        turned = jnp.stack([first * cosine - second * sine, second * cosine + first * sine], -1).reshape(x.shape)
    else:
        first, second = wide[..., :half], wide[..., half:]
        turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)
    return turned.astype(x.dtype)


def stored(cache: Any, entry: Any, position: Any, kind: Kind) -> Any:
    """``cache`` with ``entry`` [batch, groups, features] at ``position``."""
    axis = kind.order.index("p")
    if not kind.each:
        return lax.dynamic_update_slice_in_dim(cache, jnp.expand_dims(entry, axis), position, axis)
    rows = jnp.arange(kind.batch)
    return cache.at[rows, position].set(entry) if axis == 1 else cache.at[rows, :, position].set(entry)


def attention(x: Any, weights: Any, cache: Any, position: Any, kind: Kind) -> tuple[Any, Any]:
    query = rotated((x @ weights["query"]).reshape(-1, kind.heads, kind.size), position, kind)
    key = rotated((x @ weights["key"]).reshape(-1, kind.groups, kind.size), position, kind)
    value = (x @ weights["value"]).reshape(-1, kind.groups, kind.size)
    keys, values = stored(cache[0], key, position, kind), stored(cache[1], value, position, kind)
    where = jnp.arange(kind.cache) <= position[..., None]
    scale = np.float32(kind.size**-0.5)
    if kind.repeated:
        axis = kind.order.index("g")
        k, v = (jnp.repeat(each, kind.heads // kind.groups, axis) for each in (keys, values))
        scores = jnp.einsum(f"bgf,{kind.order}->bgp", query, k).astype(jnp.float32) * scale
        weight = jax.nn.softmax(jnp.where(where[:, None] if kind.each else where, scores, -1e30), -1).astype(x.dtype)
        mixed = jnp.einsum(f"bgp,{kind.order}->bgf", weight, v)
    else:
        grouped = query.reshape(-1, kind.groups, kind.heads // kind.groups, kind.size)
        scores = jnp.einsum(f"bgqf,{kind.order}->bgqp", grouped, keys).astype(jnp.float32) * scale
        seen = where[:, None, None] if kind.each else where
        weight = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1).astype(x.dtype)
        mixed = jnp.einsum(f"bgqp,{kind.order}->bgqf", weight, values)
    return mixed.reshape(-1, kind.heads * kind.size) @ weights["output"], (keys, values)


def feed_forward(x: Any, weights: Any, kind: Kind) -> Any:
    up = x @ weights["up"]
    if kind.activation == "swiglu":
        return (jax.nn.silu(x @ weights["gate"]) * up) @ weights["down"]
    return getattr(jax.nn, kind.activation)(up) @ weights["down"]


def step(kind: Kind, weights: Any, cache: Any, x: Any, position: Any) -> tuple[Any, Any]:
    """Rows x [batch, width] of one step, and the cache with their keys and values."""

    def layer(x: Any, given: Any) -> tuple[Any, Any]:
        part, entry = given
        mixed, entry = attention(normed(x, part, "1", kind), part, entry, position, kind)
        x = x + mixed
        return x + feed_forward(normed(x, part, "2", kind), part, kind), entry

    if kind.scanned:
        return lax.scan(layer, x, (weights, cache))
    entries = []
    for given in zip(weights, cache, strict=True):
        x, entry = layer(x, given)
        entries.append(entry)
    return x, entries


def arguments(kind: Kind) -> tuple[Any, Any, Any, Any]:
    """Weights, cache, rows and positions, as shapes."""
    dtype = jnp.dtype(kind.dtype)
    dims = {"b": kind.batch, "g": kind.groups, "p": kind.cache, "f": kind.size}
    cache = tuple(dims[each] for each in kind.order)
    if kind.scanned:
        weights: Any = {name: jax.ShapeDtypeStruct((kind.layers, *each), dtype) for name, each in shapes(kind).items()}
        entries: Any = (jax.ShapeDtypeStruct((kind.layers, *cache), dtype),) * 2
    else:
        weights = [{name: jax.ShapeDtypeStruct(each, dtype) for name, each in shapes(kind).items()}] * kind.layers
        entries = [(jax.ShapeDtypeStruct(cache, dtype),) * 2] * kind.layers
    position = jax.ShapeDtypeStruct((kind.batch,) if kind.each else (), jnp.int32)
    return weights, entries, jax.ShapeDtypeStruct((kind.batch, kind.width), dtype), position


def measure(kind: Kind, kernels: bool) -> tuple[float, float]:
    """(seconds, bound)."""
    given = arguments(kind)
    lowered = jax.jit(lambda *each: step(kind, *each), donate_argnums=1).lower(*given)
    read = sum(math.prod(each.shape) * each.dtype.itemsize for each in jax.tree.leaves(given))
    jaxpr = jax.make_jaxpr(lambda *each: step(kind, *each))(*given).jaxpr
    work = roofline(Work(flops(jaxpr), 0), "none" if kind.dtype == "float32" else "matmult")
    machine = find_machine("trn1")
    reading = read / (machine["dma.engines"] * machine["dma.bw_per_engine"]) * 1e-9
    report = neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True, check_races=False).report
    if kernels:
        print(report)
    return float(report.kernel_ns * 1e-9), max(work, reading) + LATENCY * kind.layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--kernels", action="store_true", help="where the time goes")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    before: dict[str, float] = json.loads(options.before.read_text()) if options.before else {}
    times, rows = dict[str, float](), list[tuple[float, str]]()
    for seed in range(options.seed, options.seed + options.count):
        kind = drawn(seed)
        seconds, bound = measure(kind, options.kernels)
        times[str(seed)] = seconds
        form = f"{kind.batch} x {kind.width}, {kind.heads}/{kind.groups} x {kind.size}, {kind.cache}, {kind.hidden}"
        how = f"{kind.dtype[:2]} {kind.norm} {kind.activation} {kind.rotary} {kind.order}"
        flags = " repeated" * kind.repeated + " each" * kind.each + " scan" * kind.scanned
        then = (
            f" (before {before[str(seed)] * 1e6:.1f})"
            if abs(before.get(str(seed), seconds) / seconds - 1) > CHANGED
            else ""
        )
        rows.append(
            (seconds / bound, f"{seconds * 1e6:10.1f}{bound * 1e6:9.1f} us{then}  {seed}: {form}, {how}{flags}")
        )
    for ratio, line in sorted(rows):
        print(f"{ratio:8.2f}{line}")
    print(f"{len(rows)} decoders: {geometric_mean(ratio for ratio, _ in rows):.2f} times their bounds (geometric mean)")
    shared = [times[key] / before[key] for key in times if key in before]
    if shared:
        print(f"{len(shared)} as before: {geometric_mean(shared):.3f} of their time (geometric mean)")
    if options.save:
        options.save.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
