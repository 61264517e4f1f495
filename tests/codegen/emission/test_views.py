"""Views against NumPy: the address of every element after random chains of view ops."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Affine, Atom, View, align, coalesce, common_factors, linear
from neuronx_cc.ir.isa.program import Space

Array = np.ndarray[Any, Any]

BASE = 4096
PARTITION = 1 << 40
SETTINGS = settings(max_examples=150)
HBM = Alloc(Space.HBM, BASE, BASE + (1 << 20))
SBUF = Alloc(Space.SBUF, BASE, BASE + (1 << 16))


def addresses(view: View) -> Array:
    """The address of every element; a step of a partition counts ``PARTITION``."""
    total = np.array(view.start.const)
    for atoms in view.dims:
        dim = np.array(0)
        for atom in atoms:
            dim = np.add.outer(dim, np.arange(atom.size) * atom.stride * (PARTITION if atom.partition else 1))
        total = np.add.outer(total, dim.reshape(-1))
    return total.reshape(view.shape)


def on_partitions(dims: tuple[int, ...], axis: int, dtype_bytes: int = 2) -> View:
    """A dense bf16 array in SBUF whose ``axis`` lies on the partitions."""
    stride = dtype_bytes
    atoms: list[tuple[Atom, ...]] = []
    for at in reversed(range(len(dims))):
        if dims[at] == 1:
            atoms.append(())
        elif at == axis:
            atoms.append((Atom(dims[at], 1, True),))
        else:
            atoms.append((Atom(dims[at], stride),))
            stride *= dims[at]
    return View(SBUF, "bf16", Affine(BASE), tuple(reversed(atoms)))


DIMS = st.lists(st.sampled_from((1, 2, 3, 4, 6, 12)), max_size=4).filter(lambda dims: prod(dims) <= 500).map(tuple)


@st.composite
def starts(draw: st.DrawFn) -> View:
    dims = draw(DIMS)
    if dims and draw(st.booleans()):
        return on_partitions(dims, draw(st.integers(0, len(dims) - 1)))
    return linear(HBM, BASE, draw(st.sampled_from(("f32", "bf16", "u8"))), dims)


def transpose(draw: st.DrawFn, view: View, array: Array) -> tuple[View | None, Array]:
    order = draw(st.permutations(range(array.ndim)))
    return view.transpose(order), array.transpose(order)


def broadcast(draw: st.DrawFn, view: View, array: Array) -> tuple[View | None, Array]:
    size = draw(st.sampled_from((1, 2, 3)))
    place = draw(st.integers(0, array.ndim))
    dims = [*array.shape[:place], size, *array.shape[place:]]
    kept = [axis for axis in range(array.ndim + 1) if axis != place]
    stretch = [axis for axis in kept if dims[axis] == 1]
    if stretch and draw(st.booleans()):
        dims[draw(st.sampled_from(stretch))] = 3
    return view.broadcast(dims, kept), np.broadcast_to(np.expand_dims(array, place), dims)


def reverse(draw: st.DrawFn, view: View, array: Array) -> tuple[View | None, Array]:
    axes = [axis for axis in range(array.ndim) if draw(st.booleans())]
    return view.reverse(axes), np.flip(array, axes)


def cut(draw: st.DrawFn, view: View, array: Array) -> tuple[View | None, Array]:
    if not array.ndim:
        return view, array
    axis = draw(st.integers(0, array.ndim - 1))
    start = draw(st.integers(0, array.shape[axis] - 1))
    step = draw(st.integers(1, 3))
    most = (array.shape[axis] - start + step - 1) // step
    size = draw(st.integers(1, most))
    index = (slice(None),) * axis + (slice(start, start + (size - 1) * step + 1, step),)
    return view.slice(axis, start, size, step), array[index]


def reshape(draw: st.DrawFn, view: View, array: Array) -> tuple[View | None, Array]:
    size = array.size
    factors = [a for a in range(1, size + 1) if size % a == 0]
    first = draw(st.sampled_from(factors))
    second = draw(st.sampled_from([b for b in factors if (size // first) % b == 0]))
    dims = draw(st.sampled_from([(size,), (first, size // first), (first, second, size // first // second)]))
    return view.reshape(dims), array.reshape(dims)


@SETTINGS
@given(view=starts(), data=st.data())
def test_chains(view: View, data: st.DataObject) -> None:
    array = addresses(view)
    for _ in range(data.draw(st.integers(1, 6))):
        maker = data.draw(st.sampled_from((transpose, broadcast, reverse, cut, reshape)))
        following, expected = maker(data.draw, view, array)
        if following is None or expected.size > 2000:
            continue  # not an access pattern: the caller copies
        assert following.shape == expected.shape
        np.testing.assert_array_equal(addresses(following), expected)
        view, array = following, expected


@SETTINGS
@given(view=starts(), data=st.data())
def test_dense_arrays_take_every_op(view: View, data: st.DataObject) -> None:
    """From a dense HBM array no single op needs a copy."""
    dense = linear(HBM, BASE, "f32", view.shape)
    maker = data.draw(st.sampled_from((transpose, broadcast, reverse, cut, reshape)))
    assert maker(data.draw, dense, addresses(dense))[0] is not None


@SETTINGS
@given(dims=DIMS, data=st.data())
def test_alignment_enumerates_all_views_alike(dims: tuple[int, ...], data: st.DataObject) -> None:
    views = []
    for _ in range(data.draw(st.integers(1, 3))):
        source = data.draw(st.permutations(range(len(dims))))
        dense = linear(HBM, BASE, "f32", [dims[axis] for axis in source])
        views.append(dense.transpose(np.argsort(source).tolist()))
        size = prod(dims)
        flat = linear(HBM, BASE, "f32", (size,)).reverse([0])
        assert flat is not None
        shaped = flat.reshape(dims)
        if shaped is not None:
            views.append(shaped)
    fences = frozenset(data.draw(st.sets(st.integers(0, len(dims)))))
    space = align(views, dims, fences)
    assert space is not None, "these all nest"
    assert prod(space.sizes) == prod(dims)
    assert len(space.axes) == len(space.sizes)
    for view, atoms in zip(views, space.atoms, strict=True):
        total = np.array(view.start.const)
        for size, atom in zip(space.sizes, atoms, strict=True):
            assert atom.size == size
            total = np.add.outer(total, np.arange(size) * atom.stride)
        np.testing.assert_array_equal(total.reshape(-1), addresses(view).reshape(-1))
    for fence in fences:
        extents: dict[bool, int] = {True: 1, False: 1}
        for size, axis in zip(space.sizes, space.axes, strict=True):
            extents[axis < fence] *= size
        assert extents[True] == prod(dims[:fence])


def test_atoms_that_do_not_nest() -> None:
    halves = linear(HBM, BASE, "f32", (2, 6)).transpose((1, 0)).reshape((12,))
    thirds = linear(HBM, BASE, "f32", (3, 4)).transpose((1, 0)).reshape((12,))
    assert halves is not None
    assert thirds is not None
    assert common_factors(12, [[2], [3]]) is None
    assert align([halves, thirds], (12,)) is None


@pytest.mark.parametrize(("start", "size", "step"), [(1, 2, 1), (0, 3, 2), (3, 1, 1)])
def test_partitions_are_cut_only_at_their_start(start: int, size: int, step: int) -> None:
    view = on_partitions((8, 4), 0)
    assert view.slice(0, start, size, step) is None
    kept = view.slice(0, 0, 5)
    assert kept is not None
    assert kept.partition_atom == Atom(5, 1, True)
    assert view.reverse([0]) is None


def test_coalesce() -> None:
    assert coalesce((Atom(2, 24), Atom(3, 8), Atom(4, 2))) == (Atom(24, 2),)
    assert coalesce((Atom(2, 1, True), Atom(3, 8))) == (Atom(2, 1, True), Atom(3, 8))
    assert coalesce((Atom(2, 0), Atom(3, 0))) == (Atom(6, 0),)
