"""Where operands and result of a contraction lie: homes are chosen, made and aligned, and the problem stated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context, apply_view
from neuronx_cc.codegen.dots.problem import (
    DECODED,
    Home,
    Operand,
    Problem,
    Result,
    Segment,
    Staged,
    divisor,
    order_of,
    pe_dtype,
    run_of,
    segments_of,
)
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Atom, View, align, linear
from neuronx_cc.codegen.formation.graph import is_view
from neuronx_cc.codegen.maps.plan import RESIDENT_STEPS, Partitions, is_given, partitions_of, resident_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

FILLED = 4
"""A result stays on chip if it fills one part in so many of the partitions, though after a way through HBM all of them
could be used."""
FILLED_IN_LOOPS = 8
"""The same in loops and branches, where nothing overlaps that way."""
SMALL_RESULT = 64
"""A result of so many elements a partition stays on chip in any case."""
LEAST_FILLED = 2
"""Chunks of constants fill one part in so many of the partitions, if they all have the same length."""


UNHIDDEN_RUNS = 4
"""One part in so many of the time of short runs is not hidden behind other work, at least."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A kernel that is to be placed: the op, and what it adds to the sums."""

    op: hlo.DotOp
    result: hlo.SSAValue
    step: int
    bias: hlo.SSAValue | None = None
    """A row that TensorE adds."""
    epilogue: hlo.SSAValue | None = None
    """An array that is combined with the sums as they leave PSUM."""
    combine: str = "add"
    """How: add or multiply."""

    def order(self, index: int) -> list[int]:
        """Dims of operand ``index``: batch, free, contracted."""
        return [axis for group in order_of(self.op, index) for axis in group]

    def free(self, index: int) -> int:
        """How many free dims an operand has."""
        return len(order_of(self.op, index)[1])

    def sizes(self, index: int) -> tuple[tuple[int, ...], ...]:
        """Sizes of the batch, free and contracted dims of an operand."""
        dims = hlo.shape_of(self.op.operands[index]).dims
        return tuple(tuple(dims[axis] for axis in group) for group in order_of(self.op, index))

    def classes(self, view: View, index: int) -> tuple[View, View, View]:
        """A view with the dims of operand ``index`` in order, class by class."""
        batch, free = len(self.op.dims.data.lhs_batch), self.free(index)
        parts = (view.dims[:batch], view.dims[batch : batch + free], view.dims[batch + free :])
        return view.of(parts[0]), view.of(parts[1]), view.of(parts[2])


@dataclass(frozen=True, slots=True)
class Bound:
    """An operand and its memory."""

    value: hlo.SSAValue
    """What is read: a cast of what is given happens as it is loaded."""
    view: View
    """Dims [batch..., free..., contracted...]."""
    data: np.ndarray | None = None
    """The elements of a constant that is still to be laid out; ``view`` says how they lie there."""
    staged: Staged | None = None

    @property
    def home(self) -> Home:
        """Where it lies."""
        if self.staged is not None:
            return Home.STAGED
        if self.data is not None:
            return Home.CONSTANT
        return Home.CHIP if self.view.in_sbuf else Home.HBM

    @property
    def stream(self) -> Stream:
        """What loads it."""
        return Stream.DMA_WEIGHT if is_given(self.value) else Stream.DMA_LOAD


@dataclass(frozen=True, slots=True)
class Placed:
    """A contraction whose arrays all have memory."""

    contraction: Contraction
    problem: Problem
    lhs: Bound
    rhs: Bound
    out: View
    add: View | None
    """Where what is combined with it lies."""


def place(context: Context, contraction: Contraction, bound: Sequence[Bound]) -> Placed:
    """Give the result a home, copy what does not align, and state the problem."""
    out = _choose_output(context, contraction, bound[0].view)
    if _scatters(context, contraction, bound[1].view, out):
        bound = (bound[0], _dense(context, contraction, 1, bound[1]))
    context.homes[contraction.result] = [out]
    add = None if contraction.epilogue is None else _epilogue_view(context, contraction.epilogue, out)
    return _nest(context, contraction, bound, out, add)


# ---- operands -------------------------------------------------------------------------------------------------


def source_of(context: Context, value: hlo.SSAValue) -> hlo.SSAValue:
    """The value to read: a cast of given data happens on load."""
    while value in context.load_casts:
        value = context.load_casts[value]
    return value


