"""Batch normalisation in training, inference and gradient form, beside XLA."""

import numpy as np
import pytest
from generated import assert_close, check_text, compile_text
from op_cases import module_text, shaped

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.types import NUMPY_DTYPE

FORMS = [
    ("f32", (6, 5), 1),
    ("f32", (3, 4, 7), 0),
    ("f32", (2, 5, 3, 4), 3),
    ("f32", (2, 130, 3, 3), 1),
    ("f32", (2, 3, 2, 2, 4), 2),
    ("bf16", (4, 6, 9), 1),
    ("f16", (5, 8), 1),
]


@pytest.mark.parametrize("kind", ["training", "inference", "grad"])
@pytest.mark.parametrize(("dtype", "dims", "feature"), FORMS)
def test_batch_norm(kind: str, dtype: str, dims: tuple[int, ...], feature: int) -> None:
    rng = np.random.default_rng(0)
    vector, array = shaped(dtype, dims[feature : feature + 1]), shaped(dtype, dims)
    result = array if kind == "inference" else f"({array}, {vector}, {vector})"
    whole = {"training": [0], "inference": [0], "grad": [0, 4]}[kind]
    shapes = [dims if i in whole else (dims[feature],) for i in range(3 if kind == "training" else 5)]
    inputs = [rng.uniform(0.5, 2, shape).astype(NUMPY_DTYPE[dtype]) for shape in shapes]
    arguments = ", ".join(f"p{i}" for i in range(len(inputs)))
    root = f"  ROOT r = {result} batch-norm-{kind}({arguments}), epsilon=0.001, feature_index={feature}"
    text = module_text([(dtype, shape) for shape in shapes], root)
    if dtype == "f32":
        check_text(text, *inputs, relative=2e-5)  # XLA takes the variance as a difference of squares
        return
    # XLA rounds every step of 16-bit types: the other oracle does not
    for result, want in zip(compile_text(text).run(inputs), evaluate(parse_text(text), inputs), strict=True):
        assert_close(result, want)


def test_statistics_do_not_cancel() -> None:
    """A mean a thousand times the deviation keeps its variance."""
    x = (1000 + np.random.default_rng(1).standard_normal((256, 2))).astype(np.float32)
    body = "  ROOT r = (f32[256,2], f32[2], f32[2]) batch-norm-training(p0, p1, p2), epsilon=0, feature_index=1"
    text = module_text([("f32", (256, 2)), ("f32", (2,)), ("f32", (2,))], body)
    _, mean, variance = compile_text(text).run([x, np.ones(2, np.float32), np.zeros(2, np.float32)])
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(0), 1e-6)
    np.testing.assert_allclose(variance, exact.var(0), 1e-5)
