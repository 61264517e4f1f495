"""Programs of plain JAX: loops, scans, branches, derivatives and other functions of functions, and random numbers."""

from __future__ import annotations

from plain_jax import FLOATS, Plain

STEPS = (
    "jnp.tanh(c + x)",
    "c * 0.5 + x",
    "jnp.maximum(c, x) - 0.1",
    "c - x * jnp.sin(c)",
    "jnp.where(x > 0, c, x)",
    "c[..., ::-1] * 0.9 + x",
)
FOLDS = ("a + b", "a * b", "jnp.maximum(a, b)", "jnp.minimum(a, b)", "a * 0.5 + b", "jnp.logaddexp(a, b)")


def scan(p: Plain) -> None:
    n, dims = p.one_of((1, 2, 3, 7, 17)), tuple(min(size, 33) for size in p.dims(1, 3, empty=False))
    dtype = p.one_of(FLOATS)
    x, c = p.given(dtype, (n, *dims)), p.given(dtype, dims)
    step, out = (
        p.one_of(STEPS),
        p.one_of(("c", "x * 2", "(c, x.sum())", "c.sum(0)", "None", "{'a': c.T, 'b': x > 0}", "c.astype(T['bf16'])")),
    )
    options = f"reverse={p.chance(0.3)}, unroll={p.one_of((1, 1, 2))}"
    body = p.one_of(("f", "f", "jax.checkpoint(f)", "jax.jit(f)"))
    p.lines.append(f"f = lambda c, x: (({step}).astype(c.dtype), {out})")
    name = p.let(f"lax.scan({body}, {c}, {x}, {options})")
    p.give(f"*jax.tree.leaves({name})")


def associative(p: Plain) -> None:
    dims = tuple(min(size, 129) for size in p.dims(1, 3, empty=False))
    axis = p.some(0, len(dims) - 1)
    x = p.let(f"jnp.tanh({p.given('f32', dims)})")
    fold = p.one_of(FOLDS[:4])
    if p.chance(0.4):
        y = p.given("f32", dims)
        step, back = "lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])", p.chance(0.3)
        p.give(f"*lax.associative_scan({step}, ({x}, {y}), axis={axis}, reverse={back})")
    elif p.chance(0.3):
        p.give(f"lax.reduce({x}, T['f32'].type(0), lambda a, b: a + b, ({axis},))")
    else:
        p.give(f"lax.associative_scan(lambda a, b: {fold}, {x}, axis={axis}, reverse={p.chance(0.3)})")


def loop_whole(p: Plain) -> None:
    """Trip counts and places that the run decides."""
    dims = p.dims(1, 3, empty=False)
    dtype = p.one_of(("s32", "f32", "s8", "u16", "bf16"))
    x, i = p.given(dtype, dims, True), p.given("s32", (3,), True)
    step = p.one_of(
        (
            "jnp.roll(x, 1, 0)",
            "jnp.maximum(x, x[::-1])",
            "x.at[k % x.shape[0]].set(0)",
            "-x",
            "jnp.where(k % 2 == 0, x, x[::-1])",
            "lax.dynamic_update_slice_in_dim(x, x[:1], k, 0)",
            "jnp.sort(x, 0)",
            "x ^ 1" if dtype in ("s32", "s8", "u16") else "x * -1",
        )
    )
    text = p.one_of(
        (
            f"lax.fori_loop({p.some(0, 2)}, {p.some(0, 5)}, lambda k, x: {step}, {x})",
            f"lax.fori_loop(0, jnp.abs({i}[0]), lambda k, x: {step}, {x})",
            f"lax.while_loop(lambda s: s[0] < {i}[1], lambda s: (s[0] + 1, (lambda k, x: {step})(s[0], s[1])), "
            f"(jnp.int32(-2), {x}))[1]",
            f"lax.switch({i}[2] % 3, [lambda x: x, lambda x: (lambda k: {step})(3), lambda x: x[::-1]], {x})",
            f"lax.cond({i}[0] > {i}[1], lambda x: (x, x.sum(dtype=x.dtype) * 0), "
            f"lambda x: ((lambda k: {step})(1), x.max()), {x})[0]",
            f"lax.map(lambda x: x[::-1] if x.ndim else x * 1, {x})",
            f"jax.vmap(lambda x, k: lax.dynamic_index_in_dim(x, k, 0, False) if x.ndim else x, (0, None))({x}, {i}[0])",
            f"jax.vmap(lambda k: lax.dynamic_slice_in_dim({x}, k, 1, 0))({i})",
            f"jax.vmap(lambda k: lax.fori_loop(0, jnp.abs(k), lambda _, x: x[::-1], {x}))({i})",
        )
    )
    p.give(text)


