"""The conformance matrix: every listed opcode in every element type, over shapes and attributes at the limits.

    python tests/conformance/matrix.py [OPCODE ...] [--dtype TYPE ...] [--int64 MODE]

Prints for each opcode how many variants gave jaxlib's values, how many were refused (with the codes), and every wrong
one; the last line has the sums. Exit status 1 when any result was wrong. The variants are those of
``tests/support/sweeps.py``, or the conformance case of an opcode that has none. Reproducers of internal errors are
written to a directory for temporary files.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from conformance_rows import matrix

from neuronx_cc.ir.operators import supported

OPCODES = tuple(row.opcode for row in supported())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("opcodes", nargs="*", metavar="OPCODE", help="all of them without any")
    parser.add_argument("--dtype", action="append", default=[], help="only this element type")
    parser.add_argument("--int64", choices=("exact", "truncate"), default="exact", help="what s64 and u64 are")
    arguments = parser.parse_args()
    unknown = set(arguments.opcodes) - set(OPCODES)
    if unknown:
        parser.error(f"not listed: {', '.join(sorted(unknown))}")
    os.chdir(tempfile.mkdtemp(prefix="matrix-"))
    right = refused = wrong = 0
    print(f"{'opcode':<28} {'right':>6} {'refused':>8} {'wrong':>6}")
    for row in matrix(arguments.opcodes or OPCODES, arguments.dtype, arguments.int64):
        codes = ", ".join(f"{code} {count}" for code, count in sorted(row.refused.items()))
        print(f"{row.opcode:<28} {row.right:>6} {row.refused.total():>8} {len(row.wrong):>6}  {codes}", flush=True)
        for line in row.wrong:
            print(f"    {line}")
        right, refused, wrong = right + row.right, refused + row.refused.total(), wrong + len(row.wrong)
    print(f"{'sum':<28} {right:>6} {refused:>8} {wrong:>6}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
