"""Scans (``ir.scans``) inside a map kernel: along dims of a tile that holds all of them.

Vector has an instruction for recurrences of floats, GpSimd one for folds of integers; both walk one row a partition.
Other computations are applied to whole tiles: log2(n) times to pairs of neighbouring spans, which leaves every second,
fourth, ... element the fold of its span, and log2(n) times more to complete the elements between, 2n in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter, Readable, Splat
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.values import computation_kind
from neuronx_cc.passes.expansions import scans


def instruction(op: hlo.HloOp) -> tuple[str, str] | None:
    """(outer, inner) operators of the scan instruction that does ``op``, inner empty for a fold; None without one."""
    body = scans.body_of(op)
    recurrence = scans.recurrence(body)
    scan = scan_of(op)
    if recurrence is not None and scan is not None and scan.result == 1:
        return recurrence
    kind = computation_kind(body)
    known = elementwise.ARITHMETIC if op.shape.dtype in FLOATS else COMBINERS
    return (kind, "") if kind in known and op.shape.dtype != "pred" else None


def bytes_wanted(op: hlo.HloOp) -> int:
    """Bytes of scratch for each element of the space."""
    scan = scan_of(op)
    assert scan is not None
    if not scan.body:
        return 2 * itemsize(op.shape.dtype)
    if instruction(op) is not None:
        return 0 if op.shape.dtype == "f32" else 4
    body = scans.body_of(op)
    slots = _Slots.of(body)
    arrays = sum(itemsize(hlo.shape_of(operand).dtype) for operand in op.sources)
    return arrays + -(-sum(itemsize(dtype) for dtype in slots.dtypes) // 2)


def emit(context: Context, pool: TilePool, op: hlo.HloOp, out: Block, ins: Sequence[Readable], walk: list[int]) -> None:
    """Scan ``ins`` into ``out``, tiles of equal sizes, along the dims ``walk``, outermost first."""
    scan = scan_of(op)
    assert scan is not None
    work = _Work(context, pool, op, scan.reverse)
    initial = ins[-1] if scan.initial else None
    blocks = [work.block(operand, out) for operand in ins[: len(ins) - scan.initial]]
    if not scan.body:
        work.previous(out, blocks[0], walk, initial)
        return
    known = instruction(op)
    if known is not None and len(walk) == 1 and work.is_short(out, walk[0], known):
        work.by_steps(out, blocks, walk[0], *known, initial)
    elif known is None:
        work.by_levels(out, blocks, walk, scan.result)
    else:
        work.by_rows(out, blocks, walk, *known, initial)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Scratch tiles of a computation: their types, and the tile of each value."""

    dtypes: list[str]
    place: dict[hlo.SSAValue, int]

    @classmethod
    def of(cls, body: hlo.ComputationOp) -> _Slots:
        ops = [op for op in ops_of(body.block) if not isinstance(op, hlo.TupleOp | hlo.ConstantOp)]
        last = {operand: index for index, op in enumerate(ops) for operand in op.sources}
        last.update(dict.fromkeys(results_of(body), len(ops)))
        dtypes: list[str] = []
        place: dict[hlo.SSAValue, int] = {}
        idle: list[int] = []
        for index, op in enumerate(ops):
            free = next((slot for slot in idle if dtypes[slot] == op.shape.dtype), None)
            if free is None:
                dtypes.append(op.shape.dtype)
                free = len(dtypes) - 1
            else:
                idle.remove(free)
            place[op.results[0]] = free
            idle += [place[value] for value in dict.fromkeys(op.sources) if value in place and last[value] == index]
        return cls(dtypes, place)


def results_of(body: hlo.ComputationOp) -> list[hlo.SSAValue]:
    root = defining_op(body.root)
    return list(root.sources) if isinstance(root, hlo.TupleOp) else [body.root]


