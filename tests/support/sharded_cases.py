"""Sharded programs on 4 devices beside jaxlib's CPU client on one: values, and what each device computes.

Run as a script with the platforms ``neuron,cpu`` and 4 devices of the first (``test_sharding``).
"""

import jax
import jax.numpy as jnp
import numpy as np
from case_report import report
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of

DEVICES = np.array(jax.devices("neuron"))
ROWS, PAIRS = Mesh(DEVICES, ("a",)), Mesh(DEVICES.reshape(2, 2), ("a", "b"))
CPU = jax.devices("cpu")[0]
X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((24, 24)).astype(np.float32) / 5
PLACES = ((ROWS, P("a")), (ROWS, P(None, "a")), (PAIRS, P("a", "b")), (PAIRS, P(("b", "a"))))


def close(made, expected):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=2e-4, rtol=2e-4)


def check(function, *arrays, places=PLACES, kept=False):
    """``function`` of arrays of which the first is split in each of ``places``, and, if ``kept``, the result too."""
    expected = jax.jit(function)(*(jax.device_put(each, CPU) for each in arrays))
    for mesh, spec in places:
        rest = [jax.device_put(each, NamedSharding(mesh, P())) for each in arrays[1:]]
        split = NamedSharding(mesh, spec)
        for result in (None, split) if kept else (None,):
            close(jax.jit(function, out_shardings=result)(jax.device_put(arrays[0], split), *rest), expected)


def layers(x, w):
    def layer(h, w):
        return jnp.tanh(h @ w), h[0]

    return lax.scan(jax.checkpoint(layer), x, w)


def case_pads_and_slices():
    check(lambda x: (jnp.pad(x, ((1, 2), (0, 3))), x[:, 1:], x[3:-2], jnp.roll(x, 5, 0)), X)
    check(lambda x: lax.pad(x, np.float32(2), ((-1, 0, 1), (0, -2, 2))), X)
    check(lambda x, i: (lax.dynamic_slice(x, (0, i), (16, 5)), lax.dynamic_slice(x, (i, 0), (3, 24))), X, np.int32(4))
    check(jax.grad(lambda x: (x[3] ** 2).sum() + (x[:, 1:] ** 3).sum() + x[jnp.array([1, 5, 1])].prod(0).sum()), X)


def case_loops_and_branches():
    stack = np.stack([W, W.T, W + 0.1])
    check(layers, X, stack)
    check(jax.grad(lambda x, w: layers(x, w)[0].sum(), (0, 1)), X, stack)
    check(lambda x: lax.fori_loop(0, 5, lambda i, x: x * 0.5 + i, x), X)
    check(lambda x: lax.while_loop(lambda x: jnp.abs(x).sum() > 1, lambda x: x * 0.3, x), X)
    check(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), X)


def case_sums_of_loops():
    def accumulated(x, w):
        def part(total, x):
            return total + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w), None

        return lax.scan(part, jnp.zeros_like(w), x.reshape(4, 4, 24).swapaxes(0, 1))[0]

    check(accumulated, X, W)
    given = [jax.device_put(X, NamedSharding(ROWS, P("a"))), jax.device_put(W, NamedSharding(ROWS, P()))]
    text = jax.jit(accumulated).lower(*given).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert text.count(" all-reduce(") == entry.count(" all-reduce(") == 1, text
    kept = jax.jit(accumulated, out_shardings=NamedSharding(ROWS, P("a"))).lower(*given).compile().as_text()
    assert " reduce-scatter(" in kept
    assert " all-reduce(" not in kept


def case_rows_between_sums():
    def layer(x, given):
        up, down, key = given
        made = jnp.tanh(x / jnp.linalg.norm(x, axis=-1, keepdims=True) @ up) @ down
        return x + jnp.where(jax.random.bernoulli(key, 0.9, x.shape), made, 0), None

    def net(x, up, down):
        return lax.scan(jax.checkpoint(layer), x, (up, down, jax.random.split(jax.random.key(1), 2)))[0]

    def gradients(x, up, down):
        return jax.grad(lambda *weights: (net(x, *weights) ** 2).sum(), (0, 1))(up, down)

    random = np.random.default_rng(5)
    for mesh, rows in ((ROWS, P()), (PAIRS, P("b"))):
        for length, width in ((512, 128), (512, 4096), (4, 512)):
            up, down = (
                random.standard_normal((2, *each)).astype(np.float32) / 16 for each in ((24, width), (width, 24))
            )
            x = random.standard_normal((length, 24)).astype(np.float32)
            specs = rows, P(None, None, "a"), P(None, "a")
            given = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip((x, up, down), specs, strict=True)]
            for function in (net, gradients):
                compiled = jax.jit(function).lower(*given).compile()
                made = compiled(*given)
                close(made, jax.jit(function)(*(jax.device_put(each, CPU) for each in (x, up, down))))
            whole = summed_whole(
                jax.jit(net).lower(*given).compile().as_text(), f"{length // mesh.shape.get('b', 1)},24"
            )
            assert whole == (length == 4), (mesh, length, width)
            assert jax.jit(net)(*given).sharding.spec == rows


