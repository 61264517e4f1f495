"""The verifier of the hlo dialect: each op against HLO's rules, and the structure of a module.

``verify_op(op)`` checks operand counts, types and attributes by a table (``rule.RULES``, one row per opcode);
``verify_structure(module)`` definitions before uses, terminators and calls; ``verify_module(module)`` all of it.
Errors are ``CompileError`` EVRF064 at the op's location, saying what was expected and found.
The rules are those of XLA's shape inference and HLO verifier (xla/service/shape_inference.cc, hlo_verifier.cc).
"""

import neuronx_cc.ir.verify.compute
import neuronx_cc.ir.verify.control
import neuronx_cc.ir.verify.elementwise
import neuronx_cc.ir.verify.movement  # noqa: F401
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule, HloOp
from neuronx_cc.ir.verify.op import CALL_FIELDS, op_problem, verify_op
from neuronx_cc.ir.verify.rule import RULES, CallRule
from neuronx_cc.ir.verify.structure import verify_structure

__all__ = ["CALL_FIELDS", "Verifier", "op_problem", "verify_module", "verify_op", "verify_structure"]


def verify_module(module: HloModule) -> None:
    """Structure, then every op. Raises ``CompileError``."""
    Verifier(module).verify()


class Verifier:
    """Of a module that changes little from one time to the next: an op as it was, with operands of the types that they
    had, need not meet its rule again unless it calls computations."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._verified: dict[HloOp, tuple[object, ...]] = {}
        """What the rule of each op was asked about the last time."""

    def verify(self) -> None:
        """Structure, then every op that is new. Raises ``CompileError``."""
        verify_structure(self.module)
        computations = {computation.computation_name: computation for computation in self.module.computations()}
        before, self._verified = self._verified, {}
        for computation in computations.values():
            for op in computation.block.ops:
                if not isinstance(op, HloOp):
                    continue
                facts = (op.results[0].type, *(operand.type for operand in op.operands), *op.properties.items())
                again = before.get(op) != facts or isinstance(RULES.get(op.opcode), CallRule)
                if again and (problem := op_problem(op, computations)):
                    raise CompileError("EVRF064", f"{op.opcode}: {problem}", loc=op.loc)
                self._verified[op] = facts
                if op.name == "hlo.constant":
                    _constant(self.module, op)


def _constant(module: HloModule, op: HloOp) -> None:
    digest = op.properties["value"].data  # type: ignore[attr-defined]
    if digest not in module.constants:
        raise CompileError("EVRF064", "constant: expected its value in the constant pool, found none", loc=op.loc)
    array, shape = module.constants[digest], op.shape
    if array.shape != shape.dims or array.dtype != shape.numpy_dtype:
        found = f"{array.dtype}{list(array.shape)}"
        raise CompileError("EVRF064", f"constant: expected a value of {shape}, found {found}", loc=op.loc)
