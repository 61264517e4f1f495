"""Runs passes by name over a module: options, warnings, timing, dumps, checks.

Passes mutate the module in place. This file imports neither the printer nor the verifier's callers: dumps go through a
callback that the driver passes in.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neuronx_cc.ir import collector, progress
from neuronx_cc.ir.errors import NO_LOC, Loc, NeuronError, UsageError
from neuronx_cc.ir.hlo import HloModule, HloOp
from neuronx_cc.ir.hlo.editing import kinds_in, ops_of
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.passes import PASSES
from neuronx_cc.passes.precision.policy import NO_RULES, TYPES, Policy

if TYPE_CHECKING:
    from neuronx_cc.ir.verify import Verifier

INTEGER_DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")
"""Values of ``--implicit-integer-downcast`` beside ``default``, ``all`` and ``none``."""

CAST_DTYPES = {name: dtype for name, dtype in TYPES.items() if name != "fp32"}
"""Value of ``--auto-cast-type`` -> element type."""


def parse_integer_downcast(text: str) -> frozenset[str]:
    """The ops that ``--implicit-integer-downcast TEXT`` permits; raises UsageError for an unknown one."""
    if text in ("default", "all"):
        return frozenset(INTEGER_DOWNCASTS)
    if text == "none":
        return frozenset()
    chosen = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(chosen - set(INTEGER_DOWNCASTS))
    if unknown:
        raise UsageError(
            "EARG001",
            f"--implicit-integer-downcast does not know {', '.join(unknown)}",
            f"choose default, all, none or a comma list out of {', '.join(INTEGER_DOWNCASTS)}",
        )
    return chosen


@dataclass(frozen=True)
class PassOptions:
    """What the passes may vary; the values are those of the command line."""

    auto_cast: str = "matmult"
    """``none``, ``matmult`` or ``all``."""
    auto_cast_type: str = "bf16"
    """A key of ``CAST_DTYPES``."""
    policy: Policy = NO_RULES
    """Rules that choose types op by op."""
    release: str = "latest"
    """Operator set to check against."""
    implicit_integer_downcast: frozenset[str] = frozenset(INTEGER_DOWNCASTS)
    mixed_precision_accumulation: bool = True
    """Sum and product reductions of 16-bit values run in FP32 and are cast back."""
    fast_relayout: bool = True
    """Transposes may go through TensorE in the cast type (read by codegen)."""
    fp64_as_fp32: bool = False
    """FP64 is computed in FP32; inputs and outputs keep their types."""
    int64: str = "truncate"
    """``exact``: 64-bit integers in two words; ``truncate``: their low words, with warnings."""
    saturate_infinity: bool = False
    """Clamp infinities ahead of transposes that the compiler inserts on TensorE."""

    def __post_init__(self) -> None:
        if self.auto_cast not in ("none", "matmult", "all"):
            raise UsageError("EARG001", f"auto-cast mode {self.auto_cast!r} is unknown", "use none, matmult or all")
        if self.auto_cast_type not in CAST_DTYPES:
            raise UsageError(
                "EARG001", f"auto-cast type {self.auto_cast_type!r} is unknown", f"use {', '.join(CAST_DTYPES)}"
            )


@dataclass(frozen=True, slots=True)
class PassWarning:
    """Something the user should know; ``code`` is a catalogue code."""

    code: str
    message: str
    loc: Loc = NO_LOC

    def __str__(self) -> str:
        place = f" (at {self.loc})" if self.loc != NO_LOC else ""
        return f"[NCC_{self.code}] {self.message}{place}"


@dataclass(frozen=True, slots=True)
class PrecisionRecord:
    """One decision about the precision of one operand or result of one op."""

    name: str
    op_name: str
    source: str
    """``file:line`` of the user's program, or empty."""
    opcode: str
    operand: str
    """``operand 0``, ``operand 1``, ..., or ``result``."""
    from_dtype: str
    to_dtype: str
    """Equal to ``from_dtype`` when the op was considered and left alone."""
    reason: str


@dataclass(frozen=True, slots=True)
class PassTiming:
    name: str
    seconds: float
    ops_before: int
    ops_after: int


@dataclass
class PassContext:
    """What passes read (options) and leave (everything else)."""

    options: PassOptions = field(default_factory=PassOptions)
    machine: Machine = field(default_factory=lambda: find_machine("trn1"))
    """What the program is planned for."""
    timing: Timing = field(init=False)
    warnings: list[PassWarning] = field(default_factory=list)
    precision: list[PrecisionRecord] = field(default_factory=list)
    timings: list[PassTiming] = field(default_factory=list)
    timed: bool = True
    """Whether to fill ``timings``, which takes counting all ops after each pass."""
    failed_pass: str = ""
    """Name of the pass that raised, for the reproducer of an internal error."""

    def __post_init__(self) -> None:
        self.timing = Timing(self.machine)

    def warn(self, code: str, message: str, loc: Loc = NO_LOC) -> None:
        self.warnings.append(PassWarning(code, message, loc))


