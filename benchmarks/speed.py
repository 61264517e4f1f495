"""The simulator beside jaxlib's CPU client, program by program in one process: values, first runs, compile times.

    python benchmarks/speed.py [--group classes] ... [--repeat 3] [--json FILE] [PATTERN ...]

Groups: the examples at full size, ``classes`` (kinds of work of which each program has one), and the programs of the
conformance tests. Patterns (``fnmatch``) choose among their names. Columns: CPU milliseconds of a later run of the
values (``Executable.compute``) and of jaxlib for the same, their ratio; of the first run, race check included, and how
many times a later one that is; seconds to compile here and there, their ratio; instructions that Python carried out in
the later run. The last line has the geometric mean of the ratios of runs, and the worst one. CPU seconds, the least of
``--repeat`` runs, hardly depend on what else the machine does. A program is gone before the next one is made, and one
whose arrays take more than ``--memory`` GiB is left out.
"""

import argparse
import fnmatch
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean as mean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import jax
import numpy as np
import op_cases
import speed_classes
from full_size import PROGRAMS
from jaxlib import _hlo, _jax
from lowering import lower

import neuronx_cc
from neuronx_cc.hlo_import.wire import varint
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.runtime.native.executor import NativeExecutor

GIB = 1 << 30
GROUPS = ("examples", "classes", "conformance")


class Work(NamedTuple):
    """A module and the arrays to run it on."""

    proto: bytes
    arguments: list[Any]


class Row(NamedTuple):
    """What was measured of one program: CPU seconds."""

    name: str
    run: float
    peer_run: float
    first: float
    compiled: float
    peer_compiled: float
    in_python: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.run / self.peer_run

    @property
    def compile_ratio(self) -> float:
        return self.compiled / self.peer_compiled

    @property
    def line(self) -> str:
        return (
            f"{self.name:<30}{self.run * 1e3:>10.2f}{self.peer_run * 1e3:>10.2f}{self.ratio:>7.2f}"
            f"{self.first * 1e3:>10.1f}{self.first / self.run:>7.1f}"
            f"{self.compiled:>8.2f}{self.peer_compiled:>8.2f}{self.compile_ratio:>7.2f}"
            f"  {', '.join(f'{op} {count}' for op, count in self.in_python.items())}"
        )


HEADER = (
    f"{'program':<30}{'run ms':>10}{'jaxlib':>10}{'ratio':>7}{'first ms':>10}{'/ run':>7}"
    f"{'comp. s':>8}{'jaxlib':>8}{'ratio':>7}  in Python"
)


def programs(groups: Sequence[str]) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Names and what makes the modules of the groups."""
    if "examples" in groups:
        for name, build in PROGRAMS.items():
            yield name, lambda build=build: (lambda model: Work(model.proto, model.arguments))(build())
    if "classes" in groups:
        for name, (function, arguments) in speed_classes.classes().items():
            yield name, lambda f=function, a=arguments: Work(lower(f, a), jax.tree.leaves(a))
    if "conformance" in groups:
        for case in op_cases.cases():
            if not any(fnmatch.fnmatch(case.name, killer) for killer in KILLERS):
                yield case.name, lambda case=case: Work(proto_of(case.text), list(case.inputs))


def proto_of(text: str) -> bytes:
    """HLO text as a proto."""
    proto: bytes = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return proto


def cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of all threads, and the value."""
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def least(call: Callable[[], Any], repeat: int) -> float:
    """CPU seconds of one call. Calls too short for the clock are made many at a time."""
    once = cpu(call)[0]
    count = max(1, min(1000, int(0.01 / max(once, 1e-6))))
    return min(cpu(lambda: [call() for _ in range(count)])[0] / count for _ in range(repeat))


DONATION = frozenset([8, 18])
"""Fields of an HloModuleProto that say which parameters a call may take for its results."""
KILLERS = ("ragged-all-to-all-*", "rng-[su]8", "rng-[su]16", "rng-f8*")
"""Programs that jaxlib 0.10.2's CPU client dies of."""


