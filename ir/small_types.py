"""Element types that the core has not, which are computed in others. ``list-operators`` reads this: no imports."""

COMPUTED = {
    **{"s2": "s8", "u2": "u8", "s4": "s8", "u4": "u8"},
    **dict.fromkeys(("f8e4m3fn", "f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e3m4"), "f32"),
}
"""Type -> the one that ops compute it in (``passes.widen_small_types``); memory holds one element a byte."""
