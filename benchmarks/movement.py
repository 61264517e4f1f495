"""Movement of data: simulated time against the roofline, simulator wall time against jaxlib's.

The roofline counts results, and what is read of operands, once each, at the rate that the DMA engines reach (272 GB/s).
"Simulated" leaves out the preamble and the postamble.

    python benchmarks/movement.py [PART OF A NAME ...]
"""

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from indexing import Array, Case, table
from jax import lax

TRANSPOSES = [
    ((1024, 1024), (1, 0)),
    ((1021, 1031), (1, 0)),
    ((131072, 8), (1, 0)),
    ((8, 131072), (1, 0)),
    ((262144, 3), (1, 0)),
    ((3, 262144), (1, 0)),
    ((64, 128, 128), (0, 2, 1)),
    ((64, 128, 128), (1, 0, 2)),
    ((64, 128, 128), (2, 1, 0)),
    ((64, 128, 128), (2, 0, 1)),
    ((64, 128, 128), (1, 2, 0)),
    ((128, 512, 16), (1, 0, 2)),
    ((127, 513, 17), (2, 1, 0)),
    ((8, 224, 224, 3), (0, 3, 1, 2)),
    ((8, 3, 224, 224), (0, 2, 3, 1)),
    ((8, 12, 128, 64), (0, 2, 1, 3)),
    ((8, 12, 128, 64), (0, 1, 3, 2)),
    ((8, 12, 128, 64), (3, 2, 1, 0)),
    ((7, 31, 64, 61), (3, 1, 2, 0)),
    ((8, 16, 16, 16, 32), (0, 4, 2, 3, 1)),
    ((8, 16, 16, 16, 32), (4, 3, 2, 1, 0)),
    ((16, 16, 16, 16, 16), (0, 2, 1, 4, 3)),
    ((1024, 256, 2, 2), (0, 2, 1, 3)),
    ((512, 512, 4), (1, 0, 2)),
    ((512, 512, 4), (2, 0, 1)),
]


