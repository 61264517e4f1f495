"""What each device computes of sharded training steps, beside an even share of what one device computes.

    python benchmarks/sharding.py [--devices 1,2,4,8,32] [--check] [STEP ...]     # names as in sharded_steps.py

For each step and number of devices: what a device computes, moves in HBM and keeps in memory, each as a multiple of an
even share of what one device alone takes; after the stroke what it would be if all were shared but what is whole on
each device whatever one does (``must``). Products are those of the contractions and convolutions of the
module, after XLA's partitioner and after our passes. TensorE multiplies these, with zeros where a faster schedule wants
them (``multiplied``), and transposes with products too (``transposed``): operands by which it contracts must have the
contracted dim on the partitions, and of FP32 it turns bit patterns in two halves.
Then simulated milliseconds; operators that every device computes whole; MB that a device sends, after XLA's partitioner
and after our passes, by kind of collective. ``--check`` runs the step too and compares with jaxlib's CPU client on the
same program and as many CPU devices.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "neuron,cpu")
os.environ.setdefault("NEURON_NUM_DEVICES", "32")
os.environ.setdefault("NEURON_CC_FLAGS", "--auto-cast none --no_cache")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=32"
sys.path.insert(0, str(Path(__file__).resolve().parent))

HEAD = (
    "    N     products  multiplied   transposed        bytes       memory       ms  compile s  whole  "
    "MB sent after XLA's partitioner -> after our passes"
)
SHARES = ("xla products", "products", "multiplied", "transposed", "bytes", "memory")
WEIGHTS = 3
"""How often a weight's bytes are held: itself, its gradient and what it becomes."""
TURNED = 2 * 2 * 128
"""Operations of TensorE to transpose an FP32 element: two halves, each multiplied with a column of a unit matrix."""
SENT = {
    "all_gather": lambda size, group: size * (group - 1),
    "all_reduce": lambda size, group: 2 * size * (group - 1) / group,
    "reduce_scatter": lambda size, group: size * (group - 1) / group,
    "all_to_all": lambda size, group: size * (group - 1) / group,
    "collective_permute": lambda size, group: size,
}
"""Bytes that a device sends of an operand of ``size`` bytes, with the best algorithm."""


def ops_with_times(module: Any) -> Iterator[tuple[Any, int]]:
    """Every op, and how often it runs: once where a trip count is unknown."""
    from neuronx_cc.ir import hlo
    from neuronx_cc.ir.hlo.editing import ops_of
    from neuronx_cc.passes.analysis.trip_count import trip_count

    def walk(computation: Any, times: int) -> Iterator[tuple[Any, int]]:
        for op in ops_of(computation.block):
            yield op, times
            if isinstance(op, hlo.WhileOp):
                yield from walk(module.computation(op.body.data[0]), times * (trip_count(op, module) or 1))
            elif (
                not isinstance(op, hlo.ReduceOp | hlo.AllReduceOp | hlo.ReduceScatterOp) and "to_apply" in op.properties
            ):
                yield from walk(module.computation(op.properties["to_apply"].data[0]), times)

    yield from walk(module.entry, 1)


def exchanged(module: Any) -> Counter[str]:
    """Bytes that a device sends, by collective."""

    sent: Counter[str] = Counter()
    for op, times in ops_with_times(module):
        name = op.name.removeprefix("hlo.")
        if name in SENT:
            groups = (op.properties.get("replica_groups") or op.properties.get("source_target_pairs")).data
            size = _nbytes(op.operands)
            sent[name] += int(SENT[name](size, max(map(len, groups)))) * times
    return sent


@dataclass(frozen=True)
class Met:
    """Bytes of the operands and results of collectives, but sums outside of loops, which are those of gradients."""

    moved: int
    largest: int
    whole: int
    """Of results that every device has alike: what is gathered, and sums."""


def met(module: Any) -> Met:
    from neuronx_cc.ir import hlo

    entry = set(module.entry.block.ops)
    named = [
        (op, times)
        for op, times in ops_with_times(module)
        if op.name.removeprefix("hlo.") in SENT and not (op in entry and isinstance(op, hlo.AllReduceOp))
    ]
    sizes = [(_nbytes([value]), times) for op, times in named for value in (*op.operands, *op.results)]
    alike = (hlo.AllGatherOp, hlo.AllReduceOp)
    return Met(
        sum(size * times for size, times in sizes),
        max((size for size, _ in sizes), default=0),
        sum(_nbytes(op.results) * times for op, times in named if isinstance(op, alike)),
    )


def _nbytes(values: Any) -> int:
    from neuronx_cc.ir import hlo

    return sum(hlo.shape_of(value).nbytes for value in values)


def must(found: dict[str, Any], alone: dict[str, Any], count: int, pieces: int) -> dict[str, float]:
    """What a device cannot do without, of transposes, bytes moved and memory, beside an even share of the rest.

    What parameters have in whole are weights. Each part of the batch reads them for its products and for the gradients
    of what they multiply, for which it turns them, and reads and writes their gradients; these start as zeros, and the
    update reads both and writes new weights. To that come the operands and results of collectives but sums of
    gradients: the largest is held, and what is whole on each device is turned once.
    """
    weights = max(0.0, found["arguments"] - alone["arguments"] / count)
    exchanged: Met = found["met"]
    turned = weights * pieces + exchanged.whole * (1 - 1 / count)
    return {
        "transposed": alone["transposed"] / count + turned / 4 * TURNED,
        "bytes": alone["bytes"] / count + weights * (4 * pieces + 4) + exchanged.moved,
        "memory": alone["memory"] / count + weights * WEIGHTS + exchanged.largest,
    }


