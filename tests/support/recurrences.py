"""Random programs of recurrences over many steps: filters, queues, gates, and what else reads their states.

    python tests/soak.py --kind recurrences --seed 0 --count 1000

Numbers of steps are those at which plans change: rows of them that an instruction takes at once, that blocks or loops
over ranges take, and of which no partition holds one. Gradients ask which operand an extreme was.
"""

from __future__ import annotations

from plain_jax import FLOATS, Maker, Plain

STEPS = (3, 31, 100, 129, 700, 1500, 4000, 4097, 6500, 11_003)
WIDTHS = (1, 1, 2, 3, 40, 127, 128, 129, 257)
LARGEST = 400_000
"""Elements of an array."""
UPDATES = (
    *("c * 0.9 + x", "jax.nn.sigmoid(y) * c + x", "c + 0.1 * (x - c)", "(c + x) * 0.5", "x * y - 0.7 * c"),
    *("jnp.maximum(c + x, y)", "jnp.maximum(c + x - y, 0)", "jnp.minimum(y + 0.5, c - x)", "jnp.maximum(c, x) - 0.1"),
    *("jnp.maximum(c, x)", "jnp.where(y > 1, x, c * 0.5 + x)", "jnp.where(y > 1, x, c)", "jnp.logaddexp(c, x)"),
)
READ = ("s", "s", "c", "(c, s)", "s - c", "s * y", "None", "(jnp.tanh(s), c.sum())")


def scanned(p: Plain) -> None:
    """A loop that carries one array or two."""
    update, other = p.one_of(UPDATES), p.one_of((None, None, *UPDATES))
    dtype = "f32" if ">" in f"{update}{other}" else p.one_of(FLOATS)
    steps, width = p.one_of(STEPS), p.one_of(WIDTHS)
    while steps * width > LARGEST or (dtype != "f32" and steps > 1000):  # XLA takes a second for a thousand steps
        steps, width = p.one_of(STEPS), p.one_of(WIDTHS)
    dims = p.one_of(((width,), (width,), (2, width) if width < 20 else (width,), ()))
    arrays = ", ".join(p.given(dtype, (steps, *dims)) for _ in range(2))
    start = p.one_of((p.given(dtype, dims), f"jnp.zeros({dims}, T['{dtype}'])"))
    p.lines += ["def f(carry, given):", "    (c, d), (x, y) = carry, given", f"    s = ({update}).astype(c.dtype)"]
    follow = f"(lambda c, y: {other})(d, s).astype(d.dtype)" if other else "d"
    which = ("(s == c + x, s)",) if update.startswith("jnp.maximum(c + x,") and dtype == "f32" else ()
    p.lines.append(f"    return (s, {follow}), {p.one_of((*READ, *which))}")
    last = p.let(f"lax.scan(f, ({start}, {start}), ({arrays}), reverse={p.chance(0.4)})")
    p.give(f"*jax.tree.leaves({last}{p.one_of(('', '', '[1]', '[0]'))})")


def tree(p: Plain) -> None:
    """The same as a tree of pairs."""
    outer, inner = p.one_of((("add", "multiply"), ("maximum", "add"), ("minimum", "add")))
    steps, width = p.one_of(STEPS), p.one_of(WIDTHS[:5])
    axis, dtype = p.one_of((0, 1)), p.one_of(FLOATS)
    dims = (steps, width) if axis == 0 else (width, steps)
    a, b = p.given(dtype, dims), p.given(dtype, dims)
    factor = f"jnp.tanh({a})" if inner == "multiply" else f"({a} * 0.1)"
    p.lines.append(f"g = lambda l, r: (jnp.{inner}(l[0], r[0]), jnp.{outer}(jnp.{inner}(r[0], l[1]), r[1]))")
    made = p.let(f"lax.associative_scan(g, ({factor}, {b}), axis={axis}, reverse={p.chance(0.3)})")
    p.give(f"{made}[1]", *([f"{made}[0]"] if p.chance(0.3) else []))


def makers() -> dict[str, tuple[Maker, bool]]:
    """As those of ``plain_jax``."""
    return {"scanned": (scanned, True), "scanned again": (scanned, True), "tree": (tree, True)}
