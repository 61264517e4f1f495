"""The accesses to one piece of memory, in order, and which of them another one may meet.

A few are looked at one by one. Where they are many, as the pieces of a long concatenation are, each stands in the cells
of memory that it touches: a narrow one in those of its bytes, one of equal rows at equal distance in those of its
columns. So an access costs what is near it, not what came before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from neuronx_cc.codegen.emission.frames import Access, Place
from neuronx_cc.ir.isa.program import DMA_STREAMS, Stream

FEW = 64
"""Accesses that are not worth sorting into cells."""
FEWEST = 8
"""Accesses that are looked at one by one sooner than whether there is news among them."""
CELLS = 4096
"""Parts of an allocation, and of a row, that are told apart."""
MOST_CELLS = 8
"""Cells that a narrow access touches at most."""

Entries = dict[int, Access]
"""Number -> access, in order."""


class History:
    """Accesses in the order in which they were added."""

    __slots__ = ("_added", "_all", "_counts", "_last", "_reads", "_span", "_writes", "_written")

    def __init__(self, span: int) -> None:
        """``span``: bytes of the allocation."""
        self._span = span
        self._all: Entries = {}
        self._written: Entries = {}
        """Of these, the writes: all that a read has to wait for."""
        self._added = 0
        self._reads: _Cells | None = None
        self._writes: _Cells | None = None
        self._last: dict[Place, int] | None = None
        self._counts: tuple[dict[Place, int], dict[Place, int]] = {}, {}
        """The highest count of each place that has ever read, and of each that has written."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Access]:
        return iter(self._all.values())

    def add(self, access: Access) -> None:
        """Add the latest access."""
        access.number = self._added
        self._added += 1
        counts = self._counts[access.write]
        if counts.get(access.place, 0) < access.count:
            counts[access.place] = access.count
        self._all[access.number] = access
        if access.write:
            self._written[access.number] = access
        self._last = None
        if self._reads is not None and self._writes is not None:
            (self._writes if access.write else self._reads).add(access)
        elif len(self._all) > FEW:
            self._reads, self._writes = _Cells(self._span), _Cells(self._span)
            for each in self._all.values():
                (self._writes if each.write else self._reads).add(each)

    def discard(self, access: Access) -> None:
        """Remove ``access`` if it is still there."""
        if self._all.get(access.number) is not access:
            return
        del self._all[access.number]
        if access.write:
            del self._written[access.number]
        self._last = None
        if self._reads is not None and self._writes is not None:
            (self._writes if access.write else self._reads).remove(access)

    def last(self) -> Mapping[Place, int]:
        """The highest count of each place."""
        if self._last is None:
            self._last = {}
            for access in self._all.values():
                self._last[access.place] = max(access.count, self._last.get(access.place, 0))
        return self._last

    def conflicting(self, access: Access, stream: Stream, known: Mapping[Place, int]) -> Iterable[Access]:
        """What ``access`` of ``stream`` may have to wait for, the latest first; ``known``: what it has waited for."""
        if self._reads is None or self._writes is None:
            entries = self._all if access.write else self._written
            if len(entries) > FEWEST and not (
                self._is_news(True, stream, known) or (access.write and self._is_news(False, stream, known))
            ):
                return ()
            return reversed(entries.values())
        parts = ((False, self._reads), (True, self._writes)) if access.write else ((True, self._writes),)
        found = [old for write, part in parts if self._is_news(write, stream, known) for old in part.near(access)]
        found.sort(key=_number, reverse=True)
        return found

    def _is_news(self, write: bool, stream: Stream, known: Mapping[Place, int]) -> bool:
        """Whether ``stream`` may have something to wait for, of writes or of reads, that it has not waited for."""
        engine = stream not in DMA_STREAMS
        for place, count in self._counts[write].items():
            if count > known.get(place, 0) and not (engine and place[0] is stream):
                return True
        return False

    def replaceable(self, new: Access) -> Iterable[Access]:
        """Those that ``new`` may cover: all kinds when it writes, else reads."""
        if self._reads is None or self._writes is None:
            return self._all.values()
        near = self._reads.near(new)
        return [*near, *self._writes.near(new)] if new.write else near


def _number(access: Access) -> int:
    return access.number


class _Cells:
    """Accesses of one kind by where they are."""

    def __init__(self, span: int) -> None:
        self._size = max(1, span // CELLS)
        self._narrow: Entries = {}
        self._cells: dict[int, Entries] = {}
        self._wide: dict[int, _Rows] = {}
        """Distance of rows (0: none) -> those that touch many cells."""
        self._moving: Entries = {}
        """Those whose address depends on registers."""

    def add(self, access: Access) -> None:
        for entries in self._places(access):
            entries[access.number] = access

    def remove(self, access: Access) -> None:
        for entries in self._places(access):
            del entries[access.number]

    def near(self, access: Access) -> Collection[Access]:
        """Those that may have bytes in common with ``access``, and perhaps some more."""
        if access.coefs:
            return [each for entries in self._all_entries() for each in entries.values()]
        found = dict(self._moving)
        cells = self._cells_of(access)
        if len(cells) > len(self._cells):
            found.update(self._narrow)
        else:
            for cell in cells:
                found.update(self._cells.get(cell, {}))
        for pitch, rows in self._wide.items():
            rows.collect(access if pitch and pitch == access.pitch else None, found)
        return found.values()

    def _all_entries(self) -> Iterator[Entries]:
        yield self._moving
        yield self._narrow
        for rows in self._wide.values():
            yield rows.entries

    def _cells_of(self, access: Access) -> range:
        return range(access.lo // self._size, (access.hi - 1) // self._size + 1)

    def _places(self, access: Access) -> Iterator[Entries]:
        """The tables in which ``access`` stands."""
        if access.coefs:
            yield self._moving
            return
        cells = self._cells_of(access)
        if len(cells) <= MOST_CELLS:
            yield self._narrow
            for cell in cells:
                yield self._cells.setdefault(cell, {})
            return
        yield from self._wide.setdefault(access.pitch, _Rows(access.pitch)).places(access)


class _Rows:
    """Wide accesses with one distance between their rows."""

    def __init__(self, pitch: int) -> None:
        self._pitch = pitch
        self._size = max(1, pitch // CELLS)
        self.entries: Entries = {}
        self._broad: Entries = {}
        self._columns: dict[int, Entries] = {}

    def places(self, access: Access) -> Iterator[Entries]:
        """The tables in which ``access`` stands."""
        yield self.entries
        columns = self._columns_of(access) if self._pitch else ()
        if not 0 < len(columns) <= MOST_CELLS:
            yield self._broad
            return
        for column in columns:
            yield self._columns.setdefault(column, {})

    def collect(self, access: Access | None, found: Entries) -> None:
        """Add what may meet ``access``, which has rows like these; all without one."""
        columns = self._columns_of(access) if access is not None else ()
        if access is None or len(columns) > len(self._columns):
            found.update(self.entries)
            return
        found.update(self._broad)
        for column in columns:
            found.update(self._columns.get(column, {}))

    def _columns_of(self, access: Access) -> Collection[int]:
        """The cells of a row that ``access`` touches; a run may go on in the next row."""
        start = access.lo % self._pitch
        end = start + access.run
        cells = range(start // self._size, (min(end, self._pitch) - 1) // self._size + 1)
        if end <= self._pitch:
            return cells
        return {*cells, *range((end - self._pitch - 1) // self._size + 1)}
