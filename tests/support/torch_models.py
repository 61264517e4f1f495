"""Models of torchvision, timm and transformers by name, at small sizes, with weights from a seed.

``python tests/support/torch_models.py [--names REGEX] [--train]`` compares each with torch on the CPU, a line each.
"""

import argparse
import copy
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

Made = tuple[torch.nn.Module, tuple[Any, ...]]
SIZE = 64
"""Rows and columns of images."""


class First(torch.nn.Module):
    """The first result of a model that is called by name."""

    def __init__(self, inner: torch.nn.Module, name: str, **more: Any) -> None:
        super().__init__()
        self.inner, self.name, self.more = inner, name, more

    def forward(self, x: torch.Tensor) -> Any:
        result = self.inner(**{self.name: x}, **self.more)
        return result["out"] if isinstance(result, dict) and "out" in result else result[0]


def _torchvision(make: Callable[[Any], torch.nn.Module], size: int = SIZE) -> Callable[[], Made]:
    def model() -> Made:
        _define_nms()
        from torchvision import models

        return make(models), (torch.randn(2, 3, size, size),)

    return model


def _define_nms() -> None:
    """Torchvision states shapes for these operators at import, also where its own library is for another torch."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            KEPT.append(torch.library.Library("torchvision", "FRAGMENT"))
            KEPT[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


KEPT: list[Any] = []
"""Libraries live as long as these."""


def _timm(name: str, size: int = SIZE, **more: Any) -> Callable[[], Made]:
    def model() -> Made:
        _define_nms()
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **more), (torch.randn(2, 3, size, size),)

    return model


TINY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}


def _language(name: str, kind: str = "AutoModel", **more: Any) -> Callable[[], Made]:
    def model() -> Made:
        _define_nms()
        import transformers

        config = transformers.AutoConfig.for_model(name, **{**TINY, **more})
        inner = getattr(transformers, kind).from_config(config)
        return First(inner, "input_ids", return_dict=False), (torch.randint(3, 99, (2, 12)),)

    return model


def _pictures(name: str, **more: Any) -> Callable[[], Made]:
    def model() -> Made:
        _define_nms()
        import transformers

        given = {"image_size": 32, "patch_size": 8, **TINY, **more}
        inner = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **given))
        return First(inner, "pixel_values", return_dict=False), (torch.randn(2, 3, 32, 32),)

    return model


def _pairs(name: str, **more: Any) -> Callable[[], Made]:
    """Encoders with decoders."""

    def model() -> Made:
        _define_nms()
        import transformers

        config = transformers.AutoConfig.for_model(name, **{**TINY, "decoder_start_token_id": 0, **more})
        inner = transformers.AutoModel.from_config(config)
        tokens = torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(3))
        return First(inner, "input_ids", decoder_input_ids=tokens, return_dict=False), (torch.randint(3, 99, (2, 9)),)

    return model


HEADS = {"head_dim": 16, "num_key_value_heads": 1}
BART = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
MODELS: dict[str, Callable[[], Made]] = {
    "torchvision/resnet18": _torchvision(lambda m: m.resnet18(num_classes=10)),
    "torchvision/mobilenet_v2": _torchvision(lambda m: m.mobilenet_v2(num_classes=10, width_mult=0.35)),
    "torchvision/mobilenet_v3_small": _torchvision(lambda m: m.mobilenet_v3_small(num_classes=10, width_mult=0.5)),
    "torchvision/shufflenet_v2_x0_5": _torchvision(lambda m: m.shufflenet_v2_x0_5(num_classes=10)),
    "torchvision/squeezenet1_1": _torchvision(lambda m: m.squeezenet1_1(num_classes=10)),
    "torchvision/mnasnet0_5": _torchvision(lambda m: m.mnasnet0_5(num_classes=10)),
    "torchvision/regnet_y_400mf": _torchvision(lambda m: m.regnet_y_400mf(num_classes=10)),
    "torchvision/densenet": _torchvision(
        lambda m: m.densenet.DenseNet(growth_rate=8, block_config=(2, 2, 2), num_init_features=16, num_classes=10)
    ),
    "torchvision/vit": _torchvision(
        lambda m: m.VisionTransformer(SIZE, 16, 2, 2, 32, 64, num_classes=10),
    ),
    "torchvision/swin": _torchvision(
        lambda m: m.swin_transformer.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=10)
    ),
    "torchvision/convnext": _torchvision(
        lambda m: m.convnext.ConvNeXt(
            [m.convnext.CNBlockConfig(16, 32, 1), m.convnext.CNBlockConfig(32, None, 1)], num_classes=10
        )
    ),
    **{
        f"timm/{name}": _timm(name, 96 if "vit" not in name else 160)
        for name in (
            "test_byobnet",
            "test_convnext",
            "test_convnext2",
            "test_efficientnet",
            "test_efficientnet_evos",
            "test_efficientnet_gn",
            "test_efficientnet_ln",
            "test_mambaout",
            "test_nfnet",
            "test_resnet",
            "test_vit",
            "test_vit2",
            "test_vit3",
        )
    },
    "transformers/albert": _language("albert", embedding_size=16),
    "transformers/bert": _language("bert"),
    "transformers/bloom": _language("bloom", n_layer=2, n_head=2),
    "transformers/distilbert": _language("distilbert", dim=32, n_layers=2, n_heads=2, hidden_dim=48),
    "transformers/electra": _language("electra", embedding_size=16),
    "transformers/falcon": _language("falcon"),
    "transformers/gemma": _language("gemma", "AutoModelForCausalLM", **HEADS),
    "transformers/gemma2": _language("gemma2", **HEADS, sliding_window=8),
    "transformers/gpt2": _language("gpt2", "AutoModelForCausalLM", n_embd=32, n_layer=2, n_head=2, n_positions=64),
    "transformers/gpt_neox": _language("gpt_neox"),
    "transformers/llama": _language("llama", "AutoModelForCausalLM", **HEADS),
    "transformers/mistral": _language("mistral", **HEADS),
    "transformers/opt": _language("opt", ffn_dim=48, word_embed_proj_dim=32),
    "transformers/phi": _language("phi", partial_rotary_factor=0.5),
    "transformers/qwen2": _language("qwen2", "AutoModelForCausalLM", **HEADS),
    "transformers/qwen3": _language("qwen3", **HEADS),
    "transformers/roberta": _language("roberta"),
    "transformers/mpnet": _language("mpnet"),
    "transformers/bart": _pairs("bart", **BART),
    "transformers/t5": _pairs("t5", d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2),
    "transformers/vit": _pictures("vit"),
    "transformers/deit": _pictures("deit"),
    "transformers/beit": _pictures("beit"),
}
TRAINED = (
    "torchvision/resnet18",
    "torchvision/mobilenet_v3_small",
    "torchvision/vit",
    "timm/test_convnext",
    "timm/test_efficientnet",
    "timm/test_resnet",
    "transformers/bert",
    "transformers/gpt2",
    "transformers/llama",
    "transformers/t5",
)


def made(name: str) -> Made:
    """The model with weights and inputs from a seed, ready for inference."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.1)  # a head of zeros would hide all that comes before it
    return model.eval(), inputs


