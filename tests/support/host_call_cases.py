"""Programs that call functions of the host, each a function that asserts; ``test_jax_backend`` runs this file.

Prints one JSON object: case -> empty text, or what went wrong.
"""

import functools
import gc
import os
import sys
import tempfile
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from case_report import report
from jax import export
from jax.experimental import checkify, io_callback, serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import neuronx_cc

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def like(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def noting():
    """A list and a function that adds to it."""
    seen = []
    return seen, lambda *arrays: seen.append([np.asarray(array).tolist() for array in arrays])


def case_values_of_every_kind():
    arrays = [
        X,
        X.T,
        np.float32(3),
        np.arange(5, dtype=np.int32),
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array([True, False, True]),
        np.zeros((0, 3), np.float32),
        np.zeros(0, np.bool_),
        (X + 1j * X[::-1]).astype(np.complex64),
        X.astype(ml_dtypes.bfloat16),
        np.float16(X),
    ]
    seen = []

    def function(*given):
        seen.extend(given)
        return tuple(np.asarray(array)[..., ::-1].copy() if np.ndim(array) else array for array in given)

    shapes = tuple(like(np.asarray(array)) for array in arrays)
    results = jax.jit(lambda *given: jax.pure_callback(function, shapes, *given))(*arrays)
    for array, given, result in zip(arrays, seen, results, strict=True):
        assert np.array_equal(np.asarray(given), array), array
        assert (result.shape, result.dtype) == (np.shape(array), np.asarray(array).dtype)
        assert np.array_equal(np.asarray(result), array[..., ::-1] if np.ndim(array) else array), array


def case_ordered_effects_in_loops_and_branches():
    seen, note = noting()

    @jax.jit
    def f(x):
        jax.debug.callback(note, 0, ordered=True)

        def body(i, x):
            jax.debug.callback(note, i, x, ordered=True)
            jax.lax.cond(i % 2 == 0, lambda: jax.debug.callback(note, -i, ordered=True), lambda: None)
            return x + 1

        x = jax.lax.fori_loop(1, 4, body, x)
        x = jax.lax.while_loop(lambda x: x < 8, lambda x: (jax.debug.callback(note, x, ordered=True), 2 * x)[1], x)
        jax.debug.callback(note, 9, ordered=True)
        return x

    assert f(1.0) == 8
    jax.effects_barrier()
    assert seen == [[0], [1, 1], [2, 2], [-2], [3, 3], [4], [9]]


def case_effects_without_results_stay_and_pure_calls_without_users_go():
    seen, note = noting()

    @jax.jit
    def f(x):
        jax.lax.fori_loop(0, 3, lambda i, c: (jax.debug.callback(note, i), c)[1], 0)
        jax.pure_callback(lambda x: seen.append("pure") or x, like(X), x)
        return x

    f(X)
    jax.effects_barrier()
    assert seen == [[0], [1], [2]]


def case_effects_are_not_merged():
    counter = iter(range(100))
    draw = lambda: np.int32(next(counter))  # noqa: E731
    shape = jax.ShapeDtypeStruct((), jnp.int32)
    f = jax.jit(lambda: [io_callback(draw, shape, ordered=True) for _ in range(3)])
    assert [int(each) for each in f()] == [0, 1, 2]
    assert [int(each) for each in f()] == [3, 4, 5]


def case_prints_come_in_the_order_of_the_program(capture):
    @jax.jit
    def f(x):
        jax.debug.print("first {}", x)
        y = jax.pure_callback(np.sin, like(np.float32(0)), x)
        jax.debug.print("second {y:.3f}", y=y)
        jax.debug.print("third")

    f(np.float32(2))
    jax.effects_barrier()
    assert capture() == "first 2.0\nsecond 0.909\nthird\n"


def case_functions_run_programs_themselves():
    double = jax.jit(lambda x: jnp.tanh(x @ x.T) * 2)
    outer = jax.device_put(X, jax.devices("neuron")[1])

    def function(x):
        inner = double(jax.device_put(np.asarray(x), jax.devices("neuron")[0]))
        assert inner.devices() == {jax.devices("neuron")[0]}
        return np.asarray(inner)

    f = jax.jit(lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct((4, 4), jnp.float32), x * 1) @ x)
    assert np.allclose(f(outer), np.tanh(X @ X.T) * 2 @ X, atol=1e-5)


