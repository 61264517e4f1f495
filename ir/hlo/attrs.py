"""Attributes and types of the hlo dialect: one hashable Python value each (see the xDSL notes on cost)."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from xdsl.ir import Attribute, Data, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.types import Shape, shape

T = TypeVar("T")


class _ValueAttr(Data[T], Generic[T]):
    """Prints its value; the dialect's parsable text form is HLO text, not MLIR syntax."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> T:
        raise NotImplementedError("hlo IR is read from HLO text; see hlo_import")

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


@irdl_attr_definition
class ArrayType(_ValueAttr[Shape], TypeAttribute):
    """An array type; ``.data`` is its ``Shape``. Obtain through ``array_type`` (interned)."""

    name = "hlo.array"


@irdl_attr_definition
class TupleType(_ValueAttr[tuple[Attribute, ...]], TypeAttribute):
    """A tuple of types. Obtain through ``tuple_type`` (interned)."""

    name = "hlo.tuple_type"


@irdl_attr_definition
class TokenType(_ValueAttr[str], TypeAttribute):
    """The token type; ``.data`` is always ``"token"``."""

    name = "hlo.token"


TOKEN = TokenType("token")


@cache
def array_type(dtype: str, dims: tuple[int, ...]) -> ArrayType:
    return ArrayType(shape(dtype, dims))


@cache
def tuple_type(elements: tuple[Attribute, ...]) -> TupleType:
    return TupleType(elements)


@irdl_attr_definition
class IntAttr(_ValueAttr[int]):
    name = "hlo.int"


@irdl_attr_definition
class FloatAttr(_ValueAttr[float]):
    name = "hlo.float"


@irdl_attr_definition
class BoolAttr(_ValueAttr[bool]):
    name = "hlo.bool"


@irdl_attr_definition
class StrAttr(_ValueAttr[str]):
    name = "hlo.str"


@irdl_attr_definition
class IntsAttr(_ValueAttr[tuple[int, ...]]):
    name = "hlo.ints"


@irdl_attr_definition
class StrsAttr(_ValueAttr[tuple[str, ...]]):
    """Names; the called computations of ``call``, ``while``, ``reduce`` and the like."""

    name = "hlo.strs"


@irdl_attr_definition
class GroupsAttr(_ValueAttr[tuple[tuple[int, ...], ...]]):
    """Replica groups, or source-target pairs."""

    name = "hlo.groups"


@irdl_attr_definition
class LocAttr(_ValueAttr[Loc]):
    name = "hlo.loc"


@dataclass(frozen=True, slots=True)
class SliceDim:
    start: int
    limit: int
    stride: int = 1


@irdl_attr_definition
class SliceAttr(_ValueAttr[tuple[SliceDim, ...]]):
    name = "hlo.slice_dims"


@dataclass(frozen=True, slots=True)
class PadDim:
    low: int
    high: int
    interior: int = 0


@irdl_attr_definition
class PaddingAttr(_ValueAttr[tuple[PadDim, ...]]):
    name = "hlo.padding"


@dataclass(frozen=True, slots=True)
class DotDims:
    """Dimension numbers of a dot; result dims are batch, lhs free, rhs free."""

    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()


def ragged_prefix(axis: int, rank: int, batch: tuple[int, ...], contracting: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of an operand of rank ``rank`` along which sizes of groups of a ragged dot along ``axis`` may differ.

    Batch dims, and those of its own kind ahead of ``axis``. Source: jax.lax.ragged_dot_general.
    """
    if axis in batch:
        return batch[: batch.index(axis)]
    free = tuple(dim for dim in range(rank) if dim not in batch and dim not in contracting)
    own = contracting if axis in contracting else free
    return (*batch, *own[: own.index(axis)])


@irdl_attr_definition
class DotDimsAttr(_ValueAttr[DotDims]):
    name = "hlo.dot_dims"


@dataclass(frozen=True, slots=True)
class WindowDim:
    size: int
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    lhs_dilation: int = 1
    rhs_dilation: int = 1
    reversal: bool = False


@irdl_attr_definition
class WindowAttr(_ValueAttr[tuple[WindowDim, ...]]):
    name = "hlo.window"


@dataclass(frozen=True, slots=True)
class ConvDims:
    """Dimension numbers of a convolution: batch, feature and spatial positions of each array."""

    lhs_batch: int
    lhs_feature: int
    lhs_spatial: tuple[int, ...]
    rhs_input_feature: int
    rhs_output_feature: int
    rhs_spatial: tuple[int, ...]
    out_batch: int
    out_feature: int
    out_spatial: tuple[int, ...]


@irdl_attr_definition
class ConvDimsAttr(_ValueAttr[ConvDims]):
    name = "hlo.conv_dims"


@dataclass(frozen=True, slots=True)
class GatherDims:
    offset_dims: tuple[int, ...] = ()
    collapsed_slice_dims: tuple[int, ...] = ()
    start_index_map: tuple[int, ...] = ()
    index_vector_dim: int = 0
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


@irdl_attr_definition
class GatherDimsAttr(_ValueAttr[GatherDims]):
    name = "hlo.gather_dims"


@dataclass(frozen=True, slots=True)
class ScatterDims:
    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


@irdl_attr_definition
class ScatterDimsAttr(_ValueAttr[ScatterDims]):
    name = "hlo.scatter_dims"


@irdl_attr_definition
class ConstantAttr(_ValueAttr[str]):
    """Digest of an array in the module's constant pool (``ir.constants``)."""

    name = "hlo.constant_ref"


@irdl_attr_definition
class ExtraAttr(_ValueAttr[tuple[tuple[str, str], ...]]):
    """HLO attributes that no pass reads, kept as text so that printing loses nothing."""

    name = "hlo.extra"


Value = Any
