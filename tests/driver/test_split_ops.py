"""Each class of operators is divided over devices: what one device holds and sends, as modules alone say."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.frontends.door import of_bytes
from neuronx_cc.driver.frontends.model import Fixed
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.driver.pipeline import run_pipeline
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.pipelines import PIPELINES

KEY = jax.random.key(3)
LAYOUT = ("NHWC", "HWIO", "NHWC")
CUBE, IMAGES, KERNEL = (64, 32, 16), (16, 32, 32, 8), (3, 3, 8, 16)
ROWS, SPACE = P("d"), P(None, "d")
PIPELINE = (*PIPELINES["import"], ("operators", ("check_shares",)))
HALO = 1.6
"""Times its share that a device may hold of an array: windows at the edges of a split dim."""


def conv(x, k, strides=(1, 1), **settings):
    return lax.conv_general_dilated(x, k, strides, "SAME", dimension_numbers=LAYOUT, **settings)


def pool(x, start, combine, size=2):
    return lax.reduce_window(x, start, combine, (1, size, size, 1), (1, 2, 2, 1), "SAME")


def gradient(function):
    return jax.grad(lambda x, *rest: (jnp.tanh(function(x, *rest)) ** 2).sum())


def over_rows(function):
    return lambda x, i: jax.vmap(function)(x, i)


SPELLINGS = {
    "pad beside": (lambda x: jnp.pad(x, ((0, 0), (1, 1), (0, 2))), ROWS, CUBE),
    "pad between": (lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (0, 0, 1), (0, 0, 0))), ROWS, CUBE),
    "gradient of w[:, i]": (gradient(lambda x: x[:, 3]), ROWS, CUBE),
    "gradient of w[i]": (gradient(lambda x: x[3]), SPACE, CUBE),
    "gradient of x[:, 1:]": (gradient(lambda x: x[:, 1:]), ROWS, CUBE),
    "gradient of x[:, :-1] and x[:, 1:]": (gradient(lambda x: x[:, 1:] * x[:, :-1]), ROWS, CUBE),
    "gradient of x[..., ::2]": (gradient(lambda x: x[..., ::2]), ROWS, CUBE),
    "roll": (lambda x: jnp.roll(x, 1, 0), ROWS, CUBE),
    "dynamic slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i[0], 4, 1), ROWS, CUBE, (1,)),
    "dynamic index": (lambda x, i: lax.dynamic_index_in_dim(x, i[0], 1, keepdims=False), ROWS, CUBE, (1,)),
    "dynamic update": (lambda x, i: lax.dynamic_update_slice_in_dim(x, x[:, :4] * 2, i[0], 1), ROWS, CUBE, (1,)),
    "scan": (lambda x: lax.scan(lambda c, y: (jnp.tanh(c + y), y), x[:, 0], x.swapaxes(0, 1))[0], ROWS, CUBE),
    "gradient of a scan": (
        gradient(lambda x: lax.scan(jax.checkpoint(lambda c, _: (jnp.tanh(c) * c, None)), x, None, length=3)[0]),
        ROWS,
        CUBE,
    ),
    "while": (lambda x: lax.while_loop(lambda s: jnp.abs(s).max() > 0.1, lambda s: s * 0.5, x), ROWS, CUBE),
    "fori_loop": (lambda x: lax.fori_loop(0, 4, lambda i, s: jnp.sin(s) + i, x), ROWS, CUBE),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), ROWS, CUBE),
    "switch": (lambda x, i: lax.switch(i[0], [jnp.sin, jnp.cos, jnp.tanh], x), ROWS, CUBE, (1,)),
    "map": (lambda x: lax.map(lambda r: jnp.tanh(r).sum(-1), x.swapaxes(0, 1)).T, ROWS, CUBE),
    "scan along a split dim": (lambda x: lax.scan(lambda c, y: (jnp.tanh(c + y), c), x[0], x)[1], ROWS, CUBE),
    "gradient of a scan along a split dim": (
        gradient(lambda x: lax.scan(lambda c, y: (jnp.tanh(c + y), c), jnp.zeros((32, 16)), x)[1]),
        ROWS,
        CUBE,
    ),
    "map of split rows": (lambda x: lax.map(lambda r: jnp.tanh(r).sum(-1, keepdims=True), x), ROWS, CUBE),
    "layers of which devices have some": (
        lambda x, w: lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, w)[0],
        (P(None, "d"), ROWS),
        CUBE,
        (8, 16, 16),
    ),
    "parts of a batch": (
        lambda x: lax.scan(lambda c, y: (c + jnp.tanh(y), None), jnp.zeros((16, 32, 16)), x.reshape(4, 16, 32, 16))[0],
        ROWS,
        CUBE,
    ),
    "some rows at a time": (
        lambda x: lax.fori_loop(0, 8, lambda i, s: s + jnp.tanh(lax.dynamic_slice_in_dim(x, 8 * i, 8)), x[:8] * 0),
        ROWS,
        CUBE,
    ),
    "convolution": (conv, ROWS, IMAGES, KERNEL),
    "convolution with strides": (lambda x, k: conv(x, k, (2, 2)), SPACE, IMAGES, KERNEL),
    "convolution of parts of images": (conv, SPACE, IMAGES, KERNEL),
    "convolution by groups": (lambda x, k: conv(x, k[:, :, :1], feature_group_count=8), ROWS, IMAGES, KERNEL),
    "gradient of a convolution": (gradient(lambda x, k: conv(x, k, (2, 2))), ROWS, IMAGES, KERNEL),
    "largest of windows": (lambda x: pool(x, -np.inf, lax.max), ROWS, IMAGES),
    "largest of windows that overlap": (lambda x: pool(x, -np.inf, lax.max, 3), SPACE, IMAGES),
    "gradient of the largest": (gradient(lambda x: pool(x, -np.inf, lax.max, 3)), ROWS, IMAGES),
    "sums of windows": (lambda x: pool(x, np.float32(0), lax.add), SPACE, IMAGES),
    "gradient of sums of split windows": (gradient(lambda x: pool(x, np.float32(0), lax.add)), SPACE, IMAGES),
    "gradient of sums of windows that overlap": (gradient(lambda x: pool(x, np.float32(0), lax.add, 3)), SPACE, IMAGES),
    "gradient of sums of windows": (gradient(lambda x: pool(x, np.float32(0), lax.add)), ROWS, IMAGES),
    "cumulative sum": (lambda x: jnp.cumsum(x, 1), ROWS, CUBE),
    "cumulative maximum": (lambda x: lax.cummax(x, 2), ROWS, CUBE),
    "associative scan": (lambda x: lax.associative_scan(jnp.multiply, x, axis=1), ROWS, CUBE),
    "associative scan along a split dim": (lambda x: lax.associative_scan(jnp.multiply, x, axis=1), SPACE, CUBE),
    "gradient of an associative scan": (gradient(lambda x: lax.associative_scan(jnp.multiply, x, axis=1)), SPACE, CUBE),
    "Fourier transform along a split dim": (lambda x: jnp.fft.fft(x, axis=1).real, SPACE, CUBE),
    "argmax": (lambda x: jnp.argmax(x, 1), ROWS, CUBE),
    "argmin of the last": (lambda x: jnp.argmin(x, -1), ROWS, CUBE),
    "sort": (lambda x: jnp.sort(x, 1), ROWS, CUBE),
    "argsort": (lambda x: jnp.argsort(x, -1), ROWS, CUBE),
    "sort of pairs": (lambda x: lax.sort((x, x * 2), dimension=1, num_keys=1)[1], ROWS, CUBE),
    "largest of rows": (lambda x: lax.top_k(x, 2)[0], ROWS, CUBE),
    "places of the largest": (lambda x: lax.top_k(x[..., 0], 5)[1], ROWS, CUBE),
    "median": (lambda x: jnp.median(x, 1), ROWS, CUBE),
    "dropout": (lambda x: jnp.where(jax.random.bernoulli(KEY, 0.9, x.shape), x / 0.9, 0), ROWS, CUBE),
    "random numbers": (lambda x: x + jax.random.normal(KEY, x.shape) * jax.random.uniform(KEY, x.shape), ROWS, CUBE),
    "a key for each row": (
        lambda x: jax.vmap(lambda k, r: r * jax.random.uniform(k, r.shape))(jax.random.split(KEY, 64), x),
        ROWS,
        CUBE,
    ),
    "scatter of maxima": (lambda x, i: x.at[:, i].max(0.5), ROWS, CUBE, (9,)),
    "scatter of products": (lambda x, i: x.at[:, i].multiply(0.5), ROWS, CUBE, (9,)),
    "scatter to split rows": (lambda x, i: x.at[i].min(0.5), ROWS, CUBE, (9,)),
    "batched scatter": (over_rows(lambda r, i: r.at[i].set(1.0)), (ROWS, ROWS), CUBE, (64, 5)),
    "batched gather": (over_rows(lambda r, i: r[i]), (ROWS, ROWS), CUBE, (64, 5)),
    "gather": (lambda x, i: x[:, i], ROWS, CUBE, (9,)),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i[:, :, None], 1), (ROWS, ROWS), CUBE, (64, 5)),
    "gradient of take_along_axis": (
        gradient(lambda x, i: jnp.take_along_axis(x, i[:, :, None], 1)),
        (ROWS, ROWS),
        CUBE,
        (64, 5),
    ),
    "rows of a table": (lambda i, t: t[i], (ROWS, P()), (512,), (40, 64)),
    "sums by number": (lambda x, i: jax.ops.segment_sum(x, i[:, 0], 8), (ROWS, ROWS), CUBE, (64, 5)),
}
"""Function, how its first operand is split (or each), shapes; of one dim, or two beside three, they are indices."""


def divided(name, count):
    """The module of one of ``count`` devices after the passes that import it, and their warnings."""
    function, specs, *shapes = SPELLINGS[name]
    mesh = AbstractMesh((count,), ("d",))
    specs = (*specs,) if isinstance(specs, tuple) and not isinstance(specs, P) else (specs, *[P()] * (len(shapes) - 1))
    given = [
        jax.ShapeDtypeStruct(shape, _dtype(name, shape), sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    result = NamedSharding(mesh, specs[0])
    lowered = jax.jit(function, out_shardings=result).trace(*given).lower(lowering_platforms=("cpu",))
    code = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(code)
    module = of_bytes(code.getvalue(), "", Fixed()).load()
    parsed = from_keywords(COMPILE, {"int64": "exact"})
    session = Session("test", [], parsed=parsed)
    context = run_pipeline(module, parsed, session, planned_machine(parsed), PIPELINE)
    return module, [str(warning) for warning in context.warnings]


def _dtype(name, shape):
    indices = len(shape) == 1 or (len(shape) == 2 and len(SPELLINGS[name][2]) == 3)
    return jnp.int32 if indices else jnp.float32


def largest(module):
    """Bytes of the largest array that is computed."""
    return max(
        hlo.shape_of(op.results[0]).nbytes
        for computation in module.computations()
        for op in ops_of(computation.block)
        if isinstance(op.results[0].type, hlo.ArrayType) and not isinstance(op, hlo.ConstantOp | hlo.BroadcastOp)
    )


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_device_holds_its_share(name, count):
    module, warnings = divided(name, count)
    assert dict(module.header)["num_partitions"] == str(count)
    assert not [warning for warning in warnings if "EJAX903" in warning]
    gathered = [
        hlo.shape_of(op.results[0]).nbytes
        for computation in module.computations()
        for op in ops_of(computation.block)
        if isinstance(op, hlo.AllGatherOp)
    ]
    whole = 4 * max(map(np.prod, SPELLINGS[name][2:]))
    assert sum(gathered) <= whole / 50
    alone, _ = divided(name, 1)
    assert largest(module) <= HALO * max(whole, largest(alone)) / count


@pytest.mark.parametrize("split", [ROWS, SPACE])
def test_random_bits_that_are_made_whole_are_named(split, monkeypatch):
    key = jax.random.key(3, impl="rbg")
    monkeypatch.setitem(SPELLINGS, "bits", (lambda x: x + jax.random.normal(key, x.shape), split, (64, 512)))
    _, warnings = divided("bits", 4)
    (warning,) = (warning for warning in warnings if "EJAX903" in warning)
    assert "rng-bit-generator is computed alike on 4 devices: 131072 bytes are made" in warning
    _, warnings = divided("bits", 1)
    assert not warnings
