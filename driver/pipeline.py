"""Runs pass pipelines for the commands: maps options to ``PassOptions``, names stages, prints, dumps and times.

Input: an imported module, changed in place. Side outputs: files of ``--dump`` and ``--dump-precision``, warnings.
"""

import json
import os
import shlex
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.parse import Parsed, closest
from neuronx_cc.driver.policy_file import policy_of
from neuronx_cc.ir.errors import CompileError, UsageError
from neuronx_cc.ir.machine import Machine

if TYPE_CHECKING:
    from neuronx_cc.ir.hlo import HloModule
    from neuronx_cc.ir.isa.program import Program
    from neuronx_cc.passes.manager import PassContext, PassOptions

Stages = Sequence[tuple[str, Sequence[str]]]
MAX_COUNT = 4096
"""Most replicas, or partitions, of a command line."""
WARNINGS_PER_CODE = 8


def pass_options(parsed: Parsed) -> "PassOptions":
    """The options that passes read."""
    from neuronx_cc.passes.manager import PassOptions, parse_integer_downcast

    return PassOptions(
        auto_cast=parsed.text("auto_cast"),
        auto_cast_type=parsed.text("auto_cast_type"),
        policy=policy_of(
            parsed.text_or_none("precision_policy"), parsed.names("keep_fp32"), parsed.text_or_none("quantize_weights")
        ),
        release=parsed.text("release"),
        implicit_integer_downcast=parse_integer_downcast(",".join(parsed.names("implicit_integer_downcast"))),
        mixed_precision_accumulation=parsed.flag("mixed_precision_accumulation"),
        fast_relayout=parsed.flag("fast_relayout"),
        fp64_as_fp32=parsed.flag("fp64_as_fp32"),
        int64=parsed.text("int64"),
        saturate_infinity=parsed.flag("saturate_infinity"),
    )


def default_stages() -> Stages:
    """The pipeline that ``compile`` runs."""
    from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

    return DEFAULT_PIPELINE


def run_pipeline(
    module: "HloModule", parsed: Parsed, session: Session, machine: Machine, stages: Stages | None = None
) -> "PassContext":
    """Run ``stages`` (default: the whole pipeline) on ``module``, under the printing options of the command."""
    from neuronx_cc.passes.flatten_control import inlined
    from neuronx_cc.passes.manager import PassContext, precision_report, run_passes, timing_table

    stages = default_stages() if stages is None else stages
    before = _selected(parsed, "print_ir_before", stages)
    after = _selected(parsed, "print_ir_after", stages)
    precision_file = parsed.text_or_none("dump_precision")
    if precision_file is not None:
        files.check_writable(precision_file, "--dump-precision", parsed.files)
    _state_devices(module, parsed)
    context = PassContext(pass_options(parsed), machine, timed=parsed.flag("time_passes"))
    if _rules_are_for_this(parsed, session):
        context.options.policy.check(module, inlined)
    dump = _Dump(parsed, session)
    dump.module("import", module)
    for stage, names in stages:
        session.enter(f"running the passes of stage {stage}")
        started = time.perf_counter()
        try:
            run_passes(
                module,
                names,
                context,
                print_before=before,
                print_after=after,
                dump=partial(_print_ir, session),
                verify_each=parsed.flag("verify_each"),
            )
        except Exception:
            session.stage = f"running pass {context.failed_pass}" if context.failed_pass else session.stage
            raise
        session.log.info(f"{stage}: {time.perf_counter() - started:.3f} s")
        dump.module(stage, module)
    _warn(context, session)
    if precision_file is not None:
        files.write_text(precision_file, precision_report(context), CompileError)
    if parsed.flag("time_passes"):
        session.progress.clear()
        # the other stream carries the module, or JSON
        print(timing_table(context), end="", file=sys.stderr if parsed.command.name == "opt" or session.json else None)
    return context


def _state_devices(module: "HloModule", parsed: Parsed) -> None:
    """What ``--num-replicas``, ``--num-partitions`` and ``--keep-collectives`` say, into the module."""
    from neuronx_cc.passes.analysis.devices import state_counts
    from neuronx_cc.passes.analysis.effects import keep_collectives

    counts = [parsed.integer_or_none("num_replicas"), parsed.integer_or_none("num_partitions")]
    for option, count in zip(("--num-replicas", "--num-partitions"), counts, strict=True):
        if count is not None and not 1 <= count <= MAX_COUNT:
            raise UsageError("EARG902", f"{option} takes 1 to {MAX_COUNT}, found {count}", "see --help")
    state_counts(module, *counts)
    if parsed.values.get("keep_collectives"):
        keep_collectives(module)


