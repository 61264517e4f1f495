"""Programs for the JAX backend, each a function that asserts; ``test_jax_backend`` runs this file as a process.

Prints one JSON object: case -> empty text, or what went wrong.
"""

import gc
import importlib.util
import mmap
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from case_report import report
from jax.experimental import serialize_executable
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.shard_alike import shard_alike
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import neuronx_cc

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def raises(function, *texts):
    """The error of ``function`` has all ``texts``; JAX turns some statuses into ValueErrors."""
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as error:
        function()
    assert [text for text in texts if text not in str(error.value)] == [], str(error.value)


def case_devices():
    devices = jax.devices()
    assert [device.id for device in devices] == [0, 1, 2, 3]
    assert {device.platform for device in devices} == {"neuron"}
    assert [(device.chip, device.core_on_chip) for device in devices] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert jax.default_backend() == "neuron"


def case_jit_and_grad():
    assert np.allclose(jax.jit(lambda x: jnp.tanh(x @ x.T + 1))(X), np.tanh(X @ X.T + 1), atol=1e-5)
    gradient = jax.grad(lambda x: (jnp.sin(x) ** 2).sum())(X)
    assert np.allclose(gradient, np.sin(2 * X), atol=1e-5)


def case_linear_algebra_of_sharded_types():
    matrices = np.stack([X[:4] @ X[:4].T + number * np.eye(4, dtype=np.float32) for number in range(1, 5)])
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        given = jax.device_put(matrices, P("d"))
        inverse = jax.jit(jax.shard_map(lambda m: jnp.linalg.inv(m[0])[None], in_specs=P("d"), out_specs=P("d")))(given)
        assert np.allclose(inverse, np.linalg.inv(matrices), atol=1e-4)
        assert np.allclose(jax.jit(jnp.linalg.slogdet)(given)[1], np.linalg.slogdet(matrices)[1], atol=1e-4)
        assert np.allclose(jax.jit(jnp.linalg.eigvalsh)(given), np.linalg.eigvalsh(matrices), atol=1e-4)


def case_infinities_do_not_spread_over_rows():
    """Transposes of 16- and 8-bit values are watched; what they spoil is computed once more, also in AOT programs."""
    x = np.random.default_rng(1).integers(-2, 3, (200, 70))
    for kind, donated in ((ml_dtypes.bfloat16, ()), (np.float16, ()), (ml_dtypes.bfloat16, (0,))):
        function = jax.jit(lambda x, w: (jnp.maximum(x @ w, 0), x.T @ x), donate_argnums=donated)
        first, w = x.astype(kind), np.ones((70, 200), kind)
        first[3, 7], first[150, 9] = np.inf, np.nan
        compiled = function.lower(first, w).compile()
        if not donated:
            parts = serialize_executable.serialize(compiled)
            compiled = serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])
        for given in (first, x.astype(kind)):
            wide = np.float32(given)
            with np.errstate(invalid="ignore"):
                wanted = np.maximum(wide @ np.float32(w), 0), wide.T @ wide
            for result, want in zip(compiled(jnp.asarray(given), w), wanted, strict=True):
                np.testing.assert_array_equal(np.float32(result), np.float32(want.astype(kind)))


def case_nan_among_codes_of_weights():
    """Programs rely on it that there are none, and another one runs where there are, also in AOT programs."""
    x, w = np.ones((3, 130), ml_dtypes.bfloat16), np.ones((130, 70), ml_dtypes.float8_e4m3fn)
    spoilt = w.copy()
    spoilt[129, 5] = np.nan
    for donated in ((), (0,)):
        function = jax.jit(lambda x, w: (x @ w.astype(x.dtype), x + 1), donate_argnums=donated)
        compiled = function.lower(x, w).compile()
        if not donated:
            parts = serialize_executable.serialize(compiled)
            compiled = serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])
        for given in (w, spoilt, w):
            result, more = compiled(jnp.asarray(x), given)
            np.testing.assert_array_equal(np.float32(result), np.float32(x) @ np.float32(given))
            np.testing.assert_array_equal(np.float32(more), np.float32(x) + 1)


