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
    length: int
    """Elements that the storage holds."""

    def over(self, storage: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(storage, self.size, self.stride, self.offset)

    def fill(self, storage: torch.Tensor, value: torch.Tensor) -> None:
        """Store ``value`` in its place; what is there several times once."""
        once = tuple(slice(1) if not step else slice(None) for step in self.stride)
        self.over(storage)[once] = value[once]


def layouts(module: torch.fx.GraphModule) -> list[Layout | None]:
    """One a result of a graph with fixed sizes; None for what is no dense tensor, or has sizes that are no numbers."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    metas = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in output.args[0]]
    numbers: dict[Any, int] = {}
    return [_layout(meta, numbers) for meta in metas]


def _layout(meta: Any, numbers: dict[Any, int]) -> Layout | None:
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
        return None
    storage = meta.untyped_storage()
    values = (*meta.shape, *meta.stride(), meta.storage_offset(), storage.nbytes())
    if not all(isinstance(value, int) for value in values):
        return None
    number = numbers.setdefault((StorageWeakRef(storage), meta.dtype), len(numbers))
    length = storage.nbytes() // meta.element_size()
    return Layout(tuple(meta.shape), tuple(meta.stride()), int(meta.storage_offset()), number, length)


def laid_out(results: Sequence[Any], wanted: Sequence[Layout | None]) -> list[Any]:
    """``results`` in their layouts; a result stays as it is where nothing is asked for, or nothing differs."""
    members: dict[int, list[int]] = {}
    for place, layout in enumerate(wanted):
        if layout is not None and isinstance(results[place], torch.Tensor) and results[place].numel():
            members.setdefault(layout.storage, []).append(place)
    arranged = list(results)
    for places in members.values():
        first = wanted[places[0]]
        assert first is not None
        if len(places) == 1 and (first.stride == results[places[0]].stride() or _sparse(first)):
            continue
        storage = results[places[0]].new_zeros(first.length)
        for place in places:
            layout = wanted[place]
            assert layout is not None
            layout.fill(storage, results[place])
            arranged[place] = layout.over(storage)
    return arranged


def _sparse(layout: Layout) -> bool:
    """Whether a result is a small part of its storage, which nothing else of the results shares."""
    size = 1
    for each in layout.size:
        size *= each
    return size < layout.length
