"""Hypothesis strategies for small random HLO modules, as text, of the ops that the passes rewrite."""

from dataclasses import dataclass, field
from math import prod

from choices import Choices, Drawn
from hypothesis import strategies as st

UNARY = ("negate", "abs", "exponential", "tanh", "sine", "floor", "sqrt", "logistic")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
INT_UNARY = ("negate", "abs", "not")
INT_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor")
NUMBERS = ("0", "-0", "1", "-1", "2", "0.5", "3", "inf", "-inf")
INT_NUMBERS = ("0", "1", "-1", "7", "2147483647")
COMBINERS = {"add": ("0", "-0"), "maximum": ("-inf", "0"), "minimum": ("inf",)}
INT_COMBINERS = {"add": ("0", "3"), "maximum": ("-2147483648",), "minimum": ("2147483647",)}
NEUTRAL = {(kind, "s32"): numbers[:1] for kind, numbers in INT_COMBINERS.items()}
NEUTRAL |= {(kind, "f32"): numbers[:1] for kind, numbers in COMBINERS.items()}


@dataclass(frozen=True)
class Value:
    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass
class Graph:
    """Lines of an entry computation and the values they define."""

    choices: Choices
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    bodies: dict[str, str] = field(default_factory=dict)

    def add(self, dtype: str, dims: tuple[int, ...], text: str, visible: bool = True) -> Value:
        value = Value(f"v{len(self.lines)}", dtype, tuple(dims))
        self.lines.append(f"{value.name} = {value.type} {text}")
        if visible:
            self.values.append(value)
        return value

    def pick(self, *dtypes: str) -> Value:
        found = [v for v in self.values if not dtypes or v.dtype in dtypes]
        if not found:
            raise LookupError(dtypes)
        return self.choices.choose(found)

    def like(self, value: Value) -> Value:
        """A value of the same type: one that exists, or a splat."""
        known = [v for v in self.values if v.type == value.type]
        if self.choices.coin():
            return self.choices.choose(known)
        numbers = INT_NUMBERS if value.dtype == "s32" else ("true", "false") if value.dtype == "pred" else NUMBERS
        scalar = self.add(value.dtype, (), f"constant({self.choices.choose(numbers)})", visible=False)
        return self.add(value.dtype, value.dims, f"broadcast({scalar.name}), dimensions={{}}", visible=False)


def listed(numbers) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def unary(g: Graph) -> None:
    x = g.pick("f32", "bf16", "s32")
    g.add(x.dtype, x.dims, f"{g.choices.choose(INT_UNARY if x.dtype == 's32' else UNARY)}({x.name})")


def binary(g: Graph) -> None:
    x = g.pick("f32", "bf16", "s32")
    y = g.like(x)
    pair = (x, y) if g.choices.coin() else (y, x)
    opcode = g.choices.choose(INT_BINARY if x.dtype == "s32" else BINARY)
    g.add(x.dtype, x.dims, f"{opcode}({pair[0].name}, {pair[1].name})")


def compare(g: Graph) -> None:
    x = g.pick("f32", "bf16", "s32")
    direction = g.choices.choose(("EQ", "NE", "LT", "GE", "GT", "LE"))
    g.add("pred", x.dims, f"compare({x.name}, {g.like(x).name}), direction={direction}")


def select(g: Graph) -> None:
    x = g.pick("f32", "bf16", "s32", "pred")
    p = g.like(Value("", "pred", x.dims)) if any(v.type == Value("", "pred", x.dims).type for v in g.values) else None
    if p is None:
        return compare(g)
    g.add(x.dtype, x.dims, f"select({p.name}, {x.name}, {g.like(x).name})")
    return None


def logic(g: Graph) -> None:
    known = [v for v in g.values if v.dtype == "pred"]
    if not known:
        return compare(g)
    p = g.choices.choose(known)
    if g.choices.coin():
        g.add("pred", p.dims, f"not({p.name})")
    else:
        g.add("pred", p.dims, f"{g.choices.choose(('and', 'or', 'xor'))}({p.name}, {g.like(p).name})")
    return None


def convert(g: Graph) -> None:
    x = g.pick()
    targets = [d for d in ("f32", "bf16", "s32") if d != x.dtype]
    if x.dtype in ("f32", "bf16"):
        targets.remove("s32")
    target = g.choices.choose(targets)
    g.add(target, x.dims, f"convert({x.name})")


