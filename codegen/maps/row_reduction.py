"""Folds the rows of tiles: on Vector, long sums on Scalar if it has less to do, integers exactly, on GpSimd."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps.bits import logical_alu
from neuronx_cc.codegen.maps.elementwise import ACTIVATION, ARITHMETIC
from neuronx_cc.codegen.maps.lifetimes import Member
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Space, Stream
from neuronx_cc.ir.isa.timing import F32, Timing
from neuronx_cc.ir.types import FLOATS, INTEGERS

LEAST_SUMMED = 512
"""Elements of a row that Scalar sums sooner than Vector, if that has more to do."""
MOST_MADE = 16
"""Of a tile, each made and added up by an instruction of its own."""
MOST_SUMMED = 4
"""Such rows, each with an instruction of its own."""


_MADE_AT_ONCE = frozenset(["add", "convert", "multiply", *ACTIVATION])
"""Ops whose result one instruction makes, of Scalar's perhaps."""


def sums_of(context: Context, kernel: Kernel, member: Member) -> dict[hlo.HloOp, hlo.ReduceOp]:
    """Ops whose results' rows are added up -> the sum. A value of a row that counts several times is no such result."""
    found: dict[hlo.HloOp, hlo.ReduceOp] = {}
    for op in kernel.ops:
        if (
            not isinstance(op, hlo.ReduceOp)
            or kernel.sums_columns(op)
            or context.combiners.get(op.to_apply.data[0]) != "add"
        ):
            continue
        source = trace(op.sources[0], kernel, member)
        made = source.owner if source is not None else None
        types = {hlo.shape_of(value).dtype for value in (op.sources[0], op.result, source or op.result)}
        if not isinstance(made, hlo.HloOp) or kernel.is_row(made.shape):
            continue
        if made.opcode in _MADE_AT_ONCE and types == {"f32"}:
            found.setdefault(made, op)
    return found


def only_on_vector(
    ops: Sequence[hlo.HloOp],
    within: Container[hlo.HloOp],
    sums: Mapping[hlo.HloOp, hlo.ReduceOp],
    is_array: Callable[[hlo.SSAValue], bool],
    size: int,
    tiles: Mapping[hlo.SSAValue, Block],
) -> dict[hlo.HloOp, int]:
    """Those of ``ops`` that no other engine can do -> elements that Vector reads, of ``size`` a partition.

    ``within``: ops that another's instruction does, or an activation; ``sums``: those of ops that may add them up;
    ``is_array``: whether an operand has several values a partition; ``tiles``: of what lies on chip already.
    """
    found: dict[hlo.HloOp, int] = {}
    for op in ops:
        arrays = {operand for operand in op.sources if is_array(operand)}
        if op in within or not arrays or hlo.shape_of(op.sources[0]).dtype not in FLOATS:
            continue
        if isinstance(op, hlo.ReduceOp) and op not in sums.values():
            found[op] = size
        elif op.opcode in ARITHMETIC and len(arrays) == 2:
            narrow = all(hlo.shape_of(value).dtype == "bf16" for value in (*op.sources, op.results[0]))
            in_bank = any(tile is not None and tile.alloc.space is Space.PSUM for tile in map(tiles.get, op.sources))
            found[op] = size if narrow or in_bank else 2 * size
    return found


def only_on_scalar(ops: Sequence[hlo.HloOp], kernel: Kernel, sums: Mapping[hlo.HloOp, hlo.ReduceOp]) -> list[hlo.HloOp]:
    """Those of ``ops`` on whole rows that Scalar does: its functions, squares, and what it adds up as it makes it."""
    arrays = [op for op in ops if not kernel.is_row(op.shape) and op.shape.dtype in FLOATS]
    return [
        op
        for op in arrays
        if op.opcode in ACTIVATION
        or op in sums
        or (isinstance(op, hlo.MultiplyOp) and op.operands[0] is op.operands[1])
    ]


