"""Reference semantics of what JAX does not emit for a CPU, written as HLO text, against jaxlib's CPU client."""

from typing import Any

import numpy as np
import op_cases
import pytest
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate

Array = np.ndarray[Any, Any]


def f32(*dims: int, low: float = -2, high: float = 2) -> Array:
    return op_cases.random_array("f32", dims, "text", low, high)


def check(text: str, inputs: list[Array], tolerance: float = 2e-5) -> None:
    results, wanted = evaluate(parse_text(text), inputs), run_text(text, inputs)
    assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in wanted]
    for result, want in zip(results, wanted, strict=True):
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(result, want)
        else:
            np.testing.assert_allclose(result.astype(np.float64), want.astype(np.float64), tolerance, tolerance)


def entry(body: str, computations: str = "") -> str:
    return f"HloModule t\n{computations}\nENTRY main {{\n{body}\n}}\n"


BITS_DIMS = ["", "1", "7", "8", "3,5", "5,6", "6,5,7", "129", "0", "0,3"]


@pytest.mark.parametrize(
    ("algorithm", "words"), [("rng_three_fry", 2), ("rng_philox", 3), ("rng_philox", 2), ("rng_default", 2)]
)
@pytest.mark.parametrize("dtype", ["u8", "u16", "u32", "u64"])
def test_rng_bit_generator(algorithm: str, words: int, dtype: str) -> None:
    state = np.array([2**63 + 12345, 2**64 - 3, 2**64 - 1][:words], np.uint64)
    for dims in BITS_DIMS:
        shape = f"{dtype}[{dims}]"
        body = (
            f"  p0 = u64[{words}] parameter(0)\n"
            f"  ROOT r = (u64[{words}], {shape}) rng-bit-generator(p0), algorithm={algorithm}"
        )
        check(entry(body), [state])


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(lower: bool) -> None:
    x = f32(3, 5, 5)
    spd = (x @ x.swapaxes(-1, -2) + 3 * np.eye(5)).astype(np.float32)
    spd[1] = -spd[1]  # not positive definite: NaN
    body = f"  p0 = f32[3,5,5] parameter(0)\n  ROOT r = f32[3,5,5] cholesky(p0), lower={str(lower).lower()}"
    result = evaluate(parse_text(entry(body)), [spd])[0]
    factor = np.linalg.cholesky(spd[[0, 2]])
    wanted = factor if lower else factor.swapaxes(-1, -2)
    np.testing.assert_allclose(result[[0, 2]], wanted, 1e-5, 1e-5)
    assert np.isnan(result[1]).any()


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_solve(left_side: bool, lower: bool, unit_diagonal: bool, transpose: str) -> None:
    b_dims = "2,5,3" if left_side else "2,3,5"
    flags = f"left_side={left_side}, lower={lower}, unit_diagonal={unit_diagonal}".lower()
    body = (
        f"  p0 = f32[2,5,5] parameter(0)\n  p1 = f32[{b_dims}] parameter(1)\n"
        f"  ROOT r = f32[{b_dims}] triangular-solve(p0, p1), {flags}, transpose_a={transpose}"
    )
    a = (f32(2, 5, 5) * 0.3 + 2 * np.eye(5)).astype(np.float32)
    check(entry(body), [a, f32(*map(int, b_dims.split(",")))])


def test_batch_norms() -> None:
    x, g, scale, offset = f32(4, 3, 5), f32(4, 3, 5), f32(3, low=0.5), f32(3)
    vector = "f32[3]"
    parameters = "  p0 = f32[4,3,5] parameter(0)\n" + "\n".join(f"  p{i} = {vector} parameter({i})" for i in (1, 2))
    options = "epsilon=0.001, feature_index=1"
    training = f"{parameters}\n  ROOT r = (f32[4,3,5], {vector}, {vector}) batch-norm-training(p0, p1, p2), {options}"
    check(entry(training), [x, scale, offset])
    mean, variance = f32(3), f32(3, low=0.1)
    parameters += "\n" + "\n".join(f"  p{i} = {vector} parameter({i})" for i in (3, 4))
    inference = f"{parameters}\n  ROOT r = f32[4,3,5] batch-norm-inference(p0, p1, p2, p3, p4), {options}"
    check(entry(inference), [x, scale, offset, mean, variance])
    parameters = parameters.replace(f"p4 = {vector} p", "p4 = f32[4,3,5] p")
    gradient = (
        f"{parameters}\n  ROOT r = (f32[4,3,5], {vector}, {vector}) batch-norm-grad(p0, p1, p2, p3, p4), {options}"
    )
    statistics = [x.mean((0, 2)), x.var((0, 2))]
    check(entry(gradient), [x, scale, *statistics, g])


@pytest.mark.parametrize("direction", ["GE", "LE"])
def test_select_and_scatter(direction: str) -> None:
    computations = f"""
select {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction={direction}
}}
{op_cases.combiner("add", "f32")}"""
    body = """  p0 = f32[7,8] parameter(0)
  p1 = f32[4,4] parameter(1)
  p2 = f32[] parameter(2)
  window = f32[4,4] multiply(p1, p1)
  ROOT r = f32[7,8] select-and-scatter(p0, window, p2), WINDOW, select=select, scatter=add_computation"""
    body = body.replace("WINDOW", "window={size=3x2 stride=2x2 pad=1_1x0_0}")
    check(entry(body, computations), [np.round(f32(7, 8)), f32(4, 4), np.float32(0)])


