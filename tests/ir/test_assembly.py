"""Text of instruction streams: a golden listing, and the way back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from random_programs import programs

from neuronx_cc.ir.isa.assembly import assemble, disassemble
from neuronx_cc.ir.isa.program import Debug, Instr, Loop, Program, Ref, Space, Stream, Wait

LISTING = """\
; kernel 0.dot
loop r0 = 0..3, r1 = count % 2, r2 = count % 3
  000000 dma_load    dma_copy  sbuf.bf16[0:128, 512:2]@2048+1024*r1 <- hbm.f32[128:2048, 512:-4]@0+262144*r0-8*r1  \
wait dma_load>=-3+2*r0, tensor>=-25+16*r0  ; %dot.1 jit(f)/dot_general model.py:12
  000001 tensor      load_stationary  <- sbuf.bf16[32:64, 128:2]@2048  ; %dot.1 jit(f)/dot_general model.py:12
  loop r4 = 0..0
    000002 tensor      multiply_moving  psum.f32[0:128, 4:512, 128:4]@8192 <- sbuf.bf16[0:128, 512:2]@0  \
{accumulate, tf32}  wait dma_load>=1+2*r0  ; %dot.1 jit(f)/dot_general model.py:12
  end
end
; kernel 1.map
000003 vector      tensor_scalar multiply add  sbuf.f32[0:1]@0 <- psum.f32[0:1]@0, #2, #-0.5  ; %add.2
000004 gpsimd      memset  hbm.f32[]@0 <- #inf  ; %add.2
000005 gpsimd      iota  sbuf.s32[0:128, 8:4]@0
000006 sync        nop
while r5 != 0
  000007 sync        nop
  while r6 = 0..9
    branch r7 of 2
    else
      000008 sync        nop
    end
  end
end"""


def test_a_listing_reads_back_and_prints_the_same():
    program = assemble(LISTING)
    assert "\n".join(disassemble(program)) == LISTING
    assert len(program.records) == 20
    multiply = program.records[4]
    assert multiply.flags == {"accumulate", "tf32"}
    assert multiply.waits == (Wait(Stream.DMA_LOAD, 1, ((0, 2),)),)
    assert multiply.outs == (Ref(Space.PSUM, "f32", 8192, ((128, 0), (4, 512), (128, 4))),)
    assert program.records[2].outs == ()
    assert program.records[2].ins[0].partition == 32
    assert program.records[7].imm == (2, -0.5)
    assert program.debug[0] == Debug("0.dot", "dot.1", "jit(f)/dot_general", "model.py", 12)
    assert program.kernels == ["0.dot", "1.map"]


@settings(max_examples=30)
@given(programs())
def test_round_trip(records):
    kept = [replace(each, streams=frozenset()) if isinstance(each, Loop) else each for each in records]
    for each in kept:
        if isinstance(each, Instr):
            each.debug = 0
    debug = [Debug("kernel", "op", "name", "file.py", 3)]
    assert assemble("\n".join(disassemble(Program(kept, debug)))).records == kept


def test_names_cannot_steer_a_terminal():
    program = Program([Instr("nop", Stream.SYNC)], [Debug("k\x1b[2J", "a\nb")])
    assert list(disassemble(program)) == ["; kernel k?[2J", "000000 sync        nop  ; %a?b"]


@pytest.mark.parametrize(
    "line",
    [
        "000000 nowhere nop",
        "sync",
        "vector memset  sbuf.f32[0:1@0",
        "vector nop  wait sync>1",
        "loop r1 = 1..2",
        "while r1",
        "branch r1 of x",
    ],
)
def test_what_cannot_be_read_is_named(line):
    with pytest.raises(ValueError, match="line 2"):
        assemble(f"sync nop\n{line}")
