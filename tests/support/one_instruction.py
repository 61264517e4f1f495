"""Runs one instruction on the simulator: inputs are loaded by DMA, results stored by DMA, everything synchronised."""

from math import prod

import numpy as np

from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import DMA_STREAMS, Debug, Instr, Program, Ref, Space, Stream, Variable, Wait
from neuronx_cc.ir.isa.rules import verify_instr
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.runtime import Executable

SLOT = 8192


def dense(space, dtype, offset, counts, partition=0):
    """A dense operand: on chip the first count is partitions."""
    stride = NUMPY_DTYPE[dtype].itemsize
    dims = []
    for count in reversed(counts):
        dims.append((count, stride))
        stride *= count
    dims.reverse()
    if space is not Space.HBM:
        dims[0] = (dims[0][0], 0)
    return Ref(space, dtype, offset, tuple(dims), partition)


class Bench:
    """Assembles a program of loads, the instructions under test, and stores; slots of SBUF are handed out in order."""

    def __init__(self):
        self.program = Program(debug=[Debug("bench", "op.1", "jit(f)/op", "model.py", 7)])
        self.loads = self.stores = self.next_slot = self.hbm = 0
        self.inputs = []
        self.finished = {}

    def variable(self, kind, dtype, dims, index):
        nbytes = prod(dims) * NUMPY_DTYPE[dtype].itemsize
        name = f"{kind}{index}"
        self.program.variables.append(Variable(name, kind, self.hbm, nbytes, dtype, tuple(dims), index))
        offset = self.hbm
        self.hbm += -(-max(nbytes, 1) // 64) * 64
        return dense(Space.HBM, dtype, offset, dims)

    def tile(self, dtype, counts, partition=0, space=Space.SBUF):
        """A fresh dense tile."""
        offset = self.next_slot
        self.next_slot += SLOT if space is Space.SBUF else 0
        return dense(space, dtype, offset if space is Space.SBUF else 0, counts, partition)

    def load(self, array, dtype, partition=0):
        """A tile with the data of ``array`` (first dim on the partitions), loaded by DMA."""
        array = np.asarray(array)
        source = self.variable("input", dtype, array.shape, len(self.inputs))
        self.inputs.append(array)
        target = self.tile(dtype, array.shape, partition)
        self.emit(Instr("dma_copy", Stream.DMA_LOAD, (target,), (source,)))
        return target

    def emit(self, instr):
        """Append an instruction that waits for everything before it."""
        instr.waits = tuple(
            Wait(stream, count)
            for stream, count in self.finished.items()
            if stream is not instr.stream or stream in DMA_STREAMS
        )
        self.finished[instr.stream] = self.finished.get(instr.stream, 0) + 1
        self.program.records.append(instr)
        return instr

    def run(self, outs, verify=True, **options):
        """Store the tiles ``outs``, run, and return (outputs, report)."""
        if verify:
            for record in self.program.records:
                verify_instr(record, find_machine("trn1"))
        for ref in outs:
            source = ref
            if ref.space is Space.PSUM:
                source = self.tile(ref.dtype, ref.counts, ref.partition)
                self.emit(Instr("tensor_copy", Stream.VECTOR, (source,), (ref,)))
            target = self.variable("output", ref.dtype, ref.counts, self.stores)
            self.stores += 1
            self.emit(Instr("dma_copy", Stream.DMA_STORE, (target,), (source,)))
        self.program.hbm_bytes = self.hbm
        executable = Executable.from_program(self.program, [])
        result = executable.run(self.inputs, **options)
        return result.outputs, result.report


def run_one(op, stream, arrays, out, alu=(), imm=(), flags=(), initial=None, **options):
    """Result of one instruction whose sources are ``arrays`` [(array, dtype)] and whose result is ``out`` (dtype,
    counts); with ``initial`` the result tile starts with that data."""
    bench = Bench()
    refs = [bench.load(array, dtype) for array, dtype in arrays]
    target = bench.load(initial, out[0]) if initial is not None else bench.tile(*out)
    bench.emit(Instr(op, stream, (target,), tuple(refs), tuple(alu), tuple(imm), frozenset(flags)))
    return bench.run([target], **options)[0][0]


def sample(rng, dtype, counts):
    """Random data of a dtype: small integers, or normal floats rounded to it."""
    storage = NUMPY_DTYPE[dtype]
    if dtype == "pred":
        return rng.integers(0, 2, counts).astype(bool)
    if storage.kind in "iu":
        info = np.iinfo(storage)
        return rng.integers(max(info.min, -100), min(info.max, 100), counts).astype(storage)
    return rng.standard_normal(counts).astype(np.float32).astype(STORAGE[dtype])
