"""CPU seconds to compile, stage by stage, beside those of jaxlib's CPU client for the same module.

    python benchmarks/compile_time.py [--group forms] ... [--mode matmult] [--size 5000] [--repeat 2] [PATTERN ...]

Groups: ``examples`` at full size; ``layers``, transformers of 12, 24 and 40 layers; ``classes`` (``speed_classes``);
``forms``, programs of about ``--size`` instructions that each grow in one way (``tests/support/program_forms.py``);
``small``, for what a program takes whatever its size. Patterns (``fnmatch``) choose among their names. Columns: HLO
instructions, instructions that come of them; milliseconds of import, passes, code generation and loading (in which
the program is encoded and checked); microseconds for each HLO instruction and for each of the core; seconds of jaxlib
and the ratio to them. CPU seconds, the least of ``--repeat`` compilations, hardly depend on what else the machine does;
what is imported is imported by then. ``benchmarks/scaling.py`` says how they grow.
"""

import argparse
import fnmatch
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import gpt2
import jax
import jax.numpy as jnp
import numpy as np
import speed_classes
from full_size import PROGRAMS
from jaxlib import _jax
from lowering import lower
from program_forms import FORMS
from scaling import Compilation, compilation
from speed import cpu, proto_of, without_donation

Make = Callable[[], bytes]
GROUPS = ("examples", "layers", "classes", "forms", "small")
LAYERS = (12, 24, 40)
COLLECTIVE = "collectives"
"""Forms that jaxlib compiles for several devices only."""


def programs(group: str, size: int) -> Iterator[tuple[str, Make]]:
    """Names and what makes the protos of a group."""
    if group == "examples":
        for name, build in PROGRAMS.items():
            yield name, lambda build=build: build().proto
    if group == "layers":
        for count in LAYERS:
            yield f"{count} layers", lambda count=count: gpt2.build(gpt2.Config(layers=count, width=256)).proto
    if group == "classes":
        for name, (function, arguments) in speed_classes.classes().items():
            yield name, lambda f=function, a=arguments: lower(f, a)
    if group == "forms":
        for name, form in FORMS.items():
            yield name, lambda form=form: proto_of(form(size))
    if group == "small":
        x = np.zeros((4, 4), np.float32)
        small = {"add": lambda x: x + 1, "sum": jnp.sum, "softmax": jax.nn.softmax, "product": lambda x: x @ x}
        for name, each in small.items():
            yield name, lambda f=each: lower(f, [x])


def least(proto: bytes, mode: str, repeat: int) -> Compilation:
    """The quickest of some compilations."""
    return min((compilation(proto, mode) for _ in range(repeat)), key=lambda found: found.seconds)


def peer(proto: bytes) -> float | None:
    """CPU seconds that jaxlib compiles; None where it refuses."""
    device = jax.devices("cpu")[0]
    try:
        stablehlo = _jax.mlir.hlo_to_stablehlo(without_donation(proto))
        return cpu(lambda: device.client.compile_and_load(stablehlo, [device]))[0]
    except jax.errors.JaxRuntimeError:
        return None


def row(name: str, found: Compilation, other: float | None) -> str:
    """One line of the table."""
    stages = " ".join(f"{1e3 * seconds:8.1f}" for seconds in found.stages)
    each = f"{1e6 * found.seconds / max(1, found.ops):7.0f} {1e6 * found.seconds / max(1, found.records):7.0f}"
    beside = "" if other is None else f" {other:8.2f} {found.seconds / other:6.2f}"
    return f"{name:24s} {found.ops:7d} {found.records:8d} {stages} {each} {found.seconds:8.2f}{beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="all programs without any")
    parser.add_argument("--group", action="append", choices=GROUPS, help="default: all but forms")
    parser.add_argument("--mode", default="none", choices=["none", "matmult", "all"], help="of --auto-cast")
    parser.add_argument("--size", type=int, default=5000, help="instructions of the forms")
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    compilation(lower(lambda x: x + 1, [np.zeros(4, np.float32)]), options.mode)
    print(
        f"{'program':24s} {'HLO':>7s} {'instr.':>8s} {'import':>8s} {'passes':>8s} {'codegen':>8s} {'load':>8s} "
        f"{'us/HLO':>7s} {'us/ins.':>7s} {'seconds':>8s} {'jaxlib':>8s} {'ratio':>6s}"
    )
    ratios = []
    for group in options.group or [each for each in GROUPS if each != "forms"]:
        for name, make in programs(group, options.size):
            if options.patterns and not any(fnmatch.fnmatch(name, pattern) for pattern in options.patterns):
                continue
            proto = make()
            gc.collect()
            found = least(proto, options.mode, options.repeat)
            other = None if name.startswith(COLLECTIVE) else peer(proto)
            ratios += [found.seconds / other] if other else []
            print(row(name, found, other), flush=True)
    if ratios:
        mean = geometric_mean(ratios)
        print(f"{len(ratios)} programs: {mean:.2f} times jaxlib's CPU time (geometric mean), at most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
