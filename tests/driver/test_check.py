"""``run --check``: the reference itself plays the simulator, with faults put in by hand."""

import ml_dtypes
import numpy as np
import pytest

from neuronx_cc.driver.check import check, difference
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo, reference

TEXT = """
HloModule g

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,3] parameter(1)
  d = f32[4,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[4,3] exponential(d), metadata={op_name="jit(f)/exp" source_file="model.py" source_line=7}
  zero = f32[] constant(0)
  s = f32[4] reduce(e, zero), dimensions={1}, to_apply=add
  i = s32[4] convert(s)
  ROOT r = (f32[4], s32[4]) tuple(s, i)
}
"""


@pytest.fixture
def module():
    return load_module(TEXT.encode(), "g.hlo")


@pytest.fixture
def inputs():
    generator = np.random.default_rng(3)
    return [generator.standard_normal((4, 8), np.float32), generator.standard_normal((8, 3), np.float32)]


class Faulty(reference.Evaluator):
    """The reference with ``fault(op, value)`` applied to every op's value."""

    def __init__(self, module, fault):
        plain = reference.evaluator(module)
        super().__init__(module, plain._pure, plain._calling)
        self.fault = fault

    def apply(self, op, operands):
        return self.fault(op, super().apply(op, operands))


def simulate(inputs, fault, runs=None):
    def rerun(module):
        if runs is not None:
            runs.append(module)
        value = Faulty(module, fault).call(module.entry.computation_name, *inputs)
        return list(value) if isinstance(value, tuple) else [value]

    return rerun


def no_fault(_, value):
    return value


def test_agreement_needs_no_rerun(module, inputs):
    runs = []
    rerun = simulate(inputs, no_fault, runs)
    outputs = rerun(module)
    result = check(module, inputs, outputs, rerun)
    assert result.passed
    assert result.error == 0
    assert len(runs) == 1


def test_rounding_of_sums_is_no_divergence(module, inputs):
    def fault(op, value):
        return value * np.float32(1 + 5e-6) if op.opcode == "dot" else value

    rerun = simulate(inputs, fault)
    assert check(module, inputs, rerun(module), rerun).passed


@pytest.mark.parametrize("opcode", ["dot", "exponential", "reduce", "convert"])
def test_the_first_wrong_op_is_named(module, inputs, opcode):
    def fault(op, value):
        if op.opcode != opcode:
            return value
        value = value.copy()
        value.flat[2] += 1
        return value

    rerun = simulate(inputs, fault)
    result = check(module, inputs, rerun(module), rerun)
    assert not result.passed
    assert result.divergence is not None
    assert result.divergence.opcode == opcode
    assert result.divergence.count == 1
    if opcode == "exponential":
        assert (result.divergence.loc.source_file, result.divergence.loc.source_line) == ("model.py", 7)
        assert result.divergence.index == (0, 2)
        assert "exponential f32[4,3]: 1 of 12 elements differ, first at [0, 2]" in result.summary


def test_nan_is_a_divergence(module, inputs):
    def fault(op, value):
        return np.full_like(value, np.nan) if op.opcode == "exponential" else value

    rerun = simulate(inputs, fault)
    result = check(module, inputs, rerun(module), rerun)
    assert result.error == float("inf")
    assert result.divergence.opcode == "exponential"


def test_fault_that_hides_when_values_are_kept(module, inputs):
    outputs = [array + 1 for array in simulate(inputs, no_fault)(module)]
    result = check(module, inputs, outputs, simulate(inputs, no_fault))
    assert not result.passed
    assert result.divergence is None
    assert "fused or scheduled" in result.summary


def test_accumulated_rounding_passes(module, inputs):
    """Integers downstream of floats may flip although every op is right on its own operands."""

    def fault(op, value):
        return value * np.float32(1 + 5e-6) if op.opcode == "exponential" else value

    rerun = simulate(inputs, fault)
    outputs = rerun(module)
    flipped = [outputs[0], outputs[1].copy()]
    flipped[1][0] += 1
    assert not check(module, inputs, flipped, rerun).passed
    assert check(module, inputs, outputs, rerun).passed


def test_module_is_left_as_it_was(module, inputs):
    before = sum(1 for _ in module.entry.block.ops)
    rerun = simulate(inputs, lambda op, value: value + 1 if op.opcode == "dot" else value)
    check(module, inputs, rerun(module), rerun)
    assert sum(1 for _ in module.entry.block.ops) == before


def test_single_array_root(inputs):
    module = load_module(TEXT.split("  zero =")[0].replace("  e =", "  ROOT e =").encode() + b"}\n", "g.hlo")
    rerun = simulate(inputs, lambda op, value: value + 1 if op.opcode == "dot" else value)
    result = check(module, inputs, rerun(module), rerun)
    assert result.divergence.opcode == "dot"
    assert isinstance(module.entry.root.owner, hlo.ExponentialOp)


@pytest.mark.parametrize(
    ("found", "expected", "value"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([3.0, 4.0], [0.0, 0.0], 5.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.nan, 1.0], [1.0, 1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_difference(found, expected, value):
    for dtype in (np.float32, ml_dtypes.bfloat16):
        assert difference(np.array(found, dtype), np.array(expected, dtype)) == value


def test_difference_of_integers_is_the_share():
    assert difference(np.array([1, 2, 3, 4]), np.array([1, 2, 0, 4])) == 0.25
