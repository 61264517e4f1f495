"""Tables of where the time goes, for terminals: by HLO op and by source line.

Input: the document of an ``Analysis``. All times are on the critical path, so that the rows add up to the run.
"""

from collections.abc import Mapping
from typing import Any

from neuronx_cc.runtime.profiling.findings import short
from neuronx_cc.runtime.tables import count, table

Document = Mapping[str, Any]


def operator_table(document: Document, rows: int | None, columns: int | None) -> list[str]:
    """The costliest ``rows`` HLO ops (None: all), as wide as ``columns`` at most."""
    shown = document["operators"][:rows]
    cells = [
        (
            row["name"],
            row["opcode"],
            *_time(row["critical_ns"], document),
            row["bound"],
            count(row["flops"]),
            count(row["hbm_bytes"], "B"),
            short(row["source"]) or row["op_name"],
        )
        for row in shown
    ]
    header = ("HLO op", "opcode", "us", "share", "bound by", "FLOPs", "HBM", "source")
    return [*table(header, cells, columns, (0, 1, 4, 7), names=(0, 7)), *_more(len(document["operators"]), len(shown))]


def source_table(document: Document, rows: int | None, columns: int | None) -> list[str]:
    """The costliest ``rows`` source lines (None: all)."""
    by_name = {row["name"]: row for row in document["operators"]}
    shown = document["sources"][:rows]
    cells = []
    for row in shown:
        operators = [by_name[name] for name in row["operators"]]
        flops, nbytes = (sum(each[key] for each in operators) for key in ("flops", "hbm_bytes"))
        time = _time(row["critical_ns"], document)
        cells.append((short(row["line"]), *time, row["bound"], count(flops), count(nbytes, "B"), str(len(operators))))
    header = ("source line", "us", "share", "bound by", "FLOPs", "HBM", "ops")
    return [*table(header, cells, columns, (0, 3), names=(0,)), *_more(len(document["sources"]), len(shown))]


def _time(ns: float, document: Document) -> tuple[str, str]:
    return f"{ns / 1e3:.1f}", f"{ns / document['time_ns']:.1%}" if document["time_ns"] else "-"


def _more(total: int, shown: int) -> list[str]:
    return [f"... and {total - shown} more; --all prints them"] if total > shown else []
