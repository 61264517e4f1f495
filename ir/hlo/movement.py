"""Constants, shape changes and data movement."""

from typing import ClassVar

from xdsl.irdl import irdl_op_definition, prop_def

from neuronx_cc.ir.hlo.attrs import ConstantAttr, IntAttr, IntsAttr, PaddingAttr, SliceAttr
from neuronx_cc.ir.hlo.base import BinaryOp, MovementOp, NullaryOp, UnaryOp, VariadicOp, ViewOp


@irdl_op_definition
class ConstantOp(NullaryOp):
    """A literal; ``value`` names an array of the constant pool."""

    name = "hlo.constant"
    value = prop_def(ConstantAttr)


@irdl_op_definition
class IotaOp(NullaryOp):
    """Counts along ``iota_dimension``."""

    name = "hlo.iota"
    iota_dimension = prop_def(IntAttr)


@irdl_op_definition
class BitcastOp(UnaryOp, ViewOp):
    """Same bytes, other shape."""

    name = "hlo.bitcast"


@irdl_op_definition
class BitcastConvertOp(UnaryOp):
    """Same bits, other element type; a trailing dim absorbs a change of width."""

    name = "hlo.bitcast_convert"


@irdl_op_definition
class BroadcastOp(UnaryOp, ViewOp):
    """Operand dim i becomes result dim ``dimensions[i]``; other result dims repeat."""

    name = "hlo.broadcast"
    dimensions = prop_def(IntsAttr)


@irdl_op_definition
class ConcatenateOp(VariadicOp, MovementOp):
    """Operands one after another along ``dimension``."""

    name = "hlo.concatenate"
    dimension = prop_def(IntAttr)


@irdl_op_definition
class DynamicReshapeOp(VariadicOp):
    """Reshape to run-time sizes (refused: static shapes only)."""

    name = "hlo.dynamic_reshape"


@irdl_op_definition
class DynamicSliceOp(VariadicOp, MovementOp):
    """Operand, then one scalar start index a dim, clamped so that the slice fits."""

    name = "hlo.dynamic_slice"
    PLACES: ClassVar[int | None] = 1
    dynamic_slice_sizes = prop_def(IntsAttr)


@irdl_op_definition
class DynamicUpdateSliceOp(VariadicOp, MovementOp):
    """Operand, update, then one scalar start index a dim, clamped so that the update fits."""

    name = "hlo.dynamic_update_slice"
    PLACES: ClassVar[int | None] = 2


@irdl_op_definition
class GetDimensionSizeOp(UnaryOp):
    """Size of one dim as s32."""

    name = "hlo.get_dimension_size"
    dimension = prop_def(IntAttr)


@irdl_op_definition
class SetDimensionSizeOp(BinaryOp):
    """Marks a dim as dynamic (refused: static shapes only)."""

    name = "hlo.set_dimension_size"
    dimension = prop_def(IntAttr)


@irdl_op_definition
class PadOp(BinaryOp, MovementOp):
    """lhs padded with the scalar rhs; negative amounts crop."""

    name = "hlo.pad"
    padding = prop_def(PaddingAttr)


@irdl_op_definition
class ReshapeOp(UnaryOp, ViewOp):
    """Same elements in row-major order, other dims."""

    name = "hlo.reshape"


@irdl_op_definition
class ReverseOp(UnaryOp, ViewOp):
    """Reverses the order along ``dimensions``."""

    name = "hlo.reverse"
    dimensions = prop_def(IntsAttr)


@irdl_op_definition
class SliceOp(UnaryOp, ViewOp):
    """Static strided slice."""

    name = "hlo.slice"
    slice = prop_def(SliceAttr)


@irdl_op_definition
class TransposeOp(UnaryOp, ViewOp):
    """Result dim i is operand dim ``dimensions[i]``."""

    name = "hlo.transpose"
    dimensions = prop_def(IntsAttr)
