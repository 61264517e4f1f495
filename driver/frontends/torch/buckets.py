"""``bucketed``: one program for each of a few sizes, and inputs filled up to the next of them.

Inputs are padded at the end of every dim that differs between the buckets; results are cut back where such a dim is
found again. So the model must treat rows apart along those dims, or take a mask.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuronx_cc.driver.frontends.torch.lowering import CompilerArgs
from neuronx_cc.driver.frontends.torch.module import NeuronModule, trace
from neuronx_cc.ir.errors import RunError, UsageError

Shapes = tuple[tuple[int, ...], ...]


def bucketed(
    model: torch.nn.Module | Callable[..., Any],
    buckets: Sequence[Any],
    compiler_args: CompilerArgs = None,
    *,
    pad_value: float = 0,
    inline_weights_to_neff: bool = True,
) -> "Bucketed":
    """``model`` traced for each of ``buckets``: example inputs, tensors or tuples of tensors, of one size each.

    Raises what ``trace`` raises, and UsageError EARG906 when the buckets differ in more than their sizes.
    """
    examples = [tuple(each) if isinstance(each, tuple | list) else (each,) for each in buckets]
    if not examples:
        raise UsageError("EARG906", "no buckets given", "give example inputs of each size")
    first = [(each.ndim, each.dtype) for each in examples[0]]
    if any([(each.ndim, each.dtype) for each in example] != first for example in examples):
        raise UsageError("EARG906", "the buckets differ in number, rank or type of their inputs", "vary sizes alone")
    shapes = [tuple(tuple(each.shape) for each in example) for example in examples]
    order = sorted(range(len(shapes)), key=lambda number: _volume(shapes[number]))
    modules = [
        trace(model, examples[number], compiler_args, inline_weights_to_neff=inline_weights_to_neff) for number in order
    ]
    return Bucketed(modules, [shapes[number] for number in order], pad_value)


def _volume(shapes: Shapes) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes)


class Bucketed(torch.nn.Module):
    """Traced modules, the smallest first; a call takes the first that its inputs fit into."""

    def __init__(self, modules: Sequence[NeuronModule], shapes: Sequence[Shapes], pad_value: float = 0) -> None:
        super().__init__()
        self.programs = torch.nn.ModuleList(modules)
        self.shapes = list(shapes)
        self.pad_value = pad_value

    def forward(self, *inputs: torch.Tensor) -> Any:
        if not all(isinstance(each, torch.Tensor) for each in inputs):
            kinds = ", ".join(type(each).__name__ for each in inputs)
            raise RunError("ERUN001", f"expected tensors, one for each input of the buckets, found {kinds}")
        number = self._bucket(tuple(tuple(each.shape) for each in inputs))
        shapes = self.shapes[number]
        results = self.programs[number](
            *(self._padded(each, shape) for each, shape in zip(inputs, shapes, strict=True))
        )
        cuts = {
            (axis, whole): size
            for each, shape in zip(inputs, shapes, strict=True)
            for axis, (size, whole) in enumerate(zip(each.shape, shape, strict=True))
            if size != whole
        }
        return pytree.tree_map(lambda value: _cut(value, cuts), results)

    def _bucket(self, given: Shapes) -> int:
        for number, shapes in enumerate(self.shapes):
            pairs = list(zip(given, shapes, strict=False))
            if len(given) == len(shapes) and all(
                len(mine) == len(room) and all(size <= most for size, most in zip(mine, room, strict=True))
                for mine, room in pairs
            ):
                return number
        listed = "; ".join(" ".join(str(list(shape)) for shape in shapes) for shapes in self.shapes)
        found = " ".join(str(list(shape)) for shape in given)
        raise RunError("ERUN001", f"inputs of shape {found} fit none of the buckets {listed}", "add a larger bucket")

    def _padded(self, value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(value.shape) == shape:
            return value
        whole = value.new_full(shape, self.pad_value)
        whole[tuple(slice(size) for size in value.shape)] = value
        return whole


def _cut(value: Any, cuts: Mapping[tuple[int, int], int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    places = enumerate(value.shape)
    return value[tuple(slice(cuts.get((axis, size), size)) for axis, size in places)]
