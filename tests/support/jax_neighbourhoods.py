"""Steps of random JAX programs around the kernels that plans are made for, at the sizes at which plans change:
attentions, contractions with what follows them, norms, convolutions with what stands around them, and their gradients;
rows of tables by indices.
"""

from __future__ import annotations

from math import prod

from jax_sketch import FLOAT_LIMITS, Sketch, Value

EDGES = (1, 2, 3, 8, 17, 64, 96, 127, 128, 129, 197, 255, 256, 257, 511, 512, 513, 1000, 1021, 2048)
WORK = 3_000_000
"""Products of a contraction, as a rule."""


def edge(g: Sketch, most: float, least: int = 1) -> int:
    """A size at which plans change."""
    return g.random.choice([size for size in EDGES if least <= size <= most] or [least])


def edges(g: Sketch, rank: int, most: int) -> tuple[int, ...]:
    """A shape of such sizes with up to ``most`` elements."""
    dims: list[int] = []
    for _ in range(rank):
        dims.append(edge(g, most // prod(dims)))
    g.random.shuffle(dims)
    return tuple(dims)


def real(g: Sketch, dtype: str, dims: tuple[int, ...], most: float = 3.0) -> Value:
    """A value of this type and shape, whose numbers are no larger."""
    return g.bounded(g.make(dtype, dims), most)


def widened(g: Sketch, x: Value, dtype: str) -> Value:
    return x if x.dtype == dtype else g.let(f"{x.name}.astype(T['{dtype}'])", dtype, x.dims, x.most, x.exact)


def alone(g: Sketch, first: int, last: Value) -> None:
    """Mostly, nothing else reads what lies between: of the values from number ``first`` on, ``last`` is left."""
    if g.chance(0.8):
        g.values[first:] = [value for value in g.values[first:] if value is last or value.home == "input"]


# ---- attention -----------------------------------------------------------------------------------------------

LAYOUTS = ("bhsd", "bshd", "bhds", "hbsd", "sbhd")
FILLS = ("-jnp.inf", "-1e9", "jnp.finfo({0}.dtype).min", "-30000.0")
SOFTMAX = (
    "jax.nn.softmax({0}, axis=-1)",
    "jax.nn.softmax({0}.astype(T['f32']), axis=-1).astype({0}.dtype)",
    "(lambda e: e / e.sum(-1, keepdims=True))(jnp.exp({0} - {0}.max(-1, keepdims=True)))",
    "(lambda e: e * (1 / e.sum(-1, keepdims=True)))(jnp.exp({0} - lax.stop_gradient({0}.max(-1, keepdims=True))))",
    "jnp.exp(jax.nn.log_softmax({0}, axis=-1))",
)


def attention(g: Sketch) -> None:
    """One layer: few or many rows, heads that share keys, masks of every kind, and what reads it."""
    dtype = g.random.choice(("f32", "f32", "f32", "bf16", "bf16", "f16"))
    heads, group, batch = g.random.choice((1, 1, 2, 3, 4, 8, 12)), g.random.choice((1, 1, 1, 2, 4, 8)), 1
    depth = g.random.choice((1, 4, 8, 16, 32, 64, 80, 96, 128, 129, 256))
    width = depth if g.chance(0.7) else g.random.choice((1, 8, 33, 64, 127, 128, 160))
    if g.chance(0.4):
        batch = g.random.choice((2, 3, 5))
    around = batch * heads * group
    columns = edge(g, 20 * g.largest / (batch * heads * max(depth, width)))
    rows = g.random.choice((1, 1, 2, 4, 7)) if g.chance(0.35) else edge(g, 40 * g.largest / (around * columns))
    if g.chance(0.3) and columns * columns * around < 40 * g.largest:
        rows = columns
    first = len(g.values)
    q, ql = _projected(g, dtype, {"b": batch, "h": heads * group, "s": rows, "d": depth})
    k, kl = _projected(g, dtype, {"b": batch, "h": heads, "s": columns, "d": depth})
    v, vl = _projected(g, dtype, {"b": batch, "h": heads, "s": columns, "d": width})
    if group > 1:
        k, v = (_shared(g, x, at.index("h"), group) for x, at in ((k, kl), (v, vl)))
    scores = (batch, heads * group, rows, columns)
    wanted = g.chance(0.3) and dtype != "f32"
    text = f"jnp.einsum('{ql},{kl}->bhst', {q.name}, {k.name}"
    text = text.replace(f",{kl}->", f",{kl.replace('s', 't')}->") + (
        ", preferred_element_type=T['f32'])" if wanted else ")"
    )
    scale = f"{depth**-0.5:.6f}"
    s = g.let(f"{text} * {scale}" if g.chance(0.8) else f"{text} / {depth**0.5:.6f}", "f32" if wanted else dtype,
              scores, 9 * depth**0.5, False)  # fmt: skip
    for _ in range(g.random.choice((0, 1, 1, 2, 2, 3))):
        s = masked(g, s)
    w = g.like(s, g.random.choice(SOFTMAX).format(s.name), 1)
    if g.chance(0.1):
        w = g.like(w, f"jnp.where({_bools(g, w.dims).name}, {w.name} * 1.25, 0)", 1.25)
    w = widened(g, w, dtype)
    order = g.random.choice(("bhsd", "bshd", "bshd", "bhds"))
    dims = {"b": batch, "h": heads * group, "s": rows, "d": width}
    text = f"jnp.einsum('bhst,{vl.replace('s', 't')}->{order}', {w.name}, {v.name})"
    out = g.let(text, dtype, tuple(dims[letter] for letter in order), v.most, False)
    if order == "bshd" and g.chance(0.7):
        out = _output_projection(g, out)
    alone(g, first, out)


def _projected(g: Sketch, dtype: str, dims: dict[str, int]) -> tuple[Value, str]:
    """Queries, keys or values, and the order of their dims: given, a view of what is given, or a projection."""
    layout = g.random.choice(LAYOUTS)
    shape = tuple(dims[letter] for letter in layout)
    if layout.endswith("hd") and g.chance(0.4):
        x = g.reshape_to(real(g, dtype, (*shape[:2], shape[2] * shape[3])), shape)
    else:
        x = real(g, dtype, shape)
    if g.chance(0.2) and layout.endswith("d") and not dims["d"] % 2:
        half = dims["d"] // 2
        angles = f"K('{dtype}', ({dims['s']}, {half}), {g.random.randrange(10**6)}, False)"
        at = [1] * 4
        at[layout.index("s")], at[3] = dims["s"], half
        c = g.let(f"{angles}.reshape({tuple(at)})", dtype, tuple(at), 3, False, "constant")
        text = (
            f"jnp.concatenate([{x.name}[..., :{half}] * jnp.cos({c.name}) - {x.name}[..., {half}:] * jnp.sin({c.name}),"
            f" {x.name}[..., {half}:] * jnp.cos({c.name}) + {x.name}[..., :{half}] * jnp.sin({c.name})], -1)"
        )
        x = g.like(x, text, 2 * x.most)
    return x, layout


def _shared(g: Sketch, x: Value, axis: int, times: int) -> Value:
    """Heads of ``axis``, each for several queries."""
    dims = (*x.dims[:axis], x.dims[axis] * times, *x.dims[axis + 1 :])
    if g.chance(0.5):
        return g.let(f"jnp.repeat({x.name}, {times}, axis={axis})", x.dtype, dims, x.most, x.exact)
    if g.chance(0.3):
        return g.let(f"jnp.concatenate([{x.name}] * {times}, {axis})", x.dtype, dims, x.most, x.exact)
    wide = (*x.dims[: axis + 1], times, *x.dims[axis + 1 :])
    text = f"jnp.broadcast_to(jnp.expand_dims({x.name}, {axis + 1}), {wide}).reshape({dims})"
    return g.let(text, x.dtype, dims, x.most, x.exact)


def _bools(g: Sketch, dims: tuple[int, ...]) -> Value:
    """Booleans that broadcast to ``dims``."""
    kept = tuple(1 if g.chance(0.4) else size for size in dims)
    start = 0
    while g.chance(0.5) and start < len(kept) - 1 and kept[start] == 1:
        start += 1
    return g.make("pred", kept[start:])


def masked(g: Sketch, s: Value) -> Value:
    """Scores under one more mask, bias or cap."""
    rows, columns = s.dims[-2:]
    row = f"lax.broadcasted_iota(T['s32'], ({rows}, {columns}), 0)"
    column = f"lax.broadcasted_iota(T['s32'], ({rows}, {columns}), 1)"
    shift = g.random.choice((0, columns - rows, 1, -1, g.random.randint(-5, columns)))
    reach = g.random.choice((1, 2, 16, 127, 128, 129, 300))
    segments = g.random.choice((2, 3, 16, 128))
    keep = g.random.choice(
        (
            f"jnp.tril(jnp.ones(({rows}, {columns}), bool), {shift})",
            f"{row} + {shift} >= {column}",
            f"(jnp.arange({columns}) <= jnp.arange({rows})[:, None] + {shift})",
            f"(abs({row} + {shift} - {column}) < {reach})",
            f"(({row} + {shift} >= {column}) & ({row} + {shift} - {column} < {reach}))",
            f"({row} // {segments} == {column} // {segments})",
            f"({column} < {max(1, g.random.choice((columns, columns // 2, 1, columns - 1)))})",
            "bools",
            "bools",
            "lengths",
            f"({row} < {max(1, rows - reach)})",
            "bias",
            "bias",
            "cap",
            "floor",
            "scale",
        )
    )
    if keep == "cap":
        return g.like(s, f"jnp.tanh({s.name} / 5) * 5", 5)
    if keep == "floor":
        return g.like(s, f"jnp.maximum({s.name}, {g.random.choice((-0.5, -3.0, -40.0))})", s.most)
    if keep == "scale":
        return g.like(s, f"{s.name} * {g.random.choice((0.25, -1.0, 1e-30))}", s.most)
    if keep == "bias":
        kept = tuple(1 if g.chance(0.4) else size for size in s.dims)
        return g.like(s, f"{s.name} + {real(g, s.dtype, kept).name}", s.most + 3)
    if keep == "bools":
        keep = _bools(g, s.dims).name
    if keep == "lengths":
        lengths = g.make("s32", (s.dims[0],))
        keep = f"({column}[None, None] < (jnp.abs({lengths.name}) * 37 + 1)[:, None, None, None])"
    # under ``--auto-cast all`` the least FP32 number becomes an infinity, and whole rows of it NaN
    fills = FILLS if g.limits["f32"] == FLOAT_LIMITS["f32"] else ("-1e9", "-30000.0")
    fill = g.random.choice(fills).format(s.name)
    if g.chance(0.2):
        return g.like(s, f"{s.name} + jnp.where({keep}, 0.0, {fill}).astype({s.name}.dtype)")
    return g.like(s, f"jnp.where({keep}, {s.name}, {fill})")


def _output_projection(g: Sketch, out: Value) -> Value:
    batch, rows, heads, width = out.dims
    x = g.reshape_to(out, (batch, rows, heads * width))
    outputs = edge(g, min(513, WORK / max(x.size, 1)))
    w = real(g, out.dtype, (heads * width, outputs))
    text = f"({x.name} @ {w.name}) / {(heads * width) ** 0.5:.3f}"
    y = g.let(text, out.dtype, (batch, rows, outputs), 9, False)
    return g.like(y, f"{y.name} + {real(g, y.dtype, y.dims).name}", 12) if g.chance(0.5) else y


# ---- contractions and what follows them ----------------------------------------------------------------------

ACTIVATIONS = (
    "jax.nn.relu({})",
    "jax.nn.gelu({})",
    "jax.nn.silu({})",
    "jnp.tanh({})",
    "jax.nn.sigmoid({})",
    "jnp.exp(-{0} * {0})",
)
ACTIVATIONS += ("jax.nn.gelu({}, approximate=False)", "jnp.abs({})", "jax.nn.softplus({})", "{0} * {0} / 8")


def epilogue(g: Sketch) -> None:
    """A contraction, up to six steps on its result, and others that read what it reads and makes."""
    dtype = g.random.choice(("f32", "f32", "f32", "bf16", "bf16", "f16"))
    m, k = edge(g, g.largest), edge(g, g.largest)
    n = edge(g, min(WORK / (m * k), 4 * g.largest / m))
    batch = g.random.choice((1, 1, 1, 1, 2, 5))
    lhs, rhs = g.random.choice(("mk", "mk", "km")), g.random.choice(("kn", "kn", "nk"))
    out = g.random.choice(("mn", "mn", "nm"))
    shape = {"m": m, "k": k, "n": n, "b": batch}
    if batch > 1:
        lhs, out = "b" + lhs, "b" + out
        rhs = "b" + rhs if g.chance(0.5) else rhs
    first = len(g.values)
    x, y = (real(g, dtype, tuple(shape[c] for c in side)) for side in (lhs, rhs))
    z = _product(g, x, y, f"{lhs},{rhs}->{out}", shape)
    if g.chance(0.4):  # another reader of one operand, whose result may gate the first
        other = _product(g, x, real(g, dtype, y.dims), f"{lhs},{rhs}->{out}", shape)
        if g.chance(0.6):
            gate = g.random.choice(ACTIVATIONS).format(other.name)
            z = g.like(z, f"({z.name} * {gate}).astype({z.name}.dtype)", 50)
    chain = [z]
    for _ in range(g.random.randint(0, 6)):
        chain.append(_step(g, chain[-1]))
    if g.chance(0.3):
        z = g.random.choice(chain)
        width = edge(g, min(257, WORK / max(z.size, 1)))
        w = real(g, z.dtype, (z.dims[-1], width))
        text = f"jnp.tanh({z.name}) @ {w.name} / {z.dims[-1] ** 0.5:.3f}"
        chain.append(g.let(text, z.dtype, (*z.dims[:-1], width), 6, False))
    alone(g, first, chain[-1])


def _product(g: Sketch, x: Value, y: Value, form: str, shape: dict[str, int]) -> Value:
    dtype = "f32" if g.chance(0.4) else x.dtype
    dims = tuple(shape[letter] for letter in form.split("->")[1])
    text = f"jnp.einsum('{form}', {x.name}, {y.name}, preferred_element_type=T['{dtype}'])"
    return g.let(f"{text} / {max(shape['k'], 1) ** 0.5:.3f}", dtype, dims, 9, False)


def _step(g: Sketch, z: Value) -> Value:
    """What an epilogue may be: bias, activation, residual, scale, cast, mask, or something of whole rows."""
    kind = g.random.choice(("bias", "bias", "activation", "activation", "residual", "scale", "cast", "mask", "rows"))
    z = g.bounded(z, 50.0)
    if kind == "bias":
        axis = g.random.randrange(len(z.dims))
        b = real(g, z.dtype, (z.dims[axis],))
        at = tuple(size if number == axis else 1 for number, size in enumerate(z.dims))
        return g.like(z, f"{z.name} + {b.name}.reshape({at})", z.most + 3)
    if kind == "activation":
        return g.like(z, g.random.choice(ACTIVATIONS).format(z.name), max(z.most, 1) if z.most < 20 else 313)
    if kind == "residual":
        return g.like(z, f"{z.name} {g.random.choice('+-')} {real(g, z.dtype, z.dims).name}", z.most + 3)
    if kind == "scale":
        dims = tuple(size if g.chance(0.5) else 1 for size in z.dims)
        return g.like(z, f"{z.name} * {real(g, z.dtype, dims, 2.0).name}", 2 * z.most)
    if kind == "cast":
        return widened(g, z, g.random.choice(("f32", "bf16", "f16")))
    if kind == "mask":
        return g.like(z, f"jnp.where({_bools(g, z.dims).name}, {z.name}, {g.random.choice((0, 0, -1))})")
    if g.chance(0.5):
        return g.like(z, f"jax.nn.softmax({z.name}, axis={g.random.randrange(len(z.dims))})", 1)
    return normal(g, z, [len(z.dims) - 1])


# ---- networks of few rows ------------------------------------------------------------------------------------


def rows(g: Sketch) -> None:
    """As in decoding: products of few rows, gated or not, norms and residual sums between them, and other readers."""
    dtype = g.random.choice(("f32", "f32", "bf16", "f16"))
    few = g.random.choice((1, 1, 1, 2, 3, 4, 8, 16, 17, 64))
    dims = g.random.choice(((few,), (few,), (few,), (1, few), (2, few)))
    width = edge(g, 20 * g.largest / prod(dims), 2)
    x = real(g, dtype, (*dims, width))
    first = len(g.values)
    for _ in range(g.random.choice((1, 2, 2, 3))):
        before, width = x, x.dims[-1]
        if g.chance(0.6):
            x = normal(g, x, [len(dims)])
        hidden = edge(g, min(2048, 40 * g.largest / width), 2)
        y = of_rows(g, x, hidden)
        if g.chance(0.4):
            gate = g.random.choice(ACTIVATIONS).format(of_rows(g, x, hidden).name)
            y = g.like(y, f"({y.name} * {gate}).astype({y.name}.dtype)", 300)
        for _ in range(g.random.choice((0, 0, 1, 2))):
            y = _step(g, y)
        x = widened(g, of_rows(g, g.bounded(y, 9.0), width), before.dtype)
        if g.chance(0.6):
            x = g.like(x, f"{before.name} + {x.name}", before.most + x.most)
        x = g.bounded(x, 9.0)
    if g.chance(0.3):
        x = g.like(x, f"{x.name}[..., ::-1]") if g.chance(0.5) else g.reshape_to(x, (prod(x.dims),))
    alone(g, first, x)


def of_rows(g: Sketch, x: Value, columns: int) -> Value:
    """Rows times a matrix, which lies either way, maybe with a bias."""
    terms, form = x.dims[-1], g.random.choice(("kn", "kn", "kn", "nk"))
    w = real(g, x.dtype, (terms, columns) if form == "kn" else (columns, terms), 2.0)
    text = f"({x.name} @ {w.name}{'' if form == 'kn' else '.T'}) / {terms**0.5:.3f}"
    y = g.let(text, x.dtype, (*x.dims[:-1], columns), 9, False)
    return g.like(y, f"{y.name} + {real(g, y.dtype, (columns,)).name}", 12) if g.chance(0.4) else y


# ---- norms ---------------------------------------------------------------------------------------------------


def norm(g: Sketch) -> None:
    """Over any axes, of a permuted array, with scale, bias, residual and casts; groups of features, too."""
    x = g.viewed(
        real(g, g.random.choice(("f32", "f32", "bf16", "f16")), edges(g, g.random.choice((2, 2, 3, 4)), 4 * g.largest))
    )
    axes = (
        sorted(g.random.sample(range(len(x.dims)), g.random.choice((1, 1, 2)) if len(x.dims) > 1 else 1))
        if x.dims
        else []
    )
    if g.chance(0.5) and x.dims:
        axes = [len(x.dims) - 1]
    if g.chance(0.3):
        x = g.like(x, f"{x.name} + {real(g, x.dtype, x.dims).name}", x.most + 3)
    first = len(g.values)
    y = normal(g, x, axes)
    for _ in range(g.random.choice((0, 1, 1, 2))):
        y = _step(g, y)
    alone(g, first, y)


def normal(g: Sketch, x: Value, axes: list[int]) -> Value:
    at, wide = tuple(axes), g.chance(0.6)
    w = widened(g, x, "f32") if wide else x
    kind = g.random.choice(("layer", "layer", "rms", "softmax", "standard", "greatest", "sum", "one pass"))
    if kind == "softmax" and axes:
        return widened(g, g.like(w, f"jax.nn.softmax({w.name}, axis={at})", 1), x.dtype)
    mean, square = f"jnp.mean({w.name}, {at}, keepdims=True)", f"jnp.mean({w.name} * {w.name}, {at}, keepdims=True)"
    forms = {
        "layer": f"({w.name} - {mean}) * lax.rsqrt(jnp.var({w.name}, {at}, keepdims=True) + 0.01)",
        "standard": f"({w.name} - {mean}) / jnp.sqrt(jnp.var({w.name}, {at}, keepdims=True) + 0.01)",
        "one pass": f"({w.name} - {mean}) * lax.rsqrt(jax.nn.relu({square} - {mean} ** 2) + 0.1)",
        "rms": f"{w.name} * lax.rsqrt({square} + 0.01)",
        "greatest": f"{w.name} / (jnp.max(jnp.abs({w.name}), {at}, keepdims=True) + 0.1)",
        "sum": f"{w.name} / (jnp.sum({w.name} * {w.name}, {at}, keepdims=True) + 1)",
    }
    y = g.like(w, forms.get(kind, forms["layer"]), 10)
    y = widened(g, y, x.dtype) if g.chance(0.7) else y
    if g.chance(0.6) and axes:
        dims = tuple(size if number in axes else 1 for number, size in enumerate(y.dims))
        y = g.like(y, f"{y.name} * {real(g, y.dtype, dims, 2.0).name} + {real(g, y.dtype, dims).name}", 23)
    return y


# ---- convolutions, what stands around them, and their gradients ----------------------------------------------


def block(g: Sketch) -> None:
    """A convolution between elementwise ops and norms, or its gradients by input and kernel."""
    dtype = g.random.choice(("f32", "f32", "f32", "bf16"))
    features, outputs = (g.random.choice((1, 2, 3, 8, 16, 31, 64, 127, 128, 129, 200, 257)) for _ in range(2))
    groups = g.random.choice((1, 1, 1, 1, 2, 4, features))
    features = -(-features // groups) * groups
    outputs = features if groups > 4 and g.chance(0.6) else -(-outputs // groups) * groups
    batch = g.random.choice((1, 1, 2, 3, 8))
    window = [g.random.choice((1, 1, 3, 3, 5, 7)), g.random.choice((1, 1, 3, 3, 2))]
    strides = [g.random.choice((1, 1, 1, 2, 3))] * 2
    taps = prod(window) * features // groups * outputs
    room = min(2 * g.largest / (batch * max(features, outputs)), 6 * WORK / (taps * batch))
    height = g.random.choice([n for n in (1, 2, 7, 8, 14, 15, 28, 31, 56) if n * n <= room] or [1])
    width = g.random.choice([n for n in (1, 7, 8, 14, 15, 28, 33, 56, 112, 129, 257, 511) if n * height <= room] or [1])
    sizes = {"N": batch, "C": features, "H": height, "W": width}
    x_form, k_form = g.random.choice(("NCHW", "NCHW", "NHWC")), g.random.choice(("OIHW", "OIHW", "HWIO"))
    kernel = {"O": outputs, "I": features // groups, "H": window[0], "W": window[1]}
    x = real(g, dtype, tuple(sizes[letter] for letter in x_form), 2.0)
    k = real(g, dtype, tuple(kernel[letter] for letter in k_form), 2.0)
    pads = g.random.choice(("'SAME'", "'SAME'", "'VALID'", str([(w // 2, w // 2) for w in window])))
    if pads == "'VALID'" and (height < window[0] or width < window[1]):
        pads = "'SAME'"
    dilations = [g.random.choice((1, 1, 1, 2)) if pads.startswith("[") else 1] * 2
    height, width = ((n - 1) * dilations[0] + 1 for n in (height, width))
    extents = [
        -(-n // s) if pads == "'SAME'" else (n - (w if pads == "'VALID'" else w - 2 * (w // 2))) // s + 1
        for n, w, s in zip((height, width), window, strides, strict=True)
    ]
    ends = {"N": batch, "C": outputs, "H": extents[0], "W": extents[1]}
    dims = tuple(ends[letter] for letter in x_form)
    if min(dims) < 1 or prod(dims) > 4 * g.largest:
        return
    depth = prod(window) * features // groups
    numbers = (x_form, k_form, x_form)
    convolve = (
        f"lax.conv_general_dilated({{}}, {{}}, {strides}, {pads}, {dilations}, dimension_numbers={numbers}, "
        f"feature_group_count={groups}) / {depth**0.5:.3f}"
    )
    if g.chance(0.45):
        return _conv_gradient(g, x, k, convolve, dims)
    if g.chance(0.5):
        x = _step(g, x)
        x = widened(g, g.bounded(x, 9.0), dtype)
    first = len(g.values)
    y = g.let(convolve.format(x.name, k.name), dtype, dims, 9, False)
    if g.chance(0.25):  # as where a block's shortcut has a kernel of its own
        other = g.let(convolve.format(x.name, real(g, k.dtype, k.dims, 2.0).name), dtype, dims, 9, False)
        y = g.like(y, f"{y.name} + {_inference(g, other, x_form.index('C')).name}", 60)
    for _ in range(g.random.randint(0, 4)):
        if g.chance(0.25):
            y = _inference(g, g.bounded(y, 50.0), x_form.index("C"))
        else:
            y = normal(g, y, _spatial(x_form, g)) if g.chance(0.15) else _step(g, y)
    alone(g, first, y)
    return None


def _inference(g: Sketch, y: Value, axis: int) -> Value:
    """The batch norm of inference, of features along ``axis``, maybe with a rectifier."""
    at = tuple(size if number == axis else 1 for number, size in enumerate(y.dims))
    mean, bias, scale, spread = (f"{real(g, y.dtype, (y.dims[axis],)).name}.reshape({at})" for _ in range(4))
    text = f"({y.name} - {mean}) * ({scale} * lax.rsqrt({spread} * {spread} + 1)) + {bias}"
    text = g.random.choice(("jax.nn.relu({})", "{}")).format(text)
    return g.like(y, f"({text}).astype({y.name}.dtype)", 3 * y.most + 12)


def _spatial(form: str, g: Sketch) -> list[int]:
    return [at for at, letter in enumerate(form) if letter in g.random.choice(("NHW", "HW", "CHW", "C"))]


def _conv_gradient(g: Sketch, x: Value, k: Value, convolve: str, dims: tuple[int, ...]) -> None:
    """By input, by kernel or both; what is multiplied with the result is its gradient."""
    c, p, q, name = real(g, x.dtype, dims), g.name("p"), g.name("q"), g.name("f")
    # casts may take what a rectifier sees to its other side
    kinked = "jax.nn.relu({})" if g.dot_limit == 2**20 else "jax.nn.softplus({})"
    around = g.random.choice(("{}", "jnp.tanh({})", kinked, "{} * 0.5 + 1", "jax.nn.gelu({})"))
    before = g.random.choice(("{}", "{}", "jnp.tanh({})", "jax.nn.silu({})")).format(p)
    made = around.format(convolve.format(before, q))
    g.lines.append(f"{name} = lambda {p}, {q}: jnp.sum(({made} * {c.name}).astype(T['f32']))")
    pair, scale = g.name("t"), max(prod(dims) / max(k.dims), 1) ** 0.5
    g.lines.append(f"{pair} = jax.grad({name}, (0, 1))({x.name}, {k.name})")
    which = g.random.choice(((0,), (1,), (1,), (0, 1)))
    for at in which:
        value = (x, k)[at]
        y = g.like(value, f"{pair}[{at}] / {scale:.3f}", 50, False)
        for _ in range(g.random.choice((0, 0, 1, 2))):  # an update, or other work on it
            y = _step(g, y)


# ---- gathers and scatters of short rows ----------------------------------------------------------------------


def tables(g: Sketch) -> None:
    """Rows of a small table by many indices, whose elements lie in any order in it and in the result."""
    dtype = g.random.choice(("f32", "f32", "bf16", "s32", "u8", "f16", "pred"))
    heads, height = edge(g, 197), g.random.choice((edge(g, 2048), edge(g, 257), 729, 5000))
    batches = g.random.choice((0, 0, 0, 1, 2, 3, 8, 9))
    listed = (edge(g, 257, 7), edge(g, 64)) if g.chance(0.5) else (edge(g, 2048),)
    while heads * prod(listed) * max(batches, 1) > 2 * g.largest or heads * height * max(batches, 1) > 2 * g.largest:
        heads, listed, batches = max(1, heads // 2), (max(1, listed[0] // 2), *listed[1:]), batches // 2
        height = max(1, height // 2)
    form = g.random.choice(("hr", "rh", "hrw", "rhw", "hwr"))
    sizes = {"h": heads, "r": height, "w": g.random.choice((1, 2, 3, 5))}
    dims, axis = tuple(sizes[letter] for letter in form), form.index("r")
    outer = (batches,) if batches else ()
    x, i = g.make(dtype, (*outer, *dims)), g.make("s32", (*outer, *listed))
    result = (*dims[:axis], *listed, *dims[axis + 1 :])
    order = tuple(g.random.sample(range(len(result)), len(result)))
    if g.chance(0.5):  # those of rows ahead, as heads stand in scores
        inside = range(axis, axis + len(listed))
        order = (*(at for at in range(len(result)) if at not in inside), *inside)
    first, taken = len(g.values), f"jnp.take(x, i, axis={axis}, mode='clip')"
    if g.chance(0.7):
        taken, result = f"{taken}.transpose({order})", tuple(result[at] for at in order)
    function = f"lambda x, i: {taken}"
    function = f"jax.vmap({function})" if batches else f"({function})"
    index = f"(jnp.abs({i.name}) * 7 + 1) % {height + 2} - 1"
    y = g.let(f"{function}({x.name}, {index})", x.dtype, (*outer, *result), x.most, x.exact)
    alone(g, first, y)


NEIGHBOURHOODS = {
    "attention": (attention,),
    "epilogue": (epilogue,),
    "rows": (rows,),
    "norm": (norm,),
    "block": (block,),
    "tables": (tables,),
}
