"""Models of timm and transformers at full size through PyTorch's front end: simulated time over a roofline.

    python benchmarks/torch_models.py [--auto-cast MODE] [NAME ...]

Needs torch, torchvision, timm and transformers. Weights are random, and parameters of the program. The roofline is the
greater of all products at TensorE's peak for the type and of reading all parameters once: what lies between products,
such as depthwise convolutions or gathers, takes no time in it. No values are computed.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from programs import Work, roofline
from sharding import products

HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [path for path in sys.path if path != HERE]  # the package transformers has the name of a benchmark

import torch  # noqa: E402

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Called(torch.nn.Module):
    """A model, and what is to be called of it."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, given: torch.Tensor) -> Any:
        return self.call(self.model, given)


def _define_operators() -> torch.library.Library:
    """Torchvision states shapes for these at import, also where its own library is for another build of torch."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def image(name: str, size: int = 224) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False).eval(), (torch.randn(1, 3, size, size),)

    return make


def language(
    name: str, batch: int, length: int, call: Callable[..., Any] = lambda m, x: m(input_ids=x)[0], **more: Any
) -> Callable[[], Made]:
    return _transformer(name, call, lambda: torch.randint(3, 1000, (batch, length)), more)


def _transformer(
    name: str, call: Callable[..., Any], given: Callable[[], torch.Tensor], more: dict[str, Any]
) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **more))
        return Called(model.eval(), call), (given(),)

    return make


CACHELESS: Callable[..., Any] = lambda model, ids: model(input_ids=ids, use_cache=False)[0]  # noqa: E731
IMAGES: Callable[..., Any] = lambda model, x: model(pixel_values=x)[0]  # noqa: E731
LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_key_value_heads": 4}
MODELS: dict[str, Callable[[], Made]] = {
    **{
        name: image(name)
        for name in (
            *("coatnet_0_rw_224", "convnext_tiny", "densenet121", "edgenext_small", "efficientnet_b0", "ghostnet_100"),
            *("maxvit_tiny_tf_224", "mixer_s16_224", "mobilenetv2_100", "mobilenetv3_large_100", "poolformer_s12"),
            *("regnety_016", "resnext50_32x4d", "seresnet50", "swin_tiny_patch4_window7_224", "vgg16"),
            *("vit_small_patch16_224", "xcit_tiny_12_p16_224"),
        )
    },
    "inception_v3": image("inception_v3", 299),
    "dm_nfnet_f0": image("dm_nfnet_f0", 192),
    "albert": language("albert", 1, 256, num_hidden_layers=4),
    "bert": language("bert", 1, 384),
    "distilbert": language("distilbert", 1, 128),
    "gpt2": language("gpt2", 1, 512, CACHELESS),
    "llama": language("llama", 1, 512, CACHELESS, **LLAMA),
    "mamba": language("mamba", 1, 256, CACHELESS, num_hidden_layers=4, hidden_size=768),
    "roberta": language("roberta", 8, 128, vocab_size=50265, max_position_embeddings=514),
    "clip_vision_model": _transformer("clip_vision_model", IMAGES, lambda: torch.randn(1, 3, 224, 224), {}),
    "dinov2": _transformer("dinov2", IMAGES, lambda: torch.randn(1, 3, 224, 224), {}),
    "segformer": _transformer("segformer", IMAGES, lambda: torch.randn(1, 3, 512, 512), {}),
    "wav2vec2": _transformer("wav2vec2", lambda m, x: m(x)[0], lambda: torch.randn(1, 16000), {"num_hidden_layers": 4}),
    "whisper": _transformer("whisper", lambda m, x: m.encoder(x)[0], lambda: torch.randn(1, 80, 3000), {}),
}


def main() -> None:
    import neuronx_cc
    from neuronx_cc.ir import hlo

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--auto-cast", default="matmult", choices=["none", "matmult"])
    parser.add_argument("names", nargs="*", choices=[[], *MODELS])
    given = parser.parse_args()
    library, ratios = _define_operators(), []
    for name in given.names or MODELS:
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
        lowered = neuronx_cc.load_model(model, *inputs, inline_weights_to_neff=False)
        module = lowered.load()
        nbytes = sum(hlo.shape_of(value).nbytes for value in module.entry.block.args)
        bound = roofline(Work(2 * products(module), nbytes), given.auto_cast) * 1e6
        start = time.process_time()
        compiled = neuronx_cc.compile(lowered, auto_cast=given.auto_cast)
        taken = time.process_time() - start
        simulated = compiled.run([], timing_only=True).report.time_ns / 1e3
        ratios.append(simulated / bound)
        print(
            f"{name:32} {simulated:9.1f} us {ratios[-1]:6.2f} times the roofline, compiled in {taken:5.2f} s",
            flush=True,
        )
    print(f"geometric mean {geometric_mean(ratios):.2f}")
    del library


if __name__ == "__main__":
    main()
