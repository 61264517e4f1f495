"""Drawn programs of plain JAX on meshes of one and two axes: values beside jaxlib's CPU client on one device.

Arrays are split along any of their dims, by any axes, results too; some values have constraints in the middle. Where
values differ by more than a little, both are compared with FP64. Run as a script with the platforms ``neuron,cpu`` and
4 devices of the first: ``test_sharding`` does it for some numbers, and

    JAX_PLATFORMS=neuron,cpu NEURON_NUM_DEVICES=8 python tests/support/sharded_programs.py --from 0 --to 500

for any: a line for each program whose values differ, or whose contractions are computed alike without a warning.
"""

import argparse
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from case_report import report
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SIZES = (8, 16, 24, 32, 8, 16, 12)
TOLERANCE = 5e-4


class Draft:
    """A program as a list of steps, each from a list of arrays to one more."""

    def __init__(self, number, devices):
        self.random = random = np.random.default_rng(number)
        grids = [(devices,), (2, devices // 2), (devices // 2, 2)]
        self.grid = grids[random.integers(len(grids))]
        self.axes = ("a", "b")[: len(self.grid)]
        self.steps = []
        rank = int(random.integers(2, 5))
        dims = [int(random.choice(SIZES)) for _ in range(rank)]
        self.arrays = [self.normal(*dims), self.normal(*dims)]
        self.given = 2
        self.text = []
        self.made = [jnp.asarray(each) for each in self.arrays]
        for _ in range(int(random.integers(3, 8))):
            self.step()
        self.specs = [self.spec(each.shape) for each in self.arrays]
        self.split_result = bool(random.integers(2))
        self.result = self.spec(self.made[-1].shape)
        self.differentiated = bool(random.integers(2))

    def normal(self, *dims):
        return self.random.standard_normal(dims).astype(np.float32)

    def spec(self, dims, whole=0.15):
        """A split of some of the dims that the axes divide."""
        free = list(self.random.permutation(self.axes))
        parts = [[] for _ in dims]
        for axis in free:
            if not dims or self.random.random() < whole:
                continue
            size = self.grid[self.axes.index(axis)]
            at = int(self.random.integers(len(dims)))
            taken = int(np.prod([self.grid[self.axes.index(each)] for each in parts[at]]))
            if dims[at] % (size * taken) == 0:
                parts[at].append(str(axis))
        return P(*(tuple(each) if each else None for each in parts))

    def weight(self, *dims):
        """One more argument of the program; its number."""
        self.arrays.append(self.normal(*dims) / np.sqrt(dims[-2] if len(dims) > 1 else 1))
        return len(self.arrays) - 1

    def step(self):
        at = len(self.made) - 1 - int(self.random.integers(2))
        x = self.made[at]
        names = [name for name in KINDS if KINDS[name][0](x)]
        name = names[self.random.integers(len(names))]
        function = KINDS[name][1](self, x)
        made = function(x, [jnp.asarray(each) for each in self.arrays], None)
        if made.size > 1 << 16 or made.ndim > 4 or made.ndim < 1 or made.size < 8:
            return
        self.text.append(f"v{len(self.made)} = {name}(v{at})")
        self.steps.append((at, function))
        self.made.append(made)

    def program(self, mesh=None):
        def run(*arrays):
            made = list(arrays[: self.given])
            for at, function in self.steps:
                made.append(function(made[at], arrays, mesh))
            return made[-1] * 2

        if self.differentiated:
            return lambda *arrays: jax.grad(lambda *each: (jnp.sin(run(*each)) ** 2).sum(), (0, 1))(*arrays)
        return run


def _dim(draft, x):
    return int(draft.random.integers(x.ndim))


def _elementwise(draft, x):
    kind = [jnp.tanh, lambda x: jax.nn.gelu(x) + 0.5, lambda x: x * jax.nn.sigmoid(x)][draft.random.integers(3)]
    return lambda x, arrays, mesh: kind(x)


def _product(draft, x):
    number = draft.weight(x.shape[-1], int(draft.random.choice(SIZES)))
    return lambda x, arrays, mesh: x @ arrays[number]


def _own_product(draft, x):
    dim = _dim(draft, x)

    def function(x, arrays, mesh):
        rows = jnp.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
        return rows @ rows.T / rows.shape[1]

    return function


def _attention(draft, x):
    def function(x, arrays, mesh):
        x = x.reshape(-1, *x.shape[-2:])
        return jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x, x) / 4, axis=-1) @ x

    return function


