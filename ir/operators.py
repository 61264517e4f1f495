"""The operator coverage table: one row per HLO opcode, what we do with it, and what vendor releases did.

``neuronx-cc list-operators``, the unsupported-operator error, the documentation page and the truth test are made
from ``OPERATORS``. ``--release 2.1|2.2|2.3`` checks a module against what that vendor release documented (the 2022
operator list and its notes); ``latest`` is what this compiler generates. Names are spelled as the vendor's list
spells them, which is as XlaBuilder does.

Importing this module loads neither NumPy nor xDSL: ``list-operators`` starts fast.
"""

from neuronx_cc.ir.operators_check import Problem, check_module
from neuronx_cc.ir.operators_table import CUSTOM_CALLS, GENERATED, OPERATORS, RELEASES, CustomCall, Limit, Operator

__all__ = [
    "CUSTOM_CALLS",
    "OPERATORS",
    "RELEASES",
    "CustomCall",
    "Limit",
    "Operator",
    "Problem",
    "check_module",
    "docs_page",
    "listing",
    "supported",
]


def supported(release: str = "latest") -> list[Operator]:
    """Rows that compile under ``release``, by opcode: generated here and, for a vendor release, introduced by then."""
    return [row for row in OPERATORS.values() if row.status in GENERATED and row.introduced(release)]


def listing(release: str = "latest", verbose: bool = False) -> list[str]:
    """Lines of ``list-operators``: operator names in alphabetical order, one a line.

    ``verbose`` adds the opcode, element types, the release that introduced the operator, how it is generated and its
    constraints under ``release``. ValueError for an unknown release.
    """
    if release not in RELEASES:
        raise ValueError(f"unknown release {release!r}; known: {', '.join(RELEASES)}")
    named = sorted((name, row) for row in supported(release) for name in row.names)
    if not verbose:
        return [name for name, _ in named]
    return [
        f"{name:<24} {row.opcode:<24} {' '.join(row.dtypes):<66} since {row.since:<8} {row.status:<11} "
        f"{' '.join(limit.sentence for limit in row.limits_of(release))}".rstrip()
        for name, row in named
    ]


def facts(release: str = "latest") -> list[dict[str, object]]:
    """What ``listing`` says of each operator, as plain values. ValueError for an unknown release."""
    if release not in RELEASES:
        raise ValueError(f"unknown release {release!r}; known: {', '.join(RELEASES)}")
    return [
        {
            "name": name,
            "opcode": row.opcode,
            "dtypes": list(row.dtypes),
            "since": row.since,
            "status": row.status,
            "constraints": [limit.sentence for limit in row.limits_of(release)],
        }
        for name, row in sorted((name, row) for row in supported(release) for name in row.names)
    ]


def docs_page() -> str:
    """The operator reference page, in Markdown."""
    lines = [
        "# Operators",
        "",
        "Generated from `ir/operators_table.py`. *native*: an engine instruction does it; *decomposed*: it becomes",
        "operators that engines do; *folded*: it disappears into its neighbours; *planned*, *refused*: rejected with",
        "`EVRF001`. 64-bit integers are narrowed to 32 bits before code generation.",
        "",
        "| Opcode | Names | Element types | Since | Status | Constraint |",
        "|---|---|---|---|---|---|",
    ]
    for row in OPERATORS.values():
        notes = [f"{', '.join(limit.releases)}: {limit.sentence}" for limit in row.limits]
        notes += [row.reason] if row.reason else []
        cells = [f"`{row.opcode}`", ", ".join(row.names), " ".join(row.dtypes), row.since, row.status, " ".join(notes)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Custom-call targets", "", "| Target | Family | Status |", "|---|---|---|"]
    lines += [f"| `{call.target}` | {call.family} | {call.status} |" for call in CUSTOM_CALLS.values()]
    return "\n".join(lines) + "\n"
