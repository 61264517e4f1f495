"""Contractions, reductions, windows, indexing, sorting, normalisation, linear algebra, random numbers."""

from typing import ClassVar

from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def

from neuronx_cc.ir.hlo.attrs import (
    BoolAttr,
    ConvDimsAttr,
    DotDimsAttr,
    FloatAttr,
    GatherDimsAttr,
    IntAttr,
    IntsAttr,
    ScatterDimsAttr,
    StrAttr,
    StrsAttr,
    WindowAttr,
)
from neuronx_cc.ir.hlo.base import (
    ApplyingOp,
    BinaryOp,
    ContractionOp,
    InRangeOp,
    MovementOp,
    RandomOp,
    UnaryOp,
    VariadicOp,
)


@irdl_op_definition
class DotOp(BinaryOp, ContractionOp):
    """General contraction."""

    name = "hlo.dot"
    dims = prop_def(DotDimsAttr)
    operand_precision = opt_prop_def(StrsAttr)
    algorithm = opt_prop_def(StrAttr)


@irdl_op_definition
class RaggedDotOp(VariadicOp, ContractionOp):
    """Contraction with groups of run-time sizes."""

    name = "hlo.ragged_dot"
    dims = prop_def(DotDimsAttr)
    ragged_dims = prop_def(IntsAttr)
    group_dims = prop_def(IntsAttr)
    operand_precision = opt_prop_def(StrsAttr)


@irdl_op_definition
class ScaledDotOp(VariadicOp, ContractionOp):
    """Block-scaled contraction."""

    name = "hlo.scaled_dot"
    dims = prop_def(DotDimsAttr)


@irdl_op_definition
class ConvolutionOp(BinaryOp, ContractionOp):
    """General convolution."""

    name = "hlo.convolution"
    window = prop_def(WindowAttr)
    dims = prop_def(ConvDimsAttr)
    feature_group_count = prop_def(IntAttr)
    batch_group_count = prop_def(IntAttr)
    operand_precision = opt_prop_def(StrsAttr)
    algorithm = opt_prop_def(StrAttr)
    """What the pass ``auto_cast`` has FP32 operands rounded to, as a dot's. Not part of HLO text."""


@irdl_op_definition
class ReduceOp(VariadicOp, ApplyingOp):
    """n operands then n initial values, folded over ``dimensions`` by ``to_apply``."""

    name = "hlo.reduce"
    dimensions = prop_def(IntsAttr)
    kind = opt_prop_def(StrAttr)
    """What ``to_apply`` is, where the pass ``decompose`` recognises it.

    ``add``, ``multiply``, ``maximum``, ``minimum``, ``and``, ``or``, ``xor``; ``argmax`` or ``argmin`` of (values,
    indices), where the first NaN wins and equal values give the lowest index; ``argmax_no_nan`` and ``argmin_no_nan``,
    which leave open what a NaN does. Not part of HLO text.
    """


@irdl_op_definition
class ReduceWindowOp(VariadicOp, ApplyingOp):
    """n operands then n initial values, folded over windows by ``to_apply``."""

    name = "hlo.reduce_window"
    window = prop_def(WindowAttr)


@irdl_op_definition
class SelectAndScatterOp(VariadicOp, ApplyingOp):
    """operand, source, initial value: adds each source element where ``to_apply[0]`` selects in its window."""

    name = "hlo.select_and_scatter"
    window = prop_def(WindowAttr)
    padding = opt_prop_def(StrAttr)
    """``lowest`` where ``expand_select_and_scatter`` took in a pad with minus infinity: the padding may be selected,
    and what goes there is dropped. Not part of HLO text."""


@irdl_op_definition
class MapOp(VariadicOp, ApplyingOp):
    """``to_apply`` on the operands' elements."""

    name = "hlo.map"


@irdl_op_definition
class ScanOp(VariadicOp):
    """``to_apply`` on slices of arrays and on carries, which the last ``num_carries`` operands are at first."""

    name = "hlo.scan"
    dimension = prop_def(IntAttr)
    num_carries = prop_def(IntAttr)
    is_reverse = prop_def(BoolAttr)
    to_apply = prop_def(StrsAttr)


