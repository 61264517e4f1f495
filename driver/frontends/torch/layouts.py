"""How torch expects a graph's results to lie in memory: their order of dims, and which of them share elements.

A program gives dense arrays. Code after the graph may depend on strides (``view``, or views that AOT autograd makes
anew of a result) and on sharing (a change of one result that shows in another).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one result; sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    storage: int
    """A number for each storage; results with the same one share it."""

    @property
    def end(self) -> int:
        """Behind the last element, counted from the storage's first."""
        return self.offset + sum((size - 1) * step for size, step in zip(self.size, self.stride, strict=True)) + 1

    def over(self, storage: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(storage, self.size, self.stride, self.offset)

    def fill(self, storage: torch.Tensor, value: torch.Tensor) -> None:
        """Store ``value`` in its place; what is there several times once."""
        once = tuple(slice(1) if not step else slice(None) for step in self.stride)
        self.over(storage)[once] = value[once]


def layouts(module: torch.fx.GraphModule, values: Sequence[Any]) -> list[Layout | None]:
    """One a result of the graph when it is called with ``values``; None for what is no dense tensor.

    Code that AOT autograd puts around a graph makes views of its inputs by the strides and the offset of a result.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    metas = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in output.args[0]]
    sizes = _sizes(module, values)
    storages: dict[Any, int] = {}
    return [_layout(meta, storages, sizes) for meta in metas]


def _sizes(module: torch.fx.GraphModule, values: Sequence[Any]) -> dict[Any, int]:
    """What each symbol of the graph's sizes is."""
    found: dict[Any, int] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, values, strict=True):
        meta = node.meta.get("val")
        pairs = [(meta, value)]
        if isinstance(meta, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = list(zip((*meta.shape, *meta.stride()), (*value.shape, *value.stride()), strict=True))
        found.update({s.node.expr: int(v) for s, v in pairs if isinstance(s, torch.SymInt) and s.node.expr.is_symbol})
    return found


def _layout(meta: Any, storages: dict[Any, int], sizes: dict[Any, int]) -> Layout | None:
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
        return None

    def number(size: Any) -> int:
        return int(size.node.expr.xreplace(sizes) if isinstance(size, torch.SymInt) else size)

    storage = storages.setdefault((StorageWeakRef(meta.untyped_storage()), meta.dtype), len(storages))
    size, stride = tuple(map(number, meta.shape)), tuple(map(number, meta.stride()))
    return Layout(size, stride, number(meta.storage_offset()), storage)


def laid_out(results: Sequence[Any], wanted: Sequence[Layout | None]) -> list[Any]:
    """``results`` in their layouts; a result stays as it is where nothing is asked for, or nothing differs."""
    members: dict[int, list[int]] = {}
    for place, layout in enumerate(wanted):
        if layout is not None and isinstance(results[place], torch.Tensor) and results[place].numel():
            members.setdefault(layout.storage, []).append(place)
    arranged = list(results)
    for places in members.values():
        given = [layout for layout in map(wanted.__getitem__, places) if layout is not None]
        if len(given) == 1 and (given[0].stride, given[0].offset) == (results[places[0]].stride(), 0):
            continue
        storage = results[places[0]].new_zeros(max(layout.end for layout in given))
        for place, layout in zip(places, given, strict=True):
            layout.fill(storage, results[place])
            arranged[place] = layout.over(storage)
    return arranged
