"""What the engines call an operator that HLO, and GpSimd's programs after it, call otherwise."""

ENGINE_NAMES = {
    "and": "bitwise_and",
    "compare-eq": "is_equal",
    "compare-ge": "is_ge",
    "compare-gt": "is_gt",
    "compare-le": "is_le",
    "compare-lt": "is_lt",
    "compare-ne": "not_equal",
    "exponential": "exp",
    "logistic": "sigmoid",
    "maximum": "max",
    "minimum": "min",
    "or": "bitwise_or",
    "shift-left": "logical_shift_left",
    "shift-right-logical": "logical_shift_right",
    "xor": "bitwise_xor",
}
"""HLO opcode, or name in a program -> operator of Vector and Scalar. All others are called alike."""


def engine_name(name: str) -> str:
    """``max`` for ``maximum``, ``add`` for ``add``."""
    return ENGINE_NAMES.get(name, name)
