"""Places that are few steps from one number: neighbours of a sample, held inside of an image.

Each place of a group is a function of one array of whole numbers, by constants that are added, by bounds, and by what
counts negative places from the end. Such functions are evaluated here at all numbers where they may bend; between
these numbers they are constant, for in the end they are held in the bounds of a table. So which places meet is a list,
and the number in that list a function with few pieces, which is computed once for the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.reference.elementwise import COMPARISONS
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build

Value = hlo.SSAValue
Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
MOST_CONSTANT = 1 << 20
"""Of what is added and compared with, all together: FP32 has all whole numbers up to 16 times as many."""
MOST_PIECES = 8
"""Of the function that numbers a group's places."""
_WHOLE = hlo.FloorOp | hlo.CeilOp | hlo.RoundNearestAfzOp | hlo.RoundNearestEvenOp


@dataclass(frozen=True, slots=True)
class Place:
    """``function`` of the elements of ``root``, in the order and with the repetitions of ``views``, innermost first."""

    root: Value
    function: Function
    reach: int
    """All constants together: where the function bends, a number is as near to 0, or to an end of s32."""
    views: tuple[hlo.HloOp, ...] = ()

    @property
    def key(self) -> object:
        """Equal for places whose functions are of the same numbers."""
        made = defining_op(self.root)
        root: object = self.root
        if isinstance(made, hlo.IotaOp):
            root = made.shape, made.iota_dimension.data
        return root, tuple(_view_key(view) for view in self.views)

    def then(self, function: Function, reach: int) -> Place:
        before = self.function
        return Place(self.root, lambda x: function(before(x)), self.reach + abs(reach), self.views)


def _view_key(view: hlo.HloOp) -> object:
    return view.shape.dims, view.dimensions.data if isinstance(view, hlo.BroadcastOp) else None


def place_of(value: Value, module: HloModule) -> Place:
    """``value`` as a function of what it is made of by steps with constants."""
    op = defining_op(value)
    dtype = hlo.shape_of(value).dtype
    if isinstance(op, hlo.ReshapeOp | hlo.BroadcastOp):
        inner = place_of(op.operands[0], module)
        return Place(inner.root, inner.function, inner.reach, (*inner.views, op))
    found = None
    if isinstance(op, hlo.ConvertOp) and (dtype, hlo.shape_of(op.operand).dtype) == ("s32", "f32"):
        made = place_of(op.operand, module)
        found = made.then(_truncated, 0) if isinstance(defining_op(made.root), _WHOLE) else None
    elif isinstance(op, hlo.SelectOp) and dtype == "s32":
        found = _chosen(op, module)
    elif op is not None and dtype in ("s32", "f32"):
        found = _stepped(op, module, dtype)
    return found or Place(value, lambda x: x, 0)


def _stepped(op: Any, module: HloModule, dtype: str) -> Place | None:
    if isinstance(op, hlo.ClampOp):
        low, high = (_whole(each, module) for each in (op.minimum, op.maximum))
        if low is None or high is None:
            return None
        first, last = low, high
        return place_of(op.operand, module).then(lambda x: np.minimum(np.maximum(x, first), last), abs(low) + abs(high))
    if not isinstance(op, hlo.AddOp | hlo.SubtractOp | hlo.MaximumOp | hlo.MinimumOp):
        return None
    number, other = _whole(op.operands[1], module), op.operands[0]
    if number is None and not isinstance(op, hlo.SubtractOp):
        number, other = _whole(op.operands[0], module), op.operands[1]
    if number is None:
        return None
    constant = number
    if isinstance(op, hlo.MaximumOp):
        return place_of(other, module).then(lambda x: np.maximum(x, constant), constant)
    if isinstance(op, hlo.MinimumOp):
        return place_of(other, module).then(lambda x: np.minimum(x, constant), constant)
    by = -constant if isinstance(op, hlo.SubtractOp) else constant
    if dtype == "s32":
        return place_of(other, module).then(lambda x: _wrapped(x + by), by)
    return place_of(other, module).then(lambda x: x + by, by)


def _chosen(op: hlo.SelectOp, module: HloModule) -> Place | None:
    test = defining_op(op.predicate)
    if not isinstance(test, hlo.CompareOp) or hlo.shape_of(test.lhs).dtype != "s32":
        return None
    limit, compare = _whole(test.rhs, module), COMPARISONS[test.direction.data]
    if limit is None:
        return None
    bound = limit
    tested, *ways = (place_of(value, module) for value in (test.lhs, op.on_true, op.on_false))
    if any(way.key != tested.key for way in ways):
        return None
    true, false = ways
    return Place(
        tested.root,
        lambda x: np.where(compare(tested.function(x), bound), true.function(x), false.function(x)),
        tested.reach + true.reach + false.reach + abs(bound),
        tested.views,
    )


