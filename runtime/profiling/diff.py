"""Two runs compared, by source line and op: what became faster, what slower.

Input: the documents of two analyses. Output: the part ``diff`` of a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neuronx_cc.runtime.profiling.analysis import microseconds


def compare(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The differences of ``after`` to ``before``, the largest first."""
    mine, other = _by_line(after["sources"]), _by_line(before["sources"])
    rows: list[dict[str, Any]] = []
    for name in mine.keys() | other.keys():
        now, then = mine.get(name), other.get(name)
        after_ns = now["critical_ns"] if now else 0.0
        before_ns = then["critical_ns"] if then else 0.0
        rows.append(
            {
                "name": name,
                "before_ns": before_ns,
                "after_ns": after_ns,
                "change_ns": round(after_ns - before_ns, 3),
                "before_bound": then["bound"] if then else "not there",
                "after_bound": now["bound"] if now else "not there",
            }
        )
    rows.sort(key=lambda row: (-abs(row["change_ns"]), row["name"]))
    change = after["time_ns"] - before["time_ns"]
    word = "as fast as" if not change else f"{microseconds(abs(change))} {'slower' if change > 0 else 'faster'} than"
    sentence = (
        f"{after['name'] or 'The program'} takes {microseconds(after['time_ns'])}: {word} "
        f"{before['name'] or 'the other'} with {microseconds(before['time_ns'])} "
        f"({after['time_ns'] / before['time_ns']:.3g} times)."
    )
    names = ("time_ns", "kernel_ns")
    summary = {name: [before[name], after[name]] for name in names}
    summary |= {name: [value, after["summary"].get(name)] for name, value in before["summary"].items()}
    found = {"name": before["name"], "machine": before["machine"], "sentence": sentence}
    return found | {"rows": rows, "summary": summary}


def _by_line(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["line"]: row for row in rows}