def case_many_results_and_empty_arrays():
    results = jax.jit(lambda x: (x + 1, x.sum(), x[:0], jnp.zeros((0, 3))))(X)
    assert [result.shape for result in results] == [(8, 4), (), (0, 4), (0, 3)]
    assert np.allclose(results[1], X.sum(), atol=1e-4)


def case_buffers_of_every_type():
    types = [np.bool_, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32]
    types += [np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]
    for kind in types:
        array = np.array([[0, 1, 2], [3, 1, 0]]).astype(kind)
        assert np.array_equal(np.asarray(jax.device_put(array)), array), kind


def case_strided_transfers():
    for array in (X.T, X[::2], X[:, ::-1], np.broadcast_to(np.float32(3), (4, 5)), np.asfortranarray(X)):
        assert np.array_equal(np.asarray(jax.device_put(array)), array)


def case_devices_hold_their_own_arrays():
    first, second = jax.devices()[:2]
    there = jax.device_put(X, second)
    assert there.devices() == {second}
    assert (there + 1).devices() == {second}
    assert jax.device_put(there, first).devices() == {first}
    before = second.memory_stats()["bytes_in_use"]
    kept = jax.device_put(np.zeros((256, 256), np.float32), second)
    assert second.memory_stats()["bytes_in_use"] - before == kept.nbytes
    kept.delete()
    assert second.memory_stats()["bytes_in_use"] == before


def case_donation_reuses_memory():
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    given = jnp.arange(1000.0)
    place = given.unsafe_buffer_pointer()
    result = double(given)
    assert given.is_deleted()
    assert result.unsafe_buffer_pointer() == place
    assert np.array_equal(result, np.arange(1000.0) * 2)


def case_out_of_memory_names_buffers():
    device = jax.devices()[3]
    assert device.memory_stats()["bytes_limit"] == 1 << 26
    block = np.zeros(1 << 22, np.float32)
    big = [jax.device_put(block, device) for _ in range(3)]
    more = lambda: [jax.device_put(block, device) for _ in range(2)]  # noqa: E731
    raises(more, "RESOURCE_EXHAUSTED", "EOOM002", "times f32[4194304] (16.00 MiB)")
    assert len(big) == 3
    x = jax.device_put(np.zeros(16, np.float32), device)
    raises(lambda: jax.jit(lambda x: jnp.tile(x, 1 << 20))(x), "EOOM002")


def case_unknown_option():
    raises(lambda: jax.jit(lambda x: x + 1, compiler_options={"no_such": 1})(X), "No such compile option: 'no_such'")
    raises(lambda: jax.jit(lambda x: x + 1, compiler_options={"auto_cast": "some"})(X), "auto_cast", "EARG902")


def case_options_change_the_program():
    exact = jax.jit(lambda x: x @ x.T)(X)
    rounded = jax.jit(lambda x: x @ x.T, compiler_options={"auto-cast": "matmult"})(X)
    narrow = X.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.allclose(exact, X @ X.T, atol=1e-5)
    assert np.allclose(rounded, narrow @ narrow.T, atol=1e-5)
    assert not np.array_equal(exact, rounded)


def case_unsupported_operator_names_itself():
    with jax.enable_x64(True):
        raises(lambda: jax.jit(lambda x: x + 1)(np.zeros(3)), "NCC_E", "add", "f64", "jax_backend_cases.py")


def case_lowering_tells():
    compiled = jax.jit(lambda x: jnp.tanh(x @ x.T)).lower(X).compile()
    cost = compiled.cost_analysis()
    assert cost["flops"] > 0
    assert cost["bytes accessed"] > 0
    assert 1e-7 < cost["simulated_seconds"] < 1e-2
    memory = compiled.memory_analysis()
    assert (memory.argument_size_in_bytes, memory.output_size_in_bytes) == (128, 256)
    assert "dot(" in compiled.as_text()


def case_simulated_time():
    step = jax.jit(lambda x: x @ x.T)
    step(X)
    with neuronx_cc.recording() as runs:
        step(X)
        jax.jit(jnp.sin)(X)
        step(X)
    assert [run.name for run in runs] == ["jit__lambda", "jit_sin", "jit__lambda"]
    assert runs.seconds > runs[0].seconds > 0
    assert neuronx_cc.last_run().seconds == runs[0].seconds


