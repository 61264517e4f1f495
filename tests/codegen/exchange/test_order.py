"""Kernels around collectives: values stay in whatever order, nobody waits for ever, and the core computes meanwhile."""

from unittest import mock

import numpy as np
import pytest
from exchanging_programs import draw
from generated import TRN1, compile_text

from neuronx_cc.codegen.exchange import order as orders
from neuronx_cc.ir.isa import cost
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.runtime.clock_regions import simulate
from neuronx_cc.runtime.devices import replicate, run_devices
from neuronx_cc.runtime.executable import Executable

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"


@pytest.mark.parametrize("devices", [2, 4, 6])
@pytest.mark.parametrize("seed", range(12))
def test_drawn_programs(seed: int, devices: int) -> None:
    drawn = draw(seed, devices)
    compiled = compile_text(drawn.text)
    results = run_devices(replicate(Executable.from_program(compiled.program, compiled.constants)), drawn.inputs)
    for result, expected in zip(results, drawn.expected, strict=True):
        for made, wanted in zip(result.outputs, expected, strict=True):
            np.testing.assert_allclose(made, wanted, atol=1e-4 * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize("seed", range(12))
def test_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel once, after what it reads, and no later by estimate than as they came."""
    found = []
    plan = orders.plan

    def watched(kernels, maker, estimate, effectful):  # type: ignore[no-untyped-def]
        made = plan(kernels, maker, estimate, effectful)
        found.append((list(kernels), maker, estimate, made))
        return made

    monkeypatch.setattr(orders, "plan", watched)
    compile_text(draw(seed, 4, 40).text)
    ((kernels, maker, estimate, made),) = [each for each in found if each[3] is not None]
    assert sorted(map(id, made.kernels)) == sorted(map(id, kernels))
    ends = {step.kernel: step.end for step in made.steps}
    for step in made.steps:
        sources = {maker(operand) for op in step.kernel.ops for operand in op.operands} - {None, step.kernel}
        assert all(ends[source] <= step.begin for source in sources)
    assert max(ends.values()) <= _in_turn(kernels, maker, estimate) * (1 + 1e-9)
    assert "collectives among" in made.line()


def _in_turn(kernels, maker, estimate):  # type: ignore[no-untyped-def]
    """Estimated time of ``kernels`` as they come."""
    core = link = 0.0
    ends = {}
    for kernel in kernels:
        there = max((ends.get(maker(operand), 0.0) for op in kernel.ops for operand in op.operands), default=0.0)
        exchanges = orders.is_exchange(kernel)
        ends[kernel] = max(there, core, link if exchanges else 0.0) + estimate.of(kernel)
        link, core = (ends[kernel], core) if exchanges else (link, ends[kernel])
    return max(ends.values())


def _training(rows: int, layers: int) -> str:
    """Gradients of a chain of products, each summed over devices and taken from its weight as soon as it is there."""
    lines = [f"x = f32[{rows},512] parameter(0)"]
    lines += [f"w{n} = f32[512,512] parameter({n + 1})" for n in range(layers)]
    given = "x"
    for n in range(layers):
        lines += [
            f"grad{n} = f32[512,512] dot({given}, {given}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}",
            f"sum{n} = f32[512,512] all-reduce(grad{n}), replica_groups={{}}, to_apply=add",
            f"new{n} = f32[512,512] subtract(w{n}, sum{n})",
            f"y{n} = f32[{rows},512] dot({given}, w{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        ]
        given = f"y{n}"
    types = ", ".join(["f32[512,512]"] * layers)
    names = ", ".join(f"new{n}" for n in range(layers))
    body = "\n  ".join([*lines, f"ROOT r = ({types}) tuple({names})"])
    return f"HloModule t, replica_count=8\n{ADD}ENTRY main {{\n  {body}\n}}\n"


@pytest.mark.parametrize("rows", [128, 256, 512])
def test_computing_goes_on(rows: int) -> None:
    """Products and sums over devices that take about as long as them: beside these, little is waited for."""
    machine = TRN1.with_settings(["link.bw=40"])
    program = compile_text(_training(rows, 8), machine).program
    timing = simulate(program, machine)
    exchanging = timing.streams[Stream.COLLECTIVE].active
    with mock.patch.object(cost, "collective_ns", return_value=0.0):
        computing = simulate(program, machine).total
    assert exchanging > 0.5 * computing
    assert timing.total < max(exchanging, computing) + 2 * exchanging / 8
