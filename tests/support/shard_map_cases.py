"""``shard_map`` on 4 devices beside jaxlib's CPU client on as many: jitted here, and compiled ahead of time.

Run as a script with the platforms ``neuron,cpu`` and 4 devices of each (``test_sharding``).
"""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from case_report import report
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import neuronx_cc
from neuronx_cc.runtime import devices

X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((24, 24)).astype(np.float32) / 5
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def mesh(platform, pairs):
    found = np.array(jax.devices(platform)[:4])
    return Mesh(found.reshape(2, 2), ("a", "b")) if pairs else Mesh(found, ("a",))


def mapped(body, where, specs, results, axes):
    return jax.jit(jax.shard_map(body, mesh=where, in_specs=specs, out_specs=results, axis_names=axes))


def close(made, expected):
    np.testing.assert_allclose(np.asarray(made), np.asarray(expected), atol=2e-4, rtol=2e-4)


def check(body, specs, results, *arrays, pairs=False, axes=frozenset(), around=lambda f: f, placed=None):
    """Values of ``around`` of the mapped ``body``, with arrays that lie as ``placed`` (else as ``specs``) says."""
    outcomes = {}
    for platform in ("cpu", "neuron"):
        where = mesh(platform, pairs)
        function = jax.jit(around(mapped(body, where, specs, results, axes)))
        given = [jax.device_put(x, NamedSharding(where, spec)) for x, spec in zip(arrays, placed or specs, strict=True)]
        outcomes[platform] = function(*given)
    made, expected = (jax.tree.leaves(outcomes[platform]) for platform in ("neuron", "cpu"))
    for a, b in zip(made, expected, strict=True):
        close(a, b)
    program = neuronx_cc.compile(function, *given, auto_cast="none")
    pieces = [[_piece(x, number) for x in given] for number in range(4)]
    results = devices.run_devices(devices.replicate(program), pieces)
    for number, result in enumerate(results):
        for a, b in zip(result.outputs, made, strict=True):
            close(a, _piece(b, number))


def _piece(array, number):
    return np.asarray(array.addressable_shards[number].data)


def case_collectives():
    def body(x):
        size = lax.axis_size("a")
        number = lax.axis_index("a").astype(jnp.float32)
        return (
            lax.psum(x * number, "a"),
            lax.pmean(x, "a"),
            lax.pmax(x, "a"),
            lax.ppermute(x, "a", [*RING[: size - 1], (size - 1, 0)]),
            lax.all_to_all(x, "a", split_axis=1, concat_axis=0, tiled=True),
            lax.psum_scatter(x, "a", scatter_dimension=1, tiled=True),
            lax.all_gather(x, "a", axis=1, tiled=True) * number,
            lax.all_gather(x, "a").sum(0) + number,
        )

    split = P("a")
    check(body, (split,), (P(), P(), P(), split, split, split, split, split), X)
    check(body, (split,), (P(), P(), P(), split, split, split, split, split), X, pairs=True, axes={"a"})


def case_errors_by_op():
    """Those of the function on one device, of its arrays as they lie on several."""

    def model(x, w):
        near, same = x @ w, x @ (w + 1e-3 * w.T)
        return jnp.tanh(100 * (near - same)) @ w

    where = mesh("neuron", True)
    given = [jax.device_put(a, NamedSharding(where, spec)) for a, spec in ((X, P("a")), (W, P(None, "b")))]
    found = neuronx_cc.compare(jax.jit(model), given, auto_cast="matmult")
    alone = neuronx_cc.compare(jax.jit(model), [X, W], auto_cast="matmult")
    np.testing.assert_allclose(found.error, alone.error, rtol=0.05)
    assert [row.source for row in found.rows] == [row.source for row in alone.rows]
    tuned = neuronx_cc.tune(jax.jit(model), given, 1e-3, types=("bf16", "fp16"))
    assert tuned.chosen.error <= 1e-3


def case_both_axes_by_hand():
    def body(x, w):
        return lax.psum(x @ w, "b"), lax.psum((x * x).sum(), ("a", "b")), lax.pmin(x, "a")

    check(body, (P("a", "b"), P("b")), (P("a"), P(), P(None, "b")), X, W, pairs=True)


