"""How the sums of a convolution leave PSUM: as they are, or through the ops of an epilogue."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.dots.schedule import EPILOGUE_BUFFERS, between_name
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.epilogues.chain import Ready
from neuronx_cc.ir.errors import Loc


@dataclass(frozen=True, slots=True)
class Finish:
    """Takes the sums of one convolution."""

    emitter: Emitter
    own: Emitter
    """Of the epilogue."""
    tiles: Tiles
    finite: FiniteSums | None
    """Where groups share products: whether that spoiled any."""
    epilogue: Ready | None
    loc: Loc
    """Of the convolution."""

    def leave(self, target: Block, bank: Block, sizes: Sequence[int], arrays: Sequence[Block]) -> None:
        """Make ``target`` of a bank of sums, which are of ``sizes``, and of what the epilogue reads beside."""
        if self.finite is not None:
            self.finite.look(bank)
        sums = bank.of((bank.dims[0], *dense(sizes, "f32")))
        if self.epilogue is None:
            self.emitter.copy(target, sums)
            return
        deque(self.epilogue.steps(self.own, self._between, target, sums, arrays, 1.0), 0)
        self.emitter.builder.mark(self.loc)

    def _between(self, number: int, like: Block, dtype: str) -> Block:
        sizes = [atom.size for atom in like.dims[1:]]
        return self.tiles.tile(dtype, sizes, like.dims[0].size, between_name(0, number), EPILOGUE_BUFFERS)
