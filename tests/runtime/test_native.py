"""The native core: that it is built where it must be, and that it agrees with the NumPy executor.

Whole memories are compared, bit for bit; sums and transcendental functions within rounding. NaN is NaN.
"""

import os
import signal
import time
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from core_agreement import INTEGERS, LEVELS, agree, built, execute, tiles, values
from one_instruction import Bench, dense

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa import functions
from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Program, Ref, Space, Stream, While
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.runtime import race_native
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.native.executor import NativeExecutor, make_executor
from neuronx_cc.runtime.values import Executor

T, V, S, G = Stream.TENSOR, Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD
NUMBERS = ["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f8e3m4", "u8", "s8", "u16", "s16", "u32", "s32", "pred"]


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="only where a compiler is promised: CI=true")
def test_the_core_was_built() -> None:
    """The extensions are optional, so an error in their sources would pass for a missing compiler."""
    assert library.load() is not None
    assert race_native.load() is not None


def test_levels_are_named_and_unknown_ones_are_not_there() -> None:
    if library.load() is None:
        assert library.level() is None
        return
    assert library.level() in ("base", "avx2", "avx512")
    assert library.level("base") == "base"
    assert library.level("no such level") is None


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(64)
    monkeypatch.setenv(library.SIMULATOR, "numpy")
    assert type(make_executor(Program(), memory, None)) is Executor
    monkeypatch.setenv(library.SIMULATOR, "auto")
    native = library.load() is not None
    assert isinstance(make_executor(Program(), memory, None), NativeExecutor) == native
    assert type(make_executor(Program(), memory, 5)) is Executor
    monkeypatch.setenv(library.SIMULATOR, "quick")
    with pytest.raises(RunError, match="quick is none of auto, native, numpy"):
        library.chosen()


def test_a_core_that_is_wanted_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    monkeypatch.setenv(library.SIMULATOR, "native")
    with pytest.raises(RunError, match="was not built") as error:
        library.chosen()
    assert "compiler" in error.value.remedy
    monkeypatch.setenv(library.SIMULATOR, "auto")
    assert library.chosen() == "numpy"


# one instruction ------------------------------------------------------------------------------------------------


def run(op, stream, arrays, out, alu=(), imm=(), flags=(), tolerance=0, native=True, initial=None):
    """One instruction on sources [(array, dtype)]."""
    bench = Bench()
    refs = [bench.load(array, dtype) for array, dtype in arrays]
    target = bench.load(initial, out[0]) if initial is not None else bench.tile(*out)
    bench.emit(Instr(op, stream, (target,), tuple(refs), tuple(alu), tuple(imm), frozenset(flags)))
    agree(bench, [target], tolerance, native)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@built
