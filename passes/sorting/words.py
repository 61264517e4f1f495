"""Elements of sorts as 32-bit words: order-preserving integers of keys, bit patterns of what travels along.

``Words.key`` maps any element type to s32 such that integers compare as the elements do; ``restored`` undoes it.
``packed`` and ``unpacked`` carry a type's bits in an s32.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE
from neuronx_cc.passes.expansions.build import Build, Value

LOWEST = -(1 << 31)
HIGHEST = (1 << 31) - 1
INFINITY = 0x7F800000
QUIET_NAN = 0x7FC00000
"""Bit patterns of FP32."""


class Words:
    """Builds words above the builder's anchor."""

    def __init__(self, build: Build):
        self.build = build

    def key(self, value: Value, upwards: bool = True, total_order: bool = True, canonical: bool = False) -> Value:
        """s32 that compare as ``value``'s elements do (see ``sort_keys.Key``); complemented unless ``upwards``."""
        b = self.build
        dtype = hlo.shape_of(value).dtype
        if dtype in FLOATS:
            bits = self.cast(b.convert(value, "f32"), "s32")
            word = self._ordered(bits)
            size = b.each(hlo.AndOp, bits, b.number_like(HIGHEST, bits))
            if canonical or not total_order:
                zero = b.number_like(0, bits)
                word = b.select(b.compare(size, zero, "EQ"), zero, word)
            if canonical:
                nan = b.compare(size, b.number_like(INFINITY, bits), "GT")
                word = b.select(nan, b.number_like(QUIET_NAN, bits), word)
        elif dtype == "u32":
            word = self.cast(value, "s32")
            word = b.each(hlo.XorOp, word, b.number_like(LOWEST, word))
        else:
            word = b.convert(value, "s32")
        return word if upwards else b.each(hlo.NotOp, word)

    def restored(self, word: Value, dtype: str, upwards: bool = True) -> Value:
        """The elements whose ``key`` (in total order) is ``word``."""
        b = self.build
        if not upwards:
            word = b.each(hlo.NotOp, word)
        if dtype in FLOATS:
            return b.convert(self.cast(self._ordered(word), "f32"), dtype)
        if dtype == "u32":
            return self.cast(b.each(hlo.XorOp, word, b.number_like(LOWEST, word)), "u32")
        return b.convert(word, dtype)

    def _ordered(self, bits: Value) -> Value:
        """Bit patterns of floats as integers in their order, and back."""
        b = self.build
        sign = b.each(hlo.ShiftRightArithmeticOp, bits, b.number_like(31, bits))
        return b.each(hlo.XorOp, bits, b.each(hlo.AndOp, sign, b.number_like(HIGHEST, bits)))

    def packed(self, value: Value) -> Value:
        """The bits of ``value`` in s32."""
        b = self.build
        dtype = hlo.shape_of(value).dtype
        size = NUMPY_DTYPE[dtype].itemsize
        if size == 4:
            return self.cast(value, "s32")
        if dtype in FLOATS:
            value = self.cast(value, f"u{8 * size}")
        return b.convert(value, "s32")

    def unpacked(self, word: Value, dtype: str) -> Value:
        """What ``packed`` made ``word`` of."""
        b = self.build
        size = NUMPY_DTYPE[dtype].itemsize
        if size == 4:
            return self.cast(word, dtype)
        if dtype in FLOATS:
            return self.cast(b.convert(word, f"u{8 * size}"), dtype)
        return b.convert(word, dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """The same bits as another type of the same width."""
        shape = hlo.shape_of(value)
        return value if shape.dtype == dtype else self.build.op(hlo.BitcastConvertOp, (value,), dtype, shape.dims)

    def before(self, left: Sequence[Value], right: Sequence[Value]) -> Value:
        """Whether the s32 ``left`` come before ``right``, compared one after the other."""
        b = self.build
        result: Value | None = None
        for a, c in reversed(list(zip(left, right, strict=True))):
            less = b.compare(a, c, "LT")
            if result is None:
                result = less
            else:
                result = b.each(hlo.OrOp, less, b.each(hlo.AndOp, b.compare(a, c, "EQ"), result))
        assert result is not None, "a sort has a key"
        return result

    def sorted(self, words: Sequence[Value], keys: int, blocks: int = 1) -> list[Value]:
        """The s32 ``words`` [rows, n], sorted by the first ``keys`` of them, stably: an op that code generation has."""
        b = self.build
        types = tuple(word.type for word in words)
        properties: dict[str, hlo.Attribute] = {
            "dimension": hlo.IntAttr(1),
            "is_stable": hlo.BoolAttr(True),
            "to_apply": hlo.StrsAttr((self._comparator(len(words), keys),)),
            "keys": hlo.IntAttr(keys),
            "blocks": hlo.IntAttr(blocks),
        }
        if len(words) == 1:
            return [b.typed(hlo.SortOp, words, types[0], **properties)]
        together = b.typed(hlo.SortOp, words, hlo.tuple_type(types), **properties)
        return [b.element(together, index) for index in range(len(words))]

    def _comparator(self, words: int, keys: int) -> str:
        """Name of the computation that compares the first ``keys`` of ``words`` s32 elements."""
        b = self.build
        name = f"upwards.{keys}.of.{words}"
        if all(computation.computation_name != name for computation in b.module.computations()):
            computation, inner = b.computation(name, [hlo.array_type("s32", ())] * (2 * words), shared=True)
            parameters = computation.block.args
            less = Words(inner).before(parameters[: 2 * keys : 2], parameters[1 : 2 * keys : 2])
            computation.block.last_op.operands = [less]  # type: ignore[union-attr]
        return name
