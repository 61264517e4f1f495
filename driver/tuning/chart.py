"""The Pareto front of a tuning as an SVG image: error on a logarithmic axis against simulated time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from neuronx_cc.driver.tuning.results import Point, Tuning

WIDTH, HEIGHT, MARGIN = 640, 400, 70
LEAST, MOST = 1e-9, 1e3
"""Errors are drawn between these: a logarithmic axis has no place for 0, nor for what is infinite."""
STYLE = "text{font:12px sans-serif;fill:#333}line,path{stroke:#888;fill:none}.front{stroke:#1565c0;stroke-width:2}"


def chart(tuning: Tuning) -> str:
    """Dots say their types where the pointer rests; the chosen one is filled, predicted errors are crosses."""
    points = tuning.points
    memory = tuning.objective == "memory"

    def cost(point: Point) -> float:
        return point.nbytes / 1e6 if memory else point.microseconds

    times = _Axis([cost(p) for p in points], MARGIN, WIDTH - MARGIN / 2)
    drawn = [e for p in points for e in (p.error, p.predicted) if e is not None]
    errors = _Axis([_height(e) for e in drawn], HEIGHT - MARGIN, 30)

    def place(point: Point, error: float) -> tuple[float, float]:
        return times.at(cost(point)), errors.at(_height(error))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        _text(WIDTH / 2, HEIGHT - 15, "memory, MB" if memory else "simulated time, us"),
        _text(MARGIN + 30, 18, "error (crosses: predicted)"),
    ]
    for value in times.ticks():
        parts.append(_text(times.at(value), HEIGHT - MARGIN + 20, f"{value:.4g}"))
    for value in errors.ticks():
        y = errors.at(value)
        parts.append(f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{WIDTH - MARGIN / 2}" y2="{y:.1f}" stroke-opacity=".3"/>')
        parts.append(_text(MARGIN - 35, y + 4, f"{10**value:.1e}"))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(point, point.error) for point in points))
    parts.append(f'<polyline class="front" fill="none" points="{path}"/>')
    for point in points:
        if point.predicted is not None:
            x, y = place(point, point.predicted)
            parts.append(f'<path d="M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8"/>')
        x, y = place(point, point.error)
        fill = "#1565c0" if point.types == tuning.chosen.types else "#fff"
        title = escape(
            f"{point.error:.1e}, {point.microseconds:.1f} us, {point.nbytes / 1e6:.2f} MB: {' '.join(point.types)}"
        )
        parts.append(
            f'<circle class="front" cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}"><title>{title}</title></circle>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Values between two positions, with five ticks; one value alone stands in the middle."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        low, high = min(values), max(values)
        spare = (high - low) * 0.05 or 1.0
        self._low, self._high, self._first, self._last = low - spare, high + spare, first, last

    def at(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        return [self._low + (self._high - self._low) * step / 4 for step in range(5)]


def _height(error: float) -> float:
    return math.log10(min(max(error, LEAST), MOST))


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(words)}</text>'
