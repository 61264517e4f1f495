"""Reference semantics of random dimension numbers against jaxlib's CPU client."""

import numpy as np
import op_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate

few = settings(max_examples=25)


def braced(numbers: list[int] | tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def check(body: str, inputs: list[np.ndarray], tolerance: float = 0) -> None:
    names = {np.dtype(np.float32): "f32", np.dtype(np.int32): "s32"}
    text = op_cases.module_text([(names[x.dtype], x.shape) for x in inputs], body)
    for result, want in zip(evaluate(parse_text(text), inputs), run_text(text, inputs), strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, tolerance, tolerance)


def data(dims: list[int] | tuple[int, ...], seed: str = "property") -> np.ndarray:
    return op_cases.random_array("f32", tuple(dims), seed)


@st.composite
def dot_dims(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]]]:
    """lhs dims, rhs dims, and positions: lhs batch, rhs batch, lhs contracting, rhs contracting."""
    size = st.sampled_from([0, 1, 2, 3, 5])
    batch, contracting = draw(st.lists(size, max_size=2)), draw(st.lists(size, max_size=2))
    sides, positions = [], []
    for _ in range(2):
        sizes = [*batch, *contracting, *draw(st.lists(size, max_size=2))]
        order = draw(st.permutations(range(len(sizes))))
        where = [order.index(i) for i in range(len(batch) + len(contracting))]
        sides.append([sizes[i] for i in order])
        positions.append((where[: len(batch)], where[len(batch) :]))
    (lhs_batch, lhs_contracting), (rhs_batch, rhs_contracting) = positions
    return sides[0], sides[1], [lhs_batch, rhs_batch, lhs_contracting, rhs_contracting]


@few
@given(dot_dims())
def test_dot(case: tuple[list[int], list[int], list[list[int]]]) -> None:
    lhs, rhs, (lhs_batch, rhs_batch, lhs_contracting, rhs_contracting) = case
    free = [size for i, size in enumerate(lhs) if i not in lhs_batch + lhs_contracting]
    free += [size for i, size in enumerate(rhs) if i not in rhs_batch + rhs_contracting]
    result = op_cases.shaped("f32", (*(lhs[i] for i in lhs_batch), *free))
    body = (
        f"  ROOT r = {result} dot(p0, p1), lhs_batch_dims={braced(lhs_batch)}, rhs_batch_dims={braced(rhs_batch)}, "
        f"lhs_contracting_dims={braced(lhs_contracting)}, rhs_contracting_dims={braced(rhs_contracting)}"
    )
    check(body, [data(lhs, "l"), data(rhs, "r")], 1e-5)


@few
@given(st.data())
def test_movement(draw: st.DataObject) -> None:
    """transpose, broadcast, pad, slice and reverse in a row."""
    dims = draw.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = draw.draw(st.permutations(range(len(dims))))
    turned = [dims[i] for i in order]
    lows = [draw.draw(st.integers(-2, 3)) for _ in dims]
    interiors = [draw.draw(st.integers(0, 2)) for _ in dims]
    inner = [(size - 1) * (interior + 1) + 1 for size, interior in zip(turned, interiors, strict=True)]
    highs = [draw.draw(st.integers(max(-2, 1 - low - size), 3)) for low, size in zip(lows, inner, strict=True)]
    padded = [low + size + high for low, size, high in zip(lows, inner, highs, strict=True)]
    starts = [draw.draw(st.integers(0, size - 1)) for size in padded]
    limits = [draw.draw(st.integers(start, size)) for start, size in zip(starts, padded, strict=True)]
    strides = [draw.draw(st.integers(1, 3)) for _ in dims]
    cut = [-(-(limit - start) // stride) for start, limit, stride in zip(starts, limits, strides, strict=True)]
    flipped = draw.draw(st.lists(st.integers(0, len(dims) - 1), unique=True))
    padding = "x".join(f"{low}_{high}_{step}" for low, high, step in zip(lows, highs, interiors, strict=True))
    ranges = ", ".join(f"[{a}:{b}:{c}]" for a, b, c in zip(starts, limits, strides, strict=True))
    shapes = [op_cases.shaped("f32", tuple(sizes)) for sizes in (turned, padded, cut, [*cut, 2])]
    body = f"""  t = {shapes[0]} transpose(p0), dimensions={braced(order)}
  v = f32[] constant(7)
  p = {shapes[1]} pad(t, v), padding={padding}
  s = {shapes[2]} slice(p), slice={{{ranges}}}
  r = {shapes[2]} reverse(s), dimensions={braced(flipped)}
  ROOT b = {shapes[3]} broadcast(r), dimensions={braced(range(len(dims)))}"""
    check(body, [data(dims)])


@few
@given(st.data())
def test_gather(draw: st.DataObject) -> None:
    """Any index map, collapsed dims, offset positions and index vector position; indices in and out of bounds."""
    dims = draw.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    indexed = draw.draw(st.lists(st.sampled_from(range(len(dims))), unique=True, min_size=1))
    sizes = [draw.draw(st.integers(1, size)) for size in dims]
    collapsed = sorted(i for i in indexed if draw.draw(st.booleans()))
    sizes = [1 if i in collapsed else size for i, size in enumerate(sizes)]
    batch = draw.draw(st.lists(st.integers(1, 4), max_size=2))
    vector_dim = draw.draw(st.integers(0, len(batch)))
    indices_dims = [*batch[:vector_dim], len(indexed), *batch[vector_dim:]]
    window = [size for i, size in enumerate(sizes) if i not in collapsed]
    rank = len(batch) + len(window)
    offsets = sorted(draw.draw(st.permutations(range(rank)))[: len(window)])
    batches, windows = iter(batch), iter(window)
    result = tuple(next(windows) if i in offsets else next(batches) for i in range(rank))
    body = (
        f"  ROOT r = {op_cases.shaped('f32', result)} gather(p0, p1), offset_dims={braced(offsets)}, "
        f"collapsed_slice_dims={braced(collapsed)}, start_index_map={braced(indexed)}, "
        f"index_vector_dim={vector_dim}, slice_sizes={braced(sizes)}"
    )
    indices = np.random.default_rng(5).integers(-3, 9, indices_dims).astype(np.int32)
    check(body, [data(dims), indices])
