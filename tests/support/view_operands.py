"""Operands of random programs that are read through views: what a kernel may find in place of rows side by side.

Each is a parameter in HBM, or made by a map, a product (in PSUM), a reduction or something else, whose result may stay
on chip, and is read through up to three views, each of which is drawn from its result backwards.

All numbers are whole, so that every result is exact; those of readers that compute with real numbers are normal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import prod

from jax_sketch import ALL_LIMITS, INTEGER_LIMITS, Sketch, Value

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 31, 32, 33, 48, 57, 64, 65, 96, 127, 128, 128, 129, 130, 131, 192, 251, 256)
SIZES += (257, 320, 384, 509, 512, 513, 640, 1000, 1024, 1031, 2048, 2053, 4096, 8191)
NARROWER = {
    "f32": ("bf16", "f16", "s8", "u8", "s32", "pred"),
    "bf16": ("s8", "f32", "u8"),
    "f16": ("s8", "f32"),
    "s32": ("s8", "u8", "s16", "f32", "pred"),
    "s16": ("s8", "u8"),
    "u32": ("u8", "pred"),
    "s64": ("s32", "u8", "u64", "pred"),
    "u64": ("u8", "u32", "s64"),
    "f8e4m3fn": ("bf16", "s8", "pred"),
    "f8e5m2": ("f16", "f8e4m3fn"),
}
"""In what types an operand may be given that the program converts."""
FLOATS = ("f32", "bf16", "f16", "f8e4m3fn", "f8e5m2")
BITS = {"f32": "s32", "bf16": "u16", "f16": "u16", "f8e4m3fn": "u8", "f8e5m2": "u8", "s64": "u64"}
"""The type whose operators on bits make the operand."""


RARE = {
    "f32": ("f32", "f8e4m3fn", "f8e5m2"),
    "bf16": ("f8e4m3fn", "f8e5m2", "bf16"),
    "f16": ("f8e5m2", "f16"),
    "s32": ("s64", "s64", "u64", "s32"),
    "s16": ("u64", "s64", "u16"),
    "s8": ("u8", "s8", "s64"),
}


@dataclass
class Drawn(Sketch):
    """A program whose operands are read through views."""

    real: bool = False
    """Whether the reader computes with real numbers."""
    most_given: dict[str, int] = field(default_factory=dict)
    """Bound of the whole numbers of each input."""
    produced: list[Value] = field(default_factory=list)
    plain: bool = False
    """Whether operands are computed on chip and read through one view or two that copy nothing, and readers compute
    nothing ahead."""
    rare: bool = False
    """Whether types of 8 and 64 bits stand in the place of others."""
    devices: int = 1
    """How many run the program together."""
    besides: Callable[[Drawn, str, tuple[int, ...], float], Value | None] | None = None
    """What makes some of the operands, if it can."""
    always: bool = False
    """Whether that makes whatever it can."""
    also: list[Value] = field(default_factory=list)
    """What is given back besides."""
    sizes: Sequence[int] = SIZES
    features: Sequence[int] = (1, 2, 3, 8, 17, 32, 64, 127, 128, 129)
    """Of images."""
    narrow: Sequence[str] = ()
    """The types of readers that have FP32 and BF16 else."""

    def type(self, choices: Sequence[str]) -> str:
        """One of these types, or what stands in its place."""
        found = self.random.choice(choices)
        return self.random.choice(RARE.get(found, (found,))) if self.rare else found

    def float_type(self, choices: Sequence[str] = ("f32", "f32", "bf16")) -> str:
        """One of these types, or of those that stand in their place."""
        return self.random.choice(self.narrow or choices)

    def given(self, dtype: str, dims: tuple[int, ...], most: float) -> Value:
        """A parameter, or a constant."""
        exact = not (self.real and dtype in FLOATS)
        most = 1 if dtype == "pred" else int(most) if exact else 3
        if most <= 3 and self.chance(0.1):
            text = f"K('{dtype}', {dims}, {self.random.randrange(10**6)}, {exact})"
            if exact and dtype != "pred":
                text += f" % {most + 1}"
            return self.let(text, dtype, dims, most, exact, "constant")
        value = Value(f"a{len(self.inputs)}", dtype, tuple(dims), most, exact, "input")
        self.inputs.append(value)
        self.most_given[value.name] = int(most)
        return value

    def size(self, most: float, least: int = 1) -> int:
        sizes = [size for size in self.sizes if least <= size <= most]
        return self.random.choice(sizes or [least])

    def shape(self, rank: int, most: float | None = None) -> tuple[int, ...]:
        room, dims = most or self.largest, []
        for _ in range(rank):
            dims.append(self.size(room if self.chance(0.6) else room**0.5, 2 if self.plain and room > 9 else 1))
            room //= dims[-1]
        self.random.shuffle(dims)
        if self.plain and self.chance(0.6):  # as many as lie on the partitions
            dims[0] = min(dims[0], self.size(128))
        return tuple(dims)


# ---- views: (dims of the result) -> (dims of what is viewed, text) -------------------------------------------

Seen = tuple[tuple[int, ...], str]


def stepped(g: Drawn, dims: tuple[int, ...]) -> Seen:
    """Every second or third element of some dims, mostly one."""
    starts, ends, steps, sizes = [], [], [], []
    chosen = g.random.randrange(len(dims))
    for at, size in enumerate(dims):
        step = g.random.choice((2, 2, 3, 5)) if at == chosen or g.chance(0.1) else 1
        start = g.random.choice((0, 0, 1, 2)) if step > 1 or g.chance(0.2) else 0
        end = start + (size - 1) * step + 1
        starts.append(start), ends.append(end), steps.append(step)
        sizes.append(end + (g.random.randint(0, 2) if step > 1 or g.chance(0.2) else 0))
    return tuple(sizes), f"lax.slice({{}}, {starts}, {ends}, {steps})"


def part(g: Drawn, dims: tuple[int, ...]) -> Seen:
    """What lies somewhere in the middle: on the partitions it starts beyond the first."""
    chosen = g.random.randrange(len(dims))
    starts = [g.random.choice((1, 2, 5, 31, 32, 64)) if at == chosen or g.chance(0.2) else 0 for at in range(len(dims))]
    sizes = [start + size + g.random.choice((0, 0, 1, 3)) for start, size in zip(starts, dims, strict=True)]
    ends = [start + size for start, size in zip(starts, dims, strict=True)]
    return tuple(sizes), f"lax.slice({{}}, {starts}, {ends})"


def flipped(g: Drawn, dims: tuple[int, ...]) -> Seen:
    axes = g.random.sample(range(len(dims)), g.random.choice((1, 1, len(dims))))
    return dims, f"jnp.flip({{}}, {axes})"


def turned(g: Drawn, dims: tuple[int, ...]) -> Seen:
    if len(dims) == 1:
        return stepped(g, dims)
    order = g.random.choice([order for order in permutations(range(len(dims))) if list(order) != sorted(order)])
    source = [0] * len(dims)
    for at, axis in enumerate(order):
        source[axis] = dims[at]
    return tuple(source), f"{{}}.transpose({order})"


def regrouped(g: Drawn, dims: tuple[int, ...]) -> Seen:
    source = list(dims)
    for _ in range(g.random.choice((1, 1, 2))):
        if len(source) > 1 and g.chance(0.5):
            at = g.random.randrange(len(source) - 1)
            source[at : at + 2] = [source[at] * source[at + 1]]
        elif len(source) < 5:
            at = g.random.randrange(len(source))
            factor = g.random.choice([n for n in range(1, min(source[at], 300) + 1) if source[at] % n == 0])
            source[at : at + 1] = [factor, source[at] // factor]
    return tuple(source), f"{{}}.reshape({dims})"


def refolded(g: Drawn, dims: tuple[int, ...]) -> Seen:
    """Two dims change places inside a reshape: a dim of the result lies in pieces that are apart."""
    at = g.random.randrange(len(dims))
    factor = g.random.choice([n for n in range(1, min(dims[at], 300) + 1) if dims[at] % n == 0])
    split = (*dims[:at], factor, dims[at] // factor, *dims[at + 1 :])
    source, text = turned(g, split)
    return source, f"{text}.reshape({dims})"


def repeated(g: Drawn, dims: tuple[int, ...]) -> Seen:
    """Dims along which the elements are the same: absent ahead, or of one element, or one of several."""
    at = g.random.randrange(len(dims))
    if g.chance(0.4):
        kept = tuple(axis for axis in range(len(dims)) if axis != at)
        return tuple(dims[axis] for axis in kept), f"lax.broadcast_in_dim({{}}, {dims}, {kept})"
    if g.chance(0.5):
        return (*dims[:at], 1, *dims[at + 1 :]), f"jnp.broadcast_to({{}}, {dims})"
    wide, place = g.random.randint(2, 9), g.random.randrange(2)
    source = (*dims[:at], wide, *dims[at + 1 :])
    return source, f"jnp.broadcast_to(lax.slice_in_dim({{}}, {place}, {place + 1}, axis={at}), {dims})"


def times(g: Drawn, dims: tuple[int, ...]) -> Seen:
    """Each element several times, or all of them."""
    at = g.random.randrange(len(dims))
    count = g.random.choice([n for n in range(1, min(dims[at], 64) + 1) if dims[at] % n == 0])
    source = (*dims[:at], dims[at] // count, *dims[at + 1 :])
    if g.chance(0.5):
        return source, f"jnp.repeat({{}}, {count}, axis={at}, total_repeat_length={dims[at]})"
    counts = tuple(count if axis == at else 1 for axis in range(len(dims)))
    return source, f"jnp.tile({{}}, {counts})"


def padded(g: Drawn, dims: tuple[int, ...]) -> Seen:
    """Something around, something between, something cut off."""
    sizes, amounts = [], []
    for size in dims:
        inside = g.random.choice((0, 0, 1, 2)) if g.chance(0.6) else 0
        whole = size + (g.random.choice((-2, -1, 0, 0, 1, 3)) if g.chance(0.6) else 0)
        source = max((whole + inside) // (1 + inside), 1)
        left = size - source - (source - 1) * inside
        low = g.random.randint(min(left, 0), max(left, 0)) if g.chance(0.7) else left
        sizes.append(source), amounts.append((low, left - low, inside))
    return tuple(sizes), f"lax.pad({{0}}, jnp.asarray({g.random.choice((0, 0, 1))}, {{0}}.dtype), {amounts})"


VIEWS: tuple[Callable[[Drawn, tuple[int, ...]], Seen], ...]
VIEWS = (stepped, stepped, part, part, flipped, turned, turned, regrouped, refolded, repeated, times, padded)
PLAIN = (stepped, stepped, flipped, part, repeated, turned)


def operand(g: Drawn, dtype: str, dims: tuple[int, ...], most: float = 3, views: int | None = None) -> Value:
    """A value of this type and shape whose whole numbers are no larger than ``most``."""
    dims = tuple(dims)
    several = (0, 0, 0, 1) if g.always else (1, 1, 1, 2) if g.plain else (0, 1, 1, 1, 1, 2, 2, 3)
    left = g.random.choice(several) if views is None else views
    if not left or not dims:
        return produced(g, dtype, dims, most)
    kind = 1.0 if g.plain else g.random.random()
    if kind < 0.08 and dtype in NARROWER:
        other = g.random.choice(NARROWER[dtype])
        if not (g.real and (dtype in FLOATS) != (other in FLOATS)):
            x = operand(g, other, dims, min(most, g.limit(other) - 1 if other != "pred" else 1), left - 1)
            return g.let(f"{x.name}.astype(T['{dtype}'])", dtype, dims, x.most, x.exact)
    if kind < 0.14 and dtype in ("s8", "u8") and most >= 100 and dims[-1] % 4 == 0:
        x = operand(g, "s32", (*dims[:-1], dims[-1] // 4), 1000, left - 1)
        text = f"lax.bitcast_convert_type({x.name} * 65793, T['{dtype}']).reshape({dims})"
        return g.let(text, dtype, dims, INTEGER_LIMITS[dtype], True)
    if kind < 0.14 and dtype == "s32" and most >= 1000:
        x = operand(g, "s8", (*dims, 4), 127, left - 1)
        return g.let(f"lax.bitcast_convert_type({x.name}, T['s32'])", dtype, dims, INTEGER_LIMITS[dtype], True)
    if kind < 0.26:
        return joined(g, dtype, dims, most, left - 1)
    source, text = g.random.choice(PLAIN if g.plain else VIEWS)(g, dims)
    if prod(source) > 4 * g.largest or len(source) > 6:
        return operand(g, dtype, dims, most, left - 1)
    x = operand(g, dtype, source, most, left - 1)
    assert x.dims == source, (x, source, text)
    return g.let(text.format(x.name), dtype, dims, max(x.most, 1), x.exact)


def joined(g: Drawn, dtype: str, dims: tuple[int, ...], most: float, left: int) -> Value:
    """Parts side by side, each a view; of the same array, or not."""
    at = g.random.randrange(len(dims))
    if dims[at] < 2:
        return operand(g, dtype, dims, most, left)
    cut = g.random.choice((1, dims[at] // 2, g.random.randint(1, dims[at] - 1)))
    sizes = [cut, dims[at] - cut]
    if g.chance(0.5):
        x = operand(g, dtype, dims, most, left)
        parts = [
            f"lax.slice_in_dim({x.name}, {cut}, {dims[at]}, axis={at})",
            f"lax.slice_in_dim({x.name}, 0, {cut}, axis={at})",
        ]
        if g.chance(0.3):
            parts[0] = f"jnp.flip({parts[0]}, {g.random.randrange(len(dims))})"
        return g.like(x, f"jnp.concatenate([{', '.join(parts)}], {at})")
    found = [operand(g, dtype, (*dims[:at], size, *dims[at + 1 :]), most, left) for size in sizes]
    text = f"jnp.concatenate([{', '.join(x.name for x in found)}], {at})"
    return g.let(text, dtype, dims, max(x.most for x in found), all(x.exact for x in found))


# ---- what is viewed ------------------------------------------------------------------------------------------


def produced(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    """An array, as something of the program leaves it."""
    if g.chance(0.5):
        for value in g.produced:
            if (value.dtype, value.dims) == (dtype, dims) and value.most <= most:
                return value
    if g.besides is not None and (g.always or g.chance(0.4)):
        value = g.besides(g, dtype, tuple(dims), most)
        if value is not None:
            g.produced.append(value)
            return value
    if dtype == "pred":
        maker = g.random.choice((bare, compared, compared, inverted, any_of))
    elif dtype in FLOATS:
        maker = g.random.choice(
            (bare, mapped, mapped, mapped, mapped, product, product, summed, greatest, across, from_bits, looped)
        )
    else:
        maker = g.random.choice((bare, mapped, mapped, mapped, mapped, greatest, across, looped))
    if dtype == "s32" and g.chance(0.1):
        maker = counted
    if dtype == "s64" and g.chance(0.2):
        maker = from_bits
    if g.plain and dtype != "pred":
        maker = g.random.choice((mapped, mapped, mapped, product if dtype in FLOATS else mapped, across))
    value = maker(g, dtype, tuple(dims), most)
    assert value.dims == dims, (maker, value, dims)
    g.produced.append(value)
    return value


def bare(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    return g.given(dtype, dims, most)


def mapped(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    x = g.given(dtype, dims, most // 2)
    kind = g.random.choice(("sum", "row", "greater", "where", "alone", "double"))
    if g.real and x.floating:
        text = g.random.choice(("jnp.tanh({})", "jnp.sin({})", "{} * 0.5 + 1", "jnp.abs({})"))
        return g.let(text.format(x.name), dtype, dims, 3, False)
    if kind == "alone":
        text = g.random.choice(("-{}", "jnp.abs({})", "jnp.maximum({}, 0)"))
        return g.like(x, text.format(x.name), ALL_LIMITS[dtype] if dtype.startswith("u") and text == "-{}" else x.most)
    if kind == "double":
        return g.like(x, f"{x.name} + {x.name}", 2 * x.most)
    if kind == "row" and dims:
        kept = tuple(size if g.chance(0.5) else 1 for size in dims)
        y = g.given(dtype, kept, most // 2)
    else:
        y = g.given(dtype, dims, most // 2)
    if kind == "greater":
        return g.let(f"jnp.maximum({x.name}, {y.name})", dtype, dims, max(x.most, y.most), True)
    if kind == "where":
        p = g.given("pred", dims, 1)
        return g.let(f"jnp.where({p.name}, {x.name}, {y.name})", dtype, dims, max(x.most, y.most), True)
    return g.let(f"{x.name} + {y.name}", dtype, dims, x.most + y.most, True)


def product(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    """A contraction; its result lies in PSUM first."""
    if not dims or prod(dims) > g.largest:
        return mapped(g, dtype, dims, most)
    most = 1 if most < 4 else 2 if most < 64 else 3
    depth = g.random.choice([n for n in (1, 2, 3, 8, 16, 64, 128, 129) if n * prod(dims) < 2_000_000] or [1])
    letters = "abcdef"[: len(dims)]
    cut = g.random.randrange(len(dims))
    sides = (letters[:cut] + "k", "k" + letters[cut:])
    if g.chance(0.3) and len(dims) > 2:
        sides = (letters[:2] + "k", letters[0] + "k" + letters[2:])
    sizes = dict(zip(letters, dims, strict=True)) | {"k": depth}
    x, y = (g.given(dtype, tuple(sizes[letter] for letter in side), 1) for side in sides)
    text = f"jnp.einsum('{sides[0]},{sides[1]}->{letters}', {x.name}, {y.name})"
    if g.real:
        return g.let(f"{text} / {2 * depth**0.5:.3f}", dtype, dims, 3, False)
    return g.let(f"jnp.clip({text}, {-most}, {most})" if depth > most else text, dtype, dims, most, True)


def summed(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    """Over the first dim, the last or one between."""
    at, count = g.random.randint(0, len(dims)), g.random.choice((2, 3))
    if most < count or len(dims) > 4:
        return mapped(g, dtype, dims, most)
    x = g.given(dtype, (*dims[:at], count, *dims[at:]), most // count)
    return g.let(f"{x.name}.sum({at})", dtype, dims, most, x.exact)


def greatest(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    at, count = g.random.randint(0, len(dims)), g.random.choice((2, 3, 5))
    if len(dims) > 4:
        return mapped(g, dtype, dims, most)
    x = g.given(dtype, (*dims[:at], count, *dims[at:]), most)
    return g.let(f"{x.name}.{g.random.choice(('max', 'min'))}({at})", dtype, dims, most, x.exact)


def across(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    """What is computed lies in another order."""
    if len(dims) < 2:
        return bare(g, dtype, dims, most)
    source, text = turned(g, dims)
    x = mapped(g, dtype, source, most)
    return g.let(text.format(x.name), dtype, dims, x.most, x.exact)


def from_bits(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    """Bits that an integer operator makes, read as another type."""
    x = g.given(dtype, dims, most)
    z = g.given(BITS[dtype], dims, 0)
    return g.like(x, f"XOR({x.name}, {z.name})")


def looped(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    """What a loop carries."""
    x = g.given(dtype, dims, most)
    if g.chance(0.5):
        return mapped(g, dtype, dims, most)
    step = g.random.choice(("-x", "jnp.where(i > 0, -x, x)", "jnp.maximum(x, -1)"))
    if dtype.startswith("u"):
        step = "jnp.maximum(x, i.astype(x.dtype) & 1)"
    return g.like(x, f"lax.fori_loop(0, {g.random.choice((1, 2, 3))}, lambda i, x: {step}, {x.name})", max(x.most, 1))


def counted(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    if not dims:
        return bare(g, dtype, dims, most)
    at = g.random.randrange(len(dims))
    return g.let(f"lax.broadcasted_iota(T['s32'], {dims}, {at}) % {int(most) + 1}", dtype, dims, most, True)


def compared(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    other = g.type(("f32", "s32", "bf16", "s8"))
    x, y = (g.given(other, dims, 3) for _ in range(2))
    return g.let(f"{x.name} {g.random.choice(('<', '>=', '!='))} {y.name}", "pred", dims, 1, True)


def inverted(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    return g.let(f"~{g.given('pred', dims, 1).name}", "pred", dims, 1, True)


def any_of(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value:
    if len(dims) > 4:
        return inverted(g, dtype, dims, most)
    at = g.random.randint(0, len(dims))
    x = g.given("pred", (*dims[:at], 2, *dims[at:]), 1)
    return g.let(f"{x.name}.{g.random.choice(('any', 'all'))}({at})", "pred", dims, 1, True)
