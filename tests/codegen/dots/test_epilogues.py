"""Arrays that contractions take in as their sums leave PSUM: every form of array, by value, and that no map is left."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from generated import compile_text

Array = np.ndarray[Any, Any]
SIZES = ((1, 1, 1), (1, 131, 2050), (3, 130, 1), (7, 641, 1031), (128, 257, 96), (129, 640, 520), (256, 1024, 2048))
BATCH = 3
FORMS = {
    "row": ("n", "{2}"),
    "column": ("m", "{1}"),
    "one": ("", "{}"),
    "each": ("bmn", "{0,1,2}"),
    "row of a batch": ("bn", "{0,2}"),
    "column of a batch": ("bm", "{0,1}"),
    "one of a batch": ("b", "{0}"),
}
"""Dims of the array, and where they are among those of the result."""


def module(m: int, k: int, n: int, form: str, opcode: str, dtype: str = "f32", narrow: bool = False) -> str:
    """HLO text: ``x w`` combined with an array s of ``dtype``; the result is cast to bf16 if ``narrow``."""
    sizes = {"b": BATCH, "m": m, "n": n}
    letters, places = FORMS[form]
    dims = ",".join(str(sizes[letter]) for letter in letters)
    result = f"[{BATCH},{m},{n}]"
    wide = "s" if dtype == "f32" else "wide"
    cast = "" if dtype == "f32" else f"  wide = f32[{dims}] convert(s)\n"
    spread = wide if len(letters) == 3 else "spread"
    repeat = "" if len(letters) == 3 else f"  spread = f32{result} broadcast({wide}), dimensions={places}\n"
    combined = f"  {'made' if narrow else 'ROOT made'} = f32{result} {opcode}(dot, {spread})"
    return f"""HloModule epilogue
ENTRY main {{
  x = bf16[{BATCH},{m},{k}] parameter(0)
  w = bf16[{BATCH},{k},{n}] parameter(1)
  s = {dtype}[{dims}] parameter(2)
{cast}{repeat}  dot = f32{result} dot(x, w), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
{combined}
{f"  ROOT cast = bf16{result} convert(made)" if narrow else ""}
}}"""  # noqa: E501


def check(m: int, k: int, n: int, form: str, opcode: str, dtype: str = "f32", narrow: bool = False) -> list[str]:
    """Run, and compare exactly; the names of the program's kernels."""
    random = np.random.default_rng(m + 7 * k + 11 * n)
    sizes = {"b": BATCH, "m": m, "n": n}
    letters, _ = FORMS[form]
    x, w = (random.integers(-3, 4, dims).astype(ml_dtypes.bfloat16) for dims in ((BATCH, m, k), (BATCH, k, n)))
    s = (2.0 ** random.integers(-3, 4, [sizes[letter] for letter in letters])).astype(np.float32)
    s = s if dtype == "f32" else s.astype(ml_dtypes.bfloat16)
    spread = s.astype(np.float64).reshape([sizes[letter] if letter in letters else 1 for letter in "bmn"])
    dot = x.astype(np.float64) @ w.astype(np.float64)
    want = dot * spread if opcode == "multiply" else dot + spread
    executable = compile_text(module(m, k, n, form, opcode, dtype, narrow))
    (result,) = executable.run([x, w, s])
    np.testing.assert_array_equal(result, want.astype(np.float32).astype(result.dtype))
    return list(executable.program.kernels)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opcode", ["multiply", "add"])
def test_values(opcode: str, form: str) -> None:
    for m, k, n in SIZES:
        check(m, k, n, form, opcode)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_but_the_contraction_is_left(form: str) -> None:
    assert [name.partition(".")[2] for name in check(7, 641, 1031, form, "multiply")] == ["dot"]


@pytest.mark.parametrize("form", ["row", "column", "one", "row of a batch"])
@pytest.mark.parametrize("narrow", [False, True])
def test_casts_of_array_and_result(form: str, narrow: bool) -> None:
    for m, k, n in SIZES[:6]:
        check(m, k, n, form, "multiply", "bf16", narrow)
    names = check(7, 641, 1031, "row", "multiply", "bf16", narrow)
    assert [name.partition(".")[2] for name in names] == ["dot"]


def test_result_is_read_again() -> None:
    """What ops make of the result is made as the sums leave PSUM, and rounded as they say."""
    text = module(4, 64, 64, "row", "multiply", narrow=True)
    text = text.replace("ROOT cast", "cast").replace("\n}", f"\n  ROOT t = bf16[{BATCH},4,64] tanh(cast)\n}}")
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(dims).astype(ml_dtypes.bfloat16) for dims in ((BATCH, 4, 64), (BATCH, 64, 64)))
    s = random.uniform(0.1, 0.2, 64).astype(np.float32)
    executable = compile_text(text)
    (result,) = executable.run([x, w, s])
    want = np.tanh((x.astype(np.float64) @ w.astype(np.float64)) * s)
    np.testing.assert_allclose(result.astype(np.float64), want, rtol=0.02, atol=0.01)
    assert [name.partition(".")[2] for name in executable.program.kernels] == ["dot"]
