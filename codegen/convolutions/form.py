"""What a convolution says, in canonical order: input [batch, features, spatial...], kernel [outputs, inputs of a group,
spatial...] and result [batch, outputs, spatial...].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neuronx_cc.codegen.convolutions.axis import Axis, axis_of, batch_axis
from neuronx_cc.codegen.dots.problem import PE_DTYPES
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import WindowDim
from neuronx_cc.ir.types import FLOATS


@dataclass(frozen=True)
class Form:
    """What the op says, in canonical order."""

    op: hlo.ConvolutionOp

    @cached_property
    def window(self) -> tuple[WindowDim, ...]:
        return tuple(self.op.window.data)

    @cached_property
    def orders(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Dims of input, kernel and result."""
        dims = self.op.dims.data
        return (
            (dims.lhs_batch, dims.lhs_feature, *dims.lhs_spatial),
            (dims.rhs_output_feature, dims.rhs_input_feature, *dims.rhs_spatial),
            (dims.out_batch, dims.out_feature, *dims.out_spatial),
        )

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of those dims."""
        shapes = (hlo.shape_of(self.op.lhs), hlo.shape_of(self.op.rhs), self.op.shape)
        lhs, rhs, out = (tuple(s.dims[d] for d in order) for s, order in zip(shapes, self.orders, strict=True))
        return lhs, rhs, out

    @property
    def batch_groups(self) -> int:
        return int(self.op.batch_group_count.data)

    @property
    def groups(self) -> int:
        return int(self.op.feature_group_count.data) * self.batch_groups

    @property
    def inputs(self) -> int:
        return self.sizes[1][1]

    @property
    def outputs(self) -> int:
        return self.sizes[1][0] // self.groups

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        pairs = zip(self.sizes[0][2:], self.sizes[2][2:], self.window, strict=True)
        batch = batch_axis(self.sizes[0][0] // self.batch_groups)
        return (batch, *(axis_of(size, out, dim) for size, out, dim in pairs))

    @cached_property
    def pe_dtype(self) -> str:
        """Type of the products."""
        lhs, rhs = (hlo.shape_of(value).dtype for value in (self.op.lhs, self.op.rhs))
        return lhs if lhs == rhs and lhs in PE_DTYPES else "f32"

    @property
    def may_be_infinite(self) -> bool:
        return bool({hlo.shape_of(self.op.lhs).dtype, hlo.shape_of(self.op.rhs).dtype} & FLOATS)
