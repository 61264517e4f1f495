"""Evaluates computations: looks values up, applies each op's reference function, frees values after their last use.

Ops that call computations receive the ``Evaluator`` as their first argument (``CALLING``); all others are pure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.reference.elementwise import ELEMENTWISE
from neuronx_cc.ir.reference.values import Array, Value

Watch = Callable[[hlo.HloOp, Value], None]


_IDENTITY_STRUCTURE = frozenset(["tuple", "get-tuple-element", "call", "constant"])


class Evaluator:
    """Evaluates the computations of one module.

    ``pure`` maps an opcode to ``fn(op, *values)``, ``calling`` to ``fn(evaluator, op, *values)``.
    """

    def __init__(
        self,
        module: hlo.HloModule,
        pure: dict[str, Callable[..., Value]],
        calling: dict[str, Callable[..., Value]],
    ):
        self.module = module
        self._pure = pure
        self._calling = calling
        self._dead_after: dict[str, dict[Any, list[hlo.SSAValue]]] = {}
        self._elementwise: dict[str, bool] = {}

    def computation(self, name: str) -> hlo.ComputationOp:
        return self.module.computation(name)

    def apply(self, op: hlo.HloOp, operands: Sequence[Value]) -> Value:
        """The value of ``op`` on the given operand values. CompileError EVRF001 when it has no semantics here."""
        opcode = op.opcode
        with np.errstate(all="ignore"):
            if opcode in self._calling:
                return self._calling[opcode](self, op, *operands)
            if opcode in self._pure:
                return self._pure[opcode](op, *operands)
        raise CompileError(
            "EVRF001",
            f"{opcode} has no reference semantics",
            "run without --check, or replace the operator",
            op.loc,
        )

    def call(self, name: str, *arguments: Value, watch: Watch | None = None) -> Value:
        """The root value of computation ``name`` on ``arguments``; ``watch`` sees every op of it."""
        computation = self.module.computation(name)
        values: dict[hlo.SSAValue, Value] = dict(zip(computation.block.args, arguments, strict=True))
        dead_after = self._last_uses(computation)
        root = computation.root
        for op in computation.block.ops:
            if not isinstance(op, hlo.HloOp):
                continue
            value = self.apply(op, [values[operand] for operand in op.operands])
            values[op.results[0]] = value
            if watch is not None:
                watch(op, value)
            for dead in dead_after.get(op, ()):
                del values[dead]
        return values[root]

    def _last_uses(self, computation: hlo.ComputationOp) -> dict[Any, list[hlo.SSAValue]]:
        name = computation.computation_name
        if name not in self._dead_after:
            last: dict[hlo.SSAValue, Any] = {}
            for op in computation.block.ops:
                for value in (*op.results, *op.operands):
                    last[value] = op
            dead_after: dict[Any, list[hlo.SSAValue]] = {}
            for value, op in last.items():
                if not isinstance(op, hlo.ReturnOp):
                    dead_after.setdefault(op, []).append(value)
            self._dead_after[name] = dead_after
        return self._dead_after[name]

    def binary_opcode(self, name: str) -> str | None:
        """The opcode when computation ``name`` is one binary op on its two parameters, such as ``add``."""
        computation = self.module.computation(name)
        ops = [op for op in computation.block.ops if isinstance(op, hlo.HloOp)]
        if len(ops) != 1 or len(computation.block.args) != 2 or computation.root is not ops[0].results[0]:
            return None
        operands = tuple(ops[0].operands)
        parameters = tuple(computation.block.args)
        if operands == parameters or (ops[0].opcode in COMBINERS and operands == parameters[::-1]):
            return ops[0].opcode
        return None

    def is_elementwise(self, name: str) -> bool:
        """Whether computation ``name`` on scalars is also right on whole arrays, element by element."""
        if name not in self._elementwise:
            self._elementwise[name] = all(
                op.opcode in ELEMENTWISE
                or (
                    op.opcode in _IDENTITY_STRUCTURE
                    and (not isinstance(op, hlo.CallOp) or self.is_elementwise(op.to_apply.data[0]))
                )
                for op in self.module.computation(name).block.ops
                if isinstance(op, hlo.HloOp)
            )
        return self._elementwise[name]

    def call_on_arrays(self, name: str, *arguments: Array) -> tuple[Array, ...]:
        """Scalar computation ``name`` on every element of arrays of equal dims; one array a root element."""
        dims = np.broadcast_shapes(*(argument.shape for argument in arguments))
        if self.is_elementwise(name):
            return tuple(np.broadcast_to(part, dims) for part in as_tuple(self.call(name, *arguments)))
        columns = [np.broadcast_to(argument, dims).reshape(-1) for argument in arguments]
        rows = [as_tuple(self.call(name, *(np.asarray(c[i]) for c in columns))) for i in range(columns[0].size)]
        if not rows:
            rows = [as_tuple(self.call(name, *(np.zeros((), argument.dtype) for argument in arguments)))]
            return tuple(np.zeros(dims, part.dtype) for part in rows[0])
        return tuple(np.array(part, part[0].dtype).reshape(dims) for part in zip(*rows, strict=True))


def as_tuple(value: Value) -> tuple[Value, ...]:
    """A tuple value's parts, or the value alone."""
    return value if isinstance(value, tuple) else (value,)


def unpack(parts: Iterable[Value]) -> Value:
    """One part alone, or a tuple of them: how HLO types the result of reduce, sort, map and scatter."""
    collected = tuple(parts)
    return collected[0] if len(collected) == 1 else collected
