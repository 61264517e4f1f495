"""Hypothesis strategies for instruction streams: well formed, without meaning."""

from hypothesis import strategies as st

from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Record, Ref, Space, Stream, Wait, While


def refs():
    free = st.lists(st.tuples(st.integers(1, 9), st.integers(-40, 40)), max_size=4).map(tuple)
    on_chip = st.builds(
        lambda space, dtype, parts, dims: Ref(space, dtype, 2000, ((parts, 0), *dims), 128 - parts),
        st.sampled_from([Space.SBUF, Space.PSUM]),
        st.sampled_from(["f32", "bf16", "u8", "s32", "pred", "f8e4m3"]),
        st.integers(1, 128),
        free,
    )
    hbm = st.builds(lambda dims: Ref(Space.HBM, "bf16", 5000, dims), free)
    return st.one_of(on_chip, hbm)


def instructions():
    names = ["add", "subtract", "max", "gelu"]
    return st.builds(
        Instr,
        st.sampled_from(["tensor_tensor", "nop", "activation"]),
        st.sampled_from(list(Stream)),
        st.lists(refs(), max_size=2).map(tuple),
        st.lists(refs(), max_size=4).map(tuple),
        st.lists(st.sampled_from(names), max_size=2).map(tuple),
        st.lists(st.one_of(st.integers(-(2**31), 2**32 - 1), st.floats(width=32, allow_nan=False)), max_size=7).map(
            tuple
        ),
        st.frozensets(st.sampled_from(["accumulate", "ap0", "clamp"])),
        st.lists(st.builds(Wait, st.sampled_from(list(Stream)), st.integers(-5, 2**40)), max_size=4).map(tuple),
        st.integers(0, 9),
    )


DECISION = Ref(Space.HBM, "s32", 0, ((1, 4),))


@st.composite
def programs(draw, depth=0, in_loop=False):
    records: list[Record] = []
    kinds = [st.none()] if in_loop else [st.none(), st.sampled_from(["counted", "while", "branch"])]
    for item in draw(st.lists(st.one_of(instructions(), *kinds), max_size=5)):
        if isinstance(item, Instr):
            records.append(item)
        elif item is None and depth < 2:
            body = draw(programs(depth + 1, True))
            streams = frozenset(record.stream for record in body if isinstance(record, Instr))
            if streams:
                records += [Loop(draw(st.integers(1, 99)), depth, ((10 + depth, 3),), streams), *body, End()]
        elif depth < 2:
            bodies = [draw(programs(depth + 1)) for _ in range(draw(st.integers(1, 3)))]
            load = Instr("reg_load", Stream.SYNC, (), (DECISION,), imm=(30 + depth, 0, len(bodies) - 1))
            start = {
                "counted": While(40 + depth, len(bodies)),
                "while": While(30 + depth),
                "branch": Branch(30 + depth, len(bodies)),
            }[item]
            records += [load, start, *bodies[0]]
            for body in bodies[1:]:
                records += [Else(), *body] if item == "branch" else body
            records.append(End())
    return records