def case_profiler_shows_devices():
    f = jax.jit(lambda x: jnp.tanh(x @ x.T))
    x = jax.device_put(X, jax.devices()[1])
    f(x)
    with tempfile.TemporaryDirectory() as place:
        with jax.profiler.trace(place):
            f(x)
            f(x)
        (file,) = Path(place).rglob("*.xplane.pb")
        planes = {plane.name: plane for plane in jax.profiler.ProfileData.from_file(str(file)).planes}
        lines = {line.name: list(line.events) for line in planes["/device:CUSTOM:NeuronCore:1"].lines}
    assert "/device:CUSTOM:NeuronCore:0" not in planes
    assert [event.name for event in lines["programs"]] == ["jit__lambda"] * 2
    products = lines["tensor: products"]
    assert products
    assert "dot_general" in dict(products[0].stats)["op_name"]
    begin, end = (lines["programs"][0].start_ns + extra for extra in (0, lines["programs"][0].duration_ns))
    assert all(begin <= event.start_ns <= end for event in products[: len(products) // 2])
    seconds = f.lower(x).compile().cost_analysis()["simulated_seconds"]
    assert abs(lines["programs"][0].duration_ns * 1e-9 / seconds - 1) < 1e-3


def case_executables_serialize():
    compiled = jax.jit(lambda x: x * 3).lower(X).compile()
    parts = serialize_executable.serialize(compiled)
    again = serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])
    assert np.array_equal(again(X), X * 3)


def case_export():
    from jax import export

    if importlib.util.find_spec("flatbuffers") is None:
        return  # JAX needs it to serialize
    exported = export.export(jax.jit(lambda x: x - 2), platforms=["neuron"])(X)
    assert np.array_equal(export.deserialize(exported.serialize()).call(X), X - 2)


def case_sharded_jit():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    spread = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
    for function in (jnp.tanh, lambda x: x.max(1), lambda x: x @ x.T, lambda x: jnp.cumsum(x, 0), lambda x: x[1:6]):
        assert np.allclose(jax.jit(function)(spread), jax.jit(function)(X), atol=1e-5)
    result = jax.jit(lambda x: x * 2)(spread)
    assert result.sharding.spec == P("a", "b")
    assert np.array_equal(jax.jit(lambda x: (x * 2j).imag)(spread), X * 2)
    flat = NamedSharding(Mesh(np.array(jax.devices()), ("all",)), P("all"))
    result = jax.jit(lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), flat) * 2)(spread)
    assert np.allclose(result, np.sin(X) * 2, atol=1e-5)


def case_parts_of_unequal_size():
    mesh = Mesh(np.array(jax.devices()), ("d",))
    spread = jax.device_put(X, NamedSharding(mesh, P("d")))
    rows = NamedSharding(mesh, P("d"))
    result = jax.jit(lambda x: jnp.pad(jax.lax.with_sharding_constraint(x[:6], rows) * 2, ((0, 2), (0, 0))))(spread)
    assert np.array_equal(result[:6], X[:6] * 2)


def case_meshes_of_the_same_devices():
    devices = np.array(jax.devices()).reshape(2, 2)
    given = jax.device_put(X, NamedSharding(Mesh(devices, ("a", "b")), P("b")))
    other = NamedSharding(Mesh(devices.swapaxes(0, 1), ("c", "d")), P("c", "d"))
    result = jax.device_put(given, other)
    assert result.sharding == other
    assert all(np.array_equal(shard.data, X[shard.index]) for shard in result.addressable_shards)


def case_reductions_over_split_dims():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    spread = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
    start = np.float32(5)
    for function, gathers in (
        (lambda x: x.max(), False),
        (lambda x: x.min(0), False),
        (lambda x: x.prod(1), False),
        (lambda x: (x > 1).any(1), False),
        (lambda x: (x > -1).all(0), False),
        (lambda x: jax.nn.softmax(x, axis=0), False),
        (lambda x: jax.lax.reduce(x, start, jax.lax.max, (0,)), False),
        (lambda x: jax.lax.reduce(x, start, jax.lax.add, (0, 1)), False),
        (lambda x: x.argmax(0), True),
        (lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: a + b * b, (1,)), True),
    ):
        compiled = jax.jit(function).lower(spread).compile()
        assert np.allclose(compiled(spread), jax.jit(function)(X), atol=1e-5)
        assert ("all-gather(" in compiled.as_text()) == gathers


