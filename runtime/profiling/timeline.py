"""What each stream works on over time, coarse enough to be drawn whole: runs of one op, at most ``RUNS`` a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronx_cc.runtime.clock import Event

RUNS = 2500


@dataclass(slots=True)
class Run:
    """A stretch in which a stream works mostly on one op. Times in ns."""

    begin: float
    end: float
    busy: float
    debug: int


@dataclass(slots=True)
class _Open:
    begin: float
    end: float
    kernel: str
    busy: dict[int, float] = field(default_factory=dict)


class Timeline:
    """Joins instructions to runs: those of one kernel that follow closely, and whatever is shorter than a quantum."""

    def __init__(self, total: float, kernels: list[str]) -> None:
        """``kernels[i]``: kernel of debug entry i."""
        self._quantum = total / RUNS
        self._kernels = kernels
        self._open: dict[int, _Open] = {}
        self.runs: dict[int, list[Run]] = {}
        """Stream -> runs in order."""

    def add(self, event: Event) -> None:
        """Note one dynamic instruction; those of a stream come in order of their starts."""
        debug = event.node.instr.debug
        kernel = self._kernels[debug] if debug < len(self._kernels) else ""
        begin = event.start
        end = begin + event.node.duration
        known = self._open.get(event.stream)
        if known is not None:
            short = begin - known.begin < self._quantum
            close = begin - known.end < self._quantum and known.kernel == kernel
            if not short and not close:
                self._close(event.stream, known)
                known = None
        if known is None:
            known = self._open[event.stream] = _Open(begin, end, kernel)
        known.end = max(known.end, end)
        known.busy[debug] = known.busy.get(debug, 0.0) + event.node.duration

    def _close(self, stream: int, known: _Open) -> None:
        top = max(known.busy, key=lambda debug: known.busy[debug])
        busy = min(sum(known.busy.values()), known.end - known.begin)
        self.runs.setdefault(stream, []).append(Run(known.begin, known.end, busy, top))

    def finish(self) -> None:
        for stream, known in self._open.items():
            self._close(stream, known)
        self._open = {}
