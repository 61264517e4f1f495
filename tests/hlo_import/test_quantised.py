"""StableHLO with quantised types: integers, scales and zero points, against NumPy."""

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.ir.errors import CompileError

TYPE = "!quant.uniform<{}>"


def run(text: str, *inputs: np.ndarray) -> np.ndarray:
    result = neuronx_cc.compile(text.encode(), auto_cast="none").run(list(inputs)).outputs[0]
    return np.asarray(result, np.float64)


def codes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def close(result: np.ndarray, expected: np.ndarray) -> None:
    assert np.linalg.norm(result - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("kind", "scale", "zero"),
    [
        ("i8:f32, 0.02:3", 0.02, 3),
        ("i8<-127:127>:f32, 0.5", 0.5, 0),
        ("i8:f32:1, {0.5:1, 0.25:-7, 2.0:0}", np.float32([0.5, 0.25, 2]), np.float32([1, -7, 0])),
    ],
)
def test_numbers_of_codes(kind: str, scale: object, zero: object) -> None:
    """Parameters that are quantised are codes."""
    text = f"""func.func public @main(%x: tensor<5x7xf32>, %w: tensor<7x3x{TYPE.format(kind)}>) -> tensor<5x3xf32> {{
      %n = stablehlo.uniform_dequantize %w : (tensor<7x3x{TYPE.format(kind)}>) -> tensor<7x3xf32>
      %y = stablehlo.dot_general %x, %n, contracting_dims = [1] x [0]
           : (tensor<5x7xf32>, tensor<7x3xf32>) -> tensor<5x3xf32>
      return %y : tensor<5x3xf32>
    }}"""
    x, w = floats(5, 7), codes(7, 3)
    close(run(text, x, w), x @ ((w - np.float64(zero)) * np.float64(scale)))


def test_product_with_constant_codes() -> None:
    kind = TYPE.format("i8:f32:1, {0.5:0, 0.25:0}")
    text = f"""func.func public @main(%x: tensor<4x3xf32>) -> tensor<4x2xf32> {{
      %w = stablehlo.constant() {{value = dense<[[1, -2], [3, 4], [5, 6]]> : tensor<3x2xi8>}} : () -> tensor<3x2x{kind}>
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
           : (tensor<4x3xf32>, tensor<3x2x{kind}>) -> tensor<4x2xf32>
      return %y : tensor<4x2xf32>
    }}"""
    x = floats(4, 3)
    close(run(text, x), x @ np.float64([[0.5, -0.5], [1.5, 1], [2.5, 1.5]]))


def test_product_of_codes() -> None:
    """Both operands are rounded to codes, their product is one of integers."""
    x_type, w_type = TYPE.format("i8:f32, 0.03:-4"), TYPE.format("i8<-127:127>:f32, 0.02")
    y_type = TYPE.format("i32:f32, 0.0006")
    text = f"""func.func public @main(%x: tensor<6x64xf32>, %w: tensor<64x9xf32>) -> tensor<6x9xf32> {{
      %a = stablehlo.uniform_quantize %x : (tensor<6x64xf32>) -> tensor<6x64x{x_type}>
      %b = stablehlo.uniform_quantize %w : (tensor<64x9xf32>) -> tensor<64x9x{w_type}>
      %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
           : (tensor<6x64x{x_type}>, tensor<64x9x{w_type}>) -> tensor<6x9x{y_type}>
      %y = stablehlo.uniform_dequantize %c : (tensor<6x9x{y_type}>) -> tensor<6x9xf32>
      return %y : tensor<6x9xf32>
    }}"""
    x, w = floats(6, 64), floats(64, 9)
    a = np.clip(np.round(x / np.float32(0.03) - np.float32(4)), -128, 127).astype(np.float64)
    b = np.clip(np.round(w / np.float32(0.02)), -127, 127).astype(np.float64)
    close(run(text, x, w), ((a + 4) @ b) * 0.0006)


def test_operations_without_a_form_in_integers() -> None:
    """They compute with the numbers."""
    kind = TYPE.format("i8:f32, 0.02:3")
    text = f"""func.func public @main(%x: tensor<50xf32>) -> tensor<50xf32> {{
      %a = stablehlo.uniform_quantize %x : (tensor<50xf32>) -> tensor<50x{kind}>
      %b = stablehlo.tanh %a : tensor<50x{kind}>
      %y = stablehlo.uniform_dequantize %b : (tensor<50x{kind}>) -> tensor<50xf32>
      return %y : tensor<50xf32>
    }}"""
    x = floats(50)

    def rounded(value: np.ndarray) -> np.ndarray:
        return (np.clip(np.round(value / 0.02 + 3), -128, 127) - 3) * 0.02

    np.testing.assert_allclose(run(text, x), rounded(np.tanh(rounded(np.float64(x)))), atol=0.0201)


def test_what_stays_is_refused() -> None:
    kind = TYPE.format("i8:f32, 0.02:3")
    text = f"""func.func public @main(%x: tensor<5x{kind}>) -> tensor<5x{kind}> {{
      %y = "stablehlo.custom_call"(%x) {{call_target_name = "f"}} : (tensor<5x{kind}>) -> tensor<5x{kind}>
      return %y : tensor<5x{kind}>
    }}"""
    with pytest.raises(CompileError):
        neuronx_cc.compile(text.encode())
