"""Cheap ops on large arrays that are computed again where they are used: which, what that saves, and the values."""

import zlib
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import Compiled, check_function, check_text, compile_text, text_of
from hypothesis import given, settings
from mixed_graphs import mixed_modules
from whole_number_graphs import whole_number_modules

from neuronx_cc.codegen.formation import recompute
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.program import DMA_STREAMS, End, Instr, Loop, Space
from neuronx_cc.ir.types import itemsize

CENTRE = """HloModule m
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
ENTRY main {{
  x = {dtype}[256,8192] parameter(0)
  m = {dtype}[256] parameter(1)
  s = {dtype}[256,8192] broadcast(m), dimensions={{0}}
  d = {dtype}[256,8192] {opcode}(x, {other})
  e = {dtype}[256,8192] multiply(d, d)
  f = {dtype}[256,8192] negate(d)
  ROOT t = ({dtype}[256,8192], {dtype}[256,8192]{more_types}) tuple(e, f{more})
}}
"""


def stored_bytes(compiled: Compiled) -> int:
    """Bytes that DMA writes to HBM."""
    total, times = 0, [1]
    for record in compiled.program.records:
        if isinstance(record, Loop):
            times.append(times[-1] * record.count)
        elif isinstance(record, End):
            times.pop()
        elif isinstance(record, Instr) and record.stream in DMA_STREAMS:
            outs = [ref for ref in record.outs if ref.space is Space.HBM]
            total += times[-1] * sum(prod(ref.counts) * itemsize(ref.dtype) for ref in outs)
    return total


def spread(**parts: str) -> tuple[list[str], int]:
    """Opcodes of CENTRE's ops after ``spread``, and how many ops it puts with their users."""
    parts = {"dtype": "f32", "opcode": "subtract", "other": "s", "more": "", "more_types": "", **parts}
    entry = parse_text(CENTRE.format(**parts)).entry
    late = recompute.spread(entry, lambda op: 0)
    return [op.opcode for op in ops_of(entry.block)], len(late)


def test_each_user_gets_its_own() -> None:
    opcodes, late = spread()
    assert sorted(opcodes) == ["broadcast", "multiply", "negate", "subtract", "subtract", "tuple"]
    assert late == 2


@pytest.mark.parametrize(
    "parts",
    [
        {"more": ", d", "more_types": ", f32[256,8192]"},
        {"dtype": "s32"},
        {"other": "x"},
        {"opcode": "divide"},
    ],
    ids=["a result is stored anyway", "integers", "one large operand only: twice the same", "many instructions"],
)
def test_others_stay(parts: dict[str, str]) -> None:
    opcodes, late = spread(**parts)
    expected = 2 if parts.get("other") == "x" else 0
    assert (opcodes.count(parts.get("opcode", "subtract")), late) == (max(1, expected), expected)


def test_what_two_kernels_need_is_not_stored(random: np.random.Generator) -> None:
    """The second kernel needs a mean over all that the first one finds, and the differences that both read."""

    def function(x: Any, w: Any) -> Any:
        centred = x - w
        return centred * jax.lax.rsqrt((centred * centred).mean())

    x, w = random.standard_normal((256, 8192), np.float32), random.standard_normal((256, 1), np.float32)
    compiled = check_function(function, x, w)
    assert stored_bytes(compiled) < 1.1 * x.nbytes


def test_gradient_of_a_normalisation(random: np.random.Generator) -> None:
    def loss(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean((0, 2, 3), keepdims=True)
        variance = (centred * centred).mean((0, 2, 3), keepdims=True)
        y = jax.nn.relu(centred * jax.lax.rsqrt(variance + 1e-5) * scale + shift)
        return (y * jnp.cos(y)).sum()

    x = random.standard_normal((4, 64, 64, 72), np.float32)
    scale, shift = (random.standard_normal((1, 64, 1, 1), np.float32) for _ in range(2))
    check_function(jax.grad(loss, (0, 1, 2)), x, scale, shift, relative=3e-5)


def test_without_spreading_more_is_stored(monkeypatch: pytest.MonkeyPatch, random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        centred = x - x.mean((1, 2, 3), keepdims=True)
        rate = jnp.abs(centred).mean((1, 2, 3), keepdims=True)
        return (centred * 3 / rate).max((1, 2, 3))

    text = text_of(function, random.standard_normal((128, 4, 64, 64), np.float32))
    with_it = stored_bytes(compile_text(text))
    monkeypatch.setattr(recompute, "CHEAP", frozenset())
    assert with_it < stored_bytes(compile_text(text))


@pytest.mark.parametrize("mixed", [False, True])
def test_small_modules(monkeypatch: pytest.MonkeyPatch, mixed: bool) -> None:
    """As if small arrays were large."""
    monkeypatch.setattr(recompute, "STREAMED_ELEMENTS", 2)
    monkeypatch.setattr(recompute, "SMALL", 1)

    @settings(max_examples=15 if mixed else 60)
    @given(text=mixed_modules() if mixed else whole_number_modules())
    def check(text: str) -> None:
        draw = np.random.default_rng(zlib.crc32(text.encode()))
        shapes = [hlo.shape_of(argument) for argument in parse_text(text).entry.block.args]
        inputs = [draw.integers(-3, 4, shape.dims).astype(shape.numpy_dtype) for shape in shapes]
        check_text(text, *inputs, relative=0.0)

    check()
