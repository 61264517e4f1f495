"""Models that torch's newer exporter writes (``dynamo=True``), with open dims and external data, against torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

import neuronx_cc  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
nn = torch.nn


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.down, self.up = nn.Conv2d(8, 16, 3, 2, 1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(24, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        kept = nn.functional.gelu(self.norm(self.into(x)))
        low = nn.functional.silu(self.down(kept))
        wide = nn.functional.interpolate(low[:, :8], scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(torch.cat([kept, self.up(low), wide], 1)).sigmoid()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Any, padding: Any) -> Any:
        return self.layers(self.words(tokens), src_key_padding_mask=padding)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(8, 6, bidirectional=True, batch_first=True), nn.GRU(12, 5, batch_first=True)

    def forward(self, x: Any) -> Any:
        made, (hidden, _) = self.lstm(x)
        return self.gru(made)[0], hidden


class Detector(nn.Module):
    """Boxes and labels of the best anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 3 * 9, 3, padding=1)
        self.register_buffer("anchors", torch.rand(48, 4) + 0.5)

    def forward(self, image: Any) -> Any:
        found = self.heads(self.body(image).relu()).permute(0, 2, 3, 1).reshape(image.shape[0], -1, 9)
        middle = self.anchors[:, :2] + found[..., :2] * self.anchors[:, 2:]
        size = self.anchors[:, 2:] * found[..., 2:4].clamp(max=4.0).exp()
        boxes = torch.cat([middle - size / 2, middle + size / 2], -1)
        scores, labels = found[..., 4:].sigmoid().max(-1)
        best, which = scores.topk(5, 1)
        return boxes.gather(1, which[..., None].expand(-1, -1, 4)), best, labels.gather(1, which)


class Control(nn.Module):
    def forward(self, x: Any) -> Any:
        turned = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        return turned, torch.zeros_like(x).index_add(0, torch.tensor([2, 0, 2]), turned)


CASES = {
    "U-Net": (UNet, lambda: (torch.randn(1, 3, 8, 8),), {}),
    "encoder": (
        Encoder,
        lambda: (torch.randint(0, 50, (2, 6)), torch.arange(6).expand(2, 6) > torch.tensor([[5], [3]])),
        {"dynamic_shapes": ({0: "batch", 1: "time"}, {0: "batch", 1: "time"})},
    ),
    "recurrent": (Recurrent, lambda: (torch.randn(2, 4, 8),), {}),
    "detector": (Detector, lambda: (torch.randn(2, 3, 16, 16),), {"dynamic_shapes": ({0: "batch"},)}),
    "control": (Control, lambda: (torch.randn(3, 4),), {}),
}


# 23 is the newest that torch writes, with whole attentions and other norms of groups; what it is asked for beyond, it
# writes as opset 18 with operators of 23
@pytest.mark.parametrize(
    ("name", "opset"),
    [(name, opset) for name in ("U-Net", "encoder") for opset in (18, 23)]
    + [("recurrent", 18), ("detector", 23), ("control", 18)],
)
def test_exported_models_agree_with_torch(name: str, opset: int, tmp_path: Path) -> None:
    make, draw, how = CASES[name]
    torch.manual_seed(0)
    model, arguments = make().eval(), draw()
    with torch.no_grad():
        wanted = model(*arguments)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, arguments, path, dynamo=True, opset_version=opset, verbose=False, **how)
    assert path.with_suffix(".onnx.data").exists()
    proto = onnx.load(path, load_external_data=False)
    graph = proto.graph
    assert proto.opset_import[0].version == opset
    given = {value.name: array.numpy() for value, array in zip(graph.input, arguments, strict=True)}
    sizes = {
        dim.dim_param: [size]
        for value in graph.input
        for dim, size in zip(value.type.tensor_type.shape.dim, given[value.name].shape, strict=True)
        if dim.dim_param
    }
    assert bool(sizes) == bool(how)
    executable = neuronx_cc.compile(neuronx_cc.load_model(path, shapes=sizes), auto_cast="none")
    results = [wanted] if isinstance(wanted, torch.Tensor) else wanted
    for made, want in zip(executable.run(given).outputs, results, strict=True):
        np.testing.assert_allclose(made, want.numpy(), rtol=1e-5, atol=2e-6)
