"""Scans and shifts by one element: the custom calls that ``passes.expansions.scans`` makes, and how to read them."""

from dataclasses import dataclass

from neuronx_cc.ir import hlo

TARGET = "neuronx_cc.scan"
PREVIOUS = "neuronx_cc.previous"
"""Target of the shift by one element: element 0 stays, every other is the one before it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan op says about itself."""

    axis: int
    reverse: bool
    result: int
    body: str
    """Empty for the shift by one element."""
    initial: bool
    """Whether the last operand, of which the elements along ``axis`` are the same, comes before the first element."""

    def config(self, axis: int) -> hlo.StrAttr:
        """The ``backend_config`` of the same along ``axis``."""
        return hlo.StrAttr(f"{axis} {int(self.reverse)} {self.result} {int(self.initial)}")


def scan_of(op: hlo.Operation) -> Scan | None:
    """None for other ops."""
    if not isinstance(op, hlo.CustomCallOp) or op.target.data not in (TARGET, PREVIOUS):
        return None
    assert op.backend_config is not None
    axis, reverse, result, initial = (int(word) for word in op.backend_config.data.split())
    return Scan(axis, bool(reverse), result, "" if op.called is None else op.called.data[0], bool(initial))
