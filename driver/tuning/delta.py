"""Delta debugging: a small set of items for which something holds, where nothing can be told from single ones.

A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002), algorithm ddmin.
"""

from collections.abc import Callable, Sequence


def smallest(items: Sequence[int], holds: Callable[[Sequence[int]], bool], most: int) -> list[int]:
    """Of ``items``, for which ``holds`` is true, a part for which it is, and is not when any single one is left out.

    ``holds`` is asked ``most`` times at most; then the part may be larger.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        rests = [[item for item in kept if item not in chunk] for chunk in chunks]
        found = None
        for tried in (*chunks, *(rests if len(chunks) > 2 else ())):
            most -= 1
            if most < 0:
                return kept
            if holds(tried):
                found = tried
                break
        if found is not None:
            parts = 2 if found in chunks else max(parts - 1, 2)
            kept = found
        elif parts >= len(kept):
            return kept
        else:
            parts = min(2 * parts, len(kept))
    return kept
