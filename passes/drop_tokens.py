"""Makes tokens arrays without elements: ``pred[0]``.

Input: any module. Output: no value of a token type, alone or in a tuple. Tokens order effects; here ops with effects
keep the order in which they stand (``passes.dce``, ``codegen.formation.graph``), which is one that their tokens allow.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace, retype
from neuronx_cc.passes.dissolve_tuples import leaves
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext

NOTHING = hlo.array_type("pred", (0,))


def run(module: HloModule, context: PassContext) -> None:
    if not any(_mentions(value.type) for computation in module.computations() for value in _values(computation)):
        return
    for computation in module.computations():
        for value in _values(computation):
            retype(value, without_tokens(value.type))
        for op in ops_of(computation.block):
            if isinstance(op, hlo.AfterAllOp):
                replace(op, Build.before(module, op).number(0, "pred", (0,)))
            elif isinstance(op, hlo.AddDependencyOp):
                replace(op, op.operands[0])
    module.header = tuple(item for item in module.header if item[0] != "entry_computation_layout")


def _values(computation: hlo.ComputationOp) -> list[hlo.SSAValue]:
    results = [op.results[0] for op in ops_of(computation.block) if not isinstance(op, hlo.HostOp)]  # refused later
    return [*computation.block.args, *results]


def _mentions(type_: hlo.Attribute) -> bool:
    return any(isinstance(leaf, hlo.TokenType) for _, leaf in leaves(type_))


def without_tokens(type_: hlo.Attribute) -> hlo.Attribute:
    """``type_`` with ``pred[0]`` in the place of each token."""
    if isinstance(type_, hlo.TupleType):
        return hlo.tuple_type(tuple(without_tokens(part) for part in type_.data))
    return NOTHING if isinstance(type_, hlo.TokenType) else type_
