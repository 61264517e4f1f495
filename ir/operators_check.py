"""Checks a module against the coverage table and names everything that would not compile, at once.

Input: a module after import. Output: ``Problem``s in program order; the ``check_operators`` pass raises or warns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from neuronx_cc.ir.operators_table import C64, CUSTOM_CALLS, DTYPES, GENERATED, OPERATORS, RELEASES, Operator
from neuronx_cc.ir.small_types import COMPUTED

if TYPE_CHECKING:
    from neuronx_cc.ir import hlo
    from neuronx_cc.ir.errors import Loc

_COMBINING = frozenset(
    [
        "all-reduce",
        "all-reduce-start",
        "collective-reduce",
        "reduce",
        "reduce-scatter",
        "reduce-window",
        "scan",
        "scatter",
        "select-and-scatter",
        "sort",
    ]
)
"""Ops whose computation is part of the op, not code of its own."""

_FLOATING = {"ragged-dot": 2, "stochastic-convert": 1, "get-tuple-element": 0}
"""How many of the first operands have the row's element types, where not all have; a tuple's elements are checked where
it is made."""

_NARROWED = {"s64": "s32", "u64": "u32"}
"""The integer narrowing pass runs after this check."""

_WIDENED = {**_NARROWED, **COMPUTED}
"""So does the pass that makes small types wider, which is no vendor release's."""

_DEMOTED = {"f64": "f32", "c128": C64}
"""With ``--fp64-as-fp32``, so does a pass that demotes floats."""

_OF_OTHER_PLATFORMS = ("lapack_", "cusolver_", "hipsolver_", "cu_", "hip_", "xla_ffi_python_", "xla_python_")
"""How the targets begin that JAX emits for CPUs and GPUs."""

