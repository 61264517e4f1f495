"""Programs of plain JAX: contractions, convolutions, windows, Fourier transforms and linear algebra."""

from __future__ import annotations

from plain_jax import FLOATS, Plain

EINSUMS = (
    "ii->i",
    "ii",
    "ii,i->i",
    "iij->j",
    "ij,jk,kl->il",
    "...ij,...jk->...ik",
    "ij->",
    "ij->ji",
    "i,j->ij",
    "ij,ij->i",
    "ijk,kji->",
    "ijij->ij",
    "bij,bjk,bk->bi",
    "i,i,i->i",
    "ij,kl->ijkl",
    "aab,bc->ac",
    "...i,...i",
    "ij...->...ji",
    "abc,cd,db->a",
    "i...,i...->...",
    "ii,jj->ij",
    "abcd,dcba->",
    "ijk,ilk->ijl",
    "ij,j,i->",
    "kk,k->",
    "b...k,kn->b...n",
    "ij,ji->j",
    "aba->b",
    "i,->i",
)


def einsum(p: Plain) -> None:
    form = p.one_of(EINSUMS)
    sizes = {letter: p.one_of((1, 2, 3, 4, 5, 8, 17, 33)) for letter in "abcdijkln"}
    middle = p.dims(0, 2, even=p.some(0, 2)) if "..." in form else ()
    middle = tuple(min(size, 5) for size in middle)
    if form.startswith("abcd"):
        sizes = {letter: min(size, 8) for letter, size in sizes.items()}
    dtype = p.one_of((*FLOATS, "f32"))
    given = []
    for side in form.split("->")[0].split(","):
        dims: tuple[int, ...] = ()
        for letter in side.replace("...", "."):
            dims += middle if letter == "." else (sizes[letter],)
        given.append(p.given(dtype, dims))
    wide = f", preferred_element_type=T['{p.one_of(('f32', dtype))}']" if p.chance(0.3) else ""
    p.give(f"jnp.einsum('{form}', {', '.join(given)}{wide})")


def product(p: Plain) -> None:
    """Products by all their names, of mixed types."""
    k, m, n, b = (p.one_of((1, 2, 3, 5, 8, 17, 64, 127, 128, 129)) for _ in range(4))
    b = min(b, 8)
    first, second = p.one_of(FLOATS), p.one_of((*FLOATS, "f32", "s8", "pred"))
    forms = [
        ("jnp.matmul({}, {})", (m, k), (k, n)),
        ("jnp.matmul({}, {})", (k,), (k, n)),
        ("jnp.matmul({}, {})", (b, m, k), (k,)),
        ("jnp.matmul({}, {})", (b, 1, m, k), (3, k, n)),
        ("jnp.dot({}, {})", (b, 2, k), (2, k, n)),
        ("jnp.dot({}, {})", (k,), (k,)),
        ("jnp.inner({}, {})", (b, m, k), (n, k)),
        ("jnp.outer({}, {})", (m,), (n, 2)),
        ("jnp.vdot({}, {})", (b, k), (b, k)),
        ("jnp.tensordot({}, {}, 1)", (m, k), (k, 2, b)),
        ("jnp.tensordot({}, {}, ((0, -1), (1, 0)))", (k, m, b), (b, k)),
        ("jnp.tensordot({}, {}, 0)", (b, 2), (3,)),
        ("jnp.kron({}, {})", (b, 3), (2, 4)),
        ("{} @ {}.T", (m, k), (n, k)),
        ("{}.T @ {}", (k, m), (k, n)),
        ("{}.mT @ {}", (b, k, m), (b, k, n)),
        ("jnp.vecdot({}, {}, axis=0)", (k, b), (k, b)),
        ("jnp.convolve({}, {}, 'same')", (m,), (b,)),
        ("jnp.correlate({}, {}, 'full')", (m,), (b,)),
        ("jnp.convolve({}, {}, 'valid')", (m,), (b,)),
        ("jnp.cross({}, {})", (m, 3), (3,)),
        ("jnp.polyval({}, {})", (4,), (m,)),
        ("jnp.matvec({}, {})", (b, m, k), (k,)),
        ("jnp.linalg.multi_dot([{0}, {1}, {0}])", (m, n), (n, m)),
        ("jnp.cov({}, {})", (b, k + 1), (2, k + 1)),
        ("jnp.polymul({}, {})", (b + 1,), (3,)),
        (f"lax.batch_matmul({{}}, {{}}.astype(T['{first}']))", (b, m, k), (b, k, n)),
        (f"lax.dot({{}}, {{}}.astype(T['{first}']))", (m, k), (k,)),
    ]
    form, left, right = p.one_of(forms)
    if "cov" in form:
        second = first = "f32"
    p.give(form.format(p.given(first, left), p.given(second, right)))