def derivative(p: Plain) -> None:
    n = p.one_of((1, 2, 3, 5, 9))
    x, w = p.given("f32", (n,)), p.given("f32", (n, n))
    f = p.one_of(
        (
            f"jnp.tanh({w} @ x)",
            "jnp.sin(x) * x[::-1]",
            "jnp.cumsum(x ** 2)",
            "jax.nn.softmax(x)",
            f"jnp.outer(x, x) @ {w}",
            "jnp.sort(x) * x",
            "x / (1 + jnp.linalg.norm(x))",
            "jnp.convolve(x, x, 'same')",
            "jnp.prod(jnp.cos(x)) * x",
            "jnp.where(x > 0, x ** 3, jnp.expm1(x))",
            f"jnp.linalg.solve({w} * 0.1 + 2 * jnp.eye({n}), x)",
            "jnp.fft.rfft(x).real",
            "lax.scan(lambda c, e: (jnp.sin(c + e), c * e), x[0], x)[1]",
        )
    )
    p.lines.append(f"f = lambda x: {f}")
    p.give(
        p.one_of(
            (
                f"jax.jacfwd(f)({x})",
                f"jax.jacrev(f)({x})",
                f"jax.hessian(lambda x: f(x).sum())({x})",
                f"*jax.jvp(f, ({x},), ({x} * 2,))",
                f"*jax.value_and_grad(lambda x: f(x).sum())({x})",
                f"jax.vjp(f, {x})[1](jnp.ones_like(f({x})))[0]",
                f"jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.stack([{x}, {x} + 1]))",
                f"jax.linearize(f, {x})[1]({x})",
                f"jax.grad(lambda x: (jax.grad(lambda y: f(y).sum())(x) ** 2).sum())({x})",
            )
        )
    )


def custom(p: Plain) -> None:
    """Functions with derivatives of their own, nested calls, and vectorised ones."""
    dims = p.dims(1, 3, empty=False)
    x = p.given(p.one_of(FLOATS), dims)
    kind = p.one_of(("vjp", "jvp", "vectorize", "along", "nested", "linear", "apply_over"))
    if kind == "vjp":
        p.lines += [
            "g = jax.custom_vjp(lambda x: jnp.sin(x))",
            "g.defvjp(lambda x: (jnp.sin(x), x), lambda x, t: (t * jnp.clip(x, -1, 1),))",
        ]
        p.give(f"jax.grad(lambda x: g(x).sum())({x})", f"g({x})")
    elif kind == "jvp":
        p.lines += [
            "g = jax.custom_jvp(lambda x: jnp.sqrt(jnp.abs(x)))",
            "g.defjvp(lambda x, t: (g(*x), t[0] * 3 * x[0]))",
        ]
        p.give(f"jax.grad(lambda x: g(x).sum())({x})")
    elif kind == "vectorize":
        p.give(
            f"jnp.vectorize(lambda a, b: a @ b, signature='(n),(n)->()')({x}, {x})",
            f"jnp.vectorize(lambda a: a * 2 + 1)({x})",
        )
    elif kind == "along":
        p.give(f"jnp.apply_along_axis(lambda r: jnp.cumsum(r)[::-1], {p.axis(dims)}, {x})")
    elif kind == "apply_over":
        p.give(f"jnp.apply_over_axes(jnp.sum, {x}, {[p.axis(dims)]})")
    elif kind == "linear":
        p.give(f"lax.custom_linear_solve(lambda v: 2 * v, {x}, lambda f, b: b / 2, symmetric=True)")
    else:
        p.lines.append("g = jax.jit(lambda x, n: x if n == 0 else g(jnp.tanh(x) + n, n - 1), static_argnums=1)")
        p.give(f"g({x}, {p.some(0, 4)})", f"jax.jit(jax.vmap(jax.jit(lambda r: r * r.sum())))({x})")


def attention(p: Plain) -> None:
    b, t, s, n, h = (
        p.some(1, 2),
        p.one_of((1, 3, 17, 64)),
        p.one_of((1, 5, 33)),
        p.one_of((1, 2, 4)),
        p.one_of((1, 8, 16)),
    )
    dtype = p.one_of(("f32", "bf16"))
    q, k, v = p.given(dtype, (b, t, n, h)), p.given(dtype, (b, s, n, h)), p.given(dtype, (b, s, n, h))
    mask = p.one_of(
        ("", f", mask={p.given('pred', (b, 1, t, s))}", ", is_causal=True", f", bias={p.given(dtype, (1, n, t, s))}")
    )
    p.give(f"jax.nn.dot_product_attention({q}, {k}, {v}{mask})")


def random_(p: Plain) -> None:
    dims = p.dims(0, 3, empty=False)
    key = (
        f"jax.random.{p.one_of(('key', 'PRNGKey'))}({p.some(0, 99)})"
        if p.chance(0.5)
        else f"jax.random.wrap_key_data({p.given('u32', (2,), True)})"
    )
    name = p.one_of(
        (
            "uniform(k, {d})",
            "normal(k, {d})",
            "bits(k, {d})",
            "randint(k, {d}, -5, 9)",
            "bernoulli(k, 0.3, {d})",
            "permutation(k, 17)",
            "choice(k, 9, {d})",
            "categorical(k, jnp.zeros(5))",
            "gumbel(k, {d})",
            "exponential(k, {d})",
            "truncated_normal(k, -1, 1, {d})",
            "split(k, 3)",
            "fold_in(k, 7)",
            "laplace(k, {d})",
            "cauchy(k, {d})",
            "rademacher(k, {d})",
            "bits(k, {d}, T['u8'])",
            "uniform(k, {d}, T['bf16'])",
            "permutation(k, jnp.arange(12).reshape(4, 3), axis=1)",
            "logistic(k, {d})",
            "choice(k, jnp.arange(9), (4,), replace=False)",
        )
    )
    text = "jax.random." + name.replace("k,", f"{key},", 1).format(d=dims)
    p.give(f"jax.random.key_data({text})" if name.startswith(("split", "fold")) and "PRNG" not in key else text)


REAL = (scan, scan, associative, derivative, custom, attention)
WHOLE = (loop_whole, loop_whole, random_)
