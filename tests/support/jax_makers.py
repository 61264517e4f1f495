"""Steps of random JAX programs: elementwise ops, movement, reductions, contractions, convolutions and windows."""

from __future__ import annotations

from math import prod

from jax_sketch import INTEGER_LIMITS, SUM_LIMIT, Sketch, Value

INTEGERS = tuple(INTEGER_LIMITS)


def unary(g: Sketch) -> None:
    x = g.pick()
    if x.dtype == "pred":
        g.like(x, f"~{x.name}")
    elif x.exact and x.floating:
        one = g.random.choice(("-{}", "jnp.abs({})", "jnp.sign({})", "jnp.floor({})", "{} * {}", "jax.nn.relu({})"))
        most = max(x.most, 1) if one != "{} * {}" else x.most**2
        if most <= g.limit(x.dtype):
            g.like(x, one.format(x.name, x.name), most)
    elif x.exact:
        g.like(x, g.random.choice(("-{}", "jnp.abs({})", "jnp.sign({})", "~{}")).format(x.name), g.limit(x.dtype))
    else:
        real_unary(g, x)


SMOOTH = ("jnp.tanh({})", "jnp.sin({})", "jnp.cos({})", "jax.nn.sigmoid({})", "jnp.exp(-{} * {})", "jax.lax.erf({})")
SMOOTH += ("jnp.log1p({} * {})", "jnp.sqrt({} * {} + 1)", "lax.rsqrt({} * {} + 1)", "jax.nn.softplus({})", "-{}")
SMOOTH += ("jax.nn.gelu({})", "jax.nn.silu({})", "1 / ({} * {} + 2)", "jnp.arctan({})", "jnp.expm1(-{} * {})")
KINKED = ("jnp.abs({})", "jax.nn.relu({})", "jnp.maximum({}, 0.25)", "jnp.exp(-jnp.abs({}))", "jnp.cbrt({} * {} + 1)")


def real_unary(g: Sketch, x: Value) -> Value:
    function = g.random.choice(SMOOTH if g.smooth else SMOOTH + KINKED)
    grows = function.startswith(("-", "jnp.sqrt", "jnp.abs", "jnp.log1p", "jnp.cbrt", "jnp.max")) or "nn" in function
    x = g.bounded(x, 50.0)
    return g.like(x, function.format(x.name, x.name), max(x.most, 1) if grows else 1.5)


def binary(g: Sketch) -> None:
    x = g.pick()
    y = g.make(x.dtype, x.dims)
    pair = (x, y) if g.chance(0.5) else (y, x)
    a, b = (value.name for value in pair)
    if x.dtype == "pred":
        g.like(x, g.random.choice(("{} & {}", "{} | {}", "{} ^ {}")).format(a, b))
        return
    exact = x.exact and y.exact
    kinds = ["{} + {}", "{} - {}", "{} * {}"]
    if exact or not g.smooth:
        kinds += ["jnp.maximum({}, {})", "jnp.minimum({}, {})"]
    if exact and not x.floating:
        kinds += ["{} & {}", "{} | {}", "{} ^ {}", "{} << ({} & 7)", "{} >> ({} & 7)"]
        kinds += ["lax.div({0}, {1} | 1)", "lax.rem({0}, {1} | 1)"]
    if not exact:
        kinds += ["{} / ({} * {1} + 1)".replace("{} *", "{1} *").replace("{} /", "{0} /")]
    kind = g.random.choice(kinds)
    most = max(x.most, y.most)
    if "*" in kind and "/" not in kind:
        most = x.most * y.most
    elif "+" in kind or "-" in kind:
        most = x.most + y.most
    if exact and x.floating and most > g.limit(x.dtype):
        kind, most = "jnp.minimum({}, {})", max(x.most, y.most)
    if exact and not x.floating:
        most = g.limit(x.dtype)
    if not exact and most > 200:
        kind, most = "jnp.tanh({} - {})", 1
    g.like(x, kind.format(a, b), most, exact)


def compare(g: Sketch) -> None:
    x = g.pick(exact=True)
    y = g.make(x.dtype, x.dims)
    if y.exact:
        sign = g.random.choice(("==", "!=", "<", "<=", ">", ">="))
        g.let(f"{x.name} {sign} {y.name}", "pred", x.dims, 1, True)


