"""Runs variants of the conformance matrix (``conformance/matrix.py``); tells right, refused and wrong ones apart."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import op_cases
import sweeps
from op_cases import Case, shaped
from sweep_variants import Variant
from xla_oracle import run_text

import neuronx_cc
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.operators import supported
from neuronx_cc.ir.operators_table import Operator
from neuronx_cc.ir.types import NUMPY_DTYPE


@dataclass
class Row:
    """The outcome for one opcode."""

    opcode: str
    right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add_failure(self, label: str, error: Exception) -> None:
        """A refusal has a code; a defect, a fault in the simulation and another value are wrong."""
        if isinstance(error, NeuronError) and error.code != "INTERNAL" and not error.code.startswith("ERUN9"):
            self.refused[error.code] += 1
            return
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        self.wrong.append(f"{label}: {kind}{' '.join(lines[:5])[:300]}")


def module_of(variants: Sequence[Variant]) -> str:
    """One module that computes all of them, so that they are compiled together."""
    names = {dtype: name for name, dtype in NUMPY_DTYPE.items() if name != "tf32"}
    parameters, lines, count = [], [], 0
    for number, variant in enumerate(variants):
        arguments = []
        for array in variant.inputs:
            parameters.append(f"  p{count} = {shaped(names[array.dtype], array.shape)} parameter({count})")
            arguments.append(f"p{count}")
            count += 1
        named: dict[str, str] = {}
        for letter, line in zip("abcdef", variant.lines, strict=False):
            lines.append(f"  r{number}{letter} = {line.format(*arguments, **named)}")
            named[letter] = f"r{number}{letter}"
        lines.append(f"  r{number} = {variant.result} {variant.body.format(*arguments, **named)}")
    types = ", ".join(variant.result for variant in variants)
    lines.append(f"  ROOT t = ({types}) tuple({', '.join(f'r{number}' for number in range(len(variants)))})")
    # one definition of each: they end in a brace at the start of a line
    each = [part for variant in variants for part in variant.computations.split("\n}\n") if part]
    computations = "".join(f"{part}\n}}\n" for part in dict.fromkeys(each))
    return "\n".join(["HloModule matrix", "", computations, "ENTRY main {", *parameters, *lines, "}", ""])


WIDE = {"s32": "s64", "u32": "u64"}
"""Element types that stand beside those of the operator table."""


def element_types(row: Operator) -> list[str]:
    """Of the table, and those of 64 bits that are computed like the 32-bit ones."""
    return [dtype for listed in row.dtypes for dtype in (listed, WIDE.get(listed)) if dtype]


def fits(variant: Variant) -> bool:
    """Whether 32 bits hold all 64-bit integers that go in and, by the reference, come out."""
    text = module_of([variant])
    for array in (*variant.inputs, *run_text(text, list(variant.inputs))):
        if array.dtype in (np.int64, np.uint64) and array.size:
            limits = np.iinfo(np.int32 if array.dtype == np.int64 else np.uint32)
            if array.min() < limits.min or array.max() > limits.max:
                return False
    return True


def run(row: Row, dtype: str, variants: Sequence[Variant], int64: str = "exact") -> None:
    """Compare all variants at once; when that fails, each half for itself."""
    text = module_of(variants)
    inputs = [array for variant in variants for array in variant.inputs]
    cases = [Case(row.opcode, dtype, text, variant.inputs, variant.tolerance) for variant in variants]
    given = [variant.wanted for variant in variants]
    if row.opcode in op_cases.IN_NUMPY:
        given = [op_cases.expected(case)[0] for case in cases]
    try:
        outputs = neuronx_cc.compile(text.encode(), auto_cast="none", int64=int64).run(inputs).outputs
        found = run_text(text, inputs) if any(x is None for x in given) else given
        values = [own if other is None else other for own, other in zip(found, given, strict=True)]
        for case, output, value in zip(cases, outputs, values, strict=True):
            op_cases.assert_matches(case, [output], [value])
    except Exception as error:
        if len(variants) > 1:
            middle = len(variants) // 2
            run(row, dtype, variants[:middle], int64)
            run(row, dtype, variants[middle:], int64)
        else:
            row.add_failure(f"{dtype} {variants[0].label}", error)
        return
    row.right += len(variants)


def run_case(row: Row, case: Case) -> None:
    """The single case of an opcode without a sweep."""
    try:
        outputs = neuronx_cc.compile(case.text.encode(), auto_cast="none").run(list(case.inputs)).outputs
        op_cases.assert_matches(case, list(outputs), op_cases.expected(case))
    except Exception as error:
        row.add_failure(case.dtype, error)
    else:
        row.right += 1


def matrix(opcodes: Iterable[str], dtypes: Sequence[str] = (), int64: str = "exact") -> Iterable[Row]:
    """One row for each opcode; where 64-bit integers are truncated, of variants whose integers fit."""
    types = {row.opcode: element_types(row) for row in supported()}
    for opcode in opcodes:
        row = Row(opcode)
        for dtype in types[opcode]:
            if dtypes and dtype not in dtypes:
                continue
            variants = list(sweeps.sweep(opcode, dtype))
            if int64 == "truncate" and dtype in WIDE.values():
                variants = [variant for variant in variants if fits(variant)]
            if variants:
                run(row, dtype, variants, int64)
            elif dtype not in WIDE.values():
                case = op_cases._case(opcode, dtype)
                if case is None:
                    row.wrong.append(f"{dtype}: no case")
                else:
                    run_case(row, case)
        yield row
