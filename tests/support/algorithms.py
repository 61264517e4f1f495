"""Random programs of what JAX's users write: whole algorithms, at odd sizes, in their spellings.

    python tests/soak.py --kind algorithms --seed 0 --count 1000

The files ``algorithms_*.txt`` hold one program after the other. Its head has its name, its sizes with their ranges, and
its inputs with types and dims; ``f`` is a float type that is drawn for the program, ``r`` is FP32, ``i`` is s32. What
follows, indented, is Python, in which one of ``{{this | that}}`` is drawn.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from plain_jax import FLOATS, Maker, Plain

FILES = sorted(Path(__file__).parent.glob("algorithms_*.txt"))
CHOICE = re.compile(r"\{\{(.*?)\}\}")
DISCRETE = re.compile(
    r"top_k|arg|sort|while_|floor|round|trunc|sign|median|searchsorted|astype\(T\['[su]|where\(.* [<>]"
)
"""What jumps where numbers are rounded: such programs have no floats of 16 bits and no casts."""
EDGES = (1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 200, 257)


LARGE = 4
"""How many times as large the larger sizes of some programs are."""


@dataclass(frozen=True)
class Algorithm:
    name: str
    sizes: dict[str, tuple[int, int]]
    inputs: tuple[tuple[str, str, str], ...]
    """Name, type, and text of the dims."""
    body: tuple[str, ...]


def _read(block: str) -> Algorithm:
    head, *body = block.splitlines()
    first, *inputs = [part.split(None, 2) for part in re.split(r" ;(?=\s)", _first(head))]
    name, *sizes = " ".join(first).split()
    ranges = {size: tuple(map(int, span.split("-"))) for size, span in (each.split("=") for each in sizes)}
    given = tuple((each[0], each[1], each[2] if len(each) > 2 else "") for each in inputs)
    return Algorithm(name, ranges, given, tuple(body))  # type: ignore[arg-type]


def _first(head: str) -> str:
    """Spaces within a choice would divide its words."""
    return CHOICE.sub(lambda found: found.group(0).replace(" ", ""), head)


@functools.cache
def algorithms() -> dict[str, Algorithm]:
    blocks = [block for file in FILES for block in re.split(r"\n(?=\S)", file.read_text().strip())]
    found = [_read(block) for block in blocks]
    return {each.name: each for each in found}


def chosen(p: Plain, text: str) -> str:
    return CHOICE.sub(lambda found: p.one_of(found.group(1).split("|")).strip(" "), text)


def write(p: Plain, algorithm: Algorithm) -> None:
    wide = p.one_of((1, 1, 1, LARGE))
    sizes = {name: _size(p, low, high * (wide if high > 30 else 1)) for name, (low, high) in algorithm.sizes.items()}
    body = [chosen(p, line) for line in algorithm.body]
    p.discrete = bool(DISCRETE.search("\n".join(body)))
    kinds = {"f": "f32" if p.discrete else p.one_of(FLOATS), "r": "f32", "i": "s32"}
    names, given = [], []
    for name, kind, dims in algorithm.inputs:
        drawn = chosen(p, kind)
        dtype = kinds.get(drawn, drawn)
        shape = eval(f"({dims},)" if dims else "()", {}, dict(sizes))
        names.append(name)
        given.append(p.given(dtype, shape, dtype[0] in "sup"))
    if sizes:
        p.lines.append(f"{', '.join(sizes)}, = {', '.join(map(str, sizes.values()))},")
    p.lines += [f"{', '.join(names)}, = {', '.join(given)},", *(line[4:] for line in body[:-1])]
    p.give(f"*jax.tree.leaves(({body[-1].strip().removeprefix('return ')},))")


AROUND = ("",) * 6 + (
    "jax.checkpoint(inner)({0})",
    "lax.cond(jnp.sum({0}[0]) > 0, inner, lambda *x: jax.tree.map(lambda r: r * 0, inner(*x)), {1})",
    "lax.fori_loop(0, 3, lambda i, s: plus(s, inner(*turned({0}, i))), inner({1}))",
    "lax.scan(lambda s, i: (plus(s, r := inner(*turned({0}, i))), r), inner({1}), jnp.arange(2))",
    "lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, plus(s[1], inner(*turned({0}, s[0])))), (0, inner({1})))",
    "lax.map(lambda i: inner(*turned({0}, i)), jnp.arange(3))",
    "jax.vmap(lambda i: inner(*turned({0}, i)))(jnp.arange(3))",
    "lax.switch(jnp.int32(jnp.sum({0}[0]) > 0), [inner, lambda *x: inner(*turned(x, 1)), inner], {1})",
)
"""What a program stands in: its inputs, turned by the number of the iteration."""


def surrounded(p: Plain, source: str) -> str:
    """Branches on numbers jump where they are rounded, but not at these."""
    around = p.one_of(AROUND)
    if not around or not p.inputs:
        return source
    given = ", ".join(f"a{at}" for at in range(len(p.inputs)))
    lines = [source.replace("def program", "def inner", 1), f"def program({given}):"]
    lines.append("    turned = lambda given, i: [jnp.roll(x, i, 0) if x.ndim else x for x in given]")
    lines.append(
        "    plus = lambda one, other: jax.tree.map(lambda a, b: a | b if a.dtype == bool else a + b, one, other)"
    )
    if "checkpoint" in around:
        return "\n".join([*lines, f"    return {around.format(given)}"])
    return "\n".join([*lines, f"    return {around.format(f'({given},)', given)}"])


def _size(p: Plain, low: int, high: int) -> int:
    if p.chance(0.01):
        return 0
    edges = [size for size in EDGES if low <= size <= high]
    return p.one_of(edges) if edges and p.chance(0.6) else p.some(low, high)


def makers() -> dict[str, tuple[Maker, bool]]:
    """As those of ``plain_jax``; what cannot be differentiated is drawn anew."""
    return {name: (functools.partial(write, algorithm=each), True) for name, each in algorithms().items()}
