"""``-O3``: schedules of contractions that the clock finds better than the estimate does.

A program is compiled with the best schedules by estimate; then, contraction by contraction, those first that take most
of its time, the next best candidates are put in their place, one at a time, and the whole program is timed, so that
what overlaps counts for nothing. What makes it faster stays. Times are kept beside the compile cache: the same search
reads them, a longer one goes on after them.

For a given number of candidates the search is a function of the module, the machine and the compiler; for a given
number of seconds it is not.
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

from neuronx_cc import runtime
from neuronx_cc.codegen.choose import Planner, name_of, shortlist
from neuronx_cc.driver.kept import compiler_files, place_of
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.tuning.history import History
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import progress
from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.neff import Neff

FOUND = "schedules_found"
"""Option of a NEFF that has what was found, as a list of ``problem=candidate``."""
LOGGER = logging.getLogger("neuronx_cc")
OWN_OPTIONS = ("search_seconds", "search_candidates")
"""A longer search goes on after a shorter one."""
SHORTLIST = 8
"""Candidates that are tried for a problem, the best one by estimate among them."""
LEAST_GAIN = 1e-3
"""A schedule that saves a smaller part of the program's time is not worth leaving the estimate's for."""


def search(make: Callable[[Planner], Neff], module: HloModule, parsed: Parsed, machine: Machine) -> Planner:
    """What knows the schedules found; ``make`` generates code for ``module``, which is after its passes."""
    timing, history = Timing(machine), _history(module, parsed, machine)
    deadline = time.monotonic() + parsed.integer("search_seconds")
    most = parsed.integer("search_candidates") if parsed.values["search_candidates"] is not None else None

    def timed(planner: Planner) -> float:
        try:
            neff = make(planner)
        except CompileError:  # what others need beside it finds no room
            return inf
        return float(runtime.load(neff).run([], timing_only=True, check_races=False).report.time_ns)

    # compiled whatever is known: it tells which problems there are
    best = timed(estimated := Planner(timing))
    found: dict[str, int] = {}
    trials = [
        (name_of(problem), number)
        for problem in estimated.by_weight()
        for number in shortlist(problem, timing, SHORTLIST)[1:]
    ][:most]
    for done, (name, number) in enumerate(trials):
        progress.note(done, len(trials), "schedules")
        trial = {**found, name: number}
        key = ",".join(f"{each}={trial[each]}" for each in sorted(trial))
        if key not in history and time.monotonic() > deadline:
            break
        taken = history.measured(key, partial(timed, Planner(timing, given=trial)))
        if taken < best * (1 - LEAST_GAIN):
            best, found = taken, trial
    return Planner(timing, given=found)


def written(planner: Planner) -> dict[str, Any]:
    """What ``found_in`` reads; nothing where nothing was found."""
    found = [f"{name}={number}" for name, number in sorted(planner.given.items())]
    return {FOUND: found} if found else {}


def found_in(options: Mapping[str, Any], machine: Machine) -> Planner | None:
    """The planner of a NEFF with these options that a search has made; None without one.

    Raises RunError ENEF901 for what no search has written.
    """
    found = options.get(FOUND)
    if found is None:
        return None
    given = {}
    for entry in found if isinstance(found, list) else [found]:
        matched = re.fullmatch(r"([0-9a-f]{16})=([0-9]{1,9})", entry) if isinstance(entry, str) else None
        if matched is None:
            raise RunError("ENEF901", f"the NEFF's {FOUND} {str(entry)[:60]!r} is not of the form problem=candidate")
        given[matched[1]] = int(matched[2])
    return Planner(Timing(machine), given=given)


def _history(module: HloModule, parsed: Parsed, machine: Machine) -> History:
    text = print_module(module, large_constants=False)
    identity = {
        "module": hashlib.sha256(text.encode()).hexdigest(),
        "machine": machine.digest(),
        "compiler": compiler_files(),
        "options": repr([pair for pair in sorted(parsed.recorded().items()) if pair[0] not in OWN_OPTIONS]),
    }
    place = place_of(parsed)
    if place is not None:
        name = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:20]
        try:
            return History(place.folder / f"SEARCH_{name}.jsonl", identity)
        except RunError as error:
            LOGGER.warning("%s; every schedule is timed anew", error.message)
    return History(None, identity)
