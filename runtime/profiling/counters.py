"""Rates over time: bytes through the DMA engines and HBM, work of TensorE, activity of each stream.

A ``Counters`` is told of each instruction and spreads it over equal stretches of the run, so it takes the same memory
for a thousand instructions and a billion.
"""

from __future__ import annotations

from array import array
from math import prod

from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr
from neuronx_cc.ir.machine import Machine
from neuronx_cc.runtime.clock import Event
from neuronx_cc.runtime.clock_program import MULTIPLY

COLUMNS = 2000
LEAST_NS = 10.0
"""Shortest stretch."""


def multiply_flops(instr: Instr, machine: Machine) -> tuple[float, float]:
    """FLOPs of one ``multiply_moving``, and the same weighted by the passes of its element type."""
    out, moving = instr.outs[0], instr.ins[0]
    flops = 2.0 * moving.counts[0] * out.counts[0] * prod(moving.counts[1:])
    full = moving.dtype == "f32" and "tf32" not in instr.flags
    return flops, flops * (machine["pe.fp32_passes"] if full else 1)


def peak_flops(machine: Machine) -> float:
    """FLOPs a ns of TensorE for 16-bit operands."""
    return float(2 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"])


class Counters:
    """Sums over ``columns`` stretches of ``width`` ns."""

    def __init__(self, machine: Machine, total: float) -> None:
        self.columns = max(1, min(COLUMNS, int(total / LEAST_NS)))
        self.width = max(total, LEAST_NS) / self.columns
        self._machine = machine
        self.dma_bytes = self._row()
        self.hbm_bytes = self._row()
        self.dma_busy = self._row()
        self.flops = self._row()
        self.busy: dict[int, array[float]] = {}
        """Stream -> ns in which it works; for DMA queues the service of the shared engines."""
        self._work: dict[int, float] = {}

    def _row(self) -> array[float]:
        return array("d", bytes(8 * self.columns))

    def add(self, event: Event) -> None:
        """Count one dynamic instruction."""
        node = event.node
        row = self.busy.get(event.stream)
        if row is None:
            row = self.busy[event.stream] = self._row()
        begin, end = event.start, event.start + max(node.duration, node.read, node.write)
        self._spread(row, begin, end, node.duration)
        if event.stream in DMA_STREAMS:
            self._spread(self.dma_busy, begin, end, node.duration)
            self._spread(self.dma_bytes, begin, end, node.nbytes)
            self._spread(self.hbm_bytes, begin, end, node.hbm_bytes)
        elif node.kind == MULTIPLY:
            work = self._work.get(node.index)
            if work is None:
                work = self._work[node.index] = multiply_flops(node.instr, self._machine)[1]
            self._spread(self.flops, begin, end, work)

    def _spread(self, row: array[float], begin: float, end: float, amount: float) -> None:
        first, last = int(begin / self.width), int(end / self.width)
        top = self.columns - 1
        if first >= last or end <= begin:
            row[min(first, top)] += amount
            return
        rate = amount / (end - begin)
        row[min(first, top)] += ((first + 1) * self.width - begin) * rate
        for column in range(first + 1, min(last, top + 1)):
            row[column] += self.width * rate
        row[min(last, top)] += (end - last * self.width) * rate

    def rates(self) -> dict[str, list[float]]:
        """The series of a trace and of a report, by name and unit."""
        peak = peak_flops(self._machine) * self.width
        return {
            "DMA bandwidth (GB/s)": [nbytes / self.width for nbytes in self.dma_bytes],
            "HBM bandwidth (GB/s)": [nbytes / self.width for nbytes in self.hbm_bytes],
            "TensorE utilisation (%)": [100 * flops / peak for flops in self.flops],
        }