def case_one_axis_by_hand():
    def body(x, w):
        return lax.psum_scatter(jnp.tanh(x @ w), "a", scatter_dimension=0, tiled=True)

    placed = (P("b", "a"), P("a", "b"))
    check(body, (P(None, "a"), P("a")), P("a"), X, W, pairs=True, axes={"a"}, placed=placed)


def case_in_loops():
    def body(x, w):
        def layer(h, w):
            return jnp.tanh(lax.all_gather(h, "a", axis=1, tiled=True) @ w), lax.psum(h.sum(), "a")

        h, sums = lax.scan(layer, x, w)
        return lax.fori_loop(0, 3, lambda i, h: lax.ppermute(h, "a", RING) * 0.5 + h, h), sums

    stack = np.stack([W, W.T, W + 0.1])
    check(body, (P(None, "a"), P(None, None, "a")), (P(None, "a"), P()), X, stack)


def case_within_a_scan():
    def around(inner):
        return lambda x, w: lax.scan(lambda h, w: (inner(h, w), h.mean()), x, jnp.stack([w, w.T]))

    def body(x, w):
        return lax.psum_scatter(jnp.tanh(x @ w), "a", scatter_dimension=1, tiled=True)

    check(body, (P(None, "a"), P("a")), P(None, "a"), X, W, around=around)


def case_gradients():
    def body(x, w):
        hidden = jnp.tanh(lax.all_gather(x, "a", axis=1, tiled=True) @ w)
        return lax.psum(lax.ppermute(hidden, "a", RING) ** 2, "a")

    def around(inner):
        return jax.value_and_grad(lambda x, w: inner(x, w).sum(), (0, 1))

    check(body, (P(None, "a"), P(None, "a")), P(), X, W, around=around)


def case_branches_and_maps_of_maps():
    def inner(x):
        return lax.psum(x, "b") * lax.axis_index("a")

    def body(x):
        nested = jax.shard_map(inner, in_specs=P(None, "b"), out_specs=P(), axis_names={"b"})
        return lax.cond(lax.axis_index("a") == 0, jnp.sin, jnp.cos, nested(x))

    check(body, (P("a"),), P("a"), X, pairs=True, axes={"a"}, placed=(P("a", "b"),))


def case_forms_of_a_module():
    where = mesh("neuron", False)
    spec = NamedSharding(where, P(None, "a"))
    given = jax.device_put(X, spec)
    by_hand = mapped(lambda x: lax.psum(x @ x.T, "a"), where, P(None, "a"), P(), frozenset())
    pieces = [[_piece(given, number)] for number in range(4)]
    for function in (by_hand, jax.jit(lambda x: x @ x.T, out_shardings=NamedSharding(where, P()))):
        lowered = function.lower(given)
        bytecode = io.BytesIO()
        lowered.compiler_ir("stablehlo").operation.write_bytecode(bytecode)
        forms = {
            "traced": function.trace(given),
            "text": lowered.as_text(),
            "bytecode": bytecode.getvalue(),
            "HLO text": lowered.as_text("hlo"),
            "HLO proto": lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(),
        }
        for name, form in forms.items():
            program = neuronx_cc.compile(form, auto_cast="none")
            assert program.program.devices == (1, 4), name
            for result in devices.run_devices(devices.replicate(program), pieces):
                close(result.outputs[0], X @ X.T)


def case_what_cannot_be_divided_says_so():
    where = mesh("neuron", False)
    given = jax.device_put(X, NamedSharding(where, P("a")))
    text = jax.jit(lambda x: x + 1).lower(given).as_text()
    for damaged, code in (
        (text.replace("num_partitions = 4", "num_partitions = 400000"), "EJAX901"),
        (text.replace("num_partitions = 4", "num_partitions = 0"), "EJAX901"),
        (text.replace('{"a"}', '{"c"}'), "EVRF064"),
        (text.replace("tensor<16x24xf32>", "tensor<16xf32>", 1), "EVRF064"),
    ):
        assert damaged != text
        with pytest.raises(neuronx_cc.CompileError) as caught:
            neuronx_cc.compile(damaged)
        assert caught.value.code == code


if __name__ == "__main__":
    report(globals())