def reshape(g: Graph) -> None:
    x = g.pick()
    size = prod(x.dims)
    choices = [(size,), (1, *x.dims), (*x.dims, 1), tuple(d for d in x.dims if d != 1)]
    choices += [(a, size // a) for a in range(1, size + 1) if size % a == 0] if size else []
    dims = g.choices.choose([c for c in choices if len(c) <= 5])
    g.add(x.dtype, dims, f"reshape({x.name})")


def broadcast(g: Graph) -> None:
    x = g.pick()
    dims, kept = list(x.dims), list(range(len(x.dims)))
    if len(dims) < 4:
        place = g.choices.integer(0, len(dims))
        dims.insert(place, g.choices.choose((1, 2, 3)))
        kept = [i + (i >= place) for i in kept]
    g.add(x.dtype, dims, f"broadcast({x.name}), dimensions={listed(kept)}")


def transpose(g: Graph) -> None:
    x = g.pick()
    order = g.choices.order(len(x.dims))
    g.add(x.dtype, [x.dims[i] for i in order], f"transpose({x.name}), dimensions={listed(order)}")


def reverse(g: Graph) -> None:
    x = g.pick()
    chosen = [i for i in range(len(x.dims)) if g.choices.coin()]
    g.add(x.dtype, x.dims, f"reverse({x.name}), dimensions={listed(chosen)}")


def slice_(g: Graph) -> None:
    x = g.pick()
    bounds, dims = [], []
    for size in x.dims:
        start = g.choices.integer(0, max(size - 1, 0))
        limit = g.choices.integer(min(start + 1, size), size)
        stride = g.choices.choose((1, 1, 2))
        bounds.append(f"[{start}:{limit}:{stride}]")
        dims.append(-(-(limit - start) // stride))
    g.add(x.dtype, dims, f"slice({x.name}), slice={listed(bounds)}")


def pad(g: Graph) -> None:
    x = g.pick("f32", "bf16", "s32")
    if not x.dims:
        return unary(g)
    amounts = [
        (g.choices.integer(0, 2), g.choices.integer(-1 if size > 1 else 0, 2), g.choices.choose((0, 0, 1)))
        for size in x.dims
    ]
    numbers = INT_NUMBERS if x.dtype == "s32" else NUMBERS
    fill = g.add(x.dtype, (), f"constant({g.choices.choose(numbers)})", visible=False)
    dims = [n + low + high + max(n - 1, 0) * mid for n, (low, high, mid) in zip(x.dims, amounts, strict=True)]
    spelled = "x".join(f"{low}_{high}_{mid}" for low, high, mid in amounts)
    g.add(x.dtype, dims, f"pad({x.name}, {fill.name}), padding={spelled}")
    return None


def concatenate(g: Graph) -> None:
    x = g.pick()
    if not x.dims:
        return reshape(g)
    axis = g.choices.integer(0, len(x.dims) - 1)
    pieces = [x, *(g.like(x) for _ in range(g.choices.integer(0, 2)))]
    dims = list(x.dims)
    dims[axis] *= len(pieces)
    g.add(x.dtype, dims, f"concatenate({', '.join(p.name for p in pieces)}), dimensions={{{axis}}}")
    return None


def reduce(g: Graph) -> None:
    x = g.pick("f32", "s32")
    combiners = INT_COMBINERS if x.dtype == "s32" else COMBINERS
    kind = g.choices.choose(sorted(combiners))
    folded = [i for i in range(len(x.dims)) if g.choices.coin()]
    # XLA drops the initial value of a reduction over one element, which HLO allows only because it should be neutral
    choices = combiners[kind] if prod(x.dims[i] for i in folded) > 1 else NEUTRAL[kind, x.dtype]
    start = g.add(x.dtype, (), f"constant({g.choices.choose(choices)})", visible=False)
    name = f"{kind}_{x.dtype}"
    g.bodies[name] = (
        f"{name} {{ a = {x.dtype}[] parameter(0) b = {x.dtype}[] parameter(1) ROOT r = {x.dtype}[] {kind}(a, b) }}"
    )
    dims = [n for i, n in enumerate(x.dims) if i not in folded]
    g.add(x.dtype, dims, f"reduce({x.name}, {start.name}), dimensions={listed(folded)}, to_apply={name}")


def dot(g: Graph) -> None:
    x = g.pick("f32")
    if not x.dims:
        return unary(g)
    y = g.like(x)
    axis = g.choices.integer(0, len(x.dims) - 1)
    free = [n for i, n in enumerate(x.dims) if i != axis]
    if 2 * len(free) > 4:
        return transpose(g)
    attributes = f"lhs_contracting_dims={{{axis}}}, rhs_contracting_dims={{{axis}}}"
    g.add("f32", free + free, f"dot({x.name}, {y.name}), {attributes}")
    return None


EXACT = (unary, binary, binary, compare, select, logic, convert, reshape, reshape, broadcast, broadcast, transpose)
EXACT += (reverse, slice_, pad, concatenate, reduce)
"""Ops on which every rewrite keeps all bits (reductions are over few elements, whose order no rewrite changes)."""


@st.composite
def modules(draw: st.DrawFn, dtypes: tuple[str, ...] = ("f32", "f32", "bf16", "s32"), dots: bool = False) -> str:
    """HLO text of a module with a few parameters and 3 to 14 random ops; all values nobody uses are results."""
    g = Graph(Drawn(draw))
    for index in range(draw(st.integers(1, 3))):
        dims = draw(st.lists(st.sampled_from((1, 1, 2, 3, 4)), max_size=3))
        g.add(draw(st.sampled_from(dtypes)), tuple(dims), f"parameter({index})")
    makers = EXACT + ((dot, dot, dot) if dots else ())
    for _ in range(draw(st.integers(3, 14))):
        before = len(g.values)
        try:
            draw(st.sampled_from(makers))(g)
        except LookupError:  # no value of the wanted types yet
            continue
        if g.values[before:] and prod(g.values[-1].dims) > 500:
            g.values.pop()
    used = " ".join(line.split("(", 1)[1] for line in g.lines)
    roots = [v for v in g.values if f"{v.name}," not in used and f"{v.name})" not in used][-4:] or [g.values[-1]]
    types, names = ", ".join(v.type for v in roots), ", ".join(v.name for v in roots)
    lines = [*g.lines, f"ROOT root = ({types}) tuple({names})"]
    return "\n".join(["HloModule random", *g.bodies.values(), "ENTRY main {", *("  " + line for line in lines), "}"])
