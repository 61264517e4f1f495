"""What a planner asks of the machine before there are instructions: the time that work takes, and how stages overlap.

``Timing(machine)`` answers with ``Work``: the nanoseconds for which it occupies each of the core's shared resources.
Work adds up; a loop whose stages overlap takes its ``bound`` an iteration. Costs are those of the instruction table
(``ir.isa.cost``) of instructions made up for the question, so that estimates and the clock agree by construction.

A core has nine resources (``excl.*``, ``dma.*`` of the machine description): TensorE, VectorE, ScalarE, GpSimd, the DMA
engines together, what these can read of HBM and what they can write, and two ports that one engine takes at a time,
that of PSUM (Vector and Scalar) and that of SBUF (Vector and GpSimd).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod
from operator import add
from typing import NamedTuple

from neuronx_cc.ir.isa import cost
from neuronx_cc.ir.isa.program import Instr, Ref, Space, Stream
from neuronx_cc.ir.isa.table import TABLE
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.types import itemsize

CLOCK_KEY = {
    Stream.TENSOR: "clock.tensor_ghz",
    Stream.VECTOR: "clock.vector_ghz",
    Stream.SCALAR: "clock.scalar_ghz",
    Stream.GPSIMD: "clock.gpsimd_ghz",
    Stream.SYNC: "clock.base_ghz",
}
SECTION = {Stream.VECTOR: "vec", Stream.SCALAR: "act", Stream.GPSIMD: "pool"}


def duration_ns(instr: Instr, machine: Machine) -> float:
    """Time from which on the engine of ``instr`` takes its next instruction."""
    return float(TABLE[instr.op].cost(instr, machine) / machine[CLOCK_KEY[instr.stream]])


def latency_ns(instr: Instr, machine: Machine) -> float:
    """Time after that until the results of an engine's instruction are visible."""
    if instr.stream is Stream.TENSOR:
        return float(machine["pe.ls_latency_ns" if instr.op == "load_stationary" else "pe.latency_ns"])
    return float(machine[f"{SECTION[instr.stream]}.latency_ns"])


def arrival_ns(dma: cost.DmaCost, machine: Machine) -> float:
    """Time from the start of a transfer until its data is there."""
    return float(machine["dma.fixed_latency_ns"] + dma.engine_ns + machine["dma.semaphore_write_ns"])


_work = tuple.__new__  # as ``Work._make``, which is Python


class Work(NamedTuple):
    """Nanoseconds for which a piece of work occupies each resource. A sum of work is the work of both."""

    tensor: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    gpsimd: float = 0.0
    dma: float = 0.0
    psum_port: float = 0.0
    sbuf_port: float = 0.0
    hbm_read: float = 0.0
    hbm_write: float = 0.0

    def __add__(self, other: object) -> Work:
        if not isinstance(other, Work):
            return NotImplemented
        return _work(Work, map(add, self, other))

    def times(self, count: float) -> Work:
        """The work ``count`` times."""
        return _work(Work, [each * count for each in self])

    @property
    def bound(self) -> float:
        """Time of the resource that has most to do: that of a loop whose stages overlap."""
        return max(self)


NOTHING = Work()


class Tile(NamedTuple):
    """An operand on chip: its element type, where it lies, and the bytes between neighbours (0: they are dense)."""

    dtype: str = "f32"
    psum: bool = False
    stride: int = 0


class Stage(NamedTuple):
    """One stage of a pipeline."""

    work: Work
    latency: float = 0.0
    """From the start of its work on an item until the next stage may start, beyond ``work.bound``."""


F32, F32_PSUM, BF16 = Tile(), Tile(psum=True), Tile("bf16")


