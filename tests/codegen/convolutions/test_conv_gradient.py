"""Gradients of kernels: spreads of positions over partitions, taps without input, results cut into parts."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_function, check_text, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.choose import FAMILIES, Planner, choose
from neuronx_cc.codegen.convolutions import gradient_candidates, gradient_schedule
from neuronx_cc.codegen.convolutions.gradient_plan import (
    Pace,
    Steps,
    blocks_of,
    parts_of,
    pieces_of,
    spread_of,
    sum_banks,
)
from neuronx_cc.codegen.convolutions.gradient_problem import Problem
from neuronx_cc.codegen.convolutions.gradient_schedule import Schedule
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.timing import Timing

PACE = Pace.of(Timing(TRN1))
LAYOUTS = (("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("CHWN", "IHWO", "HWNC"))


def normal(random: np.random.Generator, *dims: int) -> np.ndarray[Any, Any]:
    return random.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(
    ("batch", "features", "outputs", "size", "kernel", "stride"),
    [(1, 130, 5, 9, 3, 1), (3, 4, 131, 12, 1, 2), (2, 3, 8, 21, 7, 2), (9, 40, 33, 5, 3, 1), (1, 600, 20, 17, 2, 1)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_kernels(
    layout: tuple[str, str, str],
    batch: int,
    features: int,
    outputs: int,
    size: int,
    kernel: int,
    stride: int,
    dtype: str,
    random: np.random.Generator,
) -> None:
    image = {"N": batch, "C": features, "H": size, "W": size + 1}
    taps = {"O": outputs, "I": features, "H": kernel, "W": kernel}
    x, w = (normal(random, *(dims[c] for c in order)) for dims, order in ((image, layout[0]), (taps, layout[1])))

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=layout)

    y = jax.eval_shape(forward, x, w)
    x, y = (array.astype(getattr(ml_dtypes, dtype, dtype)) for array in (x, normal(random, *y.shape)))
    w = w.astype(x.dtype)
    check_function(lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros_like(w))[1](y), x, y)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(
    ("features", "outputs", "kernel", "dilation", "pads"),
    [
        (130, 1, (3, 3), 1, (1, 1)),
        (129, 3, (5, 2), 2, (3, 1)),
        (257, 24, (5, 5), 1, (2, 2)),
        (64, 7, (7, 1), 1, (0, 0)),
        (200, 2, (3, 5), 1, (0, 6)),
        (512, 33, (3, 3), 3, (1, 4)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_taps_move_what_has_few_features(
    layout: tuple[str, str, str],
    features: int,
    outputs: int,
    kernel: tuple[int, int],
    dilation: int,
    pads: tuple[int, int],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results of few features: those are shifted, from the last tap to the first."""
    family, taken = FAMILIES[Problem], list[Schedule]()

    def swapped(problem: Problem, timing: Timing) -> Iterator[Schedule]:
        for schedule in family.candidates(problem, timing):
            if schedule.face == 1:
                taken.append(schedule)
                yield schedule

    monkeypatch.setitem(FAMILIES, Problem, family._replace(candidates=swapped))
    random = np.random.default_rng(features)
    image = {"N": 2, "C": features, "H": 13, "W": 12}
    taps = {"O": outputs, "I": features, "H": kernel[0], "W": kernel[1]}
    x, w = (normal(random, *(dims[c] for c in order)) for dims, order in ((image, layout[0]), (taps, layout[1])))

    def forward(x: Any, w: Any) -> Any:
        dilations = (dilation, 1)
        return lax.conv_general_dilated(x, w, (1, 1), [pads, pads], rhs_dilation=dilations, dimension_numbers=layout)

    y = jax.eval_shape(forward, x, w)
    x, y = (array.astype(getattr(ml_dtypes, dtype, dtype)) for array in (x, normal(random, *y.shape)))
    w = w.astype(x.dtype)
    check_function(lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros_like(w))[1](y), x, y)
    assert taken


