"""Operands that a kernel before left on chip: their dims lie in pieces outside, on and inside the partitions.

A dim of ``n`` elements is ``outer * on * inner`` of them: what makes it has the middle ones first, which it deals out
over the partitions, and the others wherever they come to stand. Nothing is copied to read that as one dim again.
"""

from __future__ import annotations

from math import prod

from jax_sketch import Value
from view_operands import FLOATS, Drawn, compared, greatest, mapped, product

SIZES = (1, 2, 3, 8, 31, 32, 64, 96, 96, 127, 128, 128, 129, 130, 192, 256, 256, 260, 384, 384, 512, 513, 768, 1024)
"""Multiples of numbers of partitions, and their neighbours."""


def _divisors(size: int, most: int) -> list[int]:
    return [n for n in range(1, min(size, most) + 1) if size % n == 0]


def resident(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value | None:
    """A value of these dims that is computed on chip in another order; None of one element."""
    if prod(dims) < 2:
        return None
    at = g.random.choice([axis for axis, size in enumerate(dims) if size > 1 for _ in range(1 + (size > 31))])
    on = g.random.choice(_divisors(dims[at], 128)[-3:])
    outer = g.random.choice(_divisors(dims[at] // on, 64))
    pieces = [*dims[:at], outer, on, dims[at] // on // outer, *dims[at + 1 :]]
    others = [axis for axis in range(len(pieces)) if axis not in (at, at + 1)]
    g.random.shuffle(others)
    first = g.random.choice(([at, at + 1], [at, at + 1], [at + 1, at], [at + 1]))
    order = [*first, *others]
    if at not in first:
        order.insert(g.random.randint(1, len(order)), at)
    source = [pieces[axis] for axis in order]
    if g.chance(0.7):  # outside and on the partitions is one dim
        source[:2] = [source[0] * source[1]]
    while len(source) > 3 or (len(source) > 2 and g.chance(0.3)):
        source[-2:] = [source[-2] * source[-1]]
    maker = compared if dtype == "pred" else g.random.choice((mapped, mapped, mapped, greatest, product))
    if maker is product and dtype not in FLOATS:
        maker = mapped
    x = maker(g, dtype, tuple(source), most)
    if g.chance(0.3):
        g.also.append(x)
    back = tuple(order.index(axis) for axis in range(len(pieces)))
    text = f"{x.name}.reshape({tuple(pieces[axis] for axis in order)}).transpose({back}).reshape({dims})"
    return g.let(text, dtype, dims, x.most, x.exact)
