"""Questions about windows that passes and code generation share."""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import WindowDim

PLAIN = WindowDim(1)


def windowed(window: tuple[WindowDim, ...]) -> list[int]:
    """Dims along which the window does anything."""
    return [axis for axis, dim in enumerate(window) if dim != PLAIN]


def is_running(dim: WindowDim, size: int) -> bool:
    """Whether the window holds all of the ``size`` elements up to each one, or from each one on."""
    n = size - 1
    return n > 0 and dim in (WindowDim(size, pad_low=n), WindowDim(size, pad_high=n))


def running_axis(op: hlo.ReduceWindowOp) -> int | None:
    """The one dim along which ``op`` is a running fold; None when it is another window."""
    axes = windowed(op.window.data)
    dims = hlo.shape_of(op.operands[0]).dims
    return axes[0] if len(axes) == 1 and is_running(op.window.data[axes[0]], dims[axes[0]]) else None
