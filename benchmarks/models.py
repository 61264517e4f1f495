"""The budget table: what was measured here, what jaxlib's CPU client takes for the same in the same run, the budget.

    python benchmarks/models.py [ROW ...]      # rows by function name; all of them without arguments

A row that cannot be measured says why in one line. Times are wall times of this machine unless a row says
"simulated"; best of a few runs.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import bert
import gpt2
import jax
import jax.numpy as jnp
import mlp_train
import numpy as np
from lowering import lower
from stopwatch import best, once

import neuronx_cc

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("neuronx-cc")


class Row(NamedTuple):
    """One line of the table; ``met`` compares the measured number with the budget."""

    what: str
    measured: str
    jaxlib: str
    budget: str
    met: bool


def command(*arguments: str) -> None:
    subprocess.run([str(COMMAND), *arguments], check=True, capture_output=True)


def compile_xla(proto: bytes) -> Any:
    """Compile the module by jaxlib's CPU client."""
    from jaxlib import _jax

    device = jax.devices("cpu")[0]
    return device.client.compile_and_load(_jax.mlir.hlo_to_stablehlo(proto), [device])


def startup() -> Row:
    """``--help`` and ``list-operators`` from a shell."""
    help_time = best(lambda: command("--help"), 5)
    list_time = best(lambda: command("list-operators"), 5)
    peer = best(lambda: subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], check=True), 3)
    return Row(
        "start-up: --help / list-operators",
        f"{help_time:.2f} s / {list_time:.2f} s",
        f"{peer:.2f} s (import, first device)",
        "< 0.3 s",
        max(help_time, list_time) < 0.3,
    )


def import_and_passes() -> Row:
    """Time from bytes to the module that code generation takes, by HLO instruction of the input."""
    from neuronx_cc.hlo_import import load_module
    from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
    from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

    model = gpt2.build(gpt2.Config(width=64, heads=4, vocabulary=512))
    names = [name for _, stage in DEFAULT_PIPELINE for name in stage]
    count = instructions(model.text)

    def go() -> None:
        run_passes(load_module(model.proto), names, PassContext(PassOptions()))

    each = best(go) / count * 1e6
    peer = best(lambda: compile_xla(model.proto), 1) / count * 1e6
    return Row(
        f"import + passes, GPT-2 ({count} instructions)",
        f"{each:.0f} us/instruction",
        f"{peer:.0f} us/instruction (whole compile)",
        "< 150 us",
        each < 150,
    )


def compile_training_step() -> Row:
    """End to end compile of a training step of about 10,000 instructions: the MLP example, deep and narrow."""
    model = mlp_train.build(mlp_train.Config((64, *[64] * DEEP_LAYERS, 10), batch=32))
    count = instructions(model.text)
    seconds, _ = once(lambda: neuronx_cc.compile(model.proto, auto_cast="none"))
    peer, _ = once(lambda: compile_xla(model.proto))
    return Row(
        f"compile a training step ({count} instructions)", f"{seconds:.1f} s", f"{peer:.1f} s", "< 20 s", seconds < 20
    )


DEEP_LAYERS = 185
"""Gives 10,000 instructions."""


def simulate_gpt2() -> Row:
    """GPT-2 small, values and clock, against XLA-CPU running the same."""
    model = gpt2.build()
    executable = neuronx_cc.compile(model.proto, auto_cast="none")
    executable.run(model.arguments)
    seconds = best(lambda: executable.run(model.arguments))
    model.jitted()
    peer = best(model.jitted, 5)
    return Row(
        "simulate GPT-2 small forward, f32",
        f"{seconds:.2f} s ({seconds / peer:.1f} x)",
        f"{peer:.3f} s",
        "<= 2 x XLA-CPU",
        seconds <= 2 * peer,
    )


