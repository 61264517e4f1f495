"""Access maps: how a logical array lies in a buffer.

A ``View`` gives each logical dim a list of *atoms* (size, stride), major first; an atom lies either in
the address space (byte stride) or on the partitions of SBUF. Broadcast, transpose, slice, reverse and
reshape of an array are views of the same buffer whenever atoms can express them (``None`` is returned
when they cannot, and the caller copies). Aligning several views gives the common iteration space that a
kernel loops over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize


@dataclass(slots=True, unsafe_hash=True)  # never changed; frozen, they would take three times as long to make
class Atom:
    size: int
    stride: int
    """Bytes, or partitions when ``partition``."""
    partition: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Nested(Atom):
    """Rows in HBM for neighbouring partitions, in groups that lie further apart than rows: a DMA moves each of these.

    ``stride`` is the longer one, and so is 0 for no rows that differ.
    """

    levels: tuple[Atom, ...] = ()
    """The groups, and the rows of one."""


def nested(groups: Atom, rows: Atom) -> Atom:
    """Both as one, where all rows lie as far apart."""
    size = groups.size * rows.size
    if groups.stride == rows.stride * rows.size:
        return Atom(size, rows.stride, rows.partition)
    assert not rows.partition, "rows on chip lie on neighbouring partitions"
    return Nested(size, max(groups.stride, rows.stride, key=abs), False, (groups, rows))


@dataclass(slots=True, unsafe_hash=True)
class Affine:
    """``const + sum(coef * register)``; never changed, as atoms."""

    const: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    tile: int = field(default=0, compare=False)
    """Of an address in a rotating buffer: the use of it (``Program.tiles``), for the provenance check."""

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms, self.tile) if other else self
        if not other.terms and not other.tile:
            return Affine(self.const + other.const, self.terms, self.tile) if other.const else self
        if not self.terms and not self.tile:
            return Affine(self.const + other.const, other.terms, other.tile) if self.const else other
        terms = dict(self.terms)
        for register, coef in other.terms:
            terms[register] = terms.get(register, 0) + coef
        kept = tuple(sorted((r, c) for r, c in terms.items() if c))
        return Affine(self.const + other.const, kept, self.tile or other.tile)

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        if not self.terms:
            return Affine(self.const * factor)
        return Affine(self.const * factor, tuple([(register, coef * factor) for register, coef in self.terms]))

    def parts(self, size: int) -> Affine:
        """How many parts of ``size`` there are before it, where one begins there, whatever the registers hold."""
        assert not any(number % size for number in (self.const, *(coef for _, coef in self.terms)))
        return Affine(self.const // size, tuple([(register, coef // size) for register, coef in self.terms]))


Dims = tuple[tuple[Atom, ...], ...]


@dataclass(slots=True, unsafe_hash=True)
class View:
    """A logical array in a buffer, never changed.

    ``start`` is absolute (HBM address or byte in the partition); that of a loop's window adds up registers.
    """

    alloc: Alloc
    dtype: str
    start: Affine
    dims: Dims

    def of(self, dims: Dims, by: int = 0) -> View:
        """Other dims in the same buffer, ``by`` bytes further on."""
        return View(self.alloc, self.dtype, self.start + by, dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(atom.size for atom in atoms) for atoms in self.dims)

    @property
    def in_sbuf(self) -> bool:
        return self.alloc.space is Space.SBUF

    @property
    def partition_atom(self) -> Atom | None:
        return next((atom for atoms in self.dims for atom in atoms if atom.partition), None)

    def transpose(self, permutation: Sequence[int]) -> View:
        return self.of(tuple([self.dims[axis] for axis in permutation]))

    def broadcast(self, out_dims: Sequence[int], dimensions: Sequence[int]) -> View:
        """Operand dim i becomes dim ``dimensions[i]``; other dims, and stretched size-1 dims, repeat."""
        source = {out: atoms for out, atoms in zip(dimensions, self.dims, strict=True) if atoms}
        return self.of(tuple([source.get(axis) or _atoms(size, 0) for axis, size in enumerate(out_dims)]))

    def reverse(self, axes: Sequence[int]) -> View | None:
        by = 0
        dims = list(self.dims)
        for axis in axes:
            if any(atom.partition for atom in dims[axis]):
                return None
            by += sum((atom.size - 1) * atom.stride for atom in dims[axis])
            dims[axis] = tuple(replace(atom, stride=-atom.stride) for atom in dims[axis])
        return self.of(tuple(dims), by)

    def slice(self, axis: int, start: int, size: int, step: int = 1) -> View | None:
        """Elements ``start, start + step, ...`` (``size`` of them) of one dim."""
        sliced = _slice(coalesce(self.dims[axis]), start, size, step)
        if sliced is None:
            return None
        atoms, shift = sliced
        return self.of((*self.dims[:axis], atoms, *self.dims[axis + 1 :]), shift)

    def reshape(self, out_dims: Sequence[int]) -> View | None:
        left = list(coalesce(tuple(atom for atoms in self.dims for atom in atoms)))
        dims = []
        for size in out_dims:
            taken = []
            while size > 1:
                if not left:
                    return None
                atom = left.pop(0)
                if size % atom.size == 0:
                    taken.append(atom)
                    size //= atom.size
                elif atom.size % size == 0:
                    inner = atom.size // size
                    taken.append(Atom(size, atom.stride * inner, atom.partition))
                    left.insert(0, Atom(inner, atom.stride, atom.partition))
                    size = 1
                else:
                    return None
            dims.append(tuple(taken))
        if sum(atom.partition for atoms in dims for atom in atoms) > 1:
            return None
        return self.of(tuple(dims))

    def retyped(self, dtype: str) -> View:
        """The same addresses read as another type (low part first: the machine is little-endian)."""
        return replace(self, dtype=dtype)


def _atoms(size: int, stride: int) -> tuple[Atom, ...]:
    return (Atom(size, stride),) if size > 1 else ()


def linear(alloc: Alloc, start: Affine | int, dtype: str, dims: Sequence[int]) -> View:
    """A dense row-major array."""
    stride = itemsize(dtype)
    atoms = []
    for size in reversed(dims):
        atoms.append(_atoms(size, stride))
        stride *= size
    return View(alloc, dtype, Affine() + start, tuple(reversed(atoms)))


def unplaced(dtype: str, dims: Sequence[int]) -> View:
    """A dense row-major array in HBM that has no address yet, for estimates."""
    return linear(Alloc(Space.HBM, 0, 0), 0, dtype, dims)


def outermost(view: View, axes: Sequence[int]) -> View:
    """A dense array in the memory of the dense ``view``, of the same dims, whose dims ``axes`` are the outermost."""
    order = [*axes, *(dim for dim in range(len(view.shape)) if dim not in axes)]
    transposed = linear(view.alloc, view.start, view.dtype, [view.shape[dim] for dim in order])
    return transposed.transpose([order.index(dim) for dim in range(len(order))])


def stride_of(atoms: Sequence[Atom]) -> int:
    """Bytes from one element of a dim to the next of its outermost atom; 0 where it has none."""
    return max((abs(atom.stride) for atom in atoms), default=0)


def coalesce(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Merge neighbours that form one arithmetic progression."""
    merged: list[Atom] = []
    for atom in atoms:
        if merged and merged[-1].partition == atom.partition and merged[-1].stride == atom.stride * atom.size:
            merged[-1] = Atom(merged[-1].size * atom.size, atom.stride, atom.partition)
        else:
            merged.append(atom)
    return tuple(merged)


