"""Kernels whose values alive at once fill SBUF: many operands, many results, long reduced rows."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps.between import fit
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.executable import Executable

Array = np.ndarray[Any, Any]


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


def braided(x: Any, others: list[Any], count: int) -> Any:
    """``count`` values that all live until the end."""
    kept = [x * (i + 1) + others[i % len(others)] for i in range(count)]
    total = kept[0]
    for value in kept[1:]:
        total = jnp.maximum(total, -value) - value
    for value in kept:
        total = total + value
    return total


@pytest.mark.parametrize("count", [20, 160])
def test_many_values_alive(count: int, random: np.random.Generator) -> None:
    x, a, b = (normal(random, 130, 2000) for _ in range(3))
    check_function(lambda x, a, b: braided(x, [a, b], count), x, a, b, relative=1e-4)


def test_values_of_several_types_alive(random: np.random.Generator) -> None:
    def function(x: Any, a: Any) -> Any:
        whole = braided((x * 9).astype(jnp.int32), [(a * 8).astype(jnp.int32)], 12)
        bits = braided((x * 9).astype(jnp.int8), [(a * 8).astype(jnp.int8)], 12)
        return braided(x, [a], 12) + whole.astype(jnp.float32), whole + bits, bits > 0

    check_function(function, normal(random, 300, 1500), normal(random, 300, 1500), relative=1e-4)


def test_many_results(random: np.random.Generator) -> None:
    check_function(lambda x: tuple(x * i for i in range(2, 42)), normal(random, 300, 700))


def test_many_reductions(random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        return tuple((x * i).sum(1) for i in range(1, 16)) + tuple((x + i).max(0) for i in range(6))

    check_function(function, np.abs(normal(random, 300, 700)))


@pytest.mark.parametrize("columns", [3000, 6000, 12_000, 12_288, 12_289])
def test_long_rows(columns: int, random: np.random.Generator) -> None:
    """Softmax and layer norm with readers of the whole row on both sides of each reduction."""

    def function(x: Any, a: Any, scale: Any) -> Any:
        h = x * 2 - x.mean(-1, keepdims=True)
        norm = h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-5) * scale
        soft = jax.nn.softmax(x + a)
        return norm + a, h, braided(soft, [a, norm, x], 4) / x.max(1, keepdims=True), jnp.argmax(x, 1)

    rows = 140
    check_function(function, normal(random, rows, columns), normal(random, rows, columns), normal(random, columns))


@pytest.mark.parametrize("dtype", [np.int32, np.int8, ml_dtypes.bfloat16])
def test_long_rows_of_other_types(dtype: Any, random: np.random.Generator) -> None:
    x = random.integers(-9, 9, (130, 12_000)).astype(dtype)
    check_function(lambda x: (x.max(1), (x - x.max(1, keepdims=True)).min(1), x + x), x)


def parameters(random: np.random.Generator, width: int) -> list[Array]:
    shapes = [(width,), (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return [normal(random, *dims) / np.sqrt(np.float32(width)) for dims in shapes]


def layer(x: Any, scale: Any, mixed: Any, out: Any, up: Any, down: Any) -> Any:
    """A causal transformer layer with four heads."""
    h = x - x.mean(-1, keepdims=True)
    h = h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-5) * scale
    q, k, v = (part.reshape(len(x), 4, -1).transpose(1, 0, 2) for part in jnp.split(h @ mixed, 3, -1))
    scores = jnp.where(jnp.tril(jnp.ones((len(x), len(x)), bool)), q @ k.transpose(0, 2, 1) / 4, -1e9)
    x = x + (jax.nn.softmax(scores) @ v).transpose(1, 0, 2).reshape(x.shape) @ out
    return x + jax.nn.gelu(x @ up) @ down


def test_transformer_layer_and_its_gradient(random: np.random.Generator) -> None:
    def loss(weights: Any, x: Any) -> Any:
        return (jax.vmap(lambda rows: layer(rows, *weights))(x) ** 2).mean()

    def function(x: Any, *weights: Any) -> Any:
        return jax.tree.leaves(jax.value_and_grad(loss)(list(weights), x))

    check_function(function, normal(random, 3, 33, 64), *parameters(random, 64), relative=1e-4)


def test_what_lies_between_elements_finds_one_gap() -> None:
    """A tile with it is large beside the others, which must not come to lie in the middle of the only gap."""
    arena = Arena(Space.SBUF, 180_000, 64)
    assert arena.allocate(60_000) is not None
    pool: Any = SimpleNamespace(
        builder=SimpleNamespace(sbuf=arena, timing=Timing(find_machine("trn1"))), buffers=1, gathers=True
    )
    dims = (Atom(32, 65536), Atom(1024, 64))
    block = Block(Alloc(Space.HBM, 0, 1 << 21), "f32", Affine(), dims)
    first = arena.allocate(50_000)
    assert first is not None
    arena.free(first)
    fit(pool, [block], [], 12_000, 114_000)
    assert pool.gathers
    assert arena.allocate(12_000) is not None
    assert arena.allocate(64 * 1024) is not None
    fit(pool, [block], [], 12_000, 50_000)
    assert not pool.gathers


def test_rows_that_fill_psum_leave_the_others_a_way(random: np.random.Generator) -> None:
    """Scale and bias of rows as long as all banks: one stays in PSUM, the other is loaded onto each partition."""

    def norm(x: Any, scale: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias

    x = random.standard_normal((2048, 4096), np.float32)
    scale, bias = random.standard_normal((2, 4096), np.float32)
    check_function(norm, x, scale, bias, relative=1e-5)


@pytest.mark.parametrize("size", [256, 384, 512])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_arithmetic_on_a_transpose_moves_no_single_elements(size: int, dtype: Any) -> None:
    x = np.arange(size * size).astype(dtype).reshape(size, size)
    compiled = check_function(lambda x: x.T + x.T[0, 0], x)
    report = Executable(compiled.program, compiled.constants).run([], timing_only=True).report
    assert report.kernel_ns < 60e3