@irdl_op_definition
class SortOp(VariadicOp, ApplyingOp, InRangeOp):
    """Sorts the operands together along ``dimension`` by the comparator ``to_apply``."""

    name = "hlo.sort"
    dimension = prop_def(IntAttr)
    is_stable = prop_def(BoolAttr)
    keys = opt_prop_def(IntAttr)
    """How many operands, the first ones, ``to_apply`` compares, upwards one after the other (pass ``expand_sort``).

    The operands are then s32, their last dim is sorted, and the sort is stable. Not part of HLO text.
    """
    blocks = opt_prop_def(IntAttr)
    """Partitions on which a row goes on, where it is too long for one."""


@irdl_op_definition
class TopkOp(UnaryOp, InRangeOp):
    """The k largest (or smallest) of the last dim, with indices."""

    name = "hlo.topk"
    k = prop_def(IntAttr)
    largest = prop_def(BoolAttr)


@irdl_op_definition
class GatherOp(BinaryOp, MovementOp):
    """lhs operand, rhs start indices."""

    name = "hlo.gather"
    PLACES: ClassVar[int | None] = 1
    dims = prop_def(GatherDimsAttr)
    slice_sizes = prop_def(IntsAttr)
    indices_are_sorted = prop_def(BoolAttr)


@irdl_op_definition
class ScatterOp(VariadicOp, ApplyingOp):
    """n operands, indices, n updates, combined by ``to_apply``."""

    name = "hlo.scatter"
    dims = prop_def(ScatterDimsAttr)
    indices_are_sorted = prop_def(BoolAttr)
    unique_indices = prop_def(BoolAttr)


class BatchNormOp(VariadicOp):
    """Normalises over all dims but one."""

    epsilon = prop_def(FloatAttr)
    feature_index = prop_def(IntAttr)


@irdl_op_definition
class BatchNormTrainingOp(BatchNormOp):
    """operand, scale, offset -> (output, mean, variance)."""

    name = "hlo.batch_norm_training"


@irdl_op_definition
class BatchNormInferenceOp(BatchNormOp):
    """operand, scale, offset, mean, variance -> output."""

    name = "hlo.batch_norm_inference"


@irdl_op_definition
class BatchNormGradOp(BatchNormOp):
    """operand, scale, mean, variance, grad_output -> (grad_operand, grad_scale, grad_offset)."""

    name = "hlo.batch_norm_grad"


@irdl_op_definition
class CholeskyOp(UnaryOp):
    """Cholesky factor."""

    name = "hlo.cholesky"
    lower = prop_def(BoolAttr)


@irdl_op_definition
class TriangularSolveOp(BinaryOp):
    """Solves a triangular system."""

    name = "hlo.triangular_solve"
    left_side = prop_def(BoolAttr)
    lower = prop_def(BoolAttr)
    unit_diagonal = prop_def(BoolAttr)
    transpose_a = prop_def(StrAttr)


@irdl_op_definition
class FftOp(UnaryOp):
    """Fourier transform of the trailing dims."""

    name = "hlo.fft"
    fft_type = prop_def(StrAttr)
    fft_length = prop_def(IntsAttr)


@irdl_op_definition
class RngOp(VariadicOp, RandomOp):
    """Random numbers of a distribution with the operands as parameters."""

    name = "hlo.rng"
    distribution = prop_def(StrAttr)


@irdl_op_definition
class RngBitGeneratorOp(UnaryOp, RandomOp):
    """state -> (state, random bits), or the bits alone."""

    name = "hlo.rng_bit_generator"
    algorithm = prop_def(StrAttr)


@irdl_op_definition
class RngGetAndUpdateStateOp(VariadicOp, RandomOp):
    """Returns the global state and adds ``delta``."""

    name = "hlo.rng_get_and_update_state"
    delta = prop_def(IntAttr)


@irdl_op_definition
class ShuffleOp(VariadicOp):
    """Moves elements within groups."""

    name = "hlo.shuffle"