def without_donation(proto: bytes) -> bytes:
    """The module with parameters that outlive a call."""
    kept, at = [], 0
    while at < len(proto):
        start = at
        tag, at = varint(proto, at, len(proto))
        assert tag & 7 in (0, 2), "an HloModuleProto has numbers and messages"
        number, at = varint(proto, at, len(proto))
        at += number if tag & 7 == 2 else 0
        if tag >> 3 not in DONATION:
            kept.append(proto[start:at])
    return b"".join(kept)


def peer(work: Work) -> tuple[float, Callable[[], Any]]:
    """CPU seconds that jaxlib compiles, and a call of what it made, its arrays on the device already."""
    device = jax.devices("cpu")[0]
    stablehlo = _jax.mlir.hlo_to_stablehlo(without_donation(work.proto))
    seconds, loaded = cpu(lambda: device.client.compile_and_load(stablehlo, [device]))
    with jax.enable_x64(True):
        arrays = [jax.device_put(np.array(array, order="C"), device) for array in work.arguments]

    def call() -> None:
        jax.block_until_ready(loaded.execute_sharded(arrays).disassemble_into_single_device_arrays())

    return seconds, call


IN_PYTHON: Counter[str] = Counter()
"""Instructions that the native core left to Python, by mnemonic, since it was last cleared."""


def watch() -> None:
    """Counts what every executor made from here on leaves to Python."""
    carry_out = NativeExecutor.fall_back

    def counted(self: NativeExecutor, number: int) -> None:
        record = self.program.records[number]
        IN_PYTHON[record.op if isinstance(record, Instr) else "?"] += 1
        carry_out(self, number)

    NativeExecutor.fall_back = counted  # type: ignore[method-assign]


def measure(name: str, work: Work, repeat: int) -> Row:
    """One row. Raises NeuronError for what does not compile."""
    compiled, executable = cpu(lambda: neuronx_cc.compile(work.proto, auto_cast="none"))
    inputs = executable.check_inputs(work.arguments)
    results = sorted(
        (each.index, each.dims, each.dtype) for each in executable.program.variables if each.kind == "output"
    )
    outputs = [np.empty(dims, bool if dtype == "pred" else STORAGE[dtype]) for _, dims, dtype in results]

    def run() -> None:
        executable.compute(inputs, outputs)

    first, _ = cpu(run)
    IN_PYTHON.clear()
    run()
    in_python = dict(IN_PYTHON.most_common())
    later = least(run, repeat)
    peer_compiled, call = peer(work)
    call()
    return Row(name, later, least(call, repeat), first, compiled, peer_compiled, in_python)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="all programs without any")
    parser.add_argument("--group", action="append", choices=GROUPS, help="default: examples and classes")
    parser.add_argument("--repeat", type=int, default=3, help="how many runs the least is of")
    parser.add_argument("--memory", type=float, default=4, metavar="GIB", help="most that a program's arrays may take")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    options = parser.parse_args()
    neuronx_cc.compile(lower(lambda x: x + 1, [np.zeros(4, np.float32)]))  # imports what compiling needs
    watch()
    rows: list[Row] = []
    print(HEADER)
    for name, make in programs(options.group or ["examples", "classes"]):
        if options.patterns and not any(fnmatch.fnmatch(name, pattern) for pattern in options.patterns):
            continue
        try:
            work = make()
            taken = sum(np.asarray(array).nbytes for array in work.arguments) / GIB
            if taken > options.memory:
                print(f"{name:<30} left out: {taken:.1f} GiB of arguments", flush=True)
                continue
            rows.append(measure(name, work, options.repeat))
        except (NeuronError, jax.errors.JaxRuntimeError) as error:
            print(f"{name:<30} not measured: {str(error).splitlines()[0][:120]}", flush=True)
            continue
        print(rows[-1].line, flush=True)
        del work
        gc.collect()
    if options.json:
        options.json.write_text(json.dumps([row._asdict() | {"ratio": row.ratio} for row in rows], indent=1))
    if rows:
        worst = max(rows, key=lambda row: row.ratio)
        print(
            f"{len(rows)} programs: {mean([row.ratio for row in rows]):.2f} times jaxlib's CPU time (geometric mean), "
            f"at most {worst.ratio:.1f} ({worst.name}); first runs {sum(row.first for row in rows):.1f} s, "
            f"later {sum(row.run for row in rows):.1f} s; compiling {mean([row.compile_ratio for row in rows]):.2f}"
        )
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
