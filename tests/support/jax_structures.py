"""Steps of random JAX programs: run-time indices, sorts, loops, branches, gradients and vectorised functions."""

from __future__ import annotations

from math import prod

from jax_makers import (
    argmax,
    binary,
    broadcast,
    clip,
    compare,
    concatenate,
    convert,
    convolution,
    cumulative,
    dot,
    iota,
    pad,
    reduce,
    roll,
    select,
    slice_,
    tile,
    unary,
    view,
    window,
)
from jax_sketch import SUM_LIMIT, Sketch, Value


def extend(g: Sketch, makers) -> None:
    """One more step, unless there are no values for it; nobody uses what is too large."""
    before = len(g.values)
    try:
        g.random.choice(makers)(g)
    except LookupError:
        return
    g.values[before:] = [v for v in g.values[before:] if v.size <= 2 * g.largest and len(v.dims) <= 6]


# ---- run-time indices ----------------------------------------------------------------------------------------


def _indices(g: Sketch, count: int, size: int) -> Value:
    """``count`` numbers below ``size``; a few outside where that is allowed."""
    found = g.make("s32", (count,))
    return g.like(found, f"(jnp.abs({found.name}) * 7 + 1) % {size}", size)


def gather(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    axis = g.random.randrange(len(x.dims))
    count = g.random.choice((1, 2, 5, 33, 128, 130, 257, 600))
    dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    if prod(dims) > 2 * g.largest:
        return
    i = _indices(g, count, x.dims[axis])
    g.let(f"jnp.take({x.name}, {i.name}, axis={axis}, mode='clip')", x.dtype, dims, x.most, x.exact)


def take_along(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    axis = g.random.randrange(len(x.dims))
    dims = (*x.dims[:axis], g.random.choice((1, 2, 7, 64)), *x.dims[axis + 1 :])
    if prod(dims) > g.largest:
        return
    i = g.make("s32", dims)
    index = f"jnp.abs({i.name}) % {x.dims[axis]}"
    g.let(f"jnp.take_along_axis({x.name}, {index}, {axis})", x.dtype, dims, x.most, x.exact)


def gather_points(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=2))
    count = g.random.choice((1, 3, 64, 129, 300))
    i, j = _indices(g, count, x.dims[0]), _indices(g, count, x.dims[1])
    dims = (count, *x.dims[2:])
    if prod(dims) <= 2 * g.largest:
        g.let(f"{x.name}[{i.name}, {j.name}]", x.dtype, dims, x.most, x.exact)


def scatter(g: Sketch) -> None:
    x = g.viewed(g.pick("f32", "f32", "s32", "bf16", least_rank=1))
    count = g.random.choice((1, 2, 5, 33, 128, 130, 257))
    dims = (count, *x.dims[1:])
    if prod(dims) > g.largest:
        return
    i, u = _indices(g, count, x.dims[0]), g.make(x.dtype, dims)
    kind = g.random.choice(("add", "max", "min"))
    most = x.most + u.most * count if kind == "add" else max(x.most, u.most)
    exact = x.exact and u.exact
    if exact and kind == "add" and most > min(g.limit(x.dtype), SUM_LIMIT):
        kind, most = "max", max(x.most, u.most)
    if g.smooth or (not exact and most > 200 and kind == "add"):
        return
    g.like(x, f"{x.name}.at[{i.name}].{kind}({u.name})", most, exact)


def segment_sum(g: Sketch) -> None:
    x = g.viewed(g.pick("f32", "s32", least_rank=1))
    if x.most * x.dims[0] > min(g.limit(x.dtype), SUM_LIMIT) and x.exact:
        return
    segments = g.random.choice((1, 3, 17, 128, 200))
    i = _indices(g, x.dims[0], segments)
    dims = (segments, *x.dims[1:])
    text = f"jax.ops.segment_sum({x.name}, {i.name}, num_segments={segments})"
    if not x.exact:
        g.let(f"jnp.tanh({text})", x.dtype, dims, 1, False)
    elif prod(dims) <= g.largest:
        g.let(text, x.dtype, dims, x.most * x.dims[0], True)


def dynamic_slice(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    sizes = tuple(g.random.randint(1, size) if g.chance(0.6) else size for size in x.dims)
    starts = ", ".join(_scalar(g) for _ in x.dims)
    text = f"lax.dynamic_slice({x.name}, ({starts},), {sizes})"
    g.let(text, x.dtype, sizes, x.most, x.exact)


def dynamic_update_slice(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    sizes = tuple(g.random.randint(1, size) if g.chance(0.6) else size for size in x.dims)
    u = g.make(x.dtype, sizes)
    starts = ", ".join(_scalar(g) for _ in x.dims)
    text = f"lax.dynamic_update_slice({x.name}, {u.name}, ({starts},))"
    g.like(x, text, max(x.most, u.most), x.exact and u.exact)


def _scalar(g: Sketch) -> str:
    """Text of an index: known, or found at run time."""
    known = [v for v in g.values if v.dtype == "s32"]
    if not known or g.chance(0.3):
        return f"jnp.int32({g.random.choice((0, 1, 2, 5, 127))})"
    value = g.random.choice(known)
    return f"{value.name}.reshape(-1)[{g.random.randrange(value.size)}]" if value.dims else value.name


def sort(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    axis = g.random.randrange(len(x.dims))
    if g.smooth or x.dtype == "pred" or x.dims[axis] > 3000:
        return
    kind = g.random.choice(("sort", "argsort", "top", "several"))
    if kind == "sort" or not x.exact:
        g.like(x, f"jnp.sort({x.name}, {axis}, descending={g.chance(0.3)})")
    elif kind == "argsort":
        g.let(f"jnp.argsort({x.name}, {axis}, stable=True).astype(T['s32'])", "s32", x.dims, x.dims[axis], True)
    elif kind == "several":
        y = g.make(g.random.choice(("f32", "s32")), x.dims)
        text = f"lax.sort(({x.name}, {y.name}), dimension={axis}, num_keys=1, is_stable=True)[1]"
        g.like(y, text)
    else:
        count = g.random.randint(1, min(x.dims[-1], 20))
        dims = (*x.dims[:-1], count)
        which = g.random.randrange(2)
        text = f"lax.top_k({x.name}, {count})[{which}]"
        g.let(text, ("s32" if which else x.dtype), dims, x.dims[-1] if which else x.most, True)


# ---- loops, branches, functions of functions -----------------------------------------------------------------


def _kept(g: Sketch, value: Value, wanted: Value) -> str:
    """Text of ``value`` in the type, shape and bound of ``wanted``."""
    text = value.name
    if value.dims != wanted.dims:
        text = f"jnp.broadcast_to({text}.reshape(-1)[0], {wanted.dims})"
    if wanted.dtype == "pred":
        return text if value.dtype == "pred" else f"{text} != 0"
    if value.dtype == "pred":
        return f"{text}.astype(T['{wanted.dtype}'])"
    if not value.exact and wanted.exact:
        return wanted.name
    low = 0 if wanted.dtype.startswith("u") else -int(wanted.most)
    if value.exact and value.most > wanted.most:
        text = f"jnp.clip({text}, {low}, {int(wanted.most)})"
    elif not value.exact and value.most > wanted.most:
        text = f"jnp.tanh({text})"
    if value.exact and low == 0 and not value.dtype.startswith("u"):
        text = f"jnp.abs({text})"
    return text if value.dtype == wanted.dtype else f"{text}.astype(T['{wanted.dtype}'])"


def _grown(g: Sketch, inner: Sketch, steps: int, makers) -> Value:
    for _ in range(steps):
        extend(inner, makers)
    return inner.values[-1]


def _state(g: Sketch) -> list[Value]:
    """One to three values that a loop carries, each known inside as itself."""
    state = [g.pick() for _ in range(g.random.randint(1, 3))]
    return [g.bounded(v, 3) if v.exact and v.dtype != "pred" and v.most > 1000 else v for v in state]


def _around(g: Sketch, wanted: int = 2) -> list[Value]:
    """Values of outside that a function inside may use."""
    return g.random.sample(g.values, min(wanted, len(g.values)))


def _renamed(g: Sketch, values: list[Value]) -> list[Value]:
    names = [g.name("s") for _ in values]
    return [Value(name, v.dtype, v.dims, v.most, v.exact) for name, v in zip(names, values, strict=True)]


def loop(g: Sketch) -> None:
    """fori_loop, or a while loop with a count of the run."""
    state = _state(g)
    inside = _renamed(g, state)
    counter = Value(g.name("i"), "s32", (), 10, True)
    inner = g.inner(*_around(g), *inside, counter, budget=g.largest // 2)
    for _ in range(g.random.randint(1, 5)):
        extend(inner, INSIDE)
    made = [g.random.choice(inner.values[-4:]) for _ in inside]
    kept = [_kept(g, value, old) for value, old in zip(made, inside, strict=True)]
    names = ", ".join(v.name for v in inside)
    begin = f"({', '.join(v.name for v in state)},)"
    trips = g.random.choice((1, 2, 3, 5))
    if g.chance(0.6):
        inner.lines.insert(0, f"{names}, = s")
        name = g.define(inner, f"{counter.name}, s", f"({', '.join(kept)},)")
        text = f"lax.fori_loop(0, {trips}, {name}, {begin})"
        results = [f"[{n}]" for n in range(len(state))]
    else:
        inner.lines.insert(0, f"{counter.name}, {names}, = s")
        name = g.define(inner, "s", f"({counter.name} + 1, {', '.join(kept)},)")
        limit = f"jnp.clip({_scalar(g)}, 0, {trips})"
        text = f"lax.while_loop(lambda s: s[0] < {limit}, {name}, (jnp.int32(0), {begin[1:]})"
        results = [f"[{n + 1}]" for n in range(len(state))]
    done = g.name("t")
    g.lines.append(f"{done} = {text}")
    for value, result in zip(state, results, strict=True):
        g.like(value, f"{done}{result}", max(value.most, 1))


def scan(g: Sketch) -> None:
    """Over rows of up to two arrays; what each step makes is stacked."""
    rows = [v for v in g.values if v.dims and 1 <= v.dims[0] <= 9]
    if not rows:
        return loop(g)
    x = g.random.choice(rows)
    state = g.bounded(g.pick(), 3)
    inside, row = _renamed(g, [state, Value("", x.dtype, x.dims[1:], x.most, x.exact)])
    inner = g.inner(*_around(g), inside, row, budget=g.largest // 4)
    for _ in range(g.random.randint(1, 5)):
        extend(inner, INSIDE)
    made, out = g.random.choice(inner.values[-3:]), inner.values[-1]
    name = g.define(inner, f"{inside.name}, {row.name}", f"{_kept(g, made, inside)}, {out.name}")
    done = g.name("t")
    g.lines.append(f"{done} = lax.scan({name}, {state.name}, {x.name}, reverse={g.chance(0.3)})")
    g.like(state, f"{done}[0]", max(state.most, 1))
    g.let(f"{done}[1]", out.dtype, (x.dims[0], *out.dims), out.most, out.exact)
    return None


def branch(g: Sketch) -> None:
    wanted = g.pick()
    around = [wanted, *_around(g)]
    names = []
    for _ in range(g.random.randint(2, 3)):
        inner = g.inner(*around, budget=g.largest // 2)
        made = _grown(g, inner, g.random.randint(0, 3), INSIDE)
        names.append(g.define(inner, "", _kept(g, made, wanted)))
    text = f"lax.switch({_scalar(g)}, [{', '.join(names)}])"
    g.like(wanted, text, max(wanted.most, 1))


def vectorised(g: Sketch) -> None:
    x = g.pick(least_rank=1)
    axis = g.random.randrange(len(x.dims))
    row = _renamed(g, [Value("", x.dtype, x.dims[:axis] + x.dims[axis + 1 :], x.most, x.exact)])[0]
    inner = g.inner(*_around(g, 1), row, budget=max(g.largest // x.dims[axis], 1))
    for _ in range(g.random.randint(1, 4)):
        extend(inner, INSIDE_VMAP)
    out = inner.values[-1]
    at = g.random.randint(0, len(out.dims))
    name = g.define(inner, row.name, out.name)
    dims = (*out.dims[:at], x.dims[axis], *out.dims[at:])
    g.let(f"jax.vmap({name}, in_axes={axis}, out_axes={at})({x.name})", out.dtype, dims, out.most, out.exact)


def gradient(g: Sketch) -> None:
    """Of the mean of something smooth, with respect to one value."""
    x = g.floats()
    if x.exact:
        return binary(g)
    (p,) = _renamed(g, [x])
    inner = g.inner(*[v for v in _around(g, 2)], p, smooth=True)
    for _ in range(g.random.randint(1, 5)):
        extend(inner, DIFFERENTIABLE)
    made = [v for v in inner.values if v.floating and not v.exact][-2:]
    names = " + ".join(f"jnp.mean(jnp.sin({v.name}).astype(T['f32']))" for v in made)
    name = g.define(inner, p.name, names)
    g.like(x, f"{float(x.size)} * jax.grad({name})({x.name})", 30)
    return None


ELEMENTWISE = (unary, binary, binary, compare, select, clip, convert)
MOVEMENT = (view, slice_, concatenate, pad, broadcast, roll, tile, iota)
INDEXED = (gather, take_along, gather_points, scatter, segment_sum, dynamic_slice, dynamic_update_slice)
FOLDS = (reduce, reduce, reduce, cumulative, argmax, window)
INSIDE_VMAP = (*ELEMENTWISE, *MOVEMENT, *FOLDS, dot, dot, gather, sort)
INSIDE = (*ELEMENTWISE, *ELEMENTWISE, *MOVEMENT, *FOLDS, *INDEXED, dot, dot, convolution, sort)
DIFFERENTIABLE = (unary, unary, binary, select, view, slice_, pad, concatenate, broadcast, reduce, dot, dot, dot)
DIFFERENTIABLE += (convolution, cumulative, window, gather, take_along)
ALL = (*ELEMENTWISE, *ELEMENTWISE, *MOVEMENT, *MOVEMENT, *FOLDS, *FOLDS, *INDEXED, *INDEXED, dot, dot, dot, dot)
ALL += (convolution, convolution, window, sort, sort, loop, scan, branch, vectorised, gradient, gradient)
FAMILIES = {
    "convolution": (convolution,),
    "reduce": (reduce, reduce, reduce, argmax, cumulative),
    "gather": (gather, take_along, gather_points, dynamic_slice),
    "scatter": (scatter, segment_sum, dynamic_update_slice),
    "window": (window,),
    "map": (unary, binary, select, compare, clip, convert, broadcast),
    "movement": (view, slice_, concatenate, pad, broadcast, roll, tile),
    "sort": (sort,),
    "dot": (dot,),
    "control": (loop, scan, branch, vectorised),
    "gradient": (gradient,),
}
CONSUMERS = (unary, binary, reduce, view, select, concatenate)
