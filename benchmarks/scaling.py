"""How compile time grows with the program: CPU seconds at n, 2n and 4n of many forms of programs, stage by stage.

    python benchmarks/scaling.py [--size 1000] [--profile LINES] [FORM ...]        # all forms without names

Columns: instructions of the smallest program; CPU seconds of the whole at each size and microseconds an instruction of
the largest; the exponent between the last two sizes (1: linear), and that of each stage that takes a twentieth of the
time or more. ``--profile`` prints where the largest program of each form spends its time. Stages: import, passes (one
by one), code generation, loading from memory, writing a NEFF and reading it, race check, clock.
``benchmarks/compile_time.py`` compares with jaxlib.
"""

import argparse
import cProfile
import gc
import math
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from program_forms import FORMS

from neuronx_cc import runtime
from neuronx_cc.driver.compile import generate
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.driver.pipeline import pass_options
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import collector
from neuronx_cc.passes.manager import PassContext, count_ops, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.runtime import races
from neuronx_cc.runtime.clock_regions import simulate

Times = dict[str, float]


class Compilation(NamedTuple):
    """CPU seconds of one compilation, and what was compiled."""

    times: Times
    """Of each stage, in order: import, passes one by one, code generation, load."""
    ops: int
    """HLO instructions as they came."""
    records: int

    @property
    def seconds(self) -> float:
        return sum(self.times.values())

    @property
    def stages(self) -> tuple[float, float, float, float]:
        """Seconds of import, all passes, code generation and loading."""
        first, last, load = (self.times[stage] for stage in ("import", "codegen", "load"))
        return first, self.seconds - first - last - load, last, load


def compilation(data: bytes, mode: str = "matmult", beside: bool = False) -> Compilation:
    """Compile a module; with ``beside`` its NEFF is also written and read, checked for races and timed."""
    times: Times = {}
    parsed = from_keywords(COMPILE, {"auto_cast": mode, "int64": "exact"})
    machine = planned_machine(parsed)
    context = PassContext(pass_options(parsed), machine, timed=False)

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started = time.process_time()
        value = call()
        times[name] = times.get(name, 0.0) + time.process_time() - started
        return value

    gc.collect()
    with collector.paused():
        module = timed("import", lambda: load_module(data))
        ops = count_ops(module)
        for name in pass_names(DEFAULT_PIPELINE):
            timed(name, lambda name=name: run_passes(module, [name], context))  # type: ignore[misc]
        neff = timed("codegen", lambda: generate(module, parsed, machine, []))
        loaded = timed("load", lambda: runtime.load(neff))
        if beside:
            written = timed("write", neff.to_bytes)
            timed("read", lambda: runtime.load(written))
            timed("races", lambda: races.check(loaded.program))
            timed("clock", lambda: simulate(loaded.program, machine))
    return Compilation(times, ops, len(neff.program.records))


def stages(text: str) -> Times:
    """CPU seconds of each stage of a program, in order."""
    return compilation(text.encode(), beside=True).times


def exponent(before: float, after: float) -> float:
    """The power of the size that the time grew with between one size and twice that."""
    return math.log2(max(after, 1e-9) / max(before, 1e-9))


def row(name: str, size: int) -> str:
    """One line of the table."""
    measured = [stages(FORMS[name](size * factor)) for factor in (1, 2, 4)]
    totals = [sum(times.values()) for times in measured]
    count = FORMS[name](size * 4).count(" = ")
    slow = [
        f"{stage} {exponent(measured[1][stage], measured[2][stage]):.1f} ({measured[2][stage]:.2f} s)"
        for stage in sorted(measured[2], key=lambda stage: -measured[2][stage])
        if measured[2][stage] > 0.05 * totals[2]
    ]
    seconds = " ".join(f"{total:7.2f}" for total in totals)
    each = 1e6 * totals[2] / count
    return f"{name:24s} {count:7d} {seconds} {each:6.0f} {exponent(totals[1], totals[2]):5.2f}  {', '.join(slow)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("forms", nargs="*", choices=[[], *FORMS])
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    arguments = parser.parse_args()
    stages(FORMS["chain"](10))  # imports
    print(f"{'form':24s} {'instr.':>7s} {'n':>7s} {'2n':>7s} {'4n':>7s} {'us/i':>6s} {'exp.':>5s}  stages")
    for name in arguments.forms or FORMS:
        print(row(name, arguments.size), flush=True)
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(stages, FORMS[name](4 * arguments.size))
            pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.profile)


if __name__ == "__main__":
    main()
