"""Where a program leaves what its kernels make, for who looks at it there."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from neuronx_cc.codegen.emission.views import View
from neuronx_cc.ir import hlo


@dataclass(frozen=True, slots=True)
class Left:
    """What a kernel has left in memory."""

    record: int
    """The one after the kernel."""
    value: hlo.SSAValue
    view: View


@dataclass(frozen=True, slots=True)
class State:
    """Where the state of a loop lies ahead of each iteration."""

    record: int
    """The first one of an iteration."""
    loop: hlo.WhileOp
    views: Mapping[int, View]
    """Of the elements that iterations change."""
    filled: Set[int]
    """Those of which the iterations write all, and which are undefined ahead of the first."""
