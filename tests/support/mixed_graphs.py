"""Hypothesis strategy for random HLO modules of all kinds of ops, with whole numbers, so that results are exact.

The ops of ``whole_number_graphs``, and between them scatters, sorts, windows, convolutions, loops and branches.
"""

from math import prod

from hypothesis import strategies as st
from random_graphs import Value, listed, transpose
from whole_number_graphs import (
    BOUND,
    LARGEST,
    MAKERS,
    WholeGraph,
    binary,
    extend,
    iota,
    scalar_index,
    unary,
    whole_number_modules,
)

STARTS = {"add": {"f32": "0", "s32": "0"}, "maximum": {"f32": "-inf", "s32": "-2147483648"}}
STARTS["minimum"] = {"f32": "inf", "s32": "2147483647"}


def _combiner(g: WholeGraph, kind: str, dtype: str) -> str:
    name, scalar = f"{kind}_{dtype}", f"{dtype}[]"
    g.bodies[name] = f"{name} {{ a = {scalar} parameter(0) b = {scalar} parameter(1) ROOT r = {scalar} {kind}(a, b) }}"
    return name


def _kind(g: WholeGraph, dtype: str, bound: int) -> str:
    """A combiner; no sum where ``bound``, that of the sum, is too large for exact floats."""
    kinds = ["maximum", "minimum", *(["add"] if dtype == "s32" or bound <= BOUND else [])]
    return g.choices.choose(kinds)


def _raw(g: WholeGraph, text: str) -> str:
    """The name of an instruction with a tuple for a result."""
    name = f"v{len(g.lines)}"
    g.lines.append(f"{name} = {text}")
    return name


def scatter(g: WholeGraph) -> None:
    tables = [v for v in g.values if v.dims and v.dims[0] and v.dtype != "pred"]
    vectors = [v for v in g.values if v.dtype == "s32" and len(v.dims) == 1]
    if not tables or not vectors:
        return iota(g)
    x, i = g.choices.choose(tables), g.choices.choose(vectors)
    rest = x.dims[1:]
    if prod(i.dims + rest) > LARGEST:
        return unary(g)
    u = g.like(Value("", x.dtype, i.dims + rest))
    bound = g.bound(x) + g.bound(u) * max(i.dims[0], 1)
    kind = _kind(g, x.dtype, bound)
    attributes = (
        f"update_window_dims={listed(range(1, len(x.dims)))}, inserted_window_dims={{0}}, "
        f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={_combiner(g, kind, x.dtype)}"
    )
    y = g.add(x.dtype, x.dims, f"scatter({x.name}, {i.name}, {u.name}), {attributes}")
    g.bounds[y.name] = bound if kind == "add" else max(g.bound(x), g.bound(u))
    return None


def sort(g: WholeGraph) -> None:
    """Keys alone, or with what travels along, whose order shows that equal keys keep theirs."""
    x = g.pick("f32", "s32")
    if not x.dims:
        return unary(g)
    axis = g.choices.integer(0, len(x.dims) - 1)
    direction = g.choices.choose(("LT", "GT"))
    several = g.choices.coin()
    name = f"{direction}_{x.dtype}_{'pair' if several else 'alone'}"
    scalars = [x.dtype, x.dtype, *(["s32", "s32"] if several else [])]
    parameters = " ".join(f"{'abcd'[n]} = {scalar}[] parameter({n})" for n, scalar in enumerate(scalars))
    g.bodies[name] = f"{name} {{ {parameters} ROOT r = pred[] compare(a, b), direction={direction} }}"
    attributes = f"dimensions={{{axis}}}, is_stable=true, to_apply={name}"
    if not several:
        y = g.add(x.dtype, x.dims, f"sort({x.name}), {attributes}")
        g.bounds[y.name] = g.bound(x)
        return None
    places = g.add("s32", x.dims, f"iota(), iota_dimension={axis}", visible=False)
    both = _raw(g, f"({x.type}, {places.type}) sort({x.name}, {places.name}), {attributes}")
    y = g.add(x.dtype, x.dims, f"get-tuple-element({both}), index=0")
    g.bounds[y.name] = g.bound(x)
    g.add("s32", x.dims, f"get-tuple-element({both}), index=1")
    return None


