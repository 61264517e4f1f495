"""What every hlo operation means, in NumPy: the second oracle, and the constant folder.

``REFERENCE[opcode](op, *values)`` for pure ops; ops that call computations or read constants are in ``CALLING``
as ``fn(evaluator, op, *values)``. ``evaluate`` runs a module, ``evaluator(module).apply(op, values)`` one op.
"""

from collections.abc import Callable, Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.ir.reference.compute import COMPUTE, COMPUTE_CALLING
from neuronx_cc.ir.reference.control import CONTROL, CONTROL_CALLING
from neuronx_cc.ir.reference.devices import DEVICES, DEVICES_CALLING
from neuronx_cc.ir.reference.elementwise import ELEMENTWISE
from neuronx_cc.ir.reference.evaluator import Evaluator, Watch
from neuronx_cc.ir.reference.indexing import INDEXING, INDEXING_CALLING
from neuronx_cc.ir.reference.linalg import LINALG
from neuronx_cc.ir.reference.movement import MOVEMENT
from neuronx_cc.ir.reference.random import RANDOM
from neuronx_cc.ir.reference.scans import SCANS_CALLING
from neuronx_cc.ir.reference.values import Array, Value

__all__ = ["CALLING", "REFERENCE", "Array", "Evaluator", "Value", "evaluate", "evaluator"]

REFERENCE: dict[str, Callable[..., Value]] = (
    ELEMENTWISE | MOVEMENT | COMPUTE | INDEXING | LINALG | RANDOM | CONTROL | DEVICES
)
"""Opcode -> ``fn(op, *values)``."""

CALLING: dict[str, Callable[..., Value]] = (
    COMPUTE_CALLING | INDEXING_CALLING | CONTROL_CALLING | SCANS_CALLING | DEVICES_CALLING
)
"""Opcode -> ``fn(evaluator, op, *values)``."""


def evaluator(module: hlo.HloModule) -> Evaluator:
    """An evaluator of ``module``'s computations and ops with the whole table."""
    return Evaluator(module, REFERENCE, CALLING)


def evaluate(module: hlo.HloModule, inputs: Sequence[Array], watch: Watch | None = None) -> list[Array]:
    """The outputs of the entry computation, flat.

    ``inputs`` holds one array per array-typed entry parameter (tuple parameters flattened), of the parameter's dims and
    NumPy type. ``watch(op, value)`` is called after every op of the entry computation, in program order.
    RunError ERUN001 when the inputs do not match.
    """
    supplied = list(inputs)
    entry = module.entry
    arguments = [_take(argument.type, supplied, i) for i, argument in enumerate(entry.block.args)]
    if supplied:
        raise RunError("ERUN001", f"{len(supplied)} more inputs than the {len(inputs) - len(supplied)} expected")
    with one_thread():  # on a busy machine BLAS threads that spin cost several times the work
        return _flatten(evaluator(module).call(entry.computation_name, *arguments, watch=watch))


def _take(type_: hlo.Attribute, supplied: list[Array], parameter: int) -> Value:
    if isinstance(type_, hlo.TupleType):
        return tuple(_take(part, supplied, parameter) for part in type_.data)
    if not isinstance(type_, hlo.ArrayType):
        return None
    if not supplied:
        raise RunError("ERUN001", f"no input for parameter {parameter}, {type_.data}")
    array, expected = np.asarray(supplied.pop(0)), type_.data
    if array.shape != expected.dims or array.dtype != expected.numpy_dtype:
        raise RunError(
            "ERUN001", f"parameter {parameter} is {expected}, input is {array.dtype}[{','.join(map(str, array.shape))}]"
        )
    return array


def _flatten(value: Value) -> list[Array]:
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _flatten(part)]
    return [] if value is None else [value]