def _row_kind(draft, x):
    dim = _dim(draft, x)
    kinds = [
        lambda x: jax.nn.softmax(x, dim),
        lambda x: (x - x.mean(dim, keepdims=True)) * lax.rsqrt(x.var(dim, keepdims=True) + 1),
        lambda x: x - x.max(dim, keepdims=True),
        lambda x: jnp.cumsum(x, dim) / 8,
        lambda x: jnp.sort(x, dim),
        lambda x: lax.associative_scan(jnp.add, x / 4, axis=dim),
        lambda x: lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (jnp.cos(x), x), axis=dim)[1],
        lambda x: jnp.abs(jnp.fft.fft(x, axis=dim)) / 4,
        lambda x: lax.top_k(jnp.moveaxis(x, dim, -1), 5)[0],
        lambda x: x * jax.nn.one_hot(jnp.argmax(x, dim), x.shape[dim], axis=dim),
        lambda x: jnp.roll(x, 3, dim) - x,
        lambda x: jnp.flip(x, dim),
        lambda x: jnp.concatenate([-lax.slice_in_dim(x, 4, None, axis=dim), lax.slice_in_dim(x, 0, 4, axis=dim)], dim),
        lambda x: (
            lax.slice_in_dim(x, 1, None, 2, axis=dim) * lax.slice_in_dim(x, 0, None, 2, axis=dim)
            if x.shape[dim] % 2 == 0
            else x
        ),
        lambda x: jnp.pad(x, [(1, 2) if at == dim else (0, 0) for at in range(x.ndim)]),
        lambda x: jnp.take(x, jnp.array([3, 1, 1, 7]), axis=dim),
        lambda x: lax.dynamic_slice_in_dim(x, (jnp.abs(x).sum() * 0).astype(int) + 2, 4, dim),
        lambda x: lax.dynamic_update_slice_in_dim(x, lax.slice_in_dim(x, 0, 2, axis=dim) * 2, 3, dim),
        lambda x: x.sum(dim) if x.ndim > 1 else x,
        lambda x: jnp.repeat(x, 2, dim),
    ]
    kind = kinds[draft.random.integers(len(kinds))]
    return lambda x, arrays, mesh: kind(x)


def _parts(draft, x):
    """What a fused projection makes, taken apart, and put together in another order."""
    count = int(draft.random.choice([2, 4]))
    dim = next(dim for dim in draft.random.permutation(x.ndim) if x.shape[dim] % 4 == 0)
    order, kind = draft.random.permutation(count), int(draft.random.integers(3))

    def function(x, arrays, mesh):
        parts = jnp.split(x, count, dim)
        if kind == 0:
            return jnp.concatenate([parts[at] * (at + 1) for at in order], dim)
        return parts[order[0]] * jax.nn.sigmoid(parts[order[1]]) + (parts[order[-1]] if kind == 1 else 0)

    return function


def _reshape(draft, x):
    kind, dim = int(draft.random.integers(3)), int(draft.random.integers(max(1, x.ndim - 1)))
    order = draft.random.permutation(x.ndim)
    parts = int(draft.random.choice([2, 4]))

    def function(x, arrays, mesh):
        if kind == 0 or x.ndim < 2:
            return x.transpose(order)
        if kind == 1 and x.shape[dim] % parts == 0:
            return x.reshape(*x.shape[:dim], parts, -1, *x.shape[dim + 1 :])
        return x.reshape(*x.shape[:dim], -1, *x.shape[dim + 2 :])

    return function


def _layers(draft, x):
    count, width = int(draft.random.choice([4, 8])), x.shape[-1]
    number, remat = draft.weight(count, width, width), bool(draft.random.integers(2))

    def function(x, arrays, mesh):
        def layer(h, w):
            h = jnp.tanh(h @ w) + h / 2
            return h, h.sum(-1)

        h, rows = lax.scan(jax.checkpoint(layer) if remat else layer, x, arrays[number])
        return h + rows.sum(0)[..., None]

    return function


def _steps(draft, x):
    dim, number = _dim(draft, x), draft.weight(x.shape[-1], x.shape[-1])

    def function(x, arrays, mesh):
        rows = jnp.moveaxis(x, dim, 0)

        def step(h, row):
            h = jnp.tanh(h * 0.5 + (row @ arrays[number] if dim < x.ndim - 1 else row))
            return h, h

        return lax.scan(step, jnp.zeros(rows.shape[1:]), rows)[1]

    return function


def _accumulated(draft, x):
    parts, number = int(draft.random.choice([2, 4, 8])), draft.weight(x.shape[-1], 16)

    def function(x, arrays, mesh):
        rows = x.reshape(-1, x.shape[-1])
        rows = rows.reshape(parts, -1, x.shape[-1]) if rows.shape[0] % parts == 0 else rows[None]

        def part(total, rows):
            return total + rows.T @ jnp.tanh(rows @ arrays[number]), None

        return lax.scan(part, jnp.zeros((x.shape[-1], 16)), rows)[0] / 8

    return function


