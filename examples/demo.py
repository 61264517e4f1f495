"""The demonstration behind ``make demo``: GPT-2 small through the commands, as one would type them.

Lowers the model from JAX to an HloModuleProto, compiles it by ``neuronx-cc compile``, runs the NEFF by
``neuronx-cc run`` on the simulated trn1, and compares the outputs with jaxlib's. Files go to build/demo.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpt2
import numpy as np
from lowering import differences

COMMAND = Path(sys.executable).with_name("neuronx-cc")
TOLERANCE = {"none": 1e-5, "matmult": 0.03, "all": 0.1}
"""Largest relative 2-norm of the difference from FP32 for each mode by bf16."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--auto-cast", choices=tuple(TOLERANCE), default="matmult")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--directory", type=Path, default=Path("build/demo"))
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    module, neff = directory / "gpt2.hlo.pb", directory / "gpt2.neff"
    inputs, outputs = directory / "in.npz", directory / "out.npz"

    model = gpt2.build(gpt2.Config(layers=arguments.layers))
    module.write_bytes(model.proto)
    print(
        f"lowered GPT-2 ({arguments.layers} layers, 128 tokens) from JAX: {module}, {len(model.arguments)} parameters"
    )
    np.savez(inputs, allow_pickle=False, **{f"arg{i}": array for i, array in enumerate(model.arguments)})

    log = ["--logfile", str(directory / "compile.log")]
    run("compile", str(module), "--auto-cast", arguments.auto_cast, "--output", str(neff), *log)
    report = json.loads(run("run", str(neff), "--inputs", str(inputs), "--outputs", str(outputs), "--json"))
    show(report)

    with np.load(outputs) as file:
        actual = [file[f"out{i}"] for i in range(len(file.files))]
    error = differences(actual, model.expected)
    passed = error.norm <= TOLERANCE[arguments.auto_cast]
    same = np.argmax(actual[0], axis=-1) == np.argmax(model.expected[0], axis=-1)
    print(f"logits against jaxlib in FP32: relative error {error.norm:.1e} (2-norm), {error.largest:.1e} (largest)")
    print(f"same next token at {same.sum()} of {same.size} positions")
    print("result check: " + ("PASS" if passed else f"FAIL, more than {TOLERANCE[arguments.auto_cast]}"))
    return 0 if passed else 1


def run(*arguments: str) -> str:
    """Echo and run one ``neuronx-cc`` command; return what it wrote to stdout."""
    print(f"$ neuronx-cc {shlex.join(arguments)}", flush=True)
    started = time.perf_counter()
    finished = subprocess.run([str(COMMAND), *arguments], stdout=subprocess.PIPE, text=True)
    print(f"  {time.perf_counter() - started:.1f} s")
    if finished.returncode:
        print(finished.stdout)
        sys.exit(finished.returncode)
    return finished.stdout


def show(report: dict[str, Any]) -> None:
    """Print time, busy share of each engine, utilisation and memory out of the JSON report of ``neuronx-cc run``."""
    summary = report["summary"]
    engines = ("tensor", "vector", "scalar", "gpsimd")
    busy = [f"{name} {summary[f'{name}_engine_active_time_percent']:.0%}" for name in engines]
    print(f"simulated {report['machine']}: {report['time_ns'] / 1e6:.3f} ms")
    print(f"  engines active  {', '.join(busy)}, DMA {summary['dma_active_time_percent']:.0%}")
    print(f"  TensorE         {summary['mfu_inst_estimated_percent']:.1%} of its peak")
    print(f"  DMA             {summary['dma_total_bytes'] / 1e6:.0f} MB, HBM {summary['hbm_bandwidth_gbps']:.0f} GB/s")
    peaks = (
        f"SBUF {summary['sbuf_peak_bytes'] / 1024:.0f} KiB a partition, HBM {summary['hbm_peak_bytes'] / 2**20:.0f} MiB"
    )
    print(f"  memory peak     {peaks}")


if __name__ == "__main__":
    sys.exit(main())