def reduce_window(g: WholeGraph) -> None:
    """Every window holds an element, so that none is infinite."""
    x = g.pick("f32", "s32")
    if not x.dims or len(x.dims) > 4 or 0 in x.dims:
        return unary(g)
    sizes = [g.choices.integer(1, min(size, 3)) for size in x.dims]
    strides = [g.choices.choose((1, 1, 2)) for _ in sizes]
    pads = [(g.choices.integer(0, size - 1), g.choices.integer(0, size - 1)) for size in sizes]
    dims = tuple(
        (n + low + high - size) // stride + 1
        for n, size, stride, (low, high) in zip(x.dims, sizes, strides, pads, strict=True)
    )
    kind = _kind(g, x.dtype, g.bound(x) * prod(sizes))
    start = g.add(x.dtype, (), f"constant({STARTS[kind][x.dtype]})", visible=False)
    window = f"size={'x'.join(map(str, sizes))} stride={'x'.join(map(str, strides))} "
    window += "pad=" + "x".join(f"{low}_{high}" for low, high in pads)
    attributes = f"window={{{window}}}, to_apply={_combiner(g, kind, x.dtype)}"
    y = g.add(x.dtype, dims, f"reduce-window({x.name}, {start.name}), {attributes}")
    g.bounds[y.name] = g.bound(x) * (prod(sizes) if kind == "add" else 1)
    return None


def convolution(g: WholeGraph) -> None:
    """One spatial dim; the kernel counts along one of its dims."""
    values = [v for v in g.values if v.dtype == "f32" and len(v.dims) == 3 and 0 not in v.dims]
    if not values:
        return transpose(g)
    x = g.choices.choose(values)
    batch, size, features = x.dims
    window, outputs = g.choices.integer(1, 3), g.choices.choose((1, 2, 5))
    stride, low, high = g.choices.integer(1, 2), g.choices.integer(0, 2), g.choices.integer(0, 2)
    positions = (size + low + high - window) // stride + 1
    bound = g.bound(x) * window * features * max(window, features, outputs)
    if size + low + high < window or bound > BOUND:
        return binary(g)
    axis = g.choices.integer(0, 2)
    kernel = g.add("f32", (window, features, outputs), f"iota(), iota_dimension={axis}", visible=False)
    attributes = f"window={{size={window} stride={stride} pad={low}_{high}}}, dim_labels=b0f_0io->b0f"
    y = g.add("f32", (batch, positions, outputs), f"convolution({x.name}, {kernel.name}), {attributes}")
    g.bounds[y.name] = max(bound, 1)
    return None


def _inner(g: WholeGraph, *parts: Value) -> WholeGraph:
    """The graph of a called computation whose parameter v0 is a tuple of ``parts``; line 0 is left to ``_define``."""
    inner = WholeGraph(g.choices, lines=[""], bodies=g.bodies)
    for index, part in enumerate(parts):
        value = inner.add(part.dtype, part.dims, f"get-tuple-element(v0), index={index}")
        inner.bounds[value.name] = g.bound(part)
    return inner


def _grow(g: WholeGraph) -> None:
    for _ in range(g.choices.integer(0, 4)):
        extend(g, INSIDE)


def _zeros(g: WholeGraph, like: Value) -> Value:
    zero = g.add(like.dtype, (), f"constant({'false' if like.dtype == 'pred' else '0'})", visible=False)
    return g.add(like.dtype, like.dims, f"broadcast({zero.name}), dimensions={{}}", visible=False)


