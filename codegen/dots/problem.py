"""A contraction as whoever plans it sees it: a frozen value. Equal problems are planned once.

``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``, where b, m, n and k are each several dims: those that all arrays
have in common once their views are refined. TensorE wants k on the partitions of both operands; the rows (m) of lhs
land on the partitions of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, cached_property
from math import prod

from neuronx_cc.codegen.dots.table import tells_matrices
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.epilogues.work import Epilogue
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.analysis.stored import equal_chunk

PE_DTYPES = frozenset(["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f8e3m4"])
SMALL_INTEGERS = frozenset(["s8", "u8"])
"""BF16 holds them all, and FP32 their products."""
DECODED = {"f8e4m3fn": 2.0**8}
"""8-bit floats whose codes become FP16 by operators on bits -> how often that makes them smaller: exponents of FP16
have another bias, and an 8-bit float's fit into them as they are. No code is an infinity, and NaN is all ones."""
PARTS, PART = 3, "bf16"
"""FP32 is the sum of so many numbers of this type, exactly: each has eight of its 24 bits."""

PAIR = "bf16"
"""What two neighbouring codes of 8 bits are transposed as (``pairs``)."""
TWO = "u32"
"""What holds both numbers of a pair whose codes are decoded as they leave PSUM."""


class Home(Enum):
    """Where an operand lies."""

    HBM = "HBM"
    CHIP = "SBUF"
    CONSTANT = "constant"
    """To be laid out at compile time, as the schedule wants it."""
    STAGED = "staged"
    """Brought to SBUF with k on the partitions ahead of the loops around."""


class Split(Enum):
    """How FP32 is multiplied in parts (``PARTS``), where the other operand holds nothing but 16-bit numbers."""

    FINITE = "finite"
    """All parts but the first are finite, and the other operand is."""
    NONZERO = "without zeros"
    """The other operand may have infinities, whose products with zeros are no numbers: no part is 0."""
    APART = "apart"
    """The sums of each part are apart, and those of the first alone count where they are infinite."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of k: ``partitions`` elements at a time, in ``steps``, for each index of the other dims of k."""

    start: int
    """First index along the dim on the partitions."""
    partitions: int
    steps: int
    """Along that dim, around the partitions."""
    neighbours: bool = False
    """Whether the steps of a partition follow each other in memory, not those of neighbouring partitions."""

    def strides(self, stride: int) -> tuple[int, int]:
        """Of the partitions and of the steps, in a dim of this stride."""
        return (stride * self.steps, stride) if self.neighbours else (stride, stride * self.partitions)


@dataclass(frozen=True, slots=True)
class Staged:
    """An operand staged whole: for each batch index a block [partitions, chunks, rows] of every segment of k.

    The chunks of all segments follow each other.
    """

    view: View
    """Dims [batch..., free..., contracted...]; the contracted ones say sizes only."""
    segments: tuple[Segment, ...]
    chunk_bytes: int
    """From one chunk to the next."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What the numbers of codes are multiplied by, or what is added or subtracted: a number for each group of a row."""

    opcode: str
    """multiply, subtract or add."""
    stored: str
    """Its element type on chip."""
    dtype: str
    """Of the result."""
    terms: int
    """Of a group."""
    along: int = 0
    """Bytes from one group to the next; 0 where all groups have the same."""
    row: int = 0
    """Bytes from one row to the next."""
    number: float | None = None
    """What it is for all groups and rows."""


