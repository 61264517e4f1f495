"""Trains the models of ``train.py`` on jaxlib's CPU client and on simulated NeuronCores, and draws the losses.

    python examples/train_curves.py --output build/curves.png

Five runs of each model: the CPU, one core in FP32, one core with ``--auto-cast matmult``, two and eight cores. Prints
how far each is from the CPU; the picture has one panel for each model. Needs matplotlib.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

RUNS: dict[str, tuple[dict[str, str], int]] = {
    "jaxlib, CPU": ({"JAX_PLATFORMS": "cpu"}, 1),
    "1 core, FP32": ({"JAX_PLATFORMS": "neuron,cpu", "NEURON_CC_FLAGS": "--auto-cast none"}, 1),
    "1 core, matmult in BF16": ({"JAX_PLATFORMS": "neuron,cpu", "NEURON_CC_FLAGS": "--auto-cast matmult"}, 1),
    "2 cores, FP32": (
        {"JAX_PLATFORMS": "neuron,cpu", "NEURON_CC_FLAGS": "--auto-cast none", "NEURON_RT_NUM_CORES": "2"},
        2,
    ),
    "8 cores, FP32": (
        {"JAX_PLATFORMS": "neuron,cpu", "NEURON_CC_FLAGS": "--auto-cast none", "NEURON_RT_NUM_CORES": "8"},
        8,
    ),
}
"""Name -> environment, devices."""


def losses(model: str, steps: int, environment: dict[str, str], devices: int) -> list[float]:
    """The losses of one run, in a process of its own."""
    script = Path(__file__).with_name("train.py")
    arguments = [model, "--steps", str(steps), "--devices", str(devices), "--json"]
    run = subprocess.run(
        [sys.executable, str(script), *arguments], env=os.environ | environment, capture_output=True, text=True
    )
    if run.returncode:
        raise SystemExit(f"{model}, {environment}: {run.stderr.strip()[-2000:]}")
    values: list[float] = json.loads(run.stdout)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("build/curves.png"))
    arguments = parser.parse_args()
    curves: dict[str, dict[str, list[float]]] = {}
    for model in ("gpt", "resnet"):
        curves[model] = {}
        for name, (environment, devices) in RUNS.items():
            curves[model][name] = values = losses(model, arguments.steps, environment, devices)
            apart = max(abs(a - b) / abs(b) for a, b in zip(values, curves[model]["jaxlib, CPU"], strict=True))
            first, last = values[0], values[-1]
            print(f"{model:<7} {name:<24} {first:.4f} -> {last:.4f}, at most {apart:.1e} from the CPU's", flush=True)
    draw(curves, arguments.output)
    print(f"drawn to {arguments.output}")


def draw(curves: dict[str, dict[str, list[float]]], output: Path) -> None:
    """One panel for each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(11, 4))
    for panel, (model, runs) in zip(panels, curves.items(), strict=True):
        for width, (name, values) in zip((6, 3, 2, 1.5, 1), runs.items(), strict=True):
            panel.plot(values, label=name, linewidth=width, alpha=0.7)
        panel.set_title(model)
        panel.set_xlabel("step")
        panel.set_ylabel("loss")
        panel.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(output)


if __name__ == "__main__":
    main()
