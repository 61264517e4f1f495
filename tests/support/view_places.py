"""Readers of random views: gathers, scatters, sorts, movement, state of loops, branches, random bits, solvers."""

from __future__ import annotations

from math import prod

from jax_sketch import SUM_LIMIT, Value
from view_folds import ANY, ORDERED, converted, far, fold, rank
from view_operands import Drawn, operand


def _indices(g: Drawn, dims: tuple[int, ...], size: int) -> Value:
    i = operand(g, "s32", dims, 5000)
    return (
        g.like(i, f"jnp.abs({i.name}) % {size}", size)
        if g.chance(0.8)
        else g.like(i, f"jnp.clip({i.name}, 0, {size - 1})")
    )


def gather(g: Drawn) -> None:
    dims = g.shape(rank(g))
    dtype = g.type(ANY)
    x, axis = operand(g, dtype, dims, far(dtype)), g.random.randrange(len(dims))
    kind = g.random.choice(("take", "take", "along", "points"))
    if kind == "points" and len(dims) > 1:
        count = g.size(2 * g.largest / prod(dims[2:]))
        i, j = _indices(g, (count,), dims[0]), _indices(g, (count,), dims[1])
        g.let(f"{x.name}[{i.name}, {j.name}]", dtype, (count, *dims[2:]), x.most, x.exact)
    elif kind == "along":
        listed = (*dims[:axis], g.random.choice((1, 2, 7, 33)), *dims[axis + 1 :])
        i = _indices(g, listed, dims[axis])
        g.let(f"jnp.take_along_axis({x.name}, {i.name}, {axis})", dtype, listed, x.most, x.exact)
    else:
        count = g.size(2 * g.largest * dims[axis] / prod(dims))
        i = _indices(g, (count,), dims[axis])
        text = f"jnp.take({x.name}, {i.name}, axis={axis}, mode='clip')"
        g.let(text, dtype, (*dims[:axis], count, *dims[axis + 1 :]), x.most, x.exact)


def scatter(g: Drawn) -> None:
    dims = g.shape(rank(g))
    dtype = g.type(ORDERED)
    axis = g.random.randrange(len(dims))
    kind = g.random.choice(("add", "add", "max", "min", "set"))
    x = operand(g, dtype, dims, 3)
    count = g.size(g.largest * dims[axis] / prod(dims))
    if kind == "set":
        count = min(count, dims[axis])
        shift = operand(g, "s32", (1,), 5000)
        i = g.let(f"(jnp.arange({count}) + jnp.abs({shift.name})) % {dims[axis]}", "s32", (count,), dims[axis], True)
    else:
        i = _indices(g, (count,), dims[axis])
    u = operand(g, dtype, (*dims[:axis], count, *dims[axis + 1 :]), 3)
    if kind == "add" and count * u.most + x.most >= min(g.limit(dtype), SUM_LIMIT):
        kind = "max"
    at = ", ".join([*[":"] * axis, i.name])
    g.like(x, f"{x.name}.at[{at}].{kind}({u.name})", count * u.most + x.most)


def histogram(g: Drawn) -> None:
    """Counts, and sums by number."""
    n, segments = g.size(g.largest), g.random.choice((1, 3, 17, 100, 128, 200))
    i = _indices(g, (n,), segments)
    width = g.size(g.largest / n)
    x = operand(g, "f32", (n, width), 3)
    if g.chance(0.4):
        g.let(f"jnp.zeros({segments}, T['s32']).at[{i.name}].add(1)", "s32", (segments,), n, True)
    else:
        text = f"jax.ops.segment_sum({x.name}, {i.name}, num_segments={segments})"
        g.let(text, "f32", (segments, width), n * 3, x.exact)


def dynamic(g: Drawn) -> None:
    dims = g.shape(rank(g))
    dtype = g.type(ANY)
    x = operand(g, dtype, dims, far(dtype))
    sizes = tuple(g.random.randint(1, size) if g.chance(0.6) else size for size in dims)
    starts = []
    for size in dims:
        i = operand(g, "s32", g.random.choice(((), (1,), (3,))), 5000)
        number = f"{i.name}[{g.random.randrange(i.size)}]" if i.dims else i.name
        starts.append(f"jnp.abs({number}) % {size}" if g.chance(0.7) else f"jnp.int32({g.random.randrange(size)})")
    place = f"({', '.join(starts)},)"
    if g.chance(0.5):
        g.let(f"lax.dynamic_slice({x.name}, {place}, {sizes})", dtype, sizes, x.most, x.exact)
    else:
        u = operand(g, dtype, sizes, far(dtype))
        g.like(x, f"lax.dynamic_update_slice({x.name}, {u.name}, {place})", max(x.most, u.most))


def sort(g: Drawn) -> None:
    dims = g.shape(rank(g), min(g.largest, 20_000))
    dtype = g.type(ORDERED)
    axis = g.random.randrange(len(dims))
    x = operand(g, dtype, dims, far(dtype))
    kind = g.random.choice(("sort", "argsort", "top", "top", "several"))
    if kind == "sort":
        g.like(x, f"jnp.sort({x.name}, {axis}, descending={g.chance(0.3)})")
    elif kind == "argsort":
        g.let(f"jnp.argsort({x.name}, {axis}, stable=True).astype(T['s32'])", "s32", dims, 9999, True)
    elif kind == "several":
        y = operand(g, g.type(("f32", "s32", "bf16")), dims, 200)
        text = (
            f"lax.sort(({x.name}, {y.name}), dimension={axis}, num_keys={g.random.choice((1, 1, 2))}, is_stable=True)"
        )
        g.like(x, f"{text}[0]"), g.like(y, f"{text}[1]")
    else:
        count = g.random.randint(1, min(dims[-1], 40))
        for at in g.random.sample((0, 1), g.random.choice((1, 2))):
            g.let(f"lax.top_k({x.name}, {count})[{at}]", "s32" if at else dtype, (*dims[:-1], count), 9999, True)


