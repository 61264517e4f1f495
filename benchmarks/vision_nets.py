"""Whole networks on images and volumes, a few layers of real widths: simulated time, in both orders of dims.

    python benchmarks/vision_nets.py [--dtype bfloat16] [--order last] [--batch 4] [--save FILE]
        [--before FILE] [NET ...]

Weights are parameters. A network is a function of an image and a ``Layers``, which knows in which order its arrays
have their dims; it is called once to collect the shapes of its weights.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax
import jax.numpy as jnp
from jax import lax
from lowering import lower
from programs import simulated

Net = Callable[["Layers", Any], Any]
NETS: dict[str, tuple[Net, tuple[int, ...]]] = {}
"""The networks, and the sides of their images; features of the input are 3, of a volume 1."""


class Layers:
    """Layers in one order of dims, whose weights are taken from a list, or added to it as zeros."""

    def __init__(self, first: bool, dtype: Any, given: Sequence[Any] | None = None):
        self.first, self.dtype, self.shapes = first, dtype, list[tuple[int, ...]]()
        self.given = None if given is None else iter(given)

    def weight(self, *shape: int) -> Any:
        self.shapes.append(shape)
        return jnp.zeros(shape, self.dtype) if self.given is None else next(self.given)

    def features(self, x: Any) -> int:
        size: int = x.shape[1 if self.first else -1]
        return size

    def places(self, x: Any) -> tuple[int, ...]:
        """The dims of positions."""
        return tuple(range(2, x.ndim)) if self.first else tuple(range(1, x.ndim - 1))

    def each(self, x: Any, values: Any) -> Any:
        """Values of features beside ``x``."""
        return values.reshape(-1, *(1,) * (x.ndim - 2)) if self.first else values

    def numbers(self, x: Any) -> tuple[str, str, str]:
        """Of a convolution's operands and result."""
        names = "DHW"[5 - x.ndim :]
        return (f"NC{names}", f"OI{names}", f"NC{names}") if self.first else (f"N{names}C", f"{names}IO", f"N{names}C")

    def conv(self, x: Any, d: int, taps: int = 1, stride: int = 1, groups: int = 1, bias: bool = False) -> Any:
        rank, c, numbers = x.ndim - 2, self.features(x), self.numbers(x)
        kernel = (d, c // groups, *(taps,) * rank) if self.first else (*(taps,) * rank, c // groups, d)
        weights, strides = self.weight(*kernel), (stride,) * rank
        y = lax.conv_general_dilated(x, weights, strides, "SAME", dimension_numbers=numbers, feature_group_count=groups)
        return y + self.each(y, self.weight(d)) if bias else y

    def up(self, x: Any, d: int) -> Any:
        """Transposed convolution, of twice the positions."""
        rank, c, numbers = x.ndim - 2, self.features(x), self.numbers(x)
        kernel = (d, c, *(2,) * rank) if self.first else (*(2,) * rank, c, d)
        return lax.conv_transpose(x, self.weight(*kernel), (2,) * rank, "SAME", dimension_numbers=numbers)

    def batch_norm(self, x: Any) -> Any:
        mean, var, scale, bias = (self.each(x, self.weight(self.features(x))) for _ in range(4))
        return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias

    def norm(self, x: Any, axes: tuple[int, ...]) -> Any:
        wide = x.astype(jnp.float32)
        mean = wide.mean(axes, keepdims=True)
        made = (wide - mean) * lax.rsqrt(wide.var(axes, keepdims=True) + 1e-6)
        return made.astype(x.dtype)

    def layer_norm(self, x: Any) -> Any:
        scale, bias = (self.each(x, self.weight(self.features(x))) for _ in range(2))
        return self.norm(x, (1 if self.first else x.ndim - 1,)) * scale + bias

    def group_norm(self, x: Any, groups: int) -> Any:
        scale, bias = (self.each(x, self.weight(self.features(x))) for _ in range(2))
        each = self.features(x) // groups
        if self.first:
            parts = x.reshape(x.shape[0], groups, each, *x.shape[2:])
            made = self.norm(parts, tuple(range(2, parts.ndim)))
        else:
            parts = x.reshape(*x.shape[:-1], groups, each)
            made = self.norm(parts, (*range(1, parts.ndim - 2), parts.ndim - 1))
        return made.reshape(x.shape) * scale + bias

    def window(self, x: Any, kind: str, size: int, stride: int, padding: str = "SAME") -> Any:
        reach, steps = [1] * x.ndim, [1] * x.ndim
        for axis in self.places(x):
            reach[axis], steps[axis] = size, stride
        if kind == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, reach, steps, padding)
        total = lax.reduce_window(x, 0.0, lax.add, reach, steps, padding)
        return (total / size ** (x.ndim - 2)).astype(x.dtype)

    def head(self, x: Any, outputs: int = 1000) -> Any:
        return x.mean(self.places(x)) @ self.weight(self.features(x), outputs)

    def excite(self, x: Any, inner: int) -> Any:
        places, c = self.places(x), self.features(x)
        gate = jax.nn.silu(x.mean(places) @ self.weight(c, inner))
        gate = jax.nn.sigmoid(gate @ self.weight(inner, c))
        return x * jnp.expand_dims(gate, places)


