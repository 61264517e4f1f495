"""``report``: where the time of a NEFF goes, as a page, as JSON, and as a few lines on the terminal.

Input: a NEFF, and another one with ``--diff``. No values are computed: loops whose trip count run-time values decide
are taken as run once, which the report says.
"""

import json
import sys
import textwrap
from typing import Any

from neuronx_cc import runtime
from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.neffs import read_neff
from neuronx_cc.driver.parse import Parsed, rows_of
from neuronx_cc.driver.summary import source_table
from neuronx_cc.driver.terminal import width
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.profiling.analysis import Analysis, analyse
from neuronx_cc.runtime.profiling.diff import compare
from neuronx_cc.runtime.profiling.page import make_page


def report_command(session: Session) -> int:
    """Body of ``neuronx-cc report``."""
    parsed = session.parsed
    assert parsed is not None
    session.open_logfile()
    other = parsed.text_or_none("diff")
    if not parsed.flag("json"):
        inputs = [parsed.files[0], *filter(None, [other])]
        files.check_writable(parsed.text("output"), "--output", inputs)
    document = _analysis(parsed.files[0], parsed, session).document
    if other is not None:
        document["diff"] = compare(document, _analysis(other, parsed, session).document)
    session.enter("writing the report")
    if parsed.flag("json"):
        session.show(json.dumps(document, indent=1))
        return 0
    files.write_text(parsed.text("output"), make_page(document), RunError)
    session.show("\n".join(_lines(document, rows_of(parsed, 5))))
    print(f"The report is in {parsed.text('output')}")
    return 0


def _analysis(path: str, parsed: Parsed, session: Session) -> Analysis:
    neff, _ = read_neff(path, session)
    machine = None
    if parsed.text_or_none("machine") or parsed.names("set"):
        machine = find_machine(parsed.text_or_none("machine") or neff.machine()).with_settings(parsed.names("set"))
    session.enter("simulating")
    return analyse(runtime.load(neff).execution(machine=machine), neff.options)


def _wrapped(sentences: list[str], columns: int | None) -> list[str]:
    """Each sentence on lines of its own, as wide as the terminal."""
    if columns is None:
        return sentences
    return [line for sentence in sentences for line in textwrap.wrap(sentence, columns, break_on_hyphens=False)]


def _lines(document: dict[str, Any], rows: int | None) -> list[str]:
    """The verdict, and the costliest source lines."""
    columns = width(sys.stdout)
    lines = [*_wrapped([*document["notices"], *document["verdict"]], columns), ""]
    if "diff" in document:
        lines = [document["diff"]["sentence"], "", *lines]
    return [*lines, *source_table(document, rows, columns), ""] if rows != 0 and document["sources"] else lines