@pytest.mark.parametrize(
    ("batch", "features", "outputs", "size", "kernel", "stride"),
    [(2, 3, 8, (75, 140), 7, 2), (1, 2, 5, (66, 80), 3, 1), (3, 1, 4, (64, 130), 5, 2), (1, 3, 9, (130, 129), 4, 2)],
)
def test_positions_of_planes_are_loaded(
    batch: int, features: int, outputs: int, size: tuple[int, int], kernel: int, stride: int
) -> None:
    """Images of few features, features first: nothing is transposed, so no bits are split."""
    random = np.random.default_rng(0)
    x, w = normal(random, batch, features, *size), normal(random, outputs, features, kernel, kernel)

    def forward(x: Any, w: Any) -> Any:
        return lax.conv(x, w, (stride, stride), "SAME")

    y = normal(random, *jax.eval_shape(forward, x, w).shape)
    compiled = check_function(lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros_like(w))[1](y), x, y)
    instructions = [record for record in compiled.program.records if isinstance(record, Instr)]
    assert not any(ref.dtype == "u16" for instr in instructions for ref in instr.outs + instr.ins)


@pytest.mark.parametrize("banks", [2, 3, 5])
def test_gradient_of_a_kernel_with_few_banks(banks: int) -> None:
    machine = TRN1.with_settings([f"memory.psum_partition_bytes={banks * TRN1.sizes().bank_bytes}"])
    random = np.random.default_rng(0)
    x, kernel = (random.standard_normal(dims).astype(np.float32) for dims in ((8, 16, 16, 1), (3, 3, 1, 16)))

    def loss(x: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)))

    check_function(jax.grad(loss, 1), x, kernel, relative=1e-4, machine=machine)


def gradient_text(x: str, w: str, y: str, window: str, labels: str) -> str:
    return f"""HloModule generated

ENTRY main {{
  x = f32[{x}] parameter(0)
  w = f32[{w}] parameter(1)
  ROOT y = f32[{y}] convolution(x, w), window={{{window}}}, dim_labels={labels}
}}
"""


