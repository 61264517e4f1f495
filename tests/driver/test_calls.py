"""Functions and loop bodies that several calls share: reports tell the calls apart, and rules reach each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.passes.flatten_control import inlined

SIZE = 32


@jax.jit
def layer(x, w):
    return jnp.tanh(x @ w)


@jax.jit
def deep(x, ws):
    return jax.lax.scan(lambda c, w: (layer(c, w), None), x, ws)[0]


@jax.jit
def chosen(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda: layer(x, w), lambda: x)


def model(x, w, v, ws):
    x = layer(x, w)
    x = layer(x, v)
    x = deep(x, ws)
    x = deep(x, ws)
    x = chosen(x, w)
    return chosen(x, v)


LINES = [model.__code__.co_firstlineno + offset for offset in range(1, 7)]
SHAPES = ((SIZE, SIZE), (SIZE, SIZE), (SIZE, SIZE), (2, SIZE, SIZE))
random = np.random.default_rng(0)
INPUTS = [random.standard_normal(shape, dtype=np.float32) / 6 for shape in SHAPES]


@pytest.fixture(scope="module")
def lowered():
    return jax.jit(model).lower(*INPUTS)


def compared(lowered, **options):
    return neuronx_cc.compare(lowered, INPUTS, auto_cast="matmult", **options)


def test_each_call_has_its_row(lowered):
    rows = compared(lowered).rows
    assert len({row.name for row in rows}) == len(rows) == 6
    for line in LINES:
        assert sum(row.source.endswith(f" from {__file__}:{line}") for row in rows) == 1


@pytest.mark.parametrize("number", range(6))
def test_a_call_is_kept_by_its_line_or_name(lowered, number):
    rows = {row.name: row for row in compared(lowered).rows}
    (name,) = (name for name, row in rows.items() if row.source.endswith(f":{LINES[number]}"))
    for word in (f"test_calls.py:{LINES[number]}", f"^{name}$", rows[name].keep):
        left = compared(lowered, keep_fp32=[word]).rows
        assert {row.name for row in left} == rows.keys() - {name}


def test_the_line_inside_means_all_calls(lowered):
    line = layer.__wrapped__.__code__.co_firstlineno + 2
    assert not compared(lowered, keep_fp32=[f"test_calls.py:{line}"]).rows


def test_near_misses_name_the_calls(lowered):
    with pytest.raises(UsageError, match=r"near names are \S+/dot_general") as raised:
        compared(lowered, precision_policy={"rules": [{"name": "jit_layer_/dot_generl", "operands": "fp32"}]})
    assert raised.value.code == "EARG910"


def test_calls_are_tuned_one_by_one(lowered):
    tuning = neuronx_cc.tune(lowered, INPUTS, tolerance=1e-3, types=["bf16"])
    assert len(tuning.groups) == 6
    policy = tuning.to_json()["policy"]
    again = neuronx_cc.compile(lowered, auto_cast="none", precision_policy=policy).run(INPUTS)
    exact = neuronx_cc.compile(lowered, auto_cast="none").run(INPUTS)
    (found,), (expected,) = again.outputs, exact.outputs
    assert np.linalg.norm(found - expected) <= 1.1e-3 * np.linalg.norm(expected)


SHARED = b"""HloModule shared

body {
  p = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4,4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[4,4]) tuple(next, d)
}

test {
  p = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[4,4] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[4,4]) tuple(zero, x)
  first = (s32[], f32[4,4]) while(s), condition=test, body=body
  y = f32[4,4] get-tuple-element(first), index=1
  r = (s32[], f32[4,4]) tuple(zero, y)
  second = (s32[], f32[4,4]) while(r), condition=test, body=body
  ROOT z = f32[4,4] get-tuple-element(second), index=1
}
"""


def test_loops_of_one_body():
    module = inlined(load_module(SHARED))
    paths = [op.loc.path for each in module.computations() for op in each.block.ops if isinstance(op, hlo.DotOp)]
    assert sorted(paths) == ["first/d", "second/d"]
