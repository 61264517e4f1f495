"""Pages of the race check: footprints that share a byte share a page, and columns of rows have pages of their own."""

import random

import numpy as np

from neuronx_cc.ir.isa.program import Ref, Space
from neuronx_cc.runtime.footprints import Footprints, Patterns
from neuronx_cc.runtime.race_pairs import _pages


def footprints(refs: list[tuple[Ref, bool]]) -> tuple[Footprints, np.ndarray]:
    patterns = Patterns()
    numbered = [patterns.number(ref, ()) for ref, _ in refs]
    bases = np.array([ref.offset + base for (ref, _), (_, base) in zip(refs, numbered, strict=True)])
    writes = np.array([write for _, write in refs])
    return Footprints.of(patterns, np.array([number for number, _ in numbered]), bases, writes)


def block(offset: int, *dims: tuple[int, int]) -> Ref:
    return Ref(Space.HBM, "u8", offset, dims)


def draw(chance: random.Random) -> Ref:
    offset = chance.randrange(3000)
    match chance.randrange(4):
        case 0:
            return block(offset, (chance.randrange(1, 20), 1))
        case 1:
            return block(offset, (chance.randrange(1, 6), 100), (chance.randrange(1, 110), 1))
        case 2:
            return block(offset // 100 * 100 + chance.randrange(8) * 10, (chance.randrange(2, 9), 100), (10, 1))
        case _:
            return block(offset + 10000, (chance.randrange(2, 9), 128), (3, 1))


def test_what_meets_shares_a_page() -> None:
    for seed in range(10):
        chance = random.Random(seed)
        facts, touched = footprints([(draw(chance), chance.random() < 0.5) for _ in range(300)])
        low, high = _pages(facts, touched)
        ones, others = (each.ravel() for each in np.meshgrid(np.arange(len(facts)), np.arange(len(facts))))
        near = facts.hulls_meet(ones, others)
        ones, others = ones[near], others[near]
        meeting = facts.overlap(ones, others)
        ones, others = ones[meeting], others[meeting]
        assert ((low[ones] <= high[others]) & (low[others] <= high[ones])).all()


def test_columns_of_one_array_lie_apart() -> None:
    count, width, rows = 500, 12, 16
    refs = [(block(column * width, (rows, count * width), (width, 1)), True) for column in range(count)]
    facts, touched = footprints(refs)
    low, high = _pages(facts, touched)
    pages = np.bincount(np.concatenate([np.arange(a, b + 1) for a, b in zip(low, high, strict=True)]))
    assert pages.max() <= 3