def products(module: Any) -> int:
    """Multiplications of contractions, and of convolutions those with elements that are there."""
    from neuronx_cc.ir import hlo

    total = 0
    for op, times in ops_with_times(module):
        if isinstance(op, hlo.DotOp):
            contracted = prod(hlo.shape_of(op.lhs).dims[dim] for dim in op.dims.data.lhs_contracting)
            total += times * contracted * hlo.shape_of(op.results[0]).size
        elif isinstance(op, hlo.ConvolutionOp):
            total += times * _of_convolution(op)
    return total


def _of_convolution(op: Any) -> int:
    from neuronx_cc.ir import hlo

    dims, (lhs, rhs, out) = op.dims.data, (hlo.shape_of(each).dims for each in (*op.operands, op.results[0]))
    met = 1
    for place, window in enumerate(op.window.data):
        size, count = lhs[dims.lhs_spatial[place]], out[dims.out_spatial[place]]
        starts = np.arange(count)[:, None] * window.stride - window.pad_low
        places = starts + np.arange(window.size) * window.rhs_dilation
        met *= int(((places % window.lhs_dilation == 0) & (places >= 0) & (places // window.lhs_dilation < size)).sum())
    return met * out[dims.out_batch] * out[dims.out_feature] * int(rhs[dims.rhs_input_feature])


def measure(name: str, count: int, check: bool) -> dict[str, Any]:
    import jax
    from jax.sharding import Mesh, NamedSharding
    from sharded_steps import STEPS

    from neuronx_cc import runtime
    from neuronx_cc.driver.failure import Session
    from neuronx_cc.driver.jax_backend import compiler
    from neuronx_cc.driver.machines import planned_machine
    from neuronx_cc.driver.pipeline import run_pipeline
    from neuronx_cc.passes.pipelines import PIPELINES
    from neuronx_cc.runtime.profiling.analysis import analyse

    step = STEPS[name]
    units = []
    jax.clear_caches()
    find_unit = compiler.find_unit
    compiler.find_unit = lambda *given: units.append(find_unit(*given)) or units[-1]
    random = np.random.default_rng(0)
    given = step.weights(random), step.batch(random)

    def placed(platform: str, count: int) -> Any:
        mesh = Mesh(np.array(jax.devices(platform)[:count]), ("d",))
        with jax.set_mesh(mesh):
            parts = [
                {key: NamedSharding(mesh, spec(key, each.shape)) for key, each in tree.items()}
                for spec, tree in zip((step.weight_specs, step.batch_specs), given, strict=True)
            ]
            arguments = [
                {key: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=part[key]) for key, each in tree.items()}
                for part, tree in zip(parts, given, strict=True)
            ]
            started = time.process_time()
            compiled = jax.jit(step.function, out_shardings=(parts[0], None)).lower(*arguments).compile()
            seconds = time.process_time() - started
            arrays = [jax.device_put(tree, part) for tree, part in zip(given, parts, strict=True)] if check else None
            return compiled, compiled(*arrays) if check else None, seconds

    compiled, made, seconds = placed("neuron", count)
    compiler.find_unit = find_unit
    unit = units[-1]
    before = compiler.import_local(unit.code, 1, count)
    after = compiler.import_local(unit.code, 1, count)
    machine = planned_machine(unit.parsed)
    for module, stages in ((before, PIPELINES["import"]), (after, None)):
        run_pipeline(module, unit.parsed, Session("benchmark", [], parsed=unit.parsed), machine, stages)
    costs, memory = compiled.cost_analysis(), compiled.memory_analysis()
    rows = analyse(runtime.load(unit.neff).execution()).operators
    figures = {
        "xla products": products(before),
        "products": products(after),
        "multiplied": sum(row.flops for row in rows),
        "transposed": sum(row.transpose_flops for row in rows),
        "bytes": costs["bytes accessed"],
        "memory": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        "ms": costs["simulated_seconds"] * 1e3,
        "compile": seconds,
        "whole": sum("EJAX903" in warning for warning in unit.neff.warnings),
        "arguments": memory.argument_size_in_bytes,
        "met": met(after),
        "xla": exchanged(before),
        "ours": exchanged(after),
    }
    if check:
        _, expected, _ = placed("cpu", count)
        errors = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), made, expected)
        figures["error"] = max(jax.tree.leaves(errors))
    return figures


def main() -> None:
    from sharded_steps import STEPS

    parser = argparse.ArgumentParser()
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--devices", default="1,2,4,8,32")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.steps or STEPS:
        print(f"\n{name}\n{HEAD}")
        alone: dict[str, Any] = {}
        for count in map(int, arguments.devices.split(",")):
            found = measure(name, count, arguments.check)
            alone = alone or found
            shares = [found[key] * count / alone[key] for key in SHARES]
            sent = " -> ".join(_text(found[key]) for key in ("xla", "ours"))
            error = f"  largest error {found['error']:.1e}" if "error" in found else ""
            divided = f"{shares[0]:.2f} -> {shares[1]:.2f}"
            least = must(found, alone, count, STEPS[name].function.args[1])
            both = [
                f"{share:.2f} / {least[key] * count / alone[key]:.2f}"
                for key, share in zip(SHARES[3:], shares[3:], strict=True)
            ]
            pairs = "".join(f"{each:>13}" for each in both)
            figures = f"{count:5d}{divided:>13}{shares[2]:12.2f}{pairs}{found['ms']:9.3f}"
            print(f"{figures}{found['compile']:11.1f}{found['whole']:7d}  {sent}{error}", flush=True)


def _text(sent: Counter[str]) -> str:
    kinds = ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in sorted(sent.items()))
    return f"{sum(sent.values()) / 1e6:.2f} ({kinds})"


if __name__ == "__main__":
    main()