def gemm() -> Row:
    """A 4096^3 matrix product in bf16: share of the peak of TensorE that the simulated program reaches."""
    size = 4096
    shape = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    proto = lower(lambda a, b: a @ b, (shape, shape))
    executable = neuronx_cc.compile(proto, auto_cast="none")
    report = executable.run([], timing_only=True).report
    random = np.random.default_rng(0)
    array = jax.device_put(random.standard_normal((size, size), np.float32).astype(jnp.bfloat16))
    product = jax.jit(lambda a, b: a @ b)
    jax.block_until_ready(product(array, array))
    peer = best(lambda: jax.block_until_ready(product(array, array)), 1)
    # FLOPs of the product itself: transposes that the program runs on TensorE are no achievement
    share = report.summary["mfu_inst_estimated_percent"] * 2 * size**3 / report.summary["adjusted_hardware_flops"]
    return Row(
        "GEMM 4096^3 bf16, simulated",
        f"{share:.0%} of TensorE peak ({report.time_ns / 1e6:.2f} ms)",
        f"{peer * 1e3:.0f} ms",
        ">= 80 %",
        share >= 0.8,
    )


def bert_base() -> Row:
    """BERT-base with its weights as constants, as one would deploy it."""
    model = bert.build(weights="constants")
    executable = neuronx_cc.compile(model.proto, auto_cast="matmult")
    report = executable.run([], timing_only=True).report
    model.jitted()
    peer = best(model.jitted, 5)
    milliseconds = report.time_ns / 1e6
    return Row(
        "BERT-base, --auto-cast matmult, simulated",
        f"{milliseconds:.3f} ms",
        f"{peer * 1e3:.0f} ms",
        "<= 0.943 ms",
        milliseconds <= 0.943,
    )


def compile_memory() -> Row:
    """Peak resident memory of ``neuronx-cc compile`` on BERT-base with constants, and of the same in jaxlib."""
    with tempfile.TemporaryDirectory() as directory:
        source, output = os.path.join(directory, "bert.hlo.pb"), os.path.join(directory, "bert.neff")
        save = [sys.executable, str(ROOT / "examples" / "bert.py"), "--weights", "constants", "--save-hlo", source]
        subprocess.run(save, check=True, capture_output=True)
        constants = os.path.getsize(source)
        arguments = ["compile", source, "--output", output, "--logfile", os.path.join(directory, "log")]
        peak = peak_memory([str(COMMAND), *arguments])
        peer = peak_memory([sys.executable, __file__, "--compile-by-jaxlib", source])
    limit = 3 * constants + 2**30
    return Row(
        "peak memory of compiling BERT-base",
        f"{peak / 2**30:.2f} GiB ({constants / 2**30:.2f} GiB of constants)",
        f"{peer / 2**30:.2f} GiB",
        f"<= 3 x constants + 1 GiB = {limit / 2**30:.2f} GiB",
        peak <= limit,
    )


MEASURE = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A process's peak counts that of the process it was forked from, so a small one must start what is measured."""


def peak_memory(arguments: Sequence[str]) -> int:
    """Bytes of the largest resident set of a process that must succeed."""
    run = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr.strip() or f"exit status {run.returncode}")
    return int(run.stdout) * 1024


def instructions(text: str) -> int:
    """How many instructions an HLO text has, those of called computations included."""
    return sum(" = " in line for line in text.splitlines())


ROWS: dict[str, Callable[[], Row]] = {
    row.__name__: row
    for row in (startup, import_and_passes, compile_training_step, simulate_gpt2, gemm, bert_base, compile_memory)
}


def reason(error: Exception) -> str:
    """One line of why: the compiler's own error line if there is one, else the last line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if "[NCC_" in line]
    return f"{type(error).__name__}: {(own or lines[-1:] or [''])[0][:150]}"


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--compile-by-jaxlib"]:
        compile_xla(Path(arguments[1]).read_bytes())
        return 0
    unknown = set(arguments) - set(ROWS)
    if unknown:
        print(f"no such row: {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}", file=sys.stderr)
        return 2
    print(f"{'what':<48} {'measured':<38} {'jaxlib, CPU':<34} {'budget':<36} met")
    for name, row in ROWS.items():
        if arguments and name not in arguments:
            continue
        try:
            r = row()
        except Exception as error:
            print(f"{name:<48} not available: {reason(error)}", flush=True)
            continue
        print(f"{r.what:<48} {r.measured:<38} {r.jaxlib:<34} {r.budget:<36} {'yes' if r.met else 'no'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
