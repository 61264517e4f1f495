"""Questions about windows that passes and code generation share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, WindowDim
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.analysis.values import computation_kind

PLAIN = WindowDim(1)


def windowed(window: tuple[WindowDim, ...]) -> list[int]:
    """Dims along which the window does anything."""
    return [axis for axis, dim in enumerate(window) if dim != PLAIN]


def is_running(dim: WindowDim, size: int) -> bool:
    """Whether the window holds all of the ``size`` elements up to each one, or from each one on."""
    n = size - 1
    return n > 0 and dim in (WindowDim(size, pad_low=n), WindowDim(size, pad_high=n))


def trimmed(dim: WindowDim, size: int) -> WindowDim:
    """``dim``, over ``size`` elements, without places that lie in the padding for all windows."""
    gap, extent = dim.rhs_dilation, (size - 1) * dim.lhs_dilation + 1
    last = extent + dim.pad_low + dim.pad_high - (dim.size - 1) * gap - 1
    if size == 0 or last < 0:
        return dim
    front = min(max(-(-(dim.pad_low - last // dim.stride * dim.stride) // gap), 0), dim.size - 1)
    low = dim.pad_low - front * gap
    back = min(max(dim.size - front - -(-(extent + low) // gap), 0), dim.size - front - 1)
    high = dim.pad_high - back * gap
    return replace(dim, size=dim.size - front - back, pad_low=low, pad_high=high)


def running_axis(op: hlo.ReduceWindowOp) -> int | None:
    """The one dim along which ``op`` is a running fold; None when it is another window."""
    axes = windowed(op.window.data)
    dims = hlo.shape_of(op.operands[0]).dims
    return axes[0] if len(axes) == 1 and is_running(op.window.data[axes[0]], dims[axes[0]]) else None


@dataclass(frozen=True, slots=True)
class Selection:
    """A select-and-scatter that one kernel does: the comparison that keeps an element, and the combiner."""

    keeps: str
    """``GE``, ``GT``, ``LE`` or ``LT``."""
    kind: str


def selection(op: hlo.SelectAndScatterOp, module: HloModule) -> Selection | None:
    """None where code generation has no kernel: computations of their own, dilation, windows along many dims."""
    compare = defining_op((body := module.computation(op.to_apply.data[0])).root)
    kind = computation_kind(module.computation(op.to_apply.data[1]))
    if not isinstance(compare, hlo.CompareOp) or compare.prev_op is not None:
        return None
    direct, swapped = (
        tuple(compare.operands) == tuple(body.block.args),
        {"GE": "LE", "GT": "LT", "LE": "GE", "LT": "GT"},
    )
    if not direct and tuple(compare.operands) != tuple(reversed(body.block.args)):
        return None
    direction = compare.direction.data
    if direction not in swapped or compare.comparison_type.data == "TOTALORDER":
        return None
    if kind not in ("add", "multiply", "maximum", "minimum") or op.shape.dtype == "pred":
        return None
    window = op.window.data
    if any(dim.lhs_dilation != 1 or dim.rhs_dilation != 1 for dim in window) or not windowed(window):
        return None
    axes = runs(window)
    if axes and axes[0] is None:
        axes = axes[1:]
    if len(axes) > MAX_FREE or any(axis is not None for axis in axes[MAX_WINDOWED:]):
        return None
    return Selection(direction if direct else swapped[direction], kind)


MAX_FREE = 4
"""Free dims of an operand of an instruction."""
MAX_WINDOWED = 3
"""Dims with a window that the instruction takes; its eight constants hold two for each."""


def runs(window: Sequence[WindowDim]) -> list[int | None]:
    """The dims with a window, and None for every run of dims without one."""
    found: list[int | None] = []
    for axis, dim in enumerate(window):
        if dim != PLAIN:
            found.append(axis)
        elif not found or found[-1] is not None:
            found.append(None)
    return found
