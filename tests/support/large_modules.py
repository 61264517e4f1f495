"""Random HLO modules of 200 to 2,000 instructions, of whole numbers, by seed.

The ops of ``mixed_graphs`` over values that are used again long after they were made, loops and branches with much
inside, calls and fusions, tuples, and shapes around those at which plans change. Whatever nobody uses is a result.
"""

from math import exp, log

from choices import Seeded
from mixed_graphs import MIXED, _raw
from random_graphs import Value
from whole_number_graphs import BOUND, NAMES, WholeGraph, binary, compare, extend, select, unary

SHAPES = ((), (3,), (130,), (257,), (1024,), (5000,), (2, 129), (128, 5), (131, 3), (4, 33, 7), (2, 3, 2, 5), (127, 64))
SHAPES += (
    (1, 12, 1),
    (128, 128),
    (129, 127),
    (64, 257),
    (257, 64),
    (512, 33),
    (513, 32),
    (8, 16, 96),
    (3, 640),
    (17, 1),
)
SHAPES += ((40, 1, 513), (2, 8, 16, 64), (256, 130), (7, 2048), (2048, 9))
RECENT = 25


class LargeGraph(WholeGraph):
    """Half of the operands are values that nothing uses yet, the others any value."""

    def __init__(self, choices: Seeded) -> None:
        super().__init__(choices)
        self.unused: dict[str, Value] = {}

    def add(self, dtype: str, dims: tuple[int, ...], text: str, visible: bool = True) -> Value:
        for name in NAMES.findall(text):
            self.unused.pop(name, None)
        value = super().add(dtype, dims, text, visible)
        if visible:
            self.unused[value.name] = value
        return value

    def pick(self, *dtypes: str) -> Value:
        found = [v for v in self.unused.values() if not dtypes or v.dtype in dtypes][-RECENT:]
        return self.choices.choose(found) if found and self.choices.coin() else super().pick(*dtypes)


def clamp(g: WholeGraph) -> None:
    """Large numbers become small ones, with which more can be done."""
    large = [v for v in g.values if v.dtype in ("f32", "s32") and g.bound(v) > 300]
    x = g.choices.choose(large[-RECENT:])
    low, high = (g.add(x.dtype, (), f"constant({n})", visible=False) for n in (-4, 5))
    y = g.add(x.dtype, x.dims, f"clamp({low.name}, {x.name}, {high.name})")
    g.bounds[y.name] = 5


def mesh(g: WholeGraph) -> None:
    """A value of a shape at which plans change, made of one of another shape."""
    dims = g.choices.choose(SHAPES)
    x = g.pick("f32", "s32")
    kept = []
    for size in x.dims:
        start = kept[-1] + 1 if kept else 0
        kept += [axis for axis in range(start, len(dims)) if dims[axis] == size][:1]
    if len(kept) < len(x.dims):
        x, kept = g.choices.choose([v for v in g.values if not v.dims and v.dtype in ("f32", "s32")]), []
    y = g.add(x.dtype, dims, f"broadcast({x.name}), dimensions={{{','.join(map(str, kept))}}}", visible=False)
    if dims:
        axis = g.choices.integer(0, len(dims) - 1)
        i = g.add(x.dtype, dims, f"iota(), iota_dimension={axis}", visible=False)
        low = g.add(x.dtype, (), "constant(7)", visible=False)
        r = g.add(x.dtype, dims, f"broadcast({low.name}), dimensions={{}}", visible=False)
        i = g.add(x.dtype, dims, f"remainder({i.name}, {r.name})", visible=False)
        bound = g.bound(y) + 7
        if x.dtype == "s32" or bound <= BOUND:
            y = g.add(x.dtype, dims, f"add({y.name}, {i.name})")
            g.bounds[y.name] = bound


def call(g: WholeGraph) -> None:
    """Of a computation of a few ops, or of a fusion."""
    fused = g.choices.coin()
    parts = [g.pick("f32", "s32") for _ in range(g.choices.integer(1, 3))]
    inner = WholeGraph(g.choices, bodies=g.bodies)
    for index, part in enumerate(parts):
        value = inner.add(part.dtype, part.dims, f"parameter({index})")
        inner.bounds[value.name] = g.bound(part)
    for _ in range(g.choices.integer(1, 8)):
        extend(inner, (unary, binary, binary, compare, select) if fused else MIXED)
    if len(inner.values) == len(parts) or inner.values[-1].name != f"v{len(inner.lines) - 1}":
        return
    root = inner.values[-1]
    inner.lines[-1] = f"ROOT {inner.lines[-1]}"
    name = f"called{len(g.bodies)}"
    g.bodies[name] = "\n".join([f"{name} {{", *(f"  {line}" for line in inner.lines), "}"])
    operands = ", ".join(part.name for part in parts)
    form = f"fusion({operands}), kind=kLoop, calls={name}" if fused else f"call({operands}), to_apply={name}"
    y = g.add(root.dtype, root.dims, form)
    g.bounds[y.name] = inner.bound(root)


def pack(g: WholeGraph) -> None:
    """Through a tuple in a tuple."""
    x, y = g.pick(), g.pick()
    pair = _raw(g, f"({x.type}, {y.type}) tuple({x.name}, {y.name})")
    both = _raw(g, f"(({x.type}, {y.type}), {x.type}) tuple({pair}, {x.name})")
    first = _raw(g, f"({x.type}, {y.type}) get-tuple-element({both}), index=0")
    for index, value in enumerate((x, y)):
        again = g.add(value.dtype, value.dims, f"get-tuple-element({first}), index={index}")
        g.bounds[again.name] = g.bound(value)


LARGE = (*MIXED, *MIXED, clamp, clamp, clamp, clamp, mesh, mesh, mesh, call, call, pack)


def large_module(seed: int, least: int = 200, most: int = 2000) -> str:
    """HLO text; numbers of instructions are even on a logarithmic scale."""
    choices = Seeded(f"module {seed}")
    wanted = int(exp(choices.integer(0, 1000) / 1000 * log(most / least)) * least)
    g = LargeGraph(choices)
    for index in range(choices.integer(2, 8)):
        g.add(choices.choose(("f32", "f32", "s32")), choices.choose(SHAPES), f"parameter({index})")
    g.add("s32", (), f"parameter({index + 1})")
    g.add("f32", (), f"parameter({index + 2})")
    while len(g.lines) + sum(body.count("\n") for body in g.bodies.values()) < wanted:
        extend(g, LARGE)
    shown = {v.name for v in g.values}
    roots = [v for v in g.unused.values() if v.name in shown] or [g.values[-1]]
    types, names = ", ".join(v.type for v in roots), ", ".join(v.name for v in roots)
    lines = [*g.lines, f"ROOT root = ({types}) tuple({names})"]
    return "\n".join(["HloModule random", *g.bodies.values(), "ENTRY main {", *("  " + line for line in lines), "}"])
