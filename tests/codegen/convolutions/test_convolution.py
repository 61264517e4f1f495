"""Convolutions: every attribute alone and in generated combinations, sizes around the limits of TensorE, all types."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, assert_close, check_function, check_text, compile_text, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.codegen.convolutions import candidates
from neuronx_cc.codegen.convolutions import kernel as convolution_kernel
from neuronx_cc.codegen.emission.builder import Builder
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.ir.isa.encoding import encode

Array = np.ndarray[Any, Any]

LAYOUTS = (
    ("NCHW", "OIHW", "NCHW"),
    ("NHWC", "HWIO", "NHWC"),
    ("NHWC", "OHWI", "NCHW"),
    ("NCHW", "HWIO", "NHWC"),
    ("CHWN", "IHWO", "HWNC"),
    ("HWCN", "OIWH", "WHNC"),
)
SHAPES = {
    # batch, features, height, width, outputs, kernel, stride, padding
    "small": (1, 3, 8, 8, 4, 3, 1, "SAME"),
    "valid": (2, 16, 9, 7, 8, 3, 2, "VALID"),
    "tiles": (3, 130, 6, 5, 131, 1, 1, "VALID"),
    "chunks": (2, 257, 5, 5, 40, 3, 1, "SAME"),
    "outputs": (1, 64, 20, 20, 129, 3, 2, "SAME"),
    "lines": (1, 127, 3, 131, 128, 2, 1, "SAME"),
    "one": (1, 1, 1, 1, 1, 1, 1, "SAME"),
    "banks": (2, 8, 37, 41, 5, 5, 1, "SAME"),
}


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


def operands(random: np.random.Generator, layout: tuple[str, str, str], *sizes: int) -> tuple[Array, Array]:
    batch, features, height, width, outputs, size = sizes
    image = {"N": batch, "C": features, "H": height, "W": width}
    kernel = {"O": outputs, "I": features, "H": size, "W": size}
    return normal(random, *(image[c] for c in layout[0])), normal(random, *(kernel[c] for c in layout[1]))


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts(layout: tuple[str, str, str], shape: str, random: np.random.Generator) -> None:
    *sizes, stride, padding = SHAPES[shape]
    x, w = operands(random, layout, *sizes)
    check_function(
        lambda x, w: lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=layout), x, w
    )


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
@pytest.mark.parametrize("shape", ["valid", "chunks", "outputs"])
def test_constant_kernels(layout: tuple[str, str, str], shape: str, random: np.random.Generator) -> None:
    *sizes, stride, padding = SHAPES[shape]
    x, w = operands(random, layout, *sizes)
    check_function(
        lambda x: lax.conv_general_dilated(x, jnp.asarray(w), (stride, stride), padding, dimension_numbers=layout), x
    )


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
@pytest.mark.parametrize(("features", "outputs"), [(1, 1), (1, 2), (3, 2), (4, 4), (64, 65), (130, 3)])
@pytest.mark.parametrize("given", [True, False], ids=["constant", "parameter"])
def test_groups(
    layout: tuple[str, str, str], features: int, outputs: int, given: bool, random: np.random.Generator
) -> None:
    groups = 5 if features > 1 else 131
    x, _ = operands(random, layout, 2, features * groups, 6, 5, 1, 1)
    _, w = operands(random, layout, 1, features, 1, 1, outputs * groups, 3)

    def function(x: Any, w: Any = w) -> Any:
        w = jnp.asarray(w)
        return lax.conv_general_dilated(x, w, (1, 2), "SAME", dimension_numbers=layout, feature_group_count=groups)

    check_function(function, *((x,) if given else (x, w)))


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
@pytest.mark.parametrize(("groups", "features", "outputs"), [(2, 5, 3), (6, 1, 2), (3, 70, 4)])
def test_batch_groups(
    layout: tuple[str, str, str], groups: int, features: int, outputs: int, random: np.random.Generator
) -> None:
    x, w = operands(random, layout, 2 * groups, features, 7, 6, outputs * groups, 3)

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, batch_group_count=groups)

    check_function(function, x, w)


def generated(number: int) -> tuple[str, list[Array]]:
    """A convolution with attributes drawn at random, as HLO text, and its inputs."""
    random = np.random.default_rng(number)

    def pick(*values: int) -> int:
        return int(random.choice(values))

    rank = number % 4
    groups = pick(1, 1, 2, 3)
    by_batch = groups > 1 and bool(random.integers(2))
    batch, features, outputs = pick(1, 2, 3) * (groups if by_batch else 1), pick(1, 2, 5, 17), pick(1, 2, 4) * groups
    sizes, kernel, out, window = [], [], [], []
    while len(sizes) < rank:
        size, taps = pick(1, 2, 5, 7, 12), pick(1, 2, 3, 4)
        stride, base, dilation = pick(1, 1, 2, 3), pick(1, 1, 2, 3, 4), pick(1, 1, 2, 3)
        low, high = pick(-2, -1, 0, 0, 1, 2, 6), pick(-1, 0, 0, 1, 3, 5)
        padded = (size - 1) * base + 1 + low + high
        reach = (taps - 1) * dilation + 1
        if padded < reach:
            continue
        sizes.append(size)
        kernel.append(taps)
        out.append((padded - reach) // stride + 1)
        window.append((taps, stride, f"{low}_{high}", base, dilation, pick(0, 0, 1)))
    orders = [[int(i) for i in random.permutation(rank + 2)] for _ in range(3)]
    letters = [["b", "f"], ["o", "i"], ["b", "f"]]
    dims = [
        [batch, features * (1 if by_batch else groups), *sizes],
        [outputs, features, *kernel],
        [batch // (groups if by_batch else 1), outputs, *out],
    ]
    labels, shapes = [], []
    for order, pair, each in zip(orders, letters, dims, strict=True):
        names = [*pair, *(str(i) for i in range(rank))]
        labels.append("".join(names[i] for i in order))
        shapes.append([each[i] for i in order])
    fields = zip(*window, strict=True) if window else []
    names = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
    text = " ".join(f"{name}={'x'.join(map(str, each))}" for name, each in zip(names, fields, strict=False))
    attributes = [f"window={{{text}}}"] if rank else []
    attributes.append(f"dim_labels={labels[0]}_{labels[1]}->{labels[2]}")
    if groups > 1:
        attributes.append(f"{'batch' if by_batch else 'feature'}_group_count={groups}")
    shown = [f"f32[{','.join(map(str, shape))}]" for shape in shapes]
    module = f"""HloModule generated

