"""The dims that arrays of a contraction have in common, class by class, and the ways to cut what is contracted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.dots import pairs, scales
from neuronx_cc.codegen.dots.contraction import Bound
from neuronx_cc.codegen.dots.problem import Home, divisor, run_of
from neuronx_cc.codegen.dots.schedule import FEW
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

LEAST_FILLED = 2
"""Chunks of constants fill one part in so many of the partitions, if they all have the same length."""
HIDDEN = 4
"""One part in so many of what short transfers take is not hidden behind other work, at least."""


@dataclass(frozen=True, slots=True)
class Class:
    """Refined dims of one class, and how each array that has them lies."""

    sizes: tuple[int, ...]
    atoms: tuple[tuple[Atom, ...], ...]

    def on_partitions(self, array: int) -> int:
        """How many of them lie on the partitions of an array."""
        return sum(atom.partition for atom in self.atoms[array])

    def cut(self, dim: int, partitions: int, beside: int) -> Class:
        """With (steps, partitions, neighbours on a partition) in place of a dim."""

        def split(atom: Atom) -> tuple[Atom, ...]:
            steps = atom.size // (partitions * beside)
            inner = (Atom(partitions, atom.stride * beside), *([Atom(beside, atom.stride)] if beside > 1 else []))
            return (Atom(steps, atom.stride * partitions * beside), *inner) if steps > 1 else inner

        atoms = tuple((*each[:dim], *split(each[dim]), *each[dim + 1 :]) for each in self.atoms)
        return Class(tuple(atom.size for atom in atoms[0]), atoms)


@dataclass(frozen=True, slots=True)
class Refined:
    """b: lhs, rhs, result, arrays; m: lhs, result, arrays; n: rhs, result, arrays; k: lhs, rhs."""

    b: Class
    m: Class
    n: Class
    k: Class

    @property
    def exchanged(self) -> Refined:
        """Of the same contraction with its operands in each other's place."""

        def swapped(each: Class) -> Class:
            first, second, *others = each.atoms
            return Class(each.sizes, (second, first, *others))

        return Refined(swapped(self.b), self.n, self.m, swapped(self.k))


def cuts(timing: Timing, refined: Refined, bound: Sequence[Bound]) -> Iterator[tuple[Class, tuple[int, ...]]]:
    """k as it is and with neighbouring terms on one partition, each with the operands that come without a transpose.

    Neighbours are worth it where a term of an operand in HBM is a short run beside the next term's, or where the few
    rows of one come straight to the partitions.
    """
    k = refined.k
    made = next((index for index, each in enumerate(bound) if each.scales), None)
    if made is not None and len(k.sizes) == 1 and not any(map(k.on_partitions, (0, 1))):
        size = min(scale.terms for _, scale in bound[made].scales)
        if k.atoms[made][0].stride > 1 and (beside := scales.beside(k.sizes[0], size, timing.sizes)):
            yield k.cut(0, divisor(k.sizes[0], timing.sizes.rows), beside), ()
            return
    yield k, ()
    if made is not None:
        return
    if any(each.home in (Home.CONSTANT, Home.STAGED) for each in bound) or any(map(k.on_partitions, (0, 1))):
        return
    dim = largest(k.sizes)
    partitions = divisor(k.sizes[dim], timing.sizes.rows) if dim >= 0 else 1
    if partitions * LEAST_FILLED < timing.sizes.rows:
        return
    most, free = k.sizes[dim] // partitions, (refined.m.atoms[0], refined.n.atoms[0])
    near = [index for index, each in enumerate(bound) if k.atoms[index][dim].stride == itemsize(each.view.dtype)]
    # rows that are transposed are loaded in parts, whose terms must not lie apart
    width = max(itemsize(each.view.dtype) for each in bound)
    loaded = 2 * timing.sizes.bank_bytes // (timing.sizes.rows * width) if near else most
    beside = _divisor_near(most, _for_long_runs(timing, k, dim, free, bound), loaded)
    if beside > 1:
        yield k.cut(dim, partitions, beside), ()
    few = tuple(
        index
        for index in near
        if bound[index].home is Home.HBM
        and itemsize(bound[index].view.dtype) > 1
        and prod(atom.size for atom in free[index]) <= FEW
    )
    others = [bound[index] for index in near if index not in few]
    if few and all(each.home is Home.HBM and each.view.dtype in pairs.PAIRED for each in others):
        yield k.cut(dim, partitions, most), few


def _divisor_near(size: int, wanted: int, most: int) -> int:
    """The smallest divisor of ``size`` from ``wanted`` to ``most``, else the largest below."""
    found = [each for each in range(1, min(size, most) + 1) if size % each == 0]
    return next((each for each in found if each >= wanted), found[-1])


def neighbours_have_long_runs(timing: Timing, refined: Refined, k: Class, bound: Sequence[Bound]) -> bool:
    dim, free = largest(k.sizes), (refined.m.atoms[0], refined.n.atoms[0])
    return dim >= 0 and _for_long_runs(timing, k, dim, free, bound) > 1


def _for_long_runs(timing: Timing, k: Class, dim: int, free: Sequence[tuple[Atom, ...]], bound: Sequence[Bound]) -> int:
    """Terms beside each other for long runs; 1 where terms are no short runs. ``free``: the other dims of operands."""
    runs = []
    for at, each in enumerate(bound):
        long = timing.found_run if each.listed is not None else timing.long_run
        if 0 < (run := _run_of_term(each.view, k.atoms[at], free[at])) == k.atoms[at][dim].stride < long:
            runs.append((run, -(-long // run)))
    if not runs or _takes_longer_apart(timing, k, dim, free, bound, min(run for run, _ in runs)):
        return 1
    return max(count for _, count in runs)


def _takes_longer_apart(
    timing: Timing, k: Class, dim: int, free: Sequence[tuple[Atom, ...]], bound: Sequence[Bound], run: int
) -> bool:
    """Whether Vector, which takes apart FP32 that is transposed, loses more by strided terms than long runs gain."""
    terms = prod(k.sizes)
    apart = [
        terms * prod(atom.size for atom in rows) // timing.sizes.rows
        for atoms, each, rows in zip(k.atoms, bound, free, strict=True)
        if each.view.dtype == "f32" and atoms[dim].stride == itemsize("f32")
    ]
    if not apart:
        return False
    longest = timing.engine("tensor_copy", Stream.VECTOR, max(1, *apart)).bound
    short, long = (timing.transfer(terms * run, each).dma for each in (run, timing.long_run))
    return HIDDEN * longest > short - long


def _run_of_term(view: View, contracted: Sequence[Atom], free: Sequence[Atom]) -> int:
    """Bytes of one term of an operand in HBM; 0 if it is none that the DMA brings as TensorE wants it."""
    width = itemsize(view.dtype)
    if view.in_sbuf or any(atom.stride == width for atom in contracted):
        return 0
    return run_of(free, width)


def largest(sizes: Sequence[int]) -> int:
    """The first dim of the largest size, -1 without any."""
    return max(range(len(sizes)), key=lambda dim: sizes[dim], default=-1)
