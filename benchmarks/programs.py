"""Whole programs, the examples at full size: times of compiling, of the simulator and on the simulated device.

    python benchmarks/programs.py [--auto-cast none matmult] [NAME ...]      # all of them without names

Columns: HLO instructions; seconds to compile and microseconds an instruction (budget: 300 us an instruction and 1 s);
simulated milliseconds, the roofline, and how many times the roofline they are; what a first run takes beyond a second
one (race check, clock, binding); CPU seconds of both threads of a second run, those of jaxlib's CPU client for the same
(budget: 5 times), and the largest relative difference of the outputs. CPU seconds, unlike wall times, hardly depend on
what else the machine does.

The roofline is the greater of the operations of dots and convolutions at TensorE's peak for the type of the products
and the bytes of parameters and results at HBM's bandwidth, both of the machine description. A parameter that the
program only takes rows of counts as those rows.
"""

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax
import mlp_train
from full_size import PROGRAMS
from lowering import Model, differences

import neuronx_cc
from neuronx_cc.ir.targets import find_machine

COMPILE_BUDGET = 300e-6
"""Seconds an instruction, besides one second."""
SIMULATOR_BUDGET = 5


class Work(NamedTuple):
    """Operations of dots and convolutions, and bytes of the parameters and results."""

    flops: float
    nbytes: float


def work(model: Model) -> Work:
    """What the program has to do at the least, from its jaxpr."""
    jaxpr = jax.make_jaxpr(model.function)(model.weights, *model.inputs).jaxpr
    moved = sum(nbytes(variable) for variable in jaxpr.outvars)
    for variable in jaxpr.invars:
        rows = rows_taken(jaxpr, variable)
        moved += nbytes(variable) if rows is None else rows
    return Work(flops(jaxpr), moved)


def work_of(jaxpr: Any) -> Work:
    """What a program without weights has to do at the least."""
    return Work(flops(jaxpr), sum(map(nbytes, (*jaxpr.invars, *jaxpr.outvars))))


def simulated(lowered: Any, auto_cast: str) -> float:
    """Seconds on the simulated device; no values are computed."""
    report = neuronx_cc.compile(lowered, auto_cast=auto_cast).run([], timing_only=True).report
    return report.time_ns * 1e-9


def nbytes(variable: Any) -> int:
    """Bytes of an array of the jaxpr."""
    size: int = math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
    return size


def inner(equation: Any) -> list[Any]:
    """The jaxprs that an equation calls."""
    values = [value for parameter in equation.params.values() for value in jax.tree.leaves(parameter)]
    return [getattr(value, "jaxpr", value) for value in values if hasattr(getattr(value, "jaxpr", value), "eqns")]


def flops(jaxpr: Any) -> float:
    """Operations of the dots and convolutions of a jaxpr, with those of loops as often as they are done."""
    total = 0.0
    for equation in jaxpr.eqns:
        trips = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += trips * sum(flops(called) for called in inner(equation))
        out = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs = equation.invars[0].aval.shape
            total += 2.0 * out * math.prod(lhs[dim] for dim in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
            dilation = math.prod(equation.params["lhs_dilation"])
            total += 2.0 * out * math.prod(kernel) / features / dilation
    return total


def rows_taken(jaxpr: Any, variable: Any) -> int | None:
    """Bytes of the rows that gathers take of an array, or None if anything else uses it."""
    total = 0
    for equation in jaxpr.eqns:
        if variable not in [operand for operand in equation.invars if not hasattr(operand, "val")]:
            continue
        called = inner(equation)
        if equation.primitive.name == "gather" and equation.invars[0] is variable:
            total += nbytes(equation.outvars[0])
        elif len(called) == 1 and len(called[0].invars) == len(equation.invars):
            rows = rows_taken(called[0], called[0].invars[equation.invars.index(variable)])
            if rows is None:
                return None
            total += rows
        else:
            return None
    return None if variable in [each for each in jaxpr.outvars if not hasattr(each, "val")] else total


def roofline(done: Work, auto_cast: str) -> float:
    """Seconds that no program undercuts."""
    machine = find_machine("trn1")
    peak = 2 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"]
    if auto_cast == "none":
        peak /= machine["pe.fp32_passes"]
    return max(done.flops / peak, done.nbytes / machine["hbm.bw_per_core"]) * 1e-9


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall seconds, CPU seconds and the value of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = call()
    return time.perf_counter() - wall, time.process_time() - cpu, value


def measure(name: str, auto_cast: str) -> str:
    """One line of the table."""
    model = PROGRAMS[name]()
    count = sum(" = " in line for line in model.lowered.compiler_ir("hlo").as_hlo_text().splitlines())
    proto = model.proto
    _, compiling, executable = timed(lambda: neuronx_cc.compile(proto, auto_cast=auto_cast))
    _, first, result = timed(lambda: executable.run(model.arguments))
    _, again, _ = timed(lambda: executable.run(model.arguments))
    error = differences(result.outputs, model.expected)
    _, peer, _ = timed(model.jitted)
    seconds = result.report.time_ns * 1e-9
    bound = roofline(work(model), auto_cast)
    missed = ["compile"] if compiling > 1 + COMPILE_BUDGET * count else []
    missed += ["simulator"] if again > SIMULATOR_BUDGET * peer else []
    return (
        f"{name:<13}{auto_cast:<8}{count:>6}{compiling:>7.2f}{compiling / count * 1e6:>6.0f}"
        f"{seconds * 1e3:>10.3f}{bound * 1e3:>9.3f}{seconds / bound:>7.1f}"
        f"{first - again:>7.2f}{again:>7.2f}{peer:>7.2f}{again / peer:>6.1f}  {error.largest:.1e}  {' '.join(missed)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--auto-cast", nargs="+", default=["none"], choices=("none", "matmult", "all"))
    options = parser.parse_args()
    unknown = set(options.names) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}; programs: {', '.join(PROGRAMS)}")
    neuronx_cc.compile(mlp_train.build(mlp_train.Config((8, 8, 2), batch=2)).proto)  # imports what compiling needs
    print(
        "program      cast    instr.  comp.    us  simulated roofline ratio  first  again jaxlib ratio  error    missed"
    )
    for name in options.names or PROGRAMS:
        for auto_cast in options.auto_cast:
            print(measure(name, auto_cast), flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
