"""Random programs of plain JAX: one function of the library in odd spellings, alone or in a transformation.

    python tests/soak.py --kind plain --seed 0 --count 1000

The table of makers is of four themes: arrays, products, functions of functions, and arrays of equal dims. The maker
of a program is that of its seed, in turn. Makers that compare, sort or find places are given whole numbers, so that
nothing hangs on rounding; the others real ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

SIZES = (1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 127, 128, 129, 200, 257)
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32")
FLOATS = ("f32", "f32", "f32", "bf16", "f16")
NUMBERS = (*FLOATS, "s32", *INTEGERS)
SMALL = ("s4", "u4", "f8e4m3fn", "f8e5m2")
"""Types in which JAX moves, compares and sorts, and computes little."""
LARGEST = (40, 400, 2000, 6000)
"""Elements of arrays; of some programs."""
WIDE = {"f32": "f64", "s32": "s64", "u32": "u64"}
AROUND = ("",) * 5 + ("vmap", "vmap", "map", "scan", "grad", "grad", "jvp")

BOUNDED = (
    "(lambda r: r.astype(T['s32']) if r.dtype == bool else jnp.clip(r, -3, 3) if r.dtype.kind in 'iu' "
    "else jnp.tanh(jnp.real(r)))(jnp.atleast_1d({}))"
)
CONSUMERS = (
    "{0}.sum(-1)", "jnp.sort({0}, 0)", "jnp.flip({0})", "{0}.T", "jnp.cumsum({0}, -1)", "jnp.max({0}, 0)", "-{0}",
    "jnp.matmul({0}, jnp.swapaxes(jnp.atleast_2d({0}), -1, -2))", "jnp.pad({0}, 1)", "{0}[..., ::2]", "{0}.min()",
    "jnp.concatenate([{0}, {0}[:1]])", "{0} * {0}", "jnp.maximum({0}, 0)", "{0}[None] + {0}[:, None]", "{0}.mean(0)",
    "jnp.take({0}, jnp.arange(5), axis=0, mode='wrap')", "{0}.astype(T['bf16'])", "jnp.roll({0}, 1, -1)",
    "jnp.tile({0}, 2)", "{0}.ravel()[::-3]", "lax.fori_loop(0, 3, lambda i, r: r[::-1], {0})",
    "lax.map(lambda r: r * 2, {0})", "lax.scan(lambda c, r: (c + r, c), {0}[0] * 0, {0})[1]",
    "jnp.where({0} > 2, {0}, 0)", "{0}.at[0].set(1)",
)  # fmt: skip
"""Of what a function gives: none jumps where numbers are rounded."""

T = TypeVar("T")


@dataclass
class Plain:
    """A program that is being written."""

    random: random.Random
    inputs: list[tuple[str, tuple[int, ...], bool]] = field(default_factory=list)
    """Type, dims, and whether its numbers are whole."""
    results: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    largest: int = 400
    discrete: bool = True
    """Whether something jumps where numbers are rounded."""

    def one_of(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def some(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def dims(self, least: int = 0, most: int = 6, empty: bool = True, even: int | None = None) -> tuple[int, ...]:
        """A shape of ``least`` to ``most`` dims; one in fifty is empty."""
        rank = (
            even
            if even is not None
            else self.one_of([n for n in (0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6) if least <= n <= most])
        )
        room, dims = self.largest, []
        for _ in range(rank):
            dims.append(self.one_of([size for size in SIZES if size <= room]))
            room //= dims[-1]
        self.random.shuffle(dims)
        if dims and empty and self.chance(0.02):
            dims[self.some(0, rank - 1)] = 0
        return tuple(dims)

    def given(self, dtype: str, dims: tuple[int, ...], whole: bool = False) -> str:
        """A parameter of this type, or sometimes a constant."""
        if self.chance(0.1):
            return f"K('{dtype}', {dims}, {self.some(0, 10**6)}, {whole})"
        self.inputs.append((dtype, dims, whole or dtype in INTEGERS or dtype in ("pred", "s4", "u4")))
        return f"a{len(self.inputs) - 1}"

    def axis(self, dims: tuple[int, ...]) -> int:
        """One of the dims, from the front or the back."""
        at = self.some(0, len(dims) - 1)
        return at - len(dims) if self.chance(0.4) else at

    def axes(self, dims: tuple[int, ...]) -> str:
        """Text of some of the dims; all of them as None."""
        if not dims or self.chance(0.15):
            return "None"
        chosen = self.random.sample(range(len(dims)), self.some(1, len(dims)))
        chosen = [at - len(dims) if self.chance(0.4) else at for at in chosen]
        return str(chosen[0]) if len(chosen) == 1 and self.chance(0.8) else str(tuple(chosen))

    def against(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with ``dims``."""
        kept = tuple(1 if self.chance(0.3) else size for size in dims)
        return kept[self.some(0, len(kept)) :] if self.chance(0.3) else kept

    def indices(self, dims: tuple[int, ...], size: int, within: bool = True) -> str:
        """Whole numbers below ``size``, from the back too; or a few beyond."""
        i = self.given("s32", dims, True)
        if within:
            return f"(({i} * 5 + 7) % {max(size, 1)})" + f" - {size}" * self.chance(0.2)
        return f"({i} * {max(size // 3, 1)})"

    def let(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def give(self, *texts: str) -> None:
        self.results += texts


def chained(p: Plain) -> None:
    """Something is made of the first result."""
    for _ in range(p.one_of((1, 1, 2, 3))):
        if not p.results[0].startswith("*"):
            p.results[0] = p.one_of(CONSUMERS).format(p.let(BOUNDED.format(p.results[0])))


def widened(p: Plain) -> None:
    """Words are twice as long, in what is given and in the text."""

    def wide(text: str) -> str:
        return re.sub(r"'(f|s|u)32'", r"'\g<1>64'", text)

    p.inputs = [(WIDE.get(dtype, dtype), dims, whole) for dtype, dims, whole in p.inputs]
    p.lines, p.results = [wide(line) for line in p.lines], [wide(result) for result in p.results]


def text(p: Plain, real: bool) -> str:
    """Text of the program: its parameters carry one more dim where something goes through them row by row."""
    around = p.one_of(AROUND)
    names = ", ".join(f"a{at}" for at in range(len(p.inputs)))
    body = [*("    " + line for line in p.lines), f"    return ({', '.join(p.results)},)"]
    floats = [at for at, (dtype, _, _) in enumerate(p.inputs) if dtype in (*FLOATS, "f64")]
    if not p.inputs or (around in ("grad", "jvp") and not (real and floats)):
        around = ""
    if around in ("vmap", "map", "scan") and sum(prod(dims) for _, dims, _ in p.inputs) > 4000:
        around = ""
    lines = [f"def {'each' if around else 'program'}({names}):", *body]
    if around in ("vmap", "map", "scan"):
        count = p.one_of((1, 2, 3, 5))
        places = [p.some(0, len(dims)) if around == "vmap" else 0 for _, dims, _ in p.inputs]
        p.inputs = [
            (dtype, (*dims[:at], count, *dims[at:]), whole)
            for (dtype, dims, whole), at in zip(p.inputs, places, strict=True)
        ]
        text = {
            "vmap": f"jax.vmap(each, in_axes={tuple(places)})({names})",
            "map": f"lax.map(lambda given: each(*given), ({names},))",
            "scan": "lax.scan(lambda c, x: (c + 1, (c, *each(*x))), jnp.int32(0), "
            f"({names},), reverse={p.chance(0.3)})[1]",
        }[around]
        lines += [f"def program({names}):", f"    return {text}"]
    elif around == "grad":
        lines += [
            f"def program({names}):",
            "    def total(*given):",
            "        made = [r for r in jax.tree.leaves(each(*given)) if jnp.issubdtype(r.dtype, jnp.inexact)]",
            "        real = [jnp.real(r).astype(T['f32']) for r in made]",
            "        return sum([jnp.sum(lax.rsqrt(1 + r * r) * r) for r in real], T['f32'].type(0))",
            f"    return jax.grad(total, {tuple(floats)})({names})",
        ]
    elif around == "jvp":
        tangents = ", ".join(f"jnp.ones_like(a{at})" for at in floats)
        given = ", ".join(f"a{at}" for at in floats)
        lines += [f"def program({names}):", f"    def of({given}):", f"        return each({names})"]
        lines.append(f"    made, moved = jax.jvp(of, ({given},), ({tangents},))")
        lines.append("    return [r for r in jax.tree.leaves((made, moved)) if r.dtype != jax.dtypes.float0]")
    return "\n".join(lines)


Maker = Callable[[Plain], None]


def makers() -> dict[str, tuple[Maker, bool]]:
    """By name: what writes a program, and whether its numbers are real (and it may be differentiated)."""
    import plain_arrays
    import plain_control
    import plain_products
    import plain_squares

    found = {}
    for theme in (plain_arrays, plain_products, plain_control, plain_squares):
        for real, each in ((True, theme.REAL), (False, theme.WHOLE)):
            found |= {f"{maker.__name__} {'real' if real else 'whole'}": (maker, real) for maker in each}
    return found