def case_rows_by_split_indices():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    table = np.random.default_rng(1).standard_normal((6, 12)).astype(np.float32)
    numbers = np.random.default_rng(2).integers(0, 6, (8, 2)).astype(np.int32)
    columns = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    for indices, place, function, found in (
        (numbers, P(), lambda t, i: t[i], ()),
        (numbers, P(), lambda t, i: jax.grad(lambda t: (jnp.sin(t[i]) ** 2).sum())(t), ("all-reduce",)),
        (numbers, P(), lambda t, i: t.at[i].add(1.5), ("all-reduce",)),
        (numbers, P(), lambda t, i: jnp.bincount(i.reshape(-1), length=6), ("all-reduce",)),
        (numbers, P(), lambda t, i: t.at[i].max(0.5), ("all-reduce",)),
        (numbers, P(None, "b"), lambda t, i: jax.grad(lambda t: (t[i] ** 2).sum())(t), ("all-reduce",)),
        (numbers[:, :1], P(), lambda t, i: jax.lax.gather(t, i, columns, (1, 12)), ()),
        (numbers, P("a"), lambda t, i: jax.ops.segment_sum(t, i[:6, 0], 6), ("all-reduce",)),
        (numbers[:6], P("a"), lambda t, i: jax.ops.segment_sum(t, i[:, 0], 6), ("all-reduce",)),
    ):
        given = [
            jax.device_put(table, NamedSharding(mesh, place)),
            jax.device_put(indices, NamedSharding(mesh, P("a"))),
        ]
        compiled = jax.jit(function).lower(*given).compile()
        assert np.allclose(compiled(*given), jax.jit(function)(table, indices), atol=1e-5)
        text = compiled.as_text()
        assert tuple(name for name in ("all-gather", "all-reduce") if f"{name}(" in text) == found, found


def case_shard_map_and_pmap():
    mesh = Mesh(np.array(jax.devices()), ("d",))
    mapped = jax.shard_map(lambda x: x * jax.lax.axis_index("d"), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    assert np.array_equal(jax.jit(mapped)(X), X * np.repeat(np.arange(4, dtype=np.float32), 2)[:, None])
    most = jax.shard_map(lambda x: jax.lax.approx_max_k(x, 2)[0], mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    assert np.array_equal(jax.jit(most)(X), np.sort(X)[:, :1:-1])
    sums = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(np.arange(4.0, dtype=np.float32))
    assert np.array_equal(sums, [6, 6, 6, 6])
    given = (X + 1j * X[::-1]).reshape(4, 4, 2)
    for function, wanted in (
        (lambda x: jax.lax.psum(x, "i"), np.broadcast_to(given.sum(0), given.shape)),
        (lambda x: jax.lax.all_to_all(x, "i", 0, 0), given.swapaxes(0, 1)),
        (lambda x: jax.lax.psum_scatter(x, "i"), given.sum(0)),
        (lambda x: jax.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]), np.roll(given, 1, 0)),
    ):
        assert np.allclose(jax.pmap(function, axis_name="i")(given), wanted, atol=1e-5)


