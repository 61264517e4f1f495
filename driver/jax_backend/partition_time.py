"""How long a device takes for its module of a sharded program, and what it holds, by estimate.

For choosing among partitions of a program, which have most of their ops in common.
"""

from dataclasses import dataclass

from neuronx_cc.codegen.exchange.kernel_time import Estimate
from neuronx_cc.codegen.formation.graph import is_view
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.driver.pipeline import run_pipeline
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.passes.pipelines import PIPELINES

SUMS = ("sums", ("canonicalize", "views_before_sums", "scatter_sums", "delay_sums", "dce"))
"""What is done to sums over devices later, without which they would count twice."""


@dataclass(frozen=True, slots=True)
class Taken:
    """By one device."""

    nanoseconds: float
    """What its ops compute and exchange, one after the other."""
    held: int
    """Bytes of the arrays that are there at the same time, in the order of the module."""


def taken(local: bytes) -> Taken:
    """For the HloModuleProto ``local``."""
    module = load_module(local, "", trusted=True)
    machine, parsed = find_machine("trn1"), from_keywords(COMPILE, {})
    stages = (*PIPELINES["import"], SUMS)
    run_pipeline(module, parsed, Session("partition", [], parsed=parsed), machine, stages)
    return Taken(Estimate(module, Timing(machine)).together(module.entry), _held(module, module.entry))


def _held(module: hlo.HloModule, computation: hlo.ComputationOp) -> int:
    """Of what ``computation`` makes, but what loops in it are handed and hand on counts for them alone."""
    ops = list(ops_of(computation.block))
    ends: dict[hlo.SSAValue, int] = {}
    for number, op in reversed(list(enumerate(ops))):
        end = max((ends.get(result, number) for result in op.results), default=number) if _hands_on(op) else number
        for operand in op.operands:
            ends[operand] = max(ends.get(operand, 0), end)
    freed: dict[int, int] = {}
    live = most = 0
    for number, op in enumerate(ops):
        made = 0 if _hands_on(op) else sum(_nbytes(result) for result in op.results)
        most = max(most, live + made + _inside(module, op))
        live += made
        last = max((ends.get(result, number) for result in op.results), default=number)
        freed[last] = freed.get(last, 0) + made
        live -= freed.pop(number, 0)
    return most


def _inside(module: hlo.HloModule, op: hlo.HloOp) -> int:
    if isinstance(op, hlo.WhileOp):
        return _held(module, module.computation(op.body.data[0]))
    if isinstance(op, hlo.ConditionalOp):
        return max(_held(module, module.computation(name)) for name in op.branches.data)
    return 0


def _hands_on(op: hlo.HloOp) -> bool:
    return is_view(op) or isinstance(op, hlo.TupleOp | hlo.GetTupleElementOp | hlo.ConstantOp)


def _nbytes(value: hlo.SSAValue) -> int:
    kinds = list(value.type.data) if isinstance(value.type, hlo.TupleType) else [value.type]
    return sum(kind.data.nbytes for kind in kinds if isinstance(kind, hlo.ArrayType))
