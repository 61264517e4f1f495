"""Torch's own samples of its operators through ``torch.compile``; all of them: ``tests/support/torch_ops.py``."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import torch_ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

COMMON = (
    "add|amax|argmax|bmm|cat|clamp|cumsum|div|exp|expand|flip|gather|index_put|index_select|log_softmax|masked_fill|"
    "matmul|max_pool2d_with_indices_backward|mean|pow|prod|scatter_add|sort|sum|topk|tril|unfold|var|where|"
    "nn.functional.(avg_pool2d|batch_norm|conv2d|conv_transpose2d|cross_entropy|gelu|group_norm|interpolate|layer_norm|"
    "max_pool2d|pad|scaled_dot_product_attention|softplus)"
)


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_common_operators(backward):
    found = list(torch_ops.outcomes(f"^({COMMON})$", 2, backward))
    bad = [outcome for outcome in found if outcome.kind in ("wrong", "broken", "refused")]
    # variants that ask for FP64 by name
    bad = [outcome for outcome in bad if "f64 is not supported" not in outcome.detail]
    assert not bad, bad
    assert len(found) > 35


@pytest.mark.slow
def test_the_others_are_computed_or_refused_by_name():
    """A tenth of all operators, another one for each release of torch."""
    found = list(torch_ops.outcomes("", 1, False, (3, 10)))
    bad = [outcome for outcome in found if outcome.kind in ("wrong", "broken")]
    assert not bad, bad
    passed = sum(outcome.kind == "pass" for outcome in found)
    assert passed > 0.7 * sum(outcome.kind != "skipped" for outcome in found)