def case_custom_partitioning():
    """The function is partitioned like others; what it says about its parts goes unheard."""

    @custom_partitioning
    def doubled(x):
        return x * 2 + x.sum(axis=1, keepdims=True)

    doubled.def_partition(lambda *_: None, infer_sharding_from_operands=lambda *_: None, sharding_rule="i j -> i j")
    given = jax.device_put(X, NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d")))
    result = jax.jit(doubled)(given)
    assert np.allclose(result, X * 2 + X.sum(axis=1, keepdims=True), atol=1e-5)
    assert result.sharding.is_equivalent_to(given.sharding, 2)


def case_sharding_groups_of_one_device():
    one, other = jax.jit(lambda x: shard_alike(x, x * 2))(X)
    assert np.array_equal(one, X)
    assert np.array_equal(other, X * 2)


def case_ragged_all_to_all():
    """Device i sends 1 + (i + j) % 3 rows to device j, its rows in the order of j, which stand there in that of i."""
    count = np.add.outer(np.arange(4), np.arange(4)) % 3 + 1
    begin, arrive = np.cumsum(count, axis=1) - count, np.cumsum(count, axis=0) - count
    rows = np.random.default_rng(4).standard_normal((4, 9, 5)).astype(np.float32)
    wanted = np.full((4, 9, 5), -1, np.float32)
    for i, j in np.ndindex(4, 4):
        wanted[j, arrive[i, j] :][: count[i, j]] = rows[i, begin[i, j] :][: count[i, j]]
    mesh = Mesh(np.array(jax.devices()), "d")

    def exchange(x, *numbers):
        arguments = (x[0], jnp.full_like(x[0], -1), *(each[0] for each in numbers))
        return jax.lax.ragged_all_to_all(*arguments, axis_name="d")[None]

    numbers = [each.astype(np.int32) for each in (begin, count, arrive, count.T)]
    result = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(rows, *numbers)
    assert np.array_equal(result, wanted)


def case_unreduced_axes():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("a", "b"))
        partial = jax.jit(lambda x: jnp.dot(x, x.T, out_sharding=P("a", unreduced={"b"})))
        result = partial(x)
        assert result.sharding.spec == P("a", None, unreduced={"b"})
        first, second = (np.asarray(shard.data) for shard in result.addressable_shards[:2])
        assert np.allclose(first, X[:4, :2] @ X[:, :2].T, atol=1e-5)
        assert np.allclose(first + second, X[:4] @ X.T, atol=1e-5)
        assert "all-reduce(" not in partial.lower(x).compile().as_text()
        whole = jax.jit(lambda y: jax.reshard(y, P("a")) + 1)(result)
        assert np.allclose(whole, X @ X.T + 1, atol=1e-5)
        # into a manual computation and out of it
        specs = {"in_specs": P("a", None, unreduced={"b"}), "out_specs": P("a", None)}
        summed = jax.shard_map(lambda y: jax.lax.psum(y, "b"), **specs)
        assert np.allclose(jax.jit(lambda x: summed(partial(x)))(x), X @ X.T, atol=1e-5)
        # handed from one to the next, every device keeps what it has
        split, partly = P("a", "b"), {"in_specs": P("a", "b"), "check_vma": False, "out_specs": P("a", unreduced={"b"})}
        parts = jax.jit(jax.shard_map(lambda y: y + 1, **partly))(x)
        assert np.allclose(parts.addressable_shards[1].data, X[:4, 2:] + 1)
        taken = jax.shard_map(lambda y: y * 2, in_specs=partly["out_specs"], out_specs=split, check_vma=False)
        assert np.allclose(jax.jit(taken)(parts), 2 * X + 2)
        # a maximum that the program itself adds up
        most = jax.shard_map(lambda y: y.max(1), **partly)
        total = jax.jit(lambda x: jax.reshard(most(x), P("a")))(x)
        assert np.allclose(total, X.reshape(8, 2, 2).max(2).sum(1), atol=1e-5)
        # of a value that is whole, or gathered
        for spec, left in ((P(), X), (P("b"), np.where(np.arange(8)[:, None] < 4, X, 0))):
            given = jax.device_put(X, spec)
            parts = jax.jit(lambda x: x, out_shardings=P(unreduced={"b"}))(given)
            held = [np.asarray(shard.data) for shard in parts.addressable_shards]
            assert np.array_equal(held[0] + held[1], X)
            assert np.array_equal(held[0], left)


def case_reversed_mesh():
    mesh = Mesh(np.array(jax.devices()[::-1]), ("d",))
    spread = jax.device_put(X, NamedSharding(mesh, P("d")))
    assert np.allclose(jax.jit(lambda x: x + x.sum(0))(spread), X + X.sum(0), atol=1e-5)


