"""The report as one HTML file: no server, no network, nothing to install.

Input: the document of an ``Analysis``. Output: the page. Its script builds nodes from the document alone, so that no
name of a program is ever read as markup, and the page forbids itself every connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

MAX_OPERATORS = 4000
"""Ops in a page, those first that take most time; a program may have a hundred thousand."""
MAX_LINES = 4000


def _shortened(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document without what no reader of a page would come to."""
    operators, sources = document["operators"], document["sources"]
    if len(operators) <= MAX_OPERATORS and len(sources) <= MAX_LINES:
        return document
    rows = {}
    for stream, flat in document["timeline"].items():
        kept = list(flat)
        kept[3::4] = [number if number < MAX_OPERATORS else -1 for number in flat[3::4]]
        rows[stream] = kept
    left = max(0, len(operators) - MAX_OPERATORS)
    notice = f"The page has the {MAX_OPERATORS} ops that take most time; --json has the other {left}, too"
    short = [row | {"operators": row["operators"][:200]} for row in sources[:MAX_LINES]]
    return {
        **document,
        "operators": operators[:MAX_OPERATORS],
        "sources": short,
        "timeline": rows,
        "notices": [*document["notices"], *([notice] if left else [])],
    }


def make_page(document: Mapping[str, Any]) -> str:
    """The page of a document (``analysis.Analysis.document``, with ``diff`` if there is one)."""
    folder = files(__package__)
    document = _shortened(document)
    name = document["name"] or "program"
    place = f"on {document['machine']}, simulated"
    # inside a script element only its end tag and comments mean anything
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": escape(f"{name}: report of the simulated run"),
        "heading": escape(name),
        "subtitle": escape(f"NeuronCore-v2 {place}; times are the model's, not a measurement"),
        "style": (folder / "report.css").read_text("utf-8"),
        "script": (folder / "report.js").read_text("utf-8"),
        "data": data,
    }
    page = (folder / "report.html").read_text("utf-8")
    pieces = page.split("{{")
    result = [pieces[0]]
    for piece in pieces[1:]:
        key, rest = piece.split("}}", 1)
        result += [parts[key], rest]
    return "".join(result)
