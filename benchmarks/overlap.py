"""How far exchanging overlaps with computing: training steps and inference on N devices, simulated.

    python benchmarks/overlap.py [--devices 2,8] [--cast none|matmult] [--keep DIR] [STEP ...]

For each step and number of devices: simulated milliseconds; how long the queue of collectives is at work; milliseconds
of the same program where exchanges take no time, which is its computing; the larger of the two, a bound that no order
can beat; and the time as a multiple of it. Steps split by rows have as many of them on each device, so that a device
does what one alone does in the first line. ``--keep`` keeps the partitioned modules there, and takes them from there.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "neuron,cpu")
os.environ.setdefault("NEURON_NUM_DEVICES", "32")
os.environ.setdefault("NEURON_CC_FLAGS", "--auto-cast none --no_cache")
sys.path.insert(0, str(Path(__file__).resolve().parent))

Tree = Any
WIDTH, HEADS, LAYERS, LENGTH = 512, 8, 4, 128
HEAD = "    N       ms  exchanging  computing   bound  of bound  collectives   MB"


def _normal(random: np.random.Generator, *shape: int) -> Any:
    return (random.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)


def _trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: Tree, batch: Tree) -> Any:
        import jax

        value, gradients = jax.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), value

    return step


def _mlp_weights(random: np.random.Generator) -> Tree:
    return {f"w{n}": _normal(random, 1024, 1024) for n in range(6)} | {f"b{n}": np.zeros(1024, "f") for n in range(6)}


def _mlp_loss(weights: Tree, batch: Tree) -> Any:
    import jax

    x = batch["x"]
    for n in range(6):
        x = jax.nn.relu(x @ weights[f"w{n}"] + weights[f"b{n}"])
    return (x * x).mean()


def _vectors(rows: int, random: np.random.Generator) -> Tree:
    return {"x": _normal(random, rows, 1024)}


def _layer_weights(random: np.random.Generator) -> Tree:
    return {
        "qkv": _normal(random, WIDTH, 3 * WIDTH).reshape(WIDTH, 3, HEADS, -1),
        "out": _normal(random, WIDTH, WIDTH).reshape(HEADS, -1, WIDTH),
        "up": _normal(random, WIDTH, 4 * WIDTH),
        "down": _normal(random, 4 * WIDTH, WIDTH),
        "scale1": np.ones(WIDTH, "f"),
        "scale2": np.ones(WIDTH, "f"),
    }


def _transformer_weights(random: np.random.Generator) -> Tree:
    layers = {f"{name}{n}": each for n in range(LAYERS) for name, each in _layer_weights(random).items()}
    return {"head": _normal(random, WIDTH, 1024), **layers}


def _layer(weights: Tree, n: int, x: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax import lax

    def normed(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    q, k, v = jnp.moveaxis(jnp.einsum("bsw,wthd->bsthd", normed(x, weights[f"scale1{n}"]), weights[f"qkv{n}"]), 2, 0)
    scores = jnp.einsum("bshd,bthd->bhst", q, k) / np.sqrt(q.shape[-1])
    causal = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    chances = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    x = x + jnp.einsum("bhst,bthd,hdw->bsw", chances, v, weights[f"out{n}"])
    return x + jax.nn.gelu(normed(x, weights[f"scale2{n}"]) @ weights[f"up{n}"]) @ weights[f"down{n}"]


def _transformer(weights: Tree, batch: Tree) -> Any:
    x = batch["x"]
    for n in range(LAYERS):
        x = _layer(weights, n, x)
    return x @ weights["head"]


def _transformer_loss(weights: Tree, batch: Tree) -> Any:
    import jax

    return -jax.nn.log_softmax(_transformer(weights, batch))[..., 0].mean()


def _rows(count: int, random: np.random.Generator) -> Tree:
    return {"x": _normal(random, count, LENGTH, WIDTH)}


def _net_weights(random: np.random.Generator) -> Tree:
    kernels = {f"k{n}": _normal(random, 3, 3, 128, 128) / 3 for n in range(6)}
    return {"stem": _normal(random, 3, 3, 4, 128), "head": _normal(random, 128, 64), **kernels}


def _net_loss(weights: Tree, batch: Tree) -> Any:
    import jax
    from jax import lax

    def convolved(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x = jax.nn.relu(convolved(batch["x"], weights["stem"]))
    for n in range(3):
        x = x + convolved(jax.nn.relu(convolved(x, weights[f"k{2 * n}"])), weights[f"k{2 * n + 1}"])
    return -jax.nn.log_softmax(x.mean((1, 2)) @ weights["head"])[:, 0].mean()


def _images(count: int, random: np.random.Generator) -> Tree:
    return {"x": random.standard_normal((count, 16, 16, 4)).astype("f")}


def _whole(_: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return ()


def _first(_: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return ("d",)


def _longest(_: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    longest = max(range(len(shape)), key=lambda dim: shape[dim])
    return tuple("d" if dim == longest else None for dim in range(len(shape)))


def _tensor(name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    parts = {"qkv": (None, None, "d"), "out": ("d",), "up": (None, "d"), "down": ("d",), "head": (None, "d")}
    return parts.get(name.rstrip("0123456789"), ())


Specs = Callable[[str, tuple[int, ...]], tuple[Any, ...]]
STEPS: dict[str, tuple[Callable[..., Any], Callable[..., Tree], Callable[..., Tree], bool, Specs, Specs]] = {
    # function, weights, batch of so many rows (of a device, or of all), whether it trains; specs of weights, of batch
    "mlp, batch": (_trained(_mlp_loss), _mlp_weights, _vectors, True, _whole, _first),
    "mlp, fully sharded": (_trained(_mlp_loss), _mlp_weights, _vectors, True, _longest, _first),
    "transformer, batch": (_trained(_transformer_loss), _transformer_weights, _rows, True, _whole, _first),
    "transformer, fully sharded": (_trained(_transformer_loss), _transformer_weights, _rows, True, _longest, _first),
    "transformer, tensor": (_trained(_transformer_loss), _transformer_weights, _rows, True, _tensor, _whole),
    "transformer, tensor, inference": (_transformer, _transformer_weights, _rows, False, _tensor, _whole),
    "net, batch": (_trained(_net_loss), _net_weights, _images, True, _whole, _first),
}
ROWS = {"mlp": 512, "transformer": 4, "net": 4}
"""Of one device."""


def partitioned(name: str, count: int, keep: Path | None, rows: int = 0) -> bytes:
    """The module of one of ``count`` devices, as XLA's partitioner leaves it."""
    place = keep / f"{name.replace(', ', '-').replace(' ', '_')}-{count}-{rows}.pb" if keep else None
    if place is not None and place.exists():
        return place.read_bytes()
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from neuronx_cc.driver.jax_backend import compiler

    function, weights, batch, trains, *specs = STEPS[name]
    random = np.random.default_rng(0)
    rows = rows or ROWS[name.split(",")[0]]
    given = weights(random), batch(rows * count if specs[1] is _first else rows * 2, random)
    codes: list[bytes] = []
    find_unit = compiler.find_unit

    def found(*arguments: Any) -> Any:
        unit = find_unit(*arguments)
        codes.append(unit.code)
        return unit

    compiler.find_unit = found
    mesh = Mesh(np.array(jax.devices("neuron")[:count]), ("d",))
    with jax.set_mesh(mesh):
        parts = [
            {key: NamedSharding(mesh, PartitionSpec(*spec(key, each.shape))) for key, each in tree.items()}
            for spec, tree in zip(specs, given, strict=True)
        ]
        shapes = [
            {key: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=part[key]) for key, each in tree.items()}
            for part, tree in zip(parts, given, strict=True)
        ]
        made = (parts[0], None) if trains else None
        jax.jit(function, out_shardings=made, donate_argnums=(0,) if trains else ()).lower(*shapes).compile()
    compiler.find_unit = find_unit
    if place is not None:
        place.write_bytes(codes[-1])
    return codes[-1]


