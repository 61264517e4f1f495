"""``run --check``: the reference itself plays the simulator, with faults put in by hand."""

import ml_dtypes
import numpy as np
import pytest

from neuronx_cc.driver.check import Rerun, check, difference
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


class Simulator:
    """Each op with a result in memory is a kernel of its own; those of ``inside`` are parts of the next kernel."""

    def __init__(self, module, inputs, fault, inside=()):
        self.module, self.inputs, self.fault, self.inside, self.runs = module, inputs, fault, inside, 0

    def outputs(self, watcher=None):
        def watch(op, value):
            if watcher is not None and self._is_kernel(op):
                watcher.kernel([value])

        self.runs += 1
        value = Faulty(self.module, self.fault).call(self.module.entry.computation_name, *self.inputs, watch=watch)
        return list(value) if isinstance(value, tuple) else [value]

    def _is_kernel(self, op):
        return op.opcode not in ("constant", "tuple", *self.inside)

    def again(self):
        ops = [op for op in self.module.entry.block.ops if isinstance(op, hlo.HloOp) and self._is_kernel(op)]
        kernels = [[op.results[0]] for op in ops]
        return Rerun(self.module, kernels, lambda watchers: [self.outputs(*watchers)], lambda inputs: [self.outputs()])

    def check(self, outputs=None):
        return check(self.module, [self.inputs], [self.outputs() if outputs is None else outputs], self.again)


def no_fault(_, value):
    return value


def test_agreement_needs_no_rerun(module, inputs):
    simulator = Simulator(module, inputs, no_fault)
    result = simulator.check()
    assert result.passed
    assert result.error == 0
    assert simulator.runs == 1


def test_rounding_of_sums_is_no_divergence(module, inputs):
    def fault(op, value):
        return value * np.float32(1 + 5e-6) if op.opcode == "dot" else value

    assert Simulator(module, inputs, fault).check().passed


@pytest.mark.parametrize("inside", [(), ("dot",), ("exponential",), ("dot", "exponential", "reduce")])
@pytest.mark.parametrize("opcode", ["dot", "exponential", "reduce", "convert"])
def test_the_first_wrong_op_is_named(module, inputs, opcode, inside):
    def fault(op, value):
        if op.opcode != opcode:
            return value
        value = value.copy()
        value.flat[2] += 1
        return value

    result = Simulator(module, inputs, fault, inside).check()
    assert not result.passed
    assert result.divergence is not None
    if opcode in inside:
        return
    assert result.divergence.opcode == opcode
    assert result.divergence.count == 1
    if opcode == "exponential":
        assert (result.divergence.loc.source_file, result.divergence.loc.source_line) == ("model.py", 7)
        assert result.divergence.index == (0, 2)
        assert "exponential f32[4,3]: 1 of 12 elements differ, first at [0, 2]" in result.summary


def test_nan_is_a_divergence(module, inputs):
    def fault(op, value):
        return np.full_like(value, np.nan) if op.opcode == "exponential" else value

    result = Simulator(module, inputs, fault).check()
    assert result.error == float("inf")
    assert result.divergence.opcode == "exponential"


def test_outputs_of_another_program(module, inputs):
    simulator = Simulator(module, inputs, no_fault)
    result = simulator.check([array + 1 for array in simulator.outputs()])
    assert not result.passed
    assert result.divergence is None
    assert "compiled again" in result.summary


def test_accumulated_rounding_passes(module, inputs):
    """Integers downstream of floats may flip although every op is right on its own operands."""

    def fault(op, value):
        return value * np.float32(1 + 5e-6) if op.opcode == "exponential" else value

    simulator = Simulator(module, inputs, fault)
    outputs = simulator.outputs()
    flipped = [outputs[0], outputs[1].copy()]
    flipped[1][0] += 1
    assert not simulator.check(flipped).passed
    assert simulator.check(outputs).passed


RECTIFIED = """
HloModule g

ENTRY main {
  x = f32[4,64] parameter(0)
  w = f32[64,32] parameter(1)
  g = f32[4,32] parameter(2)
  d = f32[4,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  zeros = f32[4,32] broadcast(zero), dimensions={}
  on = pred[4,32] compare(d, zeros), direction=GT
  ROOT r = f32[4,32] select(on, g, zeros)
}
"""


@pytest.mark.parametrize("inside", [(), ("broadcast",), ("dot", "broadcast", "compare")])
def test_decisions_that_rounding_takes_pass(inside):
    """A sum that is 0 but for rounding turns a gradient on or off; a sum that is not must not."""
    module = load_module(RECTIFIED.encode(), "g.hlo")
    generator = np.random.default_rng(5)
    x, w = (generator.integers(-9, 10, dims).astype(np.float32) for dims in ((4, 64), (64, 32)))
    w[0, 3] += (-(x @ w)[1, 3]) / x[1, 0] if x[1, 0] else 0
    gradient = np.full((4, 32), 100, np.float32)

    def nearly(op, value):
        if op.opcode == "dot":
            value = value.copy()
            value[1, 3] = 1e-4 if value[1, 3] <= 0 else -1e-4
        return value

    def far(op, value):
        return -value if op.opcode == "dot" else value

    result = Simulator(module, [x, w, gradient], nearly, inside).check()
    assert result.error > 0.01
    assert result.passed, result.summary
    assert not Simulator(module, [x, w, gradient], far, inside).check().passed


def test_single_array_root(inputs):
    module = load_module(TEXT.split("  zero =")[0].replace("  e =", "  ROOT e =").encode() + b"}\n", "g.hlo")
    result = Simulator(module, inputs, lambda op, value: value + 1 if op.opcode == "dot" else value).check()
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