def case_functions_wait_for_other_threads():
    double = jax.jit(lambda x: x * 2)
    with ThreadPoolExecutor(2) as pool:

        def function(x):
            inputs = [jax.device_put(x + i, jax.devices("neuron")[0]) for i in range(3)]
            return sum(pool.map(lambda each: np.asarray(double(each)), inputs))

        f = jax.jit(lambda x: jax.pure_callback(function, like(X), x) + 1)
        assert np.allclose(f(X), 6 * X + 7, atol=1e-5)


def case_errors_reach_the_caller():
    def fail(x):
        raise KeyError("not here")

    def call(function):
        return jax.jit(lambda x: jax.pure_callback(function, like(X), x))(X).block_until_ready()

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)NCC_ERUN919.*not here.*host_call_cases.py"):
        call(fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Incorrect output shape for return value #0"):
        call(lambda x: x[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="Incorrect output dtype for return value #0"):
        call(lambda x: x > 0)
    assert np.array_equal(call(lambda x: x), X)  # and the next call works


def case_donated_argument_of_a_program_that_fails():
    """The result may be written over it before the failure; it must not be taken for the array that it was."""

    def fail(x):
        raise KeyError("too late")

    @functools.partial(jax.jit, donate_argnums=0)
    def double(x):
        y = x * 2
        return y, io_callback(fail, like(X), y)

    x = jax.device_put(X, jax.devices("neuron")[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="too late"):
        jax.block_until_ready(double(x))
    assert x.is_deleted()


def case_transformations():
    @jax.custom_vjp
    def f(x):
        return jax.pure_callback(np.sin, like(x), x, vmap_method="expand_dims")

    f.defvjp(lambda x: (f(x), x), lambda x, g: (jnp.cos(x) * g,))
    assert np.allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(X), np.cos(X), atol=1e-6)
    assert np.allclose(jax.jit(jax.vmap(lambda x: f(x) + 1))(X), np.sin(X) + 1, atol=1e-6)
    sequential = lambda x: jax.pure_callback(np.sum, like(X[0, 0]), x, vmap_method="sequential")  # noqa: E731
    assert np.allclose(jax.jit(jax.vmap(sequential))(X), X.sum(1), atol=1e-6)
    error, _ = jax.jit(checkify.checkify(lambda x: checkify.check(x[0, 0] > 100, "small {}", x[0, 0])))(X)
    with pytest.raises(checkify.JaxRuntimeError, match="small"):
        error.throw()


def case_sharded_programs_call_once_with_the_whole():
    mesh = Mesh(np.array(jax.devices("neuron")), ("d",))
    split = NamedSharding(mesh, P("d"))
    seen, note = noting()

    @jax.jit
    def f(x):
        jax.debug.callback(note, x[:, 0])
        y = jax.pure_callback(lambda x: x[::-1], like(X), x)
        number, _ = io_callback(lambda x: (np.int32(len(seen)), x), (like(np.int32(0)), like(X)), y, ordered=False)
        return y * 2 + x, number

    y, number = f(jax.device_put(X, split))
    jax.effects_barrier()
    assert np.allclose(y, X[::-1] * 2 + X)
    assert seen == [X[:, 0].tolist()] or seen == [[X[:, 0].tolist()]]
    assert int(number) in (0, 1)


def case_inspected_shardings():
    mesh = Mesh(np.array(jax.devices("neuron")).reshape(2, 2), ("a", "b"))
    seen = []

    def f(x):
        y = jnp.sin(x)
        jax.debug.inspect_array_sharding(y, callback=seen.append)
        return y.sum()

    jax.jit(f)(jax.device_put(X, NamedSharding(mesh, P("b", "a"))))
    assert [each.is_equivalent_to(NamedSharding(mesh, P("b", "a")), 2) for each in seen] == [True], seen
    h = lambda x: (jax.debug.inspect_array_sharding(x, callback=seen.append), x + 1)[1]  # noqa: E731
    jax.jit(h)(jax.device_put(X, NamedSharding(mesh, P("a"))))
    assert seen.pop().is_equivalent_to(NamedSharding(mesh, P("a")), 2)
    jax.jit(f)(X)
    assert seen[1].device_set == {jax.devices("neuron")[0]}
    g = jax.shard_map(lambda x: f(x)[None, None], mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
    assert np.allclose(jax.jit(g)(X[:, :4]).sum(), np.sin(X[:, :4]).sum(), atol=1e-5)
    assert len(seen) == 3


def case_manual_programs_call_on_each_device():
    mesh = Mesh(np.array(jax.devices("neuron")), ("d",))
    seen, note = noting()

    def f(x):
        jax.debug.callback(note, x[0, 0])
        return jax.lax.psum(jax.pure_callback(lambda x: x + 1, like(X[:1]), x), "d")

    y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P()))(X)
    jax.effects_barrier()
    assert np.allclose(y, X.sum(0) + 4, atol=1e-5)
    assert sorted(seen) == sorted([x.item()] for x in X[:, 0])


def case_threads():
    f = jax.jit(lambda x: jax.pure_callback(lambda x: x * 2, like(X), x + 1))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: np.asarray(f(X + i)), range(32)))
    for i, result in enumerate(results):
        assert np.allclose(result, (X + i + 1) * 2)


