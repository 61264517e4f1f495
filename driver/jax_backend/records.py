"""Launches as the clock takes them later, and who wants to know of them; loads no simulator."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from neuronx_cc.driver.jax_backend.program import Unit
    from neuronx_cc.runtime.course import Course

Record: TypeAlias = "tuple[Unit, tuple[int, ...], Course, int]"
"""A launch for the clock: program, devices, what the regions of its first device did, and when it began.

The last is in nanoseconds since the epoch.
"""
recorders: list[list[Record]] = []
"""Lists that every launch is added to."""