def product_whole(p: Plain) -> None:
    k, m, n = (p.one_of((1, 2, 5, 16, 33, 128, 129)) for _ in range(3))
    dtype, other = p.one_of(
        (("s8", "s8"), ("u8", "u8"), ("s32", "s32"), ("s8", "u8"), ("s16", "s16"), ("u32", "u32"), ("s8", "bf16"))
    )
    x, y = p.given(dtype, (m, k), True), p.given(other, (k, n), True)
    wide = (
        p.one_of(("s32", "f32"))
        if dtype == other != "u32"
        else "f32"
        if other == "bf16"
        else "u32"
        if dtype == "u32"
        else "s32"
    )
    p.give(
        p.one_of(
            (
                f"lax.dot_general({x}, {y}, (((1,), (0,)), ((), ())), preferred_element_type=T['{wide}'])",
                f"jnp.matmul({x}, {y}, preferred_element_type=T['{wide}'])",
                f"jnp.einsum('ij,jk->ki', {x}, {y}, preferred_element_type=T['{wide}'])",
            )
        )
    )


def convolution(p: Plain) -> None:
    rank = p.one_of((0, 1, 1, 2, 2, 2, 3))
    groups, batches = p.one_of(((1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)))
    spatial = tuple(p.one_of((1, 3, 5, 8, 13)) for _ in range(rank))
    taps = tuple(p.one_of((1, 2, 3, 4)) for _ in range(rank))
    features, outputs = groups * p.one_of((1, 2, 4)), groups * batches * p.one_of((1, 2, 5))
    batch = batches * p.some(1, 2)
    letters = "HWD"[:rank]
    layouts, dims = [], []
    for others, sizes in (("NC", (batch, features)), ("OI", (outputs, features // groups)), ("NC", ())):
        layouts.append("".join(p.random.sample(others + letters, rank + 2)))
        known = dict(zip(others, sizes, strict=False)) | dict(
            zip(letters, taps if others == "OI" else spatial, strict=True)
        )
        dims.append(tuple(known[letter] for letter in layouts[-1]) if sizes else ())
    strides = tuple(p.one_of((1, 1, 2, 3)) for _ in range(rank))
    spread, dilated = (tuple(p.one_of((1, 1, 1, 2, 3)) for _ in range(rank)) for _ in range(2))
    pads = p.one_of(("'SAME'", "'VALID'", "'SAME_LOWER'", str([(p.some(-1, 3), p.some(0, 3)) for _ in range(rank)])))
    if pads.startswith("'") and max(spread, default=1) > 1:  # JAX takes no names there
        pads = str([(p.some(-1, 3), p.some(0, 3)) for _ in range(rank)])
    dtype = p.one_of(("f32", "f32", "bf16", "f16"))
    x, k = p.given(dtype, dims[0]), p.given(dtype, dims[1])
    if p.chance(0.15) and rank:
        numbers = ("N" + letters + "C", letters + "IO", "N" + letters + "C")
        x, k = p.given(dtype, (2, *spatial, 3)), p.given(dtype, (*taps, 3, 4))
        p.give(f"lax.conv_transpose({x}, {k}, {strides}, {p.one_of(('SAME', 'VALID'))!r}, dimension_numbers={numbers})")
        return
    p.give(
        f"lax.conv_general_dilated({x}, {k}, {strides}, {pads}, {spread}, {dilated}, {tuple(layouts)}, "
        f"feature_group_count={groups}, batch_group_count={batches})"
    )


def _window(p: Plain, fold: str, x: str, dims: tuple[int, ...], start: str) -> str:
    sizes = tuple(p.one_of((1, 1, 2, 3, 4)) for _ in dims)
    strides, base, dilated = (
        tuple(p.one_of(choices) for _ in dims) for choices in ((1, 1, 2, 3), (1, 1, 1, 1, 2), (1, 1, 1, 2))
    )
    pads = p.one_of(("'SAME'", "'VALID'", str([(p.some(0, 2), p.some(0, 2)) for _ in dims])))
    if pads == "'VALID'" and any(
        (n - 1) * b + 1 < (w - 1) * d + 1 for n, b, w, d in zip(dims, base, sizes, dilated, strict=True)
    ):
        pads = "'SAME'"
    return (
        f"lax.reduce_window({x}, {start}, lax.{fold}, {sizes}, {strides}, {pads}, base_dilation={base}, "
        f"window_dilation={dilated})"
    )


def window(p: Plain) -> None:
    dims = tuple(max(size, 3) for size in p.dims(1, 4, empty=False))
    x = p.given(p.one_of(FLOATS), dims)
    kind = p.one_of(("add", "max", "min", "pool", "cumlogsumexp", "cumsum", "filter"))
    if kind == "pool":
        x = p.given("f32", (2, 9, 8, 3))
        name = p.one_of(
            (
                "jax.lax.reduce_window({0}, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), 'SAME')",
                "lax.reduce_window({0}, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID') / 4",
                f"jax.image.resize({{0}}, (2, 5, 12, 3), '{p.one_of(('nearest', 'linear', 'cubic', 'lanczos3'))}')",
            )
        )
        p.give(name.format(x))
    elif kind == "cumlogsumexp":
        p.give(f"lax.cumlogsumexp({x}, {p.some(0, len(dims) - 1)}, reverse={p.chance(0.4)})")
    elif kind == "cumsum":
        p.give(
            p.one_of(
                (
                    f"jnp.cumsum({x}, {p.axis(dims)})",
                    f"jnp.cumprod(jnp.cos({x}), {p.axis(dims)})",
                    f"jnp.nancumsum({x})",
                )
            )
        )
    elif kind == "filter":
        p.give(
            p.one_of(
                (
                    f"jnp.gradient({x}.astype(T['f32']), axis={p.axis(dims)})",
                    f"jnp.diff({x}, axis={p.axis(dims)}, prepend=0)",
                    f"jax.scipy.signal.convolve({x}.astype(T['f32']), jnp.ones({(2,) * len(dims)}, T['f32']), 'same')",
                )
            )
        )
    else:
        start = {"add": "0", "max": "-jnp.inf", "min": "jnp.inf"}[kind]
        p.give(_window(p, kind, x, dims, f"np.asarray({start.replace('jnp', 'np')}, {x}.dtype)"))


def window_whole(p: Plain) -> None:
    dims = tuple(max(size, 3) for size in p.dims(1, 4, empty=False))
    dtype = p.one_of(("s32", "s8", "u8", "s16", "f32", "pred", "bf16"))
    x = p.given(dtype, dims, True)
    fold = p.one_of(
        ("and", "or")
        if dtype == "pred"
        else ("max", "min")
        if dtype not in ("s32", "f32")
        else ("add", "max", "min", "mul")
    )
    start = {"add": 0, "mul": 1, "and": True, "or": False, "max": 0 if dtype == "u8" else -4, "min": 4}[fold]
    fold = f"bitwise_{fold}" if dtype == "pred" else fold
    x = f"jnp.clip({x}, -1, 2)" if fold == "mul" else x
    p.give(_window(p, fold, x, dims, f"np.asarray({start}, T['{dtype}'])"))


def fourier(p: Plain) -> None:
    dims = p.dims(1, 3, empty=False)
    dims = tuple(min(size, 129) for size in dims)
    x, y = p.given("f32", dims), p.given("f32", dims)
    axis, norm = p.axis(dims), p.one_of((None, "ortho", "forward"))
    n = p.one_of((None, None, 5, 16))
    z = f"lax.complex({x}, {y})"
    name = p.one_of(("fft", "ifft", "rfft", "irfft", "fftn", "rfft2", "shift", "hfft", "freq", "dct"))
    if name in ("fft", "ifft"):
        made = f"jnp.fft.{name}({p.one_of((x, z))}, n={n}, axis={axis}, norm={norm!r})"
    elif name == "rfft":
        made = f"jnp.fft.rfft({x}, n={n}, axis={axis}, norm={norm!r})"
    elif name in ("irfft", "hfft"):
        if dims[axis] < 2:
            return fourier(p)
        p.give(f"jnp.fft.{name}({z}, n={n}, axis={axis}, norm={norm!r})")
        return None
    elif name == "fftn":
        made = f"jnp.fft.fftn({z}, norm={norm!r})"
    elif name == "rfft2" and len(dims) > 1:
        made = f"jnp.fft.rfft2({x}, norm={norm!r})"
    elif name == "dct":
        p.give(f"jax.scipy.fft.dct({x}, norm='ortho', axis={axis})")
        return None
    else:
        p.give(f"jnp.fft.fftshift({x}, {axis})", f"jnp.fft.ifftshift({x})", f"{x} * jnp.fft.fftfreq({dims[-1]}, 0.5)")
        return None
    p.give(
        p.one_of((f"jnp.real({made})", f"jnp.imag({made})", f"jnp.abs({made})", made, f"jnp.conj({made}) * (1 + 2j)"))
    )
    return None


def algebra(p: Plain) -> None:
    n, m = p.some(1, 6), p.some(1, 6)
    batch = p.one_of(((), (), (2,), (3, 1), (130,)))
    x, b = p.given("f32", (*batch, n, n)), p.given("f32", (*batch, n, m))
    good = p.let(f"jnp.tanh({x}) * 0.3 + 2 * jnp.eye({n}, dtype=T['f32'])")
    square = p.let(f"{good} @ jnp.swapaxes({good}, -1, -2)")
    texts = [
        f"jnp.linalg.det({good})",
        f"jnp.linalg.inv({good})",
        f"jnp.linalg.solve({good}, {b})",
        f"jnp.linalg.cholesky({square})",
        f"jnp.linalg.slogdet({good})[1]",
        f"jnp.linalg.matrix_power({good}, {p.some(-2, 4)})",
        f"jnp.abs(jnp.linalg.qr({good})[1])",
        f"jnp.linalg.norm({b}, axis={p.one_of((-1, -2, (-2, -1)))})",
        f"jax.scipy.linalg.solve_triangular({good}, {b}, trans={p.some(0, 1)}, lower={p.chance(0.5)})"
        if not batch
        else f"jnp.linalg.inv({good}).mT",
        f"jax.scipy.linalg.expm({good} * 0.3)" if not batch else f"jnp.linalg.trace({good})",
        f"jnp.linalg.vector_norm({b}, ord={p.some(1, 3)}, axis=-1)",
        f"lax.linalg.triangular_solve({good}, jnp.swapaxes({b}, -1, -2), lower=True, transpose_a={p.chance(0.5)})",
        f"jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({square}), True), {b})"
        if not batch
        else f"jnp.linalg.slogdet({good})[0]",
        f"jax.scipy.linalg.block_diag({good}, {b})" if not batch else f"jnp.linalg.matrix_norm({b})",
        f"jax.scipy.linalg.toeplitz({b}.ravel()[:9])",
        f"jnp.linalg.solve({good}.T, {b})" if not batch else f"jnp.linalg.diagonal({good})",
        f"jnp.vander({b}.ravel()[:7], 3)",
    ]
    p.give(p.one_of(texts))


def complex_(p: Plain) -> None:
    dims = p.dims(0, 3)
    x, y = (p.let(f"lax.complex({p.given('f32', dims)}, {p.given('f32', dims)})") for _ in range(2))
    texts = [
        "{0} * {1}",
        "{0} / ({1} + 3)",
        "jnp.abs({0})",
        "jnp.exp({0} * 0.5)",
        "jnp.conj({0}) + {1}.T.ravel().reshape({0}.shape)",
        "jnp.angle({0} + 4)",
        "jnp.sum({0}, -1)" if dims else "jnp.real({0})",
        "jnp.where({0}.real > 0, {0}, {1})",
        "jnp.sin({0})",
        "jnp.sqrt({0} + 5)",
        "jnp.log({0} + 5)",
        "{0}[..., ::-1]" if dims else "jnp.imag({0})",
        "jnp.stack([{0}, {1}])",
        "jnp.vdot({0}, {1})",
        "jnp.cumsum({0}, 0)" if dims else "-{0}",
        "jnp.tanh({0} * 0.3)",
        "{0} ** 2",
        "jnp.mean({0})",
        "jnp.prod({0}.ravel()[:5] * 0.5)",
        "jnp.square({0}) - 1j * {1}",
    ]
    p.give(p.one_of(texts).format(x, y))


REAL = (einsum, einsum, product, product, convolution, convolution, window, window, fourier, algebra, complex_)
WHOLE = (product_whole, window_whole)
