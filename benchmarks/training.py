"""A training step of each example through the JAX backend, beside jaxlib's CPU client.

    python benchmarks/training.py [--steps 10] [MODEL ...]      # gpt, resnet and mlp without names

For each model one process on the CPU, one in FP32, one with ``--auto-cast matmult``: seconds to compile, milliseconds
of the first step (which checks the program for races), wall and CPU milliseconds of the fastest step after it (those of
all threads, which hardly depend on what else the machine does), simulated milliseconds of a step on one core, and the
loss after the steps.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

RUNS = {
    "cpu": {"JAX_PLATFORMS": "cpu"},
    "FP32": {"JAX_PLATFORMS": "neuron", "NEURON_CC_FLAGS": "--auto-cast none --no_cache"},
    "matmult": {"JAX_PLATFORMS": "neuron", "NEURON_CC_FLAGS": "--auto-cast matmult --no_cache"},
}
BATCH = 16


def gpt() -> tuple[Any, Callable[..., Any], Any]:
    """State, step and one batch of the small GPT."""
    return _of_train("gpt")


def resnet() -> tuple[Any, Callable[..., Any], Any]:
    """State, step and one batch of the small ResNet."""
    return _of_train("resnet")


def _of_train(name: str) -> tuple[Any, Callable[..., Any], Any]:
    import train

    state, step, batches = train.start(name)
    return state, step, next(batches(BATCH))


def mlp() -> tuple[Any, Callable[..., Any], Any]:
    """State, step and one batch of the perceptron."""
    import mlp_train

    model = mlp_train.build()
    return model.weights, lambda state, batch: model.function(state, *batch), model.inputs


MODELS = {"gpt": gpt, "resnet": resnet, "mlp": mlp}


def measure(name: str, steps: int) -> dict[str, float]:
    """What this process's platform takes."""
    import jax

    state, step, batch = MODELS[name]()
    state, batch = jax.device_put((state, batch))
    lowered = jax.jit(step, donate_argnums=0).lower(state, batch)
    started = time.perf_counter()
    compiled = lowered.compile()
    found = {"compile": time.perf_counter() - started}
    walls, processors = [], []
    for _ in range(steps):
        wall, processor = time.perf_counter(), time.process_time()
        state, loss = compiled(state, batch)
        loss.block_until_ready()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    found |= {"first": walls[0], "wall": min(walls[1:]), "cpu": min(processors[1:]), "loss": float(loss)}
    if jax.default_backend() == "neuron":
        found["simulated"] = compiled.cost_analysis()["simulated_seconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(arguments.models) - set(MODELS)
    if unknown or arguments.steps < 2:
        parser.error(f"MODEL is one of {', '.join(MODELS)}, and there are at least 2 steps")
    if arguments.measure:
        json.dump(measure(arguments.models[0], arguments.steps), sys.stdout)
        return
    columns = ("compile s", "first ms", "wall ms", "CPU ms", "simulated ms", "loss")
    print(f"{'model':<8} {'on':<8}" + "".join(f"{column:>14}" for column in columns))
    for model in arguments.models or MODELS:
        for run, environment in RUNS.items():
            command = [sys.executable, __file__, model, "--steps", str(arguments.steps), "--measure"]
            done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
            found = json.loads(done.stdout)
            numbers = [found["compile"], *(1e3 * found[key] for key in ("first", "wall", "cpu"))]
            simulated = f"{1e3 * found['simulated']:.3f}" if "simulated" in found else ""
            texts = [*(f"{number:.1f}" for number in numbers), simulated, f"{found['loss']:.5f}"]
            print(f"{model:<8} {run:<8}" + "".join(f"{text:>14}" for text in texts), flush=True)


if __name__ == "__main__":
    main()