def test_reduce_window_of_pairs() -> None:
    computations = """
wider {
  a = f32[] parameter(0)
  b = s32[] parameter(1)
  c = f32[] parameter(2)
  d = s32[] parameter(3)
  g = pred[] compare(a, c), direction=GE
  x = f32[] select(g, a, c)
  y = s32[] select(g, b, d)
  ROOT t = (f32[], s32[]) tuple(x, y)
}"""
    body = """  p0 = f32[9,6] parameter(0)
  i = s32[9,6] iota(), iota_dimension=0
  low = f32[] constant(-inf)
  none = s32[] constant(-1)
  ROOT r = (f32[4,6], s32[4,6]) reduce-window(p0, i, low, none), window={size=3x1 stride=2x1}, to_apply=wider"""
    check(entry(body, computations), [f32(9, 6)])


def test_sort_by_a_comparator_of_its_own() -> None:
    computations = """
far_from_one {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  u = s32[] parameter(2)
  v = s32[] parameter(3)
  one = f32[] constant(1)
  x = f32[] subtract(a, one)
  y = f32[] subtract(b, one)
  l = f32[] abs(x)
  r = f32[] abs(y)
  ROOT c = pred[] compare(l, r), direction=GT
}"""
    body = """  p0 = f32[5,67] parameter(0)
  i = s32[5,67] iota(), iota_dimension=1
  ROOT r = (f32[5,67], s32[5,67]) sort(p0, i), dimensions={1}, is_stable=true, to_apply=far_from_one"""
    check(entry(body, computations), [np.round(f32(5, 67) * 3)])


def test_map_of_a_computation_that_loops() -> None:
    computations = """
small {
  s = (f32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  limit = f32[] constant(9)
  ROOT c = pred[] compare(x, limit), direction=LT
}
double {
  s = (f32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  y = f32[] add(x, x)
  ROOT t = (f32[]) tuple(y)
}
grow {
  x = f32[] parameter(0)
  t = (f32[]) tuple(x)
  w = (f32[]) while(t), condition=small, body=double
  ROOT r = f32[] get-tuple-element(w), index=0
}"""
    text = entry(
        "  p0 = f32[3,4] parameter(0)\n  ROOT r = f32[3,4] map(p0), dimensions={0,1}, to_apply=grow", computations
    )
    x = f32(3, 4, low=0.5)
    want = x.copy()
    while (want < 9).any():
        want = np.where(want < 9, want + want, want)
    np.testing.assert_array_equal(evaluate(parse_text(text), [x])[0], want)


def test_collectives_on_one_device() -> None:
    body = """  p0 = f32[4,6] parameter(0)
  a = f32[4,6] all-reduce(p0), replica_groups={}, to_apply=add_computation
  b = f32[4,6] all-gather(a), dimensions={0}, replica_groups={}
  c = f32[4,6] reduce-scatter(b), dimensions={1}, replica_groups={}, to_apply=add_computation
  d = f32[4,6] collective-permute(c), source_target_pairs={{0,0}}
  e = u32[] replica-id()
  ROOT t = (f32[4,6], u32[]) tuple(d, e)"""
    x = f32(4, 6)
    result, index = evaluate(parse_text(entry(body, op_cases.combiner("add", "f32"))), [x])
    np.testing.assert_array_equal(result, x)
    assert index == 0


def test_pad_in_every_direction() -> None:
    for padding, size in [("0_0_2", 10), ("-2_3_1", 8), ("5_-4_0", 5), ("-1_-1_0", 2), ("-3_-6_3", 4), ("1_1_0", 6)]:
        body = (
            "  p0 = f32[4] parameter(0)\n  p1 = f32[] parameter(1)\n"
            f"  ROOT r = f32[{size}] pad(p0, p1), padding={padding}"
        )
        check(entry(body), [f32(4), np.float32(9)])


def test_bitcast_convert_changes_width() -> None:
    body = """  p0 = f32[3,5] parameter(0)
  a = u16[3,5,2] bitcast-convert(p0)
  b = bf16[3,5,2] bitcast-convert(a)
  ROOT c = s32[3,5] bitcast-convert(b)"""
    check(entry(body), [f32(3, 5)])


LIMITS = [(), (0,), (1,), (127,), (128, 1), (3, 129), (2, 0, 5), (1,) * 8, (2, 1, 3, 1, 2, 1, 1, 2)]


@pytest.mark.parametrize("dims", LIMITS)
def test_shapes_at_limits(dims: tuple[int, ...]) -> None:
    shape = op_cases.shaped("f32", dims)
    every = ",".join(map(str, range(len(dims))))
    backwards = ",".join(map(str, reversed(range(len(dims)))))
    turned = op_cases.shaped("f32", dims[::-1])
    body = f"""  p0 = {shape} parameter(0)
  zero = f32[] constant(0)
  b = {shape} broadcast(zero), dimensions={{}}
  m = {shape} maximum(p0, b)
  s = f32[] reduce(m, zero), dimensions={{{every}}}, to_apply=add_computation
  t = {turned} transpose(p0), dimensions={{{backwards}}}
  f = f32[{int(np.prod(dims))}] reshape(p0)
  n = {shape} negate(p0)
  v = {shape} reverse(n), dimensions={{{every}}}
  ROOT r = (f32[], {turned}, f32[{int(np.prod(dims))}], {shape}) tuple(s, t, f, v)"""
    check(entry(body, op_cases.combiner("add", "f32")), [f32(*dims)])
