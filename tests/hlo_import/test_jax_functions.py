"""JAX functions over many ops: text, proto and StableHLO import alike, and what we print runs alike on XLA's CPU."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib import _hlo
from xla_oracle import run_text

from neuronx_cc.hlo_import import load_module
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.verify import verify_module

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((4, 8)).astype(np.float32)
W = RANDOM.standard_normal((8, 4)).astype(np.float32)
IMAGE = RANDOM.standard_normal((2, 9, 9, 3)).astype(np.float32)
KERNEL = RANDOM.standard_normal((3, 3, 3, 6)).astype(np.float32)
INDEX = np.array([3, 0, 1], np.int32)
INTEGERS = np.arange(12, dtype=np.int32).reshape(3, 4) - 5


def _scan(x: Any) -> Any:
    return lax.scan(lambda carry, row: (carry * 0.5 + row, carry.sum()), x[0], x)


def _conv(image: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(
        image, kernel, (2, 1), [(1, 1), (0, 2)], rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _pool(image: Any) -> Any:
    return lax.reduce_window(image, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _special_constants() -> Any:
    quiet = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x00000001, 0x80000000, 0x7F7FFFFF], np.uint32)
    return (
        jnp.asarray(quiet.view(np.float32)),
        jnp.array([1 + 2j, np.inf - 1j], np.complex64),
        jnp.array([True, False]),
        jnp.arange(300, dtype=jnp.int32).reshape(3, 100) * 7,
        jnp.full((5, 5), 2.5, jnp.bfloat16),
        jnp.array([[0.1, -0.2], [3e-39, 65504]], jnp.float32).astype(jnp.bfloat16),
        jnp.array([-8, 7, 0, 3], jnp.int4),
        jnp.array([1, 15, 0], jnp.uint4),
        jnp.array([0.5, -448, 1e-2], jnp.float8_e4m3fn),
        jnp.array([2**32 - 1, 0], jnp.uint32),
        jnp.zeros((0, 3)),
        jnp.asarray(np.linspace(-1, 1, 200, dtype=np.float16)),
    )


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: jax.nn.softmax(x, -1), (X,)),
    "mlp": (lambda x, w: jax.nn.gelu(x @ w, approximate=False), (X, W)),
    "mlp_gradient": (jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).sum()), (W, X)),
    "batched_dot": (lambda x, w: jnp.einsum("ab,bc->ca", x, w, precision="highest"), (X, W)),
    "convolution": (_conv, (IMAGE, KERNEL)),
    "convolution_gradient": (jax.grad(lambda k, i: (_conv(i, k) ** 2).sum()), (KERNEL, IMAGE)),
    "pooling": (_pool, (IMAGE,)),
    "pooling_gradient": (jax.grad(lambda i: (_pool(i) ** 2).sum()), (IMAGE,)),
    "scan": (_scan, (X,)),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (X,)),
    "switch": (lambda i, x: lax.switch(i[0], [jnp.sin, jnp.cos, jnp.abs], x), (INDEX, X)),
    "while": (lambda x: lax.while_loop(lambda v: v[0, 0] < 100, lambda v: v * v + 1.5, x), (X,)),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, -1)), (X,)),
    "argmax": (lambda x: (jnp.argmax(x, -1), jnp.argmin(x)), (X,)),
    "top_k": (lambda x: lax.top_k(x, 3), (X,)),
    "cumsum": (lambda x: jnp.cumsum(x, 1), (X,)),
    "gather": (lambda x, i: x[i], (X, INDEX)),
    "scatter": (lambda x, i: x.at[i].add(2.0).at[i, i].set(1.0), (X, INDEX)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 3)), (X, INDEX)),
    "dynamic_update": (lambda x, i: lax.dynamic_update_slice(x, x[:2, :3], (i[2], i[0])), (X, INDEX)),
    "pad": (lambda x: lax.pad(x, 1.0, ((1, 2, 1), (0, -3, 0))), (X,)),
    "movement": (lambda x: (x[::-1, 1::2].T, jnp.concatenate([x, x], 1).reshape(8, 8)), (X,)),
    "integers": (lambda i: (i << 2, i >> 1, i % 3, i ^ 5, ~i, lax.population_count(i), lax.clz(i)), (INTEGERS,)),
    "bits": (lambda x: (lax.bitcast_convert_type(x, jnp.uint8), lax.reduce_precision(x, 8, 10)), (X,)),
    "casts": (lambda x: (x.astype(jnp.bfloat16), x.astype(jnp.float8_e5m2), (x > 0).astype(jnp.int8)), (X,)),
    "complex": (lambda x: (lax.complex(x, x), jnp.fft.rfft(x)), (X,)),
    "random": (lambda x: jax.random.normal(jax.random.key(3), (5,)) + x[0, 0], (X,)),
    "constants": (_special_constants, ()),
    "closure": (lambda x: x @ np.linspace(-1, 1, 8 * 50, dtype=np.float32).reshape(8, 50), (X,)),
    "cholesky": (lambda x: lax.linalg.cholesky(x @ x.T + 9 * jnp.eye(4)), (X,)),
}


@pytest.fixture(scope="module", params=FUNCTIONS)
def case(request: pytest.FixtureRequest) -> tuple[Any, tuple[Any, ...]]:
    function, arguments = FUNCTIONS[request.param]
    return jax.jit(function).lower(*arguments), arguments


def texts(lowered: Any) -> tuple[str, str, bytes]:
    """The text JAX gives, XLA's text with metadata and tables, and the proto."""
    computation = lowered.compiler_ir("hlo")
    proto = computation.as_serialized_hlo_module_proto()
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    full = _hlo.HloModule.from_serialized_hlo_module_proto(proto).to_string(options)
    return computation.as_hlo_text(print_large_constants=True), full, proto