def cases() -> dict[str, Case]:
    random = np.random.default_rng(0)

    def floats(*dims: int) -> Array:
        return random.standard_normal(dims).astype(np.float32)

    def numbers(dtype: Any, *dims: int) -> Array:
        return random.integers(-100, 100, dims).astype(dtype)

    found: dict[str, Case] = {}

    def add(name: str, function: Callable[..., Any], *inputs: Any, read: float = 0) -> None:
        made = sum(prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(function, *inputs)))
        found[name] = Case(function, list(inputs), made + int(read or sum(x.nbytes for x in inputs)))

    x, y, cube = floats(1024, 1024), floats(1024, 1024), floats(16, 256, 256)
    half, byte = x.astype(jnp.bfloat16), numbers(np.int8, 2048, 2048)
    odd, line = floats(1021, 1031), floats(1 << 20)

    for name, array in (("", x), (" bf16", half), (" s8", byte), (" 1021x1031", odd)):
        add(f"reverse last{name}", lambda x: x[:, ::-1], array)
        add(f"reverse both{name}", lambda x: x[::-1, ::-1], array)
    add("reverse first", lambda x: x[::-1], x)
    add("reverse 1M", lambda x: x[::-1], line)
    add("reverse 1M s8", lambda x: x[::-1], numbers(np.int8, 4 << 20))
    add("reverse cube, middle", lambda x: x[:, ::-1], cube)
    add("reverse cube, all", lambda x: x[::-1, ::-1, ::-1], cube)
    add("reverse image", lambda x: x[:, :, ::-1], floats(8, 224, 224, 3))
    add("reverse channels", lambda x: x[..., ::-1], floats(8, 224, 224, 3))
    add("reverse pairs", lambda x: x.reshape(-1, 2)[:, ::-1].reshape(-1), line)

    for step in (2, 3, 4, 8, 16):
        add(f"every {step}. column", lambda x, step=step: x[:, ::step], x)
    add("every 2. column bf16", lambda x: x[:, ::2], half)
    add("every 2. column s8", lambda x: x[:, ::2], byte)
    add("every 2. column backwards", lambda x: x[:, ::-2], x)
    add("every 2. row", lambda x: x[::2], x, read=x.nbytes / 2)
    add("every 2. row and column", lambda x: x[::2, ::2], x, read=x.nbytes / 2)
    add("every 2. of 1M", lambda x: x[::2], line)
    add("one column", lambda x: x[:, 5], x, read=4096)
    add("16 columns", lambda x: x[:, 100:116], x, read=65536)
    add("halves of columns", lambda x: (x[:, ::2], x[:, 1::2]), x)
    add("rotary halves", lambda x: jnp.concatenate([-x[..., 32:], x[..., :32]], -1), floats(16, 1024, 64))

    for dims, order in TRANSPOSES:
        size = "x".join(str(dim) for dim in dims)
        for dtype in (np.float32, jnp.bfloat16, np.int8):
            name = f"transpose {size} to {''.join(str(dim) for dim in order)} {np.dtype(dtype).name}"
            add(name, lambda x, order=order: jnp.transpose(x, order), numbers(dtype, *dims))

    add("pad edges", lambda x: jnp.pad(x, ((1, 1), (1, 1))), x)
    add("pad edges by 3", lambda x: jnp.pad(x, 3, constant_values=1), odd)
    add("pad edges bf16", lambda x: jnp.pad(x, 1), half)
    add("pad image", lambda x: jnp.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0))), floats(8, 224, 224, 3))
    add("pad last of small", lambda x: jnp.pad(x, ((0, 0), (0, 1))), floats(262144, 3))
    add("pad interior last", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 1))), x)
    add("pad interior both", lambda x: lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 1))), floats(512, 512))
    add("pad interior both bf16", lambda x: lax.pad(x, x.dtype.type(0), ((0, 1, 1), (0, 1, 1))), half[:512, :512])
    add("pad interior of 1M", lambda x: lax.pad(x, 0.0, ((0, 0, 1),)), line)
    add("pad interior 5", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 5))), x[:, :256])
    add("pad interior first", lambda x: lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0))), x)
    add("pad negative", lambda x: lax.pad(x, 0.0, ((-1, -1, 0), (-1, -1, 0))), x)
    add("pad by a parameter", lambda x, v: lax.pad(x, v, ((1, 1, 0), (0, 0, 1))), x, np.float32(3))

    add("concatenate first", lambda x, y: jnp.concatenate([x, y]), x, y)
    add("concatenate last", lambda x, y: jnp.concatenate([x, y], 1), x, y)
    add("concatenate last odd", lambda x, y: jnp.concatenate([x, y], 1), odd, odd[:, :7])
    add("stack last", lambda x, y: jnp.stack([x, y], -1), x, y)
    add("stack last bf16", lambda x, y: jnp.stack([x, y], -1), half, half)
    add("stack last s8", lambda x, y: jnp.stack([x, y], -1), byte, byte)
    add("stack three last", lambda x, y: jnp.stack([x, y, x + y], -1), x, y)
    add("concatenate columns of 1", lambda x, y: jnp.concatenate([x, y], 1), floats(1 << 19, 1), floats(1 << 19, 1))
    add("concatenate images", lambda x, y: jnp.concatenate([x, y], -1), floats(8, 224, 224, 3), floats(8, 224, 224, 1))
    add("complex", lambda x, y: lax.complex(x, y).real + 1, x, y, read=x.nbytes)

    add("broadcast rows", lambda x: jnp.broadcast_to(x, (1024, 1024)), x[0])
    add("broadcast columns", lambda x: jnp.broadcast_to(x[:, None], (1024, 1024)), x[0])
    add("broadcast columns s8", lambda x: jnp.broadcast_to(x[:, None], (2048, 2048)), byte[0])
    add("broadcast middle", lambda x: jnp.broadcast_to(x[:, None], (64, 64, 256)), x[:64, :256])
    add("broadcast last 3", lambda x: jnp.broadcast_to(x[..., None], (*x.shape, 3)), x)
    add("repeat 2x2", lambda x: jnp.repeat(jnp.repeat(x, 2, 0), 2, 1), x[:512, :512])
    add("tile 2x3", lambda x: jnp.tile(x, (2, 3)), x[:512, :512])

    at = np.int32(77)
    add("dynamic slice of columns", lambda x, i: lax.dynamic_slice(x, (0, i), (1024, 512)), x, at, read=x.nbytes / 2)
    add("dynamic slice of 16 columns", lambda x, i: lax.dynamic_slice(x, (0, i), (1024, 16)), x, at, read=1 << 16)
    add("dynamic slice of a column", lambda x, i: lax.dynamic_slice(x, (0, i), (1024, 1)), x, at, read=1 << 12)
    add(
        "dynamic slice of transposed",
        lambda x, i: lax.dynamic_slice(x.T, (0, i), (1024, 512)),
        x,
        at,
        read=x.nbytes / 2,
    )
    add("dynamic update of columns", lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i)), x, x[:, :512], at)
    add("dynamic update of a column", lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i)), x, x[:, :1], at)
    add("dynamic update by transposed", lambda x, y, i: lax.dynamic_update_slice(x, y.T, (0, i)), x, y[:512], at)
    add("dynamic update by reversed", lambda x, y, i: lax.dynamic_update_slice(x, y[:, ::-1], (i, 0)), x, y[:512], at)
    add("roll last", lambda x, i: jnp.roll(x, i, 1), x, at)
    add("roll last by 5", lambda x: jnp.roll(x, 5, 1), x)

    add("reshape 1024x1024 to 1M + 1", lambda x: x.reshape(-1) + 1, x)
    add("reshape exp to 512x2048", lambda x: jnp.exp(x).reshape(512, 2048) + 1, x)
    add("reshape exp to 1000x1031", lambda x: jnp.exp(x[:1000]).reshape(1031, 1000) + 1, odd, read=4 * 1000 * 1031)
    add("reshape 96x10922", lambda x: jnp.exp(x).reshape(384, 1 << 12).T + 1, floats(96, 1 << 14))
    add("merge heads", lambda x: jnp.exp(x).transpose(0, 2, 1, 3).reshape(8, 128, 768), floats(8, 12, 128, 64))
    add("split heads", lambda x: jnp.exp(x).reshape(8, 128, 12, 64).transpose(0, 2, 1, 3), floats(8, 128, 768))
    add("space to depth", lambda x: _space_to_depth(x), floats(8, 224, 224, 3))
    add("depth to space", lambda x: _depth_to_space(x), floats(8, 112, 112, 12))
    add("patches", lambda x: _patches(x), floats(8, 224, 224, 3))
    add("shuffle channels", lambda x: x.reshape(64, 4, 64, 64).swapaxes(1, 2).reshape(64, 256, 64), floats(64, 256, 64))

    add("bitcast f32 to u8", lambda x: lax.bitcast_convert_type(x, jnp.uint8), x)
    add("bitcast u8 to f32", lambda x: lax.bitcast_convert_type(x, jnp.float32), byte.view(np.uint8).reshape(-1, 4))
    add("bitcast bf16 to u32", lambda x: lax.bitcast_convert_type(x, jnp.uint32), half.reshape(-1, 2))
    add("bitcast f32 to u16", lambda x: lax.bitcast_convert_type(x, jnp.uint16), x)
    add("bitcast exp to u16", lambda x: lax.bitcast_convert_type(jnp.exp(x), jnp.uint16), x)
    add("bitcast of transposed", lambda x: lax.bitcast_convert_type(x.T, jnp.uint16), x)

    add("convert f32 to bf16", lambda x: x.astype(jnp.bfloat16), x)
    add("convert s8 to f32", lambda x: x.astype(jnp.float32), byte)
    add("convert f32 to s32", lambda x: x.astype(jnp.int32), x)
    add("convert transposed to bf16", lambda x: x.T.astype(jnp.bfloat16), x)
    add("convert reversed to bf16", lambda x: x[:, ::-1].astype(jnp.bfloat16), x)
    add("select", lambda x, y: jnp.where(x > 0, x, y), x, y)
    add("select transposed", lambda x, y: jnp.where(x > 0, x, y.T), x, y)
    add("select by a row", lambda x, y, r: jnp.where(r > 0, x, y), x, y, x[0])
    add("select by a column", lambda x, y, c: jnp.where(c > 0, x, y), x, y, x[:, :1])
    add("iota last", lambda: lax.broadcasted_iota(jnp.int32, (1024, 1024), 1))
    add("iota first", lambda: lax.broadcasted_iota(jnp.int32, (1024, 1024), 0))
    add("iota bf16", lambda: lax.broadcasted_iota(jnp.bfloat16, (1024, 1024), 1))
    add("triangle", lambda x: jnp.tril(x), x)

    add("exp transposed", lambda x: jnp.exp(x.T), x)
    add("exp transposed bf16", lambda x: jnp.exp(x.T), half)
    add("exp of last two transposed", lambda x: jnp.exp(jnp.swapaxes(x, 1, 2)), cube)
    add("transposed exp", lambda x: jnp.exp(x).T, x)
    add("add transposed", lambda x: x + x.T, x, read=x.nbytes)
    add("add reversed", lambda x, y: x[::-1, ::-1] + y, x, y)
    add("add reversed 1M", lambda x: x + x[::-1], line)
    add("add every 2. row", lambda x, y: x[::2] + y, x, y[:512], read=x.nbytes)
    add("add every 2. column", lambda x, y: x[:, ::2] + y, x, y[:, :512])
    add("add every 8. column", lambda x, y: x[:, ::8] + y, x, y[:, :128])
    add("exp of every 2. of 1M", lambda x: jnp.exp(x[::2]), line)
    add("exp reversed bf16", lambda x: jnp.exp(x[:, ::-1]), half)
    add("reversed exp", lambda x: jnp.exp(x)[::-1, ::-1], x)
    add("every 2. column of exp", lambda x: jnp.exp(x)[:, ::2], x)
    add("exp and its reverse", lambda x: (jnp.exp(x), jnp.exp(x)[:, ::-1]), x)
    add("reversed sum of rows", lambda x: x[:, ::-1].sum(0), x)
    add("difference of neighbours", lambda x: x[:, 1:] - x[:, :-1], x)
    add("dot of reversed", lambda x, y: x[:, ::-1] @ y, x[:256], y[:, :256])
    return found


def _space_to_depth(x: Any) -> Any:
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // 2, w // 2, 4 * c)


def _depth_to_space(x: Any) -> Any:
    n, h, w, c = x.shape
    return x.reshape(n, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, c // 4)


def _patches(x: Any) -> Any:
    n, h, w, c = x.shape
    return x.reshape(n, h // 16, 16, w // 16, 16, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, -1, 256 * c)


if __name__ == "__main__":
    table(cases(), sys.argv[1:])
