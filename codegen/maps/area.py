"""Rectangular parts of a map's space, and what lies in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.columns import Section
from neuronx_cc.codegen.maps.space import Views


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangular part of a map kernel's space: its sizes, where it begins, and the views of what lies in it."""

    shape: tuple[int, ...]
    origin: tuple[int, ...]
    inputs: Views
    outputs: Views

    def part(self, view: View) -> View:
        """What lies in this part, of a view of the whole space or of its rows."""
        for axis, (start, size) in enumerate(zip(self.origin[: len(view.dims)], self.shape, strict=False)):
            view = _cut(view, axis, start, size)
        return view

    def cut(self, axis: int, start: int, size: int) -> Area:
        """``size`` indices of ``axis`` from ``start`` on."""
        return Area(
            (*self.shape[:axis], size, *self.shape[axis + 1 :]),
            (*self.origin[:axis], self.origin[axis] + start, *self.origin[axis + 1 :]),
            {value: _cut(view, axis, start, size) for value, view in self.inputs.items()},
            {value: _cut(view, axis, start, size) for value, view in self.outputs.items()},
        )


def _cut(view: View, axis: int, start: int, size: int) -> View:
    cut = view.slice(axis, start, size)
    assert cut is not None, "boxes are cut from HBM views along whole rows"
    return cut


def is_cut_by(view: View, sections: Sequence[Section]) -> bool:
    """Whether each of ``sections`` is a view of ``view``."""
    return all(view.slice(*cut) is not None for section in sections for cut in section.cuts)
