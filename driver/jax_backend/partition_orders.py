"""Lets devices exchange their parts where rows are computed along a split dim: sorts, running sums, Fourier transforms.

XLA gathers such operands on all devices. Where another dim can be divided among as many, each device has whole rows
instead, and what it makes of them goes back. A running fold may be a tree of slices of every other element
(``lax.associative_scan``): its levels, which become too short to divide, all have whole rows.
"""

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from neuronx_cc.driver.jax_backend.partition_shardings import Constraints, ops_named, shape_of, shardings_of

_SORT, _WINDOW, _TRANSFORM = "stablehlo.sort", "stablehlo.reduce_window", "stablehlo.fft"
_SLICE, _PAD = "stablehlo.slice", "stablehlo.pad"
LEVELS = 3
"""Of a tree: as many lengths, each half of the one before, are taken apart by every other element."""


def prepare_orders(module: Any) -> None:
    """Constrain such operands in ``module``, StableHLO with Shardy's annotations."""
    constrain = Constraints.of(module)
    ops = [(op, _along(op)) for op in ops_named(module, (_SORT, _WINDOW, _TRANSFORM))]
    ops = [(op, along) for op, along in ops if along]
    ops += _of_trees(list(ops_named(module, (_SLICE, _PAD))))
    if constrain is None or not ops:
        return
    for (op, along), found in zip(ops, shardings_of(module, [op for op, _ in ops]), strict=True):
        axes = _split_along(found, along) if found is not None else None
        if axes is None:
            continue
        moved = tuple(axis for dim in along for axis in axes[dim])
        rows = constrain.rows(op.operands[0], axes, moved, along)
        if rows is not None:
            for number in range(_arrays(op)):
                constrain.operand(op, number, rows, closed=True)
            for result in op.results:
                constrain.value(op, result, rows, closed=True)


def _split_along(found: Any, along: set[int]) -> Any:
    """The axes of operand or result, whichever is split in one of these dims."""
    known = (*found.operands[:1], *found.results[:1])
    return next((axes for axes in known if axes is not None and any(axes[dim] for dim in along)), None)


def _arrays(op: Any) -> int:
    """How many of the operands have rows."""
    return len(op.operands) if op.name == _SORT else len(op.operands) // 2 if op.name == _WINDOW else 1


def _along(op: Any) -> set[int]:
    """The dims that are taken whole: of windows those that are as long as the array."""
    if op.name == _SORT:
        return {ir.IntegerAttr(op.attributes["dimension"]).value}
    given = shape_of(op.operands[0])
    if op.name == _TRANSFORM:
        return set(range(len(given))[-len(ir.DenseI64ArrayAttr(op.attributes["fft_length"])) :])
    window = ir.DenseI64ArrayAttr(op.attributes["window_dimensions"])
    same = shape_of(op.results[0]) == given
    return {dim for dim, size in enumerate(window) if same and size == given[dim] > 1}


def _of_trees(ops: list[Any]) -> list[tuple[Any, set[int]]]:
    """Slices of every other element, and pads that put such back, where these form trees."""
    halved = [(op, dim, max(shape_of(op.operands[0])[dim], shape_of(op.results[0])[dim])) for op, dim in _halved(ops)]
    lengths: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    keys = []
    for op, dim, length in halved:
        shape = shape_of(op.operands[0])
        keys.append((dim, tuple(size for at, size in enumerate(shape) if at != dim)))
        lengths.setdefault(keys[-1], set()).add(length)
    return [(op, {dim}) for (op, dim, _), key in zip(halved, keys, strict=True) if _levels(lengths[key]) >= LEVELS]


def _halved(ops: list[Any]) -> Iterator[tuple[Any, int]]:
    for op in ops:
        steps = list(ir.DenseI64ArrayAttr(op.attributes["strides" if op.name == _SLICE else "interior_padding"]))
        step = 2 if op.name == _SLICE else 1
        apart = [dim for dim, each in enumerate(steps) if each != step - 1]
        if len(apart) == 1 and steps[apart[0]] == step:
            yield op, apart[0]


def _levels(lengths: set[int]) -> int:
    """How many lengths in a row, each at most one from half of the one before."""
    ordered = sorted(lengths, reverse=True)
    return 1 + sum(abs(ordered[at] - 2 * ordered[at + 1]) <= 2 for at in range(len(ordered) - 1))
