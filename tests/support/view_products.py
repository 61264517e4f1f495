"""Readers of random views: contractions with what follows them, attentions, convolutions and their gradients."""

from __future__ import annotations

from math import prod

from jax_sketch import Value
from view_folds import FLOATS
from view_operands import Drawn, operand

WORK = 6_000_000
"""Products of a contraction."""

FORMS = ("mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "mk,kn->nm", "km,kn->nm", "mpk,kn->mpn", "mkl,kln->mn")
FORMS += ("mpk,nk->pnm", "kpl,lnk->pn", "k,kn->n", "mk,k->m")
BATCHED = ("bmk,bkn->bmn", "bmk,bnk->bmn", "mbk,kbn->bmn", "bmk,nbk->mbn", "bcmk,bckn->bcmn", "cbmk,bkcn->bmcn")
BATCHED += ("bkm,bkn->mnb", "bk,bkn->bn", "bmk,bk->bm")


def _sizes(g: Drawn, form: str, few: int | None = None) -> dict[str, int]:
    left, right = form.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for letter in dict.fromkeys(left + right):
        room = g.largest ** (0.45 if len(set(left + right)) > 3 else 0.6)
        sizes[letter] = g.size(max(room, 2)) if g.chance(0.7) else g.size(2 * room)
    if few is not None:
        sizes["m"] = few
    while prod(sizes.values()) > WORK or max(prod(sizes[c] for c in side) for side in (left, right)) > 2 * g.largest:
        largest = max(sizes, key=lambda c: sizes[c])
        sizes[largest] = sizes[largest] // 2
    return sizes


def _contraction(g: Drawn, form: str, few: int | None = None) -> Value:
    sizes = _sizes(g, form, few)
    left, right = form.split("->")[0].split(",")
    dtype = g.type((*FLOATS, "f32", "s8", "s32"))
    wanted = {"s8": "s32", "u8": "s32", "bf16": "f32", "f16": "f32", "f8e4m3fn": "f32", "f8e5m2": "f32"}.get(
        dtype, dtype
    )
    depth = prod(size for letter, size in sizes.items() if letter not in form.split("->")[1])
    x = operand(g, dtype, tuple(sizes[c] for c in left), 3)
    y = operand(g, dtype, tuple(sizes[c] for c in right), 3)
    text = f"jnp.einsum('{form}', {x.name}, {y.name}, preferred_element_type=T['{wanted}'])"
    dims = tuple(sizes[c] for c in form.split("->")[1])
    return g.let(text, wanted, dims, x.most * y.most * depth, x.exact and y.exact)


def dot(g: Drawn) -> None:
    z = _contraction(g, g.random.choice(FORMS))
    if g.chance(0.3):
        g.like(z, f"jnp.minimum({z.name}, 7)")


def batched_dot(g: Drawn) -> None:
    _contraction(g, g.random.choice(BATCHED))


def thin_dot(g: Drawn) -> None:
    """Few rows."""
    z = _contraction(g, g.random.choice(FORMS[:7]), g.random.choice((1, 1, 2, 3, 4, 8, 16)))
    if g.chance(0.5):
        kept = tuple(size if at == len(z.dims) - 1 else 1 for at, size in enumerate(z.dims))
        g.like(z, f"{z.name} + {operand(g, z.dtype, kept).name}", z.most + 3)


def epilogue(g: Drawn) -> None:
    """What sums are added to or multiplied by as they leave PSUM."""
    z = _contraction(g, g.random.choice((*FORMS[:7], *FORMS[:7], *BATCHED[:2])))
    for _ in range(g.random.choice((1, 2, 2, 3))):
        kept = tuple(1 if g.chance(0.5) else size for size in z.dims) if g.chance(0.5) else z.dims
        y = operand(g, z.dtype, kept, 3)
        kind = g.random.choice(("{0} + {1}", "{0} + {1}", "jnp.maximum({0}, {1})", "{1} - {0}", "where"))
        if kind == "where":
            kind = f"jnp.where({operand(g, 'pred', z.dims, 1).name}, {{0}}, {{1}})"
        z = g.like(z, kind.format(z.name, y.name), z.most + y.most)
    if z.dtype == "f32" and z.most < 200 and g.chance(0.3):
        g.let(f"{z.name}.astype(T['bf16'])", "bf16", z.dims, z.most, z.exact)


def chain(g: Drawn) -> None:
    """A contraction of what a map makes of another one."""
    m, k, n = (g.size(g.largest**0.5) for _ in range(3))
    dtype = g.float_type()
    x, y = operand(g, dtype, (m, k), 1), operand(g, dtype, (k, n), 1)
    z = g.let(f"jnp.clip({x.name} @ {y.name}, -2, 2)", dtype, (m, n), 2, x.exact and y.exact)
    p = g.size(g.largest**0.5)
    dims, text = ((p, m), "{1} @ {0}") if g.chance(0.5) else ((n, p), "{0} @ {1}")
    if g.chance(0.4):
        z = g.like(z, f"jnp.flip({z.name}, {g.random.randrange(2)})")
    w = operand(g, dtype, dims, 1)
    text = "jnp.clip(" + text.format(z.name, w.name) + ", -100, 100)"
    g.let(text, dtype, (p, n) if dims == (p, m) else (m, p), 100, z.exact)


def attention(g: Drawn) -> None:
    b, h, d = g.random.choice((1, 1, 2, 3)), g.random.choice((1, 1, 2, 4)), g.random.choice((1, 3, 8, 16, 32, 64, 128))
    t = g.size(min(513, 8 * g.largest / (b * h * d)))
    s = g.random.choice((1, 2, 4, t, t, g.size(max(g.largest // t, 2))))
    s = max(min(s, 16 * g.largest // (b * h * t)), 1)
    dtype = g.float_type()
    form, dims = g.random.choice((("bh{}d", (b, h, 0, d)), ("b{}hd", (b, 0, h, d)), ("h{}bd", (h, 0, b, d))))
    q, k, v = (operand(g, dtype, tuple(size or n for size in dims)) for n in (s, t, t))
    left, right = form.format("s"), form.format("t")
    scores = (b, h, s, t)
    w = g.let(f"jnp.einsum('{left},{right}->bhst', {q.name}, {k.name}) * {d**-0.5 / 3:.4f}", dtype, scores, 9, False)
    for _ in range(g.random.choice((0, 1, 1, 2))):
        kept = tuple(1 if g.chance(0.5) else size for size in scores)
        if g.chance(0.5):
            w = g.like(w, f"jnp.where({operand(g, 'pred', kept, 1).name}, {w.name}, -1e4)")
        else:
            w = g.like(w, f"{w.name} + {operand(g, dtype, kept).name}")
    text = f"jnp.einsum('bhst,{right}->{left}', jax.nn.softmax({w.name}, -1), {v.name})"
    o = g.let(text, dtype, tuple(size or s for size in dims), 3, False)
    del g.values[g.values.index(w)]
    if g.chance(0.3):
        g.like(o, f"{o.name} + {operand(g, dtype, o.dims).name}", 6)


# ---- convolutions ------------------------------------------------------------------------------------------


def _convolution(g: Drawn, deep: bool) -> tuple[Value, Value, str, tuple[int, ...]]:
    features, outputs = (g.random.choice(g.features) for _ in range(2))
    groups = g.random.choice((1, 1, 1, 2)) if not deep else features
    if deep:
        outputs = features * g.random.choice((1, 1, 1, 2))
    features, outputs = -(-features // groups) * groups, -(-outputs // groups) * groups
    batch = g.random.choice((1, 1, 2, 3))
    flat = g.chance(0.3)
    taps = [1 if flat else g.random.choice((1, 2, 3, 3, 5)), g.random.choice((1, 3, 3, 4))]
    room = max(g.largest // (2 * batch * max(features, outputs)), 1)
    height = 1 if flat else g.random.choice([n for n in (1, 2, 5, 7, 8, 14, 16) if n * n <= room] or [1])
    width = g.random.choice([n for n in (1, 3, 7, 8, 14, 16, 31, 56, 128, 129, 300) if n * height <= room] or [1])
    steps = [g.random.choice((1, 1, 1, 2, 3)) for _ in taps]
    spread = [g.random.choice((1, 1, 1, 2)) for _ in taps]
    wide = [g.random.choice((1, 1, 1, 1, 2)) for _ in taps]
    pads = []
    for n, d in zip(taps, spread, strict=True):
        low = (n - 1) * d // 2
        pads.append((low, (n - 1) * d - low + g.random.choice((0, 0, 1))))
    sizes = {"N": batch, "C": features, "H": height, "W": width}
    kernel = {"O": outputs, "I": features // groups, "H": taps[0], "W": taps[1]}
    forms = g.random.choice(("NCHW", "NCHW", "NHWC")), g.random.choice(("OIHW", "HWIO"))
    dtype = g.float_type()
    x = operand(g, dtype, tuple(sizes[letter] for letter in forms[0]), 2)
    k = operand(g, dtype, tuple(kernel[letter] for letter in forms[1]), 2)
    ends = {"N": batch, "C": outputs}
    for letter, n, low_high, d, w, step in zip("HW", taps, pads, spread, wide, steps, strict=True):
        ends[letter] = ((sizes[letter] - 1) * w + 1 + sum(low_high) - (n - 1) * d - 1) // step + 1
    text = (
        f"lax.conv_general_dilated({{}}, {{}}, {steps}, {pads}, {wide}, {spread}, "
        f"dimension_numbers={(*forms, forms[0])}, feature_group_count={groups})"
    )
    return x, k, text, tuple(ends[letter] for letter in forms[0])


def _finished(g: Drawn, text: str, dtype: str, dims: tuple[int, ...], exact: bool) -> None:
    """Of narrow types what is exact."""
    z = g.let(f"jnp.clip({text}, -100, 100)" if dtype != "f32" else text, dtype, dims, 100, exact)
    if g.chance(0.3):
        kept = tuple(1 if g.chance(0.5) else size for size in dims)
        g.like(z, f"{z.name} + {operand(g, dtype, kept, 3).name}", 103)


def convolution(g: Drawn) -> None:
    x, k, text, dims = _convolution(g, False)
    _finished(g, text.format(x.name, k.name), x.dtype, dims, x.exact and k.exact)


def depthwise(g: Drawn) -> None:
    x, k, text, dims = _convolution(g, True)
    _finished(g, text.format(x.name, k.name), x.dtype, dims, x.exact and k.exact)


def conv_gradient(g: Drawn) -> None:
    x, k, text, dims = _convolution(g, g.chance(0.2))
    c = operand(g, x.dtype, dims, 1)
    at = g.random.randrange(2)
    value = (x, k)[at]
    text = f"jax.vjp(lambda x, k: {text.format('x', 'k')}, {x.name}, {k.name})[1]({c.name})[{at}]"
    _finished(g, text, x.dtype, value.dims, x.exact and k.exact and c.exact)
