"""Contractions stated as problems: the dims that all arrays have in common, and the ways to cut what is contracted."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from itertools import product
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots import pairs, scaled
from neuronx_cc.codegen.dots.contraction import Bound, Contraction
from neuronx_cc.codegen.dots.cuts import LEAST_FILLED, Class, Refined, cuts, largest, neighbours_have_long_runs
from neuronx_cc.codegen.dots.problem import (
    DECODED,
    PAIR,
    PART,
    Home,
    Operand,
    Problem,
    Result,
    Segment,
    Split,
    divisor,
    exact_type,
    pe_dtype,
    rounding_of,
    segments_of,
    splits_of,
)
from neuronx_cc.codegen.emission.views import Atom, IterSpace, View, align, stride_of, unplaced
from neuronx_cc.codegen.epilogues.work import Epilogue
from neuronx_cc.codegen.movement.transpose_kernel import SQUARE
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.types import itemsize


def _refine(contraction: Contraction, views: Sequence[View], out: View, adds: Sequence[View]) -> Refined | None:
    """Common dims, in the order in which the result lies, terms in that of an operand; None where some do not nest, or
    lie on the partitions in a way that nothing reads.
    """
    lhs_b, lhs_m, lhs_k = contraction.classes(views[0], 0)
    rhs_b, rhs_n, rhs_k = contraction.classes(views[1], 1)
    others = [out, *adds]
    first, last = len(lhs_b.dims), len(lhs_b.dims) + len(lhs_m.dims)
    batch, m, k = contraction.sizes(0)
    out_b, out_m, out_n = (out.of(out.dims[start:stop]) for start, stop in ((0, first), (first, last), (last, None)))
    spaces = (
        _aligned([lhs_b, rhs_b, *(each.of(each.dims[:first]) for each in others)], batch, out_b),
        _aligned([lhs_m, *(each.of(each.dims[first:last]) for each in others)], m, out_m),
        # a row that TensorE adds lies in the order of the dims
        _aligned(
            [rhs_n, *(each.of(each.dims[last:]) for each in others)],
            contraction.sizes(1)[1],
            None if contraction.bias is not None else out_n,
        ),
        _aligned([lhs_k, rhs_k], k, rhs_k if lhs_k.in_sbuf else lhs_k),
    )
    classes = [Class(tuple(space.sizes), tuple(map(tuple, space.atoms))) for space in spaces if space is not None]
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
    return Refined(b, m_, n, k_)


def _aligned(views: Sequence[View], sizes: Sequence[int], like: View | None) -> IterSpace | None:
    """Common dims of ``views``, in the order in which those of ``like`` lie in HBM: neighbours become one dim."""
    order = list(range(len(sizes)))
    if like is not None and not like.in_sbuf:
        order.sort(key=lambda dim: -stride_of(like.dims[dim]))
    return align([view.transpose(order) for view in views], [sizes[dim] for dim in order])


def problems_of(
    context: Context, contraction: Contraction, bound: Sequence[Bound], out_view: View, adds: Sequence[View]
) -> tuple[Problem, ...]:
    """The problem, for each way to cut k and each choice of the dims of m and n that are tiled, the plain one first.

    None where dims do not nest or cannot be tiled: k on the partitions, m on the result's, n free. Contractions whose
    arrays lie alike are stated once.
    """
    stated, lie = context.planner.stated, _lie(context, contraction, bound, [out_view, *adds])
    if lie not in stated:
        stated[lie] = tuple(_stated(context, contraction, bound, out_view, adds))
    plain = stated[lie]
    if not plain:
        return ()
    epilogues = [_epilogue(contraction, bound, each[0].out, each[0].arrays) for each in _by_order(plain)]
    room = context.builder.sbuf.planned_room()
    more = *epilogues, room
    if (lie, more) not in stated:
        stated[lie, more] = tuple(
            replace(problem, epilogue=epilogue, room=room)
            for epilogue, problems in zip(epilogues, _by_order(plain), strict=True)
            for problem in problems
        )
    return stated[lie, more]


def _by_order(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Those with operands in their own places, and in each other's: arrays repeat along other dims of their tiles."""
    found = [[each for each in problems if each.exchanged is exchanged] for exchanged in (False, True)]
    return [each for each in found if each]