@contextmanager
def cached_in(place):
    """JAX keeps all programs in this folder."""
    names = ["jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"]
    names += ["jax_persistent_cache_min_entry_size_bytes"]
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (place, 0, -1), strict=True):
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def case_stays_in_its_process():
    compiled = jax.jit(lambda x: jax.pure_callback(np.sin, like(X), x)).lower(X).compile()
    with pytest.raises(Exception, match="EHCA901"):
        serialize_executable.serialize(compiled)
    assert "neuron_host_call" in compiled.as_text()
    with pytest.raises(NotImplementedError):
        export.export(jax.jit(lambda x: jax.pure_callback(np.sin, like(X), x)))(X)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(), cached_in(place):
        warnings.simplefilter("error")
        jax.jit(lambda x: jax.pure_callback(np.sin, like(X), x) + 5)(X)
        assert os.listdir(place) == []
        jax.jit(lambda x: x + 5)(X)
        assert os.listdir(place)
    with neuronx_cc.recording() as runs:
        compiled(X)
    assert "1 calls of its functions" in str(runs[-1].report)
    assert runs[-1].seconds > 0


def case_functions_go_with_their_programs():
    class Function:
        def __call__(self, x):
            return x

    def use():
        function = Function()
        jax.jit(lambda x: jax.pure_callback(function, like(X), x))(X)
        return weakref.ref(function)

    gone = use()
    jax.clear_caches()
    gc.collect()
    jax.jit(lambda x: x * 3 - 1)(X)  # what C++ holds of Python goes at the next entry
    gc.collect()
    assert gone() is None


def case_tokens_are_values():
    token = jax.lax.create_token(0)
    assert jax.jit(lambda t, x: (x + 1, t))(token, 2.0)[0] == 3


def captured():
    """What was printed since the last call."""
    text = sys.stdout.getvalue()
    sys.stdout.truncate(0)
    sys.stdout.seek(0)
    return text


if __name__ == "__main__":
    import io

    sys.stdout = io.StringIO()
    report(globals(), captured)
