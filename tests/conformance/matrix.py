"""The conformance matrix: every listed opcode in every element type, over shapes and attributes at the limits.

    python tests/conformance/matrix.py [OPCODE ...] [--dtype TYPE ...]

Prints for each opcode how many variants gave jaxlib's values, how many were refused (with the codes), and every wrong
one; the last line has the sums. Exit status 1 when any result was wrong. The variants are those of
``tests/support/sweeps.py``, or the conformance case of an opcode that has none.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import op_cases
import sweeps
from op_cases import Case
from sweep_variants import Variant
from xla_oracle import run_text

import neuronx_cc
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.operators import supported

OPCODES = tuple(row.opcode for row in supported())


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
    from op_cases import shaped

    from neuronx_cc.ir.types import NUMPY_DTYPE

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


def run(row: Row, dtype: str, variants: Sequence[Variant]) -> None:
    """Compare all variants at once; when that fails, each half for itself."""
    text = module_of(variants)
    inputs = [array for variant in variants for array in variant.inputs]
    cases = [Case(row.opcode, dtype, text, variant.inputs, variant.tolerance) for variant in variants]
    given = [variant.wanted for variant in variants]
    if row.opcode in op_cases._IN_NUMPY:
        given = [op_cases.expected(case)[0] for case in cases]
    try:
        outputs = neuronx_cc.compile(text.encode(), auto_cast="none").run(inputs).outputs
        values = [x for x in given if x is not None]
        if len(values) < len(variants):
            values = run_text(text, inputs, optimize=False)
        for case, output, value in zip(cases, outputs, values, strict=True):
            op_cases.assert_matches(case, [output], [value])
    except Exception as error:
        if len(variants) > 1:
            middle = len(variants) // 2
            run(row, dtype, variants[:middle])
            run(row, dtype, variants[middle:])
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


def matrix(opcodes: Iterable[str], dtypes: Sequence[str] = ()) -> Iterable[Row]:
    """One row for each opcode."""
    types = {row.opcode: row.dtypes for row in supported()}
    for opcode in opcodes:
        row = Row(opcode)
        for dtype in types[opcode]:
            if dtypes and dtype not in dtypes:
                continue
            variants = list(sweeps.sweep(opcode, dtype))
            if variants:
                run(row, dtype, variants)
            else:
                case = op_cases._case(opcode, dtype)
                if case is None:
                    row.wrong.append(f"{dtype}: no case")
                else:
                    run_case(row, case)
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("opcodes", nargs="*", metavar="OPCODE", help="all of them without any")
    parser.add_argument("--dtype", action="append", default=[], help="only this element type")
    arguments = parser.parse_args()
    unknown = set(arguments.opcodes) - set(OPCODES)
    if unknown:
        parser.error(f"not listed: {', '.join(sorted(unknown))}")
    right = refused = wrong = 0
    print(f"{'opcode':<28} {'right':>6} {'refused':>8} {'wrong':>6}")
    for row in matrix(arguments.opcodes or OPCODES, arguments.dtype):
        codes = ", ".join(f"{code} {count}" for code, count in sorted(row.refused.items()))
        print(f"{row.opcode:<28} {row.right:>6} {row.refused.total():>8} {len(row.wrong):>6}  {codes}", flush=True)
        for line in row.wrong:
            print(f"    {line}")
        right, refused, wrong = right + row.right, refused + row.refused.total(), wrong + len(row.wrong)
    print(f"{'sum':<28} {right:>6} {refused:>8} {wrong:>6}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