def bind(context: Context, contraction: Contraction) -> tuple[Bound, Bound]:
    """Homes of both operands whose partitions TensorE can use."""
    lhs, rhs = (_bind(context, contraction, index) for index in (0, 1))
    k_lhs, k_rhs = (
        partitions_of(contraction.classes(bound.view, index)[2]) if bound.view.in_sbuf else None
        for index, bound in enumerate((lhs, rhs))
    )
    if k_lhs is not None and k_rhs is not None and k_lhs != k_rhs:
        lhs = Bound(lhs.value, context.hbm(lhs.value).transpose(contraction.order(0)))
    return lhs, rhs


def _bind(context: Context, contraction: Contraction, index: int) -> Bound:
    value, order = source_of(context, contraction.op.operands[index]), contraction.order(index)
    staged = context.staged.get((contraction.op, index))
    if staged is not None:
        return Bound(value, staged.view, staged=staged)
    literal = context.literal(value)
    if literal is not None:
        return Bound(value, literal[0].transpose(order), literal[1])
    for view in context.views(value) if hlo.shape_of(value).dtype not in DECODED else ():
        view = view.transpose(order)
        batch, rows, contracted = contraction.classes(view, index)
        usable = batch.partition_atom is None and view.partition_atom is not None
        if not view.in_sbuf or (
            usable and not _wastes(context.timing, contraction, contracted, rows if index == 0 else None)
        ):
            return Bound(value, view)
    return Bound(value, context.hbm(value).transpose(order))


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


def _dense(context: Context, contraction: Contraction, index: int, bound: Bound) -> Bound:
    """Operand ``index`` as a dense array, unless it was staged."""
    if bound.staged is not None:
        return bound
    shape, order = hlo.shape_of(bound.value), contraction.order(index)
    if bound.data is None:
        return Bound(bound.value, context.dense(bound.value).transpose(order))
    literal = context.literal(bound.value)
    assert literal is not None, "its data was taken"
    view, data = literal
    flat = strided(data, view.offset, [atom for atoms in view.dims for atom in atoms])
    dense = linear(view.alloc, 0, view.dtype, shape.dims).transpose(order)
    return Bound(bound.value, dense, np.ascontiguousarray(flat.reshape(shape.dims)))


def _dense_view(contraction: Contraction, index: int, bound: Bound) -> View:
    """How it would lie."""
    if bound.staged is not None:
        return bound.view
    shape = hlo.shape_of(bound.value)
    alloc = bound.view.alloc if bound.data is not None else Alloc(Space.HBM, 0, 0)
    return linear(alloc, 0, shape.dtype, shape.dims).transpose(contraction.order(index))


