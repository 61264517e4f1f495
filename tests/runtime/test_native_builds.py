"""The core gives the same bits at every level of x86 and every level of optimisation, NaNs included."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_instruction import Bench, dense

from neuronx_cc.ir.isa import functions
from neuronx_cc.ir.isa.program import Instr, Space, Stream
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.native.executor import NativeExecutor

T, V, S, G = Stream.TENSOR, Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD
SOURCES = Path(library.__file__).parent
LEVELS = [name for name in ("base", "avx2", "avx512") if library.level(name)]
FLAGS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
"""What the values rest on; setup.py has the same."""
BUILDS = {"O0": ["-O0"], "O1": ["-O1"], "Os v3": ["-Os", "-march=x86-64-v3"]}
FUNCTIONS = [
    *("copy", "square", "relu", "sqrt", "rsqrt", "reciprocal", "sign", "abs", "erf", "gelu", "exp", "tanh"),
    *("sigmoid", "silu", "softplus", "gelu_apprx_tanh", "log"),
]
SHAPE = (5, 3, 67)
Run = tuple[list[np.ndarray[Any, Any]], list[str]]


def numbers(seed: int, *counts: int) -> np.ndarray[Any, Any]:
    """Numbers of all magnitudes, a third of them special: NaNs of both signs and many payloads, infinities, zeros."""
    rng = np.random.default_rng(seed)
    plain = (rng.standard_normal(counts) * 10 ** rng.uniform(-6, 6, counts)).astype(np.float32)
    nans = rng.integers(0x7F800001, 0x80000000, counts, np.uint32) | rng.integers(0, 2, counts, np.uint32) << 31
    other = rng.choice(np.array([0, -0.0, np.inf, -np.inf, 1e-42, -1e-40, 3e38, 88.9, -104.1], np.float32), counts)
    kind = rng.integers(0, 6, counts)
    return np.where(kind == 0, nans.astype(np.uint32).view(np.float32), np.where(kind == 1, other, plain))


def bench_of_everything() -> Bench:
    bench = Bench()
    a, b = (bench.load(numbers(seed, *SHAPE), "f32") for seed in (1, 2))
    lane, start = (bench.load(numbers(seed, 5, 1), "f32") for seed in (3, 4))
    at = [40000]

    def out(dtype: str = "f32", counts: tuple[int, ...] = SHAPE, space: Space = Space.SBUF) -> Any:
        at[0] += 1024
        return dense(space, dtype, at[0], counts)

    for function in FUNCTIONS:
        bench.emit(Instr("activation", S, (out(),), (a,), (function,), (1.0,)))
    for function in (*functions.UNARY, "is-finite"):
        bench.emit(Instr("program_unary", G, (out(),), (a,), (function,)))
    bench.emit(Instr("program_unary", G, (out(),), (a,), ("reduce-precision",), (5, 3)))
    for op in ("power", "remainder", "atan2"):
        bench.emit(Instr("program_binary", G, (out(),), (a, b), (op,)))
    for op in ("add", "subtract", "multiply", "divide", "max", "min", "is_lt", "is_equal"):
        bench.emit(Instr("tensor_tensor", V, (out(),), (a, b), (op,)))
        flags = frozenset(["ap0", "reverse0"])
        bench.emit(Instr("tensor_scalar", V, (out("bf16"),), (a, lane), (op, "multiply"), (3.5,), flags))
        bench.emit(Instr("scalar_tensor_tensor", V, (out("f16"),), (a, b), ("add", op), (0.5,)))
    for op in ("add", "max", "min"):
        bench.emit(Instr("tensor_reduce", V, (out(counts=(5, 1)),), (a,), (op,)))
        bench.emit(Instr("tensor_tensor_scan", V, (out(),), (a, b, start), ("multiply", op), (), frozenset(["ap0"])))
    flags = frozenset(["accumulate", "bias", "scale_ap"])
    bench.emit(Instr("activation", S, (out(), out(counts=(5, 1))), (a, lane, start), ("tanh",), (), flags))
    for dtype in ("s8", "u16", "s32", "f8e4m3", "f8e5m2", "bf16", "f16"):
        bench.emit(Instr("tensor_copy", V, (out(dtype),), (a,)))
    left, right = bench.load(numbers(5, 128, 70), "f32"), bench.load(numbers(6, 128, 200), "f32")
    finite = bench.load(np.nan_to_num(numbers(7, 128, 70), posinf=1, neginf=2), "f32")
    for place, weights in enumerate((left, finite)):
        product = dense(Space.PSUM, "f32", place * 2048, (70, 200))
        bench.emit(Instr("load_stationary", T, (), (weights,)))
        for flags in (frozenset(), frozenset(["accumulate"]), frozenset(["accumulate", "tf32"])):
            bench.emit(Instr("multiply_moving", T, (product,), (right,), (), (), flags))
    bench.program.hbm_bytes = bench.hbm
    return bench


def result(bench: Bench, level: str) -> Run:
    """SBUF and PSUM after a run, and what was left to Python."""
    memory = Memory(bench.hbm)
    memory.poison([(0, bench.hbm)])
    for variable, data in zip([v for v in bench.program.variables if v.kind == "input"], bench.inputs, strict=True):
        memory.array(variable.offset, variable.nbytes, variable.dtype, variable.dims)[...] = data
    executor = NativeExecutor(bench.program, memory, level)
    executor.run()
    left = [bench.program.records[number].op for number in executor._python_steps]  # type: ignore[union-attr]
    return [memory.bytes[space] for space in (Space.SBUF, Space.PSUM)], left


def same(one: Run, other: Run) -> bool:
    return one[1] == other[1] == [] and all((a == b).all() for a, b in zip(one[0], other[0], strict=True))


@pytest.mark.skipif(library.load() is None, reason="the native core was not built")
def test_levels_give_the_same_bits() -> None:
    bench = bench_of_everything()
    first = result(bench, LEVELS[0])
    assert np.isnan(first[0][0].view(np.float32)).any()
    for level in LEVELS[1:]:
        assert same(result(bench, level), first), level


def test_a_core_of_other_sources_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "libcore.so"
    stale.write_bytes(b"not a library")
    monkeypatch.setattr(library, "PATH", stale)
    with pytest.warns(RuntimeWarning, match=r"libcore\.so.* built from other sources: NumPy computes values; install"):
        assert library.load.__wrapped__() is None


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("builds")

    def make(name: str) -> Path:
        target = folder / f"{name.replace(' ', '-')}.so"
        sources = sorted(str(path) for path in SOURCES.glob("*.cpp") if not path.name.startswith("race_"))
        command = ["g++", "-std=c++17", "-shared", "-fPIC", "-pthread", "-DLEVEL=base", *FLAGS, *BUILDS[name], *sources]
        subprocess.run([*command, "-o", str(target)], check=True)
        return target

    return make


@pytest.mark.slow
@pytest.mark.skipif(library.load() is None, reason="the native core was not built")
@pytest.mark.parametrize("name", BUILDS)
def test_flags_give_the_same_bits(name: str, build: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of_everything()
    wanted = result(bench, "base")
    other = library.open_library(build(name))
    assert other is not None
    monkeypatch.setattr(library, "load", lambda: other)
    assert same(result(bench, "base"), wanted)