def summed_whole(text, rows):
    """Whether devices add up what all of them then have."""
    return f"f32[{rows}]{{1,0}} all-reduce(" in text


def case_orders():
    check(lambda x: (jnp.sort(x, 0), jnp.sort(x, 1), jnp.argmax(x, 0), jnp.argmin(x, 1), jnp.median(x, 0)), X)
    check(lambda x: lax.sort((x, -x), dimension=1, num_keys=1), X)  # nothing but the op's own tuple
    check(lambda x: (lax.top_k(x, 3), jnp.take_along_axis(x, jnp.argsort(x, 1), 1), jnp.cumsum(x, 0)), X)


def case_orders_along_split_dims():
    """Devices exchange their parts where another dim can be divided; none computes what another one does."""
    given = jax.device_put(X, NamedSharding(ROWS, P(None, "a")))
    for function in (
        lambda x: jnp.sort(x, 1),
        lambda x: lax.top_k(x, 3),
        jax.grad(lambda x: (jnp.sort(x, 1) ** 2 * jnp.arange(24)).sum()),
        lambda x: jnp.cumsum(x, 1),
        lambda x: lax.cumlogsumexp(x, 1),
        lambda x: jnp.median(x, 1),
    ):
        check(function, X)
        text = jax.jit(function).lower(given).compile().as_text()
        assert "computed_alike" not in text.splitlines()[0], text.splitlines()[0]
        assert " all-to-all(" in text
        check(function, X[:7], places=((ROWS, P(None, "a")), (PAIRS, P(None, "b"))))


def case_equal_parts_of_split_dims():
    """Each device gets its share of every part at once: ``most`` times what it has."""

    def gated(x):
        gate, value = jnp.split(x, 2, 1)
        return jax.nn.sigmoid(gate) * value

    def turned(x):
        return jnp.concatenate([-x[:, 12:], x[:, :12]], 1)

    def three(x):
        q, k, v = jnp.split(x, 3, 1)
        return q * k + v

    given = jax.device_put(np.tile(X, (8, 1)), NamedSharding(ROWS, P(None, "a")))
    for function, most in ((gated, 2), (turned, 4), (three, 3.4)):
        check(function, X)
        check(jax.grad(lambda x, function=function: (function(x) ** 2).sum()), X, kept=True)
        module = load_module(jax.jit(function).lower(given).compile().as_text().encode())
        ops = [op for op in ops_of(module.entry.block) if isinstance(op, hlo.CollectiveOp)]
        moved = sum(hlo.shape_of(op.results[0]).nbytes for op in ops)
        assert 0 < moved <= most * given.nbytes / 4, (function, moved, given.nbytes)


def case_indices():
    places = np.array([3, 1, 7, 7], np.int32)
    rows = X[:4]
    check(lambda x, i: (x[i], x[:, i], jax.vmap(lambda r: r[i])(x)), X, places)
    for update in ("add", "max", "multiply"):
        check(lambda x, i, r, update=update: getattr(x.at[i], update)(r), X, places, rows)
    check(lambda x, i: x.at[i].set(1.5), X, places)
    check(lambda x, i: jax.ops.segment_sum(x, i, 5), X, np.arange(16, dtype=np.int32) % 5)


def case_updates_in_unequal_parts():
    """XLA's partitioner scatters what it pads them with, where a mesh axis splits nothing."""
    places = np.random.default_rng(3).integers(0, 24, 9).astype(np.int32)
    rows = np.random.default_rng(4).integers(0, 24, (16, 9)).astype(np.uint32)
    split = ((PAIRS, P(None, "a")), (PAIRS, P(None, ("a", "b"))), (ROWS, P(None, "a")))
    for update in ("add", "max", "set"):
        unique = np.arange(9, dtype=np.int32) if update == "set" else places
        check(lambda x, i, u=update: getattr((x * 0).at[:, i], u)(jnp.cos(x)[:, :9]), X, unique, places=split)
    check(lambda x, i: jax.vmap(lambda r, i, u: r.at[i].add(u))(x * 0, i, jnp.cos(x)[:, :9]), X, rows, places=split)
    check(jax.grad(lambda x: (lax.top_k(x, 9)[0] ** 2).sum()), X, places=split)


def case_windows():
    image = X.reshape(4, 4, 6, 4)
    kernel = np.random.default_rng(2).standard_normal((3, 3, 4, 8)).astype(np.float32)
    layout = ("NHWC", "HWIO", "NHWC")
    places = tuple((ROWS, spec) for spec in (P("a"), P(None, "a"), P(None, None, None, "a")))

    def net(x, k):
        y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=layout)
        return lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    check(net, image, kernel, places=places)
    check(jax.grad(lambda x, k: (net(x, k) ** 2).sum(), (0, 1)), image, kernel, places=places)
    check(lambda x: lax.reduce_window(x, np.float32(2), lax.add, (3, 3), (1, 1), "SAME"), X)
    for size, stride in ((2, 1), (3, 1), (4, 2), (3, 2)):

        def largest(x, size=size, stride=stride):
            y = lax.reduce_window(x, -np.inf, lax.max, (size, size), (stride, stride), "SAME")
            return (y**3).sum()

        check(jax.grad(largest), X, places=(*PLACES[:3], (PAIRS, P(None, "a"))), kept=True)