@dataclass(frozen=True)
class Operand:
    """One operand: its dims class by class, as they lie."""

    name: str
    """lhs or rhs."""
    home: Home
    stored: str
    """Its element type."""
    dtype: str
    """On TensorE."""
    batch: tuple[Atom, ...]
    free: tuple[Atom, ...]
    contracted: tuple[Atom, ...]
    direct: bool = False
    """Whether few rows come straight to the partitions, though terms are their neighbours in memory."""
    defined: bool = False
    """Whether it is known that none of its codes is NaN."""
    split: Split | None = None
    """None for what is multiplied as it is."""
    paired: bool = False
    """Whether TensorE transposes its codes two at a time, neighbours along the last dim of k."""
    apart: int = 0
    """Bytes from one matrix to the next of those that lie in a table, by number; 0 for others."""
    scales: tuple[Scale, ...] = ()
    """What its codes are made numbers by as they come, the first one first."""

    def tells_matrices(self, dim: int) -> bool:
        """Whether indices along a free dim tell which matrix of a table."""
        return dim >= 0 and tells_matrices(self.free[dim], self.apart)

    @cached_property
    def parts(self) -> int:
        """How many TensorE multiplies."""
        return PARTS if self.split else 1

    @cached_property
    def on_chip(self) -> bool:
        return self.home in (Home.CHIP, Home.STAGED)

    @cached_property
    def widened(self) -> bool:
        """Whether engines make wider numbers of what is loaded: the DMA would move several times the bytes."""
        return not self.on_chip and itemsize(self.stored) == 1 < itemsize(self.dtype)

    @cached_property
    def converted(self) -> bool:
        """Whether they do so as it comes, not as pairs of it leave PSUM."""
        return self.widened and not self.paired

    @cached_property
    def decoded(self) -> bool:
        """Whether operators on bits make FP16 of its codes, one by one."""
        return self.stored in DECODED

    @cached_property
    def suspected(self) -> bool:
        """Whether decoded codes may be NaN, which TensorE is to find."""
        return self.decoded and not self.defined

    @cached_property
    def loaded(self) -> str:
        """The element type that the DMA leaves on chip."""
        return self.stored if self.converted or self.dtype == TWO else self.dtype

    @cached_property
    def transposed(self) -> bool:
        """Whether TensorE transposes it: its rows lie on the partitions, or would come so from HBM in longer runs."""
        if self.home is Home.CHIP:
            return any(atom.partition for atom in self.free)
        if self.home is not Home.HBM or self.direct:
            return False
        return not self.free or any(atom.stride == itemsize(self.stored) and atom.size > 1 for atom in self.contracted)


@dataclass(frozen=True, slots=True)
class Result:
    """The array that is written, or one of its dims that its epilogue reads."""

    on_chip: bool
    dtype: str
    batch: tuple[Atom, ...]
    m: tuple[Atom, ...]
    n: tuple[Atom, ...]
    across: int = 0
    """Partitions that the columns lie on, equally many on each; 0 where rows lie on the partitions, or in HBM."""
    apart: bool = False
    """Whether the columns of a partition are that many apart, as features of images are; neighbours else."""

    @property
    def repeats(self) -> bool:
        """Whether all columns of a row are the same element: of every row, if columns lie on the partitions."""
        return not any(atom.stride for atom in (*self.n, *(self.m if self.across else ())))

    @property
    def is_row(self) -> bool:
        """Whether all rows, of all batch indices, are the same."""
        around = (atom for atom in (*self.batch, *self.m) if atom.size > 1)
        return len(self.n) == 1 and not any(atom.stride or atom.partition for atom in around)

    @property
    def loaded(self) -> str:
        """The element type of its tiles: one number a row is an operand in FP32 only; predicates stay what they are."""
        return "f32" if self.repeats and self.dtype in FLOATS else self.dtype


