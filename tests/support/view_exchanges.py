"""Random views in programs of several devices, in types that few programs have, in loops' state, and given back.

A program names collectives by ``D``, which has two meanings: ``Lax`` is JAX's own under ``vmap``, what each device is
to get; ``Marked`` are calls, which ``collectives`` writes as the ops that they stand for in the text of one device.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax_sketch import Value
from view_operands import Drawn, operand

AXIS = "d"
TYPES = ("f32", "f32", "bf16", "s32", "s32", "s8", "u8", "pred")


class Lax:
    """Of arrays that each of ``devices`` has."""

    def __init__(self, devices: int) -> None:
        self.devices = devices

    def own(self, x: Any) -> Any:
        """``x``, as every device may have another one: JAX exchanges wrongly what is the same for all."""
        return jnp.where(lax.axis_index(AXIS) >= 0, x, x)

    def psum(self, x: Any) -> Any:
        return lax.psum(self.own(x), AXIS)

    def pmax(self, x: Any) -> Any:
        return lax.pmax(self.own(x), AXIS)

    def gather(self, x: Any, dim: int) -> Any:
        return lax.all_gather(self.own(x), AXIS, axis=dim, tiled=True)

    def scatter(self, x: Any, dim: int) -> Any:
        return lax.psum_scatter(self.own(x), AXIS, scatter_dimension=dim, tiled=True)

    def swap(self, x: Any, dim: int) -> Any:
        return lax.all_to_all(self.own(x), AXIS, dim, dim, tiled=True)

    def shift(self, x: Any, by: int) -> Any:
        return lax.ppermute(self.own(x), AXIS, [(at, (at + by) % self.devices) for at in range(self.devices)])

    def index(self) -> Any:
        return lax.axis_index(AXIS).astype(jnp.int32)


class Marked(Lax):
    """Calls in place of collectives."""

    def _call(self, name: str, x: Any, dims: tuple[int, ...], number: int = 0) -> Any:
        target = f"exchange.{name}.{number}"
        return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(dims, x.dtype), vmap_method="sequential")(x)

    def psum(self, x: Any) -> Any:
        return self._call("add", x, x.shape)

    def pmax(self, x: Any) -> Any:
        return self._call("maximum", x, x.shape)

    def gather(self, x: Any, dim: int) -> Any:
        dims = [size * (self.devices if at == dim else 1) for at, size in enumerate(x.shape)]
        return self._call("gather", x, tuple(dims), dim)

    def scatter(self, x: Any, dim: int) -> Any:
        dims = [size // (self.devices if at == dim else 1) for at, size in enumerate(x.shape)]
        return self._call("scatter", x, tuple(dims), dim)

    def swap(self, x: Any, dim: int) -> Any:
        return self._call("swap", x, x.shape, dim)

    def shift(self, x: Any, by: int) -> Any:
        return self._call("shift", x, x.shape, by)

    def index(self) -> Any:
        return jax.ffi.ffi_call("exchange.index.0", jax.ShapeDtypeStruct((), jnp.uint32))().astype(jnp.int32)


_CALL = re.compile(
    r"(?P<head>= (?P<type>\w+)\[[\d,]*\](?:\{[\d,]*\})?) custom-call\((?P<operand>[^)]*)\).*"
    r'custom_call_target="exchange\.(?P<name>\w+)\.(?P<number>\d+)".*'
)


def collectives(text: str, devices: int) -> str:
    """HLO text of a program on which each of ``devices`` runs: marked calls are collectives."""
    combiners = set()

    def written(found: re.Match[str]) -> str:
        head, operand, name, number = (found[each] for each in ("head", "operand", "name", "number"))
        groups = "replica_groups={}"
        if name == "index":
            return f"{head} replica-id()"
        if name == "shift":
            pairs = ",".join(f"{{{at},{(at + int(number)) % devices}}}" for at in range(devices))
            return f"{head} collective-permute({operand}), source_target_pairs={{{pairs}}}"
        if name in ("gather", "swap"):
            opcode = {"gather": "all-gather", "swap": "all-to-all"}[name]
            return f"{head} {opcode}({operand}), {groups}, dimensions={{{number}}}"
        combiners.add(("add" if name == "scatter" else name, found["type"]))
        combiner = f"exchanged_{'add' if name == 'scatter' else name}_{found['type']}"
        if name == "scatter":
            return f"{head} reduce-scatter({operand}), {groups}, dimensions={{{number}}}, to_apply={combiner}"
        return f"{head} all-reduce({operand}), {groups}, to_apply={combiner}"

    text = _CALL.sub(written, text)
    head, body = text.split("\n", 1)
    made = "".join(
        f"\nexchanged_{name}_{dtype} {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
        f"  ROOT c = {dtype}[] {name}(a, b)\n}}\n"
        for name, dtype in sorted(combiners)
    )
    return f"{head}, replica_count={devices}\n{made}{body}"


# ---- makers and readers ----------------------------------------------------------------------------------------


def exchanged(g: Drawn, x: Value) -> Value:
    """What the devices have of ``x``, as one of them gets it."""
    n, dims = g.devices, x.dims
    at = g.random.randrange(len(dims)) if dims else 0
    kinds = ["D.shift({}, 1)"]
    if x.dtype != "pred":
        kinds.append("D.pmax({})")
        if x.most * n < g.limit(x.dtype):
            kinds += ["D.psum({})"] * 2
    if dims:
        kinds += [f"D.gather({{}}, {at})"] * 2
        if dims[at] % n == 0:
            kinds.append(f"D.swap({{}}, {at})")
            kinds += [f"D.scatter({{}}, {at})"] * ("D.psum({})" in kinds)
    kind = g.random.choice(kinds)
    most = x.most * n if "sum" in kind or "scatter" in kind else x.most
    if "gather" in kind:
        dims = (*dims[:at], dims[at] * n, *dims[at + 1 :])
    elif "scatter" in kind:
        dims = (*dims[:at], dims[at] // n, *dims[at + 1 :])
    return g.let(kind.format(x.name), x.dtype, dims, most, x.exact)


def received(g: Drawn, dtype: str, dims: tuple[int, ...], most: float) -> Value | None:
    """A value of this type and shape that comes from the other devices."""
    n, at = g.devices, g.random.randrange(len(dims)) if dims else 0
    kinds = ["shift", "pmax", "psum"] if dtype != "pred" else ["shift"]
    kinds += ["gather"] * 2 * bool(dims and dims[at] % n == 0) + ["scatter"] * bool(dims and dtype != "pred")
    kind = g.random.choice(kinds)
    bound = most // n if kind in ("psum", "scatter") else most
    if bound < 1 or n * prod(dims) > 4 * g.largest:
        return None
    source = list(dims)
    if kind == "gather":
        source[at] //= n
    elif kind == "scatter":
        source[at] *= n
    x = operand(g, dtype, tuple(source), bound, g.random.choice((0, 1)))
    text = f"D.{kind}({x.name}{f', {at}' if kind in ('gather', 'scatter') else ', 1' if kind == 'shift' else ''})"
    return g.let(text, dtype, dims, x.most * (n if kind in ("psum", "scatter") else 1), x.exact)


def exchange(g: Drawn) -> None:
    """Collectives of views, one after the other, and some inside a loop."""
    x = operand(g, g.random.choice(TYPES), g.shape(g.random.choice((1, 2, 2, 3)), g.largest / 4), 3)
    if g.chance(0.25) and x.dtype != "pred":
        step = g.random.choice(
            (
                "D.shift(x, 1)",
                "jnp.minimum(D.psum(x), 3)",
                "jnp.flip(D.pmax(x), 0)",
                "jnp.maximum(x, D.index().astype(x.dtype))",
            )
        )
        x = g.like(x, f"lax.fori_loop(0, {g.random.choice((1, 2, 3))}, lambda i, x: {step}, {x.name})", max(x.most, 4))
    for _ in range(g.random.choice((1, 1, 2))):
        if x.size <= 2 * g.largest:
            x = exchanged(g, x)
    if g.chance(0.4) and x.dims:
        g.like(x, f"jnp.flip({x.name}, {g.random.randrange(len(x.dims))})")


def state(g: Drawn) -> None:
    """A loop whose end the run decides, whose state and whose body are views of what it carries and of outside."""
    dims = g.shape(g.random.choice((1, 2, 2, 3)), g.largest / 4)
    dtype = g.type(("f32", "f32", "s32", "bf16", "s8", "pred"))
    h, other = operand(g, dtype, dims, 3), operand(g, dtype, dims[::-1], 3)
    rows = operand(g, dtype, (g.random.choice((3, 4, 7)), *dims), 3)
    end = operand(g, "s32", (2,), 3)
    steps = [
        "jnp.flip(h, 0)",
        "o.transpose()",
        "jnp.roll(h, 1, 0)",
        "lax.dynamic_index_in_dim(R, i, 0, False)",
        "R[1]",
        "h",
    ]
    steps += ["jnp.maximum(h, o.transpose())", "jnp.minimum(h, R[-1])"] if dtype != "pred" else ["h ^ R[0]"]
    step = g.random.choice(steps).replace("R", rows.name)
    back = g.random.choice(("h.transpose()", "jnp.flip(o)", f"({step}).transpose()", "o"))
    text = (
        f"lax.while_loop(lambda s: s[0] < {end.name}[{g.random.randrange(2)}], "
        f"lambda s: (lambda i, h, o: (i + 1, {step}, {back}))(*s), "
        f"(jnp.int32({g.random.choice((0, -1))}), {h.name}, {other.name}))"
    )
    name = g.name("t")
    g.lines.append(f"{name} = {text}")
    g.let(f"{name}[1]", dtype, dims, max(h.most, other.most, rows.most), True)
    if g.chance(0.6):
        g.let(f"{name}[2]", dtype, dims[::-1], max(h.most, other.most, rows.most), True)


def aliases(g: Drawn) -> None:
    """Several results that are views of one array, or views of views of it."""
    dims = g.shape(g.random.choice((1, 2, 2, 3)), g.largest / 2)
    x = operand(g, g.type(TYPES), dims, 3)
    for text in g.random.sample(ALIASES, g.random.choice((2, 3, 4))):
        made = g.let(text.format(x.name), x.dtype, dims, x.most, x.exact)
        found = jax.eval_shape(
            lambda given, text=text: eval(text.format("given")), jax.ShapeDtypeStruct(dims, jnp.float32)
        )
        g.values[-1] = Value(made.name, made.dtype, tuple(found.shape), made.most, made.exact)
    g.also += g.values[-4:]


ALIASES = (
    "{0}",
    "{0}.T",
    "{0}[::2]",
    "jnp.flip({0}, 0)",
    "{0}.reshape(-1)",
    "{0}[..., :1]",
    "{0}[1:]",
    "{0}.ravel()[::-1]",
    "{0}[None]",
    "{0}.T[::2].reshape(-1)",
)