def case_programs_of_other_devices():
    second = SingleDeviceSharding(jax.devices()[1])
    result = jax.jit(lambda x: x + 1, out_shardings=second)(jax.device_put(X, second))
    assert result.devices() == {jax.devices()[1]}


def case_threads():
    def work(number):
        return float(jax.jit(lambda x: (x * number).sum())(np.ones(16, np.float32)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [16.0 * number for number in range(16)]
    shared = jax.jit(lambda x: jnp.sin(x) + 1)
    shared(X)
    wrong = []

    def repeat():
        for _ in range(20):
            if not np.allclose(shared(X), np.sin(X) + 1, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def case_exceptions_unwind_over_arrays():
    def fail():
        arrays = [jnp.ones(3) + number for number in range(3)]
        raise KeyError(len(arrays))

    for _ in range(3):
        try:
            fail()
        except KeyError:
            gc.collect()


def resident_bytes():
    """What this process holds of the host's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def case_nothing_leaks_in_ten_thousand_calls():
    step = jax.jit(lambda x, y: (x + 1, {"sum": x.sum() + y}))
    x, y = jnp.zeros(1000), np.float32(0)
    device = jax.devices()[0]
    seen = []
    for _ in range(3):
        for _ in range(5000):
            x, _ = step(x, y)
        gc.collect()
        seen.append((device.memory_stats()["bytes_in_use"], resident_bytes()))
    assert float(x[0]) == 15000.0
    assert seen[0][0] == seen[1][0] == seen[2][0]
    # one leaked result a call would be 40 MB, one object of Python's a megabyte; huge pages are two each
    assert seen[2][1] - seen[0][1] < 12 << 20, seen


def case_dropped_programs_are_freed():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    rows = NamedSharding(mesh, P("d"))
    before = None
    for number in range(6):
        program = jax.jit(lambda x, number=number: jnp.tile(x, (4096, 64)).at[0, 0].set(number) * 2, out_shardings=rows)
        assert program(X[:1]).shape == (4096, 256)
        del program
        jax.clear_caches()
        gc.collect()
        before = resident_bytes() if number == 1 else before
    # each holds 4 MiB in each device's memory
    assert resident_bytes() - before < 24 << 20


def case_equal_programs_compile_once():
    from neuronx_cc.driver.jax_backend import compiler

    counts = []
    for _ in range(3):
        jax.clear_caches()
        jax.jit(lambda x: x * 77 + 5)(X)
        counts.append(len(compiler._recent))
    assert counts == counts[:1] * 3


def case_pallas():
    from jax.experimental import pallas

    def double(x, out):
        out[...] = x[...] * 2

    def run(interpret):
        call = pallas.pallas_call(double, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype), interpret=interpret)
        return jax.jit(call)

    assert np.array_equal(run(True)(X), X * 2)
    for refused in (lambda: run(False)(X), lambda: run(False).trace(X).lower(lowering_platforms=("cpu", "neuron"))):
        with pytest.raises(NotImplementedError, match="pass interpret=True to pallas_call"):
            refused()


def case_dlpack():
    for dtype in (bool, "i1", "u1", "i2", "u4", "f2", "f4", "c8"):
        for shape in ((), (0,), (3, 0), (1,), (129,), (2, 3, 5)):
            x = jnp.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
            y = np.from_dlpack(x)
            assert (y.dtype, y.shape) == (x.dtype, shape)
            assert np.array_equal(y, np.asarray(x))
            y[...] = 1  # a copy: JAX's array stays what it is
            assert shape != (129,) or x[0] == 0
            # arrays of the host start on a CPU device, as JAX documents
            y = jnp.from_dlpack(np.array(x), device=jax.devices()[1])
            assert y.devices() == {jax.devices()[1]}
            assert np.array_equal(y, x)
    x = jnp.ones((2, 3), jnp.bfloat16)
    assert jnp.from_dlpack(x).dtype == x.dtype
    sharded = jax.device_put(jnp.ones(4), NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")))
    for refused in (
        lambda: np.from_dlpack(x, copy=False),
        lambda: np.from_dlpack(sharded),
        lambda: x.__dlpack__(dl_device=(2, 0)),
    ):
        with pytest.raises(BufferError):
            refused()


if __name__ == "__main__":
    report(globals())