def strided(data: np.ndarray, offset: int, atoms: Sequence[Atom]) -> np.ndarray:
    """The elements of a constant from byte ``offset`` on, as dims of these atoms."""
    raw = data.reshape(-1)[offset // data.itemsize :]
    sizes, strides = [atom.size for atom in atoms], [atom.stride for atom in atoms]
    # NumPy knows the bytes of each type, and not all types by name
    words = raw.view(f"u{raw.itemsize}")
    return np.lib.stride_tricks.as_strided(words, sizes, strides, writeable=False).view(raw.dtype)


# ---- result ---------------------------------------------------------------------------------------------------


def _choose_output(context: Context, contraction: Contraction, lhs: View) -> View:
    """Resident with rows of lhs on the partitions where that fits, else HBM."""
    result, most = contraction.result, context.sizes.columns
    shape = hlo.shape_of(result)
    batch, m, _ = contraction.sizes(0)
    partitions = partitions_of(contraction.classes(lhs, 0)[1]) if lhs.in_sbuf else None
    if partitions is None and m:
        axis = max(range(len(m)), key=lambda axis: (divisor(m[axis], most), axis))
        partitions = Partitions(axis, divisor(m[axis], most), 1)
    only_result = result in context.outputs and context.last_use(result) <= contraction.step
    enough = partitions is not None and (
        partitions.size * (FILLED_IN_LOOPS if context.prefix else FILLED) >= most or shape.size <= SMALL_RESULT * most
    )
    if partitions is not None and partitions.size > 1 and not only_result and enough:
        partitions = replace(partitions, axis=partitions.axis + len(batch))
        per_partition = shape.size // partitions.size * itemsize(shape.dtype)
        near = context.last_use(result) - contraction.step <= RESIDENT_STEPS
        alloc = context.new_resident(result, per_partition) if near else None
        if alloc is not None:
            return resident_view(alloc, shape.dtype, shape.dims, partitions)
    return context.new_hbm(result)


def _epilogue_view(context: Context, epilogue: hlo.SSAValue, out: View) -> View:
    """The home of what is combined with it: on chip as the result lies, or in HBM, where it may repeat along dims."""
    for view in _views_of_cast(context, epilogue) or context.in_place(epilogue):
        if view.in_sbuf and out.in_sbuf and view.dims == out.dims:
            return view
        simple = all(len(atoms) < 2 for atoms in view.dims)
        near = [atoms[-1].stride for atoms in view.dims if atoms][-1:]
        if not view.in_sbuf and simple and near in ([], [0], [itemsize(view.dtype)]):
            return view
    return context.dense(epilogue)


def _views_of_cast(context: Context, value: hlo.SSAValue) -> list[View]:
    """In HBM, of what is stored after a cast that is no kernel's, as ``value`` sees it; none without such a cast."""
    source, chain = value, []
    while isinstance(source, hlo.OpResult) and is_view(source.op):
        chain.append(source.op)
        source = source.op.operands[0]
    if source not in context.load_casts:
        return []
    view: View | None = context.hbm(source_of(context, source))
    for op in reversed(chain):
        view = apply_view(op, view) if view is not None else None
    assert view is not None, "rows repeat along any dims"
    return [view]


# ---- dims that all arrays have in common ----------------------------------------------------------------------


def _nest(context: Context, contraction: Contraction, bound: Sequence[Bound], out: View, add: View | None) -> Placed:
    """Common dims of all arrays; operands whose dims do not nest with the others' are copied to dense arrays.

    A dim on the partitions is never cut: an operand that lies elsewhere, or is the smaller, is copied instead.
    """
    sizes = [hlo.shape_of(operand).size for operand in contraction.op.operands]
    first, second = sorted((0, 1), key=lambda index: (bound[index].view.in_sbuf, sizes[index]))
    for copies in ((), (first,), (second,), (0, 1)):
        wanted = [
            replace(each, view=_dense_view(contraction, index, each)) if index in copies else each
            for index, each in enumerate(bound)
        ]
        if _state(context, contraction, wanted, out, add) is None:
            continue
        lhs, rhs = (
            _dense(context, contraction, index, each) if index in copies else each for index, each in enumerate(bound)
        )
        problem = _state(context, contraction, (lhs, rhs), out, add)
        assert problem is not None, "copies lie as they were said to"
        if len(problem.segments) > 1 and Home.CONSTANT in (lhs.home, rhs.home):
            # constants are laid out in equal chunks only
            lhs, rhs = (_in_hbm(context, each) for each in (lhs, rhs))
            problem = _state(context, contraction, (lhs, rhs), out, add)
            assert problem is not None, "they lie as before"
        return Placed(contraction, problem, lhs, rhs, out, add)
    raise AssertionError("dense arrays nest")


def _in_hbm(context: Context, bound: Bound) -> Bound:
    """A constant where it lies in HBM as it is."""
    if bound.data is None:
        return bound
    home = context.homes_of_constant(bound.value)
    view = bound.view
    return Bound(bound.value, View(home.alloc, view.dtype, view.offset + home.offset, view.dims, view.terms))


@dataclass(frozen=True, slots=True)
class _Class:
    """Refined dims of one class, and how each array that has them lies."""

    sizes: tuple[int, ...]
    atoms: tuple[tuple[Atom, ...], ...]

    def on_partitions(self, array: int) -> int:
        """How many of them lie on the partitions of an array."""
        return sum(atom.partition for atom in self.atoms[array])


@dataclass(frozen=True, slots=True)
class _Refined:
    """b: lhs, rhs, result, epilogue; m: lhs, result, epilogue; n: rhs, result, epilogue; k: lhs, rhs."""

    b: _Class
    m: _Class
    n: _Class
    k: _Class


def _refine(contraction: Contraction, views: Sequence[View], out: View, add: View | None) -> _Refined | None:
    """Common dims; None where some do not nest, or lie on the partitions in a way that nothing reads."""
    lhs_b, lhs_m, lhs_k = contraction.classes(views[0], 0)
    rhs_b, rhs_n, rhs_k = contraction.classes(views[1], 1)
    others = [out] if add is None else [out, add]
    first, last = len(lhs_b.dims), len(lhs_b.dims) + len(lhs_m.dims)
    batch, m, k = contraction.sizes(0)
    spaces = (
        align([lhs_b, rhs_b, *(each.of(each.dims[:first]) for each in others)], batch),
        align([lhs_m, *(each.of(each.dims[first:last]) for each in others)], m),
        align([rhs_n, *(each.of(each.dims[last:]) for each in others)], contraction.sizes(1)[1]),
        align([lhs_k, rhs_k], k),
    )
    classes = [_Class(tuple(space.sizes), tuple(map(tuple, space.atoms))) for space in spaces if space is not None]
    if len(classes) < len(spaces):
        return None
    b, m_, n, k_ = classes
    arrays = (range(len(others)), range(1, 1 + len(others)))
    on_partitions = [
        b.on_partitions(0) + m_.on_partitions(0) + k_.on_partitions(0),
        b.on_partitions(1) + n.on_partitions(0) + k_.on_partitions(1),
        *(m_.on_partitions(1 + array) for array in arrays[0]),
    ]
    if max(on_partitions) > 1:
        return None  # a dim on the partitions is used whole
    if any(n.on_partitions(array) for array in arrays[1]) or any(map(b.on_partitions, range(len(b.atoms)))):
        return None
    return _Refined(b, m_, n, k_)


def _state(
    context: Context, contraction: Contraction, bound: Sequence[Bound], out_view: View, add_view: View | None
) -> Problem | None:
    """The problem; None where dims do not nest or cannot be tiled: k on the partitions, m on the result's, n free."""
    dtype = pe_dtype(contraction.op)
    refined = _refine(contraction, [each.view for each in bound], out_view, add_view)
    if refined is None:
        return None
    b, m, n = refined.b, refined.m, refined.n
    k = _with_long_runs(context.timing, refined.k, (m.atoms[0], n.atoms[0]), bound)
    lhs, rhs = (
        Operand(
            name,
            each.home,
            each.view.dtype,
            pe_dtype(contraction.op, index, each.view.dtype),
            b.atoms[index],
            free.atoms[0],
            k.atoms[index],
        )
        for index, (name, each, free) in enumerate(zip(("lhs", "rhs"), bound, (m, n), strict=True))
    )
    out, add = (
        None if view is None else Result(view.in_sbuf, view.dtype, b.atoms[2 + i], m.atoms[1 + i], n.atoms[1 + i])
        for i, view in enumerate((out_view, add_view))
    )
    assert out is not None
    terms = _contracted_dim(context, k.sizes, (lhs, rhs), bound)
    out_dims, lhs_dims = _marked(out.m), _marked(lhs.free)
    if terms is None or (out_dims and lhs_dims and out_dims != lhs_dims):
        return None  # a tile's rows are neighbours on the partitions
    return Problem(
        b=b.sizes,
        m=m.sizes,
        n=n.sizes,
        k=k.sizes,
        m_dim=next(iter(out_dims or lhs_dims), _largest(m.sizes)),
        n_dim=next(iter(_marked(rhs.free)), _largest(n.sizes)),
        k_dim=terms[0],
        segments=terms[1],
        dtype=dtype,
        tf32=contraction.op.algorithm is not None and "tf32" in contraction.op.algorithm.data,
        moves_values=context.moves_values("bf16"),
        lhs=lhs,
        rhs=rhs,
        out=out,
        epilogue=add,
        bias=contraction.bias is not None,
        room=context.builder.sbuf.largest_gap(),
    )


def _with_long_runs(timing: Timing, k: _Class, free: Sequence[tuple[Atom, ...]], bound: Sequence[Bound]) -> _Class:
    """k with neighbouring terms on one partition, where a term of an operand in HBM is a short run beside the next's.

    ``free``: the other dims of both operands. A dim of k is then three: (steps, partitions, terms beside each other).
    """
    if any(each.home in (Home.CONSTANT, Home.STAGED) for each in bound) or any(map(k.on_partitions, (0, 1))):
        return k
    dim, sizes = _largest(k.sizes), timing.sizes
    partitions = divisor(k.sizes[dim], sizes.rows) if dim >= 0 else 1
    if partitions * LEAST_FILLED < sizes.rows:
        return k
    runs = [
        run
        for at, each in enumerate(bound)
        if (run := _run_of_term(each.view, k.atoms[at], free[at])) == k.atoms[at][dim].stride < timing.long_run
    ]
    width = max(itemsize(each.view.dtype) for each in bound)
    wanted = min(-(-timing.long_run // min(runs)), 2 * sizes.bank_bytes // (sizes.rows * width)) if runs else 1
    beside = divisor(k.sizes[dim] // partitions, wanted)
    if beside == 1 or _takes_longer_apart(timing, k.sizes, free, bound, min(runs)):
        return k

    def split(atom: Atom) -> tuple[Atom, ...]:
        steps = atom.size // (partitions * beside)
        inner = Atom(partitions, atom.stride * beside), Atom(beside, atom.stride)
        return (Atom(steps, atom.stride * partitions * beside), *inner) if steps > 1 else inner

    atoms = tuple((*each[:dim], *split(each[dim]), *each[dim + 1 :]) for each in k.atoms)
    return _Class(tuple(atom.size for atom in atoms[0]), atoms)


def _takes_longer_apart(
    timing: Timing, k: tuple[int, ...], free: Sequence[tuple[Atom, ...]], bound: Sequence[Bound], run: int
) -> bool:
    """Whether Vector, which takes apart FP32 that is transposed, loses more by strided terms than long runs gain."""
    apart = [
        prod(k) * prod(atom.size for atom in rows) // timing.sizes.rows
        for each, rows in zip(bound, free, strict=True)
        if each.view.dtype == "f32"
    ]
    longest = timing.engine("tensor_copy", Stream.VECTOR, max(apart, default=0) or 1).bound
    short, long = (timing.transfer(prod(k) * run, each).dma for each in (run, timing.long_run))
    return UNHIDDEN_RUNS * longest > short - long


def _run_of_term(view: View, contracted: Sequence[Atom], free: Sequence[Atom]) -> int:
    """Bytes of one term of an operand in HBM; 0 if it is none that the DMA brings as TensorE wants it."""
    width = itemsize(view.dtype)
    if view.in_sbuf or any(atom.stride == width for atom in contracted):
        return 0
    return run_of(free, width)


def _contracted_dim(
    context: Context, k: tuple[int, ...], operands: Sequence[Operand], bound: Sequence[Bound]
) -> tuple[int, tuple[Segment, ...]] | None:
    """The dim of k on the partitions, -1 without any, and its segments; None where operands want different ones."""
    marked = sorted({dim for operand in operands for dim in _marked(operand.contracted)})
    if len(marked) > 1:
        return None
    staged = next((each.staged for each in bound if each.staged is not None), None)
    if staged is not None:
        if len(k) != 1 or (marked and staged.segments != (Segment(0, k[0], 1),)):
            return None
        return 0, staged.segments
    if marked:
        return marked[0], (Segment(0, k[marked[0]], 1),)
    if not k:
        return -1, (Segment(0, 1, 1),)

    def chunks(dim: int) -> int:
        """Products for each tile of the result with this dim on the partitions."""
        return prod(k) // k[dim] * sum(segment.steps for segment in segments_of(k[dim], context.sizes))

    dim = min(range(len(k)), key=lambda dim: (chunks(dim), -dim))
    equal = divisor(k[dim], context.sizes.rows)
    if equal * LEAST_FILLED >= context.sizes.rows and any(each.home is Home.CONSTANT for each in bound):
        return dim, (Segment(0, equal, k[dim] // equal),)
    return dim, segments_of(k[dim], context.sizes)


def _marked(atoms: Iterable[Atom]) -> list[int]:
    """Dims that lie on the partitions."""
    return [dim for dim, atom in enumerate(atoms) if atom.partition]


def _largest(sizes: Sequence[int]) -> int:
    """The first dim of the largest size, -1 without any."""
    return max(range(len(sizes)), key=lambda dim: sizes[dim], default=-1)
