"""Random networks of rows whose number no number of partitions divides well, and all that may read these rows."""

from __future__ import annotations

from jax_neighbourhoods import ACTIVATIONS, SOFTMAX, masked, normal, of_rows, real, widened
from jax_sketch import Sketch, Value

ROWS = (129, 131, 193, 197, 251, 257, 258, 260, 263, 383, 389, 509, 516)


def uneven(g: Sketch) -> None:
    """Layers of norms, products, gates and attentions between these rows; folds, parts and gradients of them."""
    dtype = g.random.choice(("f32", "f32", "bf16", "f16"))
    rows, features = g.random.choice(ROWS), g.random.choice((8, 16, 24, 32))
    dims = (rows,) if g.chance(0.6) else (g.random.choice((1, 2, 3)), rows)
    x = real(g, dtype, (*dims, features))
    if g.chance(0.3):
        x = _with_token(g, x)
    if g.chance(0.4):
        x = g.like(x, f"{x.name} + {real(g, dtype, x.dims[-2:]).name}", x.most + 3)
    first = len(g.values)
    for _ in range(g.random.choice((1, 2, 3))):
        before = x
        y = normal(g, x, [len(x.dims) - 1]) if g.chance(0.7) else x
        y = g.random.choice((_attention, _mixed, _gated))(g, y)
        x = g.bounded(g.like(x, f"({before.name} + {y.name}).astype({before.name}.dtype)", before.most + y.most), 9.0)
    made = [value for value in g.values[first:] if value.home == "made"]
    g.values[first:] = [value for value in g.values[first:] if value is x or value.home == "input" or g.chance(0.1)]
    for _ in range(g.random.choice((1, 2, 2, 3))):
        _read(g, x if g.chance(0.8) else g.random.choice(made))


def _with_token(g: Sketch, x: Value) -> Value:
    token = real(g, x.dtype, (*x.dims[:-2], 1, x.dims[-1]))
    parts = [f"{x.name}[..., 1:, :]", token.name][:: g.random.choice((1, -1))]
    return g.like(x, f"jnp.concatenate([{', '.join(parts)}], -2)")


def _attention(g: Sketch, x: Value) -> Value:
    """Of the rows with themselves; heads are a dim or not."""
    rows, width, batch = x.dims[-2], x.dims[-1], x.dims[:-2]
    heads = g.random.choice((1, 2, 4))
    parts = [of_rows(g, x, width) for _ in range(3)]
    q, k, v = (g.reshape_to(part, (*batch, rows, heads, width // heads)) for part in parts)
    if g.chance(0.3):
        q, k = (_turned(g, part, rows, width // heads // 2) for part in (q, k))
    b = "b" if batch else ""
    scale = g.random.choice(("* {0:.6f}", "/ {1:.6f}")).format(1 / (step := 9 * (width // heads) ** 0.5), step)
    text = f"jnp.einsum('{b}shd,{b}thd->{b}hst', {q.name}, {k.name}) {scale}"
    s = g.let(text, x.dtype, (*batch, heads, rows, rows), 20, False)
    if not batch:
        s = g.reshape_to(s, (1, *s.dims))
    for _ in range(g.random.choice((0, 0, 1, 2))):
        s = masked(g, s)
    w = widened(g, g.like(s, g.random.choice(SOFTMAX).format(s.name), 1), x.dtype)
    if not batch:
        w = g.reshape_to(w, w.dims[1:])
    out = g.let(f"jnp.einsum('{b}hst,{b}thd->{b}shd', {w.name}, {v.name})", x.dtype, q.dims, v.most, False)
    return of_rows(g, g.reshape_to(out, x.dims), width)


def _turned(g: Sketch, x: Value, rows: int, half: int) -> Value:
    """By angles that grow with the number of the row."""
    angles = f"(jnp.arange({rows})[:, None, None] * jnp.arange(1, {half + 1}) * 0.1).astype({x.name}.dtype)"
    first, last = f"{x.name}[..., :{half}]", f"{x.name}[..., {half}:]"
    parts = f"{first} * jnp.cos(a) - {last} * jnp.sin(a), {last} * jnp.cos(a) + {first} * jnp.sin(a)"
    return g.like(x, f"(lambda a: jnp.concatenate([{parts}], -1))({angles})", 2 * x.most)


def _mixed(g: Sketch, x: Value) -> Value:
    hidden = g.random.choice((16, 40, 129, 197, 257))
    y = g.like(y := of_rows(g, x, hidden), g.random.choice(ACTIVATIONS).format(y.name), 20)
    return of_rows(g, g.bounded(y, 9.0), x.dims[-1])


def _gated(g: Sketch, x: Value) -> Value:
    """With what all rows say: a mean, a greatest, or products of rows with rows."""
    rows, name = x.dims[-2], x.name
    kind = g.random.choice(("mean", "greatest", "gram", "mixer", "turned"))
    if kind in ("mean", "greatest"):
        fold = f"{name}.{'mean' if kind == 'mean' else 'max'}(-2, keepdims=True)"
        return of_rows(g, g.like(x, f"({name} * {fold}).astype({name}.dtype)", 50), x.dims[-1])
    if kind == "gram":
        text = f"(({name} @ jnp.swapaxes({name}, -1, -2)) @ {name} / {rows * 9.0}).astype({name}.dtype)"
        return g.bounded(g.like(x, text, 20), 9.0)
    if kind == "mixer":
        w = real(g, x.dtype, (rows, rows))
        return g.bounded(g.like(x, f"(jnp.einsum('st,...td->...sd', {w.name}, {name}) / {rows**0.5:.2f})", 20), 9.0)
    return g.like(x, f"(jnp.flip({name}, -2) if {g.chance(0.5)} else jnp.roll({name}, 1, -2))", x.most)


def _read(g: Sketch, x: Value) -> None:
    """Parts and folds of rows."""
    if len(x.dims) < 2:
        return
    at = len(x.dims) - 2
    rows, name = x.dims[at], x.name
    kept = (*x.dims[:at], x.dims[-1])
    kind = g.random.choice(
        ("whole", "first", "last", "part", "mean", "max", "sum", "turned", "flat", "product", "where")
    )
    if kind == "whole":
        g.like(x, f"{name} * 2", 2 * x.most)
    elif kind in ("first", "last"):
        g.let(f"{name}[..., {0 if kind == 'first' else -1}, :]", x.dtype, kept, x.most, False)
    elif kind == "part":
        g.let(f"{name}[..., 3:{rows - 1}:2, :]", x.dtype, (*x.dims[:at], (rows - 3) // 2, x.dims[-1]), x.most, False)
    elif kind in ("mean", "max", "sum"):
        g.let(f"{name}.{kind}(-2){f' / {rows}' if kind == 'sum' else ''}", x.dtype, kept, x.most, False)
    elif kind == "turned":
        g.let(f"jnp.swapaxes({name}, -1, -2)", x.dtype, (*x.dims[:at], x.dims[-1], rows), x.most, False)
    elif kind == "flat":
        g.let(f"{name}.reshape(-1)", x.dtype, (x.size,), x.most, False)
    elif kind == "product":
        text = f"(jnp.swapaxes({name}, -1, -2) @ ({name} * 2) / {rows}.0).astype({name}.dtype)"
        g.let(text, x.dtype, (*x.dims[:at], x.dims[-1], x.dims[-1]), 30, False)
    else:
        g.like(x, f"jnp.where((jnp.arange({rows}) % 3 < 1)[:, None], {name}, 0)")