ENTRY main {{
  x = {shown[0]} parameter(0)
  w = {shown[1]} parameter(1)
  ROOT y = {shown[2]} convolution(x, w), {", ".join(attributes)}
}}
"""
    return module, [normal(random, *shape) for shape in shapes[:2]]


@pytest.mark.parametrize("number", range(120))
def test_generated(number: int) -> None:
    text, inputs = generated(number)
    check_text(text, *inputs)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 4])
def test_gradients(layout: tuple[str, str, str], stride: int, groups: int, random: np.random.Generator) -> None:
    x, _ = operands(random, layout, 2, 8, 9, 10, 1, 1)
    _, w = operands(random, layout, 1, 8 // groups, 1, 1, 12, 3)

    def loss(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
        )
        return (y * jnp.cos(y)).sum()

    check_function(jax.grad(loss, (0, 1)), x, w)


def test_transposed(random: np.random.Generator) -> None:
    x, w = normal(random, 2, 7, 6, 20), normal(random, 4, 4, 20, 10)
    check_function(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), x, w)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
def test_chain(layout: tuple[str, str, str], random: np.random.Generator) -> None:
    """Results and operands that stay on chip, a residual connection, pooling by a mean."""

    def function(x: Any, first: Any, second: Any, third: Any) -> Any:
        def conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
            return lax.conv_general_dilated(
                x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
            )

        hidden = jax.nn.relu(conv(x, first))
        hidden = jax.nn.relu(conv(hidden, second) + hidden)
        hidden = conv(hidden, third, 2, 64)
        return hidden.mean((layout[2].index("H"), layout[2].index("W")))

    x, first = operands(random, layout, 2, 12, 11, 10, 64, 3)
    _, second = operands(random, layout, 1, 64, 1, 1, 64, 3)
    _, third = operands(random, layout, 1, 1, 1, 1, 64, 5)
    check_function(function, x, first, second / 8, third)


NUMERIC = [
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float16"),
    ("float8_e5m2", "float8_e5m2", "float32"),
    ("float8_e4m3", "float8_e4m3", "float32"),
    ("int8", "int8", "int32"),
    ("int8", "int8", "int8"),
    ("uint8", "uint8", "int32"),
    ("int16", "int16", "int32"),
]


@pytest.mark.parametrize("types", NUMERIC, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
def test_types(types: tuple[str, str, str], layout: tuple[str, str, str], random: np.random.Generator) -> None:
    left, right, out = (np.dtype(getattr(ml_dtypes, name, name)) for name in types)
    x, w = operands(random, layout, 2, 20, 6, 7, 9, 3)
    x, w = (np.asarray(array * (20 if left.kind in "iu" else 1)) for array in (x, w))
    x, w = (np.abs(array) if left.kind == "u" else array for array in (x, w))

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, preferred_element_type=out)

    check_function(function, x.astype(left), w.astype(right))


@pytest.mark.parametrize("dims", [(1, 0, 5, 5), (0, 3, 5, 5), (1, 3, 0, 5)], ids=str)
def test_of_nothing(dims: tuple[int, ...]) -> None:
    x, w = np.ones(dims, np.float32), np.ones((2, dims[1], 3, 3), np.float32)
    check_function(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), ((2, 2), (2, 2))), x, w)


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        ((1, 2, 300, 1100), (3, 2, 3, 3), 1),
        ((1, 2, 70_000), (3, 2, 5), 3),
        ((1, 300, 40, 40), (20, 300, 7, 7), 1),
        ((2, 3, 30, 30), (4, 3, 25, 25), 1),
        ((1, 2, 9, 10, 11), (5, 2, 3, 2, 3), 2),
    ],
    ids=str,
)
def test_large(x: tuple[int, ...], w: tuple[int, ...], stride: int, random: np.random.Generator) -> None:
    strides = (stride,) * (len(x) - 2)
    check_function(lambda x, w: lax.conv(x, w, strides, "SAME"), normal(random, *x), normal(random, *w))


@pytest.mark.parametrize("layout", [LAYOUTS[0], ("NHWC", "HWIO", "NHWC")], ids="-".join)
@pytest.mark.parametrize("most", [26_000, 12_000])
def test_no_room_for_a_block_of_the_kernel(monkeypatch: pytest.MonkeyPatch, layout: Any, most: int) -> None:
    """SBUF so full of residents that little is left for weights: few outputs at a time, or parts of the kernel."""
    monkeypatch.setattr(Arena, "largest_gap", lambda self: most)
    random = np.random.default_rng(0)
    x, w = operands(random, layout, 4, 260, 5, 6, 130, 3)
    function = functools.partial(
        lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=layout
    )
    check_function(function, x, w)


@pytest.mark.parametrize("layout", [LAYOUTS[0], ("NHWC", "HWIO", "NHWC"), ("CHWN", "IHWO", "HWNC")], ids="-".join)
@pytest.mark.parametrize("given", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["parameter", "constant"])
def test_kernels_that_never_fit(layout: Any, given: bool, random: np.random.Generator) -> None:
    """Parts of them pass several banks of sums; windows are strided, and dilated, by phases."""
    x, w = operands(random, layout, 2, 1000, 5, 6, 140, 7)

    def function(x: Any, w: Any = w) -> Any:
        return lax.conv_general_dilated(
            x, jnp.asarray(w), (1, 2), ((3, 2), (3, 3)), lhs_dilation=(2, 1), dimension_numbers=layout
        )

    check_function(function, *((x, w) if given else (x,)))


def test_many_loops_over_tiles_of_positions() -> None:
    """Phases of a dilated input in bands of images, all in one loop: their registers suffice."""
    x = jax.ShapeDtypeStruct((8, 112, 112, 64), np.float32)
    w = jax.ShapeDtypeStruct((7, 7, 3, 64), np.float32)

    def image_gradient(y: Any, w: Any) -> Any:
        def forward(x: Any) -> Any:
            return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

        return jax.vjp(forward, jnp.zeros((8, 224, 224, 3), np.float32))[1](y)[0]

    assert compile_text(text_of(image_gradient, x, w)).program.records


IMAGES = {
    # batch, features, height, width, outputs, kernel, stride, (low, high) padding of rows
    "stem": (2, 3, 44, 48, 16, 7, 2, (3, 2)),
    "thirds": (1, 2, 41, 50, 5, 5, 3, (1, 4)),
    "odd": (2, 1, 31, 40, 8, 7, 2, (4, 0)),
    "cut": (1, 3, 40, 37, 4, 4, 2, (-3, -2)),
    "all padding": (1, 1, 20, 20, 3, 3, 2, (9, 7)),
    "lines": (3, 3, 9, 300, 4, 6, 4, (2, 2)),
    "bands": (1, 3, 200, 180, 4, 3, 1, (1, 1)),
    "strided bands": (2, 3, 200, 190, 6, 5, 2, (2, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids="-".join)
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, layout: tuple[str, str, str], random: np.random.Generator) -> None:
    *sizes, stride, padding = IMAGES[name]
    x, w = operands(random, layout, *sizes)  # type: ignore[arg-type]
    check_function(
        lambda x, w: lax.conv_general_dilated(x, w, (stride,) * 2, (padding, (1, 2)), dimension_numbers=layout), x, w
    )


def test_outputs_of_few_features_do_not_meet_values_outside_their_window(random: np.random.Generator) -> None:
    x, w = operands(random, LAYOUTS[0], 1, 3, 44, 48, 16, 7)
    x[0, 1, 20, 21] = np.inf
    check_function(lambda x, w: lax.conv_general_dilated(x, w, (2, 2), "SAME"), x, w)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("layout", [LAYOUTS[0], ("NHWC", "HWIO", "NHWC")])
def test_groups_share_no_nan(random: np.random.Generator, layout: Any, dtype: Any, fast: bool) -> None:
    """Products of several groups with zeros between them are computed once more where a sum is not finite."""
    x, _ = operands(random, layout, 2, 8, 9, 9, 16, 3)
    _, w = operands(random, layout, 2, 2, 9, 9, 16, 3)
    features, output = layout[0].index("C"), layout[1].index("O")
    np.moveaxis(x, features, 0)[3, 0, 4, 4] = np.nan
    np.moveaxis(x, features, 0)[6, 1, 2, 2] = np.inf
    np.moveaxis(w, output, 0)[5, 1, 1, 0] = -np.inf
    x, w = x.astype(dtype), w.astype(dtype)

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout, feature_group_count=4)

    program = neuronx_cc.compile(text_of(function, x, w), auto_cast="none", fast_relayout=fast)
    (result,) = program.run([x, w]).outputs
    assert_close(result, np.asarray(jax.jit(function)(x, w)))


def test_groups_share_no_nan_on_chip(random: np.random.Generator) -> None:
    """Results that stay on chip, in a loop: what is computed once more comes to lie there."""
    x, w = normal(random, 2, 64, 12), normal(random, 64, 4, 3)
    x[1, 9, 5] = np.inf
    w[40, 2, 1] = np.nan

    def body(_: int, state: Any) -> Any:
        def conv(x: Any) -> Any:
            return lax.conv_general_dilated(x, w, (1,), "VALID", feature_group_count=16)

        return jnp.pad(jnp.tanh(conv(jnp.maximum(conv(state), 0))), ((0, 0), (0, 0), (2, 2)))

    check_function(lambda x: lax.fori_loop(0, 2, body, x), x, relative=1e-4)


@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_meets_an_infinity(dilation: int) -> None:
    """Zeros of padding and between dilated elements times an infinity of the kernel: NaN, or no product at all."""
    x, w = np.ones((1, 8, 6), np.float32), np.ones((8, 1, 3), np.float32)
    w[::2, 0, 0] = np.inf

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1,), [(1, 1)], lhs_dilation=(dilation,), feature_group_count=8)

    (result,) = compile_text(text_of(function, x, w)).run([x, w])
    finite = np.asarray(jax.jit(function)(x, np.ones_like(w)))
    first = np.pad(np.repeat([[1.0] + [0.0] * (dilation - 1)], 6, 0).reshape(-1), (1, 1))[: finite.shape[2]]
    np.testing.assert_array_equal(result[:, 1::2], finite[:, 1::2])
    infinite = result[0, ::2]
    assert np.all(np.isposinf(infinite[:, first == 1])), "elements of the array count"
    rest = infinite[:, first == 0]
    others = finite[0, ::2][:, first == 0]
    assert np.all(np.isnan(rest) | (rest == others)), "all else is NaN or left out"


def test_blocks_at_borders_and_between_them_are_loaded_beside_in_the_same_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those between have more rows than the first: buffers of their own would need room that nobody planned."""
    names = []
    ring = Builder.ring

    def counted(self: Builder, arena: Any, nbytes: int, count: int, name: str = "") -> Any:
        names.append(name)
        return ring(self, arena, nbytes, count, name)

    monkeypatch.setattr(Builder, "ring", counted)
    monkeypatch.setattr(candidates, "LARGE_IMAGE", 512)
    text = """HloModule generated

ENTRY main {
  x = f32[128,1,16,10,12] parameter(0)
  w = f32[4,128,3,3,3] parameter(1)
  ROOT y = f32[4,1,16,10,12] convolution(x, w), window={size=3x3x3 pad=1_1x1_1x1_1}, dim_labels=fb012_oi012->fb012
}
"""
    random = np.random.default_rng(0)
    check_text(text, *(random.standard_normal(dims, np.float32) for dims in ((128, 1, 16, 10, 12), (4, 128, 3, 3, 3))))
    # once more where sums that are not finite are computed again
    raw, emitted = (sum(name.startswith(start) for name in names) for start in ("raw input", "zeros"))
    assert raw <= emitted


