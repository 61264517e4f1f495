"""Readers of random views: maps, folds, norms, scans and windows, of operands that ``view_operands`` draws."""

from __future__ import annotations

from math import prod

from jax_sketch import ALL_LIMITS, SUM_LIMIT, Value
from view_operands import Drawn, operand

FLOATS = ("f32", "f32", "f32", "bf16", "f16")
ORDERED = (*FLOATS, "s32", "s32", "s8", "u8", "s16")
ANY = (*ORDERED, "pred")
FAR = {"s8": 100, "u8": 200, "bf16": 200, "f16": 1000, "pred": 1, "s16": 1000, "u16": 1000}
FAR |= {"f8e4m3fn": 15, "f8e5m2": 7, "s64": 2**40, "u64": 2**40}
"""Whole numbers up to which readers that add nothing are given; 5,000 else."""


def far(dtype: str) -> int:
    return FAR.get(dtype, 5000)


def rank(g: Drawn, least: int = 1) -> int:
    return g.random.choice([n for n in (1, 2, 2, 2, 2, 3, 3, 4) if n >= least])


def map_(g: Drawn) -> None:
    dtype = g.type(ANY)
    dims = g.shape(rank(g))
    most = min(far(dtype), 1000)
    x = operand(g, dtype, dims, most)
    for _ in range(g.random.choice((0, 1, 1, 2))):
        kept = tuple(1 if g.chance(0.2) else size for size in dims)
        y = operand(g, dtype, kept if g.chance(0.4) else dims, 3)
        kind = g.random.choice(("{0} + {1}", "jnp.maximum({0}, {1})", "{0} - {1}", "where"))
        if dtype == "pred":
            kind = g.random.choice(("{0} & {1}", "{0} ^ {1}", "where"))
        if kind == "where":
            p = operand(g, "pred", dims, 1)
            kind = f"jnp.where({p.name}, {{0}}, {{1}})"
        grown = x.most + y.most
        if dtype not in ("pred", "s8", "u8", "s16", "s32") and grown > g.limit(dtype):
            break
        x = g.like(x, kind.format(x.name, y.name), grown)
    if dtype != "pred" and g.chance(0.3):
        x = g.let(f"{x.name} > {operand(g, dtype, dims, 9).name}", "pred", dims, 1, True)
    elif g.chance(0.4):
        converted(g, x)
    elif g.chance(0.3):
        x = g.like(x, f"~{x.name}" if dtype == "pred" else f"-{x.name}")


def converted(g: Drawn, x: Value) -> Value:
    wanted = g.random.choice([each for each in ("f32", "bf16", "s32", "s8", "f16") if each != x.dtype])
    if x.most > g.limit(wanted) - 1 or (g.real and wanted.startswith("s")):
        return x
    return g.let(f"{x.name}.astype(T['{wanted}'])", wanted, x.dims, x.most, x.exact)


def fold(g: Drawn, x: Value, axes: tuple[int, ...]) -> None:
    count = prod(x.dims[axis] for axis in axes)
    kinds = ["max", "min"] if x.dtype != "pred" else ["any", "all"]
    if x.dtype != "pred" and x.most * count < min(g.limit(x.dtype), SUM_LIMIT):
        kinds += ["sum", "sum"]
    if count <= 8 and x.most <= 3 and x.dtype in ("f32", "s32"):
        kinds.append("prod")
    if len(axes) == 1 and x.dtype != "pred":
        kinds += ["argmax", "argmin"]
    kind = g.random.choice(kinds)
    dims = tuple(size for at, size in enumerate(x.dims) if at not in axes)
    axis = axes[0] if len(axes) == 1 else axes
    if kind.startswith("arg"):
        g.let(f"jnp.{kind}({x.name}, {axis}).astype(T['s32'])", "s32", dims, 9999, True)
        return
    text = f"{x.name}.{kind}({axis}, dtype=T['{x.dtype}'])" if kind in ("sum", "prod") else f"{x.name}.{kind}({axis})"
    y = g.let(text, x.dtype, dims, x.most * count if kind == "sum" else 3**8 if kind == "prod" else x.most, x.exact)
    if g.chance(0.3) and x.dtype != "pred":  # what comes of it returns to the rows
        wide = tuple(1 if at in axes else size for at, size in enumerate(x.dims))
        g.like(x, f"jnp.maximum({x.name} - {y.name}.reshape({wide}), -50)", 50 + x.most)


