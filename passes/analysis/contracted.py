"""What contractions sum over."""

from neuronx_cc.ir import hlo


def contracted_by(op: hlo.DotOp | hlo.ConvolutionOp, index: int) -> tuple[int, ...]:
    """The dims of an operand of weights that are summed over: of a convolution's kernel all but that of the outputs.
    None of an image, which is padded, or where groups of images meet parts of the kernel.
    """
    if isinstance(op, hlo.DotOp):
        numbers = op.dims.data
        return (numbers.lhs_contracting, numbers.rhs_contracting)[index]
    if index == 0 or op.batch_group_count.data > 1:
        return ()
    return tuple(axis for axis in range(op.shape.rank) if axis != op.dims.data.rhs_output_feature)
