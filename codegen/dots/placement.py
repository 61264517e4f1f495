"""Where operands and result of a contraction lie: homes are chosen, made and aligned, and the problem stated."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.across import home_across, near_home
from neuronx_cc.codegen.dots.contraction import Bound, Contraction, Placed
from neuronx_cc.codegen.dots.copies import copied, copies_of, dense_of, is_read_soon
from neuronx_cc.codegen.dots.homes import best_home, placed
from neuronx_cc.codegen.dots.inside import dim_around, lying_whole
from neuronx_cc.codegen.dots.problem import DECODED, Home, divisor, pe_dtype, run_of
from neuronx_cc.codegen.dots.scales import scales_of
from neuronx_cc.codegen.dots.statement import problems_of
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import View, linear, unplaced
from neuronx_cc.codegen.epilogues.arrays import views_of_cast
from neuronx_cc.codegen.formation.graph import base, is_view, repeats
from neuronx_cc.codegen.maps.plan import RESIDENT_STEPS, partitions_of, resident_view
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.codegen.movement.straight import interleaves
from neuronx_cc.codegen.movement.transfer import nanoseconds as transferred
from neuronx_cc.codegen.movement.transfer import transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import users
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.stored import FILLED

FILLED_IN_LOOPS = 8
"""As ``FILLED`` in loops and branches, where nothing overlaps that way."""
FEW = 24
"""Most rows that stream past a constant in 8 bits that is loaded as it lies."""
MANY_CHUNKS = 7
"""Least terms of their sums, in all partitions: with fewer, constants that are laid out are faster, which estimates do
not tell (``benchmarks/eight_bit_products.py``)."""
SMALL_RESULT = 64
"""A result of so many elements a partition stays on chip in any case."""


def place(context: Context, contraction: Contraction, bound: Sequence[Bound]) -> Placed:
    """Give the result a home, copy what does not align, and state the problem."""
    out = home_across(context, contraction, bound) or _choose_output(context, contraction, bound)
    if _scatters(context, contraction, bound[1].view, out):
        bound = (bound[0], dense_of(context, contraction, 1, bound[1]))
    context.homes[contraction.result] = [out]
    adds = _array_views(context, contraction, bound, out)
    return _nest(context, contraction, bound, out, adds)


# ---- operands -------------------------------------------------------------------------------------------------


def bind(context: Context, contraction: Contraction) -> tuple[Bound, Bound]:
    """Homes of both operands whose partitions TensorE can use."""
    lhs, rhs = (_bind(context, contraction, index) for index in (0, 1))
    k_lhs, k_rhs = (
        partitions_of(contraction.classes(bound.view, index)[2]) if bound.view.in_sbuf else None
        for index, bound in enumerate((lhs, rhs))
    )
    if k_lhs is not None and k_rhs is not None and k_lhs != k_rhs:
        lhs = Bound(lhs.value, context.hbm(lhs.value).transpose(contraction.order(0)), defined=lhs.defined)
    bound = [lhs, rhs]
    for index in (0, 1):
        if _as_it_lies(context, contraction, bound, index):
            bound[index] = _in_hbm(context, bound[index])
    return bound[0], bound[1]


def _bind(context: Context, contraction: Contraction, index: int) -> Bound:
    operand, order = contraction.op.operands[index], contraction.order(index)
    if (scaled := context.scaled.get(operand)) is not None:
        found = scales_of(contraction.op, index, scaled, context.hbm, context.sizes)
        assert found is not None, "arrays in HBM lie as they are stored"
        return Bound(scaled.codes.value, found[0], scales=found[1])
    value = context.source_of(operand)
    staged = context.residents.staged.get((contraction.op, index))
    if staged is not None:
        return Bound(value, staged.view, staged=staged)
    literal = context.literal(value)
    if literal is not None:
        return Bound(value, literal[0].transpose(order), literal[1])
    views = [view.transpose(order) for view in context.views(value)]
    if (listed := context.listed.get(base(value))) is not None:
        return Bound(value, views[0], listed=listed)
    ahead, free, _ = map(len, contraction.sizes(index))
    views.sort(key=lambda view: interleaves(view, range(ahead), range(ahead + free, len(order))))
    for view in views if hlo.shape_of(value).dtype not in DECODED else ():
        batch, rows, contracted = contraction.classes(view, index)
        usable = batch.partition_atom is None and view.partition_atom is not None
        if not view.in_sbuf or (
            usable and not _wastes(context.timing, contraction, contracted, rows if index == 0 else None)
        ):
            return Bound(value, view)
    return Bound(value, context.hbm(value).transpose(order), defined=_trusted(context, value))


def _as_it_lies(context: Context, contraction: Contraction, bound: list[Bound], index: int) -> bool:
    """Whether a constant in 8 bits that few rows pass by takes less time loaded as it lies, with terms in any order.

    So it may be where the rows are FP32, of several parts, or codes are decoded, and runs of memory are of one term.
    """
    each, other = bound[index], hlo.shape_of(contraction.op.operands[1 - index])
    view, (_, rows, terms) = each.view, map(prod, contraction.sizes(1 - index))
    if (
        each.home is not Home.CONSTANT
        or itemsize(view.dtype) > 1
        or rows > FEW
        or terms < MANY_CHUNKS * context.sizes.rows
    ):
        return False
    near = [atom.stride for atoms in contraction.classes(view, index)[1].dims for atom in atoms][-1:]
    if near != [1] or (other.dtype != "f32" and view.dtype not in DECODED):
        return False
    there = replace(view, alloc=Alloc(Space.HBM, 0, view.start.const + prod(view.shape)))
    lying = replace(each, data=None, view=there, defined=each.is_defined)
    shape, times = hlo.shape_of(contraction.op.result), []
    out = linear(Alloc(Space.HBM, 0, shape.nbytes), 0, shape.dtype, shape.dims)
    for way in (each, lying):
        ways = (way, bound[1]) if index == 0 else (bound[0], way)
        found = problems_of(context, replace(contraction, chain=None), ways, out, ())
        times.append(context.planner.time(context.planner.easiest(found)) if found else inf)
    return times[1] < times[0]


def _trusted(context: Context, value: hlo.SSAValue) -> bool:
    """Whether these are codes that may be NaN by their type and are not, which the program relies on."""
    return hlo.shape_of(value).dtype in DECODED and context.trusts(value)


def _wastes(timing: Timing, contraction: Contraction, contracted: View, rows: View | None) -> bool:
    """Whether a way through HBM is faster than what lies on chip: few terms on the partitions, or few rows.

    ``rows``: of the stationary operand, whose tiles they fill.
    """
    sizes, dtype = timing.sizes, pe_dtype(contraction.op)
    (batch, m, k), n = map(prod, contraction.sizes(0)), prod(contraction.sizes(1)[1])
    tiles, chunks = -(-m // sizes.columns), -(-k // sizes.rows)
    terms, filled = partitions_of(contracted), partitions_of(rows) if rows is not None else None
    if terms is not None:
        excess = tiles * (k // terms.size - chunks)
    elif filled is not None:
        excess = chunks * (m // filled.size - tiles)
    else:
        return False
    wide = min(n, sizes.bank_columns)
    more = timing.product(sizes.columns, wide, dtype).tensor * batch * n / wide * excess if wide else 0.0
    nbytes = batch * m * k * itemsize(dtype)
    way = (timing.arrival(nbytes, timing.long_run, each) for each in ("write", "read"))
    return more > 2 * sum(way)


def _scatters(context: Context, contraction: Contraction, rhs: View, out: View) -> bool:
    """Whether columns that are computed together would be stored one by one.

    So it is where ``rhs`` has neighbouring rows on each partition, and the result more rows than are collected.
    """
    if not rhs.in_sbuf or out.in_sbuf or prod(contraction.sizes(0)[1]) <= context.sizes.columns:
        return False
    rows = [atom for atoms in contraction.classes(rhs, 1)[1].dims for atom in atoms if atom.size > 1]
    return any(atom.partition for atom in rows[:-1])


# ---- result ---------------------------------------------------------------------------------------------------


def _choose_output(context: Context, contraction: Contraction, bound: Sequence[Bound]) -> View:
    """Resident with rows of lhs on the partitions where that fits and saves time, else HBM."""
    if (collected := _collected(context, contraction, bound)) is not None:
        return collected
    result, most, lhs = contraction.result, context.sizes.columns, bound[0].view
    shape = hlo.shape_of(result)
    batch, m, _ = contraction.sizes(0)
    partitions = partitions_of(contraction.classes(lhs, 0)[1]) if lhs.in_sbuf else None
    if partitions is None and m:
        axis = max(range(len(m)), key=lambda axis: (divisor(m[axis], most), axis))
        size, inner = divisor(m[axis], most), 1
        if _rows_are_short(context, contraction, lhs, axis):
            axis = next(each for each in range(axis + 1) if divisor(m[each], most) >= size)
            inner = m[axis] // size
        partitions = Partitions(axis, size, inner)
    only_result = result in context.outputs and context.last_use(result) <= contraction.step
    only_result = only_result or (result in context.permuted and _only_leaves(result))
    enough = partitions is not None and (
        partitions.size * (FILLED_IN_LOOPS if context.prefix else FILLED) >= most or shape.size <= SMALL_RESULT * most
    )
    resident = None
    if partitions is not None and partitions.size > 1 and not only_result and enough:
        partitions = replace(partitions, axis=partitions.axis + len(batch))
        per_partition = shape.size // partitions.size * itemsize(shape.dtype)
        if context.last_use(result) - contraction.step <= RESIDENT_STEPS:
            resident = resident_view(Alloc(Space.SBUF, 0, per_partition), shape.dtype, shape.dims, partitions)
    home, stays = best_home(context, contraction, bound, resident)
    if resident is not None and stays and _saves(context, contraction, bound, resident):
        alloc = context.new_resident(result, resident.alloc.hi)
        if alloc is not None:
            return replace(resident, alloc=alloc, start=resident.start + alloc.lo)
    return placed(context, result, home) if home is not None else context.new_hbm(result)


def _only_leaves(value: hlo.SSAValue) -> bool:
    """Whether nothing but results of the program are views of ``value``."""
    return all(
        isinstance(user, hlo.ReturnOp | hlo.TupleOp)
        or (isinstance(user, hlo.TransposeOp | hlo.ReshapeOp) and _only_leaves(user.result))
        for user in users(value)
    )


def _collected(context: Context, contraction: Contraction, bound: Sequence[Bound]) -> View | None:
    """A home on chip for a result with a batch inside of its rows, as heads are, that goes to HBM whole, in long runs,
    where this takes less time; None elsewhere.
    """
    result, shape = contraction.result, hlo.shape_of(contraction.result)
    wanted, lhs = context.permuted.get(result) or unplaced(shape.dtype, shape.dims), bound[0].view
    batch, rows, _ = map(len, contraction.sizes(0))
    dim = dim_around(wanted, batch)
    if not batch <= dim < batch + rows:
        return None
    like = partitions_of(contraction.classes(lhs, 0)[1]) if lhs.in_sbuf else None
    if like is not None and like.axis != dim - batch:
        like = None
    lies = lying_whole(wanted, dim, context.sizes.columns, like)
    whole = is_read_soon(context, result, contraction.step)
    if lies is None or not context.residents.may_stay(lies.alloc.hi, whole=whole):
        return None
    adds = [unplaced(hlo.shape_of(each).dtype, shape.dims) for each in contraction.arrays]

    def nanoseconds(out: View) -> float:
        problems = problems_of(context, contraction, bound, out, adds)
        beside = out.alloc.hi if out.in_sbuf else 0
        return copies_of(context, contraction, bound, out, adds, problems, beside)[1] if problems else inf

    stored = context.timing.arrival(shape.nbytes, context.timing.long_run, "write")
    dense = unplaced(shape.dtype, shape.dims)
    times = [nanoseconds(wanted)]
    if wanted != dense:
        times.append(nanoseconds(dense) + transferred(context.builder, wanted, dense) + context.timing.transfer_latency)
    if nanoseconds(lies) + stored >= min(times):
        return None
    alloc = context.new_resident(result, lies.alloc.hi, whole)
    return None if alloc is None else replace(lies, alloc=alloc, start=lies.start + alloc.lo)


def _rows_are_short(context: Context, contraction: Contraction, lhs: View, axis: int) -> bool:
    """Whether neighbouring rows of lhs make runs that the DMA reads well only if several go to each partition."""
    _, rows, contracted = contraction.classes(lhs, 0)
    width = itemsize(lhs.dtype)
    row = run_of((atom for atoms in contracted.dims for atom in atoms), width)
    beside = [atom.stride for atom in rows.dims[axis]][-1:]
    return not lhs.in_sbuf and width < row < context.timing.long_run and beside == [row]


def _saves(context: Context, contraction: Contraction, bound: Sequence[Bound], resident: View) -> bool:
    """Whether a result of several tiles of rows, which decides the tiles where it stays on chip, and those of the
    contractions that read it, takes less time there than by way of HBM.
    """
    shape, timing, filled = hlo.shape_of(contraction.result), context.timing, partitions_of(resident)
    rows, most = prod(contraction.sizes(0)[1]), context.sizes.columns
    fewest = filled is None or rows // filled.size <= -(-rows // most)
    if rows <= most or (fewest and contraction.arrays):
        return True
    times, dense = [], linear(Alloc(Space.HBM, 0, shape.nbytes), 0, shape.dtype, shape.dims)
    for out in (resident, dense):
        near = {array: near_home(context, contraction, array, out) for array in contraction.arrays}
        adds = [unplaced(hlo.shape_of(x).dtype, shape.dims) if view is None else view for x, view in near.items()]
        taken = out.alloc.hi if out.in_sbuf else 0
        found = [replace(each, room=each.room - taken) for each in problems_of(context, contraction, bound, out, adds)]
        if not found:
            return True
        times.append(context.planner.time(context.planner.easiest(found)))
    if filled is not None:
        times[0] += sum(_excess(timing, reader, index, filled.size) for reader, index in _readers(contraction.result))
    return times[0] <= times[1] + timing.arrival(shape.nbytes, timing.long_run)


def _readers(value: hlo.SSAValue) -> list[tuple[hlo.DotOp, int]]:
    """The contractions that read it, perhaps through views, with the number of the operand."""
    found = list[tuple[hlo.DotOp, int]]()
    for use in value.uses:
        if isinstance(use.operation, hlo.DotOp):
            found.append((use.operation, use.index))
        elif isinstance(use.operation, hlo.HloOp) and is_view(use.operation):
            found += _readers(use.operation.results[0])
    return found


def _excess(timing: Timing, op: hlo.DotOp, index: int, filled: int) -> float:
    """Nanoseconds of products that rows or terms on so many partitions, of operand ``index``, take more than on all."""
    contraction = Contraction(op, op.result, 0)
    (batch, m, k), n = map(prod, contraction.sizes(index)), prod(contraction.sizes(1 - index)[1])
    tiles, chunks, wide = -(-m // timing.sizes.columns), -(-k // timing.sizes.rows), min(n, timing.sizes.bank_columns)
    more = chunks * (m // filled - tiles) if m % filled == 0 else tiles * max(0, k // filled - chunks)
    return timing.product(timing.sizes.columns, wide, pe_dtype(op)).tensor * batch * n / wide * more if wide else 0.0


def _array_views(context: Context, contraction: Contraction, bound: Sequence[Bound], out: View) -> tuple[View, ...]:
    """The homes of what the epilogue reads: on chip where sums leave PSUM in tiles of such rows, else in HBM."""
    near = {
        array: view for array in contraction.arrays if (view := near_home(context, contraction, array, out)) is not None
    }
    outside = {array: _array_view(context, contraction, array) for array in contraction.arrays if array not in near}
    if near and not out.in_sbuf:
        apart = {array: unplaced(view.dtype, view.shape) for array, view in near.items()}
        times = []
        for views in (near, apart):
            adds = [{**outside, **views}[array] for array in contraction.arrays]
            found = problems_of(context, contraction, bound, out, adds)
            times.append(context.planner.time(context.planner.easiest(found)) if found else inf)
        nbytes, run = sum(prod(view.shape) * itemsize(view.dtype) for view in near.values()), context.timing.long_run
        stored = sum(context.timing.transfer(nbytes, run, way).bound for way in ("write", "read"))
        if times[0] > times[1] + stored or times[0] == inf:
            near = {}
    homes = {**outside, **near}
    return tuple(homes.get(array) or _array_view(context, contraction, array) for array in contraction.arrays)


def _array_view(context: Context, contraction: Contraction, array: hlo.SSAValue) -> View:
    """The home in HBM of what the epilogue reads, where it may repeat along dims."""
    cast = views_of_cast(context, array)
    found = next(filter(_is_read, cast or context.views(array)), None)
    if found is None and not cast and repeats(array):
        stored = context.hbm(array)  # what is repeated, of which there is less
        found = stored if _is_read(stored) else None
    if found is not None:
        return found
    if not cast:
        return context.dense(array)
    copied = context.own_hbm(contraction.result, hlo.Shape(cast[0].dtype, hlo.shape_of(array).dims))
    transfer(context.builder, copied, cast[0], Stream.DMA_LOAD, force=True)
    return copied


def _is_read(view: View) -> bool:
    """Whether an epilogue reads ``view`` where it lies."""
    simple = all(len(atoms) < 2 for atoms in view.dims)
    near = [atoms[-1].stride for atoms in view.dims if atoms][-1:]
    return not view.in_sbuf and simple and near in ([], [0], [itemsize(view.dtype)])


# ---- dims that all arrays have in common ----------------------------------------------------------------------


def _nest(
    context: Context, contraction: Contraction, bound: Sequence[Bound], out: View, adds: tuple[View, ...]
) -> Placed:
    """Common dims of all arrays; operands whose dims do not nest with the others' are copied to dense arrays.

    A dim on the partitions is never cut: an operand that lies elsewhere, or is the smaller, is copied instead.
    """
    problems = problems_of(context, contraction, bound, out, adds)
    copies, _ = copies_of(context, contraction, bound, out, adds, problems)
    lhs, rhs = bound
    if copies:
        there = dict(copies)
        lhs, rhs = (copied(context, contraction, index, bound, there.get(index)) for index in (0, 1))
        problems = problems_of(context, contraction, (lhs, rhs), out, adds)
        assert problems, "copies lie as they were said to"
    if len(problems[0].segments) > 1 and Home.CONSTANT in (lhs.home, rhs.home):
        # constants are laid out in equal chunks only
        lhs, rhs = (_in_hbm(context, each) for each in (lhs, rhs))
        problems = problems_of(context, contraction, (lhs, rhs), out, adds)
        assert problems, "they lie as before"
    problem = context.planner.easiest(problems)
    lhs, rhs = (rhs, lhs) if problem.exchanged else (lhs, rhs)
    return Placed(contraction, problem, lhs, rhs, out, adds)


def _in_hbm(context: Context, bound: Bound) -> Bound:
    """A constant where it lies in HBM as it is."""
    if bound.data is None:
        return bound
    home = context.homes_of_constant(bound.value)
    view = bound.view
    lying = View(home.alloc, view.dtype, view.start + home.start, view.dims)
    return Bound(bound.value, lying, defined=bound.is_defined)
