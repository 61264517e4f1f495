"""A run as the clock sees it: all that reports and traces need of it.

Input: a program, a machine and the course of the run. Values are gone; the clock can go through it as often as it is
asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from neuronx_cc.ir import collector
from neuronx_cc.ir.isa.program import Program
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.neff import PlannedFor
from neuronx_cc.runtime.clock import Timing, Watcher
from neuronx_cc.runtime.clock_regions import Regions
from neuronx_cc.runtime.course import Course
from neuronx_cc.runtime.report import RunReport, make_report

AnyWatcher = TypeVar("AnyWatcher", bound=Watcher)


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """One run of one program on one device."""

    program: Program
    machine: Machine
    course: Course
    assumed_regions: int = 0
    """Of them the course was not known (``course.assumed``)."""
    planned_for: PlannedFor | None = None
    """The machine that the program was compiled for."""
    device: int = 0
    name: str = ""
    """Of the module."""

    @collector.paused()
    def report(self) -> RunReport:
        """Raises RunError ERUN913 on a deadlock."""
        timing = Regions(self.program, self.machine, self.course).run()
        return self.report_of(timing)

    def report_of(self, timing: Timing) -> RunReport:
        """The report of a timing of this run."""
        return make_report(self.program, timing, self.machine, self.assumed_regions, self.planned_for)

    @collector.paused()
    def watch(self, make: Callable[[Timing], AnyWatcher]) -> tuple[Timing, AnyWatcher]:
        """The timing, and the watcher that ``make`` gave for it when it has been told of every instruction."""
        regions = Regions(self.program, self.machine, self.course)
        timing = regions.run()
        watcher = make(timing)
        regions.watch(watcher)
        return timing, watcher
