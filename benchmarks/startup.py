"""Start-up times of the commands that people and scripts call often, beside the bare interpreter and imports.

    python benchmarks/startup.py [REPEATS]

Each row is the median and the fastest of fresh processes; "ratio" is to ``python -c pass``. Budget: 0.3 s.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROWS: tuple[tuple[str, list[str]], ...] = (
    ("python -c pass", [sys.executable, "-c", "pass"]),
    ("import neuronx_cc", [sys.executable, "-c", "import neuronx_cc"]),
    ("neuronx-cc --help", [str(BIN / "neuronx-cc"), "--help"]),
    ("neuronx-cc compile --help", [str(BIN / "neuronx-cc"), "compile", "--help"]),
    ("neuronx-cc --version", [str(BIN / "neuronx-cc"), "--version"]),
    ("neuronx-cc list-operators", [str(BIN / "neuronx-cc"), "list-operators"]),
    ("neuronx-cc (usage error)", [str(BIN / "neuronx-cc"), "compile", "--no-such-option"]),
    ("neuron-cc --help", [str(BIN / "neuron-cc"), "--help"]),
    ("neuron-cc list-operators", [str(BIN / "neuron-cc"), "list-operators", "--framework", "XLA"]),
    ("import numpy", [sys.executable, "-c", "import numpy"]),
    ("import xdsl.ir", [sys.executable, "-c", "import xdsl.ir"]),
    ("import jax", [sys.executable, "-c", "import jax"]),
)


def seconds(command: list[str]) -> float:
    """Wall time of one fresh process."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    base = 0.0
    print(f"{'command':<28} {'median s':>9} {'fastest s':>9} {'ratio':>7}")
    for name, command in ROWS:
        times = [seconds(command) for _ in range(repeats)]
        middle = statistics.median(times)
        base = base or middle
        print(f"{name:<28} {middle:>9.3f} {min(times):>9.3f} {middle / base:>7.1f}")


if __name__ == "__main__":
    main()