def _lie(context: Context, contraction: Contraction, bound: Sequence[Bound], written: Sequence[View]) -> Hashable:
    """All that a statement depends on, but the epilogue and the room that is left."""
    op = contraction.op
    return (
        op.dims.data,
        rounding_of(op),
        contraction.bias is not None,
        context.moves_values("bf16"),
        *((hlo.shape_of(operand).dtype, *contraction.sizes(index)) for index, operand in enumerate(op.sources)),
        *((each.home, each.is_defined, each.staged and each.staged.segments) for each in bound),
        *(scale for each in bound for _, scale in each.scales),
        *map(pairs.begins_evenly, bound),
        *((view.dtype, view.in_sbuf, view.dims) for view in (*(each.view for each in bound), *written)),
    )


def _stated(
    context: Context, contraction: Contraction, bound: Sequence[Bound], out_view: View, adds: Sequence[View]
) -> list[Problem]:
    """The same without an epilogue, and without any room."""
    written = [out_view, *adds]
    across, apart = across_of(contraction, out_view), _is_apart(contraction, out_view)
    lie = [unplaced(view.dtype, view.shape) if across and view.in_sbuf else view for view in written]
    refined = _refine(contraction, [each.view for each in bound], lie[0], lie[1:])
    if refined is None or (across and len(refined.n.sizes) > 1):
        return []
    found = _ways(context, contraction, bound, refined, written, (across, apart))
    if any(each.scales for each in bound):
        return [each for each in found if scaled.nests_in(each)]
    if _may_exchange(contraction, refined, bound, written):
        others = _ways(context, contraction, bound[::-1], refined.exchanged, written, (0, False), True)
        found += others
    return found


def _may_exchange(contraction: Contraction, refined: Refined, bound: Sequence[Bound], written: Sequence[View]) -> bool:
    """Whether operands may take each other's place, where rows or columns lie in several dims or are no neighbours."""
    if contraction.bias is not None or any(view.in_sbuf for view in written) or any(each.staged for each in bound):
        return False
    near = [atom.stride for atom in refined.n.atoms[1] if atom.size > 1][-1:] == [itemsize(written[0].dtype)]
    return max(len(refined.m.sizes), len(refined.n.sizes)) > 1 or not near


