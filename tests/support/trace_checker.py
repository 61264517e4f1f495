"""What a Chrome / Perfetto trace must keep, checked strictly; Perfetto drops or bends what breaks it."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

PHASES = {"M", "X", "s", "f", "C"}


def check_trace(text: str) -> dict[str, Any]:
    """The document of a trace that keeps all rules; AssertionError names the event that does not.

    Slices of one thread do not overlap; all threads and processes have names; each arrow leaves a slice, reaches the
    start of one, and starts no later than it ends, and the slice it leaves is over by then, unless devices meet;
    counters go forward in time and are not negative; times are whole nanoseconds.
    """
    document: dict[str, Any] = json.loads(text, parse_constant=_refuse)
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["otherData"]["is_simulation"] == "true"
    slices: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    named: set[tuple[int, int]] = set()
    arrows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    counters: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    for event in document["traceEvents"]:
        phase, pid = event["ph"], event["pid"]
        assert phase in PHASES, event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        if phase == "M":
            if event["name"] in ("process_name", "thread_name"):
                assert event["args"]["name"], event
                place = (pid, event.get("tid", 0))
                assert place not in named, f"named twice: {event}"
                named.add(place)
            continue
        assert ns(event["ts"]) >= 0, event
        if phase == "X":
            assert ns(event["dur"]) >= 0, event
            slices[pid, event["tid"]].append(event)
        elif phase == "C":
            (value,) = event["args"].values()
            assert value >= 0, event
            counters[pid, event["name"]].append((ns(event["ts"]), value))
        else:
            assert phase not in arrows[event["id"]], f"two ends: {event}"
            assert phase == "s" or event["bp"] == "e", event
            arrows[event["id"]][phase] = event
    for place in slices:
        assert place in named, f"thread without a name: {place}"
        assert (place[0], 0) in named, f"process without a name: {place}"
    starts = {place: _lane(events) for place, events in slices.items()}
    for number, ends in arrows.items():
        assert set(ends) == {"s", "f"}, f"arrow {number} has one end"
        begin, end = ends["s"], ends["f"]
        assert begin["name"] == end["name"], ends
        left = starts[begin["pid"], begin["tid"]].get(ns(begin["ts"]))
        reached = starts[end["pid"], end["tid"]].get(ns(end["ts"]))
        assert left is not None, f"leaves no slice: {begin}"
        assert reached is not None, f"reaches no slice: {end}"
        assert ns(begin["ts"]) <= ns(end["ts"]), f"goes back: {ends}"
        if begin["name"] == "wait":
            assert _end(left) <= ns(end["ts"]), f"{reached} starts before {left} ends"
    for key, points in counters.items():
        times = [at for at, _ in points]
        assert times == sorted(set(times)), f"counter {key} goes back"
        assert points[-1][1] == 0, f"counter {key} does not end"
    return document


def slices_of(document: dict[str, Any], least: int = 3) -> list[dict[str, Any]]:
    """The instructions: slices but those of the first partitions, which are of the program as a whole."""
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["tid"] >= least]


def ns(us: float) -> int:
    """Whole nanoseconds."""
    value = round(us * 1000)
    assert abs(us * 1000 - value) < 1e-3, f"{us} us is no whole number of nanoseconds"
    return value


def _end(event: dict[str, Any]) -> int:
    return ns(event["ts"]) + ns(event["dur"])


def _lane(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Start -> slice, of slices that do not overlap."""
    events.sort(key=lambda event: ns(event["ts"]))
    for before, after in pairwise(events):
        assert _end(before) <= ns(after["ts"]), f"overlap: {before} {after}"
    return {ns(event["ts"]): event for event in events}


def _refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")