def _folded(g: Drawn, dims: tuple[int, ...]) -> Value:
    dtype = g.type(ANY)
    small = g.chance(0.5)
    x = operand(g, dtype, dims, 1 if dtype == "pred" else g.random.choice((1, 3)) if small else far(dtype))
    if g.plain:
        return x
    if g.chance(0.2) and x.dtype != "pred":
        y = operand(g, dtype, dims, 3)
        x = g.like(x, f"jnp.maximum({x.name}, {y.name})", max(x.most, y.most))
    elif g.chance(0.2) and x.dtype in ("bf16", "s8", "f16", "f8e4m3fn", "f8e5m2"):
        wide = "f32" if x.floating else "s32"
        x = g.let(f"{x.name}.astype(T['{wide}'])", wide, x.dims, x.most, x.exact)
    return x


def row_fold(g: Drawn) -> None:
    dims = g.shape(rank(g))
    first = g.random.choice((len(dims) - 1, len(dims) - 1, max(len(dims) - 2, 0)))
    fold(g, _folded(g, dims), tuple(range(first, len(dims))))


def leading_fold(g: Drawn) -> None:
    dims = g.shape(rank(g, 2))
    fold(g, _folded(g, dims), tuple(range(g.random.choice((1, 1, len(dims) - 1)))))


def middle_fold(g: Drawn) -> None:
    dims = g.shape(rank(g, 3))
    axes = sorted(g.random.sample(range(len(dims) - 1), g.random.choice((1, 1, 2))))
    fold(g, _folded(g, dims), tuple(axes))


def pair_fold(g: Drawn) -> None:
    """Two arrays folded together by a computation of their own."""
    dims = g.shape(rank(g))
    axis = g.random.randrange(len(dims))
    x, y = operand(g, "f32", dims, 5000), operand(g, "s32", dims, 5000)
    text = (
        f"lax.reduce(({x.name}, {y.name}), (jnp.float32(-9999), jnp.int32(-9999)), lambda a, b: "
        "(jnp.maximum(a[0], b[0]), jnp.where(a[0] > b[0], a[1], jnp.where(a[0] < b[0], b[1], jnp.maximum(a[1], b[1]))))"
        f", ({axis},))"
    )
    pair = g.name("t")
    g.lines.append(f"{pair} = {text}")
    for at, dtype in enumerate(("f32", "s32")):
        g.let(f"{pair}[{at}]", dtype, dims[:axis] + dims[axis + 1 :], 9999, True)


def norm(g: Drawn) -> None:
    """Softmax, log-softmax and norms along any dim."""
    dims = g.shape(rank(g))
    dtype = g.float_type(FLOATS)
    axis = g.random.randrange(len(dims))
    x = operand(g, dtype, dims)
    text = g.random.choice((
        "jax.nn.softmax({0}, {1})", "jax.nn.log_softmax({0}, {1})", "jax.nn.logsumexp({0}, {1})",
        "{0} * lax.rsqrt(jnp.mean({0} * {0}, {1}, keepdims=True) + 1e-3)",
        "({0} - {0}.mean({1}, keepdims=True)) * lax.rsqrt({0}.var({1}, keepdims=True) + 1e-2)",
    )).format(x.name, axis)  # fmt: skip
    left = dims[:axis] + dims[axis + 1 :] if "logsumexp" in text else dims
    y = g.let(text, dtype, left, 30, False)
    if left == dims and g.chance(0.4):
        kept = tuple(size if at == len(dims) - 1 else 1 for at, size in enumerate(dims))
        g.like(y, f"{y.name} * {operand(g, dtype, kept).name} + {operand(g, dtype, dims).name}", 90)


