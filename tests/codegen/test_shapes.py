"""Elementwise ops and movement over shapes around every limit: 0, 1, 127..129, 511..513, primes, ranks 0 to 8."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, check_text
from jax import lax

from neuronx_cc.ir.isa.program import Instr, Stream
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.runtime.executable import Executable

Array = np.ndarray[Any, Any]

MATRICES = [(0, 5), (1, 1), (1, 1009), (1009, 1), (127, 129), (129, 127), (257, 513), (1009, 257), (3, 2000), (131, 2)]
BY_RANK = [
    dims
    for rank in range(9)
    for dims in ((2,) * rank, (1, 5, 1, 3, 2, 1, 4, 3)[:rank], (7, 1, 2, 5, 3, 2, 2, 1)[:rank])
]


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("size", [0, 1, 2, 127, 128, 129, 257, 511, 512, 513, 1009, 100003])
def test_vectors(size: int, random: np.random.Generator) -> None:
    check_function(lambda x, y: (jnp.tanh(x) * 2 + y, x[::-1] + y), normal(random, size), normal(random, size))


@pytest.mark.parametrize(("rows", "columns"), MATRICES)
def test_broadcasts(rows: int, columns: int, random: np.random.Generator) -> None:
    def function(x: Any, y: Any, a: Any, b: Any, s: Any) -> Any:
        return x * y + x, x * a[:, None] + b, (a[:, None] - b) * s, jnp.broadcast_to(b, (rows, columns)), s * x

    matrix, row, column = normal(random, rows, columns), normal(random, rows), normal(random, columns)
    check_function(function, matrix, matrix[::-1], row, column, np.float32(3))


@pytest.mark.parametrize(("rows", "columns"), MATRICES)
def test_transposes_and_reversals(rows: int, columns: int, random: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return x.T, x.T + y * 2, x[::-1], x[:, ::-1] * 2, x[::-1, ::-1] + 1, (x + 1).T, (x * 3)[:, ::-1].T

    check_function(function, normal(random, rows, columns), normal(random, columns, rows))


@pytest.mark.parametrize(("rows", "columns"), MATRICES)
def test_reshapes(rows: int, columns: int, random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        swapped = x.T.reshape(rows, columns) + 1
        return (x + 1).reshape(-1), (x * 2).reshape(columns, rows), x.reshape(-1) * 3, swapped, swapped.T

    check_function(function, normal(random, rows, columns))


@pytest.mark.parametrize(("rows", "columns"), MATRICES)
def test_counting(rows: int, columns: int, random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        across = [lax.broadcasted_iota(dtype, (rows, columns), d) for dtype in (jnp.int32, jnp.float32) for d in (0, 1)]
        return across[0] * 1000 + across[1], x + across[2], x + across[3], *across

    check_function(function, normal(random, rows, columns))


@pytest.mark.parametrize("dims", [(2, 3, 2, 5), (2, 6, 1, 5), (4, 2, 130), (2, 2, 2, 2, 3), (3, 1000, 11)], ids=str)
def test_counting_along_every_axis(dims: tuple[int, ...]) -> None:
    def function() -> Any:
        return [
            lax.broadcasted_iota(dtype, dims, axis) for axis in range(len(dims)) for dtype in (jnp.int32, jnp.float32)
        ]

    check_function(function)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32, jnp.bfloat16, jnp.float16])
def test_counting_types(dtype: Any, random: np.random.Generator) -> None:
    dims = (3, 5, 100, 7)
    x = random.integers(0, 20, dims).astype(dtype)
    check_function(lambda x: tuple(x + lax.broadcasted_iota(dtype, dims, axis) for axis in range(4)), x, relative=0.0)


@pytest.mark.parametrize(("rows", "columns"), MATRICES)
def test_concatenate(rows: int, columns: int, random: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return jnp.concatenate([x, y], 0), jnp.concatenate([x, y, x * 2], 1) + 1, jnp.concatenate([x.T, y.T], 1)

    check_function(function, normal(random, rows, columns), normal(random, rows, columns))


@pytest.mark.parametrize(("rows", "columns"), MATRICES)
@pytest.mark.parametrize(
    "padding",
    [
        ((1, 2, 0), (3, 0, 1)),
        ((0, 0, 2), (0, 0, 3)),
        ((2, -1, 1), (-1, 2, 0)),
        ((-1, 0, 0), (0, -1, 2)),
        ((5, -3, 4),) * 2,
    ],
)
def test_pad(rows: int, columns: int, padding: Any, random: np.random.Generator) -> None:
    if any(
        max(size * (1 + p[2]) - p[2], 0) + p[0] + p[1] < 0 for size, p in zip((rows, columns), padding, strict=True)
    ):
        padding = ((1, 1, 1), (1, 1, 1))

    def function(x: Any, value: Any) -> Any:
        return lax.pad(x, np.float32(2), padding), lax.pad(x * 2, value, padding), lax.pad(x, value, padding) + 1

    check_function(function, normal(random, rows, columns), np.float32(-7))


@pytest.mark.parametrize(("rows", "columns"), [dims for dims in MATRICES if min(dims) > 2])
def test_slice(rows: int, columns: int, random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        half = x[rows // 2 :, columns // 2 :]
        strided = lax.slice(x * 3, (1, 1), (rows - 1, columns), (2, 1))
        return x[1:-1], x[:, 1:-1] * 2, x[::2, 1::3], half + 1, strided, (x + 1)[:, 1] * x[:, 0], (x * 2)[2], x[1:1]

    check_function(function, normal(random, rows, columns))


@pytest.mark.parametrize("dims", BY_RANK, ids=str)
def test_ranks(dims: tuple[int, ...], random: np.random.Generator) -> None:
    order = [int(axis) for axis in random.permutation(len(dims))]

    def function(x: Any) -> Any:
        transposed = x.transpose(order)
        other = x.reshape([dims[axis] for axis in order])
        return (
            transposed + 1,
            jnp.exp(x).transpose(order[::-1]) * 2,
            x.reshape(-1) + 1,
            x.sum(),
            transposed + other,
            x * transposed.sum(),
        )

    check_function(function, normal(random, *dims))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.bool_, jnp.bfloat16, jnp.float8_e5m2])
def test_movement_types(dtype: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 2, (5, 131, 3)).astype(dtype)

    def function(x: Any, value: Any) -> Any:
        padded = lax.pad(x, value, ((1, 2, 1), (-3, 4, 0), (0, 0, 2)))
        return x.transpose(2, 1, 0), x[:, ::-2], padded, jnp.concatenate([x, x[:2]]), x.reshape(3, 655), x[1, 5:9]

    check_function(function, x, np.asarray(1).astype(dtype))


def test_values_straight_through() -> None:
    """Parameters and constants as results, the same result twice, scalars."""
    text = """HloModule m