def _whole(value: Value, module: HloModule) -> int | None:
    number = splat_number(value, module)
    return int(number) if number is not None and abs(number) <= MOST_CONSTANT and number == int(number) else None


def _truncated(x: Array) -> Array:
    return np.asarray(np.clip(np.nan_to_num(np.trunc(x), nan=0.0), LOWEST, HIGHEST).astype(np.int64))


def _wrapped(x: Array) -> Array:
    return np.asarray((x - LOWEST) % (1 << 32) + LOWEST)


@dataclass(frozen=True, slots=True)
class Met:
    """Which places of a group meet, and how to find their number in that list."""

    rows: Array
    """[places of the group, number]"""
    root: Value
    starts: tuple[int, ...]
    """Numbers of the root from which on pieces are; from the lowest."""
    pieces: tuple[tuple[int, int], ...]
    """(slope, summand) of each."""
    undefined: int | None
    """The number for a NaN of the root; None where it can have none."""
    views: tuple[hlo.HloOp, ...]

    def number(self, b: Build) -> Value:
        """In s32, for each element of the places."""
        root = self.root if hlo.shape_of(self.root).dtype == "s32" else b.convert(self.root, "s32")
        found = self._held(b, root) if self._holds else self._of_pieces(b, root)
        if self.undefined is not None:
            nans = b.compare(self.root, self.root, "NE")
            found = b.select(nans, b.number_like(self.undefined, found), found)
        for view in self.views:
            dims = view.shape.dims
            broadcast = isinstance(view, hlo.BroadcastOp)
            found = b.broadcast(found, dims, view.dimensions.data) if broadcast else b.reshape(found, dims)  # type: ignore[attr-defined]
        return found

    def _held(self, b: Build, root: Value) -> Value:
        (_, low), (_, by), (_, high) = self.pieces
        inside = b.each(hlo.MaximumOp, root, b.number_like(low - by, root))
        return b.add(b.each(hlo.MinimumOp, inside, b.number_like(high - by, root)), b.number_like(by, root))

    def _of_pieces(self, b: Build, root: Value) -> Value:
        found: Value | None = None
        for start, (slope, summand) in zip(self.starts, self.pieces, strict=True):
            part = b.number_like(summand, root)
            part = b.add(root, part) if slope else part
            found = part if found is None else b.select(b.compare(root, b.number_like(start, root), "GE"), part, found)
        assert found is not None, "there is a first piece"
        return found

    @property
    def _holds(self) -> bool:
        """Whether the function holds the root, moved by a constant, in bounds."""
        if [slope for slope, _ in self.pieces] != [0, 1, 0]:
            return False
        (_, low), (_, by), (_, high) = self.pieces
        return low <= self.starts[1] + by <= low + 1 and high - 1 <= self.starts[2] - 1 + by <= high


def met(places: Sequence[Place], last: int) -> Met | None:
    """What ``places``, of equal keys, are together, each held in [0, ``last``]; None where that is not simple."""
    first = places[0]
    reach = max(place.reach for place in places) + last + 2
    if reach > 4 * MOST_CONSTANT:
        return None
    numbers = np.arange(-reach, reach + 1)
    at = np.concatenate([LOWEST + numbers[reach:], numbers, HIGHEST + numbers[: reach + 1]])
    real = hlo.shape_of(first.root).dtype == "f32"
    given = at.astype(np.float64) if real else at
    rows = np.stack([np.clip(place.function(given), 0, last) for place in places])
    middle = slice(reach + 1, 3 * reach + 2)
    known: dict[tuple[int, ...], int] = {}
    listed = rows.T.tolist()
    for row in [*listed[middle], *listed]:
        known.setdefault(tuple(row), len(known))
    ids = [known[tuple(row)] for row in listed]
    undefined = None
    if real:
        nan = np.array([np.nan])
        row = tuple(int(np.clip(place.function(nan), 0, last)[0]) for place in places)
        undefined = known.setdefault(row, len(known))
    starts, pieces = list[int](), list[tuple[int, int]]()
    for index, (number, found) in enumerate(zip(at.tolist(), ids, strict=True)):
        if pieces:
            slope, summand = pieces[-1]
            if slope * number + summand == found:
                continue
            alone = at[index - 1] == starts[-1] and at[index] == at[index - 1] + 1
            if alone and slope == 0 and found == summand + 1:  # one number is the start of either
                pieces[-1] = 1, found - number
                continue
        starts.append(number)
        pieces.append((0, found))
    if len(pieces) > MOST_PIECES:
        return None
    table = np.array(list(known)).T
    return Met(table, first.root, tuple(starts), tuple(pieces), undefined, first.views)