@dataclass(frozen=True)
class Problem:
    """All that plans depend on, but the machine."""

    b: tuple[int, ...]
    """Sizes of the dims of each class."""
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    m_dim: int
    """The dim of m that is cut into tiles; -1 without any. So of the others."""
    n_dim: int
    k_dim: int
    """The dim of k on the partitions."""
    segments: tuple[Segment, ...]
    dtype: str
    """Of the products on TensorE: FP32, or a type of their time."""
    flags: tuple[str, ...]
    """Of the products: ``tf32`` where TensorE rounds what it multiplies."""
    moves_values: bool
    """Whether TensorE may transpose 16- and 8-bit values as such."""
    lhs: Operand
    rhs: Operand
    out: Result
    epilogue: Epilogue | None
    """What is done with the sums as they leave PSUM; without one they are the result."""
    bias: bool
    """Whether TensorE adds a row to them."""
    room: int
    """Bytes of each partition of SBUF in one piece."""
    arrays: tuple[Result, ...] = ()
    """What the epilogue reads beside the sums."""
    exchanged: bool = False
    """Whether the op's second operand is lhs, and its first one rhs."""
    in_pairs: bool = False
    """Whether this is not what is computed, but how operands whose codes come in pairs are brought for it."""
    compared: bool = False
    """Whether its time is compared with that of a result whose columns lie on the partitions."""

    @cached_property
    def _hash(self) -> int:
        return hash(tuple([getattr(self, each.name) for each in fields(self)]))

    def __hash__(self) -> int:  # once: plans are looked up by their problems all the time
        return self._hash

    @property
    def scaled(self) -> Operand | None:
        """The operand whose codes are scaled, if any."""
        return next((each for each in (self.rhs, self.lhs) if each.scales), None)

    @cached_property
    def m_tiled(self) -> int:
        """Size of the dim of m that is cut into tiles."""
        return self.m[self.m_dim] if self.m_dim >= 0 else 1

    @cached_property
    def n_tiled(self) -> int:
        """Size of the dim of n that is cut into tiles."""
        return self.n[self.n_dim] if self.n_dim >= 0 else 1

    @cached_property
    def m_around(self) -> int:
        """The other dim of m along which tiles are staged together: of tiles of lhs that follow each other in memory,
        else of rows that do in most arrays, else the largest; -1 without any.
        """
        found = [dim for dim, size in enumerate(self.m) if dim != self.m_dim and size > 1]

        def worth(dim: int) -> tuple[int, ...]:
            return self.follows(dim), self._in_runs(dim), self.m[dim], -abs(self.m_dim - dim)

        return max(found, key=worth, default=-1)

    def _in_runs(self, around: int) -> int:
        """In how many arrays in HBM rows lie one after the other along a dim."""
        written = [array for array in (self.out, *self.arrays) if not array.on_chip and not array.repeats]
        rows = [(array.m[around].stride, run_of(array.n, itemsize(array.dtype))) for array in written]
        if self.lhs.home is Home.HBM:
            rows.append((self.lhs.free[around].stride, run_of(self.lhs.contracted, itemsize(self.lhs.stored))))
        return sum(stride == run for stride, run in rows)

    def follows(self, around: int) -> bool:
        """Whether tiles of lhs lie one after the other along a dim."""
        tile, outer = self.lhs.free[self.m_dim], self.lhs.free[around]
        return not tile.partition and not outer.partition and outer.stride == tile.stride * tile.size

    @cached_property
    def m_whole(self) -> bool:
        """Whether the tiled dim of m lies on partitions, of the result or of lhs: no block cuts it."""
        return self.m_dim >= 0 and (self.out.m[self.m_dim].partition or self.lhs.free[self.m_dim].partition)

    @cached_property
    def n_whole(self) -> bool:
        """The same of n, on the partitions of rhs."""
        return self.n_dim >= 0 and self.rhs.free[self.n_dim].partition

    @cached_property
    def other_terms(self) -> int:
        """Elements of k for each index of its dim on the partitions."""
        return prod(size for dim, size in enumerate(self.k) if dim != self.k_dim)

    def chunks(self, segment: Segment) -> tuple[int, ...]:
        """Sizes of the dims that count the chunks of a segment: those of k beside ``k_dim``, and its steps."""
        return (*(size for dim, size in enumerate(self.k) if dim != self.k_dim), segment.steps)

    @cached_property
    def all_chunks(self) -> tuple[tuple[int, ...], ...]:
        """Of each segment."""
        return tuple(self.chunks(segment) for segment in self.segments)

    @cached_property
    def products(self) -> int:
        """Products that make one tile of the result."""
        return sum(map(prod, self.all_chunks))

    @cached_property
    def partitions(self) -> int:
        """The most that a chunk of k fills."""
        return max(segment.partitions for segment in self.segments)

    def width(self, columns: int) -> int:
        """Elements a partition of a tile of the result with so many columns."""
        return columns // self.out.across * prod(self.m) if self.out.across else columns

    @cached_property
    def side_by_side(self) -> int:
        """Parts of rows that stream past columns one beside the other, whose sums are added up after."""
        return self.lhs.parts if self.lhs.split is Split.APART else 1

    def columns_a_bank(self, sizes: Sizes) -> int:
        """Of those that lie beside each other on a partition, of which a bank holds all sums; 0 where of none."""
        return sizes.bank_columns // (prod(self.m) * self.side_by_side)

    @cached_property
    def passes(self) -> int:
        """Products of a chunk that are added up in the same sums."""
        return self.lhs.parts * self.rhs.parts // self.side_by_side

    def fast(self, dtype: str) -> bool:
        """Whether TensorE transposes elements of ``dtype`` as values, not as the parts of their bit patterns."""
        return self.moves_values and itemsize(dtype) < 4

    def transposed_as(self, operand: Operand) -> str:
        """The element type in which rows of an operand are transposed: what is converted, in few bits."""
        if operand.dtype == TWO:
            return operand.stored
        if not operand.converted or not self.moves_values or operand.scales:
            return operand.dtype
        return operand.dtype if operand.decoded else turnable(operand.stored)

    @cached_property
    def factor(self) -> float:
        """What all sums are multiplied by: codes were decoded to smaller numbers."""
        return prod(DECODED.get(operand.stored, 1.0) for operand in (self.lhs, self.rhs))

    def elements(self, operand: Operand) -> int:
        """Of one batch index."""
        return prod(self.m if operand.name == "lhs" else self.n) * prod(self.k)

    def carried(self, operand: Operand) -> tuple[Problem, Operand]:
        """What is loaded and transposed for an operand, and of what problem it is: its pairs, where it comes so."""
        if not operand.paired:
            return self, operand
        pairs = self._of_pairs
        return pairs, pairs.lhs if operand.name == "lhs" else pairs.rhs

    @cached_property
    def _of_pairs(self) -> Problem:
        def of(operand: Operand) -> Operand:
            if not operand.paired:
                return operand
            made = TWO if operand.decoded else PAIR
            return replace(operand, stored=PAIR, dtype=made, contracted=operand.contracted[:-1], paired=False)

        return replace(self, k=self.k[:-1], lhs=of(self.lhs), rhs=of(self.rhs), in_pairs=True)

    @cached_property
    def comes_in_pairs(self) -> bool:
        """Whether an operand does, so that both have the even terms of a segment in one block, odd ones in another."""
        return self.lhs.paired or self.rhs.paired

    def other(self, operand: Operand) -> Operand:
        """The operand that it is multiplied with."""
        return self.rhs if operand is self.lhs else self.lhs

    def tiled_dim(self, operand: Operand) -> int:
        """Its free dim that is cut into blocks; -1 without any."""
        return self.m_dim if operand.name == "lhs" else self.n_dim

    def bit_bytes(self, operand: Operand) -> int:
        """Bytes of an element of the parts of its bit patterns, the most that TensorE transposes; 0 where none."""
        carried = self.transposed_as(operand)
        if not operand.transposed or (self.fast(carried) and self.fast(operand.stored)):
            return 0
        moved = [dtype for dtype in (carried, operand.stored) if dtype in PE_DTYPES]
        return max(itemsize(HALVES[itemsize(dtype)][1]) for dtype in moved)


