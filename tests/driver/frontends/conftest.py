"""The table of pass rates that ends a run of the front ends' tests: what tests recorded, added up by name."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

RATES = "rates"


@pytest.fixture
def rates(record_property: Any) -> Any:
    """``rates(name, counts)``: outcomes for the row of that name. Properties of reports also come back from workers."""

    def record(name: str, counts: Mapping[str, int]) -> None:
        record_property(RATES, [name, dict(counts)])

    return record


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for key, value in report.user_properties:
                    if key == RATES:
                        found.setdefault(value[0], Counter()).update(value[1])
    if found:
        terminalreporter.section("pass rates")
        for line in table(found):
            terminalreporter.write_line(line)


def table(found: Mapping[str, Counter[str]]) -> list[str]:
    """Lines of a table, what passes first; ``skipped`` is no part of the rate."""
    lines = []
    for name, counts in sorted(found.items()):
        tried = counts.total() - counts["skipped"]
        others = ", ".join(f"{kind} {count}" for kind, count in counts.most_common() if kind != "pass" and count)
        lines.append(f"{name:44} {counts['pass']:5} of {tried:5} {counts['pass'] / max(tried, 1):7.1%}  {others}")
    return lines