def forward_error(name: str) -> tuple[float, float]:
    """The largest difference to torch relative to the largest value, and the simulated time in us."""
    import neuronx_cc.torch as neuron

    model, inputs = made(name)
    with torch.no_grad():
        expected = model(*inputs)
    found = neuron.trace(model, inputs, "--auto-cast none")(*inputs)
    error = (found - expected).abs().max() / expected.abs().max()
    return float(error), neuron.last_run().report.time_ns / 1000


def training_error(name: str, steps: int = 10) -> tuple[float, float]:
    """The largest difference of the losses of ``steps`` steps to those in FP64, relative to them; and of torch's own.

    FP32 is no reference: batch norm over a few elements makes its gradients differ by percents between libraries.
    """
    import neuronx_cc.torch  # noqa: F401

    torch._dynamo.reset()
    model, inputs = made(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train(mode=not name.startswith("transformers"))  # whose dropout is not all in modules
    exact = copy.deepcopy(model).double()
    wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    losses: list[list[float]] = []
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="neuron")
    for module, call, given in ((exact, exact, wide), (model, compiled, inputs), (eager, eager, inputs)):
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        losses.append([])
        for _ in range(steps):
            optimizer.zero_grad()
            result = call(*given)
            # no sum of squares: that of what a norm has scaled is the same for all weights
            loss = (result - _drawn(result)).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    expected, found, own = map(torch.tensor, losses)
    assert expected[-1] != expected[0]
    error, own_error = (float(((each - expected).abs() / expected.abs()).max()) for each in (found, own))
    return error, own_error


def _drawn(like: torch.Tensor) -> torch.Tensor:
    """Numbers of a seed."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(5)).to(like.dtype)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="")
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    failed = 0
    for name in TRAINED if arguments.train else MODELS:
        if not re.search(arguments.names, name):
            continue
        started = time.monotonic()
        try:
            if arguments.train:
                error, own = training_error(name)
                text = f"ten steps, eager torch {own:.1e}"
                error -= 2 * own
            else:
                error, simulated = forward_error(name)
                text = f"{simulated:.0f} us simulated"
            failed += error > 1e-4
            verdict = "ok " if error <= 1e-4 else "BAD"
            print(f"{verdict} {name}: error {error:.1e}, {text}, {time.monotonic() - started:.0f} s", flush=True)
        except Exception as error:
            failed += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"BAD {name}: {type(error).__name__}: {str(error)[:400]} ({place.filename}:{place.lineno})", flush=True
            )
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
