"""Blocks of networks and algorithms on images, drawn by seed like ``survey_programs``."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from survey_programs import Draw, Program, kind, with_gradient

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def convolve(x: Any, w: Any, stride: int = 1, groups: int = 1, order: Any = NHWC, dilation: int = 1) -> Any:
    strides, dilations = (stride,) * (x.ndim - 2), (dilation,) * (x.ndim - 2)
    return lax.conv_general_dilated(
        x, w, strides, "SAME", rhs_dilation=dilations, dimension_numbers=order, feature_group_count=groups
    )


def normalised(x: Any, axes: Any) -> Any:
    return (x - x.mean(axes, keepdims=True)) * lax.rsqrt(x.var(axes, keepdims=True) + 1e-5)


# ---- blocks


@kind
def inverted_residual(draw: Draw) -> Program:
    """MobileNet: 1x1 up, 3x3 or 5x5 of each feature, squeeze and excite, 1x1 down."""
    n, side, c, taps = draw.size(1, 8), draw.size(7, 56), draw.size(8, 96), draw.choice((3, 5))
    wide, inner = 6 * c, max(4, c // 4)
    dtype = draw.choice((jnp.float32, jnp.bfloat16))

    def block(x: Any, up: Any, each: Any, squeeze: Any, excite: Any, down: Any) -> Any:
        x, up, each, squeeze, excite, down = (a.astype(dtype) for a in (x, up, each, squeeze, excite, down))
        h = jax.nn.silu(jnp.einsum("nhwc,cd->nhwd", x, up))
        h = jax.nn.silu(convolve(h, each, groups=wide))
        gate = jax.nn.sigmoid(jax.nn.silu(h.mean((1, 2)) @ squeeze) @ excite)
        return x + (h * gate[:, None, None]) @ down

    shapes = [(n, side, side, c), (c, wide), (taps, taps, 1, wide), (wide, inner), (inner, wide), (wide, c)]
    return with_gradient(draw, block), shapes


@kind
def squeeze_excite(draw: Draw) -> Program:
    n, side, c = draw.size(1, 16), draw.size(7, 112), draw.size(16, 512)
    first = draw.random() < 0.5

    def block(x: Any, squeeze: Any, excite: Any) -> Any:
        if first:
            gate = jax.nn.sigmoid(jax.nn.relu(x.mean((2, 3)) @ squeeze) @ excite)
            return x * gate[:, :, None, None]
        return x * jax.nn.sigmoid(jax.nn.relu(x.mean((1, 2), keepdims=True) @ squeeze) @ excite)

    return block, [(n, c, side, side) if first else (n, side, side, c), (c, c // 4), (c // 4, c)]


@kind
def convnext(draw: Draw) -> Program:
    n, side, c = draw.size(1, 8), draw.size(7, 56), draw.size(32, 384)
    first = draw.random() < 0.3

    def block(x: Any, each: Any, scale: Any, up: Any, down: Any, gamma: Any) -> Any:
        if first:
            h = convolve(x, each.transpose(3, 2, 0, 1), groups=c, order=NCHW).transpose(0, 2, 3, 1)
        else:
            h = convolve(x, each, groups=c)
        h = jax.nn.gelu((normalised(h, -1) * scale) @ up) @ down * gamma
        return x + (h.transpose(0, 3, 1, 2) if first else h)

    shapes = [(n, c, side, side) if first else (n, side, side, c), (7, 7, 1, c), (c,), (c, 4 * c), (4 * c, c), (c,)]
    return with_gradient(draw, block), shapes


@kind
def dense_block(draw: Draw) -> Program:
    n, side, c, growth, layers = draw.size(1, 8), draw.size(7, 56), draw.size(16, 128), draw.choice((12, 24, 32)), 4
    first = draw.random() < 0.5
    axis = 1 if first else 3

    def block(x: Any, *kernels: Any) -> Any:
        for kernel in kernels:
            made = jax.nn.relu(convolve(x, kernel, order=NCHW if first else NHWC))
            x = jnp.concatenate([x, made], axis)
        return x

    ins = [c + growth * layer for layer in range(layers)]
    kernels = [(growth, each, 3, 3) if first else (3, 3, each, growth) for each in ins]
    return with_gradient(draw, block), [(n, c, side, side) if first else (n, side, side, c), *kernels]


@kind
def inception(draw: Draw) -> Program:
    n, side, c, d = draw.size(1, 8), draw.size(7, 28), draw.size(64, 384), draw.size(16, 64)

    def block(x: Any, one: Any, three: Any, five: Any, after: Any) -> Any:
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        parts = [x @ one, convolve(x, three), convolve(convolve(x, five), five[..., :d, :] * 0.1), pooled @ after]
        return jax.nn.relu(jnp.concatenate(parts, -1))

    return block, [(n, side, side, c), (c, d), (3, 3, c, d), (3, 3, c, d), (c, d)]


@kind
def channel_shuffle(draw: Draw) -> Program:
    n, side, groups, each = draw.size(1, 16), draw.size(7, 56), draw.choice((2, 3, 4, 8)), draw.size(8, 64)
    c = groups * each
    first = draw.random() < 0.5

    def block(x: Any, w: Any) -> Any:
        if first:
            h = convolve(x, w, groups=groups, order=NCHW)
            h = h.reshape(n, groups, each, side, side).swapaxes(1, 2)
        else:
            h = convolve(x, w, groups=groups)
            h = h.reshape(n, side, side, groups, each).swapaxes(3, 4)
        return jax.nn.relu(h.reshape(x.shape))

    return block, [(n, c, side, side), (c, each, 1, 1)] if first else [(n, side, side, c), (1, 1, each, c)]


@kind
def pixel_shuffle(draw: Draw) -> Program:
    n, side, c, r = draw.size(1, 8), draw.size(8, 96), draw.size(3, 64), draw.choice((2, 3, 4))
    first, back = draw.random() < 0.5, draw.random() < 0.5

    def up(x: Any) -> Any:
        if first:
            return x.reshape(n, c, r, r, side, side).transpose(0, 1, 4, 2, 5, 3).reshape(n, c, side * r, side * r)
        return x.reshape(n, side, side, r, r, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, side * r, side * r, c)

    def down(x: Any) -> Any:
        if first:
            x = x.reshape(n, c, side, r, side, r).transpose(0, 1, 3, 5, 2, 4)
            return x.reshape(n, c * r * r, side, side) * 2
        return x.reshape(n, side, r, side, r, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, side, side, r * r * c) * 2

    low = (n, c * r * r, side, side) if first else (n, side, side, c * r * r)
    high = (n, c, side * r, side * r) if first else (n, side * r, side * r, c)
    return (down, [high]) if back else (up, [low])


@kind
def patches(draw: Draw) -> Program:
    """Patch embedding: as a convolution, a reshape, or rows of patches."""
    n, rows, p, d = draw.size(1, 8), draw.size(4, 28), draw.choice((4, 8, 14, 16)), draw.size(32, 768)
    form, side = draw.choice(("convolution", "nhwc", "nchw")), rows * p

    def embed(x: Any, w: Any) -> Any:
        if form == "convolution":
            return lax.conv_general_dilated(x, w, (p, p), "VALID", dimension_numbers=NHWC).reshape(n, rows * rows, d)
        if form == "nhwc":
            cut = x.reshape(n, rows, p, rows, p, 3).transpose(0, 1, 3, 2, 4, 5)
        else:
            cut = x.reshape(n, 3, rows, p, rows, p).transpose(0, 2, 4, 3, 5, 1)
        return cut.reshape(n, rows * rows, p * p * 3) @ w.reshape(p * p * 3, d)

    return with_gradient(draw, embed), [(n, 3, side, side) if form == "nchw" else (n, side, side, 3), (p, p, 3, d)]


@kind
def unfold(draw: Draw) -> Program:
    """A convolution as shifted copies side by side and one product."""
    n, side, c, d, taps = draw.size(1, 8), draw.size(8, 64), draw.size(3, 64), draw.size(8, 128), draw.choice((3, 5))
    form = draw.choice(("slices", "patches", "gather"))

    def product(x: Any, w: Any) -> Any:
        if form == "patches":
            columns = lax.conv_general_dilated_patches(x, (taps, taps), (1, 1), "SAME", dimension_numbers=NHWC)
        elif form == "slices":
            p = jnp.pad(x, ((0, 0), (taps // 2,) * 2, (taps // 2,) * 2, (0, 0)))
            shifts = itertools.product(range(taps), range(taps))
            columns = jnp.concatenate([p[:, a : a + side, b : b + side] for a, b in shifts], -1)
        else:
            p = jnp.pad(x, ((0, 0), (taps // 2,) * 2, (taps // 2,) * 2, (0, 0)))
            at = jnp.arange(side)[:, None] + jnp.arange(taps)
            columns = p[:, at][:, :, :, at].transpose(0, 1, 3, 2, 4, 5).reshape(n, side, side, taps * taps * c)
        return columns @ w

    return with_gradient(draw, product), [(n, side, side, c), (taps * taps * c, d)]


@kind
def image_norm(draw: Draw) -> Program:
    """Instance and group norm in both orders."""
    n, side, groups, each = draw.size(1, 16), draw.size(7, 96), draw.choice((1, 4, 8, 32)), draw.size(1, 16)
    c = groups * each
    first, instance = draw.random() < 0.5, draw.random() < 0.4

    def norm(x: Any, scale: Any, bias: Any) -> Any:
        if first:
            h = normalised(x, (2, 3)) if instance else normalised(x.reshape(n, groups, -1), -1).reshape(x.shape)
            return jax.nn.silu(h * scale[:, None, None] + bias[:, None, None])
        h = normalised(x, (1, 2))
        if not instance:
            h = normalised(x.reshape(n, side, side, groups, each), (1, 2, 4)).reshape(x.shape)
        return jax.nn.silu(h * scale + bias)

    return with_gradient(draw, norm), [(n, c, side, side) if first else (n, side, side, c), (c,), (c,)]


@kind
def volume(draw: Draw) -> Program:
    """3D convolution and pooling."""
    n, side, c, d = draw.size(1, 4), draw.size(4, 32), draw.size(1, 64), draw.size(8, 64)
    first = draw.random() < 0.5
    order = ("NCDHW", "OIDHW", "NCDHW") if first else ("NDHWC", "DHWIO", "NDHWC")

    def block(x: Any, w: Any) -> Any:
        h = jax.nn.relu(convolve(x, w, order=order))
        window = (1, 1, 2, 2, 2) if first else (1, 2, 2, 2, 1)
        return lax.reduce_window(h, -jnp.inf, lax.max, window, window, "VALID")

    spatial = (side,) * 3
    shapes = [(n, c, *spatial), (d, c, 3, 3, 3)] if first else [(n, *spatial, c), (3, 3, 3, c, d)]
    return with_gradient(draw, block), shapes


@kind
def causal_stack(draw: Draw) -> Program:
    """WaveNet and TCN: dilated causal convolutions with gates."""
    n, steps, c, layers = draw.size(1, 8), draw.size(64, 2048), draw.size(8, 128), draw.size(2, 6)
    first = draw.random() < 0.5
    order = ("NCH", "OIH", "NCH") if first else ("NHC", "HIO", "NHC")

    def stack(x: Any, filters: Any, gates: Any, mix: Any) -> Any:
        total = 0.0
        for layer in range(layers):
            reach = 2**layer
            shape = {"window_strides": (1,), "padding": [(reach, 0)], "rhs_dilation": (reach,)}
            left = lax.conv_general_dilated(x, filters[layer], **shape, dimension_numbers=order)
            right = lax.conv_general_dilated(x, gates[layer], **shape, dimension_numbers=order)
            h = jnp.tanh(left) * jax.nn.sigmoid(right)
            h = jnp.einsum("nct,cd->ndt" if first else "ntc,cd->ntd", h, mix[layer])
            x, total = x + h, total + h
        return total

    kernel = (layers, c, c, 2) if first else (layers, 2, c, c)
    return with_gradient(draw, stack), [(n, c, steps) if first else (n, steps, c), kernel, kernel, (layers, c, c)]


# ---- samplers


@kind
def resize(draw: Draw) -> Program:
    n, c = draw.size(1, 8), draw.size(1, 64)
    h, w, to_h, to_w = (draw.size(8, 128) for _ in range(4))
    method, first = draw.choice(("bilinear", "nearest", "cubic")), draw.random() < 0.5
    shape = (n, c, to_h, to_w) if first else (n, to_h, to_w, c)
    return lambda x: jax.image.resize(x, shape, method), [(n, c, h, w) if first else (n, h, w, c)]


def sample(image: Any, y: Any, x: Any) -> Any:
    """``image`` [h, w, c] between its pixels, at places of any shape."""
    h, w = image.shape[:2]
    top, left = jnp.floor(y), jnp.floor(x)
    total = 0.0
    for dy, dx in itertools.product((0, 1), (0, 1)):
        row, column = (top + dy).astype(jnp.int32), (left + dx).astype(jnp.int32)
        share = (1 - jnp.abs(y - top - dy)) * (1 - jnp.abs(x - left - dx))
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        pixel = image[jnp.clip(row, 0, h - 1), jnp.clip(column, 0, w - 1)]
        total = total + pixel * jnp.where(inside, share, 0.0)[..., None]
    return total


@kind
def grid_sample(draw: Draw) -> Program:
    n, c, h, w = draw.size(1, 4), draw.size(1, 64), draw.size(16, 96), draw.size(16, 96)

    def warp(x: Any, grid: Any) -> Any:
        return jax.vmap(lambda image, at: sample(image, at[..., 0] * h, at[..., 1] * w))(x, grid)

    return with_gradient(draw, warp), [(n, h, w, c), (n, h, w, 2)]


@kind
def affine_warp(draw: Draw) -> Program:
    h, w, c = draw.size(16, 192), draw.size(16, 192), draw.choice((1, 3, 4))
    order = draw.choice((0, 1))

    def warp(x: Any, matrix: Any) -> Any:
        y, z = jnp.mgrid[:h, :w].astype(jnp.float32)
        places = [matrix[a, 0] * y + matrix[a, 1] * z + matrix[a, 2] for a in range(2)]
        each = lambda plane: jax.scipy.ndimage.map_coordinates(plane, places, order, mode="nearest")  # noqa: E731
        return jax.vmap(each, 2, 2)(x)

    return warp, [(h, w, c), (2, 3)]


@kind
def roi_align(draw: Draw) -> Program:
    side, c, boxes, cells = draw.size(14, 64), draw.size(16, 256), draw.size(8, 256), draw.choice((5, 7))

    def align(x: Any, corners: Any) -> Any:
        def one(box: Any) -> Any:
            steps = (jnp.arange(cells * 2) + 0.5) / (cells * 2)
            y, z = (box[a] * side + steps * box[a + 2] * side for a in (0, 1))
            made = sample(x, *jnp.meshgrid(y, z, indexing="ij"))
            return made.reshape(cells, 2, cells, 2, c).mean((1, 3))

        return jax.vmap(one)(corners * 0.5)

    return align, [(side, side, c), (boxes, 4)]


@kind
def deformable(draw: Draw) -> Program:
    """Deformable attention: each query reads few places of each head."""
    queries, heads, points, depth = draw.size(32, 1024), draw.choice((4, 8)), 4, draw.choice((16, 32))
    side = draw.size(16, 64)

    def attend(values: Any, places: Any, weights: Any) -> Any:
        def head(image: Any, at: Any, share: Any) -> Any:
            return (sample(image, at[..., 0] * side, at[..., 1] * side) * share[..., None]).sum(1)

        made = jax.vmap(head, (2, 1, 1), 1)(values, places, jax.nn.softmax(weights, -1))
        return made.reshape(queries, heads * depth)

    return attend, [(side, side, heads, depth), (queries, heads, points, 2), (queries, heads, points)]


# ---- boxes


def overlap(a: Any, b: Any) -> Any:
    low, high = jnp.maximum(a[:, None, :2], b[:, :2]), jnp.minimum(a[:, None, 2:], b[:, 2:])
    both = jnp.maximum(high - low, 0).prod(-1)
    areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
    return both / (areas[0][:, None] + areas[1] - both)


def corners(boxes: Any) -> Any:
    return jnp.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:] * 0.3 + 0.01], 1)


@kind
def suppression(draw: Draw) -> Program:
    """Non-maximum suppression: a loop that takes the best box, a mask row by row, a fixed point of the mask."""
    n, form = draw.size(32, 512), draw.choice(("best", "rows", "fixed"))
    keep = min(n, draw.size(8, 64))

    def best(boxes: Any, scores: Any) -> Any:
        boxes = corners(boxes)

        def take(i: Any, state: Any) -> Any:
            scores, chosen = state
            at = jnp.argmax(scores)
            scores = jnp.where(overlap(boxes[at][None], boxes)[0] > 0.5, -jnp.inf, scores)
            return scores, chosen.at[i].set(at)

        return lax.fori_loop(0, keep, take, (scores, jnp.zeros(keep, jnp.int32)))[1]

    def rows(boxes: Any, scores: Any) -> Any:
        order = jnp.argsort(-scores)
        boxes = corners(boxes)[order]
        much = (overlap(boxes, boxes) > 0.5) & (jnp.arange(n)[:, None] < jnp.arange(n))
        return order, lax.fori_loop(0, n, lambda i, kept: kept & ~(kept[i] & much[i]), jnp.ones(n, bool))

    def fixed(boxes: Any, scores: Any) -> Any:
        boxes = corners(boxes)
        much = (overlap(boxes, boxes) > 0.5) & (scores[:, None] > scores)

        def again(state: Any) -> Any:
            kept = ~(much & state[0][:, None]).any(0)
            return kept, (kept != state[0]).any()

        return lax.while_loop(lambda state: state[1], again, (jnp.ones(n, bool), jnp.array(True)))[0]

    return {"best": best, "rows": rows, "fixed": fixed}[form], [(n, 4), (n,)]


@kind
def anchors(draw: Draw) -> Program:
    """Each anchor's best box and each box's best anchor, and what is to be learned."""
    n, m, classes = draw.size(256, 8192), draw.size(4, 64), 20

    def match(places: Any, truth: Any, labels: Any) -> Any:
        a, t = corners(places), corners(truth)
        shared = overlap(a, t)
        best = shared.argmax(1)
        best = best.at[shared.argmax(0)].set(jnp.arange(m))
        found = t[best]
        size = a[:, 2:] - a[:, :2]
        deltas = jnp.concatenate([(found[:, :2] - a[:, :2]) / size, jnp.log((found[:, 2:] - found[:, :2]) / size)], 1)
        kinds = jnp.where(shared.max(1) > 0.5, (labels * classes).astype(jnp.int32)[best] + 1, 0)
        return deltas, kinds

    return match, [(n, 4), (m, 4), (m,)]


# ---- windows and counts


@kind
def rank_filter(draw: Draw) -> Program:
    n, h, w, taps = draw.size(1, 4), draw.size(16, 128), draw.size(16, 128), draw.choice((3, 5))
    last = draw.random() < 0.5

    def median(x: Any) -> Any:
        p = jnp.pad(x, ((0, 0), (taps // 2,) * 2, (taps // 2,) * 2), mode="reflect")
        shifts = itertools.product(range(taps), range(taps))
        windows = jnp.stack([p[:, a : a + h, b : b + w] for a, b in shifts], -1 if last else 0)
        return jnp.median(windows, -1) if last else jnp.sort(windows, 0)[taps * taps // 2]

    return median, [(n, h, w)]


@kind
def morphology(draw: Draw) -> Program:
    n, h, w, taps = draw.size(1, 8), draw.size(32, 256), draw.size(32, 256), draw.choice((3, 5, 9))

    def opened(x: Any) -> Any:
        window, ones = (1, taps, taps), (1, 1, 1)
        low = lax.reduce_window(x, jnp.inf, lax.min, window, ones, "SAME")
        high = lax.reduce_window(low, -jnp.inf, lax.max, window, ones, "SAME")
        return x - high, lax.reduce_window(x, -jnp.inf, lax.max, window, ones, "SAME") - low

    return opened, [(n, h, w)]


@kind
def integral_image(draw: Draw) -> Program:
    n, h, w, r = draw.size(1, 8), draw.size(16, 256), draw.size(16, 256), draw.choice((2, 4, 7))

    def means(x: Any) -> Any:
        total = jnp.pad(jnp.cumsum(jnp.cumsum(x, 1), 2), ((0, 0), (1, 0), (1, 0)))
        return (total[:, r:, r:] - total[:, :-r, r:] - total[:, r:, :-r] + total[:, :-r, :-r]) / (r * r)

    return means, [(n, h, w)]


@kind
def colour_histogram(draw: Draw) -> Program:
    n, h, w, bins = draw.size(1, 8), draw.size(16, 128), draw.size(16, 128), draw.choice((8, 16, 64, 256))
    form = draw.choice(("scatter", "one-hot", "bincount"))

    def histogram(x: Any) -> Any:
        at = jnp.clip((x * bins).astype(jnp.int32), 0, bins - 1).reshape(n, h * w, 3).swapaxes(1, 2)
        if form == "one-hot":
            return jax.nn.one_hot(at, bins).sum(2)
        if form == "bincount":
            return jax.vmap(jax.vmap(lambda row: jnp.bincount(row, length=bins)))(at)
        image, channel = jnp.arange(n)[:, None, None], jnp.arange(3)[:, None]
        return jnp.zeros((n, 3, bins)).at[image, channel, at].add(1.0)

    return histogram, [(n, h, w, 3)]


@kind
def game_of_life(draw: Draw) -> Program:
    h, w, steps = draw.size(16, 256), draw.size(16, 256), draw.size(1, 32)
    form = draw.choice(("roll", "convolution", "integers"))

    def run(x: Any) -> Any:
        alive = x > 0.5 if form != "integers" else (x > 0.5).astype(jnp.int32)

        def step(_: Any, alive: Any) -> Any:
            if form == "convolution":
                p = jnp.pad(alive.astype(jnp.float32), 1, mode="wrap")[None, None]
                near = lax.conv_general_dilated(p, jnp.ones((1, 1, 3, 3)), (1, 1), "VALID")[0, 0] - alive
                return (near == 3) | (alive & (near == 2))
            cells = alive.astype(jnp.int32)
            shifts = [each for each in itertools.product((-1, 0, 1), (-1, 0, 1)) if each != (0, 0)]
            near = sum(jnp.roll(cells, each, (0, 1)) for each in shifts)
            made = (near == 3) | ((cells == 1) & (near == 2))
            return made.astype(alive.dtype)

        return lax.fori_loop(0, steps, step, alive).astype(jnp.float32)

    return run, [(h, w)]


@kind
def votes(draw: Draw) -> Program:
    """Hough: each point votes for one distance at each angle."""
    points, angles, bins = draw.size(32, 1024), draw.size(16, 128), draw.size(32, 256)

    def vote(at: Any, weight: Any) -> Any:
        angle = jnp.arange(angles) * (jnp.pi / angles)
        apart = at[:, :1] * jnp.cos(angle) + at[:, 1:] * jnp.sin(angle)
        bin_ = jnp.clip(((apart + 1) * bins / 3).astype(jnp.int32), 0, bins - 1)
        number = jnp.broadcast_to(jnp.arange(angles), bin_.shape)
        return jnp.zeros((angles, bins)).at[number, bin_].add(weight[:, None])

    return vote, [(points, 2), (points,)]