def while_(g: WholeGraph) -> None:
    """Up to three turns, as many as a constant or a value of the run says; each computes something of what it has."""
    x = g.pick("f32", "s32")
    y = g.like(x)
    bound = g.bound(x) + 3 * g.bound(y)
    least, most = (g.add("s32", (), f"constant({n})", visible=False) for n in (0, 3))
    turns = g.add("s32", (), f"clamp({least.name}, {scalar_index(g).name}, {most.name})", visible=False)
    inner = _inner(g, least, turns, x, y)
    i, n, a, b = inner.values
    steps = [f"maximum({a.name}, {b.name})", f"minimum({b.name}, {a.name})"]
    if x.dtype == "s32" or bound <= BOUND:
        steps += [f"add({a.name}, {b.name})", f"subtract({a.name}, {b.name})"]
        inner.bounds[a.name] = bound
    else:
        inner.bounds[a.name] = max(g.bound(x), g.bound(y))
    steps += [f"reverse({a.name}), dimensions={{{axis}}}" for axis in range(len(x.dims))]
    c = inner.add(x.dtype, x.dims, g.choices.choose(steps))
    inner.bounds[c.name] = inner.bound(a)
    _grow(inner)
    found = inner.values[-1]
    one = inner.add("s32", (), "constant(1)", visible=False)
    j = inner.add("s32", (), f"add({i.name}, {one.name})", visible=False)
    state = f"(s32[], s32[], {x.type}, {x.type}, {found.type})"
    _raw(inner, f"{state} tuple({j.name}, {n.name}, {c.name}, {b.name}, {found.name})")
    mark = len(g.bodies)
    g.bodies[f"more{mark}"] = (
        f"more{mark} {{ p = {state} parameter(0) i = s32[] get-tuple-element(p), index=0 "
        "n = s32[] get-tuple-element(p), index=1 ROOT r = pred[] compare(i, n), direction=LT }"
    )
    _define(g, f"turn{mark}", state, inner)
    names = ", ".join(value.name for value in (least, turns, x, y, _zeros(g, found)))
    start = _raw(g, f"{state} tuple({names})")
    done = _raw(g, f"{state} while({start}), condition=more{mark}, body=turn{mark}")
    z = g.add(x.dtype, x.dims, f"get-tuple-element({done}), index=2")
    g.bounds[z.name] = inner.bound(a)
    w = g.add(found.dtype, found.dims, f"get-tuple-element({done}), index=4")
    g.bounds[w.name] = inner.bound(found)


def _define(g: WholeGraph, name: str, state: str, inner: WholeGraph) -> None:
    """Writes a called computation; its last line is the root."""
    inner.lines[0] = f"v0 = {state} parameter(0)"
    inner.lines[-1] = f"ROOT {inner.lines[-1]}"
    g.bodies[name] = "\n".join([f"{name} {{", *(f"  {line}" for line in inner.lines), "}"])


def conditional(g: WholeGraph) -> None:
    """By an index, which may lie outside."""
    x = g.pick("f32", "s32")
    y = g.like(x)
    index = scalar_index(g)
    state = f"({x.type}, {index.type})"
    names, operands, bound = [], [], 0
    for _ in range(g.choices.integer(1, 3)):
        taken = g.choices.choose((x, y))
        inner = _inner(g, taken, index)
        _grow(inner)
        root = [value for value in inner.values if value.type == x.type][-1]
        inner.add(x.dtype, x.dims, f"maximum({root.name}, {root.name})", visible=False)
        bound = max(bound, inner.bound(root))
        names.append(f"branch{len(g.bodies)}")
        _define(g, names[-1], state, inner)
        operands.append(_raw(g, f"{state} tuple({taken.name}, {index.name})"))
    attributes = f"branch_computations={{{', '.join(names)}}}"
    z = g.add(x.dtype, x.dims, f"conditional({', '.join([index.name, *operands])}), {attributes}")
    g.bounds[z.name] = bound


WINDOWED = (scatter, scatter, sort, sort, reduce_window, reduce_window, convolution)
INSIDE = (*MAKERS, *WINDOWED, conditional, while_)
MIXED = (*MAKERS, *WINDOWED, while_, while_, conditional)


def mixed_modules() -> st.SearchStrategy[str]:
    """HLO text of a module with up to three parameters and 3 to 14 ops."""
    return whole_number_modules(MIXED)
