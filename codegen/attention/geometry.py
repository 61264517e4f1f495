"""Where the dims of the scores lie in other arrays: by views that follow the scores through reshapes and transposes.

The scores are taken for a dense array whose dims have strides of their own, so that the view of what is made of them
element by element says, dim by dim, which scores stand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Atom, View, coalesce, common_factors, factors, linear, split
from neuronx_cc.ir.isa.program import Space

Run = tuple[int, int, Atom]
"""First element, its byte, and where the others lie."""
MARK = "u8"
"""Element type of views that only name places: their strides count elements."""


def marked(dims: Sequence[int]) -> View:
    """A dense array that is nowhere."""
    return linear(Alloc(Space.HBM, 0, prod(dims)), 0, MARK, dims)


def by_dim(dims: Sequence[int], marks: View, view: View) -> View | None:
    """``view``, whose dims correspond to those of ``marks``, with the dims of the scores ``dims`` instead.

    What ``marks`` lacks of a dim of the scores is repeated. None where parts of dims do not correspond.
    """
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    found: list[list[tuple[int, Atom]]] = [[] for _ in dims]
    for axis, size in enumerate(marks.shape):
        cuts = factors(marks, axis), factors(view, axis), _ends(marks.dims[axis], strides)
        sizes = common_factors(size, cuts)
        if sizes is None:
            return None
        for mark, atom in zip(split(marks.dims[axis], sizes), split(view.dims[axis], sizes), strict=True):
            if mark.size == 1:
                continue
            at = next((at for at, stride in enumerate(strides) if dims[at] > 1 and stride <= mark.stride), None)
            if at is None:
                return None
            found[at].append((mark.stride, atom))
    result: list[tuple[Atom, ...]] = []
    for size, parts in zip(dims, found, strict=True):
        atoms = tuple(atom for _, atom in sorted(parts, key=lambda part: -part[0]))
        if atoms and prod(atom.size for atom in atoms) != size:
            return None
        result.append(coalesce(atoms) if atoms else (Atom(size, 0),) * (size > 1))
    return view.of(tuple(result))


def _ends(atoms: Sequence[Atom], strides: Sequence[int]) -> list[int]:
    """Where dims of ``strides`` end within one of ``atoms``, as cumulative products of its dim, innermost first."""
    found, inner = [], 1
    for atom in reversed(atoms):
        ends = (stride // atom.stride for stride in strides if atom.stride and stride % atom.stride == 0)
        found += [inner * end for end in ends if 1 < end < atom.size]
        inner *= atom.size
    return found


def is_one(atoms: Sequence[Atom]) -> bool:
    """Whether a dim is one progression in memory."""
    return len(coalesce(tuple(atoms))) <= 1


def runs(atoms: tuple[Atom, ...]) -> Iterator[Run]:
    """The progressions that dims, outermost first, fall into."""
    merged = coalesce(atoms)
    if len(merged) < 2:
        yield 0, 0, merged[0] if merged else Atom(1, 0)
        return
    outer, inner = merged[0], merged[1:]
    size = prod(atom.size for atom in inner)
    for index in range(outer.size):
        for first, offset, atom in runs(inner):
            yield index * size + first, index * outer.stride + offset, atom