def _rules_are_for_this(parsed: Parsed, session: Session) -> bool:
    """Whether rules were given for one module; those of NEURON_CC_FLAGS are for whatever JAX compiles."""
    spellings = [parsed.given[key][0] for key in ("precision_policy", "keep_fp32") if key in parsed.given]
    return session.program != "jax" or not all(spelling.startswith("--") for spelling in spellings)


WITHOUT_EFFECT = "EARG911"
"""The code of what was asked for and changes nothing."""


def _warn(context: "PassContext", session: Session) -> None:
    """Print the passes' warnings, of each code the first few; the log file and the NEFF have all."""
    counts: Counter[str] = Counter()
    for warning in context.warnings:
        counts[warning.code] += 1
        if counts[warning.code] <= WARNINGS_PER_CODE:
            session.log.warning(str(warning))
            if warning.code == WITHOUT_EFFECT and session.program == "neuronx_cc.compile":
                warnings.warn(str(warning), UserWarning, stacklevel=2)  # the log says errors alone there
        else:
            session.log.file_only(str(warning))
    for code, count in counts.items():
        if count > WARNINGS_PER_CODE:
            session.log.warning(f"[NCC_{code}] {count - WARNINGS_PER_CODE} more such warnings")


def _print_ir(session: Session, module: "HloModule", title: str) -> None:
    from neuronx_cc.hlo_import.printer import print_module

    text = f"// IR {title}\n{print_module(module, large_constants=False)}"
    session.progress.clear()
    print(text, end="", file=sys.stderr if session.json else None)


def _selected(parsed: Parsed, key: str, stages: Stages) -> tuple[str, ...]:
    """Passes named by a printing option; raises ``UsageError`` for one that does not run."""
    names = parsed.names(key)
    known = [name for _, passes in stages for name in passes]
    for name in names:
        if name != "all" and name not in known:
            option = f"--{key.replace('_', '-')}"
            raise UsageError(
                "EARG902",
                f"{option}: no pass {name!r} runs{closest(name, known)}",
                f"all, or of: {', '.join(dict.fromkeys(known))}",
            )
    return names


def keeps_temporaries(parsed: Parsed) -> bool:
    """Whether ``--pipeline`` asks to keep what is in between, as scripts of the vendor's compiler do."""
    words = parsed.values.get("pipeline")
    return isinstance(words, tuple) and "SaveTemps" in words


def dump_program(program: "Program", parsed: Parsed, session: Session) -> None:
    """Add the instructions to what ``SaveTemps`` keeps."""
    if not keeps_temporaries(parsed):
        return
    from neuronx_cc.ir.isa.assembly import disassemble

    folder = Path(session.artifacts) / "sg00"
    with suppress(FileExistsError):
        folder.mkdir()
    files.write_text(str(folder / "instructions.txt"), "\n".join(disassemble(program)) + "\n", CompileError)


class _Dump:
    """``--dump DIR``, ``--pipeline ... SaveTemps``: input, IR after every stage, options. Else does nothing."""

    def __init__(self, parsed: Parsed, session: Session) -> None:
        place = parsed.values.get("dump")
        saves = place is None and keeps_temporaries(parsed)
        self._directory = None
        self._count = 0
        if not saves and not isinstance(place, str):
            return
        try:
            if saves:
                work = Path(str(parsed.values.get("workdir") or "."))
                work.mkdir(parents=True, exist_ok=True)
                self._directory = Path(tempfile.mkdtemp(prefix="neuronxcc-", dir=work.resolve()))
            else:
                self._directory = Path(str(place))
                self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError("EFIL902", f"cannot make the directory {place or work}: {error.strerror}") from None
        session.artifacts = str(self._directory.resolve())
        if session.module is not None:
            name, data = session.module
            self._write(f"input{Path(name).suffix}", data)
        self._write("options.json", json.dumps(parsed.values, indent=1).encode())
        self._write("command.txt", f"{shlex.join([session.program, *session.argv])}\n".encode())

    def module(self, stage: str, module: "HloModule") -> None:
        if self._directory is None:
            return
        from neuronx_cc.hlo_import.printer import print_module

        self._write(f"{self._count:02d}-{stage.replace(' ', '-')}.hlo", print_module(module).encode())
        self._count += 1

    def _write(self, name: str, data: bytes) -> None:
        assert self._directory is not None
        files.write_bytes(os.path.join(self._directory, name), data, CompileError)
