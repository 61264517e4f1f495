"""HLO text, from the first byte to the NEFF."""

import random

import modules
import mutation
import structure

WORDS = (
    *("(", ")", "{", "}", "[", "]", ",", "=", "%", '"', "\\", "\\x", "/*", "*/", "//", "'", "->", "<=", "\n", "\x00"),
    *("ROOT ", "ENTRY ", "HloModule ", "f32[2]", "f32[]", "s32[<=4]", "(f32[],s32[])", "c64[4]", "s4[3]", "pred[0]"),
    *("add(", "parameter(0)", "constant({1,2})", "constant(nan)", "constant(1e999)", "to_apply=add", "{1,0}", "T(1,0)"),
    *("dimensions={0}", "slice={[0:1]}", "[2,4]<=[8]", 'metadata={op_name="x"}', "99999999999999999999", "-1", "é"),
)


def seeds() -> list[bytes]:
    return [text.encode() for text in modules.texts().values()]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Bytes damaged, or words put in, doubled or exchanged, or a list of numbers changed as a whole."""
    if draw.random() < 0.4:
        return mutation.mutate(data, draw)
    text = data.decode("utf-8", "replace")
    if draw.random() < 0.3 and (changes := list(structure.other_numbers(text[:10_000]))):
        return (draw.choice(changes)[1] + text[10_000:]).encode("utf-8", "replace")
    for _ in range(draw.choice((1, 1, 2, 3))):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice((0, 0, 1, 2, 5, 20)))
        lines = text.splitlines()
        taken = draw.choice(lines) + "\n" if lines and draw.random() < 0.3 else draw.choice(WORDS)
        text = text[:start] + taken + text[end:]
    return text.encode("utf-8", "replace")


def run(data: bytes) -> None:
    modules.compile_module(data)