@pytest.mark.parametrize("batch", [4, 8])
def test_waits_for_parts_of_a_streamed_kernel_count_in_few_registers(batch: int) -> None:
    """Loops over images, feature tiles and three axes of taps around one wait."""
    window = "{size=7x7x7 pad=3_3x3_3x3_3 rhs_reversal=1x1x1}"
    text = f"""HloModule generated

ENTRY main {{
  y = f32[{batch},7,7,7,512] parameter(0)
  w = f32[7,7,7,64,512] parameter(1)
  ROOT x = f32[{batch},7,7,7,64] convolution(y, w), window={window}, dim_labels=b012f_012oi->b012f
}}
"""
    encode(compile_text(text).program.records)


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(2, 70, 40), (4, 130, 6), (16, 4, 8), (3, 33, 2)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_kernels_of_groups_are_loaded_as_they_lie(
    groups: int, inputs: int, outputs: int, dtype: Any, random: np.random.Generator
) -> None:
    """Runs of neighbouring outputs, not single elements."""
    x = normal(random, 2, 7, 6, groups * inputs).astype(dtype)
    w = normal(random, 3, 3, inputs, groups * outputs).astype(dtype)

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[1], feature_group_count=groups)

    check_function(function, x, w, relative=1e-5 if dtype is np.float32 else 2e-2)
    (line,) = compile_text(text_of(function, x, w)).program.schedules.values()
    assert "kernel loaded" in line


