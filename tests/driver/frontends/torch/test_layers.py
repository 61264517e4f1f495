"""Operators that torch takes for whole layers in inference, for lists of tensors and in quantised training."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import neuronx_cc.torch as neuron  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def agrees(function, *inputs, whole=True):
    found = torch.compile(function, backend="neuron", fullgraph=whole)(*inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-5)


def encoder(activation, norm_first):
    return nn.TransformerEncoderLayer(8, 2, 16, activation=activation, norm_first=norm_first, batch_first=True).eval()


@pytest.mark.parametrize("masks", [(), ("rows",), ("keys",), ("rows", "keys")])
@pytest.mark.parametrize("form", [("relu", False), ("gelu", True)])
def test_encoder_layers_without_gradients(masks, form):
    layer = encoder(*form)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    given = {
        "src_mask": causal if "rows" in masks else None,
        "src_key_padding_mask": padding if "keys" in masks else None,
    }

    def function(x):
        with torch.no_grad():
            return layer(x, **given)

    x = torch.randn(2, 5, 8)
    agrees(function, x, whole=len(masks) < 2)  # torch warns of both, which dynamo leaves the graph for
    torch.testing.assert_close(neuron.trace(function, x, "--auto-cast none")(x), function(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_attention_without_gradients(weights):
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def function(x, y):
        with torch.no_grad():
            return [each for each in layer(x, y, y, **weights) if each is not None]

    agrees(function, torch.randn(2, 5, 8), torch.randn(2, 5, 8))


def test_attention_with_functions_of_scores():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes = torch.randn(4)
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 5), None, None, 16, 16, device="cpu")

    def function(q, k):
        changed = flex_attention(q, k, k, lambda s, b, h, i, j: s * slopes[h] + (i - j), mask, enable_gqa=True)
        nothing = flex_attention(q, q, q, lambda s, b, h, i, j: torch.where(i > 3, s, -torch.inf), return_lse=True)
        return changed, nothing

    agrees(function, torch.randn(2, 4, 16, 16), torch.randn(2, 2, 16, 16))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "NAdam", "Adagrad"])
def test_steps_of_optimizers_for_all_tensors_at_once(name):
    results = []
    for compiles in (False, True):
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        optimizer = getattr(torch.optim, name)(model.parameters(), 0.01, foreach=True)
        step = torch.compile(optimizer.step, backend="neuron") if compiles else optimizer.step
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            step()
        results.append(model.state_dict())
    torch.testing.assert_close(results[1], results[0])


def test_lists_of_tensors():
    def function(x):
        values = [x, x + 5], [x * 2, x - 9]
        return (
            torch._foreach_add(*values, alpha=2), torch._foreach_addcdiv([x], [x], [x + 5], 2.0),
            torch._foreach_norm(values[0]), torch._foreach_maximum(values[0], 0.1), torch._foreach_lerp(*values, 0.3),
            torch._foreach_div(values[0], [3.0, 4.0]), torch._foreach_pow(2.0, values[0]),
        )  # fmt: skip

    agrees(function, torch.randn(3, 4))


def test_grids_of_quantised_training():
    x = torch.randn(4, 3, requires_grad=True)
    scales, zeros = torch.tensor([0.1, 0.02, 0.3]), torch.tensor([0, 2, -3], dtype=torch.int32)

    def function(x):
        whole = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -10, 20)
        return whole + torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -100, 100)

    gradients = []
    for each in (function, torch.compile(function, backend="neuron", fullgraph=True)):
        result = each(x)
        gradients.append((result.detach(), torch.autograd.grad(result.sum(), x)[0]))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_products_of_bytes_are_exact():
    x, y = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((32, 48), (48, 32)))
    agrees(torch._int_mm, x, y)


def test_lengths_and_directions_of_weights():
    model = nn.Sequential(*(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), dim=dim) for dim in (0, 1)))
    gradients = []
    for call in (model, torch.compile(model, backend="neuron", fullgraph=True)):
        model.zero_grad()
        call(torch.ones(3, 4)).square().sum().backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_of_several_labels(reduction):
    labels = torch.tensor([[0, 2, -1, 1], [1, -1, 0, 0], [3, 0, 1, -1], [-1, 0, 0, 0]])

    def function(x, y):
        return F.multilabel_margin_loss(x, y, reduction=reduction)

    rows = [(torch.randn(4, 4), labels), (torch.randn(4), labels[0])]
    for x, y in rows[: 1 if reduction == "none" else 2]:  # of one row, torch infers the shape [1] and has []
        torch.testing.assert_close(neuron.trace(function, (x, y), "--auto-cast none")(x, y), function(x, y))


def test_windows_are_constants():
    def function(x):
        windows = [
            getattr(torch, f"{name}_window")(8) for name in ("hann", "hamming", "kaiser", "blackman", "bartlett")
        ]
        return [x * window for window in windows], torch.fft.fftfreq(8, 0.5) * x

    agrees(function, torch.randn(8))


def test_signs_of_nan():
    agrees(lambda x: (x.sign(), x.sgn()), torch.tensor([torch.nan, -torch.inf, -0.0, 2]))


def test_integers_are_drawn_from_wide_spans():
    found = torch.compile(lambda: torch.randint(2**40, 2**41, (64,)), backend="neuron", fullgraph=True)()
    assert ((found >= 2**40) & (found < 2**41)).all()
    assert (found >> 32).unique().numel() > 32


def test_slopes_that_are_drawn():
    x = torch.randn(32, 32)
    found = torch.compile(F.rrelu, backend="neuron", fullgraph=True)(x, 0.1, 0.3, training=True)
    assert torch.where(x > 0, found == x, (found <= 0.1 * x) & (found >= 0.3 * x)).all()