def sums_as_made(timing: Timing, sizes: Sequence[int], reduced: Sequence[bool]) -> bool:
    """Whether Scalar makes rows of a tile and adds them up sooner, one by one, than it makes all and Vector adds."""
    rows = prod(size for size, folded in zip(sizes, reduced, strict=True) if not folded)
    row = prod(sizes) // max(1, rows)
    one = timing.engine("activation", Stream.SCALAR, row, (F32, F32), alu=("copy",), flags=("accumulate",)).bound
    made = timing.engine("activation", Stream.SCALAR, rows * row, alu=("copy",)).bound
    added = timing.engine("tensor_reduce", Stream.VECTOR, rows * row, alu=("add",)).bound
    return rows <= MOST_MADE and rows * one <= made + added


def reduce_rows(e: Emitter, opcode: str, out: Block, source: Block, own: bool = False, copies: bool = False) -> None:
    """Fold the free dims of ``source`` that ``out`` does not have (the trailing ones) into ``out``.

    ``own``: ``source`` is a scratch tile, which an activation may write as it sums long rows; ``copies``: else it may
    write another one.
    """
    dtype = source.dtype
    if dtype in INTEGERS:
        _reduce_integers(e, opcode, out, source)
        return
    alu = logical_alu(opcode) if dtype == "pred" else ARITHMETIC[opcode]
    outer = len(out.dims)
    size = prod(atom.size for atom in source.dims[1:])
    source = _merge_tail(source, outer)
    balanced = e.scalar_is_free(size)
    if (
        (own or copies)
        and balanced
        and alu == "add"
        and out.dtype == source.dtype == "f32"
        and len(source.dims) == outer + 1
    ):
        rows = prod(atom.size for atom in out.dims[1:])
        if outer <= 2 and rows <= MOST_SUMMED and size >= LEAST_SUMMED * rows:
            e.scalar_load += size
            copied = source if own else e.scratch(source, "f32")
            for row in range(rows):
                to, of, made = (x.index(1, Affine(row)) if outer == 2 else x for x in (out, source, copied))
                e.builder.emit("activation", Stream.SCALAR, [made, to], [of], ["copy"], [1.0], ["accumulate"])
            return
    e.vector_load += max(64, size)
    _reduce(e, alu, out, source)


def _merge_tail(source: Block, outer: int) -> Block:
    """Merge the reduced dims where their strides allow."""
    dims = list(source.dims)
    index = outer
    while index + 1 < len(dims):
        if dims[index].stride == dims[index + 1].stride * dims[index + 1].size:
            dims[index : index + 2] = [replace(dims[index + 1], size=dims[index].size * dims[index + 1].size)]
        else:
            index += 1
    return replace(source, dims=tuple(dims))


def _reduce(e: Emitter, alu: str, out: Block, source: Block) -> None:
    """On Vector, which takes four free dims: more of them are loops over the dims that are kept."""
    if len(source.dims) > MAX_FREE_DIMS + 1 and len(out.dims) > 1:
        with e.builder.loop(out.dims[1].size) as index:
            _reduce(e, alu, out.index(1, index), source.index(1, index))
        return
    if len(source.dims) > MAX_FREE_DIMS + 1:
        raise AssertionError("a reduction over more than four strided dims")
    e.builder.emit("tensor_reduce", Stream.VECTOR, [out], [source], alu=[alu])


def _reduce_integers(e: Emitter, opcode: str, out: Block, source: Block) -> None:
    """Exact integer fold by halving: log2(n) GpSimd instructions over a scratch copy."""
    outer = len(out.dims)
    work = e.scratch(source, source.dtype)
    e.over("tensor_copy", Stream.GPSIMD, [work], [source])
    work = _merge_tail(work, outer)
    assert len(work.dims) <= outer + 1, "scratch tiles are dense"
    if len(work.dims) == outer:
        e.over("tensor_copy", Stream.GPSIMD, [out], [work])
        return
    count = work.dims[outer].size
    while count > 1:
        half = count // 2
        low = work.index(outer, Affine(0), half)
        high = work.index(outer, Affine(count - half), half)
        e.over("int_tensor_tensor", Stream.GPSIMD, [low], [low, high], alu=[opcode])
        count -= half
    e.over("tensor_copy", Stream.GPSIMD, [out], [work.index(outer, Affine(0))])
