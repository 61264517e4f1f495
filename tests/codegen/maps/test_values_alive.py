"""Maps with very many values alive at once, wanted in reverse order: what does not fit SBUF is computed in parts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from generated import TRN1, assert_close, check_text, compile_text
from program_forms import FORMS

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).resolve().parents[2] / "machines"
SMALL = {name: find_machine(MACHINES / f"{name}.toml") for name in ("half", "quarter")}
ALL = {"trn1": TRN1, **SMALL}
BODIES = """
add_f { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }
max_f { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] maximum(x, y) }
"""


def module(lines: list[str]) -> str:
    return f"HloModule m\n{BODIES}ENTRY main {{\n  " + "\n  ".join(lines) + "\n}\n"


def values(count: int, rows: int, columns: int) -> str:
    """Elementwise alone."""
    shape = f"f32[{rows},{columns}]"
    lines = [f"v0 = {shape} parameter(0)", f"w = {shape} parameter(1)"]
    lines += [f"v{i + 1} = {shape} {('sine', 'subtract')[i % 2]}(v{i}{(', w' if i % 2 else '')})" for i in range(count)]
    lines.append(f"g{count} = {shape} negate(v{count})")
    lines += [f"g{i} = {shape} {('add', 'maximum')[i % 2]}(g{i + 1}, v{i})" for i in reversed(range(count))]
    return module([*lines, f"ROOT out = {shape} negate(g0)"])


def reductions(count: int, rows: int, columns: int) -> str:
    """Each value less the largest of its row, which is wanted again as well."""
    shape, row = f"f32[{rows},{columns}]", f"f32[{rows}]"
    lines = [f"v0 = {shape} parameter(0)", f"w = {shape} parameter(1)", "low = f32[] constant(-inf)"]
    for i in range(count):
        lines += [
            f"m{i} = {row} reduce(v{i}, low), dimensions={{1}}, to_apply=max_f",
            f"b{i} = {shape} broadcast(m{i}), dimensions={{0}}",
            f"q{i} = {shape} subtract(v{i}, b{i})",
            f"v{i + 1} = {shape} add(q{i}, w)",
        ]
    lines.append(f"g{count} = {shape} negate(v{count})")
    for i in reversed(range(count)):
        lines += [f"h{i} = {shape} maximum(g{i + 1}, v{i})", f"g{i} = {shape} add(h{i}, b{i})"]
    return module([*lines, f"ROOT out = {shape} negate(g0)"])


def operands(count: int, rows: int, columns: int) -> str:
    """As many arrays, rows and columns, loaded ahead; results of all of them."""
    shape = f"f32[{rows},{columns}]"
    dims = [f"{rows},{columns}", f"{rows}", f"{columns}"]
    lines = [f"p{i} = f32[{dims[i % 3]}] parameter({i})" for i in range(count)]
    lines += [
        f"v{i} = {shape} " + (f"broadcast(p{i}), dimensions={{{i % 3 - 1}}}" if i % 3 else f"negate(p{i})")
        for i in range(count)
    ]
    lines += [f"q{i} = {shape} {('add', 'maximum')[i % 2]}(v{i}, {f'q{i - 1}' if i else 'v0'})" for i in range(count)]
    lines += ["zero = f32[] constant(0)"]
    lines += [f"r{i} = f32[{rows}] reduce(q{i}, zero), dimensions={{1}}, to_apply=add_f" for i in range(0, count, 2)]
    lines.append(f"t{count} = {shape} negate(q{count - 1})")
    lines += [f"t{i} = {shape} subtract(v{i}, t{i + 1})" for i in reversed(range(count))]
    found = [f"r{i}" for i in range(0, count, 2)]
    types = ", ".join([f"f32[{rows}]"] * len(found))
    return module([*lines, f"ROOT out = ({shape}, {types}) tuple(t0, {', '.join(found)})"])


def types(count: int, rows: int, columns: int) -> str:
    """Values of one, two and four bytes."""
    dims = f"[{rows},{columns}]"
    lines = [f"v0 = f32{dims} parameter(0)", f"w = f32{dims} parameter(1)"]
    for i in range(count):
        kind = ("bf16", "s8", "f32")[i % 3]
        lines += [f"k{i} = {kind}{dims} convert(v{i})", f"d{i} = f32{dims} convert(k{i})"]
        lines += [f"v{i + 1} = f32{dims} {('subtract', 'maximum')[i % 2]}(w, d{i})"]
    lines.append(f"g{count} = f32{dims} negate(v{count})")
    for i in reversed(range(count)):
        lines += [f"e{i} = f32{dims} convert(k{i})", f"g{i} = f32{dims} add(g{i + 1}, e{i})"]
    return module([*lines, f"ROOT out = f32{dims} negate(g0)"])


KINDS: dict[str, Callable[[int, int, int], str]] = {
    function.__name__: function for function in (values, reductions, operands, types)
}


def check(kind: str, count: int, rows: int, columns: int, machine: Machine) -> None:
    """Run what ``KINDS[kind]`` writes. XLA takes forever to fuse the operands, so these are compared with NumPy."""
    random = np.random.default_rng(count)
    text = KINDS[kind](count, rows, columns)
    shapes: list[tuple[int, ...]] = [(rows, columns)] * 2
    if kind == "operands":
        shapes = [((rows, columns), (rows,), (columns,))[i % 3] for i in range(count)]
    inputs = [random.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    if kind != "operands":
        check_text(text, *inputs, relative=1e-4, machine=machine)
        return
    results = compile_text(text, machine).run(inputs)
    for result, want in zip(results, evaluate(parse_text(text), inputs), strict=True):
        assert_close(result, want, 1e-4)


SIZES = [
    (40, 3, 4096),
    *(pytest.param(*size, marks=pytest.mark.slow) for size in [(300, 130, 1), (200, 5, 127), (120, 128, 513)]),
]
"""How many values, rows and columns: they fill the SBUF of a quarter of the machine, or its tiles of 64 bytes."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "rows", "columns"), SIZES)
def test_many_values(kind: str, count: int, rows: int, columns: int) -> None:
    check(kind, count, rows, columns, SMALL["quarter"])


@pytest.mark.slow
@pytest.mark.parametrize("machine", ALL)
def test_thousands_of_values(machine: str) -> None:
    x = np.random.default_rng(1).standard_normal((128, 64), np.float32)
    text = FORMS["mirrored"](6000)
    (result,) = compile_text(text, ALL[machine]).run([x])
    (want,) = evaluate(parse_text(text), [x])
    assert_close(result, want, 1e-4)
