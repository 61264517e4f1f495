"""Torch's own samples of its operators through ``torch.compile``; all of them: ``tests/support/torch_ops.py``."""

from collections import Counter

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
def test_common_operators(backward, rates):
    found = list(torch_ops.outcomes(f"^({COMMON})$", 2, backward))
    rates(f"common operators, {'backward' if backward else 'forward'}", Counter(each.kind for each in found))
    bad = [outcome for outcome in found if outcome.kind in ("wrong", "broken", "refused")]
    # variants that ask for FP64 by name
    bad = [outcome for outcome in bad if "f64 is not supported" not in outcome.detail]
    assert not bad, bad
    assert len(found) > 35


SHARES = {
    ("float32", False): ((3, 10), 0.85),
    ("float32", True): ((4, 20), 0.8),
    ("float16", False): ((5, 30), 0.7),
    ("bfloat16", False): ((6, 30), 0.7),
    ("float64", False): ((7, 30), 0.6),
    ("complex64", False): ((8, 20), 0.4),
    ("int64", False): ((9, 20), 0.6),
    ("bool", False): ((10, 20), 0.6),
}
"""Of each type, and of gradients: which of all operators, and the least part of them that passes."""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "backward"), SHARES)
def test_the_others_are_computed_or_refused_by_name(dtype, backward, rates):
    share, least = SHARES[dtype, backward]
    found = list(torch_ops.outcomes("", 1, backward, share, getattr(torch, dtype)))
    counts = Counter(each.kind for each in found)
    rates(f"all operators, {dtype}, {'backward' if backward else 'forward'}", counts)
    bad = [outcome for outcome in found if outcome.kind in ("wrong", "broken")]
    assert not bad, bad
    assert counts["pass"] > least * (counts.total() - counts["skipped"])


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "share"), [("^linalg", (1, 2)), ("", (11, 30))], ids=["linalg", "all"])
def test_exported_programs_have_the_same_operators(pattern, share, rates):
    found = list(torch_ops.outcomes(pattern, 1, False, share, route=torch_ops.traced))
    counts = Counter(each.kind for each in found)
    rates(f"traced operators {pattern}", counts)
    assert not [outcome for outcome in found if outcome.kind in ("wrong", "broken")]
    assert counts["pass"] > 0.8 * (counts.total() - counts["skipped"])
