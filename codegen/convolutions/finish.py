"""How the sums of a convolution leave PSUM: as they are, or through the ops of an epilogue."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from neuronx_cc.codegen.convolutions.finite import FiniteSums
from neuronx_cc.codegen.convolutions.schedule import between_buffers
from neuronx_cc.codegen.dots.schedule import between_name
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.epilogues.chain import Ready
from neuronx_cc.ir.errors import Loc

Leaving = tuple[Block, Block, Sequence[int], Sequence[Block]]
"""What is made, of which bank of sums, their sizes, and what the epilogue reads beside."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Takes the sums of one convolution."""

    emitter: Emitter
    own: tuple[Emitter, ...]
    """Of the epilogue, for each of the banks that are interleaved."""
    tiles: Tiles
    finite: FiniteSums | None
    """Where groups share products: whether that spoiled any."""
    epilogue: Ready | None
    loc: Loc
    """Of the convolution."""

    @property
    def together(self) -> int:
        """Banks that are interleaved, at most."""
        return len(self.own)

    def leave(self, several: Sequence[Leaving]) -> None:
        """Finish several banks of sums, at most as many as are interleaved: step by step."""
        chains = []
        for slot, (target, bank, sizes, arrays) in enumerate(several):
            if self.finite is not None:
                self.finite.look(bank)
            sums = bank.of((bank.dims[0], *dense(sizes, "f32")))
            if self.epilogue is None:
                self.emitter.copy(target, sums)
            else:
                between = partial(self._between, slot, len(several) > 1)
                chains.append(self.epilogue.steps(self.own[slot], between, target, sums, arrays, 1.0))
        deque(zip_longest(*chains), 0)
        self.emitter.builder.mark(self.loc)

    def _between(self, slot: int, several: bool, number: int, like: Block, dtype: str) -> Block:
        sizes = [atom.size for atom in like.dims[1:]]
        name, buffers = between_name(slot, number), between_buffers(slot, self.together)
        return self.tiles.tile(dtype, sizes, like.dims[0].size, name, buffers, several)
