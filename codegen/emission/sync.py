"""Synchronisation: which finished instructions each instruction has to wait for.

Input: instructions in emission order, each with the memory it touches, inside counted loops.
Output: ``Wait``s whose counts are affine in the loop registers, on the progress semaphores of the
producing streams.

Every allocation keeps the accesses since it was last fully overwritten. An access waits for the
conflicting ones (at least one of the two writes) of other streams; accesses of one engine are ordered
by the engine itself, those of one DMA queue are not. When a loop closes, conflicts between different
iterations are added: an access of iteration i waits for the accesses of iteration i - d, where d is 1
for a fixed address and n for a tile that rotates over n buffers. Thresholds may name a later
instruction than strictly needed, never one that is emitted after the waiting one, so they cannot
deadlock.

A region starts a scope of its own: at its barrier everything earlier is complete, so all accesses are
forgotten, and counts start from 0; so they are at its end. An address that a loaded register or a
region's count takes part in may be anywhere in the register's range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from neuronx_cc.codegen.emission.accesses import Alloc, hull, interleaved, remember
from neuronx_cc.codegen.emission.carried import Alike, Like, Walk, alike_of, near, together
from neuronx_cc.codegen.emission.frames import Access, Frame, Place, Steps
from neuronx_cc.ir.isa.limits import MAX_WAIT_COEFS, MAX_WAITS
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr, Space, Stream, Wait

NEVER = -(1 << 60)
"""What is known of a loop's iterations before it is waited for any of them: counts may be negative in the first."""
MOST_ACCESSES = 2000
"""Accesses of a loop around kernels, whose iterations do not overlap where there are more."""
MOST_ISSUED = 50_000
"""Instructions of all iterations of such a loop; of more, iterations with a barrier each are timed and traced once."""
WHOLE = (0, 1)
"""The partitions of what has none."""
NO_ROTATIONS: frozenset[tuple[int, int]] = frozenset()
PIECES = 4
"""Parts of a loop that what comes after it tells apart."""