@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("CHWN", "IHOW", "NHCW")])
@pytest.mark.parametrize(
    ("features", "outputs", "kernel", "stride", "dtype"),
    [
        (5, 1, (3, 3), 1, "float32"),
        (129, 1, (2, 3), 1, "bfloat16"),
        (30, 2, (5, 1), 2, "float32"),
        (43, 3, (1, 1), 1, "float32"),
        (17, 1, (11, 12), 1, "bfloat16"),
    ],
)
def test_kernels_are_spread_over_groups(
    layout: tuple[str, str, str],
    features: int,
    outputs: int,
    kernel: tuple[int, int],
    stride: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution_kernel, "DOUBT", 0.0)  # no patches of each feature
    random = np.random.default_rng(0)
    image = {"N": 2, "C": features, "H": 14, "W": 13}
    taps = {"O": features * outputs, "I": 1, "H": kernel[0], "W": kernel[1]}
    x, w = (
        random.standard_normal([sizes[c] for c in order]) for sizes, order in ((image, layout[0]), (taps, layout[1]))
    )
    x, w = (array.astype(getattr(ml_dtypes, dtype, dtype)) for array in (x, w))

    def function(x: Any, w: Any) -> Any:
        numbers = lax.conv_dimension_numbers(x.shape, w.shape, layout)
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", None, None, numbers, features)

    compiled = check_function(function, x, w)
    assert all("spread over its groups" in line for line in compiled.program.schedules.values())


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_padded_images_of_all_features_need_not_fit(layout: tuple[str, str, str], random: np.random.Generator) -> None:
    """Elements of the window lie far apart; features are added up in blocks."""
    little = TRN1.with_settings(["memory.sbuf_partition_bytes=49152"])
    sizes = {"N": 1, "C": 700, "H": 10, "W": 11, "O": 5, "I": 700}
    x, w = (
        random.standard_normal([{**sizes, **more}[dim] for dim in dims], np.float32)
        for dims, more in ((layout[0], {}), (layout[1], {"H": 3, "W": 3}))
    )

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), [(9, 9), (8, 8)], rhs_dilation=(9, 8), dimension_numbers=layout)

    compiled = check_function(function, x, w, relative=1e-5, machine=little)
    assert sum(kernel.endswith("convolution") for kernel in compiled.program.kernels) > 1