FOUR_AXES = "size=2x3x2x4 pad=0_0x1_1x0_0x1_1"
TEXTS = {
    "primes": ("5,3,13,19", "7,3,13,19", "3,3,5,7", "size=13x19 pad=1_1x1_1", "bf01_oi01->01bf"),
    "a long prime": ("4,1,5,131", "3,1,5,131", "3,3,4,3", "size=5x131 pad=1_1x1_1", "bf01_oi01->01bf"),
    "taps without input": ("5,2,16", "3,2,20", "5,3,10", "size=20 stride=6 pad=30_30", "bf0_oi0->bf0"),
    "no tap with input": ("5,2,4", "3,2,20", "2,5,3", "size=20 stride=9 pad=-4_29", "bf0_oi0->0bf"),
    "distant positions": ("6,2,64", "5,2,22", "2,6,5", "size=22 pad=0_1 rhs_dilate=3", "bf0_oi0->0bf"),
    "distant taps": ("6,2,40", "5,2,17", "6,6,5", "size=17 stride=5 pad=1_1", "bf0_oi0->0bf"),
    "three axes": ("9,2,4,5,6", "8,2,4,5,6", "3,3,3,9,8", "size=4x5x6 pad=1_1x1_1x1_1", "bf012_oi012->012bf"),
    "four axes": (
        "4,2,2,3,2,4",
        "3,2,2,3,2,4",
        "4,3,1,3,1,3",
        FOUR_AXES,
        "bf0123_oi0123->bf0123",
    ),
    "one feature": ("1,4,9,9", "20,4,9,9", "3,3,1,20", "size=9x9 pad=1_1x1_1", "bf01_oi01->01bf"),
    "one output": ("20,4,9,9", "1,4,9,9", "3,3,20,1", "size=9x9 pad=1_1x1_1", "bf01_oi01->01bf"),
    "one row of taps": ("10,4,9,9", "20,4,9,9", "3,1,10,20", "size=9x9 pad=1_1x0_0", "bf01_oi01->01bf"),
    "features last": ("4,28,28,20", "4,28,28,33", "3,3,20,33", "size=28x28 pad=1_1x1_1", "f01b_i01o->01bf"),
    "wide padding": ("2,9,12,5", "2,9,12,7", "7,7,5,7", "size=9x12 pad=3_3x3_3", "f01b_i01o->01bf"),
    "every other": ("2,30,30,3", "7,2,15,15", "7,7,3,7", "size=15x15 pad=3_2x3_2 rhs_dilate=2x2", "f01b_oi01->01bf"),
    "cut": ("2,30,30,3", "2,14,14,9", "3,2,3,9", "size=14x14 pad=0_-1x0_-2 rhs_dilate=2x2", "f01b_i01o->01bf"),
    "many taps": ("40,2,12,12", "5,2,12,12", "40,5,7,7", "size=12x12 pad=3_3x3_3", "bf01_oi01->bf01"),
    "dilated input": ("5,2,9", "3,2,16", "5,3,5", "size=16 pad=2_1 lhs_dilate=2", "bf0_oi0->bf0"),
    "dilated input, cut": ("5,2,9", "3,2,17", "3,5,3", "size=17 pad=3_-1 lhs_dilate=2", "bf0_oi0->0bf"),
    "dilated input, apart": ("5,2,7", "3,2,18", "5,3,4", "size=18 stride=3 pad=4_5 lhs_dilate=3", "bf0_oi0->bf0"),
    "transposed kernel": ("6,2,8,7", "5,2,16,7", "4,3,6,5", "size=16x7 pad=2_2x1_1 lhs_dilate=2x1", "bf01_oi01->01bf"),
    "very many taps": ("3,1,9,8,8", "5,1,9,8,8", "7,7,7,3,5", "size=9x8x8 pad=3_3x3_3x3_3", "bf012_oi012->012bf"),
    "many features": ("600,1,16", "700,1,16", "1,600,700", "size=16", "bf0_oi0->0bf"),
    "many features, transposed": ("300,1,16", "700,1,16", "300,700,3", "size=16 pad=1_1", "bf0_oi0->bf0"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, random: np.random.Generator) -> None:
    x, w, *_ = TEXTS[name]
    arrays = [normal(random, *(int(size) for size in dims.split(","))) for dims in (x, w)]
    check_text(gradient_text(*TEXTS[name]), *arrays)


@pytest.mark.parametrize(
    ("x", "y", "shape", "window"),
    [
        ("32,1,32,32,32", "64,1,32,32,32", "32,64,3,3,3", "size=32x32x32 pad=1_1x1_1x1_1"),
        ("64,8,16,16,16", "64,8,8,8,8", "64,64,3,3,3", "size=8x8x8 pad=0_1x0_1x0_1 rhs_dilate=2x2x2"),
    ],
)
def test_large_volumes_fit(x: str, y: str, shape: str, window: str) -> None:
    """What is loaded beside, of both operands, and results of many taps have room beside the tiles."""
    assert compile_text(gradient_text(x, y, shape, window, "bf012_oi012->bf012")).program.records


def test_deep_loops() -> None:
    """Of blocks along two axes, and of their tiles along three: waits count in fewer registers."""
    window = "size=24x24x24 pad=1_1x1_1x1_1"
    text = gradient_text("2,24,24,24,4", "56,2,24,24,24", "3,3,3,4,56", window, "f012b_oi012->012bf")
    assert compile_text(text).program.records


@pytest.mark.parametrize("labels", ["bf01_oi01->01bf", "bf01_oi01->bf01"])
@pytest.mark.parametrize("most", [3, 64])
def test_little_room(monkeypatch: pytest.MonkeyPatch, labels: str, most: int, random: np.random.Generator) -> None:
    """Blocks of some positions, and of some features, where SBUF is nearly full."""
    monkeypatch.setattr(Arena, "largest_gap", lambda self: 26_000)
    monkeypatch.setattr(gradient_candidates, "MAX_SUMS", most)
    y = "3,3,140,40" if labels.endswith("01bf") else "140,40,3,3"
    text = gradient_text("140,3,14,14", "40,3,14,14", y, "size=14x14 pad=1_1x1_1", labels)
    check_text(text, normal(random, 140, 3, 14, 14), normal(random, 40, 3, 14, 14))


def test_results_of_infinite_images_stay_finite_elsewhere(random: np.random.Generator) -> None:
    """No product is made but those of the sums, so an infinity at the border reaches only the taps that meet it."""
    x, w = normal(random, 3, 2, 9, 9), normal(random, 4, 2, 9, 9)
    x[1, 0, 0, 0] = np.inf
    text = gradient_text("3,2,9,9", "4,2,9,9", "3,3,3,4", "size=9x9 pad=1_1x1_1", "bf01_oi01->01bf")
    check_text(text, x, w)


@pytest.mark.parametrize("positions", [(4, 7, 7), (4, 56, 56), (1, 13, 17), (3, 131, 2), (200,)], ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_spreads(positions: tuple[int, ...], step: int) -> None:
    axes = tuple(Steps(size, step, 3, 1) for size in positions)
    spread = spread_of(PACE, axes, 64, 64)
    assert prod(spread.partitions) <= 128
    for steps, partitions, inner, reach in zip(axes, spread.partitions, spread.inner, spread.reach, strict=True):
        assert partitions * inner == steps.positions
        apart = [0]
        for count, distance in reach.loops:
            apart = [begin + at * distance for begin in apart for at in range(count)]
        for position in range(inner):
            for tap in range(steps.taps):
                assert apart[position * reach.position + tap * reach.tap] == position * step + tap


def test_nothing_fits_without_room() -> None:
    problem = next(gradients("float32"))
    assert choose(replace(problem, room=0), Timing(TRN1)) is None


def test_blocks_are_halved_and_trimmed() -> None:
    def spread(rows: Any) -> Any:
        return spread_of(PACE, tuple(Steps(size, 2, 1, 1) for size in rows), 256, 512)

    assert next(blocks_of([1, 28, 28], spread, 128)) == [1, 28, 28]
    assert [1, 7, 28] in blocks_of([1, 28, 28], spread, 128)
    assert [1, 128] in blocks_of([1, 131], spread, 128)


def gradients(dtype: str) -> Iterator[Problem]:
    """Those of some convolutions, as the planner sees them."""
    for layout, features, outputs, side, taps in product(LAYOUTS[:2], (3, 64, 200), (16, 128), (14, 28), (1, 3, 7)):
        image = {"N": 4, "C": features, "H": side, "W": side}
        kernel = {"O": outputs, "I": features, "H": taps, "W": taps}
        x, w = (
            np.broadcast_to(np.zeros((), dtype), [dims[c] for c in order])
            for dims, order in ((image, layout[0]), (kernel, layout[1]))
        )

        def forward(x: Any, w: Any, numbers: tuple[str, str, str] = layout) -> Any:
            return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

        posed: list[Problem] = []

        def note(planner: Planner, problem: Any, found: list[Problem] = posed) -> Any:
            found.extend([problem] if isinstance(problem, Problem) else [])
            return choose(problem, planner.timing, planner.level)

        y = np.broadcast_to(np.zeros((), dtype), jax.eval_shape(forward, x, w).shape)
        with mock.patch.object(Planner, "choose", note):
            compile_text(text_of(lambda x, y, w=w, f=forward: jax.vjp(lambda w: f(x, w), w)[1](y)[0], x, y))
        yield from posed


def test_schedules_are_values_that_fit_and_print() -> None:
    timing = Timing(TRN1)
    problems = list(gradients("float32"))
    assert len(problems) > 12
    for problem in problems[::3]:
        chosen = choose(problem, timing)
        assert chosen is not None
        assert chosen == choose(problem, timing)
        framed = gradient_schedule.frame(problem, chosen, timing)
        assert framed.nbytes(chosen.rows) <= problem.room
        least = gradient_candidates.bound(problem, timing)
        times = [
            gradient_candidates.estimate(problem, s, timing) for s in gradient_candidates.candidates(problem, timing)
        ]
        assert 0.9 * least <= gradient_candidates.estimate(problem, chosen, timing) == min(times)
        assert "\n" not in chosen.line(problem)


@pytest.mark.parametrize(("taps", "features", "most"), [((3, 3), 64, 128), ((7, 7), 3, 128), ((1,), 2000, 512)])
def test_parts_hold_every_sum_once(taps: tuple[int, ...], features: int, most: int) -> None:
    pieces = pieces_of(taps, features, most, [True for _ in taps])
    met = set()
    for piece in pieces:
        assert piece.width <= most
        ranges = [range(first, first + count) for first, count in zip(piece.first, piece.taps, strict=True)]
        for index in np.ndindex(*piece.taps):
            at = tuple(places[i] for places, i in zip(ranges, index, strict=True))
            met |= {(*at, feature) for feature in range(piece.start, piece.start + piece.size)}
    assert len(met) == prod(taps) * features
    banks = sum_banks(TRN1.sizes())
    parts = parts_of([[(piece, (0, 300))] for piece in pieces], False, banks, 512)
    assert sum(len(part) for part in parts) == len(pieces)
    for part in parts:
        assert max(each.bank for each in part) < banks
        assert len({(each.bank, each.column) for each in part}) == len(part)
        assert all(each.column + 300 <= 512 for each in part)


@pytest.mark.parametrize(("size", "stride"), [(129, 1), (150, 3), (224, 2)])
def test_depthwise_kernels_of_large_images(size: int, stride: int, random: np.random.Generator) -> None:
    """One tap needs nearly all of an image, which is cut."""

    def loss(w: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (stride, stride), [(1, 1), (1, 1)], feature_group_count=3)
        return (y * y).sum()

    x, w = (random.standard_normal(dims, np.float32) for dims in ((1, 3, size, size), (3, 1, 3, 3)))
    check_function(jax.grad(loss), w, x, relative=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(
    ("batch", "groups", "features", "outputs", "size", "kernel", "stride", "dtype"),
    [
        (2, 5, 1, 1, 9, 3, 1, "float32"),
        (1, 130, 1, 1, 7, 3, 2, "float32"),
        (3, 48, 1, 1, 12, 5, 2, "bfloat16"),
        (2, 40, 1, 1, 6, 5, 1, "float32"),
        (1, 129, 1, 2, 5, 7, 1, "bfloat16"),
        (2, 33, 4, 4, 7, 3, 1, "float32"),
        (2, 7, 3, 5, 9, 3, 2, "bfloat16"),
        (1, 3, 65, 2, 6, 3, 1, "float32"),
        (1, 2, 130, 140, 5, 1, 1, "float32"),
        (3, 2, 64, 64, 4, 2, 1, "bfloat16"),
    ],
)
def test_kernels_of_groups(
    layout: tuple[str, str, str],
    batch: int,
    groups: int,
    features: int,
    outputs: int,
    size: int,
    kernel: int,
    stride: int,
    dtype: str,
    random: np.random.Generator,
) -> None:
    image = {"N": batch, "C": groups * features, "H": size, "W": size + 1}
    taps = {"O": groups * outputs, "I": features, "H": kernel, "W": kernel}
    x, w = (normal(random, *(dims[c] for c in order)) for dims, order in ((image, layout[0]), (taps, layout[1])))

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
        )

    y = jax.eval_shape(forward, x, w)
    x, y = (array.astype(getattr(ml_dtypes, dtype, dtype)) for array in (x, normal(random, *y.shape)))
    w = w.astype(x.dtype)
    check_function(lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros_like(w))[1](y), x, y)


@pytest.mark.parametrize(
    ("layout", "groups", "size", "kernel", "stride", "whole", "dtype"),
    [
        (0, 7, 6, (3, 3), 1, True, "float32"),
        (1, 70, 5, (3, 2), 2, True, "bfloat16"),
        (1, 37, 7, (5, 7), 1, False, "float32"),
        (0, 130, 4, (1, 3), 1, False, "bfloat16"),
    ],
)
def test_taps_of_each_group_on_the_rows_of_sums(
    layout: int,
    groups: int,
    size: int,
    kernel: tuple[int, int],
    stride: int,
    whole: bool,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several packs of groups, staged together or one after the other; infinities of one reach no other."""
    family, taken = FAMILIES[Problem], list[Schedule]()

    def stacked(problem: Problem, timing: Timing) -> Iterator[Schedule]:
        for schedule in family.candidates(problem, timing):
            if schedule.stacked and (schedule.slabs[0] == groups) == whole:
                taken.append(schedule)
                yield schedule

    monkeypatch.setitem(FAMILIES, Problem, family._replace(candidates=stacked))
    random = np.random.default_rng(groups)
    image = {"N": 2, "C": groups, "H": size, "W": size + 1}
    taps = {"O": groups, "I": 1, "H": kernel[0], "W": kernel[1]}
    orders = LAYOUTS[layout]
    x, w = (normal(random, *(dims[c] for c in order)) for dims, order in ((image, orders[0]), (taps, orders[1])))

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (stride, 1), "SAME", dimension_numbers=orders, feature_group_count=groups)

    y = jax.eval_shape(forward, x, w)
    x.flat[3] = np.inf if dtype == "float32" else 3
    x, y = (array.astype(getattr(ml_dtypes, dtype, dtype)) for array in (x, normal(random, *y.shape)))
    w = w.astype(x.dtype)
    check_function(lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros_like(w))[1](y), x, y)
    assert taken