def test_forms_agree(case: tuple[Any, tuple[Any, ...]]) -> None:
    text, full, proto = texts(case[0])
    from_full = _without_layouts(print_module(load_module(full.encode())))
    assert _without_layouts(print_module(load_module(proto))) == from_full
    plain = load_module(text.encode())
    verify_module(plain)
    again = print_module(_without_metadata(load_module(proto)))
    assert _without_layouts(print_module(plain)) == _without_layouts(again)


def _without_layouts(text: str) -> str:
    """Of the entry's parameters and results: protos say nothing of them here, text keeps what it said."""
    header, rest = text.split("\n", 1)
    return re.sub(r"\]\{[\d,]*\}", "]", header) + "\n" + rest


def _without_metadata(module: hlo.HloModule) -> hlo.HloModule:
    for computation in module.computations():
        for index in range(len(computation.block.args)):
            computation.set_parameter_loc(index, Loc(computation.parameter_loc(index).name))
            computation.attributes.pop(f"param_metadata.{index}", None)
        for op in computation.block.ops:
            if not isinstance(op, hlo.HloOp):
                continue
            op.attributes["loc"] = hlo.LocAttr(Loc(op.loc.name))
            op.attributes.pop("metadata", None)
    return module


def test_printed_text_runs_alike(case: tuple[Any, tuple[Any, ...]]) -> None:
    lowered, arguments = case
    text, full, _ = texts(lowered)
    printed = print_module(load_module(full.encode()))
    assert print_module(load_module(printed.encode())) == printed
    # jit drops the parameters that the function does not use
    kept = [arguments[index] for index in sorted(lowered._lowering.compile_args["kept_var_idx"])]
    for ours, theirs in zip(run_text(printed, kept), run_text(text, kept), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


def test_stablehlo_gives_the_same_ops(case: tuple[Any, tuple[Any, ...]]) -> None:
    lowered, _ = case
    module = load_module(str(lowered.compiler_ir("stablehlo")).encode())
    assert _opcodes(module) == _opcodes(load_module(texts(lowered)[2]))


def _opcodes(module: hlo.HloModule) -> list[str]:
    return sorted(
        op.opcode for computation in module.computations() for op in computation.block.ops if isinstance(op, hlo.HloOp)
    )


@pytest.mark.parametrize("name", ["convolution_gradient", "mlp_gradient", "movement", "scan", "sort"])
def test_optimised_dumps_mean_the_same(name: str) -> None:
    """Fusions, layouts, bitcasts and stack frame tables of what XLA's CPU compiler makes."""
    function, arguments = FUNCTIONS[name]
    compiled = jax.jit(function).lower(*arguments).compile()
    module = load_module(compiled.as_text().encode())
    verify_module(module)
    printed = print_module(module)
    _hlo.hlo_module_from_text(printed)
    assert print_module(load_module(printed.encode())) == printed
    proto = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    from_proto = print_module(load_module(proto))
    # the text has the instructions in scheduled order and the header has what no proto carries
    assert sorted(from_proto.splitlines()[1:]) == sorted(printed.splitlines()[1:])
    for ours, theirs in zip(evaluate(module, list(arguments)), jax.tree.leaves(function(*arguments)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
