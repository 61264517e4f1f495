"""Results that are no finite numbers, of a program that rounds to a type of small range: they are never silent."""

from collections.abc import Sequence

import numpy as np

from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.program import Instr, Program
from neuronx_cc.ir.types import largest_number

NARROW = ("f8e4m3", "f16")
"""Element types whose largest numbers ordinary ones exceed."""


def narrow_type(program: Program) -> str:
    """The type of small range that the program rounds to, if any."""
    return next((dtype for dtype in NARROW if _rounds_to(program, dtype)), "")


def overflow(narrow: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
    """What to warn of; nothing where all results are finite, an input is not, or the program has no ``narrow`` type."""
    if not narrow:
        return ""
    wrong = [number for number, array in enumerate(outputs) if not finite(array)]
    if not wrong or not all(map(finite, inputs)):
        return ""
    count = sum(int((~np.isfinite(_float(outputs[number]))).sum()) for number in wrong)
    fewer = " (in f8e4m3fn, which is made of it, NaN beyond 448)" if narrow == "f8e4m3" else ""
    named = ", ".join(map(str, wrong[:5])) + ", ..." * (len(wrong) > 5)
    return (
        f"{count} elements of result {named} are infinities or NaNs; the program "
        f"rounds to {narrow}, in which numbers beyond {largest_number(narrow):g} are infinities{fewer}: "
        "run --check, or neuronx_cc.compare, names the op"
    )


def finite(array: Array) -> bool:
    """Whether all elements are finite numbers."""
    return array.dtype.kind in "biu" or bool(np.isfinite(_float(array)).all())


def _float(array: Array) -> Array:
    return array if array.dtype.kind in "fc" else array.astype(np.float32)


def _rounds_to(program: Program, dtype: str) -> bool:
    """Whether an instruction, or a transfer, makes elements of other ones."""
    return any(
        any(out.dtype == dtype for out in record.outs) and any(each.dtype != dtype for each in record.ins)
        for record in program.records
        if isinstance(record, Instr)
    )