@pytest.mark.parametrize("source", NUMBERS)
def test_casts(rng, source):
    """From and to every type, dense, and every other element (as the halves of FP32 are moved)."""
    bench = Bench()
    data = bench.load(values(rng, source, (5, 700)), source)
    outs = []
    for number, dtype in enumerate(NUMBERS):
        step = STORAGE[dtype].itemsize * 2
        half = Ref(data.space, source, data.offset, ((5, 0), (350, STORAGE[source].itemsize * 2)))
        target = Ref(Space.SBUF, dtype, 20000 + 8000 * number, ((5, 0), (700, STORAGE[dtype].itemsize)))
        spread = Ref(Space.SBUF, dtype, 20000 + 8000 * number + 4000, ((5, 0), (350, step)))
        bench.emit(Instr("tensor_copy", V, (target,), (data,)))
        bench.emit(Instr("tensor_copy", V, (spread,), (half,)))
        outs += [target, spread]
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3", "s32"])
@pytest.mark.parametrize("shape", [(128, 37), (1, 1), (3, 2, 5, 3), (2, 2100)])
def test_arithmetic(rng, dtype, shape):
    bench = Bench()
    a, b = (bench.load(values(rng, kind, shape), kind) for kind in (dtype, "f32"))
    lane = bench.load(values(rng, "f32", (shape[0], 1)), "f32")
    outs = []
    for alu in ("add", "subtract", "multiply", "divide", "max", "min", "is_equal", "not_equal", "is_ge", "is_lt"):
        outs.append(bench.tile("f32" if alu != "min" else dtype, shape))
        bench.emit(Instr("tensor_tensor", V, outs[-1:], (a, b), (alu,)))
    two = [("subtract", "multiply", {"reverse0"}), ("divide", "abs", {"ap0"}), ("is_gt", "add", {"reverse1"})]
    for first, second, flags in two:
        outs.append(bench.tile("f32", shape))
        sources = (a, lane) if "ap0" in flags else (a,)
        bench.emit(Instr("tensor_scalar", V, outs[-1:], sources, (first, second), (1.7, -0.3), frozenset(flags)))
    outs.append(bench.tile("bf16", shape))
    bench.emit(Instr("scalar_tensor_tensor", V, outs[-1:], (a, b, lane), ("multiply", "add"), (), frozenset(["ap0"])))
    outs.append(bench.tile("f32", shape))
    bench.emit(Instr("reciprocal", V, outs[-1:], (a,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f8e4m3"])
def test_extremes_of_signed_zeros(rng, dtype):
    bench, shape = Bench(), (5, 83)
    arrays = [np.copysign(rng.integers(0, 2, shape), rng.standard_normal(shape)) for _ in range(2)]
    a, b = (bench.load(array.astype(STORAGE[dtype]), dtype) for array in arrays)
    start = bench.load(np.copysign(0, rng.standard_normal((5, 1))).astype(np.float32), "f32")
    outs = []
    for alu, name in (("max", "maximum"), ("min", "minimum")):
        outs += [bench.tile("f32", shape) for _ in range(4)] + [bench.tile("f32", (5, 1))]
        bench.emit(Instr("tensor_tensor", V, outs[-5:-4], (a, b), (alu,)))
        bench.emit(Instr("program_binary", G, outs[-4:-3], (b, a), (name,)))
        bench.emit(Instr("tensor_scalar", V, outs[-3:-2], (a,), (alu, "add"), (0.0, -0.0)))
        bench.emit(Instr("tensor_scalar", V, outs[-2:-1], (a,), (alu, "add"), (-0.0, -0.0)))
        bench.emit(Instr("tensor_reduce", V, outs[-1:], (a,), (alu,)))
        if dtype == "f32":
            outs.append(bench.tile("f32", shape))
            bench.emit(Instr("tensor_tensor_scan", V, outs[-1:], (a, b, start), (alu, "max"), (), frozenset(["ap0"])))
    outs.append(bench.tile(dtype, shape))
    bench.emit(Instr("activation", S, outs[-1:], (a,), ("relu",)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_and_integers(rng, dtype, short):
    """In long rows, and in rows of 10 with gaps between them."""
    bench, shape, size = Bench(), (9, 13, 10) if short else (9, 130), STORAGE[dtype].itemsize
    a, b = (bench.load(values(rng, dtype, (9, 156) if short else shape), dtype) for _ in range(2))
    if short:
        a, b = (replace(ref, dims=((9, 0), (13, 12 * size), (10, size))) for ref in (a, b))
    outs = []
    for alu in ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_shift_left", "logical_shift_right"):
        outs.append(dense(Space.SBUF, dtype, 30000 + 600 * len(outs), shape))
        bench.emit(Instr("tensor_tensor", V, outs[-1:], (a, b), (alu,)))
    outs.append(dense(Space.SBUF, dtype, 30000 + 600 * len(outs), shape))
    bench.emit(Instr("tensor_scalar", V, outs[-1:], (a,), ("bitwise_not", "logical_shift_right"), (0, 3)))
    names = "add subtract multiply divide remainder maximum minimum and or xor mulhi shift-left shift-right-logical"
    for alu in (
        *names.split(),
        "shift-right-arithmetic",
        "power",
        "rotate-left",
        "compare-eq",
        "compare-lt",
        "compare-ge",
    ):
        for flags in ((), ("reverse",)):
            out = "pred" if alu.startswith("compare") else dtype
            outs.append(dense(Space.SBUF, out, 30000 + 600 * len(outs), shape))
            bench.emit(Instr("int_tensor_tensor", G, outs[-1:], (a, b), (alu,), (), frozenset(flags)))
    outs.append(dense(Space.SBUF, "s32", 30000 + 600 * len(outs), shape))
    bench.emit(Instr("int_tensor_tensor", G, outs[-1:], (a,), ("add",), (5,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["u32", "s32"])
def test_chains_of_words_with_gaps_and_repeated_elements(rng, dtype):
    """More than a block a row; in place, from and to every other word, one word for all, constants on either side."""
    bench, shape = Bench(), (5, 1100)
    a, b = (bench.load(values(rng, dtype, shape), dtype) for _ in range(2))
    shifts = bench.load(rng.integers(0, 40, shape).astype(STORAGE[dtype]), dtype)
    same = Ref(b.space, dtype, b.offset, ((5, 0), (1100, 0)))
    outs = []

    def out(step):
        outs.append(Ref(Space.SBUF, dtype, 30000 + 9000 * len(outs), ((5, 0), (1100, step))))
        return outs[-1:]

    spread = out(8)
    for alu in ("add", "subtract", "multiply", "xor", "shift-right-arithmetic", "shift-left"):
        bench.emit(Instr("int_tensor_tensor", G, spread, (a, shifts), (alu,)))
        for step, source, flags in ((4, same, ()), (8, b, ("reverse",)), (4, spread[0], ())):
            bench.emit(Instr("int_tensor_tensor", G, out(step), (a, source), (alu,), (), frozenset(flags)))
            outs = outs[:8]
    bench.emit(Instr("int_tensor_tensor", G, outs[-1:], outs[-1:], ("subtract",), (7,), frozenset(["reverse"])))
    chain = ("bitwise_not", "logical_shift_right")
    bench.emit(Instr("tensor_scalar", V, out(8), (same,), chain, (0, 5)))
    bench.emit(Instr("tensor_scalar", V, out(4), (spread[0],), ("logical_shift_left", "bitwise_xor"), (3, 9)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", ["pred", "f32"])
def test_comparisons_of_repeated_elements(rng, dtype, kind):
    """One element a row on either side, or on both."""
    bench, shape, outs = Bench(), (9, 40), []
    row = bench.load(values(rng, dtype, shape), dtype)
    one = replace(row, dims=((9, 0), (40, 0)))
    other = bench.load(values(rng, "f32", (9, 1)), "f32")
    for alu in ("is_equal", "not_equal", "is_gt", "is_ge", "is_lt", "is_le"):
        for left, right in ((row, row), (one, row), (row, one), (one, one), (one, replace(other, dims=one.dims))):
            outs.append(dense(Space.SBUF, kind, 40000 + 200 * len(outs), shape))
            bench.emit(Instr("tensor_tensor", V, outs[-1:], (left, right), (alu,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["u32", "s32"])
def test_quotients_at_their_limits(dtype):
    """All pairs of numbers beside powers of two and the type's bounds: quotients just beside whole ones."""
    info = np.iinfo(STORAGE[dtype])
    powers = (0, 1, 2, 3, 7, 1 << 15, 1 << 16, 1 << 24, 1 << 31, 1 << 32)
    near = {power + step for power in powers for step in (-1, 0, 1)}
    numbers = np.array(sorted({n for x in near for n in (x, -x) if info.min <= n <= info.max}), STORAGE[dtype])
    bench, outs = Bench(), []
    pairs = np.meshgrid(numbers, numbers, indexing="ij")
    a, b = (bench.load(np.ascontiguousarray(each), dtype) for each in pairs)
    for alu in ("divide", "remainder"):
        outs.append(dense(Space.SBUF, dtype, 30000 + 600 * len(outs), pairs[0].shape))
        bench.emit(Instr("int_tensor_tensor", G, outs[-1:], (a, b), (alu,)))
        for value in (0, 1, 3, int(info.max), int(info.min)):
            outs.append(dense(Space.SBUF, dtype, 30000 + 600 * len(outs), pairs[0].shape))
            bench.emit(Instr("int_tensor_tensor", G, outs[-1:], (a,), (alu,), (value,)))
    agree(bench, outs)


@built
def test_truth_values_are_combined_as_bytes(rng):
    """One beside the other, in place, and one for all of a row."""
    bench, shape, outs = Bench(), (5, 1030), []
    a, b = (bench.load(rng.integers(0, 2, shape).astype(np.uint8), "pred") for _ in range(2))
    same = Ref(b.space, "pred", b.offset, ((5, 0), (1030, 0)))
    for alu in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        for other in (b, same):
            outs.append(dense(Space.SBUF, "pred", 30000 + 1200 * len(outs), shape))
            bench.emit(Instr("tensor_tensor", V, outs[-1:], (a, other), (alu,)))
    bench.emit(Instr("tensor_tensor", V, outs[-1:], (outs[-1], b), ("bitwise_xor",)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_functions(rng, dtype):
    exact = ["copy", "square", "relu", "sqrt", "rsqrt", "reciprocal", "sign", "abs", "erf", "gelu"]
    close = ["exp", "tanh", "sigmoid", "silu", "softplus"]
    shape = (4, 3, 50)
    for names, tolerance in ((exact, 0), (close, 1e-6 if dtype == "f32" else 1 / 128)):
        bench = Bench()
        x = bench.load(values(rng, dtype, shape), dtype)
        lanes = [bench.load(rng.standard_normal((4, 1)).astype(np.float32), "f32") for _ in range(2)]
        outs = []
        for function in names:
            outs.append(dense(Space.SBUF, dtype, 40000 + 1000 * len(outs), shape))
            bench.emit(Instr("activation", S, outs[-1:], (x,), (function,), (1.0,)))
        outs.append(dense(Space.SBUF, "f32", 40000 + 1000 * len(outs), shape))
        flags = frozenset(["scale_ap", "bias"])
        bench.emit(Instr("activation", S, outs[-1:], (x, *lanes), (names[0],), (), flags))
        agree(bench, outs, tolerance)


@built
def test_transcendental_functions_are_accurate(rng):
    """Within 2 ulp of the exact value, over the whole range of each."""
    x = np.concatenate([rng.uniform(-104, 89, 20000), rng.standard_normal(20000), 10.0 ** rng.uniform(-45, 38, 20000)])
    x = np.resize(np.concatenate([x, -x, 1 + x / 1000]).astype(np.float32), (120, 1500))
    softplus = lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))  # noqa: E731
    exact = {"exp": np.exp, "tanh": np.tanh, "softplus": softplus, "log": np.log, "sine": np.sin, "cosine": np.cos}
    for function, evaluate in exact.items():
        bench = Bench()
        given = np.abs(x) if function == "log" else x
        source = bench.load(given, "f32")
        target = bench.tile("f32", x.shape)
        if function in ("sine", "cosine"):
            bench.emit(Instr("program_unary", G, (target,), (source,), (function,)))
        else:
            bench.emit(Instr("activation", S, (target,), (source,), (function,), (1.0,)))
        bench.program.hbm_bytes = bench.hbm
        memory, left = execute(bench.program, bench.inputs, "")
        assert not left
        with np.errstate(over="ignore"):
            want = evaluate(given.astype(np.float64))
        finite = np.abs(want) < np.finfo(np.float32).max
        want = want[finite]
        error = np.abs(tiles(memory, target).astype(np.float64)[finite] - want)
        assert (error / np.spacing(np.abs(want).astype(np.float32))).max() <= 2, function


@built
@pytest.mark.parametrize("function", functions.UNARY)
def test_functions_of_special_values(function):
    """Infinities, NaN, zeros of both signs, borders of domains, halves, huge numbers; of whole rows or mixed."""
    borders = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, -1.0, 1.0, 2.5]
    special = [*borders, -27.0, 1e-6, -1e-6, 1e-42, 524288.0, 1e30]
    special = np.array(special, np.float32)
    for given in (special[:, None], np.resize(special, (4, 40))):
        bench = Bench()
        x = bench.load(given, "f32")
        target = bench.tile("f32", x.counts)
        bench.emit(Instr("program_unary", G, (target,), (x,), (function,)))
        bench.program.hbm_bytes = bench.hbm
        memory, left = execute(bench.program, bench.inputs, "")
        assert not left
        with np.errstate(all="ignore"):
            want = functions.UNARY[function](bench.inputs[0])
        got = tiles(memory, target)
        np.testing.assert_allclose(got, want, 2.4e-7, np.finfo(np.float32).smallest_subnormal)
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@built
@pytest.mark.parametrize("op", ["power", "remainder", "atan2"])
def test_functions_of_two_special_values(op):
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, -1.0, 1.0, 2.0, 3.0, -3.0, 1e-42, 1e30, -1e30, 0.3333]
    a = np.array(special, np.float32)[:, None]
    pairs = np.broadcast_to(a, (len(a), len(a))), np.broadcast_to(a.T, (len(a), len(a)))
    for flags in (frozenset(), frozenset(["reverse"])):
        for fixed in (None, 2.0, -0.5, 0.0):
            bench = Bench()
            loaded = [bench.load(np.ascontiguousarray(x), "f32") for x in pairs]
            target, rest = bench.tile("f32", pairs[0].shape), () if fixed is None else (fixed,)
            bench.emit(Instr("program_binary", G, (target,), tuple(loaded[: 2 - len(rest)]), (op,), rest, flags))
            bench.program.hbm_bytes = bench.hbm
            memory, left = execute(bench.program, bench.inputs, "")
            assert not left
            x, y = pairs[0], pairs[1] if fixed is None else np.full_like(pairs[0], fixed)
            with np.errstate(all="ignore"):
                want = functions.BINARY[op](*((y, x) if flags else (x, y)))
            got = tiles(memory, target)
            np.testing.assert_allclose(got, want, 2.4e-7, np.finfo(np.float32).smallest_subnormal)
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_exact_functions_agree(rng, dtype):
    """To the last bit: rounding, finiteness, fewer bits, remainders."""
    bench, outs, shape = Bench(), [], (5, 1030)
    a, b = bench.load(values(rng, dtype, shape), dtype), bench.load(values(rng, dtype, shape), dtype)
    for op in ("floor", "ceil", "round-nearest-afz", "round-nearest-even", "is-finite"):
        outs.append(dense(Space.SBUF, dtype, 30000 + 4200 * len(outs), shape))
        bench.emit(Instr("program_unary", G, outs[-1:], (a,), (op,)))
    for widths in (
        (8, 23),
        (8, 7),
        (5, 10),
        (5, 2),
        (4, 3),
        (1, 1),
        (2, 0),
    ):
        outs.append(dense(Space.SBUF, dtype, 30000 + 4200 * len(outs), shape))
        bench.emit(Instr("program_unary", G, outs[-1:], (a,), ("reduce-precision",), widths))
    outs.append(dense(Space.SBUF, dtype, 30000 + 4200 * len(outs), shape))
    bench.emit(Instr("program_binary", G, outs[-1:], (a, b), ("remainder",)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("function", ["tanh", "sin", "copy", "erf", "sqrt", "gelu"])
def test_zeros_keep_their_sign(function):
    bench = Bench()
    source = bench.load(np.resize(np.array([0.0, -0.0], np.float32), (4, 50)), "f32")
    target = bench.tile("f32", (4, 50))
    bench.emit(Instr("activation", S, (target,), (source,), (function,), (1.0,)))
    bench.program.hbm_bytes = bench.hbm
    memory, _ = execute(bench.program, bench.inputs, "")
    np.testing.assert_array_equal(np.signbit(tiles(memory, target)), np.resize([False, True], (4, 50)))


@built
def test_sums_and_extremes(rng):
    for shape, outer in (((7, 300), (7,)), ((7, 5, 40), (7, 5)), ((128, 2, 3, 9), (128,)), ((2, 2000), (2, 1))):
        bench = Bench()
        x = bench.load(rng.standard_normal(shape).astype(np.float32), "f32")
        special = bench.load(values(rng, "bf16", shape), "bf16")
        outs, sums = [], []
        for alu, flags in (("max", ()), ("min", ("negate",))):
            for source in (x, special):
                outs.append(bench.tile("f32", outer))
                bench.emit(Instr("tensor_reduce", V, outs[-1:], (source,), (alu,), (), frozenset(flags)))
        sums.append(bench.tile("f32", outer))
        bench.emit(Instr("tensor_reduce", V, sums[-1:], (x,), ("add",)))
        y, total = bench.tile("f32", shape), bench.tile("f32", (shape[0], 1))
        bench.emit(Instr("activation", S, (y, total), (x,), ("square",), (1.0,), frozenset(["accumulate"])))
        agree(bench, [y, total], 1e-5)
        # the order of zeros of both signs is not defined
        memory, _ = execute(bench.program, bench.inputs, "")
        expected, _ = execute(bench.program, bench.inputs)
        for ref in outs:
            np.testing.assert_array_equal(tiles(memory, ref), tiles(expected, ref))
        np.testing.assert_allclose(tiles(memory, sums[0]), tiles(expected, sums[0]), atol=prod(shape) * 1e-7)


@built
@pytest.mark.parametrize(("results", "elements"), [(16, 8), (40, 13), (70, 128), (100, 129), (7, 300), (20, 700)])
def test_sums_across_rows_have_the_bits_of_sums_along_them(rng, results, elements):
    data = rng.standard_normal((9, elements, results)).astype(np.float32)
    data[2, 1, 3], data[3, 0, 4] = np.inf, np.nan
    for level in LEVELS:
        bench = Bench()
        sources = [bench.variable("input", "f32", (9, elements * results), k) for k in range(2)]
        bench.inputs = [data.reshape(9, -1), data.swapaxes(1, 2).reshape(9, -1)]
        across, along = (dense(Space.SBUF, "f32", 65536 * k, (9, elements * results)) for k in range(2))
        outs = [dense(Space.SBUF, "f32", 131072 + 8192 * k, (9, results)) for k in range(2)]
        for tile, source in zip((across, along), sources, strict=True):
            bench.emit(Instr("dma_copy", Stream.DMA_LOAD, (tile,), (source,)))
        shapes = ((9, 0), (results, 4), (elements, results * 4)), ((9, 0), (results, elements * 4), (elements, 4))
        for tile, out, dims in zip((across, along), outs, shapes, strict=True):
            bench.emit(Instr("tensor_reduce", V, (out,), (replace(tile, dims=dims),), ("add",)))
        bench.program.hbm_bytes = bench.hbm
        memory, left = execute(bench.program, bench.inputs, level)
        assert left == []
        np.testing.assert_array_equal(tiles(memory, outs[0]).view(np.uint32), tiles(memory, outs[1]).view(np.uint32))


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("results", "elements"), [(40, 5), (40, 12), (3, 5), (1100, 2)])
def test_columns_are_folded_side_by_side(rng, dtype, results, elements):
    """Results whose elements lie across rows; few of them, and more than go into one block."""
    bench, size, outs = Bench(), STORAGE[dtype].itemsize, []
    x = bench.load(np.abs(values(rng, dtype, (9, elements * results)).astype(np.float32)).astype(STORAGE[dtype]), dtype)
    across = replace(x, dims=((9, 0), (results, size), (elements, results * size)))
    for alu, flags in (("max", ()), ("min", ("negate",)), ("add", ())):
        outs.append(dense(Space.SBUF, "f32", 60000 + 8192 * len(outs), (9, results)))
        bench.emit(Instr("tensor_reduce", V, outs[-1:], (across,), (alu,), (), frozenset(flags)))
    agree(bench, outs[:2])
    agree(bench, outs, 1e-5)


@built
@pytest.mark.parametrize("shape", [(5, 40), (128, 3, 7), (9, 2, 2, 5)], ids=str)
@pytest.mark.parametrize("first", ["add", "multiply", "max", "min"])
def test_scans(rng, first, shape):
    """Forwards, backwards, with a repeated source, and onto a source."""
    bench = Bench()
    special = values(rng, "f32", shape)
    a, b = (
        bench.load(np.where(special == 0, np.float32(1), special) if place else data, "f32")
        for place, data in enumerate((rng.uniform(-1, 1, shape).astype(np.float32), special))
    )
    start = bench.load(rng.standard_normal((shape[0], 1)).astype(np.float32), "f32")
    one = bench.load(np.ones((shape[0], 1), np.float32), "f32")
    ones = replace(one, dims=(one.dims[0], *((count, 0) for count in shape[1:])))
    back = replace(a, offset=a.offset + 4 * (prod(shape[1:]) - 1), dims=(a.dims[0], *((n, -s) for n, s in a.dims[1:])))
    outs = []
    for second in ("add", "multiply", "max", "min"):
        for source in (a, back):
            outs.append(bench.tile("f32", shape))
            ins = (source, b, start)
            bench.emit(Instr("tensor_tensor_scan", V, outs[-1:], ins, (first, second), (), frozenset(["ap0"])))
    outs.append(bench.tile("f32", shape))
    flags = frozenset(["ap0"])
    bench.emit(Instr("tensor_tensor_scan", V, outs[-1:], (a, ones, start), (first, "multiply"), (), flags))
    outs.append(b)
    bench.emit(Instr("tensor_tensor_scan", V, (b,), (a, b, start), (first, "add"), (), flags))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "f8e4m3"])
def test_moves(rng, dtype):
    bench, shape = Bench(), (6, 32, 3)
    a, kept = (bench.load(values(rng, dtype, shape), dtype) for _ in range(2))
    mask = bench.load(rng.integers(0, 2, shape).astype(np.uint8), "u8")
    words = bench.load(rng.integers(0, 2, shape).astype(np.int32), "s32")
    bench.emit(Instr("copy_predicated", V, (kept,), (mask, a)))
    bench.emit(Instr("copy_predicated", V, (kept,), (words,), (), (3.0,), frozenset(["reverse"])))
    size = STORAGE[dtype].itemsize
    square = Ref(Space.SBUF, dtype, 40000, ((32, 0), (6, size)))
    flat = Ref(a.space, dtype, a.offset, ((6, 0), (32, 3 * size)))
    bench.emit(Instr("transpose", V, (square,), (flat,)))
    filled = dense(Space.SBUF, dtype, 48000, (128, 40))
    bench.emit(Instr("memset", V, (filled,), (), (), (2.0,)))
    one = Ref(a.space, dtype, a.offset, ((1, 0), (96, size)))
    wide = dense(Space.SBUF, dtype, 56000, (100, 96))
    bench.emit(Instr("partition_broadcast", G, (wide,), (one,)))
    turned = Ref(Space.SBUF, dtype, 64000, ((6, 0), (3, 32 * size), (32, size)))
    reverse = Ref(a.space, dtype, a.offset + 31 * 3 * size, ((6, 0), (3, size), (32, -3 * size)))
    bench.emit(Instr("dma_copy", Stream.DMA_LOAD, (turned,), (reverse,)))
    agree(bench, [kept, square, filled, wide, turned])


@built
@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 160])
def test_every_other_word(rng, count):
    """As the parts of complex numbers lie; what is between them stays."""
    bench = Bench()
    parts, apart = (
        bench.load(values(rng, "f32", (5, count)), "f32"),
        bench.load(values(rng, "f32", (5, 2 * count)), "f32"),
    )
    every = replace(apart, dims=(apart.dims[0], (count, 8)))
    rest = [bench.tile("f32", (5, count)) for _ in range(2)]
    bench.emit(Instr("tensor_copy", V, (rest[0],), (every,)))
    bench.emit(Instr("tensor_tensor", V, (rest[1],), (parts, every), ("max",)))
    bench.emit(Instr("tensor_tensor", V, (every,), (parts, rest[1]), ("min",)))
    other = replace(every, offset=every.offset + 4)
    bench.emit(Instr("tensor_copy", V, (other,), (parts,)))
    agree(bench, [*rest, apart])


@built
@pytest.mark.parametrize("shape", [(32, 32), (17, 32), (32, 9), (8, 8), (1, 32), (5, 3)])
@pytest.mark.parametrize("dtype", ["f32", "s32", "bf16"])
def test_squares_are_turned_bit_by_bit(rng, dtype, shape):
    run("transpose", V, [(values(rng, dtype, shape), dtype)], (dtype, shape[::-1]))


@built
def test_gather(rng):
    bench = Bench()
    table = bench.variable("input", "bf16", (50, 2, 9), 0)
    bench.inputs.append(values(rng, "bf16", (50, 2, 9)))
    index = bench.load(rng.integers(-60, 60, (40, 1)).astype(np.int32), "s32")
    target = bench.tile("bf16", (40, 2, 9))
    bench.emit(Instr("dma_gather", Stream.DMA_DYNAMIC, (target,), (table, index), (), (), frozenset(["clamp"])))
    agree(bench, [target])
    bench.program.records[-1].flags = frozenset()
    for level in (None, ""):
        with pytest.raises(RunError, match=r"index -?\d+ of partition \d+ is outside the 50 rows"):
            execute(bench.program, bench.inputs, level)


@built
@pytest.mark.parametrize("flags", [["skip"], ["skip", "add"], ["add"], []])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_scatter(rng, dtype, flags):
    """Rows in pieces, several times the same one; sums of other types than FP32 are left to NumPy."""
    bench = Bench()
    table = bench.variable("output", dtype, (50, 2, 9), 0)
    bench.emit(Instr("dma_copy", Stream.DMA_LOAD, (table,), (bench.load(values(rng, dtype, (50, 2, 9)), dtype),)))
    low, high = (-60, 60) if "skip" in flags else (0, 50)
    index = bench.load(rng.integers(low, high, (40, 1)).astype(np.int32), "s32")
    rows = bench.load(values(rng, dtype, (40, 2, 9)), dtype)
    bench.emit(Instr("dma_scatter", Stream.DMA_DYNAMIC, (table,), (rows, index), (), (), frozenset(flags)))
    back = bench.tile(dtype, (50, 2, 9))
    bench.emit(Instr("dma_copy", Stream.DMA_LOAD, (back,), (table,)))
    agree(bench, [back], native=dtype == "f32" or "add" not in flags)
    if "skip" in flags:
        return
    bench.inputs[1] = bench.inputs[1] + 20
    for level in (None, ""):
        with pytest.raises(RunError, match=r"index \d+ of partition \d+ is outside the 50 rows"):
            execute(bench.program, bench.inputs, level)


# TensorE ------------------------------------------------------------------------------------------------------


def product(bench, weights, moving, out, flags=()):
    bench.emit(Instr("load_stationary", T, (), (weights,)))
    bench.emit(Instr("multiply_moving", T, (out,), (moving,), (), (), frozenset(flags)))


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f8e5m2"])
@pytest.mark.parametrize(
    "sizes", [(128, 128, 512), (1, 1, 1), (128, 128, 1), (70, 37, 1), (37, 70, 65), (5, 13, 31), (128, 12, 33)]
)
def test_products(rng, dtype, sizes):
    """Every level gives the same bits, and they are within rounding of NumPy's."""
    depth, rows, columns = sizes
    bench = Bench()
    weights, moving = (
        bench.load(rng.standard_normal((depth, n)).astype(np.float32).astype(STORAGE[dtype]), dtype)
        for n in (rows, columns)
    )
    plain, added, apart = (Ref(Space.PSUM, "f32", 2048 * k, ((rows, 0), (columns, 4))) for k in range(3))
    for flags in ((), ("accumulate",)):
        product(bench, weights, moving, added, flags)
    product(bench, weights, moving, plain, ["tf32"])
    if columns == 33:
        apart = Ref(Space.PSUM, "f32", 4096, ((rows, 0), (3, 4), (11, 12)))
        product(bench, weights, moving, apart)
        product(bench, weights, moving, apart, ["accumulate"])
    outs = [plain, added, *([apart] if columns == 33 else [])]
    bench.program.hbm_bytes = bench.hbm
    expected, _ = execute(bench.program, bench.inputs)
    results = [execute(bench.program, bench.inputs, level) for level in LEVELS]
    for memory, left in results:
        assert left == []
        for ref in outs:
            np.testing.assert_allclose(tiles(memory, ref), tiles(expected, ref), rtol=1e-5, atol=depth * 1e-6)
            assert (tiles(memory, ref).view("u4") == tiles(results[0][0], ref).view("u4")).all()


@built
def test_products_of_special_values_and_windows(rng):
    bench = Bench()
    weights = bench.load(values(rng, "f32", (30, 20)), "f32")
    image = bench.load(rng.standard_normal((30, 12, 12)).astype(np.float32), "f32")
    window = Ref(Space.SBUF, "f32", image.offset + 52, ((30, 0), (5, 96), (5, 8)))
    out = Ref(Space.PSUM, "f32", 0, ((20, 0), (25, 4)))
    product(bench, weights, window, out)
    bench.program.hbm_bytes = bench.hbm
    (expected, _), (memory, left) = (execute(bench.program, bench.inputs, level) for level in (None, ""))
    assert left == []
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(tiles(memory, out), tiles(expected, out), rtol=1e-4)


@built
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("shape", [(128, 128), (64, 3), (7, 9), (8, 128)])
def test_products_with_the_identity_are_transposes(rng, shape, special):
    """Infinities and NaN spread over their row of the result, as in any product; -0 becomes 0."""
    depth, rows = shape
    bench = Bench()
    data = np.where(rng.random(shape) < 0.2, np.float32(-0.0), rng.standard_normal(shape).astype(np.float32))
    if special:
        data[depth // 2, 1], data[0, rows - 1] = np.inf, np.nan
    weights = bench.load(data, "f32")
    unit = bench.load(np.eye(depth, dtype=np.float32), "f32")
    outs = [Ref(Space.PSUM, "f32", 2048 * k, ((rows, 0), (depth, 4))) for k in range(2)]
    product(bench, weights, unit, outs[0])
    bench.emit(Instr("memset", V, (weights,), (), (), (7.0,)))  # the stationary tile has been read before
    bench.emit(Instr("multiply_moving", T, (outs[1],), (unit,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("apart", [512, 256, 0])
def test_transposes_in_a_loop(rng, apart):
    """Tiles that follow each other, one of them with an infinity; results ``apart`` bytes from each other."""
    bench, tiles_each, rounds = Bench(), 5, 3
    data = rng.standard_normal((128, rounds, tiles_each, 128)).astype(np.float32)
    data[3, 1, 2, 5] = np.inf
    source = bench.load(data, "f32")
    unit = bench.load(np.eye(128, dtype=np.float32), "f32")
    each = tiles_each * apart
    bench.program.records.append(Loop(rounds, 0))
    for k in range(tiles_each):
        dims = ((128, 0), (128, 4))
        tile = Ref(Space.SBUF, "f32", source.offset + 512 * k, dims, coefs=((0, 512 * tiles_each),))
        product(bench, tile, unit, Ref(Space.PSUM, "f32", apart * k, dims, coefs=((0, each),)))
    bench.program.records.append(End())
    agree(bench, [Ref(Space.PSUM, "f32", 0, ((128, 0), (each * rounds // 4 or 128, 4)))])


@built
def test_threads_do_not_change_a_bit(rng):
    bench = Bench()
    weights, moving = (bench.load(rng.standard_normal((128, n)).astype(np.float32), "f32") for n in (128, 512))
    out = Ref(Space.PSUM, "f32", 0, ((128, 0), (512, 4)))
    product(bench, weights, moving, out)
    tile, total = bench.tile("f32", (128, 512)), bench.tile("f32", (128, 1))
    bench.emit(Instr("activation", S, (tile, total), (out,), ("exp",), (1.0,), frozenset(["accumulate"])))
    bench.program.hbm_bytes = bench.hbm
    core, results = library.required(), []
    try:
        for threads in (1, 2, 5):
            core.core_threads(threads)
            memory, _ = execute(bench.program, bench.inputs, "")
            results.append([tiles(memory, ref).view("u4") for ref in (out, tile, total)])
    finally:
        core.core_threads(library.threads())
    for result in results[1:]:
        for first, other in zip(results[0], result, strict=True):
            assert (first == other).all()


# programs -----------------------------------------------------------------------------------------------------


@built
def test_operands_that_overlap_are_read_first(rng):
    """What the core's order would spoil is left to NumPy; a result exactly over its source is not."""
    bench = Bench()
    x = bench.load(rng.standard_normal((4, 100)).astype(np.float32), "f32")
    shifted = Ref(x.space, "f32", x.offset + 4, x.dims)
    narrow = Ref(x.space, "bf16", x.offset, ((4, 0), (100, 2)))
    bench.emit(Instr("tensor_scalar", V, (x,), (x,), ("add",), (1.0,)))
    bench.emit(Instr("tensor_tensor", V, (shifted,), (x, shifted), ("add",)))
    bench.emit(Instr("tensor_copy", V, (narrow,), (x,)))
    results = agree(bench, [shifted, narrow], native=False)
    assert results[0][1] == ["tensor_tensor", "tensor_copy"]


@built
def test_faults_name_the_instruction() -> None:
    bench = Bench()
    x = bench.load(np.zeros((4, 8), np.float32), "f32")
    outside = Ref(Space.SBUF, "f32", 196600, ((4, 0), (8, 4)), 0, ((3, 4),))
    bench.program.records += [
        Loop(2, 3, (), frozenset([V])),
        Instr("tensor_copy", V, (outside,), (x,)),
        End(),
    ]
    bench.program.hbm_bytes = bench.hbm
    for level in (None, ""):
        with pytest.raises(RunError, match=r"tensor_copy \(record 2, VECTOR\) of kernel bench: byte offset 196600"):
            execute(bench.program, bench.inputs, level)


@built
def test_loops_regions_and_registers(rng):
    """Nested loops with phases, a loop around a region, a branch whose case is loaded."""
    bench = Bench()
    x = bench.load(rng.standard_normal((4, 64)).astype(np.float32), "f32")
    case = bench.load(np.array([[1]], np.int32), "s32")
    target = Ref(Space.SBUF, "f32", 40000, ((4, 0), (4, 4)), 0, ((1, 16), (10, 400)))
    source = Ref(Space.SBUF, "f32", x.offset, ((4, 0), (4, 4)), 0, ((1, 16), (2, 64)))
    step = [Instr("tensor_tensor", V, (target,), (source, target), ("max",))]
    inner = [Loop(4, 1, ((10, 3),), frozenset([V])), *step, End()]
    bench.program.records += [
        Instr("memset", V, (Ref(Space.SBUF, "f32", 40000, ((4, 0), (400, 4))),), (), (), (0.5,)),
        Loop(3, 2, (), frozenset([V])),
        *inner,
        While(5, 2),
        *inner,
        End(),
        End(),
        Instr("reg_load", Stream.SYNC, (), (case,), (), (6, 0, 1)),
        Branch(6, 2),
        *[Instr("memset", V, (Ref(Space.SBUF, "f32", 41000, ((4, 0), (4, 4))),), (), (), (9.0,))],
        Else(),
        *[Instr("memset", V, (Ref(Space.SBUF, "f32", 41100, ((4, 0), (4, 4))),), (), (), (9.0,))],
        End(),
    ]
    agree(bench, [Ref(Space.SBUF, "f32", 40000, ((4, 0), (400, 4)))])


@built
@pytest.mark.parametrize("trips", [0, 1, 2, 127, 128, 129])
@pytest.mark.parametrize("other", ["nothing", "loop", "python", "region", "empty", "branch", "branches"])
def test_regions_are_repeated_as_python_does(trips, other):
    """Bodies of all kinds, run as often as a number in SBUF says; the course is the same."""
    bench = Bench()
    odd = bench.load(np.array([[0]], np.int32), "s32")
    left = bench.load(np.array([[trips]], np.int32), "s32")
    tile = bench.load(np.zeros((4, 600), np.float32), "f32")
    spot = Ref(Space.SBUF, "f32", tile.offset, ((4, 0), (4, 4)), 0, ((1, 16), (10, 400)))
    numbers = Ref(Space.SBUF, "f32", tile.offset + 2000, ((4, 0), (8, 4)))
    load = Instr("reg_load", Stream.SYNC, (), (left,), (), (5, 0, 1))
    grow = Instr("tensor_scalar", V, (spot,), (spot,), ("add",), (1.0,))
    inside = {
        "nothing": [],
        "loop": [Loop(4, 1, ((10, 3),), frozenset([V])), grow, End()],
        "python": [Instr("program_unary", G, (numbers,), (numbers,), ("atan",))],
        "region": [While(7, 3), Instr("tensor_scalar", V, (numbers,), (numbers,), ("add",), (1.0,)), End()],
        "empty": [While(7, 200), Instr("nop", V), End()],
    }
    parity = [
        Instr("int_tensor_tensor", G, (odd,), (left,), ("and",), (1,)),
        Instr("reg_load", Stream.SYNC, (), (odd,), (), (6, 0, 1)),
    ]
    inside["branch"] = [*parity, Branch(6, 2), *inside["loop"], Else(), *inside["python"], End()]
    inside["branches"] = [Loop(3, 4, (), frozenset([V])), *inside["branch"], End(), Branch(6, 2), Else()]
    inside["branches"] += [*inside["region"], *inside["loop"], Branch(6, 2), grow, Else(), End(), End()]
    inside = inside[other]
    count = Instr("int_tensor_tensor", G, (left,), (left,), ("add",), (-1,))
    bench.program.records += [load, While(5), *inside, count, load, End()]
    if trips:  # a count of 0 is none
        bench.program.records += [While(8, trips), *inside, count, End()]
    bench.program.hbm_bytes = bench.hbm
    expected, _ = execute(bench.program, bench.inputs)
    for level in LEVELS:
        memory, _ = execute(bench.program, bench.inputs, level)
        for ref in (left, tile):
            np.testing.assert_array_equal(tiles(memory, ref), tiles(expected, ref))
    assert tiles(expected, left) == -trips
    courses = []
    for kind in (Executor, NativeExecutor):
        memory = Memory(1 << 20)
        for variable, data in zip([v for v in bench.program.variables if v.kind == "input"], bench.inputs, strict=True):
            memory.array(variable.offset, variable.nbytes, variable.dtype, variable.dims)[...] = data
        executor = kind(bench.program, memory)
        executor.run()
        courses.append(executor.course.key())
    assert courses[0] == courses[1]


@built
@pytest.mark.parametrize("special", [(), (np.inf,), (np.nan,), (-np.inf, np.inf)])
@pytest.mark.parametrize(("depth", "rows", "columns"), [(128, 128, 64), (127, 104, 512), (5, 3, 17), (128, 1, 2)])
def test_products_with_a_few_ones(rng, depth, rows, columns, special):
    """Ones among zeros of both signs, none or several for a row of the result, added to what there is, one moving tile
    after the other; a value that is not finite is in all sums. Other values among the ones."""
    bench = Bench()
    hot = (rng.integers(0, rows + 2, depth)[:, None] == np.arange(rows)).astype(np.float32)
    hot[0] = np.where(hot[0] == 0, np.float32(-0.0), hot[0])
    other = hot.copy()
    other[depth // 2] = -1
    moving = [rng.integers(-9, 9, (depth, columns)).astype(np.float32) for _ in range(2)]
    moving[1][rng.integers(0, depth, len(special)), 1] = special
    stationary, wrong = bench.load(hot, "f32"), bench.load(other, "f32")
    tiles_ = [bench.load(each, "f32") for each in moving]
    outs = []
    for weights in (stationary, wrong):
        bench.emit(Instr("load_stationary", T, (), (weights,)))
        outs.append(dense(Space.PSUM, "f32", 2048 * len(outs), (rows, columns)))
        bench.emit(Instr("multiply_moving", T, outs[-1:], tiles_[:1]))
        for tile in tiles_:
            bench.emit(Instr("multiply_moving", T, outs[-1:], (tile,), (), (), frozenset(["accumulate"])))
    agree(bench, outs)


@built
@pytest.mark.parametrize("writer", ["copy", "strips", "transpose", "product", "reduce", "sum"])
def test_products_with_a_few_ones_see_what_others_write(rng, writer):
    """Negative zeros and NaNs, written to a result between products that add only zeros to most of its rows."""
    bench, n, adds = Bench(), 128, frozenset(["accumulate"])
    hot, values = np.zeros((n, n), np.float32), np.full((n, n), -0.0, np.float32)
    hot[3, 5], values[::3] = 1, np.nan
    loaded = [hot, rng.standard_normal((n, n)).astype(np.float32), values, np.eye(n, dtype=np.float32)]
    hots, moving, others, unit = (bench.load(each, "f32") for each in loaded)
    out, column = dense(Space.PSUM, "f32", 2048, (n, n)), dense(Space.PSUM, "f32", 2048, (n, 1))

    def product(stationary: Ref, tile: Ref, flags: frozenset[str] = frozenset()) -> None:
        bench.emit(Instr("load_stationary", T, (), (stationary,)))
        bench.emit(Instr("multiply_moving", T, (out,), (tile,), (), (), flags))

    bench.emit(Instr("tensor_copy", V, (out,), (unit,)))
    product(hots, moving, adds)
    if writer in ("copy", "strips"):
        for _ in range(1 if writer == "copy" else 4):
            bench.emit(Instr("tensor_copy", V, (out,), (others,)))
    elif writer in ("transpose", "product"):
        product(others, unit if writer == "transpose" else moving)
    elif writer == "reduce":
        bench.emit(Instr("tensor_reduce", V, (column,), (others,), ("max",)))
    else:
        total = dense(Space.SBUF, "f32", 150000, (n, n))
        bench.emit(Instr("activation", Stream.SCALAR, (total, column), (others,), ("copy",), (1.0,), adds))
    for _ in range(2):
        product(hots, moving, adds)
    agree(bench, [out])


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("depth", "rows", "apart", "taken"), [(128, 64, 22, 22), (60, 128, 5, 4), (7, 1, 40, 9)])
def test_columns_of_interleaved_tiles(rng, depth, rows, apart, taken, dtype):
    """Products of one column with every so many columns of a tile, one after the other and, to the same bits, with
    another instruction after each; some add to what is there, and one has another column."""
    data, found = values(rng, "f32", (depth, rows * apart)), []
    columns = [values(rng, dtype, (depth, 1)) for _ in range(2)]
    products = [(phase, phase, 0, False) for phase in rng.permutation(taken).tolist()]
    products += [(1, 1, 0, True), (0, 0, 0, True), (2, taken, 1, False)]
    for separate in (False, True):
        bench = Bench()
        tile, *moving = bench.load(data, "f32"), *(bench.load(column, dtype) for column in columns)
        for phase, place, column, accumulate in products:
            part = Ref(Space.SBUF, "f32", tile.offset + 4 * phase, ((depth, 0), (rows, 4 * apart)))
            out = Ref(Space.PSUM, "f32", 4 * place, ((rows, 0), (1, 4)))
            bench.emit(Instr("load_stationary", T, (), (part,)))
            flags = frozenset(["accumulate"] if accumulate else [])
            bench.emit(Instr("multiply_moving", T, (out,), (moving[column],), (), (), flags))
            if separate:
                bench.emit(Instr("memset", V, (dense(Space.SBUF, "f32", 150000, (1, 1)),), (), (), (0.0,)))
        bench.program.hbm_bytes = bench.hbm
        whole = dense(Space.PSUM, "f32", 0, (rows, taken + 1))
        found.append([tiles(execute(bench.program, bench.inputs, level)[0], whole) for level in LEVELS])
    for together, apart_ in zip(*found, strict=True):
        np.testing.assert_array_equal(together.view("u4"), apart_.view("u4"))


@built
@pytest.mark.parametrize("shift", [0, 4, 64, 4096])
@pytest.mark.parametrize("rows", [128, 127, 33])
def test_strips_of_partitions_keep_the_order_of_instructions(rng, rows, shift):
    """Long instructions of all kinds that keep to their partitions, other partitions among them; what one stores in HBM
    the next loads, ``shift`` bytes further, so that other partitions get it; loops and products in between."""
    bench, n = Bench(), 384
    x = bench.load(rng.standard_normal((rows, n)).astype(np.float32), "f32")
    row = bench.load(rng.standard_normal((1, n)).astype(np.float32), "f32")
    whole = bench.variable("scratch", "f32", (rows + 16, n), 0)
    tile = lambda k, dtype="f32", first=0, last=rows, m=n: Ref(  # noqa: E731
        Space.SBUF, dtype, 40000 + 2048 * k, ((last - first, 0), (m, STORAGE[dtype].itemsize)), first
    )
    out, back = (Ref(Space.HBM, "f32", whole.offset + by, ((rows, n * 4), (n, 4))) for by in (0, shift))
    spread = tile(10)
    emit, copy = bench.emit, lambda y, x: bench.emit(Instr("dma_copy", Stream.DMA_STORE, (y,), (x,)))
    emit(Instr("partition_broadcast", G, (spread,), (row,)))
    for offset in range(0, 16 * n * 4, n * 4):
        copy(replace(row, space=Space.HBM, offset=whole.offset + rows * n * 4 + offset), row)
    for k in range(2):
        emit(Instr("tensor_tensor", V, (tile(0),), (x, spread), ("multiply",)))
        emit(
            Instr("activation", S, (tile(1), tile(2, m=1)), (tile(0),), ("square",), (0.5,), frozenset(["accumulate"]))
        )
        emit(Instr("tensor_reduce", V, (tile(3, m=1),), (tile(1),), ("max",)))
        emit(Instr("tensor_scalar", V, (tile(4),), (tile(0), tile(3, m=1)), ("min",), (), frozenset(["ap0"])))
        emit(Instr("tensor_tensor", V, (tile(5, "pred"),), (tile(4), spread), ("is_gt",)))
        emit(Instr("copy_predicated", V, (tile(4),), (tile(5, "pred"), x)))
        emit(Instr("tensor_tensor", V, (tile(6, first=32),), (tile(4, first=32), tile(0, first=32)), ("add",)))
        copy(tile(4, first=0, last=rows - 32), tile(6, first=32))
        copy(out, tile(4))
        copy(tile(7), back)
        emit(Instr("int_tensor_tensor", G, (tile(8, "s32"),), (tile(7, "s32"), tile(k, "s32")), ("add",)))
        emit(Instr("tensor_tensor_scan", V, (tile(9),), (tile(7), tile(1)), ("max", "min"), (0.25,)))
        copy(back, tile(9))
        copy(x, out)
    agree(bench, [x, *[tile(k) for k in (0, 1, 4, 6, 7, 8, 9)]])


class Late(Exception):
    """Raised by a signal handler."""


@built
@pytest.mark.parametrize(("kind", "left_to_python"), [(Late, False), (IndexError, False), (KeyboardInterrupt, True)])
def test_what_a_signal_handler_raises_ends_a_long_loop(kind, left_to_python):
    """It comes out as it is, soon, and the next run begins anew."""
    tile = dense(Space.SBUF, "f32", 0, (4, 8))
    add = Instr("tensor_scalar", V, (tile,), (tile,), ("add",), (1.0,))
    numbers = dense(Space.SBUF, "s32", 64, (4, 8))
    other = [Instr("iota", G, (numbers,), imm=(0, 1, 1))] if left_to_python else []
    fill = Instr("memset", V, (tile,), imm=(0.0,))
    loop = Loop(50, 0, (), frozenset([V]))
    program = Program([fill, loop, add, *other, End()])
    memory = Memory(64)
    executor = NativeExecutor(program, memory)
    loop.count = 10**9
    endless = NativeExecutor(program, memory)
    raised = []

    def handler(number, frame):
        raised.append(kind())
        raise raised[0]

    before = signal.signal(signal.SIGALRM, handler)
    try:
        begun = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(kind) as error:
            endless.run()
        assert error.value is raised[0]
        assert time.monotonic() - begun < 20
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    executor.run()
    assert (tiles(memory, tile) == 50.0).all()


@built
def test_a_base_with_too_few_bytes_is_refused():
    bench = Bench()
    bench.load(np.ones((4, 8), np.float32), "f32")
    bench.program.hbm_bytes = bench.hbm
    memory = Memory(bench.hbm, [(0, 128)])
    executor = NativeExecutor(bench.program, memory)
    region = memory.regions[0]
    region.bind(np.zeros(32, np.float32))
    region.array = np.zeros(124, np.uint8)  # as ``bind`` refuses to
    with pytest.raises(RunError, match="has only 124 bytes"):
        executor.run()
    region.bind(np.zeros(32, np.float32))
    executor.run()


# programs of GpSimd ---------------------------------------------------------------------------------------------


def place(dtype, counts, number):
    """A dense tile of SBUF after those that a bench loads."""
    return dense(Space.SBUF, dtype, 60000 + 8192 * number, counts)


@built
@pytest.mark.parametrize("dtype", [*INTEGERS, "pred"])
def test_integer_functions(rng, dtype):
    data = rng.integers(0, 2, (7, 130)).astype(np.uint8) if dtype == "pred" else values(rng, dtype, (7, 130))
    for out in {dtype, "s32"}:
        bench = Bench()
        x, outs = bench.load(data, dtype), []
        for function in ("not", "negate", "abs", "sign", "popcnt", "count-leading-zeros"):
            outs.append(place(out, (7, 130), len(outs)))
            bench.emit(Instr("program_unary", G, outs[-1:], (x,), (function,)))
        agree(bench, outs)


@built
@pytest.mark.parametrize("source", NUMBERS)
def test_conversions(rng, source):
    """Towards zero, wrapped, or to truth values; to each type, from dense elements and every other one."""
    bench, outs = Bench(), []
    x = bench.load(values(rng, source, (5, 300)), source)
    half = Ref(x.space, source, x.offset, ((5, 0), (150, STORAGE[source].itemsize * 2)))
    for dtype in NUMBERS:
        for data in (x, half):
            outs.append(dense(Space.SBUF, dtype, 20000 + 2048 * len(outs), data.counts))
            bench.emit(Instr("convert", G, outs[-1:], (data,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "s16", "u32", "s32", "pred"])
def test_numbered_elements_and_masks_that_are_known(rng, dtype):
    bench, outs, shape = Bench(), [], (9, 3, 40)
    x = bench.load(values(rng, dtype, shape), dtype)
    for imm in ((0, 1, 0, 0), (-7, 0, 0, 1), (3, 100000, -50, 1), (2147483647, 1, 1, 1), (5,)):
        outs.append(dense(Space.SBUF, dtype, 20000 + 1024 * len(outs), shape))
        bench.emit(Instr("iota", G, outs[-1:], imm=imm))
        for alu in ("is_equal", "is_ge", "is_lt"):
            outs.append(dense(Space.SBUF, dtype, 20000 + 1024 * len(outs), shape))
            bench.emit(Instr("affine_select", G, outs[-1:], (x,), (alu,), (1.0, *imm)))
    outs.append(x)
    bench.emit(Instr("affine_select", G, (x,), (x,), ("is_gt",), (0.0, -20, 1, 0, 1)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("kind", ["s8", "u16", "u8", "pred"])
def test_registers_take_integers_of_any_type(kind):
    bench = Bench()
    bench.load(np.ones((1, 1), STORAGE[kind]), kind)
    case = dense(Space.SBUF, kind, 0, (1, 1))
    bench.program.records += [
        Instr("reg_load", Stream.SYNC, (), (case,), (), (6, 0, 1)),
        Branch(6, 2),
        Instr("memset", V, (dense(Space.SBUF, "f32", 4096, (4, 4)),), (), (), (3.0,)),
        Else(),
        Instr("memset", V, (dense(Space.SBUF, "f32", 4096, (4, 4)),), (), (), (4.0,)),
        End(),
    ]
    agree(bench, [dense(Space.SBUF, "f32", 4096, (4, 4))])


@built
@pytest.mark.parametrize(("slots", "width", "entries"), [(1, 1, 5), (7, 3, 40), (20, 1, 33), (2, 8, 1)])
@pytest.mark.parametrize(
    "dtype", ["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "u8", "s8", "u16", "s16", "u32", "s32", "pred"]
)
def test_tables_of_groups(rng, dtype, slots, width, entries):
    """Numbers within the table, after it and below zero; updates of places that come up again and again."""
    bench, lanes, outs = Bench(), 48, []
    table = bench.load(values(rng, dtype, (lanes, slots, width)), dtype)
    index = bench.load(rng.integers(-2, 16 * slots + 2, (lanes, entries)).astype(np.int32), "s32")
    updates = bench.load(values(rng, dtype, (lanes, entries, width)), dtype)
    kept = bench.load(values(rng, dtype, (lanes, entries, width)), dtype)
    for flags, target in (((), place(dtype, (lanes, entries, width), 0)), (("keep",), kept)):
        outs.append(target)
        bench.emit(Instr("group_gather", G, (target,), (table, index), (), (), frozenset(flags)))
    kinds = ("assign", "add", "multiply", "maximum", "minimum", *(() if dtype in FLOATS else ("and", "or", "xor")))
    for kind in kinds:
        outs.append(place(dtype, (lanes, slots, width), len(outs)))
        bench.emit(Instr("tensor_copy", V, outs[-1:], (table,)))
        bench.emit(Instr("group_scatter", G, outs[-1:], (updates, index), (kind,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("op", ["add", "maximum", "compare-lt", "compare-eq", "mulhi"])
@pytest.mark.parametrize("dtype", ["u32", "s32"])
def test_words_ordered_and_compared(rng, dtype, op):
    """Dense and apart, with one side the same for all, and halves of rows that are folded onto each other."""
    bench = Bench()
    a, b = (bench.load(values(rng, dtype, (5, 1100)), dtype) for _ in range(2))
    out = "pred" if op.startswith("compare") else dtype
    spread = Ref(Space.SBUF, out, 40000, ((5, 0), (1100, 2 * STORAGE[out].itemsize)))
    outs = [dense(Space.SBUF, out, 30000, (5, 1100)), spread, dense(Space.SBUF, out, 60000, (5, 1100))]
    bench.emit(Instr("int_tensor_tensor", G, outs[:1], (a, b), (op,)))
    bench.emit(Instr("int_tensor_tensor", G, outs[1:2], (a, b), (op,), (), frozenset(["reverse"])))
    bench.emit(Instr("int_tensor_tensor", G, outs[2:], (a,), (op,), (5,)))
    if out != "pred":
        lower, upper = (Ref(a.space, dtype, a.offset + 40 * k, ((5, 0), (4, 80), (10, 4))) for k in (0, 1))
        bench.emit(Instr("int_tensor_tensor", G, (lower,), (lower, upper), (op,)))
        outs.append(a)
    agree(bench, outs)


@built
def test_patterns_that_do_touch_are_left_to_numpy(rng):
    """Rows that reach into each other by one element, at either end."""
    bench = Bench()
    a = bench.load(values(rng, "s32", (5, 400)), "s32")
    for first, second, left in ((0, 10, False), (0, 9, True), (11, 0, True), (10, 0, False), (1, 30, True)):
        y, x = (Ref(a.space, "s32", a.offset + 4 * at, ((5, 0), (4, 80), (10, 4))) for at in (first, second))
        fold = Bench()
        fold.load(values(rng, "s32", (5, 400)), "s32")
        fold.emit(Instr("int_tensor_tensor", G, (y,), (y, x), ("add",)))
        results = agree(fold, [a], native=False)
        assert all((names == ["int_tensor_tensor"]) == left for _, names in results), (first, second)


@built
def test_sums_beside_results_in_place(rng):
    bench = Bench()
    x = bench.load(rng.integers(-9, 9, (6, 3, 700)).astype(np.float32), "f32")
    total = place("f32", (6, 1), 0)
    bench.emit(Instr("activation", S, (x, total), (x,), ("square",), (2.0,), frozenset(["accumulate"])))
    agree(bench, [x, total])


@built
def test_scans_from_a_constant(rng):
    bench = Bench()
    a, b = (bench.load(rng.standard_normal((7, 90)).astype(np.float32), "f32") for _ in range(2))
    outs = [place("f32", (7, 90), k) for k in range(2)]
    for out, start in zip(outs, (0.0, -2.5), strict=True):
        bench.emit(Instr("tensor_tensor_scan", V, (out,), (a, b), ("multiply", "add"), (start,)))
    agree(bench, outs)


@built
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e5m2", "u8", "s16", "s32", "u32", "pred"])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_gradients_of_pooling(rng, dtype, dims):
    """Partitions at edges of the array, windows that overlap or not, parts of the result, equal elements, NaN."""
    for lowest in (False, True) if dtype in FLOATS else (False,):
        bench, outs, lanes = Bench(), [], 3
        sizes, strides, counts = (rng.integers(1, high, dims) for high in (4, 4, 5))
        extents = (counts - 1) * strides + sizes + rng.integers(0, 2, dims)
        part = rng.integers(1, extents + 1)
        x = values(rng, dtype, (lanes, *extents))
        x = bench.load(np.where(rng.random(x.shape) < 0.4, x.reshape(-1)[0], x), dtype)
        source = bench.load(values(rng, dtype, (lanes, *counts)), dtype)
        bounds = np.empty((lanes, dims, 5), np.int32)
        for d in range(dims):
            bounds[:, d, 0], bounds[:, d, 1] = rng.integers(0, 2, lanes), extents[d] - rng.integers(0, 2, lanes)
            bounds[:, d, 2], bounds[:, d, 3] = rng.integers(0, 2, lanes), counts[d] - rng.integers(0, 2, lanes)
            bounds[:, d, 4] = rng.integers(0, extents[d] - part[d] + 1)
        bounds = bench.load(bounds.reshape(lanes, -1), "s32")
        windows = [float(number) for pair in zip(sizes, strides, strict=True) for number in pair]
        flags = frozenset(["lowest"] if lowest else [])
        for keep in ("is_ge", "is_gt", "is_le", "is_lt"):
            for combine in ("add", "multiply", "max", "min"):
                outs.append(bench.tile(dtype, (lanes, *part)))
                given = (x, source, bounds)
                bench.emit(Instr("select_scatter", G, outs[-1:], given, (keep, combine), (1.0, *windows), flags))
        agree(bench, outs)
