"""Bounds of the results of integer ops, from those of their operands: one rule an op, pure functions.

Intervals are exact Python integers, inclusive, before any wrapping; an op on 64-bit integers is meant as the program
has it, whatever it is computed in. ``passes.analysis.ranges`` runs whole modules on them.
"""

from collections.abc import Callable, Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import INTEGERS, SIGNED, bits

Interval = tuple[int, int]

NARROW = {"s64": "s32", "u64": "u32"}
"""64-bit integer type -> the type of its low word."""


def type_range(dtype: str) -> Interval:
    """Smallest and largest value of an integer type or pred."""
    if dtype == "pred":
        return 0, 1
    size = bits(dtype)
    return (-(1 << (size - 1)), (1 << (size - 1)) - 1) if dtype in SIGNED else (0, (1 << size) - 1)


def narrow_range(dtype: str) -> Interval:
    """Range of ``dtype`` after narrowing."""
    return type_range(NARROW.get(dtype, dtype))


def is_integer(value: hlo.SSAValue) -> bool:
    return isinstance(value.type, hlo.ArrayType) and (
        value.type.data.dtype in INTEGERS or value.type.data.dtype == "pred"
    )


def inside(inner: Interval, outer: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def union(parts: Sequence[Interval]) -> Interval:
    return min(part[0] for part in parts), max(part[1] for part in parts)


def _corners(function: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    found = [function(x, y) for x in a for y in b]
    # infinite floats may give a NaN (``passes.analysis.spans``), which ``min`` overlooks
    nowhere = next((x for x in found if x != x), None)
    return (min(found), max(found)) if nowhere is None else (nowhere, nowhere)


# what combines two integers; ``dtype`` is the type of both


def added(a: Interval, b: Interval, dtype: str) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def multiplied(a: Interval, b: Interval, dtype: str) -> Interval:
    return _corners(lambda x, y: x * y, a, b)


def larger(a: Interval, b: Interval, dtype: str) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def smaller(a: Interval, b: Interval, dtype: str) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def conjoined(a: Interval, b: Interval, dtype: str) -> Interval:
    if dtype == "pred":
        return a[0] & b[0], a[1] & b[1]
    bounds = [high for low, high in (a, b) if low >= 0]
    return (0, min(bounds)) if bounds else _spanned(a, b)


def disjoined(a: Interval, b: Interval, dtype: str) -> Interval:
    return (a[0] | b[0], a[1] | b[1]) if dtype == "pred" else _spanned(a, b)


def differing(a: Interval, b: Interval, dtype: str) -> Interval:
    return (0, 1) if dtype == "pred" else _spanned(a, b)


def _spanned(a: Interval, b: Interval) -> Interval:
    """What the bits that both may have make."""
    size = max((~x if x < 0 else x).bit_length() for x in (*a, *b))
    return (-(1 << size) if min(a[0], b[0]) < 0 else 0), (1 << size) - 1


def folded(kind: str, value: Interval, start: Interval, least: int, most: int, dtype: str) -> Interval:
    """A fold of ``start`` and ``least`` to ``most`` elements of ``value``."""
    if most == 0:
        return start
    if kind == "add":
        return (
            start[0] + min(least * value[0], most * value[0]),
            start[1] + max(least * value[1], most * value[1]),
        )
    if kind == "multiply":
        size = max(abs(value[0]), abs(value[1]))
        power = size ** min(most, 65) if size > 1 else size
        largest = max(1, power) * max(abs(start[0]), abs(start[1]))
        return (0 if value[0] >= 0 and start[0] >= 0 else -largest), largest
    combined = ELEMENTWISE[kind](value, start, dtype)
    return combined if least else union([combined, start])


# what other ops give


def quotient(a: Interval, b: Interval, dtype: str) -> Interval:
    """Truncated; by zero -1, or the largest of an unsigned type."""
    if b[0] <= 0 <= b[1]:
        largest = max(1, abs(a[0]), abs(a[1]))
        return (-largest, largest) if dtype in SIGNED else type_range(dtype)
    return _corners(lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), a, b)


def remainder(a: Interval, b: Interval, dtype: str) -> Interval:
    if b[0] <= 0 <= b[1]:
        return min(a[0], 0), max(a[1], 0)
    largest = max(abs(b[0]), abs(b[1])) - 1
    return (max(a[0], -largest) if a[0] < 0 else 0), (min(a[1], largest) if a[1] > 0 else 0)


def _counts(b: Interval, size: int) -> Interval | None:
    """Places by which to shift, where all are fewer than ``size``."""
    return b if b[0] >= 0 and b[1] < size else None


def shifted_left(a: Interval, b: Interval, dtype: str) -> Interval:
    size = bits(dtype)
    counts = _counts(b, size)
    if counts is None:
        return union([_corners(lambda x, y: x << y, a, (0, size - 1)), (0, 0)])
    return _corners(lambda x, y: x << y, a, counts)


def shifted_right(a: Interval, b: Interval, dtype: str) -> Interval:
    """With copies of the sign."""
    if dtype not in SIGNED and a[1] >= 1 << (bits(dtype) - 1):
        return type_range(dtype)
    return _corners(lambda x, y: x >> y, a, _counts(b, bits(dtype)) or (0, bits(dtype)))


def shifted_in_zeros(a: Interval, b: Interval, dtype: str) -> Interval:
    size = bits(dtype)
    counts = _counts(b, size) or (0, size)
    if a[0] >= 0:
        return _corners(lambda x, y: x >> y, a, counts)
    # as unsigned integers, the ones below zero are the largest
    moved = ((1 << size) + a[0] >> counts[1], (1 << size) - 1 >> max(counts[0], 1))
    parts = [(min(moved[0], moved[1]), moved[1]), (0, max(a[1], 0) >> counts[0])]
    return union([*parts, a] if counts[0] == 0 else parts)


def power(a: Interval, b: Interval, dtype: str) -> Interval:
    if b[0] < 0 or b[1] > 64 or max(abs(a[0]), abs(a[1])) <= 1:
        return (-1, 1) if max(abs(a[0]), abs(a[1])) <= 1 else type_range(dtype)
    largest = max(abs(a[0]), abs(a[1])) ** b[1]
    return (-largest if a[0] < 0 else 0), max(1, largest)


def compared(a: Interval, b: Interval, direction: str) -> Interval:
    """Of pred: (1, 1) where it holds for all values, (0, 0) where for none."""
    match direction:
        case "LT":
            return int(a[1] < b[0]), int(a[0] < b[1])
        case "LE":
            return int(a[1] <= b[0]), int(a[0] <= b[1])
        case "EQ":
            return int(a[0] == a[1] == b[0] == b[1]), int(a[0] <= b[1] and b[0] <= a[1])
        case "NE":
            always, never = compared(a, b, "EQ")
            return 1 - never, 1 - always
        case "GT":
            return compared(b, a, "LT")
    return compared(b, a, "LE")


def refined(a: Interval, b: Interval, direction: str) -> Interval:
    """``a`` where the comparison with something in ``b`` holds; ``a`` itself where that cannot be."""
    low, high = a
    if direction in ("LT", "LE"):
        high = min(high, b[1] - (direction == "LT"))
    elif direction in ("GT", "GE"):
        low = max(low, b[0] + (direction == "GT"))
    elif direction == "EQ":
        low, high = max(low, b[0]), min(high, b[1])
    return (low, high) if low <= high else a


MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
OPPOSITE = {"LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT", "EQ": "NE", "NE": "EQ"}


def _abs(a: Interval, dtype: str) -> Interval:
    low, high = a
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _not(a: Interval, dtype: str) -> Interval:
    if dtype == "pred" or dtype not in SIGNED:
        most = type_range(dtype)[1]
        return most - a[1], most - a[0]
    return ~a[1], ~a[0]


def _leading_zeros(a: Interval, dtype: str) -> Interval:
    size = bits(dtype)
    return (0 if a[0] < 0 else size - a[1].bit_length()), (0 if a[1] < 0 else size - max(a[0], 0).bit_length())


ELEMENTWISE: dict[str, Callable[..., Interval]] = {
    "add": added,
    "subtract": lambda a, b, dtype: (a[0] - b[1], a[1] - b[0]),
    "multiply": multiplied,
    "maximum": larger,
    "minimum": smaller,
    "and": conjoined,
    "or": disjoined,
    "xor": differing,
    "divide": quotient,
    "remainder": remainder,
    "shift-left": shifted_left,
    "shift-right-arithmetic": shifted_right,
    "shift-right-logical": shifted_in_zeros,
    "power": power,
    "mulhi": lambda a, b, dtype: _corners(lambda x, y: x * y >> bits(dtype), a, b),
    "negate": lambda a, dtype: (-a[1], -a[0]),
    "abs": _abs,
    "not": _not,
    "sign": lambda a, dtype: (max(-1, min(1, a[0])), max(-1, min(1, a[1]))),
    "popcnt": lambda a, dtype: (0, bits(dtype) if a[0] < 0 else a[1].bit_length()),
    "count-leading-zeros": _leading_zeros,
}
"""Opcode -> the bounds of the result, given those of each operand and the type."""

Bounds = Callable[[hlo.SSAValue], Interval]
Rule = Callable[[Bounds, hlo.HloOp, HloModule], Interval]


def _constant(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    assert isinstance(op, hlo.ConstantOp)
    array = module.constants[op.value.data]
    return int(array.min()), int(array.max())


def _iota(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    assert isinstance(op, hlo.IotaOp)
    return 0, op.shape.dims[op.iota_dimension.data] - 1


def _convert(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    if op.shape.dtype == "pred" or not is_integer(op.operands[0]):
        return type_range(op.shape.dtype)
    return of(op.operands[0])


def _select(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    """Each branch where the predicate, a comparison of what it depends on with something, leads to it."""
    predicate, *branches = op.operands
    always = of(predicate)
    if always[0] == always[1]:
        return of(branches[1 - always[0]])
    test = defining_op(predicate)
    if not isinstance(test, hlo.CompareOp) or not is_integer(test.lhs):
        return union([of(branch) for branch in branches])
    directions = (test.direction.data, OPPOSITE[test.direction.data])
    return union([_where(of, branch, test, way) for branch, way in zip(branches, directions, strict=True)])


def _where(of: Bounds, value: hlo.SSAValue, test: hlo.CompareOp, direction: str) -> Interval:
    """Bounds of ``value``, a side of the comparison or a sum of one and something else, where it comes out so."""
    for side, other, way in ((test.lhs, test.rhs, direction), (test.rhs, test.lhs, MIRRORED[direction])):
        if value is side:
            return refined(of(side), of(other), way)
        op = defining_op(value)
        if isinstance(op, hlo.AddOp) and side in op.operands:
            rest = op.rhs if op.lhs is side else op.lhs
            return added(refined(of(side), of(other), way), of(rest), op.shape.dtype)
    return of(value)


def _add(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    """A sum that only counts where a test of a term says so (``select(i < 0, i + n, i)``) is bounded there."""
    parts = []
    for use in op.results[0].uses:
        user = use.operation
        test = defining_op(user.predicate) if isinstance(user, hlo.SelectOp) and use.index else None
        if not isinstance(test, hlo.CompareOp) or not is_integer(test.lhs):
            return added(of(op.operands[0]), of(op.operands[1]), op.shape.dtype)
        direction = test.direction.data
        parts.append(_where(of, op.results[0], test, direction if use.index == 1 else OPPOSITE[direction]))
    return union(parts) if parts else (0, 0)


def _clamp(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    low, value, high = (of(operand) for operand in op.operands)
    return min(max(value[0], low[0]), high[0]), min(max(value[1], low[1]), high[1])


def _compare(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    assert isinstance(op, hlo.CompareOp)
    if not is_integer(op.lhs):
        return 0, 1
    return compared(of(op.lhs), of(op.rhs), op.direction.data)


def _dot(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval:
    assert isinstance(op, hlo.DotOp | hlo.ConvolutionOp)
    if isinstance(op, hlo.DotOp):
        terms = prod(hlo.shape_of(op.lhs).dims[axis] for axis in op.dims.data.lhs_contracting)
    else:
        rhs = hlo.shape_of(op.rhs)
        terms = rhs.size // max(1, rhs.dims[op.dims.data.rhs_output_feature])
    low, high = multiplied(of(op.lhs), of(op.rhs), op.shape.dtype)
    return terms * min(low, 0), terms * max(high, 0)


RULES: dict[type, Rule] = {
    hlo.ConstantOp: _constant,
    hlo.IotaOp: _iota,
    hlo.ConvertOp: _convert,
    hlo.AddOp: _add,
    hlo.SelectOp: _select,
    hlo.ClampOp: _clamp,
    hlo.CompareOp: _compare,
    hlo.DotOp: _dot,
    hlo.ConvolutionOp: _dot,
}


def bounds(of: Bounds, op: hlo.HloOp, module: HloModule) -> Interval | None:
    """Bounds of ``op``'s result, an integer array, zero where it has no elements; None where no rule knows any."""
    if not op.shape.size:
        return 0, 0
    rule = RULES.get(type(op))
    if rule is not None:
        return rule(of, op, module)
    if isinstance(op, hlo.MovementOp):
        return union([of(operand) for operand in op.operands[: op.PLACES]])
    if isinstance(op, hlo.AllGatherOp | hlo.AllToAllOp | hlo.CollectiveBroadcastOp):
        return of(op.operands[0])
    if op.opcode in ELEMENTWISE:
        return ELEMENTWISE[op.opcode](*map(of, op.operands), op.shape.dtype)
    return None
