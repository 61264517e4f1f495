"""What passes know about a value without running anything: constants, splats, sign."""

from collections import Counter
from typing import Any, TypeGuard

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import FLOATS, INTEGERS, NUMPY_DTYPE, SIGNED

Array = np.ndarray[Any, Any]


def argument_names(entry: hlo.ComputationOp) -> list[str]:
    """What its framework calls each parameter; empty where the module does not say it, or says it of several."""
    named = [entry.parameter_loc(index).op_name for index in range(len(entry.block.args))]
    counts = Counter(named)
    return [name if counts[name] == 1 else "" for name in named]


def constant_of(value: hlo.SSAValue, module: HloModule) -> Array | None:
    """The array of a ``constant`` op, or None."""
    op = defining_op(value)
    return module.constants[op.value.data] if isinstance(op, hlo.ConstantOp) else None


def splat_of(value: hlo.SSAValue, module: HloModule) -> Array | None:
    """The one value (rank 0) that all elements of ``value`` have, when it is a known constant; else None."""
    op = value.owner
    while isinstance(op, hlo.BroadcastOp | hlo.ReshapeOp | hlo.TransposeOp):
        op = op.operand.owner
    if type(op) is not hlo.ConstantOp:
        return None
    array = module.constants[op.value.data]
    if array.size == 1:
        return array.reshape(())
    if array.size and not any(array.strides):
        return np.asarray(array[(0,) * array.ndim])
    return None


def splat_number(value: hlo.SSAValue, module: HloModule) -> float | int | None:
    """``splat_of`` as a Python number; None for complex values too."""
    array = splat_of(value, module)
    if array is None or array.dtype.kind == "c":
        return None
    return array.item() if array.dtype.kind in "biu" else float(array)


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_positive_zero(number: float | int | None) -> bool:
    return number == 0 and not np.signbit(float(number))


def is_negative_zero(number: float | int | None) -> bool:
    return isinstance(number, float) and number == 0 and bool(np.signbit(number))


def lowest(dtype: str) -> float | int | None:
    """The value that ``maximum`` ignores: minus infinity, or the smallest integer. None for complex types."""
    if dtype == "pred" or dtype.startswith("u"):
        return 0
    if is_float(dtype):
        return -np.inf
    if dtype not in INTEGERS:
        return None
    return -(1 << (int(dtype[1:]) - 1))


def highest(dtype: str) -> float | int | None:
    """The value that ``minimum`` ignores: infinity, or the largest integer. None for complex types."""
    if dtype == "pred":
        return 1
    if is_float(dtype):
        return np.inf
    if dtype not in INTEGERS:
        return None
    return (1 << (int(dtype[1:]) - (dtype in SIGNED))) - 1


def is_non_negative(value: hlo.SSAValue, module: HloModule, depth: int = 6) -> bool:
    """Whether no element can be below zero, minus zero or minus infinity (NaN may occur)."""
    number = splat_number(value, module)
    if number is not None:
        return not np.signbit(float(number))
    op = defining_op(value)
    if op is None or depth == 0:
        return False
    match op:
        case hlo.AbsOp() | hlo.ExponentialOp() | hlo.LogisticOp():
            return True
        case hlo.MultiplyOp() if op.lhs is op.rhs:
            return True
        case hlo.MultiplyOp() | hlo.AddOp() | hlo.DivideOp():
            return all(is_non_negative(operand, module, depth - 1) for operand in op.sources)
        case hlo.ReshapeOp() | hlo.BroadcastOp() | hlo.TransposeOp() | hlo.SliceOp() | hlo.ConvertOp():
            return is_float(hlo.shape_of(op.operand).dtype) and is_non_negative(op.operand, module, depth - 1)
        case hlo.ReduceOp() if len(op.sources) == 2:
            kind = combiner_kind(op, module)
            return kind in ("add", "multiply", "maximum", "minimum") and all(
                is_non_negative(operand, module, depth - 1) for operand in op.sources
            )
    return False


