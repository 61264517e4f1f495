"""A few of the programs that ``tests/soak.py`` draws in thousands."""

import pytest
import soak_kinds

FOUND = [
    ("types", 77700090),
    ("types", 77700138),
    ("plain", 624),
    ("plain", 81000021),
    ("parts", 81000182),
    ("parts", 85000054),
    ("recurrences", 1002),
    ("recurrences", 1225),
]
"""Of 64-bit columns, which no engine transposes; of a mask before and after a product; of attentions read in part,
one of which has masks that are read in part; of gradients of extremes of sums that loops carry."""
QUICK = FOUND + [(kind, seed) for kind in soak_kinds.KINDS for seed in range(5 if kind in ("jax", "tiny") else 1)]
QUICK += [("modules", 1002)]
"""Numbers of rows that a reduction of these rows is compared with."""
MORE = [(kind, seed) for kind in soak_kinds.KINDS for seed in range(1000, 1060 if kind in ("jax", "tiny") else 1010)]


@pytest.mark.parametrize(("kind", "seed"), QUICK)
def test_random_program(kind: str, seed: int) -> None:
    assert soak_kinds.judge(kind, seed) == ("right", "")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), MORE)
def test_more_random_programs(kind: str, seed: int) -> None:
    outcome, detail = soak_kinds.judge(kind, seed)
    assert outcome in ("right", "refused"), detail