# ---- movement, state, others --------------------------------------------------------------------------------


def concatenate(g: Drawn) -> None:
    dims = g.shape(rank(g), g.largest / 2)
    dtype = g.type(ANY)
    axis = g.random.randrange(len(dims))
    parts = []
    for _ in range(g.random.choice((2, 2, 3, 5))):
        size = g.size(max(dims[axis], 3))
        parts.append(operand(g, dtype, (*dims[:axis], size, *dims[axis + 1 :]), far(dtype)))
    whole = (*dims[:axis], sum(x.dims[axis] for x in parts), *dims[axis + 1 :])
    g.let(f"jnp.concatenate([{', '.join(x.name for x in parts)}], {axis})", dtype, whole, 5000, True)


def pad(g: Drawn) -> None:
    dims = g.shape(rank(g))
    dtype = g.type(ANY)
    x, value = operand(g, dtype, dims, far(dtype)), operand(g, dtype, (1,), 3)
    amounts, ends = [], []
    for size in dims:
        low, high, inside = (g.random.choice((0, 0, 0, 1, 3, -1)) for _ in range(3))
        inside = max(inside, 0)
        if size + (size - 1) * inside + low + high < 1:
            low = high = 0
        amounts.append((low, high, inside)), ends.append(size + (size - 1) * inside + low + high)
    g.let(f"lax.pad({x.name}, {value.name}[0], {amounts})", dtype, tuple(ends), x.most, x.exact)


def relayout(g: Drawn) -> None:
    """Nothing but views: what is read is the result."""
    dtype = g.type(ANY)
    x = operand(g, dtype, g.shape(rank(g)), far(dtype), g.random.choice((1, 2, 2, 3)))
    if g.chance(0.3):
        converted(g, x)


def loop(g: Drawn) -> None:
    """State that begins as views and is made of views; rows of a scan."""
    dims = g.shape(g.random.choice((1, 2, 2, 3)), g.largest / 4)
    dtype = g.type(("f32", "f32", "s32", "bf16"))
    h, steps = operand(g, dtype, dims, 3), g.random.choice((1, 2, 3, 5))
    step = g.random.choice(
        ("jnp.maximum({0}, {1})", "jnp.where(({0} > {1}), {0}, -{1})", "jnp.flip(jnp.minimum({0}, {1}), 0)")
    )
    if g.chance(0.3) and len(dims) > 1:
        step += ".reshape(({1}.shape[1], {1}.shape[0], *{1}.shape[2:])).swapaxes(0, 1)"
    if g.chance(0.5):
        rows = operand(g, dtype, (steps, *dims), far(dtype))
        body = f"lambda h, x: ({step.format('h', 'x')}, jnp.minimum(h, 2))"
        text = f"lax.scan({body}, {h.name}, {rows.name}, reverse={g.chance(0.4)})"
        g.like(h, f"{text}[0]", far(dtype))
        g.like(rows, f"{text}[1]", far(dtype))
    else:
        other = operand(g, dtype, dims, far(dtype))
        text = (
            f"lax.fori_loop(0, {steps}, lambda i, s: ({step.format('s[0]', 's[1]')}, s[0]), ({h.name}, {other.name}))"
        )
        for at in g.random.sample((0, 1), g.random.choice((1, 2))):
            g.like(h, f"{text}[{at}]", far(dtype))


def branch(g: Drawn) -> None:
    dims = g.shape(rank(g))
    dtype = g.type(("f32", "s32", "bf16"))
    x, y, i = operand(g, dtype, dims, 3), operand(g, dtype, dims, 3), operand(g, "s32", (2,), 3)
    axis = g.random.randrange(len(dims))
    bodies = (f"jnp.flip(x, {axis})", "jnp.maximum(x, y)", f"x + y.max({axis}, keepdims=True)")
    branches = ", ".join(f"lambda x, y: {body}" for body in bodies)
    g.like(x, f"lax.switch(jnp.abs({i.name}[1]) % 3, [{branches}], {x.name}, {y.name})", 6)


def random_bits(g: Drawn) -> None:
    """Of a key that is a view, and read as one."""
    key = operand(g, "u32", (2,), 1000)
    dims = g.shape(rank(g), min(g.largest, 20_000))
    kind = g.random.choice(("jax.random.bits({}, {})", "jax.random.randint({}, {}, -9, 9).astype(T['s32'])"))
    x = g.let(
        kind.format(f"jax.random.wrap_key_data({key.name})", dims), "u32" if "bits" in kind else "s32", dims, 9, True
    )
    fold(g, g.like(x, f"jnp.flip({x.name}, 0)"), (0,)) if g.chance(0.5) and x.dtype == "s32" else None


def solve(g: Drawn) -> None:
    """Triangular systems and Fourier transforms."""
    n, m = g.random.choice((1, 2, 3, 5, 16, 33)), g.random.choice((1, 2, 7, 32))
    batch = g.random.choice(((), (2,), (9,), (130,)))
    if g.chance(0.5):
        a, b = operand(g, "f32", (*batch, n, n)), operand(g, "f32", (*batch, n, m))
        matrix = f"jnp.tanh({a.name}) * 0.1 + jnp.eye({n})"
        text = f"lax.linalg.triangular_solve({matrix}, {b.name}, left_side=True, lower={g.chance(0.5)})"
        g.like(b, text, 9)
    else:
        x = operand(g, "f32", (*batch, m, n))
        g.like(
            x, f"jnp.fft.fft({x.name}, axis={g.random.choice((-1, -2))}).{g.random.choice(('real', 'imag'))}", 99, False
        )