def select(g: Sketch) -> None:
    x = g.pick()
    y, p = g.make(x.dtype, x.dims), g.make("pred", x.dims)
    g.like(x, f"jnp.where({p.name}, {x.name}, {y.name})", max(x.most, y.most), x.exact and y.exact)


def clip(g: Sketch) -> None:
    x = g.pick("f32", "bf16", "s32", exact=True)
    low, high = sorted(g.random.sample(range(-9, 10), 2))
    g.like(x, f"jnp.clip({x.name}, {low}, {high})", 9)


def convert(g: Sketch) -> None:
    x = g.pick()
    wanted = g.random.choice(("f32", "f32", "bf16", "f16", "s32", "s32", *INTEGERS))
    if wanted == x.dtype or g.smooth or (not x.exact and wanted in INTEGERS):
        return
    if x.exact and wanted not in ("s32", "u32") and x.most > g.limit(wanted):
        x = g.bounded(x, min(g.limit(wanted) - 1, g.limit(x.dtype) - 1))
    if x.exact and not x.floating and wanted in ("f32", "bf16", "f16"):
        x = g.bounded(x, g.limit(wanted) - 1)
    if wanted.startswith("u") and x.dtype != "pred":
        x = g.like(x, f"jnp.abs({x.name})", g.limit(wanted)) if x.floating else x
    most = g.limit(wanted) if wanted in INTEGERS and not x.floating and x.dtype != "pred" else x.most
    g.let(f"{x.name}.astype(T['{wanted}'])", wanted, x.dims, most, x.exact)


# ---- movement ------------------------------------------------------------------------------------------------


def view(g: Sketch) -> None:
    g.viewed(g.pick(least_rank=1))