def _slice(atoms: tuple[Atom, ...], start: int, size: int, step: int) -> tuple[tuple[Atom, ...], int] | None:
    total = prod(atom.size for atom in atoms)
    if size == total:  # of a single element, with any step
        return atoms, 0
    outer, inner_atoms = atoms[0], atoms[1:]
    inner = prod(atom.size for atom in inner_atoms)
    last = start + (size - 1) * step
    if start // inner == last // inner and inner_atoms:
        if outer.partition:
            return None
        sliced = _slice(inner_atoms, start % inner, size, step)
        return None if sliced is None else (sliced[0], sliced[1] + (start // inner) * outer.stride)
    if outer.partition and (start != 0 or step != 1):
        return None
    if not inner_atoms:
        if size == 1:
            return (), start * outer.stride
        return (Atom(size, outer.stride * step, outer.partition),), start * outer.stride
    if step == 1 and start % inner == 0 and size % inner == 0:
        rows = size // inner
        head = (Atom(rows, outer.stride, outer.partition),) if rows > 1 else ()
        return (*head, *inner_atoms), (start // inner) * outer.stride
    return None


def factors(view: View, axis: int) -> list[int]:
    """Cumulative products of the atom sizes of one dim, innermost first, without 1 and the whole."""
    cuts = []
    inner = 1
    for atom in reversed(view.dims[axis]):
        inner *= atom.size
        cuts.append(inner)
    return cuts[:-1]


def common_factors(size: int, cuts: Sequence[list[int]]) -> list[int] | None:
    """Sizes, major first, that refine every list of cuts of a dim; None when they do not nest."""
    bounds = sorted({1, size, *(cut for view_cuts in cuts for cut in view_cuts)})
    sizes = []
    for low, high in pairwise(bounds):
        if high % low:
            return None
        sizes.append(high // low)
    return sizes[::-1]


def split(atoms: tuple[Atom, ...], sizes: Sequence[int]) -> list[Atom]:
    """One atom for each refined size (which multiply to the dim's size and refine its atoms)."""
    out: list[Atom] = []
    pending = list(atoms)
    for size in sizes:
        atom = pending.pop(0)
        inner, rest = divmod(atom.size, size)
        assert not rest, "sizes refine the atoms"
        out.append(Atom(size, atom.stride * inner, atom.partition))
        if inner > 1:
            pending.insert(0, Atom(inner, atom.stride, atom.partition))
    assert not pending, "sizes cover the whole dim"
    return out


@dataclass(slots=True)
class IterSpace:
    """Common iteration space of several views: refined sizes, the logical dim of each, and strides a view."""

    sizes: list[int]
    axes: list[int]
    atoms: list[list[Atom]]
    """``atoms[v][d]`` belongs to view v and refined dim d."""


def align(views: Sequence[View], shape: Sequence[int], fences: frozenset[int] = frozenset()) -> IterSpace | None:
    """Refine ``views`` (all of logical ``shape``) to common dims, then merge dims that all views can merge.

    ``fences``: logical axes before which nothing is merged. None when the atoms do not nest.
    """
    sizes: list[int] = []
    axes: list[int] = []
    atoms: list[list[Atom]] = [[] for _ in views]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        refined = common_factors(size, [factors(view, axis) for view in views])
        if refined is None:
            return None
        sizes += refined
        axes += [axis] * len(refined)
        for per_view, view in zip(atoms, views, strict=True):
            per_view += split(view.dims[axis], refined)
    space = IterSpace(sizes, axes, atoms)
    merge(space, fences)
    return space


def merge(space: IterSpace, fences: frozenset[int] = frozenset()) -> None:
    """Merge neighbouring dims in place where every view allows it."""
    index = 0
    while index + 1 < len(space.sizes):
        fenced = space.axes[index] != space.axes[index + 1] and any(
            space.axes[index] < fence <= space.axes[index + 1] for fence in fences
        )
        mergeable = not fenced and all(
            not a[index].partition
            and not a[index + 1].partition
            and a[index].stride == a[index + 1].stride * space.sizes[index + 1]
            for a in space.atoms
        )
        if not mergeable:
            index += 1
            continue
        size = space.sizes[index] * space.sizes[index + 1]
        space.sizes[index : index + 2] = [size]
        del space.axes[index + 1]
        for a in space.atoms:
            a[index : index + 2] = [Atom(size, a[index + 1].stride)]


def run_of(atoms: Sequence[Atom], size: int) -> int:
    """Bytes that follow each other where a DMA goes through ``atoms``, the last one first, of elements of ``size``."""
    run = size
    for atom in reversed(atoms):
        if atom.stride != run:
            break
        run *= atom.size
    return run
