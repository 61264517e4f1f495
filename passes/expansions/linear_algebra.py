"""Factorisations and triangular systems as dots, row operations and counted loops.

All functions take and give batches of matrices, ``[batch, rows, columns]`` of f32 or c64. Work that depends on itself
column by column is a loop over columns of a block; everything else is a product of blocks. Dots carry the highest
precision. Sources: the LAPACK routines potrf, trsm, geqrf (larfg) and orgqr say what is computed; N. J. Higham,
"Accuracy and Stability of Numerical Algorithms", chapters 8, 10, 14 and 19 how.
"""

from collections.abc import Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.factors import CHOLESKY, MOST_COLUMNS
from neuronx_cc.passes.expansions import small_matrices
from neuronx_cc.passes.expansions.build import Build, Value

BLOCK = 64
"""Columns of a block: large enough for TensorE, small enough that an inverted triangle keeps its accuracy."""
SEVERAL = 16
"""Triangles of which one product less takes less time than no transposes."""
FEW_BLOCKS = 4
"""Blocks of a triangle that are no loop."""


def dims_of(value: Value) -> tuple[int, ...]:
    return hlo.shape_of(value).dims


def is_complex(value: Value) -> bool:
    return hlo.shape_of(value).dtype == "c64"


# elements


def real(b: Build, x: Value) -> Value:
    return b.op(hlo.RealOp, [x], "f32", dims_of(x)) if is_complex(x) else x


def imag(b: Build, x: Value) -> Value:
    return b.op(hlo.ImagOp, [x], "f32", dims_of(x)) if is_complex(x) else b.number_like(0, x)


def conj(b: Build, x: Value) -> Value:
    return like(b, x, real(b, x), b.neg(imag(b, x))) if is_complex(x) else x


def like(b: Build, x: Value, re: Value, im: Value | None = None) -> Value:
    """The number ``re + i im`` in ``x``'s element type."""
    if not is_complex(x):
        return re
    return b.op(hlo.ComplexOp, [re, im if im is not None else b.number_like(0, re)], "c64", dims_of(re))


def times(b: Build, x: Value, factor: Value) -> Value:
    """``x`` times the real array ``factor``."""
    if not is_complex(x):
        return b.mul(x, factor)
    return like(b, x, b.mul(real(b, x), factor), b.mul(imag(b, x), factor))


# matrices


def adjoint(b: Build, x: Value) -> Value:
    return conj(b, transposed(b, x))


def transposed(b: Build, x: Value) -> Value:
    return b.transpose(x, [0, 2, 1])


def product(b: Build, x: Value, y: Value) -> Value:
    """Matrix by matrix, for each of the batch."""
    return b.dot(x, y, ((2,), (1,)), ((0,), (0,)))


def where(b: Build, mask: np.ndarray, x: Value, other: Value) -> Value:
    """``x`` where the constant ``mask`` [rows, columns] is set, else ``other``."""
    return b.select(b.broadcast(b.array(mask, "pred"), dims_of(x), [1, 2]), x, other)


def masked(b: Build, mask: np.ndarray, x: Value) -> Value:
    return where(b, mask, x, b.number_like(0, x))


def lower_part(b: Build, x: Value) -> Value:
    _, rows, columns = dims_of(x)
    return masked(b, np.tri(rows, columns, dtype=np.bool_), x)


def upper_part(b: Build, x: Value) -> Value:
    _, rows, columns = dims_of(x)
    return masked(b, ~np.tri(rows, columns, k=-1, dtype=np.bool_), x)


def count_along(b: Build, x: Value, axis: int, index: Value, direction: str) -> Value:
    """pred of ``x``'s dims: the position along ``axis`` compared with the scalar ``index``."""
    dims = dims_of(x)
    line = b.compare(b.iota(dims[axis : axis + 1], 0), b.broadcast(index, dims[axis : axis + 1]), direction)
    return b.broadcast(line, dims, [axis])


def slab(b: Build, x: Value, axis: int, start: Value, size: int) -> Value:
    """``size`` rows or columns from ``start`` on."""
    sizes = list(dims_of(x))
    sizes[axis] = size
    return b.dynamic_slice(x, _starts(b, axis, start, len(sizes)), sizes)


def put_slab(b: Build, x: Value, part: Value, axis: int, start: Value) -> Value:
    return b.dynamic_update_slice(x, part, _starts(b, axis, start, len(dims_of(x))))


