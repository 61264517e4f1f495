"""How far the work at hand is, for whoever cares to look: written by loops over passes, kernels and pieces.

Nobody waits for a reader, and nothing is kept: one tuple, replaced as a whole.
"""

_NOTHING = (0, 0, "")
_now: tuple[int, int, str] = _NOTHING


def note(done: int, total: int, what: str = "") -> None:
    """``done`` of ``total`` pieces of the work are done; ``what`` says what they are."""
    global _now
    _now = (done, total, what)


def forget() -> None:
    """Other work begins."""
    global _now
    _now = _NOTHING


def now() -> tuple[int, int, str]:
    """What was noted last: done, total (0 when nothing was noted), what."""
    return _now