def turnable(stored: str) -> str:
    """The element type in which TensorE takes values that are ``stored`` so, if it takes them in few bits."""
    return "bf16" if stored in SMALL_INTEGERS else stored


def pe_dtype(op: hlo.DotOp, index: int = 0, stored: str = "") -> str:
    """Type of operand ``index`` on TensorE: 16- and 8-bit floats as they are (if both are), 8-bit integers in BF16,
    everything else FP32. Floats that are ``stored`` in fewer bits, and cast without loss, come as they are stored.
    """
    kinds = [turnable(hlo.shape_of(operand).dtype) for operand in op.sources]
    if any(kind not in PE_DTYPES or kind == "f32" for kind in kinds):
        return "f32"
    if stored in DECODED:
        return "f16"
    narrow = stored in PE_DTYPES and itemsize(stored) < itemsize(kinds[index]) and is_lossless(stored, kinds[index])
    return stored if narrow else kinds[index]


def exact_type(stored: str) -> str | None:
    """The type in which TensorE takes all numbers that are ``stored`` so, if that takes a quarter of FP32's time."""
    taken = "f16" if stored in DECODED else turnable(stored)
    return taken if taken in PE_DTYPES and itemsize(taken) < 4 else None


def splits_of(op: hlo.DotOp, stored: Sequence[str], streams: bool) -> tuple[Split | None, Split | None]:
    """How each operand may be multiplied in parts: FP32, if the other one is ``stored`` in at most 16 bits.

    ``streams``: whether rows stream past the columns, their parts side by side.
    """
    exact = [exact_type(dtype) is not None for dtype in stored]
    if sum(exact) != 1 or rounding_of(op) or any(hlo.shape_of(operand).dtype != "f32" for operand in op.sources):
        return None, None
    narrow = stored[exact.index(True)]
    split = Split.FINITE if narrow in DECODED or narrow in SMALL_INTEGERS else Split.NONZERO
    return (None, split) if exact[0] else (Split.APART if streams else split, None)


