"""Small programs of many fields, drawn by seed: simulated time beside a bound, and beside an earlier run.

    python benchmarks/survey.py [--seed 1] [--each 2] [--dtype float32] [--auto-cast none] [--save FILE] [--before FILE]
        [KIND ...]

The programs are those of ``survey_programs.py``, ``survey_blocks.py``, ``survey_vision.py`` and
``survey_sequences.py``. The bound is the roofline of ``programs.py`` with what a small program cannot avoid,
``LATENCY``; loops count once for each iteration. With ``--dtype`` programs are given that type: beside a run in FP32
(``--save``, ``--before``) this shows which ones narrow types make slower. Programs are printed by how many times their
bound they take, the worst last, then those that an earlier run saw at another time.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
import survey_blocks  # noqa: F401  # adds its kinds, as those below do
import survey_sequences  # noqa: F401
import survey_vision  # noqa: F401
from lowering import lower
from programs import inner, roofline, simulated, work_of
from survey_programs import KINDS, Draw

from neuronx_cc.ir.errors import NeuronError

LATENCY = 10e-6
"""Seconds of a load, an op and a store, and of an iteration of a loop."""
CHANGED = 0.03


def iterations(jaxpr: Any) -> int:
    """Of the loops of a jaxpr, those inside others as often as they are done; of ``while`` one."""
    total = 0
    for equation in jaxpr.eqns:
        trips = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += trips * sum(iterations(called) for called in inner(equation))
        total += trips if equation.primitive.name in ("scan", "while") else 0
    return total


def measure(name: str, seed: int, dtype: str, auto_cast: str) -> tuple[str, float, float]:
    """(shapes, simulated seconds, bound)."""
    program, dims = KINDS[name](Draw(f"{name} {seed}"))
    arrays: list[Any] = [np.ones(each, jnp.dtype(dtype)) for each in dims]
    jaxpr = jax.make_jaxpr(program)(*arrays).jaxpr
    bound = roofline(work_of(jaxpr), auto_cast) + LATENCY * (1 + iterations(jaxpr) / 4)
    seconds = simulated(lower(program, arrays), auto_cast)
    return " ".join("x".join(map(str, each)) for each in dims), seconds, bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=2, help="programs of each kind")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of arguments")
    parser.add_argument("--auto-cast", default="none", choices=("none", "matmult", "all"))
    parser.add_argument("--save", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    options = parser.parse_args()
    before: dict[str, float] = json.loads(options.before.read_text()) if options.before else {}
    times, rows = dict[str, float](), list[tuple[float, str]]()
    for name in options.kinds or KINDS:
        for seed in range(options.seed, options.seed + options.each):
            started = time.perf_counter()
            try:
                shapes, seconds, bound = measure(name, seed, options.dtype, options.auto_cast)
            except (NeuronError, TypeError, ValueError) as refused:
                print(f"{name} {seed}: {refused}")
                continue
            times[f"{name} {seed}"] = seconds
            took = time.perf_counter() - started
            rows.append((seconds / bound, f"{seconds * 1e6:10.1f} us{took:7.2f} s  {name} {seed}: {shapes}"))
    for ratio, line in sorted(rows):
        print(f"{ratio:8.1f}{line}")
    print(f"{len(rows)} programs: {geometric_mean(ratio for ratio, _ in rows):.2f} times their bounds (geometric mean)")
    shared = {key: times[key] / before[key] for key in times if key in before}
    for key, ratio in sorted(shared.items(), key=lambda row: row[1]):
        if abs(ratio - 1) > CHANGED:
            print(f"{ratio:8.3f}{before[key] * 1e6:10.1f} -> {times[key] * 1e6:.1f} us  {key}")
    if shared:
        print(f"{len(shared)} programs: {geometric_mean(shared.values()):.3f} of their time before")
    if options.save:
        options.save.write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
