"""Tiles of a map kernel's operands: loaded, or repeated over the partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from types import MappingProxyType

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, emit_over, merge_free
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps.between import LEAST_STEPS, elements_of, gathered, ordered
from neuronx_cc.codegen.maps.packed_rows import PackedRow
from neuronx_cc.codegen.maps.plan import is_given, load_stream
from neuronx_cc.codegen.movement import column_kernel
from neuronx_cc.codegen.movement.relayout_plan import Extent, start_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import NARROW, itemsize

NARROW_MOST = 16384
"""Elements up to which rows of 16 bits, which stay in SBUF as they are, leave tiles enough room."""
SPREAD_LEAST, SPREAD_MOST = 16, 4096
"""Elements of a row that is repeated over the partitions once and stays there; longer ones need no second copy."""
MOST_KEPT, MOST_REREAD = 512, 4096
"""Elements a partition of an input or of reduced rows that stays while tiles pass; of one that would come again."""


_SHOWING = (hlo.Atan2Op, hlo.RsqrtOp, hlo.PowerOp, hlo.BitcastConvertOp)
"""Ops that make different numbers of 0 and -0."""
_KEEPING = (hlo.MultiplyOp, hlo.NegateOp, hlo.ConvertOp, hlo.ExtremeOp)
"""Ops that make 0 of 0 and -0 of -0, or the other way round, which others may show then."""
APART = 24
"""Rows for which there is room where the row that is repeated over the partitions gets memory of its own: the next one,
and the first tile, need not wait then until it is read."""


def load_all(
    context: Context,
    pool: TilePool,
    blocks: Mapping[hlo.SSAValue, Block],
    partitions: int,
    zero_signs_matter: Callable[[hlo.SSAValue], bool],
    casts: Mapping[hlo.SSAValue, str],
    packed: Mapping[hlo.SSAValue, PackedRow] = MappingProxyType({}),
) -> dict[hlo.SSAValue, Block]:
    """The tiles of all inputs, of the types in ``casts`` if they are there. Elements that lie between those of others,
    as odd ones between even ones, come along; sections of ``packed`` rows are on chip.
    """
    found: dict[hlo.SSAValue, Block] = {}
    waiting, loaded = _Waiting({value: block for value, block in blocks.items() if value not in casts}), _Loaded()
    for value, block in blocks.items():
        if value in found:
            continue
        section = packed[value].section(context, pool, block, partitions) if value in packed else None
        if section is not None:
            if value not in casts:
                waiting.remove(value)
            found[value] = _repeated(section, block, block.varying)
            continue
        if value in casts:
            found[value] = load(context, pool, value, block, partitions, zero_signs_matter(value), casts[value])
            continue
        same = loaded.mirrored(block)
        if same is not None:
            pool.share(same)
            waiting.remove(value)
            found[value] = same
            continue
        other, distance = waiting.between(block)
        extent = gathered(context.timing, block) if other is not None and pool.gathers else None
        waiting.remove(value)
        if other is None or extent is None or extent.outside or is_given(value) != is_given(other):
            found[value] = load(context, pool, value, block, partitions, zero_signs_matter(value))
            loaded.add(block, found[value])
            continue
        waiting.remove(other)
        stream = load_stream(value)
        first = block if distance > 0 else blocks[other]
        tile = _load_gathered(context, pool.tile, first, partitions, stream, extent, abs(distance))
        pool.share(tile)
        for each, start in ((value, max(0, -distance)), (other, max(0, distance))):
            found[each] = tile.moved(start)
            loaded.add(blocks[each], found[each])
    return found


class _Loaded:
    """Blocks of HBM and their tiles, by the elements that they have."""

    def __init__(self) -> None:
        self._tiles: dict[object, tuple[Block, Block]] = {}

    def add(self, block: Block, tile: Block) -> None:
        if tile.dtype == block.dtype and tile.alloc.space is Space.SBUF:
            self._tiles.setdefault(self._elements(block), (block, tile))

    def mirrored(self, block: Block) -> Block | None:
        """``block`` in the tile of one of the same elements in the same or in reverse order."""
        if block.alloc.space is not Space.HBM or (found := self._tiles.get(self._elements(block))) is None:
            return None
        other, tile = found
        transposed = [dim for dim in range(1, len(block.dims)) if block.dims[dim].stride != other.dims[dim].stride]
        back = sum((tile.dims[dim].size - 1) * tile.dims[dim].stride for dim in transposed)
        dims = [replace(a, stride=-a.stride) if dim in transposed else a for dim, a in enumerate(tile.dims)]
        return tile.moved(back).of(tuple(dims))

    @staticmethod
    def _elements(block: Block) -> object:
        steps = tuple((atom.size, abs(atom.stride)) for atom in block.dims)
        return block.alloc, block.dtype, block.dims[0], steps, start_of(block, range(1, len(block.dims)))


class _Waiting:
    """Blocks that are not loaded yet, by where they are: few are compared with each other."""

    def __init__(self, blocks: Mapping[hlo.SSAValue, Block]) -> None:
        self._blocks = blocks
        self._number = {value: number for number, value in enumerate(blocks)}
        self._cells: dict[object, dict[hlo.SSAValue, None]] = {}
        for value, block in blocks.items():
            self._cells.setdefault(self._cell(block, 0), {})[value] = None

    def between(self, block: Block) -> tuple[hlo.SSAValue | None, int]:
        """The first that lies between the elements of ``block``, and its distance in bytes; (None, 0) without any."""
        near = (self._cells.get(self._cell(block, side), {}) for side in (-1, 0, 1))
        first = (next((other for other in cell if _gap(block, self._blocks[other])), None) for cell in near)
        other = min((value for value in first if value is not None), key=self._number.__getitem__, default=None)
        return (None, 0) if other is None else (other, _gap(block, self._blocks[other]))

    def remove(self, value: hlo.SSAValue) -> None:
        del self._cells[self._cell(self._blocks[value], 0)][value]

    def _cell(self, block: Block, side: int) -> object:
        """Equal for blocks of one form less than a step apart, or in the neighbouring cell on ``side``."""
        step = min([atom.stride for atom in block.dims[1:] if atom.stride and atom.size > 1], default=0)
        place = block.offset.const // abs(step) + side if step else 0
        return block.alloc, block.dtype, block.dims, block.offset.terms, place


def _gap(block: Block, other: Block) -> int:
    """Bytes from the elements of ``block`` to those of ``other`` if these lie between them, else 0."""
    if block.alloc is not other.alloc or block.alloc.space is not Space.HBM or block.dims != other.dims:
        return 0
    if not block.dims[0].stride and block.dims[0].size > 1:
        return 0
    gap = other.offset.const - block.offset.const
    steps = [atom.stride for atom in block.dims[1:] if atom.stride and atom.size > 1]
    alike = block.dtype == other.dtype and block.offset.terms == other.offset.terms
    return gap if alike and steps and abs(gap) < min(steps) and gap % itemsize(block.dtype) == 0 else 0


def load(
    context: Context,
    pool: TilePool,
    value: hlo.SSAValue,
    block: Block,
    partitions: int,
    zero_signs_matter: bool,
    dtype: str = "",
) -> Block:
    """The tile of an input: in place when resident, else loaded without its repetitions. ``dtype``: what the DMA casts
    it to.
    """
    dtype = dtype or block.dtype
    if block.alloc.space is not Space.HBM:
        return block
    sizes = [atom.size for atom in block.dims[1:]]
    repeated = [atom.stride == 0 for atom in block.dims[1:]]
    stream = load_stream(value)
    wide = "f32" in (block.dtype, dtype)
    if block.dims[0].stride == 0 and partitions > 8 and wide and not zero_signs_matter:
        spread = _repeat_row(context, pool, block, partitions, stream, dtype)
        if spread is not None:
            return spread
    extent = gathered(context.timing, block) if pool.gathers else None
    if extent is not None:
        return _load_gathered(context, pool.tile, block, partitions, stream, extent, dtype=dtype)
    tile = pool.tile([1 if rep else size for rep, size in zip(repeated, sizes, strict=True)], dtype, partitions)
    dims = [0, *(dim + 1 for dim, rep in enumerate(repeated) if not rep)]
    here, there = tile.select(dims), block.select(dims)
    extent = ordered(context.timing, block) if pool.gathers else None
    if extent is None:
        column_kernel.copy(context.builder, here, there, stream)
    else:
        line = _load_gathered(context, pool.tile, there, partitions, stream, extent, dtype=dtype)
        emit_over(context.builder, "tensor_copy", Stream.VECTOR, [here], [line])
    full = tuple(Atom(size, 0) if rep else atom for rep, size, atom in zip(repeated, sizes, tile.dims[1:], strict=True))
    return replace(tile, dims=(tile.dims[0], *full))


def _load_gathered(
    context: Context,
    make: Callable[[Sequence[int], str, int], Block],
    block: Block,
    partitions: int,
    stream: Stream,
    extent: Extent,
    more: int = 0,
    dtype: str = "",
) -> Block:
    """The tile of an input, loaded with what lies between its elements, and read with their steps.

    ``make``: allocates it. ``more``: bytes after its only run that are loaded, too. ``dtype``: what the DMA casts to.
    """
    size, own = itemsize(block.dtype), itemsize(dtype or block.dtype)
    tile = make([(extent.nbytes + more) // size], dtype or block.dtype, partitions)
    strides = {dim: stride // size * own for dim, stride in extent.strides.items()}
    moving = [dim + 1 for dim in strides]
    outside = [(block.dims[dim + 1], strides[dim]) for dim in extent.outside]
    count = (extent.run + more) // size
    here = tile.of((tile.dims[0], *(Atom(atom.size, stride) for atom, stride in outside), Atom(count, own)))
    there = (block.dims[0], *(Atom(atom.size, abs(atom.stride)) for atom, _ in outside), Atom(count, size))
    copy(context.builder, here, replace(block, offset=start_of(block, moving), dims=there), stream)
    atoms, back = [], 0
    for dim, atom in enumerate(block.dims[1:]):
        step = strides.get(dim, 0)
        if atom.stride < 0:
            back += (atom.size - 1) * step
            step = -step
        atoms.append(Atom(atom.size, step))
    return tile.moved(back).of((tile.dims[0], *atoms))


def _repeat_row(
    context: Context, pool: TilePool, block: Block, partitions: int, stream: Stream, dtype: str
) -> Block | None:
    """A row repeated over the partitions: loaded once, multiplied by a column of ones, left in PSUM.

    None when the row is longer than two banks, or PSUM is taken. The product with ones is exact, but -0 becomes 0.
    """
    dims = block.varying
    row = prod(block.dims[dim].size for dim in dims)
    alone = row == prod(atom.size for atom in block.dims[1:])
    bank_columns = context.sizes.bank_columns
    if row > bank_columns and not (alone and row <= 2 * bank_columns):
        return None
    bank = pool.bank(row * 4)
    if bank is None:
        return None
    builder = context.builder
    sizes = [block.dims[dim].size for dim in dims]
    apart = pool.buffers == 1 and builder.sbuf.largest_gap() >= APART * row * 4
    line = pool.apart(sizes, dtype, 1) if apart else pool.tile(sizes, dtype, 1)
    source = replace(block, dims=(Atom(1, 0), *(block.dims[dim] for dim in dims)))
    copy(builder, line, source, stream)
    flat = replace(line, dims=(line.dims[0], Atom(row, itemsize(dtype))))
    target = tile_in(builder, bank, [row], "f32", partitions)
    builder.emit("load_stationary", Stream.TENSOR, [], [context.fixed.ones(partitions, dtype)])
    for start in range(0, row, bank_columns):
        width = min(bank_columns, row - start)
        part = [piece.index(1, Affine(start), width) for piece in (target, flat)]
        builder.emit("multiply_moving", Stream.TENSOR, [part[0]], [part[1]])
    pool.give_back(line)
    wide = (Atom(atom.size, atom.stride // itemsize(dtype) * 4) for atom in line.dims[1:])
    return _repeated(target.of((target.dims[0], *wide)), block, dims)


def kept_in(wanted: Mapping[hlo.SSAValue, int], room: int) -> dict[hlo.SSAValue, int]:
    """What of ``wanted`` (value -> bytes) stays while tiles pass: all that fits, or in order what half of it holds."""
    if sum(wanted.values()) <= room:
        return dict(wanted)
    total = accumulate(wanted.values())
    return {value: nbytes for (value, nbytes), end in zip(wanted.items(), total, strict=True) if end <= room // 2}


def is_row(block: Block) -> bool:
    """Whether all partitions read the same row in HBM, of a length that may stay on each of them."""
    row = prod(atom.size for atom in block.dims[1:] if atom.stride)
    repeats = block.alloc.space is Space.HBM and not block.dims[0].stride
    return repeats and row >= SPREAD_LEAST and (block.dtype == "f32" or (block.dtype in NARROW and row <= NARROW_MOST))


def spread_bytes(block: Block, dtype: str) -> int:
    """Bytes a partition that ``spread_row`` takes for tiles of ``dtype``."""
    row = prod(atom.size for atom in block.dims[1:] if atom.stride)
    return row * itemsize(dtype) * (1 if row > SPREAD_MOST else 2)


def spread_row(
    context: Context, pool: TilePool, value: hlo.SSAValue, block: Block, partitions: int, dtype: str
) -> Block:
    """A row in HBM as a tile of ``dtype`` on all partitions that stays: loaded once, multiplied by ones (-0 becomes 0).

    In FP32 it stays in PSUM where it fits whole banks there: Vector reads it beside an operand in SBUF at twice the
    rate. Where PSUM is full of such rows, and for long rows, it is loaded onto each partition.
    """
    builder = context.builder
    dims = block.varying
    sizes = [block.dims[dim].size for dim in dims]
    row = prod(sizes)
    in_order = sorted(range(len(dims)), key=lambda at: -abs(block.dims[dims[at]].stride))
    stored = [sizes[at] for at in in_order]
    stream = load_stream(value)
    source = replace(block, dims=(Atom(1, 0), *(block.dims[dims[at]] for at in in_order)))
    if row > SPREAD_MOST or not builder.psum.largest_gap():
        target = pool.apart(stored, dtype, partitions)  # in the order of runs, which Vector need not have
        copy(builder, target, replace(source, dims=(Atom(partitions, 0), *source.dims[1:])), stream)
        return _repeated(target.select([0, *(1 + in_order.index(at) for at in range(len(dims)))]), block, dims)
    loaded = pool.apart(stored, dtype, 1)
    copy(builder, loaded, source, stream)
    whole = dtype == "f32" and _whole_banks(sizes, context.sizes.bank_columns)
    kept = pool.bank(row * 4) if whole else None
    builder.emit("load_stationary", Stream.TENSOR, [], [context.fixed.ones(partitions, dtype)])
    if kept is not None:
        target = tile_in(builder, kept, sizes, "f32", partitions)
        ordered = loaded.select([0, *(1 + in_order.index(at) for at in range(len(dims)))])
        for start, size, part in _chunks(target, context.sizes.bank_columns):
            blocks = merge_free([part, _part(ordered, start, size)])
            builder.emit("multiply_moving", Stream.TENSOR, [blocks[0]], [blocks[1]])
    else:
        target = pool.apart(sizes, dtype, partitions)
        ordered = target.select([0, *(1 + at for at in in_order)])
        with TilePool(builder, "row") as banks:
            bank = banks.psum(2)
            for start, size, part in _chunks(loaded, context.sizes.bank_columns):
                sums = tile_in(builder, bank, size, "f32", partitions)
                builder.emit("multiply_moving", Stream.TENSOR, [merge_free([sums])[0]], [merge_free([part])[0]])
                emit_over(
                    builder, "activation", Stream.SCALAR, [_part(ordered, start, size)], [sums], alu=["copy"], imm=[1.0]
                )
    return _repeated(target, block, dims)


def _repeated(tile: Block, block: Block, dims: Sequence[int]) -> Block:
    """``tile``, of the free dims ``dims`` of ``block``, with all dims of it: the others repeat."""
    atoms = dict(zip(dims, tile.dims[1:], strict=True))
    full = tuple(atoms.get(dim, Atom(atom.size, 0)) for dim, atom in enumerate(block.dims) if dim)
    return replace(tile, dims=(tile.dims[0], *full))


def is_column(block: Block, looped: Sequence[int]) -> bool:
    """Whether an array in HBM has few elements a partition, which stay while tiles of loops over ``looped`` pass, or
    not many, which the outermost loop would load again each time.
    """
    if block.alloc.space is not Space.HBM or not block.dims[0].stride or block.offset.terms:
        return False
    elements = prod(atom.size for atom in block.dims[1:] if atom.stride)
    again = 1 in looped and block.dims[1].size > 1 and not block.dims[1].stride
    if again and LEAST_STEPS < elements <= MOST_REREAD:
        return True
    return elements <= MOST_KEPT and len(looped) > 0


def column_of(pool: TilePool, block: Block, partitions: int, dtype: str) -> Block:
    """A tile of ``dtype`` for all of ``block``, which stays while tiles of other arrays pass."""
    tile = pool.apart([block.dims[dim].size for dim in block.varying], dtype, partitions)
    return _repeated(tile, block, block.varying)


def column_bytes(timing: Timing, block: Block) -> int:
    """Bytes a partition that such a tile takes."""
    extent = gathered(timing, block)
    return elements_of(block) * itemsize("f32") if extent is None else extent.nbytes


def keep_column(
    context: Context, pool: TilePool, value: hlo.SSAValue, block: Block, partitions: int, dtype: str
) -> Block:
    """An input of few elements a partition, loaded once for all tiles, as ``dtype``."""
    extent = gathered(context.timing, block)
    if extent is not None:
        return _load_gathered(context, pool.apart, block, partitions, load_stream(value), extent, dtype=dtype)
    tile = column_of(pool, block, partitions, dtype)
    varying = [0, *block.varying]
    stream = load_stream(value)
    column_kernel.copy(context.builder, tile.select(varying), block.select(varying), stream)
    return tile


def _whole_banks(sizes: Sequence[int], bank: int) -> bool:
    """Whether a dense row of ``sizes`` in PSUM is cut along its outermost dims where banks of ``bank`` columns end; the
    last one need not be full.
    """
    inner = 1
    for outer, size in reversed([*enumerate(sizes)]):
        if inner * size >= bank:
            return bank % inner == 0 and (size % (bank // inner) == 0 or prod(sizes[:outer]) == 1)
        inner *= size
    return True


def _chunks(line: Block, bank: int) -> Iterator[tuple[list[int], list[int], Block]]:
    """(first index, sizes, part) of boxes of a dense row, each a run of at most ``bank`` columns."""
    sizes = [atom.size for atom in line.dims[1:]]
    cut = next((dim for dim in range(len(sizes)) if prod(sizes[dim + 1 :]) <= bank), 0)
    step = max(1, bank // prod(sizes[cut + 1 :]))
    for outer in product(*(range(size) for size in sizes[:cut])):
        for first in range(0, sizes[cut], step):
            start = [*outer, first, *(0 for _ in sizes[cut + 1 :])]
            size = [*(1 for _ in outer), min(step, sizes[cut] - first), *sizes[cut + 1 :]]
            yield start, size, _part(line, start, size)


def _part(block: Block, start: Sequence[int], size: Sequence[int]) -> Block:
    for dim, (first, count) in enumerate(zip(start, size, strict=True)):
        block = block.index(dim + 1, Affine(first), count)
    return block


def telling_zeros(ops: Sequence[hlo.HloOp]) -> frozenset[hlo.SSAValue]:
    """What ``ops``, in order, may tell -0 from 0 in: operands of all but sums, products, comparisons and casts for
    these; and of products by which something else is divided, or of which an angle, a power or the bits are taken.
    """
    told, shown, inside = set[hlo.SSAValue](), set[hlo.SSAValue](), {*ops}
    for op in reversed(ops):
        compares = isinstance(op, hlo.CompareOp) and op.comparison_type.data == "FLOAT"
        readers = [use.operation for use in op.result.uses] if isinstance(op, hlo.ConvertOp) else []
        passes_on = bool(readers) and inside.issuperset(readers) and op.results[0] not in told
        if op.opcode not in ("add", "subtract", "multiply") and not compares and not passes_on:
            told.update(op.sources)
        if isinstance(op, hlo.DivideOp):
            shown.add(op.rhs)
        elif isinstance(op, _SHOWING) or (isinstance(op, _KEEPING) and op.results[0] in shown):
            shown.update(op.sources)
    return frozenset(told | shown)


def unmirrored(blocks: Mapping[hlo.SSAValue, Block]) -> list[tuple[hlo.SSAValue, Block]]:
    """The blocks of arrays that no view mirrors: views and what they mirror share their tiles."""
    mirrored = {id(each.alloc) for each in blocks.values() if any(atom.stride < 0 for atom in each.dims)}
    return [(value, block) for value, block in blocks.items() if id(block.alloc) not in mirrored]
