"""The greater and the lesser of numbers as IEEE 754-2019 and HLO have them: of two zeros -0 is the lesser; NaN wins.

``np.maximum`` and ``np.minimum`` may give either zero. ``maximum`` and ``minimum`` here are called like them, on arrays
of any real type, and have the methods of a ufunc that this compiler uses.
"""

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class Extreme:
    """``maximum`` or ``minimum``: a ufunc, and what makes a sign of signs where the result is zero.

    Where a maximum is zero no operand is a positive number, so that it is -0 only if all operands have the sign.
    """

    def __init__(self, ufunc: np.ufunc, signs: np.ufunc, preferred: float):
        self.ufunc, self.signs, self.preferred = ufunc, signs, preferred

    def __call__(self, a: Any, b: Any, out: Array | None = None, where: Any = True) -> Array:
        """The extreme of ``a`` and ``b``; with ``out``, which may be one of them, written there where ``where`` is."""
        result = np.asarray(self.ufunc(a, b))
        if not (np.ndim(b) == 0 and b) and _has_zeros(result):
            self._mended(result, self.signs(np.signbit(a), np.signbit(b)))
        if out is None:
            return result
        np.copyto(out, result, where=where)
        return out

    def reduce(self, x: Array, axis: Any = 0, keepdims: bool = False, dtype: Any = None) -> Array:
        """The extreme along ``axis``, a dim or several; ``dtype`` is that of ``x``."""
        result = np.asarray(self.ufunc.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype))
        if not _has_zeros(result):
            return result
        return self._mended(result, np.asarray(self.signs.reduce(np.signbit(x), axis=axis, keepdims=keepdims)))

    def accumulate(self, x: Array, axis: int = 0, dtype: Any = None) -> Array:
        """The running extreme along ``axis``."""
        result: Array = self.ufunc.accumulate(x, axis=axis, dtype=dtype)
        return self._mended(result, self.signs.accumulate(np.signbit(x), axis=axis)) if _has_zeros(result) else result

    def at(self, target: Array, places: Any, updates: Any) -> None:
        """Makes each element of ``target`` at ``places`` the extreme of itself and its updates."""
        before = target[places]
        self.ufunc.at(target, places, updates)
        after = target[places]
        if not _has_zeros(after):
            return
        signs = self.signs(np.signbit(before), np.signbit(np.broadcast_to(updates, before.shape)))
        mended = (after == 0) & (signs == np.signbit(self.preferred))
        arrays = np.broadcast_arrays(*places) if isinstance(places, tuple) else [places]
        target[tuple(array[mended] for array in arrays)] = self.preferred

    def _mended(self, result: Array, negative: Array) -> Array:
        """``result``, which is written to."""
        word, below = np.dtype(f"u{result.itemsize}"), np.signbit(self.preferred)
        wanted = (negative if below else ~negative) & (result == 0)
        # a copy through a mask of chance would take ten times as long
        sign, bits = np.left_shift(wanted.astype(word), word.type(8 * word.itemsize - 1)), result.view(word)
        np.bitwise_or(bits, sign, out=bits) if below else np.bitwise_and(bits, ~sign, out=bits)
        return result


def _has_zeros(x: Array) -> bool:
    return x.dtype.name.startswith(("float", "bfloat")) and not np.all(x)


maximum = Extreme(np.maximum, np.logical_and, 0.0)
minimum = Extreme(np.minimum, np.logical_or, -0.0)
