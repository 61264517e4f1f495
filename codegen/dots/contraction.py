"""A contraction that is to be placed, and the memory of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuronx_cc.codegen.dots.problem import DECODED, Home, Problem, Scale, Staged, order_of
from neuronx_cc.codegen.dots.table import Listed
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.epilogues.chain import Chain
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream


@dataclass(frozen=True, eq=False)
class Contraction:
    """A kernel that is to be placed: the op, and what it adds to the sums."""

    op: hlo.DotOp
    result: hlo.SSAValue
    step: int
    bias: hlo.SSAValue | None = None
    """A row that TensorE adds."""
    chain: Chain | None = None
    """What is computed of the sums as they leave PSUM."""

    @property
    def arrays(self) -> tuple[hlo.SSAValue, ...]:
        """What the chain reads beside the sums."""
        return () if self.chain is None else self.chain.arrays

    @cached_property
    def _orders(self) -> tuple[tuple[list[int], list[int], list[int]], ...]:
        return tuple(order_of(self.op, index) for index in (0, 1))

    @cached_property
    def _sizes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        shapes = map(hlo.shape_of, self.op.sources)
        return tuple(
            tuple(tuple(shape.dims[axis] for axis in group) for group in groups)
            for shape, groups in zip(shapes, self._orders, strict=True)
        )

    def order(self, index: int) -> list[int]:
        """Dims of operand ``index``: batch, free, contracted."""
        return [axis for group in self._orders[index] for axis in group]

    def free(self, index: int) -> int:
        """How many free dims an operand has."""
        return len(self._orders[index][1])

    def sizes(self, index: int) -> tuple[tuple[int, ...], ...]:
        """Sizes of the batch, free and contracted dims of an operand."""
        return self._sizes[index]

    def classes(self, view: View, index: int) -> tuple[View, View, View]:
        """A view with the dims of operand ``index`` in order, class by class."""
        batch, free = len(self.op.dims.data.lhs_batch), self.free(index)
        parts = (view.dims[:batch], view.dims[batch : batch + free], view.dims[batch + free :])
        return view.of(parts[0]), view.of(parts[1]), view.of(parts[2])


@dataclass(frozen=True, slots=True)
class Bound:
    """An operand and its memory."""

    value: hlo.SSAValue
    """What is read: a cast of what is given happens as it is loaded."""
    view: View
    """Dims [batch..., free..., contracted...]."""
    data: np.ndarray | None = None
    """The elements of a constant that is still to be laid out; ``view`` says how they lie there."""
    staged: Staged | None = None
    defined: bool = False
    """Whether the program relies on it that none of its codes is NaN."""
    listed: Listed | None = None
    """How its matrices are found in a table."""
    scales: tuple[tuple[View | None, Scale], ...] = ()
    """What its codes are scaled by, with dims like it, if that is no number."""

    @property
    def home(self) -> Home:
        """Where it lies."""
        if self.staged is not None:
            return Home.STAGED
        if self.data is not None:
            return Home.CONSTANT
        return Home.CHIP if self.view.in_sbuf else Home.HBM

    @property
    def is_defined(self) -> bool:
        """Whether these are codes of a constant without NaNs, or of what is given without them."""
        if self.defined:
            return True
        if self.data is None or self.view.dtype not in DECODED:
            return False
        return not np.isnan(self.data.astype(np.float32)).any()

    @property
    def apart(self) -> int:
        """Bytes between matrices that are found in a table; 0 for others."""
        return 0 if self.listed is None else self.listed.pitch

    def taken(self, op: hlo.DotOp, index: int) -> str:
        """The element type in which products take it: that of the operand where its codes are scaled."""
        return hlo.shape_of(op.operands[index]).dtype if self.scales else self.view.dtype

    @property
    def stream(self) -> Stream:
        """What loads it."""
        return Stream.DMA_DYNAMIC if self.listed is not None else load_stream(self.value)


@dataclass(frozen=True, slots=True)
class Placed:
    """A contraction whose arrays all have memory."""

    contraction: Contraction
    problem: Problem
    lhs: Bound
    rhs: Bound
    out: View
    adds: tuple[View, ...]
    """Where what the chain reads lies."""
