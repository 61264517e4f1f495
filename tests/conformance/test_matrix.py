"""A part of the conformance matrix (``matrix.py``): no wrong result, no fault of the simulation, no internal error."""

import zlib

import pytest
import sweeps
from conformance_rows import Row, run
from sweep_variants import Variant

from neuronx_cc.ir.operators import supported

QUICK = (
    "add-bf16",
    "reduce-s8",
    "scatter-f32",
    "sort-f16",
    "while-u32",
    "dot-f8e5m2",
    "batch-norm-grad-f32",
    "fft-c64",
)
LEAST = 8
"""Variants of one opcode and element type that the larger part takes."""


def picked(opcode: str, dtype: str, share: int, least: int) -> list[Variant]:
    """One in ``share`` variants of an opcode and element type: which, depends on both."""
    variants = list(sweeps.sweep(opcode, dtype))
    share = max(1, min(share, len(variants) // least))
    return variants[zlib.crc32(f"{opcode}{dtype}".encode()) % share :: share]


def outcome(opcode: str, dtype: str, variants: list[Variant]) -> Row:
    row = Row(opcode)
    run(row, dtype, variants)
    return row


@pytest.mark.parametrize("name", QUICK)
def test_some_variants(name: str) -> None:
    opcode, _, dtype = name.rpartition("-")
    row = outcome(opcode, dtype, picked(opcode, dtype, 4, 4))
    assert (row.wrong, row.refused) == ([], {})
    assert row.right


SWEPT = [
    (row.opcode, dtype)
    for row in supported()
    for number, dtype in enumerate(row.dtypes)
    if number % 2 == zlib.crc32(row.opcode.encode()) % min(2, len(row.dtypes)) and any(sweeps.sweep(row.opcode, dtype))
]
"""Each opcode with a sweep in half of its element types."""


@pytest.mark.slow
@pytest.mark.parametrize(("opcode", "dtype"), SWEPT)
def test_a_part_of_the_matrix(opcode: str, dtype: str) -> None:
    row = outcome(opcode, dtype, picked(opcode, dtype, 3, LEAST))
    assert row.wrong == []


def test_what_fails_is_told_apart() -> None:
    """A wrong value and an error of no kind are wrong, a refusal is refused."""
    variants = list(sweeps.sweep("add", "f32"))[2:4]
    spoilt = Variant(
        "spoilt", variants[0].inputs, variants[0].result, "subtract({0}, {1})", wanted=variants[0].inputs[0]
    )
    broken = Variant("broken", variants[0].inputs, variants[0].result, "no-such-op({0}, {1})")
    row = outcome("add", "f32", [variants[0], spoilt, broken, variants[1]])
    assert (row.right, len(row.wrong), row.refused.total()) == (2, 1, 1)