class Timing:
    """Times on one machine, all in nanoseconds. Pure: asking changes nothing but a cache."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sizes = machine.sizes()
        self.dma_rate = float(min(machine["dma.engines"] * machine["dma.bw_per_engine"], machine["hbm.bw_per_core"]))
        """Bytes a nanosecond of long runs between HBM and the chip, all DMA engines together."""
        least, overhead = float(machine["dma.elem_cost_ns"]), float(machine["dma.run_overhead_ns"])
        self.long_run: int = max(1, ceil((least - overhead) / machine["dma.engines"] * self.dma_rate))
        """Bytes of a run that takes as long as all shorter ones; the rate comes near ``dma_rate`` from here on."""
        self._descriptor = float(machine["dma.swdge_descriptor_ns"])
        self.found_run: int = max(self.long_run, ceil(self._descriptor * self.dma_rate))
        """The same where software makes the descriptor of each run, at an address that is found at run time."""
        self.run_ns = float(machine["dma.elem_cost_ns"] / machine["dma.engines"])
        """Least time of a run, all DMA engines together."""
        self.transfer_latency = float(machine["dma.fixed_latency_ns"] + machine["dma.semaphore_write_ns"])
        """From the start of a transfer until its data is there, beyond the time of its busiest engine."""
        self.semaphore = float(machine["sem.latency_ns"])
        """Until another stream sees that an instruction is done."""
        self._cycle = {stream: 1 / float(machine[key]) for stream, key in CLOCK_KEY.items()}
        self._sbuf_exclusive = machine["excl.vec_pool_sbuf"] == "arbitrate"
        self._psum_exclusive = machine["excl.vec_act_psum"] == "arbitrate"
        self._known: dict[tuple[object, ...], Work] = {}
        self._transfers: dict[tuple[int, int, str], cost.DmaCost] = {}

    # ---- engines ----------------------------------------------------------------------------------------------

    def cycle(self, stream: Stream) -> float:
        """One cycle of an engine."""
        return self._cycle[stream]

    def latency(self, stream: Stream) -> float:
        """From the end of an engine's work until its result is visible to other engines, semaphore included."""
        key = "pe.latency_ns" if stream is Stream.TENSOR else f"{SECTION[stream]}.latency_ns"
        return float(self.machine[key]) + self.semaphore

    def dependent(self, stream: Stream) -> float:
        """What an instruction waits for the result of one of the two before it on the same engine."""
        return float(self.machine[f"{SECTION[stream]}.dependent_cycles"]) * self._cycle[stream]

    def engine(
        self,
        op: str,
        stream: Stream,
        size: int | Sequence[int],
        outs: Sequence[Tile] = (F32,),
        ins: Sequence[Tile] = (F32,),
        alu: Sequence[str] = (),
        imm: Sequence[float] = (),
        flags: Sequence[str] = (),
    ) -> Work:
        """One instruction ``op`` of Vector, Scalar or GpSimd on ``size`` elements a partition (or dims of them).

        ``outs`` and ``ins`` are its operands, all of these dims; ``alu``, ``imm`` and ``flags`` as in ``Instr``.
        """
        wide = size if isinstance(size, int) else tuple(size)
        key = (op, stream, wide, tuple(outs), tuple(ins), tuple(alu), tuple(imm), tuple(flags))
        found = self._known.get(key)
        if found is None:
            dims = (size,) if isinstance(size, int) else tuple(size)
            found = self._known[key] = self.of(
                Instr(
                    op,
                    stream,
                    tuple(self._ref(tile, dims) for tile in outs),
                    tuple(self._ref(tile, dims) for tile in ins),
                    tuple(alu) or ("",),
                    tuple(imm) or (1.0,),
                    frozenset(flags),
                )
            )
        return found

    def of(self, instr: Instr) -> Work:
        """The work of an instruction: of an engine (a load of a stationary operand: see ``product``) or of the DMA."""
        if instr.stream in (Stream.DMA_WEIGHT, Stream.DMA_LOAD, Stream.DMA_STORE, Stream.DMA_DYNAMIC):
            return _moving(cost.dma_cost(instr, self.machine))
        return self._occupied(
            instr.stream, duration_ns(instr, self.machine), {r.space for r in (*instr.outs, *instr.ins)}
        )

    def _occupied(self, stream: Stream, time: float, spaces: set[Space]) -> Work:
        psum = self._psum_exclusive and Space.PSUM in spaces and stream in (Stream.VECTOR, Stream.SCALAR)
        sbuf = self._sbuf_exclusive and Space.SBUF in spaces and stream in (Stream.VECTOR, Stream.GPSIMD)
        engines = (Stream.TENSOR, Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD)
        tensor, vector, scalar, gpsimd = (time * (stream is engine) for engine in engines)
        return Work(tensor, vector, scalar, gpsimd, 0.0, time * psum, time * sbuf)

    def _ref(self, tile: Tile, dims: Sequence[int]) -> Ref:
        stride = tile.stride or itemsize(tile.dtype)
        strides = [stride * prod(dims[at + 1 :]) for at in range(len(dims))]
        space = Space.PSUM if tile.psum else Space.SBUF
        return Ref(space, tile.dtype, 0, ((self.sizes.partitions, 1), *zip(dims, strides, strict=True)))

    # ---- TensorE ----------------------------------------------------------------------------------------------

    def product(self, columns: int, moving: int, dtype: str, loaded: bool = True, flags: Sequence[str] = ()) -> Work:
        """One product: [rows, ``columns``] stationary, [rows, ``moving``] moving, results [columns, moving] in PSUM.

        ``loaded``: the stationary operand is loaded for it, while the product before is under way where the engine does
        that. ``flags``: ``tf32``.
        """
        key = ("product", columns, moving, dtype, loaded, *flags)
        found = self._known.get(key)
        if found is None:
            time = self._multiply(columns, moving, dtype, flags)
            if loaded:
                load = self._load(columns, dtype, flags)
                time = max(time, load) if self.machine["pe.ls_background_depth"] > 0 else time + load
            found = self._known[key] = Work(tensor=time)
        return found

    def column(self, dtype: str, flags: Sequence[str] = ()) -> float:
        """Nanoseconds of a column of a long product."""
        moving = self.sizes.moving
        return self.product(self.sizes.columns, moving, dtype, loaded=False, flags=flags).tensor / moving

    def load_stationary(self, columns: int, dtype: str) -> Work:
        """A stationary operand [rows, ``columns``], where no product hides its load."""
        return Work(tensor=self._load(columns, dtype, ()))

    def _load(self, columns: int, dtype: str, flags: Sequence[str]) -> float:
        tile = self._ref(Tile(dtype), (columns,))
        instr = Instr("load_stationary", Stream.TENSOR, (), (tile,), flags=frozenset(flags))
        return duration_ns(instr, self.machine)

    def _multiply(self, columns: int, moving: int, dtype: str, flags: Sequence[str]) -> float:
        out = Ref(Space.PSUM, "f32", 0, ((columns, 1), (moving, 4)))
        tile = self._ref(Tile(dtype), (moving,))
        instr = Instr("multiply_moving", Stream.TENSOR, (out,), (tile,), flags=frozenset(flags))
        return duration_ns(instr, self.machine)

    def transpose(self, rows: int, columns: int, dtype: str, out: Tile | None = None) -> Work:
        """[``rows``, ``columns``] (at most the array's) times a unit matrix of ``dtype``, then copied by Scalar.

        ``out``: what Scalar writes; of ``dtype`` unless given. Exact transposes of FP32 are two, of halves.
        """
        left = self.engine("activation", Stream.SCALAR, rows, (out or Tile(dtype),), (F32_PSUM,), ("copy",))
        return self.product(columns, rows, dtype) + left

    # ---- DMA --------------------------------------------------------------------------------------------------

    def transfer(self, nbytes: int, run: int, way: str = "read") -> Work:
        """``nbytes`` (of the wider type) in contiguous runs of ``run`` bytes.

        ``way``: ``read`` (from HBM), ``write`` (to HBM), ``copy`` (from HBM to HBM) or ``chip`` (on chip).
        """
        return _moving(self._transfer(nbytes, run, way))

    def found(self, nbytes: int, run: int) -> Work:
        """The same from HBM, at addresses that are found at run time."""
        moved = self.transfer(nbytes, run)
        return moved._replace(dma=max(moved.dma, nbytes / max(1, min(run, nbytes)) * self._descriptor))

    def arrival(self, nbytes: int, run: int, way: str = "read") -> float:
        """From the start of such a transfer, on its own, until its data is there and the semaphore is seen."""
        return arrival_ns(self._transfer(nbytes, run, way), self.machine) + self.semaphore

    def moved(self, nbytes: int, run: int, way: str = "read") -> Stage:
        """Such a transfer as a stage of a pipeline."""
        work = self.transfer(nbytes, run, way)
        return Stage(work, self.arrival(nbytes, run, way) - work.bound)

    def _transfer(self, nbytes: int, run: int, way: str) -> cost.DmaCost:
        key = (nbytes, run, way)
        found = self._transfers.get(key)
        if found is None:
            run = max(1, min(run, nbytes))
            read, written = nbytes * (way in ("read", "copy")), nbytes * (way in ("write", "copy"))
            found = cost.transfer_cost(max(1, ceil(nbytes / run)), run, read, written, self.machine)
            self._transfers[key] = found
        return found

    # ---- stages -----------------------------------------------------------------------------------------------

    def done(self, work: Work, stream: Stream) -> Stage:
        """Work whose last instruction is one of ``stream`` as a stage of a pipeline."""
        return Stage(work, self.latency(stream))

    def pipeline(self, stages: Sequence[Stage], count: int, buffers: int = 2) -> float:
        """Time of ``count`` items that go through ``stages``, of which ``buffers`` may be under way between any two.

        The first item fills the pipeline; then items follow in the time of the busiest resource, or as quickly as
        buffers come back: after the two stages that they lie between, and what the others keep these waiting.
        """
        if count <= 0 or not stages:
            return 0.0
        fill = sum(stage.work.bound + stage.latency for stage in stages)
        whole = total(stage.work for stage in stages)
        back = 0.0
        for at in range(max(1, len(stages) - 1)):
            near = stages[at : at + 2]
            used = total(stage.work for stage in near)
            others = max(all_ - own for all_, own in zip(whole, used, strict=True) if own) if whole.bound else 0.0
            back = max(back, others + sum(stage.work.bound + stage.latency for stage in near))
        return fill + (count - 1) * max(whole.bound, back / max(1, buffers))


def _moving(dma: cost.DmaCost) -> Work:
    return Work(dma=dma.service_ns, hbm_read=dma.read_ns, hbm_write=dma.write_ns)


def total(works: Iterable[Work]) -> Work:
    """The work of all."""
    result = NOTHING
    for work in works:
        result = result + work
    return result
