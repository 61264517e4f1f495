"""Reductions of (value, index) pairs that are almost argmax: by their start, or indices that count no places."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from xla_oracle import run_text

from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.passes import expand_argument_reductions

VALUES = {
    "mixed": [[1, 3, 3, -2], [0, 0, -1, 0], [-3, -1, -1, -2]],
    "below": [[-4, -3, -3, -5]] * 3,
    "nan": [[1, np.nan, 3, np.nan], [np.nan, 5, 5, 5], [2, 2, 1, 2]],
    "least": [[-np.inf] * 4, [-np.inf, 1, 1, -np.inf], [0, -np.inf, 0, 0]],
}
COUNTED = "s32[3,4] iota(), iota_dimension=1"
SHIFTED = "s32[3,4] add(p, p)"
FORMS = {
    "plain": ("-inf", 0, COUNTED, "k"),
    "ties keep the place": ("-inf", 0, COUNTED, "first"),
    "given indices, least of ties": ("-inf", 0, SHIFTED, "k"),
    "given indices, first of ties": ("-inf", 0, SHIFTED, "first"),
    "counts along the other dim": ("-inf", 0, "s32[3,4] iota(), iota_dimension=0", "first"),
    "starts with a number": ("0", 0, COUNTED, "k"),
    "starts with a number and index": ("0", 77, COUNTED, "first"),
    "starts with NaN": ("nan", 3, COUNTED, "k"),
    "starts with a lesser index": ("-inf", -1, COUNTED, "k"),
    "starts with a greater index": ("-inf", 9, COUNTED, "first"),
}
PROGRAM = """HloModule m
choose {{
  av = {dtype}[] parameter(0)
  ai = s32[] parameter(1)
  bv = {dtype}[] parameter(2)
  bi = s32[] parameter(3)
  more = pred[] compare(av, bv), direction=GT
  none = pred[] compare(av, av), direction=NE
  wins = pred[] or(more, none)
  alike = pred[] compare(av, bv), direction=EQ
  less = pred[] compare(ai, bi), direction=LT
  lower = pred[] and(alike, less)
  k = pred[] or(wins, lower)
  first = pred[] or(wins, alike)
  v = {dtype}[] select(wins, av, bv)
  i = s32[] select({rule}, ai, bi)
  ROOT r = ({dtype}[], s32[]) tuple(v, i)
}}
ENTRY main {{
  x = {dtype}[3,4] parameter(0)
  p = s32[3,4] parameter(1)
  places = {places}
  start = {dtype}[] constant({start})
  index = s32[] constant({index})
  pairs = ({dtype}[3], s32[3]) reduce(x, places, start, index), dimensions={{1}}, to_apply=choose
  best = {dtype}[3] get-tuple-element(pairs), index=0
  where = s32[3] get-tuple-element(pairs), index=1
  ROOT both = ({dtype}[3], s32[3]) tuple(best, where)
}}
"""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["f32", "s32"])
def test_pairs_are_what_the_computation_says(form: str, dtype: str) -> None:
    start, index, places, rule = FORMS[form]
    if dtype == "s32":
        start = {"-inf": "-2147483648", "nan": "5"}.get(start, start)
    text = PROGRAM.format(dtype=dtype, places=places, start=start, index=index, rule=rule)
    given = np.array([[9, 2, 5, 1], [3, 3, 8, 0], [7, 6, 1, -4]], np.int32)
    compiled = compile_text(text)
    for values in VALUES.values():
        x = np.array(values, np.float32)
        if dtype == "s32":
            x = np.nan_to_num(x, nan=4, neginf=-(2**31)).astype(np.int32)
        for found, wanted in zip(compiled.run([x, given]), run_text(text, [x, given]), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("rule", ["k", "first"])
def test_zeros_keep_the_sign_of_the_element_at_their_index(rule: str) -> None:
    text = PROGRAM.format(dtype="f32", places=COUNTED, start="-inf", index=0, rule=rule)
    text = text.replace("select(wins, av, bv)", f"select({rule}, av, bv)")
    x = np.array([[-0.0, 0.0, -1, 0], [0, -0.0, 0, 0], [-1, -0.0, 0, -0.0]], np.float32)
    inputs = [x, np.zeros((3, 4), np.int32)]
    (best, where), (wanted, there) = compile_text(text).run(inputs), run_text(text, inputs)
    np.testing.assert_array_equal(where, there)
    np.testing.assert_array_equal(np.signbit(best), np.signbit(wanted))
    np.testing.assert_array_equal(np.signbit(best), [True, False, True])


@pytest.mark.parametrize("function", [jnp.argmax, jnp.argmin])
@pytest.mark.parametrize("dims", [(5, 77), (64, 768), (3, 4, 9)], ids=str)
def test_places_in_rows_are_folded_in_fp32(function: Callable[..., Any], dims: tuple[int, ...]) -> None:
    """GpSimd halves rows of integers, Vector folds rows of floats at once; both give the same places."""
    x = np.random.default_rng(3).integers(0, 9, dims).astype(np.float32)
    compiled = check_function(lambda x: function(x, -1), x)
    assert not any(isinstance(each, Instr) and each.op == "int_tensor_tensor" for each in compiled.program.records)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16"])
@pytest.mark.parametrize("function", [jnp.argmax, jnp.argmin])
def test_comparisons_are_of_their_type(function: Callable[..., Any], dtype: str) -> None:
    """Of booleans they are unsigned: ops are verified after each pass."""
    x = np.arange(12).reshape(3, 4) % 5 % 2
    text = text_of(lambda x: function(x, 1), x.astype(dtype))
    found = compile_text(text, verify_each=True).run([x.astype(dtype)])
    np.testing.assert_array_equal(found[0], getattr(np, function.__name__)(x, 1))


@pytest.mark.parametrize("form", FORMS)
def test_pairs_in_two_passes(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(expand_argument_reductions, "LEAST_COMPARED", 0)
    test_pairs_are_what_the_computation_says(form, "f32")


SPECIAL = {
    "zeros": [0.0, -0.0],
    "least numbers": [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-148, 2.0**-126, 2.0**-126 - 2.0**-149],
    "infinities": [np.inf, -np.inf, np.nan, 1.0, 3.4028235e38, -3.4028235e38],
    "no NaN": [np.inf, -np.inf, 3.4028235e38, -3.4028235e38],
    "minus infinity": [-np.inf] * 9 + [-3.4028235e38],
    "infinity": [np.inf] * 9 + [3.4028235e38],
    "neighbours": [1.0, 1.0 - 2.0**-24, 1.0 + 2.0**-23, 2.0, 2.0 - 2.0**-23, -1.0, -1.0 + 2.0**-24],
    "few": [1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("dims", [(130, 33), (3, 1024), (33, 130), (4, 20, 6)])
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("find", [np.argmax, np.argmin])
def test_first_of_equals(
    monkeypatch: pytest.MonkeyPatch,
    find: Callable[..., Any],
    kind: str,
    dims: tuple[int, ...],
) -> None:
    monkeypatch.setattr(expand_argument_reductions, "LEAST_COMPARED", 0)
    x = np.random.default_rng(len(kind)).choice(np.array(SPECIAL[kind], np.float32), dims)
    for axis in range(len(dims)):
        traced = {np.argmax: jnp.argmax, np.argmin: jnp.argmin}[find]
        (found,) = compile_text(text_of(lambda x, traced=traced, axis=axis: traced(x, axis), x)).run([x])
        np.testing.assert_array_equal(found, find(x, axis))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_places_of_long_rows(dtype: str) -> None:
    """In two passes at this size."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((300, 1000))).astype(dtype)
    check_function(lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmin(x * 2, 1)), np.asarray(x))
