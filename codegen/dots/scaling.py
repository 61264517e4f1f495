"""Codes of 8 bits are scaled as they come to a contraction: by a number for each group of neighbouring terms of a row.

Vector takes half of the time for two arrays where one of them lies in PSUM, so that is where scales are repeated. Where
rows are neighbours in memory, and terms lie on the partitions, TensorE repeats them for the partitions of a group: a
product with a unit matrix that has each column several times, exact in FP32. One serves all neighbouring terms of a
partition. Where terms are neighbours and are to be transposed, scales of a row are on its partition, and each is one
number of an instruction, for the terms of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.dots.filler import Filler
from neuronx_cc.codegen.dots.problem import Scale, Segment
from neuronx_cc.codegen.dots.scaled import (
    BETWEEN,
    BUFFERS,
    Nest,
    by_scalar,
    in_one,
    most_codes,
    most_columns,
    near,
    number_name,
    size_of,
)
from neuronx_cc.codegen.dots.span import Span
from neuronx_cc.codegen.dots.tiles import UNROLLED_PIECES
from neuronx_cc.codegen.emission.builder import Affine, Block, Modifiers, Ring
from neuronx_cc.codegen.emission.tiles import tile_in
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Stream


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scales codes of one operand as they come."""

    filler: Filler
    banks: Ring
    """Of PSUM."""
    unit: Callable[[str], Block]
    """A unit matrix of a type."""
    numbers: dict[int, Block]
    """Of the scales that are numbers, what Scalar adds: [partitions]."""

    @classmethod
    def ready(cls, filler: Filler, banks: Ring, unit: Callable[[str], Block]) -> Scaling:
        """With what is made ahead of all loops."""
        numbers, builder = dict[int, Block](), filler.emitter.builder
        for at, (_, scale) in enumerate(filler.bound.scales):
            if scale.number is not None and scale.opcode != "multiply" and not filler.operand.transposed:
                tile = filler.tiles.tile("f32", [1], builder.sizes.rows, number_name(filler.operand, at), 1)
                builder.memset(tile, scale.number if scale.opcode == "add" else -scale.number)
                numbers[at] = tile.index(1, Affine())
        return cls(filler, banks, unit, numbers)

    @property
    def _scales(self) -> Sequence[tuple[View | None, Scale]]:
        return self.filler.bound.scales

    def fill(self, tile: Block, span: Span, segment: Segment) -> None:
        """Codes with terms on the partitions into ``tile`` [partitions, chunks, rows]."""
        filler, operand = self.filler, self.filler.operand
        nest, builder = Nest(filler.problem, operand), filler.emitter.builder
        source = filler.source(span, segment)
        others = [dim for dim in range(len(operand.contracted)) if dim != filler.problem.k_dim]
        sizes = [atom.size for atom in source.dims[1:-1]]
        strides = [tile.dims[1].stride * prod(sizes[at + 1 :]) for at in range(len(sizes))]
        chunks = [Atom(size, stride) for size, stride in zip(sizes, strides, strict=True)]
        target = tile.of((tile.dims[0], *chunks, tile.dims[2]))
        order = [1 + others.index(dim) for dim in (*nest.steps, *nest.beside)]
        source, target = (_with_all(each.select([0, *order, len(sizes) + 1]), nest) for each in (source, target))
        first = {dim: span.terms[others.index(dim)][0] for dim in nest.steps} if span.terms is not None else {}
        step, near, rows = (atom.size for atom in source.dims[1:])
        most = max(1, most_codes(self.filler.problem, self.filler.operand, builder.sizes) // near)
        for start, count, width in builder.tiles(rows, most):
            for number in builder.each(count, UNROLLED_PIECES):
                at = number * width + start
                for index in builder.each(step, UNROLLED_PIECES):
                    piece = [each.index(1, index).index(2, at, width) for each in (source, target)]
                    several = count * step > 1
                    raw = self._tile(operand.stored, [near, width], nest.partitions, "unconverted", several)
                    copy(builder, raw, piece[0], filler.bound.stream)
                    groups = {dim: first.get(dim, Affine()) + index for dim in nest.steps}
                    scales = [
                        self._come(nest, each, span, groups, (at, width), several) for each in range(len(self._scales))
                    ]
                    self._scale(nest, piece[1], raw, scales)
                    if filler.between is not None:
                        filler.between()

    def steps(self, columns: int) -> int:
        """After how many parts of a block with all terms others may do something (``Filler.between``)."""
        problem = self.filler.problem
        beside, most = (
            near(problem),
            most_codes(self.filler.problem, self.filler.operand, self.filler.emitter.builder.sizes),
        )
        return problem.products // beside * -(-columns // max(1, most // beside))

    def _come(
        self,
        nest: Nest,
        number: int,
        span: Span,
        at: dict[int, Affine],
        columns: tuple[Affine, int],
        several: bool,
    ) -> Block | None:
        """Scales [groups, rows] of one chunk; None of a number."""
        (view, scale), (start, width) = self._scales[number], columns
        if view is None:
            return None
        offset, pitch = view.start, scale.row
        for dim, atom in enumerate(self.filler.operand.free):
            offset = offset + span.at[dim] * (atom.stride * scale.row)
            pitch = atom.stride * scale.row if dim == span.tiled else pitch
        offset = offset + start * pitch
        for dim, index in at.items():
            offset = offset + index * (nest.pitch[dim] * scale.along)
        groups = nest.groups if scale.along else 1
        tile = self._tile(scale.stored, [width], groups, f"scales {number}", several)
        source = Block(view.alloc, view.dtype, offset, (Atom(groups, scale.along), Atom(width, pitch)))
        copy(self.filler.emitter.builder, tile, source, Stream.DMA_LOAD)
        return tile

    def _scale(self, nest: Nest, target: Block, raw: Block, scales: Sequence[Block | None]) -> None:
        builder, emitter = self.filler.emitter.builder, self.filler.emitter
        near, width = (atom.size for atom in raw.dims[1:])
        most = most_columns(self.filler.problem, self.filler.operand, builder.sizes)
        for start in range(0, width, most):
            count = min(most, width - start)
            made, into = (each.index(2, Affine(start), count) for each in (raw, target))
            for number, ((_, scale), rows) in enumerate(zip(self._scales, scales, strict=True)):
                out = into
                if number + 1 < len(scales):
                    out = self._tile(scale.dtype, [near, count], nest.partitions, "between", True, BETWEEN)
                if rows is None:
                    self._by_number(out, made, number)
                    made = out
                    continue
                bank = tile_in(builder, self.banks, [count], "f32", nest.partitions, True)
                builder.multiply(bank, self._repeats(nest, rows), rows.index(1, Affine(start), count))
                repeated = bank.of((bank.dims[0], Atom(near, 0), bank.dims[1]))
                emitter.over("tensor_tensor", Stream.VECTOR, [out], [made, repeated], alu=[scale.opcode])
                made = out

    def _by_number(self, out: Block, made: Block, at: int) -> None:
        scale, emitter = self._scales[at][1], self.filler.emitter
        if (added := self.numbers.get(at)) is None:
            emitter.over("activation", Stream.SCALAR, [out], [made], alu=["copy"], imm=[scale.number or 0.0])
            return
        added = added.of((Atom(out.dims[0].size, 1, True),))
        emitter.over("activation", Stream.SCALAR, [out], [made, added], alu=["copy"], imm=[1.0], flags=["bias"])

    def _repeats(self, nest: Nest, rows: Block) -> Block:
        """What repeats ``rows`` for the partitions of each group."""
        unit, groups = self.unit(rows.dtype), rows.dims[0].size
        repeats = Atom(nest.partitions // groups, 0)
        return unit.of((Atom(groups, 1, True), Atom(groups, unit.dims[1].stride), repeats))

    def rows(self, source: Block, target: Block, several: bool) -> None:
        """Codes ``source`` in HBM, [rows, ..., terms], into ``target`` on chip."""
        builder, terms = self.filler.emitter.builder, source.dims[-1].size
        last = len(source.dims) - 1
        if len(source.dims) > 2 and source.dims[1].size > 1:
            for index in builder.each(source.dims[1].size, UNROLLED_PIECES):
                self.rows(source.index(1, index), target.index(1, index), True)
            return
        if len(source.dims) > 2:
            self.rows(source.index(1, Affine()), target.index(1, Affine()), several)
            return
        size, most = size_of(self.filler.operand), most_codes(self.filler.problem, self.filler.operand, builder.sizes)
        most = most // size * size or most
        for start, count, width in builder.tiles(terms, min(terms, most)):
            for number in builder.each(count, UNROLLED_PIECES):
                at = number * width + start
                self._row_piece(source.index(last, at, width), target.index(last, at, width), several or terms > width)

    def _row_piece(self, source: Block, target: Block, several: bool) -> None:
        builder, emitter, bound = self.filler.emitter.builder, self.filler.emitter, self.filler.bound
        partitions, terms = (atom.size for atom in source.dims)
        raw = self._tile(source.dtype, [terms], partitions, "unconverted", several)
        copy(builder, raw, source, bound.stream)
        size, (first, begin) = size_of(self.filler.operand), self._groups_before(source)
        count = -(-(first + terms) // size)
        numbers = [self._of_rows(at, source, begin, count, several) for at in range(len(self._scales))]
        opcodes = [scale.opcode for _, scale in self._scales]
        if in_one(self.filler.operand) and first == 0 and terms % size == 0 and numbers[0] is not None:
            repeated = numbers[0].of((*numbers[0].dims, Atom(size, 0)))
            into, codes = (_in_groups(each, size) for each in (target, raw))
            emitter.over("tensor_tensor", Stream.VECTOR, [into], [codes, repeated], alu=opcodes)
            return
        part, done = by_scalar(self.filler.operand, builder.timing), 0.0
        immediates = [scale.number or 0.0 for _, scale in self._scales]
        flags = [f"ap{at}" for at, number in enumerate(numbers) if number is not None]
        for group in range(count):
            start, stop = max(0, group * size - first), min(terms, (group + 1) * size - first)
            out, read = (each.index(1, Affine(start), stop - start) for each in (target, raw))
            given = [each.index(1, Affine(group)) for each in numbers if each is not None]
            done += part
            if done >= 1:
                done -= 1
                emitter.over("activation", Stream.SCALAR, [out], [read, *given], alu=["copy"], flags=["scale_ap"])
            else:
                modifiers: Modifiers = {"alu": opcodes, "imm": immediates, "flags": flags}
                emitter.over("tensor_scalar", Stream.VECTOR, [out], [read, *given], **modifiers)

    def _groups_before(self, source: Block) -> tuple[int, Affine]:
        """How many terms of the first group of rows come before those of ``source``, and groups in memory before that.

        Those of rows before are whole groups, and so are those of iterations before.
        """
        size, begin = size_of(self.filler.operand), source.offset + self.filler.bound.view.start * -1
        first = begin.const % size
        return first, (begin + -first).parts(size)

    def _of_rows(self, at: int, source: Block, begin: Affine, count: int, several: bool) -> Block | None:
        """Scales [rows, groups] in FP32; None of a number."""
        view, scale = self._scales[at]
        if view is None:
            return None
        rows, size = source.dims[0], size_of(self.filler.operand)
        tile = self._tile("f32", [count], rows.size, f"scales {at}", several)
        dims = (Atom(rows.size, rows.stride // size * scale.along), Atom(count, scale.along))
        came = Block(view.alloc, view.dtype, view.start + begin * scale.along, dims)
        copy(self.filler.emitter.builder, tile, came, Stream.DMA_LOAD)
        return tile

    def _tile(
        self, dtype: str, sizes: Sequence[int], partitions: int, name: str, several: bool, buffers: int = BUFFERS
    ) -> Block:
        filler = self.filler
        return filler.tiles.tile(dtype, sizes, partitions, f"{filler.operand.name} {name}", buffers, several)


def _in_groups(block: Block, size: int) -> Block:
    """[rows, terms] with the groups of terms in a dim of their own."""
    rows, terms = block.dims
    return block.of((rows, Atom(terms.size // size, terms.stride * size), Atom(size, terms.stride)))


def _with_all(block: Block, nest: Nest) -> Block:
    """[partitions, steps, beside, rows], where one of these dims may be missing."""
    partitions, *middle, rows = block.dims
    steps = middle[: len(nest.steps)] or [Atom(1, 0)]
    beside = middle[len(nest.steps) :] or [Atom(1, 0)]
    return block.of((partitions, *steps, *beside, rows))