def slice_(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    starts, ends, steps = [], [], []
    for size in x.dims:
        step = g.random.choice((1, 1, 1, 2, 3))
        start = g.random.randrange(size) if g.chance(0.4) else 0
        end = g.random.randint(start + 1, size) if g.chance(0.4) else size
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    dims = tuple(-(-(end - start) // step) for start, end, step in zip(starts, ends, steps, strict=True))
    g.let(f"lax.slice({x.name}, {starts}, {ends}, {steps})", x.dtype, dims, x.most, x.exact)


def concatenate(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    axis = g.random.randrange(len(x.dims))
    parts = [x]
    for _ in range(g.random.randint(1, 3)):
        dims = list(x.dims)
        if g.chance(0.4):
            dims[axis] = g.random.choice((1, 2, 5, 127))
        if sum(part.size for part in parts) + prod(dims) <= 2 * g.largest:
            parts.append(g.make(x.dtype, tuple(dims)))
    g.random.shuffle(parts)
    size = sum(part.dims[axis] for part in parts)
    dims = (*x.dims[:axis], size, *x.dims[axis + 1 :])
    exact, most = all(part.exact for part in parts), max(part.most for part in parts)
    g.let(f"jnp.concatenate([{', '.join(part.name for part in parts)}], {axis})", x.dtype, dims, most, exact)


def pad(g: Sketch) -> None:
    x = g.viewed(g.pick("f32", "bf16", "s32", "s8", least_rank=1))
    amounts = []
    for size in x.dims:
        low = g.random.choice((0, 0, 1, 2, 5)) if x.size < g.largest else 0
        high = g.random.choice((0, 0, 1, 3, -1)) if size + low > 1 else 0
        middle = g.random.choice((0, 0, 0, 1, 2)) if x.size * 3 < g.largest else 0
        amounts.append((low, high, middle))
    dims = tuple(n + low + high + (n - 1) * mid for n, (low, high, mid) in zip(x.dims, amounts, strict=True))
    if min(dims) > 0 and prod(dims) <= 2 * g.largest:
        number = g.random.choice((0, 0, 1, -1))
        text = f"lax.pad({x.name}, jnp.asarray({number}, {x.name}.dtype), {amounts})"
        g.let(text, x.dtype, dims, max(x.most, 1), x.exact)


def broadcast(g: Sketch) -> None:
    x = g.pick()
    room = g.largest // max(x.size, 1)
    if room < 2 or len(x.dims) > 4:
        return
    at = g.random.randint(0, len(x.dims))
    size = g.random.choice([n for n in (2, 3, 8, 33, 128, 129, 512, 1000) if n <= room])
    dims = (*x.dims[:at], size, *x.dims[at:])
    axes = tuple(axis for axis in range(len(dims)) if axis != at)
    g.let(f"lax.broadcast_in_dim({x.name}, {dims}, {axes})", x.dtype, dims, x.most, x.exact)


def roll(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    axis = g.random.randrange(len(x.dims))
    g.like(x, f"jnp.roll({x.name}, {g.random.randint(-3, 130)}, {axis})")


def tile(g: Sketch) -> None:
    x = g.pick(least_rank=1)
    times = tuple(g.random.choice((1, 1, 2, 3)) for _ in x.dims)
    dims = tuple(size * times for size, times in zip(x.dims, times, strict=True))
    if prod(dims) <= g.largest:
        g.let(f"jnp.tile({x.name}, {times})", x.dtype, dims, x.most, x.exact)


def iota(g: Sketch) -> None:
    x = g.pick(least_rank=1)
    axis, dtype = g.random.randrange(len(x.dims)), g.random.choice(("f32", "s32"))
    if x.dims[axis] <= g.limit(dtype):
        g.let(f"lax.broadcasted_iota(T['{dtype}'], {x.dims}, {axis})", dtype, x.dims, x.dims[axis], True)


# ---- reductions ----------------------------------------------------------------------------------------------


def _axes(g: Sketch, x: Value) -> list[int]:
    return [axis for axis in range(len(x.dims)) if g.chance(0.5)] or [g.random.randrange(len(x.dims))]


def reduce(g: Sketch) -> None:
    x = g.viewed(g.pick(least_rank=1))
    axes = _axes(g, x)
    count = prod(x.dims[axis] for axis in axes)
    dims = tuple(size for axis, size in enumerate(x.dims) if axis not in axes)
    if x.dtype == "pred":
        g.let(f"jnp.{g.random.choice(('any', 'all'))}({x.name}, {tuple(axes)})", "pred", dims, 1, True)
        return
    if not x.exact:
        real_reduce(g, x, axes, dims, count)
        return
    kind = g.random.choice(("sum", "sum", "max", "min"))
    most = x.most * count if kind == "sum" else x.most
    if x.dtype in INTEGERS and kind == "sum":
        if x.dtype not in ("s32", "u32"):
            x = g.let(f"{x.name}.astype(T['s32'])", "s32", x.dims, x.most, True)
        if most > SUM_LIMIT:
            x = g.bounded(x, 3)
            most = x.most * count
    if most > g.limit(x.dtype):
        kind, most = "max", x.most
    g.let(f"jnp.{kind}({x.name}, {tuple(axes)})", x.dtype, dims, most, True)


def real_reduce(g: Sketch, x: Value, axes: list[int], dims: tuple[int, ...], count: int) -> None:
    at = tuple(axes)
    kinds = ["jnp.mean({}, {})", "jnp.sum({}, {}) / {}", "jnp.var({}, {})"]
    if not g.smooth:
        kinds += ["jnp.max({}, {})", "jnp.min({}, {})"]
    if x.floating and x.dtype == "f32":
        kinds += ["jax.nn.logsumexp({}, {})", "softmax", "normal"]
    kind = g.random.choice(kinds)
    x = g.bounded(x, 50.0)
    if kind == "softmax":
        g.like(x, f"jax.nn.softmax({x.name}, {at[0]})", 1)
    elif kind == "normal":
        mean = f"jnp.mean({x.name}, {at}, keepdims=True)"
        variance = f"jnp.var({x.name}, {at}, keepdims=True)"
        g.like(x, f"({x.name} - {mean}) * lax.rsqrt({variance} + 0.1)", 10)
    else:
        g.let(kind.format(x.name, at, count), x.dtype, dims, x.most + (10 if "log" in kind else 0), False)


def cumulative(g: Sketch) -> None:
    x = g.viewed(g.pick("f32", "s32", least_rank=1))
    axis = g.random.randrange(len(x.dims))
    kind = g.random.choice(("sum", "max", "min"))
    most = x.most * x.dims[axis] if kind == "sum" else x.most
    if (x.exact and most > min(g.limit(x.dtype), SUM_LIMIT)) or (kind != "sum" and g.smooth):
        return
    text = f"lax.cum{kind}({x.name}, {axis}, reverse={g.chance(0.3)})"
    if x.exact:
        g.like(x, text, most)
    else:
        g.like(x, f"{text} / {x.dims[axis]}")


def argmax(g: Sketch) -> None:
    x = g.viewed(g.pick("f32", "bf16", "s32", "s8", "u8", least_rank=1, exact=True))
    axis = g.random.randrange(len(x.dims))
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    text = f"jnp.{g.random.choice(('argmax', 'argmin'))}({x.name}, {axis}).astype(T['s32'])"
    g.let(text, "s32", dims, x.dims[axis], True)


# ---- contractions --------------------------------------------------------------------------------------------


def dot(g: Sketch) -> None:
    x = g.viewed(g.floats(least_rank=1) if g.chance(0.9) else g.pick("s32", "s8", "u8", least_rank=1))
    axes = list(range(len(x.dims)))
    g.random.shuffle(axes)
    contracted = axes[: g.random.choice((1, 1, 1, 1, 2))]
    batch = axes[len(contracted) :][: g.random.choice((0, 0, 0, 1, 1, 2))]
    depth = prod(x.dims[axis] for axis in contracted)
    kept = x.size // max(depth, 1)
    room = min(2 * g.largest // max(kept, 1), 3 * g.largest // prod(x.dims[axis] for axis in contracted + batch), 700)
    free = [g.random.choice([n for n in (1, 2, 3, 8, 32, 33, 64, 127, 128, 129, 257, 512, 513) if n <= max(room, 1)])]
    if g.chance(0.25):
        free = [] if g.chance(0.5) else [free[0], 2]
    roles = (
        [("c", axis) for axis in contracted] + [("b", axis) for axis in batch] + [("f", i) for i in range(len(free))]
    )
    g.random.shuffle(roles)
    y = g.make(x.dtype, tuple(free[at] if role == "f" else x.dims[at] for role, at in roles))
    y = g.bounded(y, min(g.dot_limit, 3 if x.dtype in INTEGERS else g.dot_limit))
    x = g.bounded(x, min(g.dot_limit, 100 if x.dtype in INTEGERS else g.dot_limit))
    exact = x.exact and y.exact
    out = "f32" if x.floating and (x.dtype == "f32" or g.chance(0.5)) else "s32" if not x.floating else x.dtype
    most = x.most * y.most * depth
    if exact and most > (SUM_LIMIT if out == "s32" else g.limit(out)):
        x, y = (g.like(each, f"jnp.sign({each.name})", 1) for each in (x, y))
        most = depth
        if most > (SUM_LIMIT if out == "s32" else g.limit(out)):
            return
    numbers = {(role, at): place for place, (role, at) in enumerate(roles)}
    dims = tuple(x.dims[axis] for axis in batch)
    dims += tuple(size for axis, size in enumerate(x.dims) if axis not in contracted + batch)
    dims += tuple(free[at] for role, at in roles if role == "f")
    if prod(dims) > 4 * g.largest or len(dims) > 7:
        return
    pairs = (contracted, [numbers["c", axis] for axis in contracted]), (batch, [numbers["b", axis] for axis in batch])
    text = f"lax.dot_general({x.name}, {y.name}, {pairs}, preferred_element_type=T['{out}'])"
    if not exact:
        text, most = f"{text} / {max(depth, 1) ** 0.5:.3f}", 4 * x.most * y.most
        if most > 50:
            text, most = f"jnp.tanh({text})", 1
    g.let(text, out, dims, most, exact)


# ---- convolutions and windows --------------------------------------------------------------------------------


def convolution(g: Sketch) -> None:
    rank = g.random.choice((1, 1, 2, 2, 2, 2, 3))
    dtype = g.random.choice(("f32", "f32", "f32", "bf16"))
    batch = g.random.choice((1, 1, 2, 3, 5, 8))
    groups = g.random.choice((1, 1, 1, 1, 2, 4, 8, 32, 0))
    features = g.random.choice((1, 2, 3, 4, 8, 16, 32, 33, 64, 127, 128, 129, 160, 256))
    if groups == 0:
        groups = features
    features = -(-features // groups) * groups
    outputs = (
        g.random.choice((1, 2, 4, 7, 16, 32, 64, 128, 130)) if groups == 1 else groups * g.random.choice((1, 1, 2, 3))
    )
    room = max(2 * g.largest // (batch * features), 1)
    spatial = []
    for left in range(rank, 0, -1):
        most = max(int(room ** (1 / left)), 1)
        spatial.append(
            g.random.choice([n for n in (1, 2, 3, 5, 7, 8, 14, 15, 16, 28, 31, 56, 64, 129, 300) if n <= most])
        )
        room //= spatial[-1]
    window = [g.random.choice((1, 2, 3, 3, 3, 5, 7)) for _ in spatial]
    strides = [g.random.choice((1, 1, 1, 2, 3)) for _ in spatial]
    dilated = [g.random.choice((1, 1, 1, 1, 2)) for _ in spatial]
    spread = [g.random.choice((1, 1, 1, 1, 2)) for _ in spatial]
    pads = [(g.random.randint(0, size // 2 + 1), g.random.randint(0, size // 2 + 1)) for size in window]
    dims = []
    for n, w, s, d, b, (low, high) in zip(spatial, window, strides, dilated, spread, pads, strict=True):
        extent = (n - 1) * b + 1 + low + high - (w - 1) * d - 1
        if extent < 0:
            return
        dims.append(extent // s + 1)
    depth = prod(window) * features // groups
    if depth * outputs > 60_000 or prod(dims) * outputs * batch > 4 * g.largest:
        return
    letters = "DHW"[-rank:]
    layouts = [_layout(g, name, letters) if g.chance(0.4) else name + letters for name in ("NC", "OI", "NC")]
    sizes = {"N": batch, "C": features, "O": outputs, "I": features // groups}
    x = g.make(dtype, tuple((sizes | dict(zip(letters, spatial, strict=True)))[c] for c in layouts[0]), g.dot_limit)
    k = g.make(dtype, tuple((sizes | dict(zip(letters, window, strict=True)))[c] for c in layouts[1]), g.dot_limit)
    exact = x.exact and k.exact
    most = x.most * k.most * depth
    if exact and most > g.limit(dtype):
        x, k = (g.like(each, f"jnp.sign({each.name})", 1) for each in (x, k))
        most = depth
        if most > g.limit(dtype):
            return
    sizes["C"] = outputs
    shape = tuple((sizes | dict(zip(letters, dims, strict=True)))[c] for c in layouts[2])
    text = (
        f"lax.conv_general_dilated({x.name}, {k.name}, {strides}, {pads}, lhs_dilation={spread}, "
        f"rhs_dilation={dilated}, dimension_numbers={tuple(layouts)}, feature_group_count={groups})"
    )
    if not exact:
        text, most = f"jnp.tanh({text} / {depth**0.5:.3f})", 1
    g.let(text, dtype, shape, most, exact)


def _layout(g: Sketch, others: str, spatial: str) -> str:
    """Letters of a layout; the spatial ones keep their order, which the strides follow."""
    letters = g.random.sample(others + spatial, len(others) + len(spatial))
    rest = iter(spatial)
    return "".join(letter if letter in others else next(rest) for letter in letters)


def window(g: Sketch) -> None:
    x = g.viewed(g.pick("f32", "f32", "bf16", "s32", least_rank=1))
    if len(x.dims) > 5:
        return
    chosen = [g.chance(0.6) for _ in x.dims]
    sizes = [
        g.random.randint(1, min(n, g.random.choice((2, 3, 5, 20)))) if on else 1
        for n, on in zip(x.dims, chosen, strict=True)
    ]
    strides = [g.random.choice((1, 1, 2, 3)) if on else 1 for on in chosen]
    dilated = [g.random.choice((1, 1, 1, 2)) if on else 1 for on in chosen]
    pads = [(g.random.randint(0, size - 1), g.random.randint(0, size - 1)) for size in sizes]
    dims = []
    for n, w, s, d, (low, high) in zip(x.dims, sizes, strides, dilated, pads, strict=True):
        extent = n + low + high - (w - 1) * d - 1
        if extent < 0:
            return
        dims.append(extent // s + 1)
    count = prod(sizes)
    if prod(dims) > 2 * g.largest or count > 3000:
        return
    kind = g.random.choice(("add", "max", "min"))
    most = x.most * count if kind == "add" else x.most
    if (x.exact and kind == "add" and most > min(g.limit(x.dtype), SUM_LIMIT)) or (g.smooth and kind != "add"):
        return
    if kind == "add":
        start = "0"
    elif x.floating:
        start = "-3" if kind == "max" else "3"
    else:
        start = "-4" if kind == "max" else "4"
    text = (
        f"lax.reduce_window({x.name}, np.asarray({start}, {x.name}.dtype), lax.{kind}, {tuple(sizes)}, "
        f"{tuple(strides)}, {pads}, window_dilation={tuple(dilated)})"
    )
    if kind == "add" and not x.exact:
        text, most = f"{text} / {count}", x.most
    g.let(text, x.dtype, tuple(dims), max(most, 4), x.exact)