def measure(code: bytes, count: int, cast: str) -> dict[str, float]:
    """Simulated milliseconds of the module, and what its collectives do."""
    from unittest import mock

    from neuronx_cc.driver.compile import compile_loaded
    from neuronx_cc.driver.failure import Session
    from neuronx_cc.driver.jax_backend.compiler import import_local
    from neuronx_cc.driver.machines import planned_machine
    from neuronx_cc.driver.options import COMPILE
    from neuronx_cc.driver.parse import from_keywords
    from neuronx_cc.ir.isa import cost
    from neuronx_cc.ir.isa.program import Instr, Stream
    from neuronx_cc.runtime.clock_regions import simulate

    parsed = from_keywords(COMPILE, {"auto_cast": cast})
    machine = planned_machine(parsed)
    program = compile_loaded(import_local(code, 1, count), parsed, Session("benchmark", [], parsed=parsed)).program
    timing = simulate(program, machine)
    with mock.patch.object(cost, "collective_ns", return_value=0.0):
        free = simulate(program, machine)
    exchanging = timing.streams.get(Stream.COLLECTIVE)
    collectives = [each for each in program.records if isinstance(each, Instr) and each.op == "collective"]
    return {
        "ms": timing.total / 1e6,
        "exchanging": exchanging.active / 1e6 if exchanging else 0.0,
        "computing": free.total / 1e6,
        "collectives": len(collectives),
        "MB": program.hbm_bytes / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--devices", default="1,2,8")
    parser.add_argument("--cast", default="none")
    parser.add_argument("--rows", type=int, default=0, help="of one device; 0: as many as each step has")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    for name in arguments.steps or STEPS:
        print(f"\n{name}\n{HEAD}")
        for count in map(int, arguments.devices.split(",")):
            found = measure(partitioned(name, count, arguments.keep, arguments.rows), count, arguments.cast)
            bound = max(found["exchanging"], found["computing"])
            times = f"{found['ms']:9.3f}{found['exchanging']:12.3f}{found['computing']:11.3f}{bound:8.3f}"
            more = f"{found['ms'] / bound:10.2f}{found['collectives']:13d}{found['MB']:7.1f}"
            print(f"{count:5d}{times}{more}", flush=True)


if __name__ == "__main__":
    main()