class _Work:
    def __init__(self, context: Context, pool: TilePool, op: hlo.HloOp, reverse: bool) -> None:
        self.context, self.builder, self.pool, self.op, self.reverse = context, context.builder, pool, op, reverse
        self.taken: list[Block] = []
        self.emitter = Emitter(self.builder, self._scratch)

    def _scratch(self, like: Block, dtype: str) -> Block:
        self.taken.append(self.pool.like(like, dtype))
        return self.taken[-1]

    def release(self) -> None:
        for block in self.taken:
            self.pool.give_back(block)
        self.taken.clear()

    def block(self, operand: Readable, like: Block) -> Block:
        """``operand`` as a block; a constant as one element a partition, repeated."""
        if isinstance(operand, Block):
            return operand
        assert isinstance(operand, Splat), "only arithmetic reads deferred operands"
        one = self._scratch(like.index(len(like.dims) - 1, Affine(), 1).select([0, len(like.dims) - 1]), operand.dtype)
        self.emitter.copy(one, operand)
        return one.repeated(like)

    # row after row

    def is_short(self, out: Block, dim: int, known: tuple[str, str]) -> bool:
        """Whether combining whole columns takes less time than scanning row after row."""
        size = out.dims[dim].size
        rows = prod(atom.size for atom in out.dims[1:]) // size
        timing = self.builder.timing
        each = (2 if known[1] else 1) * timing.engine("tensor_tensor", Stream.VECTOR, rows, ins=(F32, F32)).bound
        return size * each < rows * timing.engine("tensor_tensor_scan", Stream.VECTOR, size, ins=(F32, F32)).bound

    def by_steps(
        self, out: Block, ins: list[Block], dim: int, outer: str, inner: str, initial: Readable | None
    ) -> None:
        """``h = outer(inner(a, h), b)``, or without ``inner`` ``h = outer(b, h)``, for all rows at once."""
        out, *ins = (block.backwards([dim]) if self.reverse else block for block in (out, *ins))
        wide = out
        if out.dtype in FLOATS and out.dtype != "f32":
            wide = self._scratch(out, "f32")
        terms = ins[-1]
        first = Affine()
        if initial is None:
            start = terms.index(dim, first)
            self.emitter.over("tensor_copy", self._engine(out.dtype), [wide.index(dim, first)], [start])
        else:
            start = self.block(initial, out)
            self._step(wide, ins, dim, first, start.index(dim, first), outer, inner)
        with self.builder.loop(out.dims[dim].size - 1) as index:
            self._step(wide, ins, dim, index + 1, wide.index(dim, index), outer, inner)
        if wide is not out:
            self.emitter.copy(out, wide)
        self.release()

    def _step(
        self, out: Block, ins: list[Block], dim: int, index: Affine, state: Block, outer: str, inner: str
    ) -> None:
        """The element ``index`` along ``dim`` of ``out``, after ``state``."""
        place = out.index(dim, index)
        if inner:
            elementwise.emit_binary(self.emitter, inner, out.dtype, place, ins[0].index(dim, index), state)
            state = place
        elementwise.emit_binary(self.emitter, outer, out.dtype, place, state, ins[-1].index(dim, index))

    # one instruction a row

    def by_rows(
        self, out: Block, ins: list[Block], walk: list[int], outer: str, inner: str, initial: Readable | None
    ) -> None:
        """``h = outer(inner(a, h), b)``; without ``inner`` the fold ``h = outer(a, h)``."""
        out, *ins = (block.backwards(walk) if self.reverse else block for block in (out, *ins))
        terms = ins[-1]
        first_out, firsts = out, terms if initial is None else self.block(initial, out)
        for dim in sorted(walk, reverse=True):
            first_out, firsts = first_out.index(dim, Affine()), firsts.index(dim, Affine())
        engine = Stream.VECTOR if out.dtype in FLOATS else Stream.GPSIMD
        if initial is None:
            self.emitter.over("tensor_copy", engine, [first_out], [firsts])
        if out.dtype in FLOATS and firsts.dtype != "f32":
            wide = self._scratch(firsts, "f32")
            self.emitter.over("tensor_copy", engine, [wide], [firsts])
            firsts = wide
        factors = ins[0]
        if out.dtype in FLOATS and not inner:
            factors = self.block(Splat(1.0, "f32"), out)
        others = [dim for dim in range(1, len(out.dims)) if dim not in walk]
        order = [0, *others, *walk]
        blocks = [block.select(order) for block in (out, factors, terms)]
        self._rows(blocks, firsts, len(others), (outer, inner), initial is None)
        self.release()

    def _rows(self, blocks: list[Block], firsts: Block, others: int, kinds: tuple[str, str], at_start: bool) -> None:
        if others:
            with self.builder.loop(blocks[0].dims[1].size) as index:
                cut = [block.index(1, index) for block in blocks]
                self._rows(cut, firsts.index(1, index), others - 1, kinds, at_start)
            return
        self._row(blocks, firsts, kinds, at_start)

    def _row(self, blocks: list[Block], start: Block, kinds: tuple[str, str], at_start: bool) -> None:
        """The scan of [partitions, n...] after ``start``, which is the first element itself ``at_start``."""
        sizes = [atom.size for atom in blocks[0].dims[1:]]
        if len(sizes) > 1:
            inner = [block.index(1, Affine()) for block in blocks]
            self._row(inner, start, kinds, at_start)
            with self.builder.loop(sizes[0] - 1) as index:
                before = blocks[0].index(1, index)
                for _ in sizes[2:]:
                    before = before.index(1, Affine(before.dims[1].size - 1))
                before = before.index(1, Affine(before.dims[1].size - 1))
                if before.dtype in FLOATS and before.dtype != "f32":
                    wide = self._scratch(before, "f32")
                    self.emitter.over("tensor_copy", Stream.VECTOR, [wide], [before])
                    before = wide
                self._row([block.index(1, index + 1) for block in blocks], before, kinds, False)
            return
        if at_start:
            if sizes[0] == 1:
                return
            blocks = [block.index(1, Affine(1), sizes[0] - 1) for block in blocks]
        out, factors, terms = blocks
        outer_kind, inner_kind = kinds
        if out.dtype not in FLOATS:
            self.builder.emit("int_scan", Stream.GPSIMD, [out], [terms, start], [outer_kind], [], ["ap0"])
        elif inner_kind:
            alu = [elementwise.ARITHMETIC[inner_kind], elementwise.ARITHMETIC[outer_kind]]
            self.builder.emit("tensor_tensor_scan", Stream.VECTOR, [out], [factors, terms, start], alu, [], ["ap0"])
        else:
            alu = [elementwise.ARITHMETIC[outer_kind], "multiply"]
            self.builder.emit("tensor_tensor_scan", Stream.VECTOR, [out], [terms, factors, start], alu, [], ["ap0"])

    # whole tiles, level by level

    @staticmethod
    def _shape(out: Block, walk: list[int]) -> tuple[int, int, int]:
        """Rows a partition, elements of a row, partitions."""
        size = prod(out.dims[dim].size for dim in walk)
        return prod(atom.size for atom in out.dims[1:]) // size, size, out.dims[0].size

    def _flat(self, like: Block, walk: list[int]) -> tuple[Block, Block, Block]:
        """A tile of whole rows; the same in the order of ``like``; and, as walked, [partitions, rows, n]."""
        rows, size, partitions = self._shape(like, walk)
        order = [*(dim for dim in range(1, len(like.dims)) if dim not in walk), *walk]
        tile = self.pool.tile([like.dims[dim].size for dim in order], like.dtype, partitions)
        same_order = tile.select([0, *(1 + order.index(dim) for dim in range(1, len(like.dims)))])
        width = itemsize(like.dtype)
        flat = replace(tile, dims=(tile.dims[0], Atom(rows, size * width), Atom(size, width)))
        return tile, same_order, flat.backwards([2]) if self.reverse else flat

    def previous(self, out: Block, source: Block, walk: list[int], initial: Readable | None) -> None:
        """Each element but the first from the one before it, the first from ``initial`` or where it is."""
        engine, tiles = self._engine(out.dtype), []
        if len(walk) == 1:
            dim = walk[0]
            after, before = (block.backwards(walk) if self.reverse else block for block in (out, source))
        else:
            dim, tiles = 2, [self._flat(block, walk) for block in (out, source)]
            after, before = (flat for _, _, flat in tiles)
            self.emitter.over("tensor_copy", engine, [tiles[1][1]], [source])
        size = after.dims[dim].size
        for first, count in ((0, 1 if initial is None else 0), (1, size - 1)):
            if count:
                pair = after.index(dim, Affine(first), count), before.index(dim, Affine(), count)
                self.emitter.over("tensor_copy", engine, [pair[0]], [pair[1]])
        if tiles:
            self.emitter.over("tensor_copy", engine, [out], [tiles[0][1]])
        for tile, _, _ in tiles:
            self.pool.give_back(tile)
        if initial is not None:
            ends, starts = (x.backwards(walk) if self.reverse else x for x in (out, self.block(initial, out)))
            for each in sorted(walk, reverse=True):
                ends, starts = ends.index(each, Affine()), starts.index(each, Affine())
            self.emitter.over("tensor_copy", engine, [ends], [starts])
        self.release()

    def by_levels(self, out: Block, ins: list[Block], walk: list[int], result: int) -> None:
        rows, size, partitions = self._shape(out, walk)
        arrays, tiles = [], []
        for block in ins:
            tile, same_order, flat = self._flat(block, walk)
            self.emitter.over("tensor_copy", self._engine(block.dtype), [same_order], [block])
            tiles.append((tile, same_order))
            arrays.append(flat)
        body = scans.body_of(self.op)
        slots = _Slots.of(body)
        scratch = [self.pool.tile([rows, max(1, size // 2)], dtype, partitions) for dtype in slots.dtypes]
        reaches = [1 << level for level in range(size.bit_length() - 1)]
        steps = [(reach - 1, reach) for reach in reaches] + [(2 * reach - 1, reach) for reach in reversed(reaches)]
        for before, reach in steps:
            count = (size - before + reach - 1) // (2 * reach)
            if count:
                starts = before, before + reach
                lefts, rights = ([block.every(2, start, count, 2 * reach) for block in arrays] for start in starts)
                self._combine(lefts, rights, body, slots, scratch)
        self.emitter.over("tensor_copy", self._engine(out.dtype), [out], [tiles[result][1]])
        for block in (*scratch, *(tile for tile, _ in tiles)):
            self.pool.give_back(block)
        self.release()

    @staticmethod
    def _engine(dtype: str) -> Stream:
        return Stream.VECTOR if dtype in FLOATS else Stream.GPSIMD

    def _combine(
        self, lefts: list[Block], rights: list[Block], body: hlo.ComputationOp, slots: _Slots, scratch: list[Block]
    ) -> None:
        """``right = body(left, right)`` for each array."""
        count = rights[0].dims[2].size
        values: dict[hlo.SSAValue, Readable] = dict(zip(body.block.args, (*lefts, *rights), strict=True))
        ops = [op for op in ops_of(body.block) if not isinstance(op, hlo.TupleOp)]
        results = results_of(body)
        kept: list[Block] = []
        for place, value in enumerate(results):
            if value in values and values[value] is not rights[place]:  # a parameter that another result may overwrite
                block = values[value]
                assert isinstance(block, Block)
                kept.append(self.pool.like(block))
                self.emitter.copy(kept[-1], block)
                values[value] = kept[-1]
        for op in ops:
            value = op.results[0]
            if isinstance(op, hlo.ConstantOp):
                constant = self.context.splat(value)
                assert constant is not None, "constants of a scalar computation are scalars"
                values[value] = Splat(constant, op.shape.dtype)
                continue
            operands = [values[operand] for operand in op.sources]
            out = scratch[slots.place[value]].index(2, Affine(), count)
            if op is ops[-1] and results.count(value) == 1:
                direct = rights[results.index(value)]
                if op.opcode in elementwise.ARITHMETIC or not any(operand is direct for operand in operands):
                    out = direct
            elementwise.emit(self.emitter, op, out, operands)
            values[value] = out
            self.release()
        moved = [(right, values[value]) for right, value in zip(rights, results, strict=True)]
        for right, source in moved:
            if source is not right:
                assert isinstance(source, Block | Splat)
                self.emitter.copy(right, source)
        for block in kept:
            self.pool.give_back(block)
