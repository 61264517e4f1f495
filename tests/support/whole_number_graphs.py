"""Hypothesis strategy for random HLO modules that compute with whole numbers only, so that every result is exact.

Movement, reductions, contractions and run-time indices over dims around the limits of the hardware (1, 3, 127, 128,
129, 131, 257), in f32, s32 and pred; f32 values stay below 2**20.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from choices import Drawn
from hypothesis import strategies as st
from random_graphs import Graph, Value, broadcast, concatenate, listed, logic, reshape, reverse, slice_, transpose

PARAMETERS = ((), (3,), (130,), (257,), (2, 129), (128, 5), (131, 3), (4, 33, 7), (2, 3, 2, 5), (127, 64), (1, 12, 1))
LARGEST = 40_000
"""Elements of a value."""
BOUND = 2**20
NAMES = re.compile(r"[( ](v\d+)")
"""Of operands, in the text of an instruction."""


@dataclass
class WholeGraph(Graph):
    """Keeps a bound of the magnitude of each f32 value."""

    bounds: dict[str, int] = field(default_factory=dict)

    def add(self, dtype: str, dims: tuple[int, ...], text: str, visible: bool = True) -> Value:
        """Makers that do not only move numbers set another bound than the largest of the operands."""
        value = super().add(dtype, dims, text, visible)
        known = [self.bounds[name] for name in NAMES.findall(text) if name in self.bounds]
        if known:
            self.bounds[value.name] = max(known)
        return value

    def like(self, value: Value) -> Value:
        known = [v for v in self.values if v.type == value.type]
        if known and self.choices.coin():
            return self.choices.choose(known)
        numbers = ("true", "false") if value.dtype == "pred" else ("0", "1", "-1", "2", "3")
        scalar = self.add(value.dtype, (), f"constant({self.choices.choose(numbers)})", visible=False)
        return self.add(value.dtype, value.dims, f"broadcast({scalar.name}), dimensions={{}}", visible=False)

    def bound(self, value: Value) -> int:
        return self.bounds.get(value.name, 3)


def unary(g: WholeGraph) -> None:
    x = g.pick("f32", "s32")
    y = g.add(x.dtype, x.dims, f"{g.choices.choose(('negate', 'abs', 'sign'))}({x.name})")
    g.bounds[y.name] = g.bound(x)


def binary(g: WholeGraph) -> None:
    x = g.pick("f32", "s32")
    y = g.like(x)
    opcode = g.choices.choose(("add", "subtract", "maximum", "minimum", "multiply"))
    bound = g.bound(x) * g.bound(y) if opcode == "multiply" else g.bound(x) + g.bound(y)
    if x.dtype == "f32" and bound > BOUND:
        opcode, bound = "minimum", max(g.bound(x), g.bound(y))
    pair = (x, y) if g.choices.coin() else (y, x)
    z = g.add(x.dtype, x.dims, f"{opcode}({pair[0].name}, {pair[1].name})")
    g.bounds[z.name] = bound


def compare(g: WholeGraph) -> None:
    x = g.pick("f32", "s32")
    direction = g.choices.choose(("EQ", "NE", "LT", "GE", "GT", "LE"))
    g.add("pred", x.dims, f"compare({x.name}, {g.like(x).name}), direction={direction}")


def select(g: WholeGraph) -> None:
    x = g.pick("f32", "s32")
    predicates = [v for v in g.values if v.dtype == "pred" and v.dims == x.dims]
    if not predicates:
        return compare(g)
    y = g.like(x)
    z = g.add(x.dtype, x.dims, f"select({g.choices.choose(predicates).name}, {x.name}, {y.name})")
    g.bounds[z.name] = max(g.bound(x), g.bound(y))
    return None


def convert(g: WholeGraph) -> None:
    x = g.pick("pred", "f32")
    if x.dtype == "f32":
        g.add("s32", x.dims, f"convert({x.name})")
    else:
        g.add(g.choices.choose(("f32", "s32")), x.dims, f"convert({x.name})")


def iota(g: WholeGraph) -> None:
    x = g.pick()
    if not x.dims:
        return unary(g)
    axis = g.choices.integer(0, len(x.dims) - 1)
    y = g.add(g.choices.choose(("f32", "s32")), x.dims, f"iota(), iota_dimension={axis}")
    g.bounds[y.name] = max(3, x.dims[axis])
    return None


def moved(g: WholeGraph) -> None:
    g.choices.choose((reshape, broadcast, transpose, reverse, slice_, concatenate))(g)


def pad(g: WholeGraph) -> None:
    x = g.pick("f32", "s32")
    if not x.dims:
        return unary(g)
    amounts = [
        (g.choices.integer(0, 2), g.choices.integer(-1 if size > 1 else 0, 2), g.choices.choose((0, 0, 1)))
        for size in x.dims
    ]
    fill = g.add(x.dtype, (), "constant(-2)", visible=False)
    dims = tuple(n + low + high + max(n - 1, 0) * mid for n, (low, high, mid) in zip(x.dims, amounts, strict=True))
    spelled = "x".join(f"{low}_{high}_{mid}" for low, high, mid in amounts)
    y = g.add(x.dtype, dims, f"pad({x.name}, {fill.name}), padding={spelled}")
    g.bounds[y.name] = g.bound(x)
    return None


def reduce(g: WholeGraph) -> None:
    x = g.pick("f32", "s32")
    folded = [axis for axis in range(len(x.dims)) if g.choices.coin()]
    count = prod(x.dims[axis] for axis in folded)
    starts = {"add": "0", "maximum": "-inf", "minimum": "inf"}
    if x.dtype == "s32":
        starts = {"add": "0", "maximum": "-2147483648", "minimum": "2147483647", "and": "-1", "or": "0"}
    kind = g.choices.choose(sorted(starts))
    if x.dtype == "f32" and ((kind != "add" and not count) or g.bound(x) * count > BOUND):
        return unary(g)
    start = g.add(x.dtype, (), f"constant({starts[kind]})", visible=False)
    name = f"{kind}_{x.dtype}"
    scalar = f"{x.dtype}[]"
    g.bodies[name] = f"{name} {{ a = {scalar} parameter(0) b = {scalar} parameter(1) ROOT r = {scalar} {kind}(a, b) }}"
    dims = tuple(size for axis, size in enumerate(x.dims) if axis not in folded)
    y = g.add(x.dtype, dims, f"reduce({x.name}, {start.name}), dimensions={listed(folded)}, to_apply={name}")
    g.bounds[y.name] = g.bound(x) * (max(count, 1) if kind == "add" else 1)
    return None


def dot(g: WholeGraph) -> None:
    x = g.pick("f32")
    if not x.dims or len(x.dims) > 2:
        return transpose(g)
    partners = [v for v in g.values if v.dtype == "f32" and 0 < len(v.dims) < 3 and set(v.dims) & set(x.dims)]
    y = g.choices.choose(partners)
    size = g.choices.choose(sorted(set(x.dims) & set(y.dims)))
    bound = g.bound(x) * g.bound(y) * max(size, 1)
    left, right = x.dims.index(size), y.dims.index(size)
    dims = x.dims[:left] + x.dims[left + 1 :] + y.dims[:right] + y.dims[right + 1 :]
    if bound > BOUND or prod(dims) > 100 * LARGEST:
        return binary(g)
    text = f"dot({x.name}, {y.name}), lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
    z = g.add("f32", dims, text)
    g.bounds[z.name] = max(bound, 1)
    return None


def scalar_index(g: WholeGraph) -> Value:
    known = [v for v in g.values if v.type == "s32[]"]
    if known and g.choices.coin():
        return g.choices.choose(known)
    return g.add("s32", (), f"constant({g.choices.integer(-2, 130)})", visible=False)


def dynamic_slice(g: WholeGraph) -> None:
    x = g.pick()
    if not x.dims:  # StableHLO, through which XLA gets it, cannot spell this
        return unary(g)
    sizes = tuple(g.choices.integer(1, size) if size else 0 for size in x.dims)
    starts = "".join(f", {scalar_index(g).name}" for _ in x.dims)
    y = g.add(x.dtype, sizes, f"dynamic-slice({x.name}{starts}), dynamic_slice_sizes={listed(sizes)}")
    g.bounds[y.name] = g.bound(x)
    return None


def dynamic_update_slice(g: WholeGraph) -> None:
    x = g.pick()
    if not x.dims:
        return unary(g)
    parts = [
        v
        for v in g.values
        if v.dtype == x.dtype
        and len(v.dims) == len(x.dims)
        and all(a <= b for a, b in zip(v.dims, x.dims, strict=True))
    ]
    part = g.choices.choose(parts)
    starts = "".join(f", {scalar_index(g).name}" for _ in x.dims)
    y = g.add(x.dtype, x.dims, f"dynamic-update-slice({x.name}, {part.name}{starts})")
    g.bounds[y.name] = max(g.bound(x), g.bound(part))
    return None


def gather(g: WholeGraph) -> None:
    tables = [v for v in g.values if v.dims and v.dims[0]]
    vectors = [v for v in g.values if v.dtype == "s32" and len(v.dims) == 1]
    if not tables or not vectors:
        return iota(g)
    w, i = g.choices.choose(tables), g.choices.choose(vectors)
    rest = w.dims[1:]
    attributes = (
        f"offset_dims={listed(range(1, len(w.dims)))}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        f"index_vector_dim=1, slice_sizes={listed((1, *rest))}"
    )
    y = g.add(w.dtype, i.dims + rest, f"gather({w.name}, {i.name}), {attributes}")
    g.bounds[y.name] = g.bound(w)
    return None


MAKERS = (unary, binary, binary, binary, compare, select, select, convert, iota, moved, moved, moved, moved, pad)
MAKERS += (reduce, reduce, dot, dot, logic, dynamic_slice, dynamic_update_slice, gather)


def extend(g: WholeGraph, makers: Sequence[Callable[[WholeGraph], None]]) -> None:
    """One more op, unless there are no values for it; nobody uses what is too large."""
    before = len(g.values)
    try:
        g.choices.choose(makers)(g)
    except LookupError:
        return
    if g.values[before:] and (prod(g.values[-1].dims) > LARGEST or len(g.values[-1].dims) > 6):
        g.values.pop()


@st.composite
def whole_number_modules(draw: st.DrawFn, makers: Sequence[Callable[[WholeGraph], None]] = MAKERS) -> str:
    """HLO text of a module with up to three parameters and 3 to 14 ops; values that nobody uses are results."""
    g = WholeGraph(Drawn(draw))
    for index in range(draw(st.integers(1, 3))):
        g.add(draw(st.sampled_from(("f32", "f32", "s32"))), draw(st.sampled_from(PARAMETERS)), f"parameter({index})")
    for _ in range(draw(st.integers(3, 14))):
        extend(g, makers)
    used = " ".join(line.split("(", 1)[1] for line in g.lines)
    roots = [v for v in g.values if f"{v.name}," not in used and f"{v.name})" not in used][-4:] or [g.values[-1]]
    types, names = ", ".join(v.type for v in roots), ", ".join(v.name for v in roots)
    lines = [*g.lines, f"ROOT root = ({types}) tuple({names})"]
    return "\n".join(["HloModule random", *g.bodies.values(), "ENTRY main {", *("  " + line for line in lines), "}"])
