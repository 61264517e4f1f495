"""Reductions that no map kernel takes, over any set of dims: ``reduce_plan`` says how, nothing is decided here.

A block is what belongs to some of the kept elements: its tiles are folded one after the other into sums that lie apart
on the partitions, in SBUF or PSUM; then these are folded across the partitions and stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.transpose import Transposer
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring, emit_over, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter, Splat
from neuronx_cc.codegen.emission.ones import add_up
from neuronx_cc.codegen.emission.tiles import TilePool, no_room, tile_in
from neuronx_cc.codegen.emission.views import Atom, View, align, nested, outermost, unplaced
from neuronx_cc.codegen.maps import bits, elementwise
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.maps.row_reduction import reduce_rows
from neuronx_cc.codegen.movement.concatenate_kernel import fill
from neuronx_cc.codegen.movement.fill import load_scalar
from neuronx_cc.codegen.movement.relayout_plan import LEAST_ELEMENTS
from neuronx_cc.codegen.movement.straight import direct, pays
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.codegen.movement.transpose_kernel import turn_squares
from neuronx_cc.codegen.reductions.reduce_plan import (
    BUFFERED,
    BUFFERS,
    Dim,
    Problem,
    Schedule,
    choose,
    estimate,
    gathers,
    is_one_tile,
    is_summed_by_folds,
    on_tensor,
)
from neuronx_cc.codegen.view_ops import squeezed
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.values import identity_of

SHARE = (4, 5)
"""Of the largest gap in SBUF: what tiles may take."""
UNROLLED = 4
"""Banks of transposed sums that are no loop."""


def lower(context: Context, op: hlo.ReduceOp, step: int) -> None:
    """Emit a single-operand reduction with a simple combiner; EVRF001 for other forms."""
    del step
    opcode = context.combiners.get(op.to_apply.data[0])
    if len(op.operands) != 2 or opcode is None:
        raise CompileError(
            "EVRF001",
            "reduce with this computation has no code generation",
            "use sum, product, min, max, and, or, argmin or argmax",
            op.loc,
        )
    operand, init = op.operands
    if hlo.shape_of(operand).size == 0:
        context.homes[op.result] = [context.new_hbm(op.result)]
        fill(context, context.homes[op.result][0], init)
        return
    source = context.load_casts.get(operand, operand)
    target = _target(context, op, context.views(source)[0])
    context.homes[op.result] = [target]
    found = []
    for view in context.views(source):
        problem = _problem(context, op, opcode, view, target) if view.in_sbuf else None
        schedule = choose(problem, context.timing) if problem is not None else None
        if problem is not None and schedule is not None:
            found.append((estimate(problem, schedule, context.timing), view, problem, schedule))
    if not found:
        view = context.hbm(source)
        problem = _problem(context, op, opcode, view, target)
        assert problem is not None, "HBM views align"
        schedule = choose(problem, context.timing)
        if schedule is None:
            raise no_room("reduction", problem.room, op.loc)
        found.append((0.0, view, problem, schedule))
    _, view, problem, schedule = min(found, key=lambda each: each[0])
    if on_tensor(problem, schedule, context.timing):
        context.fixed.identity("f32")
    with TilePool(context.builder, "reduction") as pool:
        partitions = schedule.partitions
        ones = pool.apart([1], view.dtype if schedule.engine is Stream.TENSOR else "f32", partitions)
        zero = pool.apart([1], "f32", 1)
        for tile, value in ((ones, 1.0), (zero, 0.0)):
            context.builder.emit("memset", Stream.VECTOR, [tile], [], imm=[value])
        _Reduce(context, op, view, target, problem, schedule, pool, ones, zero).emit()


def _target(context: Context, op: hlo.ReduceOp, source: View) -> View:
    """The result's home: its dims in the order in which they lie in ``source`` where a DMA would store single elements
    otherwise, and a copy in the order of the result takes less time.
    """
    shape, folded = op.shape, op.dimensions.data
    kept = [atoms for axis, atoms in enumerate(source.dims) if axis not in folded]
    apart = max((abs(atom.stride) * atom.size for atoms in kept for atom in atoms), default=0)
    steps = [[apart if atom.partition else abs(atom.stride) for atom in atoms] for atoms in kept]
    order = sorted(range(shape.rank), key=lambda axis: (shape.dims[axis] != 1, -min(steps[axis], default=0)))
    there = outermost(unplaced(shape.dtype, shape.dims), order)
    if shape.size < LEAST_ELEMENTS or not pays(context, op.result, there, *direct(context, there)):
        return context.new_hbm(op.result)
    return outermost(context.own_hbm(op.result, shape), order)


def _problem(context: Context, op: hlo.ReduceOp, opcode: str, view: View, target: View) -> Problem | None:
    """The reduction of ``view`` into ``target``; None where their dims do not nest."""
    folded = list(op.dimensions.data)
    kept = [axis for axis in range(len(view.dims)) if axis not in folded]
    kept_view, folded_view = (squeezed(view.transpose(axes)) for axes in (kept, folded))
    result = squeezed(target)
    kept_space, folded_space = align([kept_view, result], result.shape), align([folded_view], folded_view.shape)
    if kept_space is None or folded_space is None:
        return None
    dims = [Dim(b.size, b.stride, True, a.stride, b.partition) for b, a in zip(*kept_space.atoms, strict=True)]
    dims += [Dim(atom.size, atom.stride, False, 0, atom.partition) for atom in folded_space.atoms[0]]
    if sum(dim.partition for dim in dims) > 1 or (view.in_sbuf and not any(dim.partition for dim in dims)):
        return None
    dims = sorted(dims, key=lambda dim: (not dim.partition, -abs(dim.stride))) or [Dim(1, 0, True)]
    dtype = op.shape.dtype
    acc = "f32" if dtype in FLOATS else dtype
    room = context.builder.sbuf.largest_gap() * SHARE[0] // SHARE[1]
    return Problem(tuple(dims), view.dtype, acc, opcode, room)


@dataclass(slots=True)
class _Part:
    """Some of a dim: ``partitions`` indices on the partitions, ``size`` elements in the free dims of a tile."""

    at: Affine
    partitions: int
    size: int


@dataclass(slots=True)
class _Reduce:
    context: Context
    op: hlo.ReduceOp
    view: View
    target: View
    problem: Problem
    schedule: Schedule
    pool: TilePool
    ones: Block
    """One a partition: what adds them up."""
    zero: Block
    emitter: Emitter = field(init=False)
    transposer: Transposer | None = None
    rings: dict[str, Ring] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.emitter = Emitter(self.context.builder, self._scratch)
        if on_tensor(self.problem, self.schedule, self.context.timing):
            banks = self.pool.psum(BUFFERS, "transposed")
            self.transposer = Transposer(self.context, self.emitter, banks, UNROLLED, self._bits)

    def emit(self) -> None:
        """Loop over the blocks of kept elements: fold the tiles of each, then its partitions, and store."""
        dims = self.problem.dims
        kept, folded = ([dim for dim, each in enumerate(dims) if each.kept is which] for which in (True, False))
        nothing = _Part(Affine(), 1, 1)
        for block in self._over(kept, [nothing for _ in dims]):
            if is_summed_by_folds(self.problem, self.schedule):
                for tile in self._over(folded, block):
                    self._finish(tile, self._alone(tile))
                continue
            widest = [
                part if dims[dim].kept else _Part(Affine(), self.schedule.on_partitions[dim], self.schedule.pieces[dim])
                for dim, part in enumerate(block)
            ]
            sums = self._sums(widest)
            for tile in self._over(folded, block):
                self._fold(tile, widest, sums)
            self._finish(widest, sums)

    # ---- loops ------------------------------------------------------------------------------------------------

    def _over(self, dims: Sequence[int], parts: list[_Part]) -> Iterator[list[_Part]]:
        """All tiles along ``dims``, as the parts of every dim, each inside its loops."""
        if not dims:
            yield parts
            return
        for part in self._parts(dims[0]):
            yield from self._over(dims[1:], [*parts[: dims[0]], part, *parts[dims[0] + 1 :]])

    def _parts(self, index: int) -> Iterator[_Part]:
        """The parts of a dim: first those that fill their partitions, then what is left."""
        size, piece, partitions = (
            self.problem.dims[index].size,
            self.schedule.pieces[index],
            self.schedule.on_partitions[index],
        )
        if index != self.schedule.last:
            for at, count in self.context.builder.pieces(size, piece * partitions):
                yield _Part(at, count // piece if partitions > 1 else 1, piece if partitions > 1 else count)
            return
        inner = self.schedule.inner
        for at, count in self.context.builder.pieces(size, partitions * inner):
            for first, several, each in self.context.builder.tiles(count, inner):
                for start, free in self.context.builder.pieces(each, piece):
                    yield _Part(at + first + start, several, free)

    # ---- a tile -----------------------------------------------------------------------------------------------

    def _fold(self, tile: list[_Part], widest: list[_Part], sums: Block) -> None:
        source = self._load(tile)
        partitions, dims = source.dims[0].size, self.problem.dims
        if self.schedule.engine is Stream.TENSOR:
            self._multiply(source, sums)
            return
        kept = [dim + 1 for dim in range(len(dims)) if dims[dim].kept]
        folded = [dim + 1 for dim in range(len(dims)) if not dims[dim].kept and tile[dim].size > 1]
        acc = replace(sums, dims=(replace(sums.dims[0], size=partitions), *sums.dims[1:]))
        part = source.select([0, *kept])
        if folded:
            moving = [dim for dim in kept if tile[dim - 1].size > 1]
            part = self._tile("part", [tile[dim - 1].size for dim in moving], self.problem.acc, partitions)
            reduce_rows(self.emitter, self.problem.opcode, part, source.select([0, *moving, *folded]))
            acc = acc.of((acc.dims[0], *(atom for atom in acc.dims[1:] if atom.size > 1)))
        elementwise.emit_binary(self.emitter, self.problem.opcode, self.problem.acc, acc, acc, part)

    def _alone(self, tile: list[_Part]) -> Block:
        """The sums of a block of one tile: what that folds to, or what it is."""
        source, dims, acc = self._load(tile), self.problem.dims, self.problem.acc
        kept, folded = ([at for at, dim in enumerate(dims) if dim.kept is which] for which in (True, False))
        if all(tile[dim].size == 1 for dim in folded):
            part = source.select([0, *(dim + 1 for dim in kept)])
            if part.dtype == acc and part.is_dense:
                return part
            sums = self._tile("sums", [atom.size for atom in part.dims[1:]], acc, part.dims[0].size)
            self.emitter.copy(sums, part)
            return sums
        sums = self._tile("sums", [tile[dim].size for dim in kept], acc, source.dims[0].size)
        moving = [at for at, dim in enumerate(kept) if tile[dim].size > 1]
        part = source.select([0, *(kept[at] + 1 for at in moving), *(dim + 1 for dim in folded if tile[dim].size > 1)])
        reduce_rows(self.emitter, self.problem.opcode, sums.select([0, *(at + 1 for at in moving)]), part)
        return sums

    def _load(self, tile: list[_Part]) -> Block:
        """[partitions, a part of every dim] of the operand."""
        dims, offset = self.problem.dims, self.view.start
        for part, dim in zip(tile, dims, strict=True):
            if not dim.partition:
                offset = offset + part.at * dim.stride
        partitions = prod(part.partitions for part in tile)
        free = tuple(Atom(part.size, dim.stride) for part, dim in zip(tile, dims, strict=True))
        if self.problem.on_chip:
            free = tuple(Atom(1, 0) if dim.partition else atom for atom, dim in zip(free, dims, strict=True))
            return Block(self.view.alloc, self.view.dtype, offset, (Atom(partitions, 1, True), *free))
        source = Block(self.view.alloc, self.view.dtype, offset, (self._rows_of(tile, [d.stride for d in dims]), *free))
        loaded = self._tile("operand", [part.size for part in tile], self.view.dtype, partitions)
        copy(self.context.builder, loaded, source, self._queue())
        return loaded

    def _rows_of(self, tile: Sequence[_Part], strides: Sequence[int]) -> Atom:
        """What lies on the partitions of an array whose dims have ``strides``."""
        inside = [dim for dim, part in enumerate(tile) if part.partitions > 1]
        rows = (Atom(tile[dim].partitions, strides[dim] * self.schedule.step(dim)) for dim in inside)
        return reduce(nested, rows) if inside else Atom(1, 0)

    def _queue(self) -> Stream:
        return load_stream(self.op.operands[0])

    def _multiply(self, source: Block, sums: Block) -> None:
        """Add up all partitions of a tile in PSUM: parts of it lie beside each other there, as many as fit."""
        builder = self.context.builder
        builder.emit("load_stationary", Stream.TENSOR, [], [self._ones(source)])
        if self._is_one_product([atom.size for atom in sums.dims[1:]]):
            emit_over(builder, "multiply_moving", Stream.TENSOR, [sums], [source])
        else:
            add_up(builder, sums, source)

    def _is_one_product(self, sizes: Sequence[int]) -> bool:
        """Whether all of a block is one, whose sums have ``sizes``, to which nothing is added."""
        return is_one_tile(self.problem, self.schedule) and prod(sizes) == self.schedule.columns

    def _ones(self, like: Block) -> Block:
        return self.ones.of((like.dims[0], self.ones.dims[1]))

    # ---- a block ----------------------------------------------------------------------------------------------

    def _sums(self, widest: list[_Part]) -> Block:
        """Where the tiles of a block are folded into, filled with the neutral element."""
        neutral = identity_of(self.problem.opcode, self.problem.acc)
        assert neutral is not None, "simple combiners have an identity"
        builder, kept = self.context.builder, [dim.kept for dim in self.problem.dims]
        if self.schedule.engine is Stream.TENSOR:
            bank = self.rings.get("bank") or self.rings.setdefault("bank", self.pool.psum(BUFFERS, "sums"))
            sizes = self._columns(widest)
            sums = tile_in(builder, bank, sizes, "f32", 1)
            if self._is_one_product(sizes):
                return sums
            # by the engine that does not finish the sums before these, or TensorE would wait until it has
            if any(size > 1 and not stays for size, stays in zip(sizes, kept, strict=True)):
                nothing = replace(self.zero, dims=(sums.dims[0], Atom(prod(sizes), 0)))
                builder.emit("activation", Stream.SCALAR, [sums.flat()], [nothing], ["copy"], [1.0])
            else:
                builder.memset(sums.flat(), 0.0)
            return sums
        sizes = [part.size for part, stays in zip(widest, kept, strict=True) if stays]
        sums = self._tile("sums", sizes, self.problem.acc, prod(part.partitions for part in widest))
        builder.memset(sums.flat(), neutral + 0)  # sums start from +0, not from -0
        return sums

    def _columns(self, widest: list[_Part]) -> list[int]:
        """Elements of every dim that lie beside each other in a bank: what is kept, and the more of the others."""
        kept = [dim.kept for dim in self.problem.dims]
        left = self.context.sizes.bank_columns // prod(p.size for p, stays in zip(widest, kept, strict=True) if stays)
        sizes = []
        for part, stays in reversed(list(zip(widest, kept, strict=True))):
            sizes.append(part.size if stays else min(part.size, left))
            left //= 1 if stays else sizes[-1]
        return sizes[::-1]

    def _finish(self, widest: list[_Part], sums: Block) -> None:
        """Fold what is left of a block, and store it."""
        dims = self.problem.dims
        kept = [dim for dim in range(len(dims)) if dims[dim].kept]
        if self.schedule.engine is Stream.TENSOR:
            folded = [dim for dim in range(len(dims)) if not dims[dim].kept and sums.dims[dim + 1].size > 1]
            moving = [dim for dim in kept if widest[dim].size > 1]
            total = self._tile("total", [widest[dim].size for dim in moving], "f32", 1)
            reduce_or_copy = sums.select([0, *(dim + 1 for dim in (*moving, *folded))])
            if folded:
                reduce_rows(self.emitter, "add", total, reduce_or_copy)
            else:
                self.emitter.leave(total, reduce_or_copy)
            self._store(total, self._result(widest, moving, Atom(1, 0)))
            return
        inside = [dim for dim in range(self.schedule.first, self.schedule.last + 1) if widest[dim].partitions > 1]
        if all(dims[dim].kept for dim in inside):
            self._store(sums, self._result(widest, kept, self._rows_of(widest, [dim.out for dim in dims])))
        elif not any(dims[dim].kept for dim in inside) and (
            self.problem.adds or gathers(self.problem, self.schedule, self.context.timing)
        ):
            total = self._tile("total", [widest[dim].size for dim in kept], self.problem.acc, 1)
            self._across(total.flat(), sums.flat())
            self._store(total, self._result(widest, kept, Atom(1, 0)))
        else:
            self._transposed(widest, sums, kept, inside)

    def _result(self, widest: list[_Part], free: Sequence[int], rows: Atom) -> Block:
        """[``rows``, the dims ``free``] of the result."""
        dims, out = self.problem.dims, self.target.start
        for part, dim in zip(widest, dims, strict=True):
            out = out + part.at * (dim.out if dim.kept else 0)
        atoms = tuple(Atom(widest[dim].size, dims[dim].out) for dim in free)
        return Block(self.target.alloc, self.target.dtype, out, (rows, *atoms))

    def _across(self, total: Block, row: Block) -> None:
        """Fold all partitions: a product with ones for float sums, GpSimd for what is no word."""
        builder, columns = self.context.builder, row.dims[1].size
        if self.problem.adds:
            builder.emit("load_stationary", Stream.TENSOR, [], [self._ones(row)])
            bank = self.rings.get("bank") or self.rings.setdefault("bank", self.pool.psum(BUFFERS, "column sums"))
            most = builder.sizes.bank_columns
            for start in range(0, columns, most):
                width = min(most, columns - start)
                slot = tile_in(builder, bank, [width], "f32", several=True)
                builder.emit("multiply_moving", Stream.TENSOR, [slot], [row.index(1, Affine(start), width)])
                self.emitter.leave(total.index(1, Affine(start), width), slot)
            return
        if self.problem.acc == "pred":
            name = bits.logical_alu(self.problem.opcode)
        else:
            name = {**elementwise.ARITHMETIC, **bits.BITWISE}[self.problem.opcode]
        builder.emit("partition_reduce", Stream.GPSIMD, [total], [row], [name])

    def _transposed(self, widest: list[_Part], sums: Block, kept: Sequence[int], inside: Sequence[int]) -> None:
        """Sums change places with their partitions, whose reduced dims are folded then."""
        dims, acc = self.problem.dims, self.problem.acc
        out = self._result(widest, kept, Atom(1, 0))
        sums, out = merge_free([sums, out])
        if len(sums.dims) == 1:
            sums, out = (block.of((block.dims[0], Atom(1, 4))) for block in (sums, out))
        partitions = tile_partitions(widest, inside)
        order = [at for at, dim in enumerate(inside) if dims[dim].kept]
        order += [at for at, dim in enumerate(inside) if not dims[dim].kept]
        stay = [at for at in order if dims[inside[at]].kept]
        atoms = [Atom(size, 4 * prod(partitions[dim + 1 :])) for dim, size in enumerate(partitions)]
        steps = [Atom(partitions[dim], dims[inside[dim]].out * self.schedule.step(inside[dim])) for dim in stay]
        for row, there in self._rows(sums, out):
            for at, several, count in self.context.builder.tiles(row.dims[1].size, self.context.sizes.partitions):
                # neighbours on a partition, for runs
                row_step, step = row.dims[1].stride, there.dims[1].stride
                part = row.moved(at * row_step).of(
                    (row.dims[0], Atom(several, row_step), Atom(count, row_step * several))
                )
                place = there.moved(at * step).of((Atom(count, step * several), Atom(several, step), *steps))
                transposed = self._tile("transposed", [several, prod(partitions)], acc, count)
                self._turn(transposed, part)
                total = self._tile("transposed total", [several, *(partitions[dim] for dim in stay)], acc, count)
                source = transposed.of((*transposed.dims[:2], *(atoms[dim] for dim in order)))
                reduce_rows(self.emitter, self.problem.opcode, total, source)
                self._store(total, place)

    def _turn(self, target: Block, source: Block) -> None:
        """``target[column, which, partition] = source[partition, which, column]``."""
        if self.transposer is not None:
            self.transposer.transpose(source, target)
            return
        for which in self.context.builder.each(source.dims[1].size):
            turn_squares(self.context.builder, target.index(1, which), source.index(1, which))

    def _bits(self, dtype: str, sizes: Sequence[int], partitions: int) -> Block:
        return self._tile("bits", sizes, dtype, partitions)

    def _rows(self, sums: Block, out: Block) -> Iterator[tuple[Block, Block]]:
        """Both blocks with one free dim: loops over the others."""
        if len(sums.dims) == 2:
            yield sums, out
            return
        with self.context.builder.loop(sums.dims[1].size) as index:
            yield from self._rows(sums.index(1, index), out.index(1, index))

    def _store(self, total: Block, target: Block) -> None:
        """Combine with the initial value, cast, and store [partitions, ...]."""
        init, problem, builder = self.op.operands[1], self.problem, self.context.builder
        constant, partitions = self.context.splat(init), total.dims[0].size
        if constant is None:
            start = self._tile("init", [1], hlo.shape_of(init).dtype, partitions)
            load_scalar(builder, start, self.context.hbm(init))
            elementwise.emit_binary(self.emitter, problem.opcode, problem.acc, total, total, start.repeated(total))
        elif constant != identity_of(problem.opcode, problem.acc):
            initial = Splat(constant, problem.acc)
            elementwise.emit_binary(self.emitter, problem.opcode, problem.acc, total, total, initial)
        if self.op.shape.dtype != problem.acc:
            sizes = [atom.size for atom in total.dims[1:]]
            cast = self._tile(f"cast of {prod(sizes)}", sizes, self.op.shape.dtype, partitions)
            self.emitter.copy(cast, total)
            total = cast
        copy(builder, target, total, Stream.DMA_STORE)

    # ---- tiles ------------------------------------------------------------------------------------------------

    def _tile(self, name: str, sizes: Sequence[int], dtype: str, partitions: int) -> Block:
        """The next buffer of the ring ``name``, which is made at its first use, the largest."""
        if name not in self.rings:
            counts = {"operand": BUFFERED, "init": 1}
            nbytes = prod(sizes) * itemsize(dtype)
            self.rings[name] = self.pool.ring(nbytes, counts.get(name, BUFFERS), name)
        return tile_in(self.context.builder, self.rings[name], sizes, dtype, partitions)

    def _scratch(self, like: Block, dtype: str) -> Block:
        sizes = [atom.size for atom in like.dims[1:]]
        return self._tile(f"scratch of {prod(sizes) * itemsize(dtype)}", sizes, dtype, like.dims[0].size)


def tile_partitions(widest: Sequence[_Part], inside: Sequence[int]) -> list[int]:
    """Partitions of the dims that lie on the partitions."""
    return [widest[dim].partitions for dim in inside]
