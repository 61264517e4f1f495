"""Published measurements of NeuronCore-v2 beside simulated times of the same problems.

    python benchmarks/anchors.py [NAME ...]

Sources: NKIBench (one core of a trn1.32xlarge, FP32 kernels; the best published variant), AUTOCOMP's traces on trn1,
the vendor's LayerNorm tutorial and model benchmarks. Simulated times have the preamble and postamble of a run. A ratio
above 1.1 means that the real chip is quicker; where ours is more than 10 % quicker, the last column names why.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import bert
import jax
import jax.numpy as jnp

import neuronx_cc


@dataclass(frozen=True, slots=True)
class Anchor:
    """A published time, and what to lower for it."""

    name: str
    ms: float
    source: str
    function: Callable[..., Any]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    why: str = ""
    """Why ours may be quicker."""


def array(*dims: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.dtype(dtype))


def swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def add_norm(x: Any, y: Any, z: Any) -> Any:
    out = x @ y + z
    return out * jax.lax.rsqrt((out * out).mean(-1, keepdims=True) + 1e-6)


def rope(x: Any, cos: Any, sin: Any) -> Any:
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p * (1 - 1e-5) - 1e-3 * m / (jnp.sqrt(v) + 1e-8)


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


NKIBENCH = "NKIBench"
WIDE, TALL = array(1024, 3072), array(3072, 1024)
HALF = array(4096, 64)
GEMM = (array(8192, 4096, dtype="bfloat16"), array(8192, 8192, dtype="bfloat16"))
ANCHORS = (
    Anchor("gemm", 6.96, "AUTOCOMP", lambda x, y: x.T @ y, GEMM),
    Anchor("matmul", 35.2, NKIBENCH, lambda x, y: x @ y, (array(4096, 5120), array(5120, 12288)), "less traffic"),
    Anchor("swiglu", 4.222, NKIBENCH, swiglu, (array(4096, 1024), WIDE, WIDE, TALL), "nothing spilled"),
    Anchor(
        *("add_norm", 2.667, NKIBENCH, add_norm),
        (array(4096, 2048), array(2048, 2048), array(4096, 2048)),
        "products hide the rest",
    ),
    Anchor("rope", 3.333, NKIBENCH, rope, (array(64, 4096, 128), HALF, HALF), "three passes of two streams, not six"),
    Anchor("adamw", 1.888, NKIBENCH, adamw, (array(10944, 2048),) * 4, "fewer passes of Vector"),
    Anchor("silu", 0.798, NKIBENCH, jax.nn.silu, (array(4096, 7168),), "one function of Scalar"),
    Anchor("layer_norm", 1.969, "vendor", layer_norm, (array(4096, 8192), array(8192), array(8192)), "one pass"),
)
BERT = {"bert batch 1": (1, 0.943), "bert batch 16": (16, 9.345)}
"""Name -> (batch, ms): BERT-base, sequence 128, bf16 products, weights constant; each core has a batch of its own."""


def simulated(lowered: Any, auto_cast: str) -> float:
    """Milliseconds."""
    executable = neuronx_cc.compile(lowered, auto_cast=auto_cast)
    return executable.run([], timing_only=True, check_races=False).report.time_ns / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*(anchor.name for anchor in ANCHORS), *BERT]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args().names or names
    print(f"{'problem':<14}{'published ms':>13}{'ours':>9}{'ratio':>7}  source")
    ratios = []
    for name in chosen:
        anchor = next((anchor for anchor in ANCHORS if anchor.name == name), None)
        if anchor is not None:
            ours, published, source = (
                simulated(jax.jit(anchor.function).lower(*anchor.shapes), "none"),
                anchor.ms,
                anchor.source,
            )
        elif name in BERT:
            batch, published = BERT[name]
            ours, source = simulated(bert.build(bert.Config(batch=batch), "constants").proto, "matmult"), "vendor"
        else:
            parser.error(f"no such anchor: {name}; anchors: {', '.join(names)}")
        ratios.append(ours / published)
        why = f": {anchor.why}" if anchor is not None and anchor.why and ratios[-1] < 0.9 else ""
        mark = " slower than the chip" if ratios[-1] > 1.1 else ""
        print(f"{name:<14}{published:>13.3f}{ours:>9.3f}{ratios[-1]:>7.2f}  {source}{mark}{why}", flush=True)
    print(f"geometric mean {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