def _indexed(draft, x):
    dim = _dim(draft, x)

    def function(x, arrays, mesh):
        rows = jnp.moveaxis(x, dim, 0)

        def part(i, total):
            return total + lax.dynamic_slice_in_dim(rows, 2 * i, 2, 0).sum(0) * (i + 1)

        return lax.fori_loop(0, rows.shape[0] // 2, part, jnp.zeros(rows.shape[1:])) / 8

    return function


def _segments(draft, x):
    places = draft.random.integers(0, 6, x.shape[0]).astype(np.int32)
    return lambda x, arrays, mesh: jax.ops.segment_sum(x, jnp.asarray(places), 8) / 2


def _branch(draft, x):
    return lambda x, arrays, mesh: lax.cond(x.sum() * 0 < 1, lambda x: jnp.tanh(x) * 2, lambda x: jnp.cos(x), x)


def _dropout(draft, x):
    key = int(draft.random.integers(100))
    return lambda x, arrays, mesh: jnp.where(jax.random.bernoulli(jax.random.key(key), np.float32(0.8), x.shape), x, 0)


def _convolved(draft, x):
    number, stride = draft.weight(3, 3, x.shape[-1], 8), int(draft.random.integers(1, 3))
    layout = ("NHWC", "HWIO", "NHWC")

    def function(x, arrays, mesh):
        made = lax.conv_general_dilated(x, arrays[number] / 3, (stride, 1), "SAME", dimension_numbers=layout)
        return lax.reduce_window(made, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 1, 1), "SAME")

    return function


def _constrained(draft, x):
    spec = draft.spec(x.shape)
    return lambda x, arrays, mesh: x if mesh is None else lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def _any(x):
    return True


def _wide(x):
    return x.ndim >= 2


KINDS = {
    "elementwise": (_any, _elementwise),
    "product": (_wide, _product),
    "own product": (_wide, _own_product),
    "attention": (_wide, _attention),
    "rows": (lambda x: min(x.shape) >= 8, _row_kind),
    "more rows": (lambda x: min(x.shape) >= 8, _row_kind),
    "parts": (lambda x: any(size % 4 == 0 for size in x.shape), _parts),
    "reshape": (_wide, _reshape),
    "layers": (_wide, _layers),
    "steps": (_wide, _steps),
    "accumulated": (_wide, _accumulated),
    "indexed": (lambda x: min(x.shape) > 1, _indexed),
    "segments": (_wide, _segments),
    "branch": (_any, _branch),
    "dropout": (_any, _dropout),
    "convolved": (lambda x: x.ndim == 4 and min(x.shape) >= 4, _convolved),
    "constrained": (_any, _constrained),
}


def compared(number, devices):
    """What is wrong with a drawn program, and its draft."""
    draft = Draft(number, devices)
    cpu = jax.devices("cpu")[0]
    expected = jax.jit(draft.program())(*(jax.device_put(each, cpu) for each in draft.arrays))
    mesh = Mesh(np.array(jax.devices("neuron")[:devices]).reshape(draft.grid), draft.axes)
    given = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(draft.arrays, draft.specs, strict=True)]
    results = draft.specs[:2] if draft.differentiated else draft.result
    options = {}
    if draft.split_result:
        options["out_shardings"] = jax.tree.map(
            lambda s: NamedSharding(mesh, s), results, is_leaf=lambda s: isinstance(s, P)
        )
        if draft.differentiated:
            options["out_shardings"] = tuple(options["out_shardings"])
    made = jax.jit(draft.program(mesh), **options)(*given)
    worst = _difference(made, expected)
    if not worst <= TOLERANCE:
        with jax.enable_x64(True):
            exact = jax.jit(draft.program())(*(jax.device_put(each.astype(np.float64), cpu) for each in draft.arrays))
        if _difference(made, exact) <= TOLERANCE + 3 * _difference(expected, exact):
            worst = 0.0  # rounding
    return (f"differs by {worst:.1e}" if not worst <= TOLERANCE else ""), draft


def _difference(made, expected):
    """The largest, of any result, as a part of its largest value."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, (a.shape, b.shape)
        worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() + 1e-3)))
    return worst


def _described(draft):
    shapes = ", ".join(f"{each.shape} {spec}" for each, spec in zip(draft.arrays, draft.specs, strict=True))
    ending = "gradient" if draft.differentiated else f"result {draft.result if draft.split_result else 'free'}"
    return f"mesh {draft.grid}; {shapes}; {'; '.join(draft.text)}; {ending}"


def _all_right(first, last):
    for number in range(first, last):
        problem, draft = compared(number, len(jax.devices("neuron")))
        assert not problem, f"{number}: {problem}: {_described(draft)}"


def case_drawn_first():
    _all_right(0, 12)


def case_drawn_more():
    _all_right(12, 24)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", type=int, dest="first")
    parser.add_argument("--to", type=int, dest="last")
    arguments = parser.parse_args()
    wrong = 0
    for number in range(arguments.first, arguments.last):
        draft = Draft(number, len(jax.devices("neuron")))
        try:
            problem, draft = compared(number, len(jax.devices("neuron")))
        except Exception:
            problem = "".join(traceback.format_exc().splitlines(keepends=True)[-3:])
        if problem:
            wrong += 1
            print(f"{number}: {problem}: {_described(draft)}", flush=True)
    print(f"{wrong} of {arguments.last - arguments.first} are wrong")


if __name__ == "__main__":
    main() if any(each.startswith("--") for each in sys.argv) else report(globals())