def net(*sides: int) -> Callable[[Net], Net]:
    def note(function: Net) -> Net:
        NETS[function.__name__] = (function, sides)
        return function

    return note


@net(224, 224)
def convnext(net: Layers, x: Any) -> Any:
    for c, depth in ((96, 2), (192, 2), (384, 3), (768, 2)):
        if c == 96:
            x = net.layer_norm(net.conv(x, c, 4, 4, bias=True))
        else:
            x = net.conv(net.layer_norm(x), c, 2, 2, bias=True)
        for _ in range(depth):
            h = net.layer_norm(net.conv(x, c, 7, groups=c, bias=True))
            h = jax.nn.gelu(net.conv(h, 4 * c, bias=True))
            x = x + net.conv(h, c, bias=True) * net.each(x, net.weight(c))
    return net.head(x)


def inverted(net: Layers, x: Any, d: int, taps: int, stride: int, wide: int, act: Any, squeeze: int) -> Any:
    c = net.features(x)
    h = x if wide == c else act(net.batch_norm(net.conv(x, wide)))
    h = act(net.batch_norm(net.conv(h, wide, taps, stride, groups=wide)))
    h = net.excite(h, squeeze) if squeeze else h
    h = net.batch_norm(net.conv(h, d))
    return x + h if stride == 1 and c == d else h


@net(224, 224)
def mobilenet_v2(net: Layers, x: Any) -> Any:
    x = jax.nn.relu6(net.batch_norm(net.conv(x, 32, 3, 2)))
    for ratio, d, depth, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 2, 2),
        (6, 64, 2, 2),
        (6, 96, 2, 1),
        (6, 160, 2, 2),
    ):
        for layer in range(depth):
            wide = ratio * net.features(x)
            x = inverted(net, x, d, 3, 1 if layer else stride, wide, jax.nn.relu6, 0)
    return net.head(jax.nn.relu6(net.batch_norm(net.conv(x, 1280))))


@net(224, 224)
def mobilenet_v3(net: Layers, x: Any) -> Any:
    relu, swish = jax.nn.relu, jax.nn.hard_swish
    x = swish(net.batch_norm(net.conv(x, 16, 3, 2)))
    for taps, wide, d, squeeze, act, stride in (
        (3, 16, 16, 0, relu, 1),
        (3, 64, 24, 0, relu, 2),
        (5, 72, 40, 24, relu, 2),
        (5, 120, 40, 32, relu, 1),
        (3, 240, 80, 0, swish, 2),
        (3, 184, 80, 0, swish, 1),
        (3, 480, 112, 120, swish, 1),
        (5, 672, 160, 168, swish, 2),
        (5, 960, 160, 240, swish, 1),
    ):
        x = inverted(net, x, d, taps, stride, wide, act, squeeze)
    return net.head(swish(net.batch_norm(net.conv(x, 960))))


