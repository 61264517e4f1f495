"""Instructions against the instruction table and the access rules of the machine."""

from dataclasses import replace

import pytest

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Instr, Ref, Space, Stream
from neuronx_cc.ir.isa.rules import problems, starts, verify_instr
from neuronx_cc.ir.isa.table import TABLE
from neuronx_cc.ir.targets import find_machine

MACHINE = find_machine("trn1")
SBUF, PSUM, HBM = Space.SBUF, Space.PSUM, Space.HBM


def tile(parts=128, n=512, offset=0, space=SBUF, dtype="f32", partition=0, stride=4):
    return Ref(space, dtype, offset, ((parts, 0), (n, stride)), partition)


ADD = Instr("tensor_tensor", Stream.VECTOR, (tile(),), (tile(), tile()), ("add",))


def complaint(instr):
    return "; ".join(problems(instr, MACHINE))


def test_a_good_instruction_passes():
    verify_instr(ADD, MACHINE)


def test_the_error_names_the_instruction():
    with pytest.raises(CompileError, match="tensor_tensor on scalar: runs on vector only"):
        verify_instr(replace(ADD, stream=Stream.SCALAR), MACHINE)


@pytest.mark.parametrize("partitions", [1, 32, 33, 64, 65, 128])
def test_start_partitions(partitions):
    for start in range(0, 128, 16):
        ref = tile(partitions, 4, partition=start)
        found = complaint(replace(ADD, outs=(ref,), ins=(ref, ref)))
        assert (found == "") == (start in starts(partitions) and start + partitions <= 128)
    assert complaint(Instr("dma_copy", Stream.DMA_LOAD, (tile(4, 4, partition=5),), (tile(4, 4, partition=77),))) == ""


BAD = {
    "counts differ": replace(ADD, outs=(tile(n=511),)),
    "both sources lie in PSUM": replace(ADD, ins=(tile(space=PSUM), tile(space=PSUM))),
    "cross a PSUM bank": replace(ADD, outs=(tile(space=PSUM, offset=4),)),
    "leave the 180224 bytes": replace(ADD, outs=(tile(offset=180224 - 2044),)),
    "leave the 16384 bytes": replace(ADD, outs=(tile(space=PSUM, offset=16384),)),
    "has no operator 'power'": replace(ADD, alu=("power",)),
    "0 operators": replace(ADD, alu=()),
    "mixes arithmetic and bit operators": Instr(
        "tensor_scalar", Stream.VECTOR, (tile(dtype="s32"),), (tile(dtype="s32"),), ("bitwise_and", "add"), (1, 1)
    ),
    "bit operators need elements of one width": replace(
        ADD, outs=(tile(dtype="u8", stride=1),), ins=(tile(dtype="s32"),) * 2, alu=("bitwise_and",)
    ),
    "has no flag accumulate": replace(ADD, flags=frozenset(["accumulate"])),
    "1 constants, takes 0 to 0": replace(ADD, imm=(1.0,)),
    "1 results and 1 sources do not fit": replace(ADD, ins=(tile(),)),
    "lies in HBM": replace(ADD, ins=(tile(), Ref(HBM, "f32", 0, ((128, 2048), (512, 4))))),
    "element type f64": replace(ADD, ins=(tile(), tile(dtype="f64", n=512, stride=8))),
    "129 partitions": replace(ADD, outs=(tile(129),)),
    "a partition stride": replace(ADD, outs=(Ref(SBUF, "f32", 0, ((128, 4), (512, 4))),)),
    "6 dims": replace(ADD, outs=(Ref(SBUF, "f32", 0, ((1, 0), *((1, 4),) * 5)),)),
    "a count of 70000": replace(ADD, outs=(tile(n=70000, dtype="u8", stride=1),)),
    "a stride of 40000 elements": replace(ADD, outs=(tile(n=1, stride=160000),)),
    "a stride of 6 bytes": replace(ADD, outs=(tile(n=2, stride=6),)),
    "4097 elements a partition, at most 4096": replace(ADD, outs=(tile(n=4097, space=PSUM, stride=0),)),
    "expected one element a partition": Instr(
        "activation", Stream.SCALAR, (tile(),), (tile(), tile(n=2)), ("exp",), flags=frozenset(["bias"])
    ),
    "lies in PSUM, not in SBUF": Instr("memset", Stream.GPSIMD, (), (), imm=(0.0,)),
    "needs a constant or a second source": Instr(
        "int_tensor_tensor", Stream.GPSIMD, (tile(dtype="s32"),), (tile(dtype="s32"),), ("add",)
    ),
    "counts [129, 1]": Instr("load_stationary", Stream.TENSOR, (), (tile(129, 1),)),
    "counts [128, 129], at most 128 x 128": Instr("load_stationary", Stream.TENSOR, (), (tile(128, 129),)),
    "counts [128, 513], at most 128 x 512": Instr(
        "multiply_moving", Stream.TENSOR, (tile(128, 513, space=PSUM),), (tile(128, 513),)
    ),
    "do not fit each other": Instr("multiply_moving", Stream.TENSOR, (tile(64, 12, space=PSUM),), (tile(128, 13),)),
    "counts [32, 33], [33, 32]": Instr("transpose", Stream.VECTOR, (tile(33, 32),), (tile(32, 33),)),
    "1 steps for 2 dims": Instr("iota", Stream.GPSIMD, (tile(dtype="s32"),), (), imm=(0, 1)),
    "no instruction 'warp'": replace(ADD, op="warp"),
}
BAD["lies in PSUM, not in SBUF"] = Instr("iota", Stream.GPSIMD, (tile(space=PSUM),), (), imm=(0, 1, 1))
BAD["129 partitions from 0"] = BAD.pop("counts [129, 1]")
BAD["counts [33, 32], [32, 33]"] = BAD.pop("counts [32, 33], [33, 32]")


@pytest.mark.parametrize("rule", sorted(BAD))
def test_rules(rule):
    assert rule in complaint(BAD[rule])


def test_every_row_is_documented_and_has_what_it_needs():
    for op, row in TABLE.items():
        assert row.op == op
        assert row.doc.endswith(".")
        assert row.streams
        assert callable(row.cost)
        assert callable(row.semantics)
