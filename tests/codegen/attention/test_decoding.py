"""Steps of decoders drawn by ``benchmarks/decoding.py``, at small sizes, also with little memory: values and caches."""

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of

from neuronx_cc.ir.targets import find_machine

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))
import decoding  # noqa: E402


def drawn(seed: int) -> decoding.Kind:
    """Sizes at which chunks, sections and blocks of heads end in all ways."""
    draw = random.Random(f"values {seed}")
    heads = draw.choice((1, 2, 4, 6, 8))
    return replace(
        decoding.drawn(seed),
        layers=draw.choice((1, 2, 3)),
        width=draw.choice((32, 64, 130)),
        heads=heads,
        groups=draw.choice([each for each in (1, 2, 3, 4, 6, 8) if heads % each == 0]),
        size=draw.choice((8, 16, 24, 64, 80, 130)),
        hidden=draw.choice((48, 96)),
        batch=draw.choice((1, 2, 3, 4)),
        cache=draw.choice((4, 31, 128, 130, 256, 300, 520, 1100)),
        dtype=draw.choice(("float32", "float32", "bfloat16")),
    )


@pytest.mark.parametrize("seed", range(16))
def test_values(seed: int) -> None:
    kind, random_numbers = drawn(seed), np.random.default_rng(seed)

    def given(shape: Any) -> Any:
        if shape.dtype == jnp.int32:
            return random_numbers.integers(0, kind.cache, shape.shape, np.int32)
        numbers = random_numbers.standard_normal(shape.shape)
        rows = shape.shape[-2] if len(shape.shape) > 1 and shape.shape[-1] != kind.size else 1
        return np.asarray(jnp.asarray(numbers * rows**-0.5, shape.dtype))

    def step(*given: Any) -> Any:
        return decoding.step(kind, *given)

    arguments = jax.tree.map(given, decoding.arguments(kind))
    machine = find_machine(str(ROOT / "tests" / "machines" / "quarter.toml")) if seed % 4 == 3 else TRN1
    text = text_of(step, *arguments, donated=seed % 2 == 0)
    found = compile_text(text, machine).run(jax.tree.leaves(arguments))
    wide = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == jnp.bfloat16 else x, arguments)
    expected, exact = (jax.tree.leaves(jax.jit(step)(*each)) for each in (arguments, wide))
    for result, want, right in zip(found, expected, exact, strict=True):
        result, want, right = (np.asarray(each, np.float64) for each in (result, want, right))
        scale = np.abs(right).max() + 1e-9
        tolerance = 2e-5 if kind.dtype == "float32" else max(3 * np.abs(want - right).max() / scale, 0.03)
        assert np.abs(result - right).max() <= tolerance * scale, kind