def _ways(
    context: Context,
    contraction: Contraction,
    bound: Sequence[Bound],
    refined: Refined,
    written: Sequence[View],
    columns: tuple[int, bool],
    exchanged: bool = False,
) -> list[Problem]:
    """Each way to cut k and each choice of the dims of m and n that are tiled. ``columns``: as in ``Result``."""
    b, m, n = refined.b, refined.m, refined.n
    across, apart = columns
    out, *arrays = (
        Result(view.in_sbuf, view.dtype, b.atoms[2 + i], m.atoms[1 + i], n.atoms[1 + i], across, apart)
        for i, view in enumerate(written)
    )
    found = []
    made = any(each.scales for each in bound)
    splits = [(None, None)] if exchanged or made else _splits(contraction, bound, across)
    ways: list[tuple[Class, tuple[int, ...], int | None]] = [
        (*cut, None) for cut in cuts(context.timing, refined, bound)
    ]
    if context.moves_values(PAIR) and not across and not made:
        ways += [
            (k.cut(dim, k.sizes[dim] // 2, 2), direct, index)
            for k, direct, _ in tuple(ways)
            for index, dim in pairs.dims_of(context.timing.machine, k.sizes, k.atoms, bound)
        ]
    for (k, direct, paired), parts in product(ways, splits):
        operands = _operands(contraction, bound, refined, k, direct, parts, exchanged)
        may = paired is None or pairs.may_come(operands[paired], operands[1 - paired], context.sizes.columns)
        if not may or any(each.decoded and itemsize(each.dtype) > itemsize(PART) for each in operands):
            continue  # codes become numbers of 16 bits
        if paired is not None:
            operands[paired] = replace(operands[paired], paired=True)
        terms = _contracted_dim(context, k.sizes, operands, bound)
        lhs, rhs = operands
        marked = [dims for each in (out.m, *(array.m for array in arrays), lhs.free) if (dims := _marked(each))]
        if terms is None or any(dims != marked[0] for dims in marked):
            continue  # a tile's rows are neighbours on the partitions
        if paired is not None and not pairs.stay_apart(k.sizes, *terms):
            continue
        tilings = list(
            product(
                (marked[0][:1] if marked else []) or _tiled(m.sizes, [(lhs.free, lhs.stored)]),
                _marked(rhs.free)[:1] or _tiled(n.sizes, [(rhs.free, rhs.stored), (out.n, out.dtype)]),
            )
        )
        found += [
            Problem(
                b=b.sizes,
                m=m.sizes,
                n=n.sizes,
                k=k.sizes,
                m_dim=m_dim,
                n_dim=n_dim,
                k_dim=terms[0],
                segments=terms[1],
                dtype=PART if any(parts) else pe_dtype(contraction.op),
                flags=rounding_of(contraction.op),
                moves_values=context.moves_values("bf16"),
                lhs=lhs,
                rhs=rhs,
                out=out,
                epilogue=None,
                bias=contraction.bias is not None,
                room=0,
                arrays=tuple(arrays),
                exchanged=exchanged,
            )
            for m_dim, n_dim in tilings
            if not lhs.tells_matrices(m_dim) and not rhs.tells_matrices(n_dim)
        ]
        if not direct and not made and neighbours_have_long_runs(context.timing, refined, k, bound):
            found += [other for each in found[-len(tilings) :] if (other := _with_neighbours(each)) is not None]
    return found


def _splits(contraction: Contraction, bound: Sequence[Bound], across: int) -> list[tuple[Split | None, Split | None]]:
    """Ways to multiply both operands, as they are or in parts; codes are decoded for 16 bits only."""
    stored, plain = [each.view.dtype for each in bound], (None, None)
    splits = splits_of(contraction.op, stored, across > 0)
    found = [splits] if splits == plain or DECODED.keys() & stored else [plain, splits]
    few = prod(contraction.sizes(0)[1]) <= SQUARE  # stream past columns
    if not across and few and splits[0] is not None and itemsize(stored[1]) == 1 and bound[1].home is Home.HBM:
        found.append(splits_of(contraction.op, stored, True))
    return found


def across_of(contraction: Contraction, out: View) -> int:
    """Partitions that the columns of a result lie on; 0 where they do not."""
    columns = out.dims[len(out.dims) - contraction.free(1) :] if out.in_sbuf else ()
    return next((atom.size for atoms in columns for atom in atoms if atom.partition), 0)


def _is_apart(contraction: Contraction, out: View) -> bool:
    """Whether the columns of a partition are as many apart as there are partitions."""
    columns = [atom for atoms in out.dims[len(out.dims) - contraction.free(1) :] for atom in atoms]
    return out.in_sbuf and len(columns) > 1 and columns[-1].partition


def _epilogue(
    contraction: Contraction, bound: Sequence[Bound], out: Result, arrays: Sequence[Result]
) -> Epilogue | None:
    if contraction.chain is None:
        return None
    factor = prod(DECODED.get(each.view.dtype, 1.0) for each in bound)
    columns, dtypes = [each.repeats for each in arrays], [each.loaded for each in arrays]
    return contraction.chain.epilogue(columns, dtypes, out.dtype, factor)


def _with_neighbours(problem: Problem) -> Problem | None:
    """With neighbouring terms on one partition, where no number of partitions divides them; None where it does, or an
    operand is transposed, which brings whole rows.
    """
    operands = problem.lhs, problem.rhs
    if len(problem.segments) == 1 or any(each.home is not Home.HBM or each.transposed for each in operands):
        return None
    whole, rest = problem.segments
    return replace(problem, segments=(replace(whole, neighbours=True), rest))


def _operands(
    contraction: Contraction,
    bound: Sequence[Bound],
    refined: Refined,
    k: Class,
    direct: Container[int],
    splits: tuple[Split | None, Split | None],
    exchanged: bool,
) -> list[Operand]:
    """Both, with k cut in one way; those of ``direct`` are loaded with it on the partitions."""

    def taken(index: int, stored: str) -> str:
        narrow = exact_type(stored) if splits[1 - index] else None
        return narrow or pe_dtype(contraction.op, 1 - index if exchanged else index, stored)

    return [
        Operand(
            name,
            each.home,
            each.view.dtype,
            taken(index, each.taken(contraction.op, index)),
            refined.b.atoms[index],
            free.atoms[0],
            k.atoms[index],
            index in direct,
            each.is_defined,
            splits[index],
            apart=each.apart,
            scales=tuple(scale for _, scale in each.scales),
        )
        for index, (name, each, free) in enumerate(zip(("lhs", "rhs"), bound, (refined.m, refined.n), strict=True))
    ]


# ---- ways to cut k --------------------------------------------------------------------------------------------


def _contracted_dim(
    context: Context, k: tuple[int, ...], operands: Sequence[Operand], bound: Sequence[Bound]
) -> tuple[int, tuple[Segment, ...]] | None:
    """The dim of k on the partitions, -1 without any, and its segments; None where operands want different ones."""
    marked = sorted({dim for operand in operands for dim in _marked(operand.contracted)})
    if len(marked) > 1:
        return None
    staged = next((each.staged for each in bound if each.staged is not None), None)
    if staged is not None and not marked:
        return (0, staged.segments) if len(k) == 1 else None
    if marked:
        alike = len(k) - 1, (Segment(0, k[-1], prod(k[:-1])),)  # chunks follow each other as those that were staged
        fits = staged is None or (marked[0], staged.segments) == alike
        return (marked[0], (Segment(0, k[marked[0]], 1),)) if fits else None
    if not k:
        return -1, (Segment(0, 1, 1),)

    def chunks(dim: int) -> int:
        """Products for each tile of the result with this dim on the partitions."""
        return prod(k) // k[dim] * sum(segment.steps for segment in segments_of(k[dim], context.sizes))

    def lies_beside(dim: int) -> bool:
        """Whether its indices are neighbours on a partition to which rows come straight."""
        return any(each.direct and each.contracted[dim].stride == itemsize(each.stored) for each in operands)

    dim = min(range(len(k)), key=lambda dim: (lies_beside(dim), chunks(dim), -dim))
    equal = divisor(k[dim], context.sizes.rows)
    if equal * LEAST_FILLED >= context.sizes.rows and any(each.home is Home.CONSTANT for each in bound):
        return dim, (Segment(0, equal, k[dim] // equal),)
    return dim, segments_of(k[dim], context.sizes)


def _marked(atoms: Iterable[Atom]) -> list[int]:
    """Dims that lie on the partitions."""
    return [dim for dim, atom in enumerate(atoms) if atom.partition]


def _tiled(sizes: Sequence[int], arrays: Sequence[tuple[Sequence[Atom], str]]) -> list[int]:
    """Dims that may be tiled: the largest, and those along which elements of an array are neighbours."""
    near = [
        dim
        for atoms, dtype in arrays
        for dim, atom in enumerate(atoms)
        if atom.size > 1 and atom.stride == itemsize(dtype)
    ]
    return list(dict.fromkeys([largest(sizes), *near]))