def is_normal(number: float, dtype: str) -> bool:
    """Whether ``number`` is a normal number of the float type ``dtype``."""
    import ml_dtypes

    info = ml_dtypes.finfo(NUMPY_DTYPE[dtype])  # type: ignore[no-untyped-call]
    return bool(float(info.smallest_normal) <= abs(number) <= float(info.max))


def is_whole(value: hlo.SSAValue, module: HloModule, depth: int = 6) -> bool:
    """Whether all elements of the float ``value`` are whole numbers, infinite or NaN."""
    number = splat_number(value, module)
    if number is not None:
        return float(number).is_integer()
    op = value.owner
    if isinstance(op, hlo.RoundingOp | hlo.SignOp):
        return True
    if isinstance(op, hlo.ConvertOp) and not is_float(hlo.shape_of(op.operand).dtype):
        return hlo.shape_of(op.operand).dtype in INTEGERS
    keeps = (hlo.ChoosingOp, hlo.ViewOp, hlo.BroadcastOp, hlo.AddOp, hlo.SubtractOp, hlo.MultiplyOp, hlo.ConvertOp)
    if not isinstance(op, keeps) or not depth:
        return False
    operands = op.operands[1:] if isinstance(op, hlo.SelectOp) else op.operands
    return all(is_whole(operand, module, depth - 1) for operand in operands)


def tells_last_bit(value: hlo.SSAValue, depth: int = 4) -> bool:
    """Whether a user of the float ``value``, ``depth`` ops away at most, may tell an error in its last bit."""
    for use in value.uses:
        user = use.operation
        if not isinstance(user, hlo.HloOp):
            continue
        integral = user.opcode == "convert" and not is_float(user.shape.dtype)
        if integral or isinstance(user, hlo.DiscontinuousOp):
            return True
        passes = isinstance(user, hlo.MovementOp | hlo.ChoosingOp | hlo.AddOp | hlo.SubtractOp | hlo.ConvertOp)
        if passes and depth and tells_last_bit(user.results[0], depth - 1):
            return True
    return False


def is_extreme(op: hlo.HloOp, module: HloModule) -> TypeGuard[hlo.ReduceOp]:
    """Whether ``op`` folds one array to the greatest or least of its elements."""
    alone = isinstance(op, hlo.ReduceOp) and len(op.operands) == 2
    return alone and combiner_kind(op, module) in ("maximum", "minimum")


def combiner_kind(op: hlo.HloOp, module: HloModule) -> str:
    """Opcode of a one-op combiner on both parameters (either order), or empty."""
    attr = op.properties.get("to_apply")
    if not isinstance(attr, hlo.StrsAttr) or not attr.data:
        return ""
    return computation_kind(module.computation(attr.data[0]))


def computation_kind(body: hlo.ComputationOp) -> str:
    """``add`` for a computation that adds its two scalar parameters, and so on; else empty."""
    root = defining_op(body.root)
    if root is None or len(body.block.args) != 2 or root.prev_op is not None:
        return ""
    if set(root.operands) != set(body.block.args):
        return ""
    return root.opcode if isinstance(root, hlo.CombinerOp) else ""


def identity_of(kind: str, dtype: str) -> float | int | None:
    """The exact neutral element of a combiner: for float ``add`` that is -0.0. None when there is none."""
    match kind:
        case "add":
            return -0.0 if is_float(dtype) else 0
        case "multiply":
            return 1
        case "maximum":
            return lowest(dtype)
        case "minimum":
            return highest(dtype)
        case "or" | "xor":
            return 0
        case "and" if dtype in INTEGERS or dtype == "pred":
            return -1 if dtype in SIGNED else highest(dtype)
    return None


def same_number(number: float | int | None, other: float | int | None) -> bool:
    """Equal, with the signs of zeros."""
    if number is None or other is None or number != other:
        return False
    return bool(np.signbit(float(number)) == np.signbit(float(other)))