ENTRY main {
  x = f32[3,5] parameter(0)
  s = s32[] parameter(1)
  p = pred[4] parameter(2)
  c = f32[2,2] constant({{1, 2}, {3, nan}})
  k = s32[] constant(-7)
  q = f32[] constant(2.5)
  y = f32[3,5] add(x, x)
  t = s32[] add(s, k)
  b = f32[2,3] broadcast(q), dimensions={}
  ROOT r = (f32[3,5], f32[3,5], f32[3,5], f32[2,2], s32[], s32[], pred[4], f32[2,3]) tuple(x, y, y, c, k, t, p, b)
}
"""
    check_text(text, np.arange(15, dtype=np.float32).reshape(3, 5), np.int32(3), np.array([True, False, True, True]))


@pytest.mark.slow
def test_larger_than_sbuf(random: np.random.Generator) -> None:
    """40 M elements: 160 MB, against 24 MiB of SBUF."""
    x = normal(random, 40_000_000)
    check_function(lambda x: jnp.maximum(x, 0) * 2 + 1, x)


@pytest.mark.parametrize("dims", [(3000, 2503), (7, 1_000_003), (100_003, 70)])
def test_larger_than_a_tile(dims: tuple[int, int], random: np.random.Generator) -> None:
    def function(x: Any, a: Any, b: Any) -> Any:
        return jnp.tanh(x + b) * a[:, None], x.max(1)

    check_function(function, normal(random, *dims), normal(random, dims[0]), normal(random, dims[1]))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (np.float32, np.uint8),
        (np.float32, np.int16),
        (np.int16, np.int8),
        (np.uint8, np.uint32),
        (np.int8, jnp.bfloat16),
    ],
)
def test_bits_as_another_width(source: Any, target: Any, random: np.random.Generator) -> None:
    ratio = np.dtype(target).itemsize // np.dtype(source).itemsize
    dims = (13, 131, ratio) if ratio else (13, 131)
    x = random.integers(0, 100, dims).astype(source)

    def function(x: Any) -> Any:
        plain = lax.bitcast_convert_type(x, target)
        return plain, lax.bitcast_convert_type(jnp.flip(x, 0) + x, target), plain.T

    check_function(function, x, relative=0.0)


def test_bits_as_the_same_width(random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        bits = lax.bitcast_convert_type(x * 2, jnp.uint32)
        return lax.bitcast_convert_type(x, jnp.int32) >> 3, lax.bitcast_convert_type(bits ^ 1, jnp.float32).T

    check_function(function, normal(random, 20, 30), relative=0.0)


VIEWS_OF_NOTHING = """HloModule nothing
same {
  p = f32[3,0] parameter(0)
  ROOT q = f32[3,0] abs(p)
}
transposed {
  p = f32[3,0] parameter(0)
  ROOT q = f32[3,0] reverse(p), dimensions={0}
}
more {
  p = (s32[], f32[3,0]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}
turn {
  p = (s32[], f32[3,0]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[3,0] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[3,0] reverse(x), dimensions={0}
  ROOT r = (s32[], f32[3,0]) tuple(j, y)
}
before {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT
}
ENTRY main {
  x = f32[0] parameter(0)
  y = f32[3,4] parameter(1)
  flag = pred[] parameter(2)
  i = s32[] parameter(3)
  view = f32[3,0] broadcast(x), dimensions={1}
  back = f32[0,3] transpose(view), dimensions={1,0}
  wide = f32[3,0,3] broadcast(back), dimensions={1,2}
  cut = f32[5,0] reshape(view)
  branch = f32[3,0] conditional(flag, view, view), true_computation=same, false_computation=transposed
  start = (s32[], f32[3,0]) tuple(i, view)
  loop = (s32[], f32[3,0]) while(start), condition=more, body=turn
  state = f32[3,0] get-tuple-element(loop), index=1
  sorted = f32[3,0] sort(view), dimensions={0}, to_apply=before
  part = f32[2,0] dynamic-slice(view, i, i), dynamic_slice_sizes={2,0}
  zeros = f32[3,3] dot(view, back), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  all = f32[3,4] concatenate(view, y), dimensions={1}
  ROOT r = (f32[3,0,3], f32[5,0], f32[3,0], f32[3,0], f32[3,0], f32[2,0], f32[3,3], f32[3,4])
    tuple(wide, cut, branch, state, sorted, part, zeros, all)
}
"""


def test_views_of_nothing(random: np.random.Generator) -> None:
    y = random.standard_normal((3, 4)).astype(np.float32)
    check_text(VIEWS_OF_NOTHING, np.zeros(0, np.float32), y, np.bool_(True), np.int32(0))


def test_rows_that_no_view_cuts_are_copied() -> None:
    """132 rows on 128 partitions leave 4, and 4 x 33 rows that lie apart cannot be cut at row 128."""

    def function(x: Any) -> Any:
        return jnp.sort(jnp.sort(x, 0), 2)

    check_function(function, np.random.default_rng(0).standard_normal((4, 33, 7)).astype(np.float32))


@pytest.mark.parametrize("dims", [(4, 197, 384), (3, 131, 700), (2, 257, 1100), (5, 2, 139, 400)], ids=str)
def test_long_axes_that_no_number_of_partitions_divides(dims: tuple[int, ...], random: np.random.Generator) -> None:
    """They are cut where the short axes beside them would leave most partitions without work."""

    def function(x: Any, y: Any, z: Any) -> Any:
        i = x * y + lax.broadcasted_iota(jnp.int32, dims, 1)
        transposed = jnp.tanh(z) + x
        return i ^ 5, (i // 3).sum(-1), transposed.swapaxes(0, -2), transposed.max(-1), transposed[:, ::-1] * z

    x, y = (random.integers(-999, 999, dims).astype(np.int32) for _ in range(2))
    z = normal(random, *dims[:-2], dims[-1], dims[-2]).swapaxes(-1, -2)
    compiled = check_function(function, x, y, z)
    check_function(lambda x: jnp.cumsum(function(x, x, x * 0.5)[2], 1), x)
    products = [r for r in compiled.program.records if isinstance(r, Instr) and r.stream is Stream.GPSIMD and r.outs]
    assert max(record.outs[0].counts[0] for record in products) == 128


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s32", "u8", "pred", "c64", "s64"])
def test_results_that_repeat_one_element(dtype: str) -> None:
    number = {"pred": "true", "c64": "(2, 3)"}.get(dtype, "7")
    text = f"""HloModule m
ENTRY main {{
  x = {dtype}[] parameter(0)
  c = {dtype}[] constant({number})
  a = {dtype}[300,300] broadcast(c), dimensions={{}}
  b = {dtype}[7,1001] broadcast(x), dimensions={{}}
  s = {dtype}[3] broadcast(x), dimensions={{}}
  ROOT r = ({dtype}[300,300], {dtype}[7,1001], {dtype}[3]) tuple(a, b, s)
}}"""
    compiled = check_text(text, np.asarray(1, NUMPY_DTYPE[dtype]))
    report = Executable.from_program(compiled.program, compiled.constants).run([], timing_only=True).report
    if dtype not in ("c64", "s64"):
        assert report.kernel_ns < 100e3
