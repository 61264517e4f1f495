"""Models as exporters write them, at sizes of tests: built with ``onnx.helper``, seeded, with NumPy's own values.

Each maker gives a ModelProto, the shapes that its open dimensions are fixed to, and inputs by name.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Made = tuple[onnx.ModelProto, dict[str, Sequence[int]], dict[str, np.ndarray[Any, Any]]]
F = TensorProto.FLOAT


class Builder:
    """A graph that grows node by node."""

    def __init__(self, seed: int, opset: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def weight(self, *dims: int, scale: float = 0.2) -> str:
        return self.constant((self.draw.standard_normal(dims) * scale).astype(np.float32))

    def constant(self, array: Any) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> Any:
        made = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def model(self, inputs: dict[str, Sequence[Any]], outputs: Sequence[str], kind: int = F) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "tested",
            [helper.make_tensor_value_info(name, kind, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info(name, F, None) for name in outputs],
            self.tensors,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        made.ir_version = 10
        return made


def mlp() -> Made:
    b = Builder(0, 13)
    hidden = b.node("Relu", b.node("Gemm", "features", b.weight(24, 48), b.weight(48), name="fc1"), name="act")
    logits = b.node("Gemm", hidden, b.weight(10, 48), b.weight(10), transB=1, name="fc2")
    out = b.node("Softmax", logits, axis=-1, name="probabilities")
    return (
        b.model({"features": ["n", 24]}, [out]),
        {"n": [5]},
        {"features": b.draw.standard_normal((5, 24), np.float32)},
    )


def cnn() -> Made:
    b = Builder(1, 17)
    x = "input.1"
    for number, (inner, outer) in enumerate(((3, 8), (8, 16))):
        weight = b.weight(outer, inner, 3, 3)
        x = b.node(
            "Conv", x, weight, b.weight(outer), pads=[1, 1, 1, 1], strides=[1, 1], name=f"/block{number}/conv/Conv"
        )
        positive = b.constant(b.draw.uniform(0.5, 1.5, outer).astype(np.float32))
        x = b.node(
            "BatchNormalization", x, positive, b.weight(outer), b.weight(outer), positive, name=f"/block{number}/bn"
        )
        x = b.node("MaxPool", b.node("Relu", x), kernel_shape=[2, 2], strides=[2, 2], name=f"/block{number}/pool")
    x = b.node("Flatten", b.node("GlobalAveragePool", x), axis=1)
    out = b.node("Gemm", x, b.weight(16, 10), b.weight(10), name="/head/Gemm")
    image = b.draw.standard_normal((2, 3, 16, 16), np.float32)
    return b.model({"input.1": [2, 3, 16, 16]}, [out]), {}, {"input.1": image}


def transformer() -> Made:
    """One block whose reshapes follow from ``Shape`` of the input, as exporters write them for dynamic batches."""
    b = Builder(2, 18)
    width, heads = 32, 4

    def part(index: int) -> str:
        taken = b.node("Gather", b.node("Shape", "tokens"), b.constant(np.int64(index)), axis=0)
        return b.node("Unsqueeze", taken, b.constant(np.array([0], np.int64)))

    split = b.node("Concat", part(0), part(1), b.constant(np.array([heads, width // heads], np.int64)), axis=0)
    joined = b.node("Concat", part(0), part(1), b.constant(np.array([width], np.int64)), axis=0)

    def head(name: str, perm: list[int]) -> str:
        product = b.node("MatMul", "tokens", b.weight(width, width), name=f"/attn/{name}/MatMul")
        return b.node("Transpose", b.node("Reshape", product, split), perm=perm)

    q, k, v = head("q", [0, 2, 1, 3]), head("k", [0, 2, 3, 1]), head("v", [0, 2, 1, 3])
    scores = b.node("Div", b.node("MatMul", q, k), b.constant(np.float32(np.sqrt(width // heads))))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v, name="/attn/values")
    x = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    x = b.node("Add", "tokens", b.node("MatMul", x, b.weight(width, width)))
    ones, zeros = b.constant(np.ones(width, np.float32)), b.constant(np.zeros(width, np.float32))
    x = b.node("LayerNormalization", x, ones, zeros, axis=-1, name="/ln/LayerNormalization")
    up = b.node("MatMul", x, b.weight(width, 64))
    half = b.node("Mul", up, b.constant(np.float32(0.5)))
    erf = b.node("Erf", b.node("Div", up, b.constant(np.float32(np.sqrt(2)))))
    gelu = b.node("Mul", half, b.node("Add", erf, b.constant(np.float32(1))))
    out = b.node("Add", x, b.node("MatMul", gelu, b.weight(64, width), name="/mlp/down"))
    tokens = b.draw.standard_normal((2, 7, width), np.float32)
    return b.model({"tokens": ["batch", "time", width]}, [out]), {"tokens": (2, 7, width)}, {"tokens": tokens}


def lstm() -> Made:
    b = Builder(3, 14)
    hidden = 16
    y, last, _ = b.node(
        "LSTM", "steps", b.weight(2, 4 * hidden, 12), b.weight(2, 4 * hidden, hidden), b.weight(2, 8 * hidden),
        outputs=3, hidden_size=hidden, direction="bidirectional", name="lstm",
    )  # fmt: skip
    steps = b.draw.standard_normal((6, 3, 12), np.float32)
    return b.model({"steps": [6, 3, 12]}, [y, last]), {}, {"steps": steps}


def quantised() -> Made:
    """A convolution between QuantizeLinear and DequantizeLinear, weights as int8 with a scale a channel."""
    b = Builder(4, 19)

    def through(x: str, scale: float, zero: int) -> str:
        parts = b.constant(np.float32(scale)), b.constant(np.uint8(zero))
        return b.node("DequantizeLinear", b.node("QuantizeLinear", x, *parts), *parts)

    def weight(*dims: int) -> str:
        stored = b.constant(b.draw.integers(-127, 128, dims).astype(np.int8))
        scales = b.constant(b.draw.uniform(0.001, 0.01, dims[0]).astype(np.float32))
        return b.node("DequantizeLinear", stored, scales, b.constant(np.zeros(dims[0], np.int8)), axis=0)

    x = through("image", 0.02, 128)
    x = through(b.node("Relu", b.node("Conv", x, weight(8, 3, 3, 3), pads=[1] * 4, name="conv")), 0.01, 0)
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    out = through(b.node("Gemm", x, weight(6, 8), transB=1, name="fc"), 0.005, 128)
    image = b.draw.uniform(-2, 2, (2, 3, 10, 10)).astype(np.float32)
    return b.model({"image": [2, 3, 10, 10]}, [out]), {}, {"image": image}


def quantised_mlp() -> Made:
    """Two products of weights stored as int8, with a scale a channel; large enough to stay so."""
    b = Builder(5, 19)

    def weight(rows: int, columns: int, axis: int) -> str:
        stored = b.constant(b.draw.integers(-127, 128, (rows, columns)).astype(np.int8))
        count = (rows, columns)[axis]
        scales = b.constant(b.draw.uniform(0.0001, 0.001, count).astype(np.float32))
        return b.node("DequantizeLinear", stored, scales, b.constant(np.zeros(count, np.int8)), axis=axis)

    parts = b.constant(np.float32(0.02)), b.constant(np.uint8(128))
    x = b.node("DequantizeLinear", b.node("QuantizeLinear", "x", *parts), *parts)
    x = b.node("Relu", b.node("Gemm", x, weight(128, 96, 0), transB=1, name="fc1"))
    out = b.node("MatMul", x, weight(128, 80, 1), name="fc2")
    return b.model({"x": [16, 96]}, [out]), {}, {"x": b.draw.uniform(-2, 2, (16, 96)).astype(np.float32)}


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": mlp, "cnn": cnn, "transformer": transformer, "lstm": lstm, "quantised": quantised,
    "quantised_mlp": quantised_mlp,
}  # fmt: skip
