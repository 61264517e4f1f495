"""The native core gives the same bits however many threads share its instructions."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from jax import lax

from neuronx_cc.runtime.native import library

Array = jax.Array


def mixed(x: Array, w: Array, image: Array, kernel: Array, i: Array, bits: Array) -> tuple[Array, ...]:
    """Contractions in two types, functions, reductions, a convolution, sorts, scans, indexing, integers, a loop."""
    hidden = jax.nn.gelu(x @ w)
    attention = jax.nn.softmax((hidden @ hidden.T) / 8) @ hidden
    narrow = lax.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    convolved = lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    order = jnp.argsort(x[0])
    added = jnp.zeros_like(x).at[i].add(x[: i.shape[0]])
    mixed_bits = (bits * jnp.uint32(2654435761)) ^ (bits >> 7)
    looped = lax.fori_loop(0, 3, lambda n, state: jnp.tanh(state @ state.T / 100) @ state + n, hidden)
    sums = x.var(1), jnp.cumsum(x, 1), jnp.log1p(jnp.abs(x)).sum(0), x.max(0)
    return attention, narrow, convolved, order, added, mixed_bits, looped, *sums, x[i], x.astype(jnp.float8_e4m3)


def test_a_module_of_all_kinds() -> None:
    core = library.load()
    if core is None:
        pytest.skip("no native core here")
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(dims).astype(np.float32) for dims in ((200, 300), (300, 140))]
    inputs += [random.standard_normal(dims).astype(np.float32) for dims in ((2, 20, 33, 31), (24, 20, 3, 3))]
    inputs += [random.integers(0, 200, 50).astype(np.int32), random.integers(0, 2**32, (130, 70), np.uint32)]
    compiled = compile_text(text_of(mixed, *inputs))
    try:
        results = []
        for threads in (1, 2, 3):
            core.core_threads(threads)
            results.append([output.tobytes() for output in compiled.run(inputs)])
    finally:
        core.core_threads(library.threads())
    assert results[0] == results[1] == results[2]


OPENING = """
from concurrent.futures import ThreadPoolExecutor
from neuronx_cc.runtime.native import library
with ThreadPoolExecutor(4) as threads:
    opened = list(threads.map(library.open_library, [library.PATH] * 32))
assert all(each is not None and each.core_abi() == library.ABI for each in opened)
"""


def test_threads_that_open_the_core_first() -> None:
    """In a process that has not opened it: the thread sanitizer looks at what they write."""
    if library.load() is None:
        pytest.skip("no native core here")
    done = subprocess.run([sys.executable, "-c", OPENING], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