def case_convolutions_split_in_space_and_by_features():
    """XLA's partitioner, by itself, exchanges rows between the wrong devices."""
    random = np.random.default_rng(6)
    image, kernel = (random.standard_normal(dims).astype(np.float32) for dims in ((4, 16, 8, 8), (3, 3, 8, 8)))

    def loss(x, k):
        made = lax.conv_general_dilated(x, k / 6, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (jnp.sin(made) ** 2).sum(), made

    function = jax.grad(loss, (0, 1), has_aux=True)
    for rows in (4, 3):  # the second number of images is not divided
        expected = jax.jit(function)(*(jax.device_put(each, CPU) for each in (image[:rows], kernel)))
        for place in (P(None, "b"), P(None, "b", None, "a"), P(None, None, "b")):
            for features in (P(None, None, None, "a"), P(None, None, "a"), P(None, None, None, ("a", "b"))):
                given = [NamedSharding(PAIRS, spec) for spec in (place, features)]
                close(jax.jit(function)(*map(jax.device_put, (image[:rows], kernel), given)), expected)


def case_reductions_from_other_values():
    start = np.float32(5)
    for combine in (lax.add, lax.mul, lax.max, lax.min):
        for dims in ((0,), (1,), (0, 1)):
            check(lambda x, combine=combine, dims=dims: lax.reduce(x, start, combine, dims), X)
    check(lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.hypot(a, b), (0,)), X)


def case_random_bits():
    key = jax.random.key(3)
    check(lambda x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) + jax.random.uniform(key, x.shape), X)


def case_matrices_and_transforms():
    def each(x):
        q, r = jnp.linalg.qr(x)
        return jnp.abs(r), q @ r, transformed(x)

    def transformed(x):
        return jnp.fft.fft2(x).imag, jnp.fft.irfft(x)

    stack = np.random.default_rng(4).standard_normal((8, 4, 6, 4)).astype(np.float32)
    places = ((ROWS, P("a")), (ROWS, P(None, "a")), (PAIRS, P("b", "a")), (ROWS, P(None, None, None, "a")))
    check(each, stack, places=places)
    check(lambda x: jnp.fft.ifft(x[:7], axis=1).real, stack, places=places)  # parts of unequal size
    for mesh, spec in places:
        given = jax.device_put(stack, NamedSharding(mesh, spec))
        text = jax.jit(transformed if "a" in spec[3:] else each).lower(given).compile().as_text()
        assert "computed_alike" not in text, text.splitlines()[0]
        inside = jax.jit(jax.shard_map(jnp.fft.fft, mesh=ROWS, in_specs=P("a"), out_specs=P("a")))
        close(inside(given if mesh is ROWS else stack), np.fft.fft(stack))
    whole = jax.device_put(X[:5, :3], NamedSharding(ROWS, P()))
    check(lambda x: jnp.abs(jnp.fft.fft(x, axis=0)), X)  # along the split dim
    close(jax.jit(jnp.linalg.qr)(whole)[1], jax.jit(jnp.linalg.qr)(jax.device_put(X[:5, :3], CPU))[1])


def case_gspmd_annotations():
    with jax.use_shardy_partitioner(False) if hasattr(jax, "use_shardy_partitioner") else _without_shardy():
        check(lambda x: (x @ x.T, jnp.pad(x, 1), x.sum(0)), X)
        check(lambda x: (jnp.abs(jnp.linalg.qr(x.reshape(16, 6, 4))[1]), jnp.abs(jnp.fft.rfft(x))), X)
        case_updates_in_unequal_parts()
        case_windows()
        case_reductions_from_other_values()


class _without_shardy:
    def __enter__(self):
        jax.config.update("jax_use_shardy_partitioner", False)

    def __exit__(self, *_):
        jax.config.update("jax_use_shardy_partitioner", True)


def case_what_is_computed_alike_is_named():
    given = jax.device_put(X, NamedSharding(ROWS, P("a")))
    text = jax.jit(lambda x: jnp.sort(x.reshape(-1))).lower(given).compile().as_text()
    head = text.splitlines()[0]
    assert all(part in head for part in ("computed_alike", "1536 bytes are gathered", "sharded_cases.py:")), head
    assert "computed_alike" not in jax.jit(lambda x: jnp.sort(x, 1) @ W).lower(given).compile().as_text()


def case_topologies_without_devices():
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="neuron", num_devices=8)
    mesh = Mesh(np.array(topology.devices), ("a",))
    spread = NamedSharding(mesh, P("a"))
    given = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=spread)
    compiled = jax.jit(lambda x: (jnp.sin(x), x.sum(0))).lower(given).compile()
    assert "num_partitions=8" in compiled.as_text()
    assert compiled.cost_analysis()["simulated_seconds"] > 0


if __name__ == "__main__":
    report(globals())
