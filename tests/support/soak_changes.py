"""Programs that are drawn, changed: only a part of them is read, or something else stands in the place of a value."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from soak_cases import Case


def read_in_part(case: Case, chooser: random.Random) -> Case:
    """``case`` with only a part of most of its results: what is not read need not be made."""
    shapes = [result.shape for result in jax.eval_shape(case.function(), *case.inputs)]
    given = case.source.partition("(")[2].partition(")")[0]
    parts = [
        f"made[{at}][{', '.join(_part(chooser, size) for size in dims)}]"
        if dims and chooser.random() < 0.8
        else f"made[{at}]"
        for at, dims in enumerate(shapes)
    ]
    lines = [case.source.replace("def program", "def whole", 1), f"def program({given}):"]
    lines += [f"    made = whole({given})", f"    return ({', '.join(parts)},)"]
    return replace(case, source="\n".join(lines))


ALTERED = (
    "({0}).astype(T['bf16'])", "({0}).astype(T['f16'])", "({0}).astype(T['f32'])", "({0}).astype(T['f32'])",
    "(lambda x: x.astype(T['bf16']).astype(x.dtype))({0})", "(lambda x: x.astype(T['f16']).astype(x.dtype))({0})",
    "jnp.flip({0}, -1)", "jnp.roll({0}, 1, 0)", "jnp.roll({0}, 1, -1)", "jnp.clip({0}, -2, 2)",
    "lax.optimization_barrier({0})", "(lambda x: jnp.concatenate([x[:1], x[1:]], 0))({0})",
    "(lambda x: jnp.concatenate([x[..., 1:], x[..., :1]], -1))({0})", "(lambda x: x.at[..., 0].set(0))({0})",
    "(lambda x: x.at[:1].multiply(2))({0})", "(lambda x: x - x[:1] / 4)({0})", "(lambda x: x - x[..., :1] / 4)({0})",
    "(lambda x: jnp.where(x > 0, x, x / 2))({0})", "(lambda x: (x * x * 4 + 1) ** -0.5)({0})",
    "(lambda x: x - x.mean(-1, keepdims=True))({0})", "(lambda x: x + x.max(0, keepdims=True) / 4)({0})",
    "(lambda x: lax.reduce_precision(x, 8, 7))({0})", "(lambda x: jnp.repeat(x[..., :1], x.shape[-1], -1))({0})",
    "(lambda x: x.reshape(-1)[::-1].reshape(x.shape))({0})", "(lambda x: jnp.where(jnp.isfinite(x), x, 0))({0})",
)  # fmt: skip
"""What stands in the place of a value."""
MADE = re.compile(r"    (v\d+) = (.*)")


def altered(case: Case, chooser: random.Random) -> Case:
    """``case`` with something else in the place of up to three of its values, or read as results, too."""
    for _ in range(chooser.randint(1, 3)):
        lines = case.source.splitlines()
        at = chooser.choice([at for at, line in enumerate(lines) if MADE.fullmatch(line)] or [0])
        found = MADE.fullmatch(lines[at])
        if found is None:
            return case
        if chooser.random() < 0.2:
            lines[-1] = f"{lines[-1].removesuffix(')')}{found[1]},)"
        else:
            lines[at] = f"    {found[1]} = {chooser.choice(ALTERED).format(found[2])}"
        changed = replace(case, source="\n".join(lines))
        try:
            results = jax.eval_shape(changed.function(), *case.inputs)
            jax.eval_shape(changed.function(wide=True), *case.inputs)
        except Exception:  # of other types, or dims
            continue
        if any(result.dtype.kind == "c" for result in results):
            continue
        exact = [not jnp.issubdtype(result.dtype, jnp.inexact) for result in results]
        case = replace(changed, exact=exact)
    return case


def _part(chooser: random.Random, size: int) -> str:
    """Text of a slice, or of one place, of a dim; most often all of it."""
    if not size or chooser.random() < 0.6:
        return ":"
    first = chooser.choice((0, 0, size - 1, chooser.randrange(size)))
    if chooser.random() < 0.4:
        return str(first)
    return chooser.choice((f"{first}:", f":{first + 1}", f"{first}:{first + 1}", f"{first}::2", "::-1"))