def _starts(b: Build, axis: int, start: Value, rank: int) -> list[Value]:
    zero = b.number(0, "s32")
    return [start if dim == axis else zero for dim in range(rank)]


def pad_diagonal(b: Build, x: Value, size: int) -> Value:
    """Square matrices with ones on the diagonal up to ``size``."""
    n = dims_of(x)[1]
    if n == size:
        return x
    grown = b.pad(x, [(0, 0), (0, size - n), (0, size - n)])
    ones = np.diag(np.arange(size) >= n)
    return where(b, ones, b.number_like(1, grown), grown)


# triangles


def lower_inverse(b: Build, lower: Value) -> tuple[Value, Value]:
    """The inverse of lower triangles, and its transpose: of blocks twice as large in each step.

    ``M`` holds the inverses of the diagonal blocks; with the blocks ``C`` between neighbours, ``M - M C M`` holds
    those of twice the size. Products contract the rows of both operands, so that TensorE takes them as they lie.
    """
    batch, size, _ = dims_of(lower)
    row, column = np.indices((size, size))
    eye = row == column
    diagonal = b.sum(masked(b, eye, lower), [2])
    inverse = b.div(b.number_like(1, diagonal), diagonal)
    result = turned = masked(b, eye, b.broadcast(inverse, dims_of(lower), [0, 1]))
    half = 1
    while half < size:
        between = (row // (2 * half) == column // (2 * half)) & (row // half != column // half) & (row > column)
        if batch > SEVERAL:
            result = b.sub(result, product(b, product(b, result, masked(b, between, lower)), result))
            half *= 2
            continue
        joined = by_rows(b, masked(b, between, lower), turned)
        result, turned = b.sub(result, by_rows(b, joined, result)), b.sub(turned, by_rows(b, result, joined))
        half *= 2
    return result, transposed(b, result) if batch > SEVERAL else turned


def by_rows(b: Build, x: Value, y: Value) -> Value:
    """``x^T y``, for each of the batch."""
    return b.dot(x, y, ((1,), (1,)), ((0,), (0,)))


def solve_lower(b: Build, lower: Value, right: Value, upper: bool = False) -> Value:
    """``x`` with ``lower x = right``, or with ``upper`` ``lower^T x = right``, for lower triangles (zero above)."""
    size = dims_of(right)[1]
    if size <= small_matrices.FEW and not is_complex(right):
        return small_matrices.solve_lower(b, lower, right, upper)
    blocks = -(-size // BLOCK)
    if blocks > FEW_BLOCKS:
        return _solved_in_turn(b, lower, right, upper)
    block = -(-size // blocks)
    starts = range(0, size, block)
    inverses = [lower_inverse(b, _part(b, lower, (start, start + block), (start, start + block))) for start in starts]
    found = dict[int, Value]()
    for start in reversed(starts) if upper else starts:
        inside = start, min(start + block, size)
        rest = b.slice(right, 1, *inside)
        for other, known in found.items():
            there = other, min(other + block, size)
            if upper:
                rest = b.sub(rest, by_rows(b, _part(b, lower, there, inside), known))
            else:
                rest = b.sub(rest, product(b, _part(b, lower, inside, there), known))
        triangle = _part(b, lower, inside, inside)
        inverse, turned = inverses[start // block]
        found[start] = _refined(b, (turned, transposed(b, triangle)) if not upper else (inverse, triangle), rest)
    return b.concatenate([found[start] for start in starts], 1)


def _part(b: Build, x: Value, rows: tuple[int, int], columns: tuple[int, int]) -> Value:
    _, height, width = dims_of(x)
    part = b.slice(x, 1, rows[0], min(rows[1], height))
    return b.slice(part, 2, columns[0], min(columns[1], width))


def _refined(b: Build, operands: tuple[Value, Value], right: Value) -> Value:
    """``inverse right`` of a matrix, with one correction by the residual; of both the transposes are given."""
    inverse, matrix = operands
    solution = by_rows(b, inverse, right)
    residual = b.sub(right, by_rows(b, matrix, solution))
    return b.add(solution, by_rows(b, inverse, residual))


def _solved_in_turn(b: Build, lower: Value, right: Value, upper: bool) -> Value:
    """The same for many blocks, in a loop. Reversing both dims of a matrix swaps triangles."""
    if upper:
        turned = b.reverse(transposed(b, lower), [1, 2])
        return b.reverse(_solved_in_turn(b, turned, b.reverse(right, [1]), False), [1])
    batch, size, _ = dims_of(right)
    blocks = -(-size // BLOCK)
    whole = blocks * BLOCK
    lower = pad_diagonal(b, lower, whole)
    right = b.pad(right, [(0, 0), (0, whole - size), (0, 0)])
    diagonal = _diagonal_blocks(b, lower, blocks)
    inverses, diagonal = lower_inverse(b, diagonal)[1], transposed(b, diagonal)

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        solution, lower, right, diagonal, inverses = state
        start = b.mul(index, b.number(BLOCK, "s32"))
        known = product(b, slab(b, lower, 1, start, BLOCK), solution)
        rest = b.sub(slab(b, right, 1, start, BLOCK), known)
        pick = b.mul(index, b.number(batch, "s32"))
        found = _refined(b, (slab(b, inverses, 0, pick, batch), slab(b, diagonal, 0, pick, batch)), rest)
        return put_slab(b, solution, found, 1, start), lower, right, diagonal, inverses

    solution = b.loop(blocks, [b.number_like(0, right), lower, right, diagonal, inverses], step)[0]
    return b.slice(solution, 1, 0, size)


def _diagonal_blocks(b: Build, x: Value, blocks: int) -> Value:
    """``[blocks * batch, BLOCK, BLOCK]``, block by block."""
    batch = dims_of(x)[0]
    cut = b.reshape(x, (batch, blocks, BLOCK, blocks, BLOCK))
    eye = b.broadcast(b.array(np.eye(blocks, dtype=np.bool_), "pred"), dims_of(cut), [1, 3])
    diagonal = b.sum(b.select(eye, cut, b.number_like(0, cut)), [3])
    return b.reshape(b.transpose(diagonal, [1, 0, 2, 3]), (blocks * batch, BLOCK, BLOCK))


# Cholesky


def cholesky(b: Build, x: Value) -> Value:
    """The lower factor of Hermitian matrices, of which the lower triangle is read; NaN where there is none."""
    batch, size, _ = dims_of(x)
    if not is_complex(x) and size <= small_matrices.FEW_IN_PLACE and batch > small_matrices.MANY:
        return _checked(b, small_matrices.cholesky(b, x))
    if not is_complex(x) and size <= FEW_BLOCKS * MOST_COLUMNS:
        return _called(b, x) if size <= MOST_COLUMNS else _by_blocks(b, x)
    if size <= BLOCK:
        return _checked(b, adjoint(b, _upper_factor(b, _hermitian(b, x))))
    blocks = -(-size // BLOCK)
    block = -(-size // blocks)
    whole = pad_diagonal(b, lower_part(b, x), blocks * block)

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        factor, whole = state
        start = b.mul(index, b.number(block, "s32"))
        known = product(b, factor, adjoint(b, slab(b, factor, 1, start, block)))
        panel = b.sub(slab(b, whole, 2, start, block), known)
        corner = slab(b, panel, 1, start, block)
        corner = adjoint(b, _upper_factor(b, _hermitian(b, corner))) if is_complex(x) else _called(b, corner)
        below = product(b, panel, conj(b, lower_inverse(b, corner)[1]))
        end = b.add(start, b.number(block, "s32"))
        kept = b.select(count_along(b, below, 1, end, "GE"), below, b.number_like(0, below))
        return put_slab(b, factor, put_slab(b, kept, corner, 1, start), 2, start), whole

    factor = b.loop(blocks, [b.number_like(0, whole), whole], step)[0]
    return _checked(b, b.slice(b.slice(factor, 1, 0, size), 2, 0, size))


def _by_blocks(b: Build, x: Value) -> Value:
    """Blocks of columns by the kernel; what is right of them is left with their products taken out."""
    batch, size, _ = dims_of(x)
    blocks = -(-size // MOST_COLUMNS)
    block = -(-size // blocks)
    left, columns = x, list[Value]()
    for start in range(0, size, block):
        end, rest = min(start + block, size), dims_of(left)[1]
        corner = _called(b, _part(b, left, (0, end - start), (0, end - start)))
        column = [b.number(0, "f32", (batch, start, end - start)), corner] if start else [corner]
        if end < size:
            below = transposed(b, _part(b, left, (end - start, rest), (0, end - start)))
            below = solve_lower(b, corner, below)
            left = b.sub(_part(b, left, (end - start, rest), (end - start, rest)), by_rows(b, below, below))
            column.append(transposed(b, below))
        columns.append(b.concatenate(column, 1))
    return _checked(b, b.concatenate(columns, 2))


def _called(b: Build, x: Value) -> Value:
    """As ``cholesky``, by one kernel."""
    return b.typed(hlo.CustomCallOp, [x], x.type, target=hlo.StrAttr(CHOLESKY))


def _hermitian(b: Build, x: Value) -> Value:
    """The matrix whose lower triangle is ``x``'s."""
    return where(b, np.tri(dims_of(x)[1], dtype=np.bool_), x, adjoint(b, x))


def _upper_factor(b: Build, x: Value) -> Value:
    """``u`` with ``u^H u = x``: row by row, each taken out of what is left."""
    batch, size, _ = dims_of(x)

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        (left,) = state
        row = b.reshape(slab(b, left, 1, index, 1), (batch, size))
        pivot = real(b, _element(b, row, index))
        root = b.each(hlo.SqrtOp, b.select(b.compare(pivot, b.number_like(0, pivot), "GT"), pivot, _nan(b, pivot)))
        scaled = times(b, row, b.broadcast(b.div(b.number_like(1, root), root), (batch, size), [0]))
        scaled = b.select(count_along(b, scaled, 1, index, "GE"), scaled, b.number_like(0, scaled))
        across, down = b.broadcast(scaled, dims_of(x), [0, 2]), b.broadcast(conj(b, scaled), dims_of(x), [0, 1])
        rest = b.sub(left, b.mul(down, across))
        rest = b.select(count_along(b, rest, 1, index, "GT"), rest, left)
        return [b.select(count_along(b, rest, 1, index, "EQ"), across, rest)]

    return upper_part(b, b.loop(size, [x], step)[0])


def _element(b: Build, rows: Value, index: Value) -> Value:
    """Element ``index`` of each row of ``[batch, size]``."""
    return b.reshape(slab(b, rows, 1, index, 1), dims_of(rows)[:1])


def _nan(b: Build, x: Value) -> Value:
    return b.number_like(float("nan"), x)


def _checked(b: Build, factor: Value) -> Value:
    """``factor``, or NaN all over where a pivot was not positive: that reaches the last diagonal element."""
    batch, size, _ = dims_of(factor)
    last = b.slice(b.slice(factor, 1, size - 1, size), 2, size - 1, size)
    last = b.reshape(real(b, last), (batch,))
    bad = b.broadcast(b.compare(last, last, "NE"), dims_of(factor), [0])
    return b.select(bad, like(b, factor, b.number(float("nan"), dims=dims_of(factor))), factor)


# Householder reflections


def householder_factor(b: Build, x: Value) -> tuple[Value, Value]:
    """LAPACK's geqrf: ``r`` above, the vectors below the diagonal, and ``tau`` ``[batch, min(rows, columns)]``."""
    batch, rows, columns = dims_of(x)
    scale = _scale(b, x)
    spread = b.broadcast(scale, dims_of(x), [0])
    count = min(rows, columns)
    tau_dims = (batch, count)

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        left, taus = state
        column = b.reshape(slab(b, left, 2, index, 1), (batch, rows))
        head = _element(b, column, index)
        tail = b.select(count_along(b, column, 1, index, "GT"), column, b.number_like(0, column))
        beta, tau, divisor = _reflector(b, head, _square_sum(b, tail))
        vector = b.div(tail, b.broadcast(divisor, dims_of(tail), [0]))
        vector = b.select(count_along(b, vector, 1, index, "EQ"), b.number_like(1, vector), vector)
        changed = _reflected(b, left, vector, conj(b, tau))
        new = b.select(count_along(b, column, 1, index, "EQ"), b.broadcast(beta, dims_of(column), [0]), vector)
        new = b.select(count_along(b, column, 1, index, "LT"), column, new)
        changed = b.select(count_along(b, left, 2, index, "GT"), changed, left)
        here = count_along(b, left, 2, index, "EQ")
        left = b.select(here, b.broadcast(new, dims_of(left), [0, 1]), changed)
        at = count_along(b, taus, 1, index, "EQ")
        return left, b.select(at, b.broadcast(tau, tau_dims, [0]), taus)

    start = times(b, x, b.div(b.number_like(1, spread), spread))
    taus = b.number(0, hlo.shape_of(x).dtype, tau_dims)
    result, taus = b.loop(count, [start, taus], step)
    above = ~np.tri(rows, columns, k=-1, dtype=np.bool_)
    return where(b, above, times(b, result, spread), result), taus


def _square_sum(b: Build, x: Value) -> Value:
    """Sum of squared lengths over dim 1 of ``[batch, size]``."""
    squares = b.mul(real(b, x), real(b, x))
    return b.sum(b.add(squares, b.mul(imag(b, x), imag(b, x))) if is_complex(x) else squares, [1])


def _scale(b: Build, x: Value) -> Value:
    """A power of two for each matrix that brings its largest part near 1: squares neither overflow nor vanish."""
    size = b.each(hlo.AbsOp, real(b, x))
    if is_complex(x):
        size = b.each(hlo.MaximumOp, size, b.each(hlo.AbsOp, imag(b, x)))
    top = b.reduce(hlo.MaximumOp, size, [1, 2], 0)
    bits = b.op(hlo.BitcastConvertOp, [top], "u32", dims_of(top))
    power = b.op(hlo.BitcastConvertOp, [b.each(hlo.AndOp, bits, b.number_like(0x7F800000, bits))], "f32", dims_of(top))
    tame = b.each(hlo.AndOp, _above(b, power, 2.0**-100), b.compare(power, b.number_like(2.0**100, power), "LT"))
    return b.select(tame, power, b.number_like(1, power))


def _above(b: Build, x: Value, bound: float) -> Value:
    return b.compare(x, b.number_like(bound, x), "GT")


def _reflector(b: Build, head: Value, tail_square: Value) -> tuple[Value, Value, Value]:
    """``beta``, ``tau`` and the divisor of the tail that make ``(head, tail)`` ``(beta, 0)``; all ``[batch]``."""
    alpha, turn = real(b, head), imag(b, head)
    square = b.add(b.mul(alpha, alpha), tail_square)
    flat = b.compare(tail_square, b.number_like(0, alpha), "EQ")
    if is_complex(head):
        square = b.add(square, b.mul(turn, turn))
        flat = b.each(hlo.AndOp, flat, b.compare(turn, b.number_like(0, turn), "EQ"))
    length = b.each(hlo.SqrtOp, square)
    right = b.compare(alpha, b.number_like(0, alpha), "GE")
    beta = b.select(flat, alpha, b.select(right, b.neg(length), length))
    below = b.select(flat, b.number_like(1, beta), beta)
    tau = b.select(flat, b.number_like(0, beta), b.div(b.sub(beta, alpha), below))
    twist = b.select(flat, b.number_like(0, beta), b.div(b.neg(turn), below))
    one = like(b, head, b.number_like(1, beta))
    divisor = b.select(flat, one, b.sub(head, like(b, head, beta)))
    return like(b, head, beta), like(b, head, tau, twist), divisor


def _reflected(b: Build, x: Value, vector: Value, tau: Value) -> Value:
    """``x - tau v (v^H x)``."""
    batch, rows, columns = dims_of(x)
    shadow = b.reshape(product(b, b.reshape(conj(b, vector), (batch, 1, rows)), x), (batch, columns))
    scaled = b.mul(vector, b.broadcast(tau, (batch, rows), [0]))
    return b.sub(x, b.mul(b.broadcast(scaled, dims_of(x), [0, 1]), b.broadcast(shadow, dims_of(x), [0, 2])))


def householder_product(b: Build, x: Value, taus: Value) -> Value:
    """LAPACK's orgqr: the first columns of the product of the reflections that ``householder_factor`` gave."""
    batch, rows, columns = dims_of(x)
    count = dims_of(taus)[1]

    def step(b: Build, index: Value, state: list[Value]) -> Sequence[Value]:
        result, x, taus = state
        at = b.sub(b.number(count - 1, "s32"), index)
        column = b.reshape(slab(b, x, 2, at, 1), (batch, rows))
        vector = b.select(count_along(b, column, 1, at, "GT"), column, b.number_like(0, column))
        vector = b.select(count_along(b, column, 1, at, "EQ"), b.number_like(1, vector), vector)
        return _reflected(b, result, vector, _element(b, taus, at)), x, taus

    eye = b.broadcast(b.array(np.eye(rows, columns), hlo.shape_of(x).dtype), dims_of(x), [1, 2])
    return b.loop(count, [eye, x, taus], step)[0]