_DTYPE_CODES = {
    "c64": ("EVRF004", "take the parts apart with real and imag"),
    "c128": ("EVRF004", "use complex64 (jax_enable_x64 off), or compile with --fp64-as-fp32"),
    "f64": ("ESPP004", "use f32 (jax_enable_x64 off), or compile with --fp64-as-fp32"),
    "f8e4m3fn": ("EVRF051", "use f8e4m3, or bf16"),
    "f8e4m3fnuz": ("EVRF005", "use f16, or f8e4m3"),
    "f8e4m3b11fnuz": ("EVRF005", "use f16, or f8e4m3"),
    "f8e5m2fnuz": ("EVRF005", "use f16, or f8e5m2"),
    "f8e3m4": ("ESPP047", "use f16, or f8e4m3"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One op that would not compile, or (``warns``) would compile to something else than meant."""

    code: str
    opcode: str
    message: str
    remedy: str
    loc: "Loc"
    warns: bool = False


def check_module(module: "hlo.HloModule", release: str = "latest", demotes: bool = False) -> list[Problem]:
    """Everything in ``module`` outside ``release``'s operator set; ``demotes``: FP64 counts as FP32.

    ValueError for an unknown release.
    """
    narrowed = (_WIDENED if release == "latest" else _NARROWED) | (_DEMOTED if demotes else {})
    if release not in RELEASES:
        raise ValueError(f"unknown release {release!r}; known: {', '.join(RELEASES)}")
    combiners = {
        name
        for computation in module.computations()
        for op in computation.block.ops
        if getattr(op, "opcode", "") in _COMBINING
        for name in cast(Any, op).to_apply.data
    }
    problems: list[Problem] = []
    right: set[tuple[str, ...]] = set()
    for computation in module.computations():
        if computation.computation_name in combiners:
            continue
        if computation.is_entry.data:
            for index, argument in enumerate(computation.block.args):
                loc = computation.parameter_loc(index)
                problems += _dtype_problems(OPERATORS["parameter"], [argument.type], loc, narrowed)
        for op in computation.block.ops:
            if hasattr(op, "opcode") and (kind := _kind(cast("hlo.HloOp", op), release)) not in right:
                found = check_op(cast("hlo.HloOp", op), module, release, narrowed)
                problems += found
                if kind and not found:
                    right.add(kind)
    return problems


def _kind(op: "hlo.HloOp", release: str) -> tuple[str, ...]:
    """Opcode and element types, where ops that have them in common have all problems in common; else nothing."""
    if op.opcode == "custom-call" or OPERATORS[op.opcode].limits_of(release):
        return ()
    dtypes = [getattr(getattr(value.type, "data", None), "dtype", "") for value in (*op.operands, *op.results)]
    return (op.opcode, *dtypes) if all(dtypes) else ()


def check_op(
    op: "hlo.HloOp", module: "hlo.HloModule", release: str, narrowed: Mapping[str, str] = _NARROWED
) -> list[Problem]:
    """The problems of one op; a missing row or status hides the finer ones. ``narrowed``: types that become others."""
    row, loc = OPERATORS[op.opcode], op.loc
    problems: list[Problem] = []
    if op.opcode == "custom-call":
        problems += _custom_call_problems(op)
    elif row.status not in GENERATED:
        remedy = row.remedy or "rewrite the model without it; `neuronx-cc list-operators` prints what compiles"
        problems.append(
            Problem("EVRF001", op.opcode, f"operator {op.opcode} is not supported: {row.reason}", remedy, loc)
        )
    elif not row.introduced(release):
        came = "later" if row.since == "latest" else f"in {row.since}"
        message = f"operator {op.opcode} is not supported by release {release} (it came {came})"
        problems.append(Problem("EVRF001", op.opcode, message, "compile with --release latest", loc))
    for limit in row.limits_of(release):
        if (limit.warns or not problems) and not limit.holds(op, module):
            where = f" in release {release}" if release != "latest" else ""
            message = f"{op.opcode}{where}: {limit.sentence}"
            problems.append(Problem(limit.code, op.opcode, message, limit.remedy, loc, limit.warns))
    if any(not problem.warns for problem in problems):
        return problems
    taken = row.dtypes if release == "latest" else tuple(dtype for dtype in row.dtypes if dtype != C64)
    # the others are random bits, sizes
    operands = op.operands[: _FLOATING.get(op.opcode, len(op.operands))]
    problems += _dtype_problems(row, [operand.type for operand in operands], loc, narrowed, taken)
    if not problems:
        problems += _dtype_problems(row, [op.results[0].type], loc, narrowed)
    return problems


def _custom_call_problems(op: "hlo.HloOp") -> Iterator[Problem]:
    target = cast(Any, op).target.data
    known = CUSTOM_CALLS.get(target)
    if known is not None:
        if known.status not in GENERATED:
            message = f"custom call {target} is not supported: {known.reason}"
            yield Problem("EVRF001", op.opcode, message, "write it with plain operators", op.loc)
        return
    if target.startswith(_OF_OTHER_PLATFORMS):
        message = f"custom-call target {target!r} is a routine of the platform that JAX lowered the program for"
        remedy = "lower it for this one: jax.jit(f).trace(...).lower(lowering_platforms=('neuron',))"
        yield Problem("EHCA005", op.opcode, message, remedy, op.loc)
        return
    close = get_close_matches(target, CUSTOM_CALLS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    shown = ", ".join(known for known in CUSTOM_CALLS if not known.startswith(_OF_OTHER_PLATFORMS))
    message = f"custom-call target {target!r} is not recognised; known targets: {shown}"
    yield Problem("EHCA005", op.opcode, message, f"{hint}write it with plain operators", op.loc)


def _dtype_problems(
    row: Operator,
    types: "list[hlo.Attribute]",
    loc: "Loc",
    narrowed: Mapping[str, str],
    taken: tuple[str, ...] = DTYPES,
) -> Iterator[Problem]:
    """At most one problem: the first element type that is not ``taken``, after narrowing."""
    for dtype in (leaf for type_ in types for leaf in _element_types(type_)):
        if narrowed.get(dtype, dtype) not in taken:
            code, remedy = _DTYPE_CODES.get(dtype, ("ESPP004", f"use one of {', '.join(taken)}"))
            yield Problem(code, row.opcode, f"{row.opcode}: element type {dtype} is not supported", remedy, loc)
            return


def _element_types(type_: Any) -> Iterator[str]:
    """Element types of an array or tuple type; none for a token."""
    if isinstance(type_.data, tuple):
        for part in type_.data:
            yield from _element_types(part)
    elif not isinstance(type_.data, str):
        yield type_.data.dtype
