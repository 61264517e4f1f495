"""Programs of plain JAX on arrays of equal dims: what mixes dims up, or moves elements, shows in values alone.

Each step masks by the same mask and computes with what is left.
"""

from __future__ import annotations

from plain_jax import Plain

MASKS = (
    "jnp.where({1}, {0}, 0)",
    "jnp.where({1}, {0}, 0)",
    "jnp.where({1}, 0, {0})",
    "jnp.where(~{1}, {0}, 0)",
    "jnp.where({1}, {0}, 1)",
    "jnp.where({1}, {0}, {0} * 0.5)",
    "{0} * {1}",
    "jnp.tril({0})",
    "jnp.triu({0}, 1)",
    "{0}",
)
ANY = (
    "{0} @ {1}",
    "{1} @ {0}",
    "{0} @ {0}",
    "{0}.T * {1}",
    "{0}[::-1]",
    "jnp.roll({0}, 1, -1)",
    "jnp.cumsum({0}, 0)",
    "{0} * {1}",
    "{0} - {1}",
    "{0}[jnp.argsort({1}.ravel()[:{0}.shape[0]])]",
    "jnp.take_along_axis({0}, jnp.argsort({1}, -1), -1)",
    "{0}.sum(0, keepdims=True) * {1}",
    "{0} - {0}.mean(-1, keepdims=True)",
    "jax.nn.softmax({0}, -1)",
    "jnp.concatenate([{0}[1:], {1}[:1]])",
    "{1}.at[0].add({0}[-1])",
    "lax.dynamic_update_slice({1}, {0}[:1], (1,) + (0,) * ({0}.ndim - 1))",
    "lax.scan(lambda c, r: (c * 0.5 + r, c), {0}[0], {1})[1]",
    "jnp.pad({0}, 1)[(slice(2, None),) * {0}.ndim] + {1}",
)
CUBES = (
    "jnp.einsum('ijk,jkl->ikl', {0}, {1})",
    "jnp.einsum('ijk,kjl->jil', {0}, {1})",
    "jnp.einsum('iij,jkk->ijk', {0}, {1})",
    "jnp.einsum('abc,cbd->adb', {0}, {1})",
    "{0}.transpose(1, 2, 0) + {1}",
    "{0} + {1}.transpose(0, 2, 1)",
    "jax.vmap(jnp.matmul, (1, 2), 2)({0}, {1})",
    "lax.map(lambda r: r.T, {0})",
    "{0}.max(0)[:, :, None] * {1}",
)


def squares(p: Plain) -> None:
    rank, size = p.one_of((2, 2, 3)), p.one_of((2, 3, 4, 5, 8))
    dims = (size,) * rank
    x, y, mask = p.given("f32", dims), p.given("f32", dims), p.let(p.given("pred", dims))
    for _ in range(p.some(1, 4)):
        masked = p.let(p.one_of(MASKS).format(x, mask))
        made = p.one_of(ANY if rank == 2 or p.chance(0.5) else CUBES).format(masked, y)
        x, y = p.let(f"({made}) * 0.5" if p.chance(0.3) else made), x if p.chance(0.3) else y
    p.give(p.one_of(MASKS).format(x, mask), *[x] * p.chance(0.3))


REAL = (squares,)
WHOLE = ()
