"""ONNX models: small ones of many operators, damaged as bytes. Nothing to do where the package is not installed."""

import importlib.util

from neuronx_cc.driver.frontends.model import Fixed

TEXTS = (
    "g (float[2,3] x) => (float[2,3] y) { c = Constant<value: tensor = float {2}>()  a = Mul(x, c)  y = Tanh(a) }",
    "g (float[2,3,4] x) => (float[N,M] y) { s = Constant<value: tensor = int64[2] {0, -1}>()  y = Reshape(x, s) }",
    """g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,A,B] y) {
        c = Conv<pads: ints = [1, 1, 1, 1], strides: ints = [2, 2]>(x, w)  y = MaxPool<kernel_shape: ints = [2, 2]>(c)
    }""",
    """g (int64 n, float[3] x) => (float[3] y) {
        t = Constant<value: tensor = bool {1}>()
        y = Loop(n, t, x)<body = b (int64 i, bool c, float[3] s) => (bool d, float[3] r) {
            d = Identity(c)  r = Add(s, s)
        }>
    }""",
    """g (float[4] x) => (float[4] y) {
        z = ReduceMax<keepdims: int = 0>(x)  k = Constant<value: tensor = float {0}>()  b = Greater(z, k)
        y = If(b)<then_branch = p () => (float[4] u) { u = Neg(x) }, else_branch = q () => (float[4] v) { v = Abs(x) }>
    }""",
    """g (uint8[2,4] x, float s, uint8 z) => (float[N,M] y) {
        d = DequantizeLinear(x, s, z)  m = Softmax(d)  e = Elu(m)  q = QuantizeLinear(e, s, z)
        y = DequantizeLinear(q, s, z)
    }""",
    """g (float[3,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[3,1,2,3] y) {
        y, h, c = LSTM<hidden_size: int = 3>(x, w, r)
    }""",
    """g (float[2,6] x) => (float[N,M] y) {
        i = Constant<value: tensor = int64[2] {0, 3}>()  a = Gather<axis: int = 1>(x, i)
        p, q = Split<num_outputs: int = 2>(x)  c = Concat<axis: int = 1>(p, a, q)  y = Pad(c, i)
    }""",
)


def seeds() -> list[bytes]:
    if importlib.util.find_spec("onnx") is None:
        return [b""]
    from onnx import parser

    head = '<ir_version: 8, opset_import: ["" : 18]>'
    return [parser.parse_model(f"{head} {text}").SerializeToString() for text in TEXTS]


def run(data: bytes) -> None:
    """Import alone: what becomes of HLO other targets try."""
    if importlib.util.find_spec("onnx") is None:
        return
    from neuronx_cc.driver.frontends.onnx.importer import lower

    lower(data, "fuzz", None, Fixed())
