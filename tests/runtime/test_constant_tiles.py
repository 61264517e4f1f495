"""Which SBUF operands are known to keep their content."""

from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Ref, Space, Stream
from neuronx_cc.runtime.constant_tiles import ConstantTiles


def tile(offset, coefs=(), parts=128):
    return Ref(Space.SBUF, "f32", offset, ((parts, 0), (128, 4)), 0, coefs)


def write(ref):
    return Instr("memset", Stream.VECTOR, (ref,), (), imm=(0.0,))


def test_tiles_written_once_before_their_use():
    records = [
        write(tile(0)),
        write(tile(512)),
        Loop(4, 3, ((5, 2),)),
        write(tile(1024, ((5, 512),))),
        write(tile(4096, ((3, 512),))),
        End(),
        write(tile(512)),
        write(tile(8192, ((9, 512),))),
    ]
    before_loads = ConstantTiles(Program(records=records[:-1]))
    assert (4, tile(0)) in before_loads
    assert (4, tile(512)) not in before_loads  # written again later
    assert (7, tile(512)) in before_loads
    assert (7, tile(1024)) not in before_loads  # both rotating buffers are written in the loop
    assert (7, tile(1536)) not in before_loads
    assert (7, tile(2048)) in before_loads
    assert (7, tile(4096 + 3 * 512)) not in before_loads
    assert (0, tile(0)) not in before_loads  # not written yet
    assert (4, tile(0, ((3, 4),))) not in before_loads
    assert (4, Ref(Space.PSUM, "f32", 0, ((1, 0), (4, 4)))) not in before_loads
    # a register that was loaded at run time may point anywhere
    assert (4, tile(0)) not in ConstantTiles(Program(records=records))
