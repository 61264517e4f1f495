"""``report``: where the time of a NEFF goes, as a page, as JSON, and as a few lines on the terminal.

Input: a NEFF, and another one with ``--diff``. No values are computed: loops whose trip count run-time values decide
are taken as run once, which the report says.
"""

import json
from typing import Any

from neuronx_cc import runtime
from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.ir.errors import RunError, UsageError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.profiling.analysis import Analysis, analyse, microseconds
from neuronx_cc.runtime.profiling.diff import compare
from neuronx_cc.runtime.profiling.findings import short
from neuronx_cc.runtime.profiling.page import make_page


def report_command(session: Session) -> int:
    """Body of ``neuronx-cc report``."""
    parsed = session.parsed
    assert parsed is not None
    if parsed.text_or_none("logfile"):
        session.log.open(parsed.text("logfile"), required=True)
        session.log_command()
    if parsed.integer("top") < 0:
        raise UsageError("EARG902", "--top takes a number of rows", "see --help")
    other = parsed.text_or_none("diff")
    if not parsed.flag("json"):
        inputs = [parsed.files[0], *filter(None, [other])]
        files.check_writable(parsed.text("output"), "--output", inputs)
    document = _analysis(parsed.files[0], parsed, session).document
    if other is not None:
        document["diff"] = compare(document, _analysis(other, parsed, session).document)
    session.enter("writing the report")
    if parsed.flag("json"):
        print(json.dumps(document, indent=1))
        return 0
    files.write_text(parsed.text("output"), make_page(document), RunError)
    print("\n".join(_lines(document, parsed.integer("top"))))
    print(f"The report is in {parsed.text('output')}")
    return 0


def _analysis(path: str, parsed: Parsed, session: Session) -> Analysis:
    session.enter("loading the NEFF")
    data = files.read(path, "NEFF")
    session.module = (path, data)
    neff = Neff.from_bytes(data)
    machine = None
    if parsed.text_or_none("machine") or parsed.names("set"):
        machine = find_machine(parsed.text_or_none("machine") or neff.machine()).with_settings(parsed.names("set"))
    session.enter("simulating")
    return analyse(runtime.load(neff).execution(machine=machine), neff.options)


def _lines(document: dict[str, Any], rows: int) -> list[str]:
    """The verdict, and the costliest source lines."""
    lines = [*document["notices"], *document["verdict"], ""]
    if "diff" in document:
        lines = [document["diff"]["sentence"], "", *lines]
    shown = document["sources"][:rows]
    if shown:
        width = max(len(short(row["line"])) for row in shown)
        lines.append(f"{'source line':<{max(width, 11)}} {'time':>9} {'share':>7}  bound by")
        for row in shown:
            share = row["critical_ns"] / document["time_ns"]
            time = microseconds(row["critical_ns"])
            lines.append(f"{short(row['line']):<{max(width, 11)}} {time:>9} {share:>7.1%}  {row['bound']}")
        lines.append("")
    return lines