def scan_(g: Drawn) -> None:
    """Running sums, extremes and products."""
    dims = g.shape(rank(g))
    axis = g.random.randrange(len(dims))
    dtype = g.type(("f32", "f32", "s32", "bf16", "s8"))
    kind = g.random.choice(("cumsum", "cumsum", "cummax", "cummin", "cumprod"))
    most = 1 if kind in ("cumsum", "cumprod") else far(dtype)
    if kind == "cumsum" and dims[axis] * most >= min(g.limit(dtype), SUM_LIMIT):
        kind, most = "cummax", far(dtype)
    x = operand(g, dtype, dims, most)
    if kind in ("cumsum", "cumprod") and x.most > 1 and x.most * dims[axis] >= g.limit(dtype):
        kind = "cummax"
    text = f"lax.{kind}({x.name}, axis={axis}, reverse={g.chance(0.4)})"
    g.like(x, text, x.most * dims[axis] if kind == "cumsum" else x.most)


def recurrence(g: Drawn) -> None:
    """``h = a h + b`` as a tree, of which passes make a scan; or as a loop."""
    dims = g.shape(g.random.choice((1, 2, 2, 3)), g.largest / 4)
    axis = g.random.randrange(len(dims))
    a, b = operand(g, "f32", dims), operand(g, "f32", dims)
    pair = f"jnp.tanh({a.name}), {b.name}"
    if g.chance(0.6):
        text = f"lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), ({pair}), axis={axis})[1]"
        g.like(b, text, 90)
    else:
        h = operand(g, "f32", dims[1:])
        text = f"lax.scan(lambda h, x: (x[0] * h + x[1],) * 2, {h.name}, ({pair}), reverse={g.chance(0.4)})"
        g.like(b, f"{text}[1]", 90)


def window(g: Drawn) -> None:
    dims = g.shape(g.random.choice((1, 2, 3, 3, 4)), g.largest / 2)
    dtype = g.type(("f32", "f32", "bf16", "s32"))
    sizes = tuple(min(size, g.random.choice((1, 1, 2, 3, 5))) for size in dims)
    steps = tuple(g.random.choice((1, 1, 2, 3)) for _ in dims)
    spread = tuple(g.random.choice((1, 1, 1, 2)) for _ in dims)
    spread = tuple(1 if (n - 1) * d >= size else d for n, d, size in zip(sizes, spread, dims, strict=True))
    add = g.chance(0.4)
    x = operand(g, dtype, dims, 3 if add else far(dtype))
    if add and x.most * prod(sizes) >= g.limit(dtype):
        add = False
    pads = [(g.random.randint(0, n // 2), g.random.randint(0, n // 2)) for n in sizes]
    initial, name = (
        ("0", "lax.add")
        if add
        else ("-2**31" if dtype in ALL_LIMITS else "-64" if dtype.startswith("f8") else "-jnp.inf", "lax.max")
    )
    text = (
        f"lax.reduce_window({x.name}, np.asarray({initial}).astype({x.name}.dtype), {name}, {sizes}, {steps}, {pads}, "
        f"window_dilation={spread})"
    )
    ends = tuple(
        (size + sum(pad) - (n - 1) * d - 1) // step + 1
        for size, n, d, step, pad in zip(dims, sizes, spread, steps, pads, strict=True)
    )
    g.let(text, dtype, ends, x.most * (prod(sizes) if add else 1), x.exact)


def pooled_gradient(g: Drawn) -> None:
    """select-and-scatter: the gradient of pooling by maximum, or its counterpart of sums."""
    dims = (g.random.choice((1, 2, 3)), *g.shape(2, g.largest / 8), g.random.choice((1, 3, 8, 17)))
    n = g.random.choice((2, 2, 3))
    dims = (dims[0], max(dims[1], n), max(dims[2], n), dims[3])
    step = g.random.choice((1, 2, 3))
    kind = g.random.choice(("max", "max", "add"))
    x = operand(g, "f32", dims, 5000)
    ends = (dims[0], (dims[1] - n) // step + 1, (dims[2] - n) // step + 1, dims[3])
    c = operand(g, "f32", ends, 3)
    start = "-jnp.inf" if kind == "max" else "0.0"
    pool = f"lambda x: lax.reduce_window(x, {start}, lax.{kind}, (1, {n}, {n}, 1), (1, {step}, {step}, 1), 'VALID')"
    g.let(f"jax.vjp({pool}, {x.name})[1]({c.name})[0]", "f32", dims, 99, x.exact and c.exact)