def rounding_of(op: hlo.DotOp | hlo.ConvolutionOp) -> tuple[str, ...]:
    """The flag of its products: ``tf32`` where TensorE rounds FP32 operands to that."""
    algorithm = op.algorithm.data if op.algorithm is not None else ""
    f32 = any(hlo.shape_of(operand).dtype == "f32" for operand in op.sources)
    return ("tf32",) if f32 and "tf32" in algorithm else ()


def order_of(op: hlo.DotOp, index: int) -> tuple[list[int], list[int], list[int]]:
    """Batch, free and contracted dims of operand ``index``."""
    dims = op.dims.data
    batch, contracted = (dims.lhs_batch, dims.lhs_contracting) if index == 0 else (dims.rhs_batch, dims.rhs_contracting)
    rank = hlo.shape_of(op.sources[index]).rank
    return list(batch), [axis for axis in range(rank) if axis not in (*batch, *contracted)], list(contracted)


def run_of(atoms: Iterable[Atom], nbytes: int) -> int:
    """Bytes that lie one after the other: ``nbytes``, repeated along the dims that continue them."""
    for atom in sorted(atoms, key=lambda atom: atom.stride):
        if atom.stride == nbytes:
            nbytes *= atom.size
    return nbytes


@cache
def divisor(size: int, most: int) -> int:
    """The largest divisor of ``size`` that is at most ``most``."""
    return max(each for each in range(1, min(size, most) + 1) if size % each == 0)


def segments_of(size: int, sizes: Sizes) -> tuple[Segment, ...]:
    """The segments of a single contracted dim: equal chunks, or full chunks and a rest where that takes fewer."""
    if equal := equal_chunk(size, sizes.rows):
        return (Segment(0, equal, size // equal),)
    whole, rest = divmod(size, sizes.rows)
    found = [Segment(0, sizes.rows, whole)] if whole else []
    return (*found, *([Segment(whole * sizes.rows, rest, 1)] if rest else []))