@net(224, 224)
def efficientnet(net: Layers, x: Any) -> Any:
    x = jax.nn.silu(net.batch_norm(net.conv(x, 32, 3, 2)))
    for ratio, d, depth, stride, taps in (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 2, 2, 3),
        (6, 112, 1, 1, 5),
        (6, 192, 2, 2, 5),
    ):
        for layer in range(depth):
            c = net.features(x)
            x = inverted(net, x, d, taps, 1 if layer else stride, ratio * c, jax.nn.silu, max(1, c // 4))
    return net.head(jax.nn.silu(net.batch_norm(net.conv(x, 1280))))


@net(224, 224)
def resnet(net: Layers, x: Any) -> Any:
    x = net.window(jax.nn.relu(net.batch_norm(net.conv(x, 64, 7, 2))), "max", 3, 2)
    for c, depth in ((64, 2), (128, 2), (256, 2), (512, 2)):
        for layer in range(depth):
            stride = 2 if layer == 0 and c > 64 else 1
            h = jax.nn.relu(net.batch_norm(net.conv(x, c)))
            h = jax.nn.relu(net.batch_norm(net.conv(h, c, 3, stride)))
            h = net.batch_norm(net.conv(h, 4 * c))
            x = jax.nn.relu(h + (x if layer else net.batch_norm(net.conv(x, 4 * c, 1, stride))))
    return net.head(x)


@net(224, 224)
def densenet(net: Layers, x: Any) -> Any:
    x = net.window(jax.nn.relu(net.batch_norm(net.conv(x, 64, 7, 2))), "max", 3, 2)
    for block, depth in enumerate((3, 3, 4)):
        for _ in range(depth):
            h = net.conv(jax.nn.relu(net.batch_norm(x)), 128)
            h = net.conv(jax.nn.relu(net.batch_norm(h)), 32, 3)
            x = jnp.concatenate([x, h], 1 if net.first else -1)
        if block < 2:
            x = net.conv(jax.nn.relu(net.batch_norm(x)), net.features(x) // 2)
            x = net.window(x, "mean", 2, 2, "VALID")
    return net.head(x)


@net(224, 224)
def convmixer(net: Layers, x: Any) -> Any:
    x = net.batch_norm(jax.nn.gelu(net.conv(x, 768, 7, 7, bias=True)))
    for _ in range(3):
        x = x + net.batch_norm(jax.nn.gelu(net.conv(x, 768, 7, groups=768, bias=True)))
        x = net.batch_norm(jax.nn.gelu(net.conv(x, 768, bias=True)))
    return net.head(x)


@net(224, 224)
def mlp_mixer(net: Layers, x: Any) -> Any:
    x = net.conv(x, 512, 16, 16, bias=True)
    x = x.reshape(x.shape[0], 512, -1).swapaxes(1, 2) if net.first else x.reshape(x.shape[0], -1, 512)
    plain = Layers(False, net.dtype, None if net.given is None else list(net.given))
    plain.shapes = net.shapes
    for _ in range(3):
        h = plain.layer_norm(x).swapaxes(1, 2)
        h = jax.nn.gelu(h @ plain.weight(196, 256) + plain.weight(256)) @ plain.weight(256, 196) + plain.weight(196)
        x = x + h.swapaxes(1, 2)
        h = jax.nn.gelu(plain.layer_norm(x) @ plain.weight(512, 2048) + plain.weight(2048))
        x = x + h @ plain.weight(2048, 512) + plain.weight(512)
    return plain.layer_norm(x).mean(1) @ plain.weight(512, 1000)


@net(224, 224)
def poolformer(net: Layers, x: Any) -> Any:
    for c, depth in ((64, 2), (128, 2), (320, 2), (512, 2)):
        x = net.conv(x, c, 7 if c == 64 else 3, 4 if c == 64 else 2, bias=True)
        for _ in range(depth):
            h = net.group_norm(x, 1)
            x = x + (net.window(h, "mean", 3, 1) - h) * net.each(x, net.weight(c))
            h = jax.nn.gelu(net.conv(net.group_norm(x, 1), 4 * c, bias=True))
            x = x + net.conv(h, c, bias=True) * net.each(x, net.weight(c))
    return net.head(x)


def double(net: Layers, x: Any, c: int, groups: int) -> Any:
    for _ in range(2):
        x = jax.nn.silu(net.group_norm(net.conv(x, c, 3, bias=True), groups))
    return x


def unet_of(net: Layers, x: Any, widths: Sequence[int], groups: int) -> Any:
    kept = []
    for c in widths[:-1]:
        x = double(net, x, c, groups)
        kept.append(x)
        x = net.window(x, "max", 2, 2, "VALID")
    x = double(net, x, widths[-1], groups)
    for c in widths[-2::-1]:
        x = jnp.concatenate([net.up(x, c), kept.pop()], 1 if net.first else -1)
        x = double(net, x, c, groups)
    return net.conv(x, 4, bias=True)


@net(96, 96)
def unet(net: Layers, x: Any) -> Any:
    return unet_of(net, x, (64, 128, 256), 8)


@net(224, 224)
def vgg(net: Layers, x: Any) -> Any:
    for c, depth in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(depth):
            x = jax.nn.relu(net.conv(x, c, 3, bias=True))
        x = net.window(x, "max", 2, 2, "VALID")
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ net.weight(512 * 49, 1024))
    return x @ net.weight(1024, 1000)


@net(32, 32, 32)
def unet_3d(net: Layers, x: Any) -> Any:
    return unet_of(net, x, (32, 64, 128), 8)


@net(16, 56, 56)
def resnet_3d(net: Layers, x: Any) -> Any:
    x = net.window(jax.nn.relu(net.batch_norm(net.conv(x, 64, 3))), "max", 3, 2)
    for c in (64, 128, 256):
        h = jax.nn.relu(net.batch_norm(net.conv(x, c, 3, 2 if c > 64 else 1)))
        h = net.batch_norm(net.conv(h, c, 3))
        x = jax.nn.relu(h + (x if c == 64 else net.batch_norm(net.conv(x, c, 1, 2))))
    return net.head(x, 400)


def module(name: str, order: str, dtype: str, batch: int) -> bytes:
    """A network as a serialized ``HloModuleProto``."""
    function, sides = NETS[name]
    first, c = order == "first", 3 if len(sides) == 2 else 1
    image = jax.ShapeDtypeStruct((batch, c, *sides) if first else (batch, *sides, c), jnp.dtype(dtype))
    found = Layers(first, image.dtype)
    jax.eval_shape(lambda x: function(found, x), image)
    weights = [jax.ShapeDtypeStruct(shape, image.dtype) for shape in found.shapes]
    return lower(lambda x, *given: function(Layers(first, image.dtype, given), x), [image, *weights])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--order", action="append", choices=("last", "first"))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("names", nargs="*", metavar="NET", help=", ".join(NETS))
    options = parser.parse_args()
    before: dict[str, float] = json.loads(options.before.read_text()) if options.before else {}
    times = dict[str, float]()
    for name in options.names or NETS:
        for dtype in options.dtype or ("float32", "bfloat16"):
            for order in options.order or ("last", "first"):
                key = f"{name} {dtype} features {order}"
                times[key] = simulated(module(name, order, dtype, options.batch), "none")
                beside = f"  {times[key] / before[key]:6.3f} of {before[key] * 1e6:.1f}" if key in before else ""
                print(f"{times[key] * 1e6:10.1f} us  {key}{beside}", flush=True)
                if options.save:
                    options.save.write_text(json.dumps(times, indent=1))
    shared = [times[key] / before[key] for key in times if key in before]
    if shared:
        print(f"{len(shared)} networks: {geometric_mean(shared):.3f} of their time before, at most {max(shared):.3f}")


if __name__ == "__main__":
    main()
