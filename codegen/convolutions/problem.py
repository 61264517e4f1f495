"""A convolution as whoever plans it sees it: a frozen value. Equal problems are planned once.

The canonical order is input [batch, features, spatial...], kernel [outputs, inputs of a group, spatial...] and result
[batch, outputs, spatial...]. Groups with few features share a tile: their kernels form one block-diagonal matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from neuronx_cc.codegen.convolutions.axis import Axis
from neuronx_cc.codegen.convolutions.folding import Fold, Folded
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.epilogues.work import Epilogue
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.types import FLOATS, itemsize

FEW_POSITIONS = 4096
"""Elements of an input below which it is loaded feature by feature, however they lie."""

FEW_PIECES = 1024
"""Pieces of a kernel below which it is loaded with the contracted features on the partitions, however it lies."""


class Home(Enum):
    """Where an operand lies."""

    HBM = "HBM"
    CHIP = "SBUF"
    CONSTANT = "constant"
    """To be laid out at compile time, as the schedule wants it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Contracted features: ``chunks`` tiles of ``partitions``; feature = ``start + partition * partition_step
    + chunk * chunk_step``.
    """

    start: int
    partitions: int
    chunks: int
    partition_step: int
    chunk_step: int
    first: int
    """Its first chunk among those of all segments."""

    @property
    def size(self) -> int:
        return self.partitions * self.chunks

    @property
    def neighbours(self) -> int:
        """Features that are neighbours on one partition."""
        return self.chunks if self.chunk_step == 1 else 1


@dataclass(frozen=True, slots=True)
class Contracted:
    """The features that are contracted, on the partitions: ``inputs`` of each group."""

    inputs: int
    segments: tuple[Segment, ...]

    @property
    def packs_partitions(self) -> bool:
        """Whether all features of a group lie side by side on the partitions, and so do those of a pack of groups."""
        return len(self.segments) == 1 and self.segments[0].chunks == 1

    @property
    def chunks(self) -> int:
        return sum(segment.chunks for segment in self.segments)

    def partitions_of_pack(self, groups: int) -> int:
        """Partitions that a pack of ``groups`` groups (or a tile of one) contracts at most."""
        return groups * self.inputs if self.packs_partitions else max(segment.partitions for segment in self.segments)

    def segments_of(self, groups: int) -> tuple[Segment, ...]:
        """The contraction of a pack."""
        return (replace(self.segments[0], partitions=groups * self.inputs),) if self.packs_partitions else self.segments

    def abreast(self, groups: int, pack: int) -> Contracted:
        """All ``groups`` groups as one, of which packs of ``pack`` are the tiles."""
        total, width = groups * self.inputs, pack * self.inputs
        return Contracted(total, _segments(total, width, total // width, False))


def contracted(inputs: int, rows: int, beside: bool = True, short: bool = False) -> list[Contracted]:
    """Tiles of at most ``rows`` of the features of a group, for an input in HBM: equal ones, or full ones and a rest.

    ``beside``: neighbours lie on one partition, which makes longer runs of small images; else on neighbouring ones, so
    that a tile of features is one run of a kernel that is loaded to be transposed. ``short``: there are short runs, for
    which as few partitions as tiles need hold neighbours, or half as many, whose runs are twice as long.
    """
    least, equal = -(-inputs // rows), divisor(inputs, rows)
    tilings = [(equal, inputs // equal)] if equal >= min(inputs, rows // 2) else []
    if inputs > rows:
        tilings.append((rows, inputs // rows))
    if short:
        tilings += [(inputs // chunks, chunks) for chunks in (least, 2 * least) if inputs // chunks >= rows // 4]
    return [Contracted(inputs, _segments(inputs, *tiling, beside)) for tiling in dict.fromkeys(tilings)]


def _segments(inputs: int, partitions: int, chunks: int, beside: bool) -> tuple[Segment, ...]:
    """``chunks`` tiles of ``partitions`` features, and one of those that are left."""
    steps = (chunks, 1) if beside else (1, partitions)
    whole, rest = Segment(0, partitions, chunks, *steps, 0), inputs - partitions * chunks
    return (whole, Segment(inputs - rest, rest, 1, 1, rest, chunks)) if rest else (whole,)


@dataclass(frozen=True, slots=True)
class Operand:
    """An array as it lies: a progression for each dim in canonical order; of features on chip those off the partitions.

    ``partitions``: features on the partitions; 0 in HBM.
    """

    home: Home
    dtype: str
    dims: tuple[Atom, ...]
    partitions: int = 0

    @property
    def on_chip(self) -> bool:
        return self.home is Home.CHIP

    @property
    def stays(self) -> bool:
        """Whether it is the same at all positions."""
        return not any(atom.stride for axis, atom in enumerate(self.dims) if axis != 1)

    def near(self, dim: int) -> bool:
        """Whether neighbours along ``dim`` are neighbours in HBM."""
        return not self.on_chip and self.dims[dim].stride == itemsize(self.dtype)

    def run(self, sizes: tuple[int, ...]) -> int:
        """Bytes of the runs of a box of ``sizes`` elements along each dim, of an array in HBM."""
        run = width = itemsize(self.dtype)
        for atom, size in sorted(zip(self.dims, sizes, strict=True), key=lambda pair: (pair[0].stride, pair[1])):
            if size > 1 and atom.stride == run:
                run *= size
            elif size > 1:
                break
        return max(run, width)


@dataclass(frozen=True)
class Problem:
    """All that plans depend on, but the machine. ``groups`` groups of ``inputs`` and ``outputs`` features each."""

    axes: tuple[Axis, ...]
    """The batch and those of positions."""
    kernel: tuple[int, ...]
    """Kernel positions of each axis of positions."""
    groups: int
    batch_groups: int
    outputs: int
    features: Contracted
    pack: int
    """Groups whose features share a tile, with zeros between them."""
    x: Operand
    w: Operand
    out: Operand
    dtype: str
    """Of the products on TensorE."""
    flags: tuple[str, ...]
    """Of the products: ``tf32`` where TensorE rounds what it multiplies."""
    moves_values: bool
    """Whether TensorE may transpose 16-bit values as such."""
    room: int
    """Bytes of each partition of SBUF in one piece."""
    arrays: tuple[Operand, ...] = ()
    """What the epilogue reads beside the sums, with the dims of ``out``."""
    epilogue: Epilogue | None = None
    fold: Fold | None = None
    """How this follows from ``posed``, if it does."""
    posed: Problem | None = None

    @property
    def given(self) -> Problem:
        """The problem whose kernel and results are the arrays."""
        return self if self.posed is None else self.posed

    @cached_property
    def folded(self) -> Folded | None:
        """The axis that is folded."""
        return None if self.fold is None else Folded(self.given.axes[1 + self.fold.axis], self.fold.count)

    def under(self, fold: Fold | None) -> Problem:
        """What is computed with a fold; itself without one."""
        if fold is None or self.posed is not None:
            return self
        posed = replace(self, pack=fold.pack)
        at, folded = fold.axis, Folded(self.axes[1 + fold.axis], fold.count)
        axes, kernel = list(self.axes), list(self.kernel)

        def seen(lies: Operand) -> Operand:
            dims = list(lies.dims)
            dims[2 + at] = Atom(folded.axis.out, dims[2 + at].stride * fold.count)
            return replace(lies, dims=tuple(dims))

        axes[1 + at], kernel[at] = folded.axis, folded.kernel
        return replace(
            posed,
            axes=tuple(axes),
            kernel=tuple(kernel),
            outputs=self.outputs * fold.count,
            out=seen(self.out),
            arrays=tuple(map(seen, self.arrays)),
            fold=fold,
            posed=posed,
        )

    @property
    def inputs(self) -> int:
        return self.features.inputs

    @property
    def chunks(self) -> int:
        return self.features.chunks

    @cached_property
    def pack_outputs(self) -> int:
        """Output features of a pack."""
        return min(self.pack, self.groups) * self.outputs

    @cached_property
    def packs(self) -> int:
        return -(-self.groups // self.pack)

    @cached_property
    def partitions(self) -> int:
        """Partitions that a pack contracts at most."""
        return self.features.partitions_of_pack(min(self.pack, self.groups))

    @property
    def shares_products(self) -> bool:
        """Whether sums have products with zeros between features."""
        return self.pack > 1 or self.fold is not None

    @cached_property
    def positions_on_partitions(self) -> bool:
        """Whether positions, not output features, lie on the partitions of a result tile: features are neighbours."""
        return self.out.near(1) and self.groups * self.outputs > 1

    def repeats(self, array: Operand) -> bool:
        """Whether a tile of results has one value a partition of an array."""
        return not array.dims[1].stride if self.positions_on_partitions else array.stays

    def loaded(self, array: Operand) -> str:
        """The element type of its tiles: one number a partition is an operand in FP32 only."""
        return "f32" if self.repeats(array) and array.dtype in FLOATS else array.dtype

    @cached_property
    def fast(self) -> bool:
        """Whether TensorE transposes values as such."""
        return self.moves_values and itemsize(self.dtype) < 4

    @cached_property
    def kernel_is_direct(self) -> bool:
        """Whether the kernel is loaded with the contracted features on the partitions."""
        if self.w.home is Home.CONSTANT:
            return False
        far = self.w.dims[1].stride > self.w.dims[0].stride
        if self.groups > 1:
            # groups of one output are loaded element by element either way, these as one transfer
            return far and self.outputs > 1
        nbytes = self.outputs * self.inputs * self.taps * itemsize(self.w.dtype)
        return far or nbytes // self.w.run((self.outputs, 1, *self.kernel)) < FEW_PIECES

    @cached_property
    def kernel_is_spread(self) -> bool:
        """Whether the kernels of groups of one input are loaded side by side, and spread over the columns at once."""
        nbytes = self.taps * self.pack_outputs * itemsize(self.dtype)
        return self.w.home is not Home.CONSTANT and self.pack > 1 and self.inputs == 1 and nbytes <= self.room // 3

    @property
    def kernel_in_rows(self) -> bool:
        """Whether outputs are neighbours in such a kernel: positions are loaded onto the partitions, and transposed."""
        return self.w.near(0) and self.groups * self.outputs > 1

    @property
    def kernel_stored(self) -> str:
        """The element type in which the kernel is loaded: 8 bits as they are, for engines to convert. The DMA would
        move them in the wider type.
        """
        return self.w.dtype if self.groups == 1 and itemsize(self.w.dtype) == 1 else self.dtype

    @property
    def converts_kernel(self) -> bool:
        return self.kernel_stored != self.dtype

    @cached_property
    def turns_input(self) -> bool:
        """Whether features are neighbours in HBM, so that positions are loaded onto the partitions and transposed."""
        elements = self.batch_groups * self.groups * self.inputs * prod(axis.size for axis in self.axes)
        positions = prod(axis.size for axis in self.axes[1:])
        near = self.x.near(1) and elements // self.batch_groups >= FEW_POSITIONS
        return near and positions > 1 and self.inputs * self.pack >= 4

    @cached_property
    def taps(self) -> int:
        """Kernel positions."""
        return prod(self.kernel)


def operand(view: View, home: Home) -> Operand:
    """How ``view`` lies, whose dims are progressions off the partitions."""
    on_chip = view.partition_atom
    dims = tuple(_progression(atoms) for atoms in view.dims)
    return Operand(home, view.dtype, dims, 0 if on_chip is None else on_chip.size)


def _progression(atoms: tuple[Atom, ...]) -> Atom:
    return next((atom for atom in coalesce(atoms) if not atom.partition), Atom(1, 0))


def stride_of(view: View, axis: int) -> int:
    """Bytes between neighbours along a dim of one progression; 0 for a dim of size 1."""
    return atom_of(view, axis).stride


def atom_of(view: View, axis: int) -> Atom:
    """The progression of a dim (of size 1: stride 0)."""
    atoms = coalesce(view.dims[axis])
    return atoms[0] if atoms else Atom(1, 0)