class Synchroniser:
    """Computes the waits; the builder calls ``access``, ``open_loop``, ``close_loop`` and ``resolve``."""

    def __init__(self) -> None:
        self.frames: list[Frame] = [Frame()]
        self._touched: dict[Frame, dict[Alloc, list[Access]]] = {}
        """What the open loops have touched."""
        self.register_range: dict[int, int] = {}
        """Open loop or phase register -> number of values."""
        self.loaded: set[int] = set()
        """Registers of which only the range is known: run-time values, and counts of open regions."""
        self.pending: list[tuple[Instr, dict[Place, int]]] = []
        """Every instruction and what it waits for: the counts are final when the loops of the place are closed."""
        self._known: dict[Stream, dict[Place, int]] = {stream: {} for stream in Stream}
        """Waiting stream -> place -> count already waited for, in any open loop."""
        self.epoch = 0
        """Changes where less is known than before: what has been waited for once need not be looked at again in it."""
        self._outside: list[tuple[list[Frame], dict[Stream, dict[Place, int]]]] = []

    @property
    def regions(self) -> int:
        """Open regions."""
        return len(self._outside)

    @property
    def outermost(self) -> int:
        """Frames around an outermost loop of a kernel: the program's, or a region's, and that of its iterations."""
        return 2 if len(self.frames) > 1 and self.frames[1].iterations else 1

    def record(self, instr: Instr, allocs: Sequence[Alloc]) -> None:
        """Count ``instr`` as emitted now and wait for what its operands, in ``allocs``, conflict with."""
        stream, frames = instr.stream, self.frames
        frame = frames[-1]
        place = frame.places.get(stream)
        if place is None:
            place = frame.places[stream] = (stream, tuple(frames[1:]), ())
        frame.finished[stream] = frame.finished.get(stream, 0) + 1
        count = sum([each.finished.get(stream, 0) for each in frames])
        order = len(self.pending)
        accesses: list[Access] = []
        for write, refs in ((True, instr.outs), (False, instr.ins)):
            for ref in refs:
                alloc = allocs[len(accesses)]
                low, high, rows = hull(ref.space, ref.dtype, ref.dims)
                base, coefs, covers, rotations = ref.offset - alloc.lo, ref.coefs, True, NO_ROTATIONS
                lo, hi = base + low, base + high
                parts = WHOLE if ref.space is Space.HBM else (ref.partition, ref.partition + ref.dims[0][0])
                if coefs:
                    if not self.loaded.isdisjoint([register for register, _ in coefs]):
                        lo, hi = self._reach(lo, hi, [coef for coef in coefs if coef[0] in self.loaded])
                        coefs = tuple([coef for coef in coefs if coef[0] not in self.loaded])
                        rows, covers = (), False
                    rotations = self._rotations(coefs)
                accesses.append(
                    Access(stream, write, lo, hi, parts, coefs, count, place, order, rows, rotations, covers)
                )
        self.pending.append((instr, self._waits_for(stream, allocs, accesses)))
        touched = self._touched.setdefault(frame, {}) if len(frames) > 1 else None
        for alloc, access in zip(allocs, accesses, strict=True):
            remember(alloc, access)
            if touched is not None:
                touched.setdefault(alloc, []).append(access)

    def _waits_for(self, stream: Stream, allocs: Sequence[Alloc], accesses: Sequence[Access]) -> dict[Place, int]:
        """The strongest wait for each place, without those waited for before on ``stream``."""
        known, learned, order = self._known[stream], self.frames[-1].learned, len(self.pending)
        found: dict[Place, int] = {}
        engine = stream not in DMA_STREAMS
        for alloc, access in zip(allocs, accesses, strict=True):
            if alloc.inherited:  # what earlier owners of the bytes left to wait for
                epoch, hazards = alloc.unheard.get(stream, (-1, alloc.inherited))
                if epoch != self.epoch:
                    hazards = alloc.inherited
                if hazards:
                    lo, hi = self._expanded(access) if access.coefs else (access.lo, access.hi)
                    lo, hi = lo + alloc.lo, hi + alloc.lo
                    for first, end, counts in hazards:
                        if first < hi and lo < end:
                            for place, count in counts.items():
                                if not (engine and place[0] is stream) and count > known.get(place, 0):
                                    learned.append((known, place, known.get(place, 0), order))
                                    known[place] = found[place] = count
                    left = [hazard for hazard in hazards if not (hazard.lo < hi and lo < hazard.hi)]
                    alloc.unheard[stream] = (self.epoch, left)
            # the latest first: others of its place need no look then
            for earlier in alloc.accesses.conflicting(access, stream, known):
                place, count = earlier.place, earlier.count
                if count <= known.get(place, 0) or (engine and earlier.stream is stream):
                    continue
                if self._overlap(earlier, access):
                    if earlier.steps is not None and len(self.frames) > self.outermost:
                        place, count = self._in_step(earlier, earlier.steps, access)
                    former = known.get(place, NEVER if place[2] else 0)
                    if count > former:
                        learned.append((known, place, former, order))
                        known[place] = found[place] = count
        return found

    def _in_step(self, earlier: Access, steps: Steps, access: Access) -> tuple[Place, int]:
        """The place and count to wait for where a loop goes the same way as one before: iteration by iteration."""
        outermost = self.outermost
        loop = self.frames[outermost]
        own = [stride for register, stride in access.coefs if register == loop.register]
        if own == [steps.step] and steps.step > 0:
            rest = tuple([coef for coef in access.coefs if coef[0] != loop.register])
            lo, hi = self._reach(access.lo, access.hi, rest)
            ahead = -(-(hi - steps.lo) // steps.step) - 1
            if lo < hi and loop.count - 1 + ahead < steps.trips:
                stream = earlier.place[0]
                place = (stream, tuple(self.frames[1:outermost]), ((loop.register, steps.each),))
                return place, steps.first + ahead * steps.each
        return earlier.place, earlier.count

    def _rotations(self, coefs: tuple[tuple[int, int], ...]) -> frozenset[tuple[int, int]]:
        owners = {register: frame for frame in self.frames for register in frame.phases.values()}
        return frozenset((id(owners[register]), stride) for register, stride in coefs if register in owners)

    def _expanded(self, access: Access, without: tuple[tuple[int, int], ...] = ()) -> tuple[int, int]:
        return self._reach(access.lo, access.hi, [coef for coef in access.coefs if coef not in without])

    def _reach(self, lo: int, hi: int, coefs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        """The hull over all values of the registers."""
        for register, stride in coefs:
            reach = stride * (self.register_range.get(register, 1) - 1)
            lo, hi = min(lo, lo + reach), max(hi, hi + reach)
        return lo, hi

    def _overlap(self, a: Access, b: Access) -> bool:
        (a_first, a_end), (b_first, b_end) = a.partitions, b.partitions
        if a_first >= b_end or b_first >= a_end:
            return False
        if a.coefs == b.coefs:
            return a.lo < b.hi and b.lo < a.hi and not interleaved(a, b, 0, ())
        common = tuple(coef for coef in a.coefs if coef in b.coefs)
        a_lo, a_hi = self._expanded(a, common)
        b_lo, b_hi = self._expanded(b, common)
        if a_lo >= b_hi or b_lo >= a_hi:
            return False
        moving = [
            stride for coefs in (a.coefs, b.coefs) for register, stride in coefs if (register, stride) not in common
        ]
        return not interleaved(a, b, 0, moving)

    def open_region(self) -> None:
        """Begin a region, iteration or case: counts start from 0. The caller has the memories forget accesses."""
        self._outside.append((self.frames, self._known))
        self.frames, self._known = [Frame()], {stream: {} for stream in Stream}
        self.epoch += 1

    def close_region(self) -> None:
        """End what ``open_region`` began: counts go on from where they stood."""
        self.frames, self._known = self._outside.pop()
        self.epoch += 1

    def open_loop(self, count: int, register: int, iterations: bool = False) -> Frame:
        frame = Frame(count=count, register=register, iterations=iterations)
        self.register_range[register] = count
        self.loaded.discard(register)
        self.frames.append(frame)
        return frame

    def close_loop(self) -> Frame:
        """Add the waits between iterations of the innermost loop and fold its accesses into the enclosing scope."""
        loop = self.frames[-1]
        carried: dict[tuple[int, Stream], int] = {}
        for alloc, accesses in self._touched.pop(loop, {}).items():
            alike = alike_of(accesses)
            self._carried(loop, alike, carried)
            for access in accesses:
                alloc.accesses.discard(access)
            self._fold(loop, alloc, alike)
        self._wait(self._between(carried))
        self.frames.pop()
        for known, place, former, _ in reversed(loop.learned):
            known[place] = former
        self.epoch += bool(loop.learned)
        loop.learned.clear()
        parent = self.frames[-1]
        for stream, per_iteration in loop.finished.items():
            parent.finished[stream] = parent.finished.get(stream, 0) + per_iteration * loop.count
        for register in (loop.register, *loop.phases.values()):
            self.register_range.pop(register, None)
        return loop

    def close_iterations(self, first: int, may_overlap: bool) -> bool:
        """Close the loop around kernels that a region holds, before the region. Whether its iterations overlap: waits
        between them are added. Else it is to be the region's own, with a barrier after each, from where counts start.

        ``first``: the number of its first instruction. Pieces of memory follow each other in the same bytes within an
        iteration, so their accesses are looked at together. What takes too long to tell or to time, or more waits than
        an instruction has, does not overlap.
        """
        loop, carried = self.frames[-1], dict[tuple[int, Stream], int]()
        touched = self._touched.pop(loop, {})
        overlaps = (
            may_overlap
            and sum(map(len, touched.values())) <= MOST_ACCESSES
            and loop.count * sum(loop.finished.values()) <= MOST_ISSUED
            and all(len(p[1]) + len(p[2]) <= MAX_WAIT_COEFS for _, waits in self.pending[first:] for p in waits)
        )
        if overlaps:
            for accesses in together(touched):
                self._carried(loop, alike_of(accesses), carried)
            strongest = self._between(carried)
            orders = Counter(order for order, _ in strongest)
            overlaps = all(len(self.pending[order][1]) + more <= MAX_WAITS for order, more in orders.items())
            if overlaps:
                self._wait(strongest)
        if not overlaps:
            loop.finished = {}
        self.frames.pop()
        self.register_range.pop(loop.register, None)
        return overlaps

    def _carried(self, loop: Frame, alike: Sequence[Alike], found: dict[tuple[int, Stream], int]) -> None:
        """Add (instruction's order, awaited stream) -> count for the conflicts between iterations of ``loop``.

        Of like accesses, the first one waits, for the last one: the stream's others come after it.
        """
        if not any(first.write for first, _ in alike):
            return
        groups = [Like(first, last, self._walk(loop, first), *self._expanded(first)) for first, last in alike]
        for later, earlier in near(groups):
            stream = later.first.stream
            if not (later.first.write or earlier.first.write):
                continue
            if earlier.first.stream is stream and stream not in DMA_STREAMS:
                continue
            distance = self._distance(loop, earlier.first, later.first, earlier.walk, later.walk)
            if distance == 0 or (distance >= loop.count and distance not in loop.phases):
                continue
            wait = (later.first.order, earlier.first.stream)
            count = earlier.last.count - distance * loop.finished[earlier.first.stream]
            found[wait] = max(count, found.get(wait, count))

    def _between(self, carried: dict[tuple[int, Stream], int]) -> dict[tuple[int, Stream], int]:
        """Of what instructions wait for of earlier iterations of the innermost loop, what none before them waits for.

        So does one that waits for the same stream in its own iteration.
        """
        loops, within = tuple(self.frames[1:]), set[tuple[int, Stream]]()
        for _, place, _, order in self.frames[-1].learned:
            if place[1] == loops and not place[2]:
                wait = (order, place[0])
                within.add(wait)
                carried[wait] = self.pending[order][1][place]
        strongest: dict[tuple[Stream, Stream], int] = {}
        found = {}
        for (order, awaited), count in sorted(carried.items()):
            key = (self.pending[order][0].stream, awaited)
            if key not in strongest or strongest[key] < count:
                strongest[key] = count
                if (order, awaited) not in within:
                    found[order, awaited] = count
        return found

    def _wait(self, strongest: dict[tuple[int, Stream], int]) -> None:
        loops = tuple(self.frames[1:])
        for (order, awaited), count in strongest.items():
            waits, place = self.pending[order][1], (awaited, loops, ())
            waits[place] = max(count, waits.get(place, count))

    def _walk(self, loop: Frame, access: Access) -> Walk:
        own = tuple([coef for coef in access.coefs if coef[0] == loop.register])
        open_loops = {id(frame) for frame in self.frames}
        return Walk(
            own[0][1] if own else 0,
            *self._expanded(access, own),
            frozenset([rotation for rotation in access.rotations if rotation[0] not in open_loops]),
            tuple([coef for coef in access.coefs if coef[0] in loop.phases.values()]),
        )

    def _distance(self, loop: Frame, earlier: Access, later: Access, before: Walk, after: Walk) -> int:
        """Iterations of ``loop`` after which ``later`` may touch what ``earlier`` touched; 0 for never."""
        if earlier.partitions[0] >= later.partitions[1] or later.partitions[0] >= earlier.partitions[1]:
            return 0
        if not before.rotated.isdisjoint(after.rotated):
            return 0  # rotates in a closed inner loop: its distance, in iterations, reaches across this loop too
        for register, stride in before.phases:
            if (register, stride) in after.phases:
                return next(modulus for modulus, own in loop.phases.items() if own == register)
        e_lo, e_hi, l_lo, l_hi = before.lo, before.hi, after.lo, after.hi
        step = before.step
        if step != after.step:
            e_lo, e_hi = self._expanded(earlier)
            l_lo, l_hi = self._expanded(later)
            return 1 if e_lo < l_hi and l_lo < e_hi else 0
        moving = [stride for coefs in (earlier.coefs, later.coefs) for reg, stride in coefs if reg != loop.register]
        if step == 0:
            return 1 if e_lo < l_hi and l_lo < e_hi and not interleaved(earlier, later, 0, moving) else 0
        # earlier at iteration i - d lies d * step lower: find the first d with above < d * step < below and an overlap
        above, below = e_lo - l_hi, e_hi - l_lo
        if step < 0:
            above, below = -below, -above
        first, last = above // abs(step) + 1, (below - 1) // abs(step)
        for distance in range(max(1, first), min(loop.count, 65, last + 1)):
            if not interleaved(earlier, later, -distance * step, moving):
                return distance
        extent = max(e_hi, l_hi) - min(e_lo, l_lo)
        within = earlier.pitch and earlier.pitch == later.pitch and loop.count * abs(step) <= earlier.pitch
        disjoint_rows = (
            within and max(earlier.run, later.run) <= abs(step) and not any(s % earlier.pitch for s in moving)
        )
        return 0 if extent <= 64 * abs(step) or loop.count <= 65 or disjoint_rows else 1

    def _fold(self, loop: Frame, alloc: Alloc, alike: Sequence[Alike]) -> None:
        """Have the hulls of accesses over (pieces of) a loop's iterations stand for them, each at its last position."""
        registers = {loop.register, *loop.phases.values()}
        merged: dict[tuple[object, ...], Access] = {}
        for access, latest in alike:
            coefs = tuple([coef for coef in access.coefs if coef[0] not in registers])
            moved = [stride for register, stride in access.coefs if register in registers]
            rows = access.rows if access.rows and not any(stride % access.pitch for stride in moved) else ()
            place = (access.stream, tuple([frame for frame in access.loops if frame is not loop]), ())
            steps = self._steps(loop, latest)
            for piece, (first, last) in enumerate(self._pieces(loop, access)):
                lo, hi = access.lo, access.hi
                for register, stride in access.coefs:
                    if register in registers:
                        ends = (first, last) if register == loop.register else (0, self.register_range[register] - 1)
                        lo, hi = lo + min(stride * end for end in ends), hi + max(stride * end for end in ends)
                count = latest.count + last * loop.finished.get(access.stream, 0)
                key = (access.stream, access.write, coefs, access.partitions, access.rotations, piece)
                old = merged.get(key)
                if old is None:
                    merged[key] = Access(
                        access.stream,
                        access.write,
                        lo,
                        hi,
                        access.partitions,
                        coefs,
                        count,
                        place,
                        access.order,
                        rows,
                        access.rotations,
                        steps=steps,
                    )
                else:
                    if not rows or old.rows != rows or (lo - old.lo) % rows[0][0]:
                        old.rows = ()
                    old.lo, old.hi, old.count = min(old.lo, lo), max(old.hi, hi), max(old.count, count)
                    old.steps = _joined(old.steps, steps)
        for access in merged.values():
            alloc.accesses.add(access)
        if len(self.frames) > 2:
            self._touched.setdefault(self.frames[-2], {}).setdefault(alloc, []).extend(merged.values())

    def _steps(self, loop: Frame, access: Access) -> Steps | None:
        """How ``access`` moved with ``loop``, an outermost one, if it did."""
        own = [stride for register, stride in access.coefs if register == loop.register]
        if len(self.frames) > self.outermost + 1 or not own or len(access.coefs) > 1:
            return None
        return Steps(access.lo, access.hi, own[0], loop.count, access.count, loop.finished.get(access.stream, 0))

    def _pieces(self, loop: Frame, access: Access) -> Sequence[tuple[int, int]]:
        """(first, last) iterations that count as one. Who reads what an outermost loop writes in pieces, one after the
        other, needs to wait for its piece only.
        """
        whole = ((0, loop.count - 1),)
        own = [stride for register, stride in access.coefs if register == loop.register]
        if not access.write or len(self.frames) > self.outermost + 1 or not own or abs(own[0]) < access.hi - access.lo:
            return whole
        if any(register in loop.phases.values() for register, _ in access.coefs):
            return whole
        cuts = sorted({piece * loop.count // PIECES for piece in range(PIECES + 1)})
        return [(start, end - 1) for start, end in pairwise(cuts)]

    def resolve(self) -> None:
        """Write the final waits into the instructions, and forget them."""
        made: dict[tuple[Place, int], Wait | None] = {}
        for instr, waits in self.pending:
            final = []
            for wanted in waits.items():
                if wanted not in made:
                    made[wanted] = _final(*wanted)
                wait = made[wanted]
                if wait is not None:
                    final.append(wait)
            needed = _needed(final)
            if len(needed) > MAX_WAITS:
                several = [wait for wanted in _one_each(waits) if (wait := _final(*wanted)) is not None]
                needed = _needed(several)
            instr.waits = needed
        self.pending.clear()


def _joined(one: Steps | None, other: Steps | None) -> Steps | None:
    """What two accesses in one loop have in common, if they move alike."""
    if one is None or other is None or one.step != other.step:
        return None
    return one._replace(lo=min(one.lo, other.lo), hi=max(one.hi, other.hi), first=max(one.first, other.first))


def _needed(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """``waits`` without those that another one for the same stream implies."""
    if len({wait.stream for wait in waits}) == len(waits):
        return tuple(waits)
    return tuple(
        wait
        for at, wait in enumerate(waits)
        # of equal ones the first is kept
        if not any(
            _implies(other, wait) and not (at < after and _implies(wait, other))
            for after, other in enumerate(waits)
            if after != at
        )
    )


def _one_each(waits: dict[Place, int]) -> list[tuple[Place, int]]:
    """One wait for each stream: the largest count, in all of the loops that any of its waits is within.

    Its threshold is at least that of each. It still names no later instruction: each count is that of an instruction
    emitted before the waiting one in the first iteration of all loops, and in later ones as many more come before it.
    What keeps step with another loop stays as it is.
    """
    found: dict[Stream, tuple[Place, int]] = {}
    others = [(place, count) for place, count in waits.items() if place[2]]
    for place, count in waits.items():
        if not place[2]:
            (stream, loops, steps), most = found.get(place[0], (place, count))
            found[stream] = (stream, max(loops, place[1], key=len), steps), max(most, count)
    return [*found.values(), *others]


def _implies(wait: Wait, other: Wait) -> bool:
    """Whether ``wait`` is for at least as many instructions as ``other``, wherever loops are: they count from 0."""
    if wait.stream is not other.stream or wait.count < other.count:
        return False
    more = dict(wait.coefs)
    for register, coef in other.coefs:
        more[register] = more.get(register, 0) - coef
    return all(coef >= 0 for coef in more.values())


def _final(place: Place, count: int) -> Wait | None:
    """The wait for ``count`` instructions at ``place``, whose loops are complete; None for one that is always over."""
    stream, loops, steps = place
    coefs = tuple([(frame.register, frame.finished[stream]) for frame in loops if frame.finished.get(stream)]) + steps
    return Wait(stream, count, coefs) if count > 0 or coefs else None