Dump = Callable[[HloModule, str], None]
"""Called with the module and a title such as ``before cse``."""


Pass = Callable[[HloModule, PassContext], None]

_KINDS: dict[Pass, tuple[type, ...]] = {}


def only_for(*kinds: type) -> Callable[[Pass], Pass]:
    """The pass does nothing to a module without an op of one of these kinds, and is not run on it."""

    def declare(run: Pass) -> Pass:
        _KINDS[run] = kinds
        return run

    return declare


def count_ops(module: HloModule) -> int:
    """Instructions in all computations, parameters and returns not counted."""
    return sum(1 for computation in module.computations() for _ in ops_of(computation.block))


class _Kinds:
    """The classes of the ops that a module holds, looked up again only after a pass has run."""

    def __init__(self, module: HloModule):
        self.module = module
        self.known: set[type[HloOp]] | None = None

    def concern(self, run: Pass) -> bool:
        """Whether there is anything that the pass ``run`` is for."""
        wanted = _KINDS.get(run)
        if wanted is None:
            return True
        if self.known is None:
            self.known = kinds_in(self.module)
        return any(issubclass(kind, wanted) for kind in self.known)


def run_passes(
    module: HloModule,
    names: Iterable[str],
    context: PassContext,
    *,
    print_before: Collection[str] = (),
    print_after: Collection[str] = (),
    dump: Dump | None = None,
    verify_each: bool = False,
) -> None:
    """Run the passes ``names`` over ``module`` in order.

    ``print_before`` and ``print_after`` name passes (or ``all``) around which ``dump`` is called. With
    ``verify_each`` every op is verified after every pass that had something to do. A ``NeuronError`` leaves with the
    pass's name in it; an unknown name raises UsageError before anything runs.
    """
    names = list(names)
    for name in {*names, *print_before, *print_after} - {"all"}:
        if name not in PASSES:
            raise UsageError("EARG001", f"there is no pass {name!r}", f"the passes are {', '.join(sorted(PASSES))}")
    verifier = None
    if verify_each:
        from neuronx_cc.ir.verify import Verifier

        verifier = Verifier(module)
    with collector.paused():
        count, kinds = count_ops(module) if context.timed else 0, _Kinds(module)
        for number, name in enumerate(names):
            progress.note(number, len(names), name)
            if dump and (name in print_before or "all" in print_before):
                dump(module, f"before {name}")
            count = _run_one(kinds, name, context, count, verifier)
            if dump and (name in print_after or "all" in print_after):
                dump(module, f"after {name}")


def _run_one(kinds: _Kinds, name: str, context: PassContext, count: int, verifier: "Verifier | None") -> int:
    start, module = time.perf_counter(), kinds.module
    try:
        run = PASSES[name]()
        if concerned := kinds.concern(run):
            run(module, context)
            kinds.known = None
        seconds = time.perf_counter() - start
        if verifier and concerned:
            verifier.verify()
    except NeuronError as error:
        context.failed_pass = name
        error.pass_name = error.pass_name or name
        raise
    except Exception:
        context.failed_pass = name
        raise
    if not context.timed:
        return 0
    after = count_ops(module)
    context.timings.append(PassTiming(name, seconds, count, after))
    return after


def timing_table(context: PassContext) -> str:
    """One line a pass: milliseconds, share, ops before and after; the total last."""
    total = sum(timing.seconds for timing in context.timings)
    width = max([len("pass"), *(len(timing.name) for timing in context.timings)])
    lines = [f"{'pass':<{width}}  {'ms':>9}  {'%':>5}  {'ops':>7}  {'after':>7}"]
    for timing in context.timings:
        share = 100 * timing.seconds / total if total else 0.0
        lines.append(
            f"{timing.name:<{width}}  {timing.seconds * 1e3:>9.2f}  {share:>5.1f}  "
            f"{timing.ops_before:>7}  {timing.ops_after:>7}"
        )
    lines.append(f"{'total':<{width}}  {total * 1e3:>9.2f}")
    return "\n".join(lines) + "\n"


def precision_report(context: PassContext) -> str:
    """The precision decisions as an aligned table for ``--dump-precision``, one line an operand or result: what was
    cast, or stored in another type, ahead of what stays.
    """
    header = ("name", "opcode", "operand", "from", "to", "reason", "op_name", "source")
    rows = [
        (r.name, r.opcode, r.operand, r.from_dtype, r.to_dtype, r.reason, r.op_name, r.source)
        for r in sorted(context.precision, key=lambda r: r.from_dtype == r.to_dtype)
    ]
    rows = list(dict.fromkeys(rows))  # elements of a tuple have one name
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in lines) + "\n"
