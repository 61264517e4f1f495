"""Convolutions with kernels in 8 bits: any type, form, layout and spelling of scales, given and constant."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=49152"])
Array = Any
TYPES: dict[str, Any] = {
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
}
SPELLINGS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "codes": lambda q, s, z: q.astype(jnp.float32),
    "scaled": lambda q, s, z: q.astype(jnp.float32) * s,
    "divided": lambda q, s, z: q.astype(jnp.float32) / (s + 1),
    "zero points": lambda q, s, z: (q.astype(jnp.float32) - z) * s,
    "integer zero points": lambda q, s, z: (q.astype(jnp.int32) - z.astype(jnp.int32)).astype(jnp.float32) * s,
    "one scale": lambda q, s, z: q.astype(jnp.float32) * jnp.float32(0.03),
    "scales of inputs": lambda q, s, z: (
        q.astype(jnp.float32) * jnp.arange(1, q.shape[-2] + 1, dtype=jnp.float32)[:, None]
    ),
}


def case(seed: int) -> tuple[Callable[..., Any], list[Any], bool]:
    """A function of image, codes, scales and zero points; these; and whether all but the image are constants."""
    draw = np.random.default_rng(seed)
    rank, name, spelling = draw.integers(1, 4), draw.choice(list(TYPES)), SPELLINGS[draw.choice(list(SPELLINGS))]
    inputs, outputs = draw.choice([1, 3, 16, 127, 128, 129]), draw.choice([1, 3, 16, 127, 128, 129])
    groups = draw.choice([1, 1, 1, 2, 3])
    kernel = [int(each) for each in draw.choice([1, 2, 3], rank)]
    image = [int(each) for each in draw.integers(3, 12 if rank < 3 else 6, rank)]
    codes = draw.integers(-100, 100, (*kernel, inputs, outputs * groups))
    codes = codes.astype(np.uint8) if name == "u8" else (codes / (1 if name == "s8" else 40)).astype(TYPES[name])
    scales = draw.uniform(0.01, 0.05, outputs * groups).astype(np.float32)
    zeros = draw.integers(0, 5, outputs * groups).astype(np.float32)
    x = draw.standard_normal((draw.integers(1, 3), *image, inputs * groups)).astype(np.float32)
    last, plain = draw.random() < 0.5, "HWD"[:rank]
    forms = (f"N{plain}C", f"{plain}IO", f"N{plain}C") if last else (f"NC{plain}", f"OI{plain}", f"NC{plain}")
    how = {
        "window_strides": [int(each) for each in draw.choice([1, 1, 2], rank)],
        "padding": draw.choice(["SAME", "VALID"]) if min(image) > 6 else "SAME",
        "rhs_dilation": [int(each) for each in draw.choice([1, 1, 2], rank)],
        "dimension_numbers": forms,
        "feature_group_count": int(groups),
    }

    def function(x: Array, q: Array, s: Array, z: Array) -> Array:
        w = spelling(q, s, z)
        if not last:
            x, w = jnp.moveaxis(x, -1, 1), jnp.moveaxis(w, (-1, -2), (0, 1))
        return jax.lax.conv_general_dilated(x, w, **how)

    return function, [x, codes, scales, zeros], bool(draw.random() < 0.5)


def compiled(seed: int, machine: Any, cast: str) -> tuple[Any, list[Any], Any]:
    """The program, its inputs, and what FP32 makes of them, op by op."""
    function, inputs, constant = case(seed)
    if constant:
        text = text_of(lambda x: function(x, *map(jnp.asarray, inputs[1:])), inputs[0])
    else:
        text = text_of(function, *inputs)
    with jax.disable_jit():
        expected = function(*map(jnp.asarray, inputs))
    return compile_text(text, machine, auto_cast=cast), inputs[:1] if constant else inputs, np.asarray(expected)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(("machine", "cast"), [(TRN1, "none"), (TRN1, "matmult"), (SMALL, "matmult")])
def test_values(seed: int, machine: Any, cast: str) -> None:
    program, inputs, expected = compiled(seed, machine, cast)
    (found,) = program.run(inputs)
    assert_close(found, expected, 2e-5 if cast == "none" else 2e-2)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("form", ["s8", "u8", "f8e4m3", "f8e5m2"])
def test_codes_are_loaded_as_they_are(form: str, constant: bool) -> None:
    """What comes from HBM of a kernel is a byte an element, and no map converts it."""
    x = jnp.ones((1, 7, 7, 256), jnp.bfloat16)
    codes = jnp.asarray(np.arange(9 * 256 * 256).reshape(3, 3, 256, 256) % 97, TYPES[form.removeprefix("f8")])

    def function(x: Array, q: Array) -> Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, q.astype(jnp.bfloat16), (1, 1), "SAME", dimension_numbers=numbers)

    text = text_of(lambda x: function(x, codes), x) if constant else text_of(function, x, codes)
    program = compile_text(text).program
    assert [name.split(".")[1] for name in program.kernels] == ["convolution"]
    assert all(f"as {form}" in line for line in program.schedules.values())
