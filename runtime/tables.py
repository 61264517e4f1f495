"""Aligned tables of text."""

from collections.abc import Sequence

LEAST = 12
"""Columns that a text keeps, however narrow the terminal is."""


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int | None = None,
    left: Sequence[int] = (0,),
    names: Sequence[int] = (),
) -> list[str]:
    """Lines of a table, the header first. The columns ``left`` are texts, all others are flush right.

    Of a table wider than ``columns`` the texts are cut, the widest first; ``names`` before the others.
    """
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for elastic in filter(None, (names, left)):
        while columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns:
            widest = max(elastic, key=lambda i: widths[i])
            if widths[widest] <= max(LEAST, len(header[widest])):
                break
            widths[widest] -= 1
    lines = []
    for row in cells:
        shown = [cut(cell, size) for cell, size in zip(row, widths, strict=True)]
        aligned = [
            cell.ljust(size) if i in left else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(shown, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines


def cut(text: str, size: int) -> str:
    """At most ``size`` characters of ``text``: its end says most, the file and line or the number of an op."""
    return text if len(text) <= size else ".." + text[len(text) - size + 2 :]


def count(number: float, unit: str = "") -> str:
    """A large number as people read it: ``1.23 G``, ``45.6 kB``."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip() if number else "-"


def significant(number: float) -> float:
    """``number`` with ten significant digits, which no time of a run needs more of."""
    return float(f"{number:.10g}")
