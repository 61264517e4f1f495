"""More models of torchvision and timm by name, whole ones at small images, beside those of ``torch_models``.

``python tests/support/torch_zoo.py [--names REGEX] [--share 0/4] [--seconds 240] [--most 30e6]`` compares each with
torch on the CPU, those with fewest weights first, a line each. Nothing is downloaded: weights and statistics are drawn.
"""

import argparse
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_models
from torch_models import Made

from neuronx_cc.ir.errors import NeuronError

# name and rows of the image, which is square
CLASSIFIERS = """
alexnet 96, vgg11_bn 32, resnet50 48, resnext50_32x4d 40, wide_resnet50_2 33, efficientnet_b0 65, efficientnet_v2_s 48,
regnet_x_400mf 56, densenet121 40, mobilenet_v3_large 72, shufflenet_v2_x1_5 50, squeezenet1_0 70, mnasnet1_3 44,
swin_v2_t 64, convnext_tiny 64, googlenet 64, inception_v3 80, maxvit_t 224
"""
SEGMENTERS = "lraspp_mobilenet_v3_large 48, deeplabv3_mobilenet_v3_large 48, fcn_resnet50 48"
VIDEOS = {"r3d_18": (4, 32, 32), "mc3_18": (4, 32, 32), "r2plus1d_18": (4, 32, 32), "s3d": (16, 224, 224)}
TIMM = """
levit_128s 224, mixer_s32_224 224, poolformer_s12 64, coatnet_nano_rw_224 224, xcit_nano_12_p16_224 64,
cait_xxs24_224 224, pit_ti_224 224, edgenext_xx_small 64, efficientformer_l1 224, hrnet_w18_small 64,
res2net50_14w_8s 48, ghostnet_050 64, repvgg_a0 64, gmlp_ti16_224 224, twins_svt_small 64, pvt_v2_b0 64,
mobilevit_xxs 64, fastvit_t8 64, swinv2_cr_tiny_ns_224 224, davit_tiny 64, focalnet_tiny_srf 64, dla34 64,
selecsls42b 64, skresnet18 64, visformer_tiny 224, convmixer_768_32 56, tinynet_e 64, lcnet_050 64,
mobilenetv4_conv_small 64, hardcorenas_a 64, mobileone_s0 64, resnest14d 64, legacy_seresnet18 64, nf_regnet_b0 64,
cspresnet50 64, vit_relpos_small_patch16_224 224, deit_tiny_patch16_224 224, crossvit_tiny_240 240, convit_tiny 224,
tnt_s_legacy_patch16_224 224, regnetz_b16 64, inception_next_tiny 64, starnet_s1 64, mambaout_femto 64,
hiera_tiny_224 224, halonet26t 256, bat_resnext26ts 256, lambda_resnet26t 128, volo_d1_224 224, sequencer2d_s 224,
efficientvit_b0 64, efficientvit_m0 224, repvit_m0_9 64, tiny_vit_5m_224 224, nextvit_small 64,
eva02_tiny_patch14_224 224, beit_base_patch16_224 224, swiftformer_xs 64, shvit_s1 224, ghostnetv3_050 64, rdnet_tiny 64
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "maxvit_t": {"input_size": (224, 224)},
}


def _torchvision(name: str, dims: tuple[int, ...], **more: Any) -> Callable[[], Made]:
    def model() -> Made:
        torch_models._define_nms()
        from torchvision import models

        return models.get_model(name, weights=None, **more), (torch.randn(dims),)

    return model


class Mask(torch.nn.Module):
    """The entry ``out`` of what a segmenter gives."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, image: torch.Tensor) -> Any:
        return self.inner(image)["out"]


def _segmenter(name: str, size: int) -> Callable[[], Made]:
    def model() -> Made:
        inner, inputs = _torchvision(name, (1, 3, size, size), weights_backbone=None, num_classes=5)()
        return Mask(inner), inputs

    return model


def _timm(name: str, size: int) -> Callable[[], Made]:
    def model() -> Made:
        torch_models._define_nms()
        import timm

        sizes: tuple[dict[str, Any], ...] = ({"img_size": size}, {})
        for more in sizes:
            try:
                return timm.create_model(name, pretrained=False, num_classes=10, **more), (
                    torch.randn(1, 3, size, size),
                )
            except TypeError:  # no model of windows: takes any image
                continue
        raise AssertionError(name)

    return model


def _sizes(text: str) -> dict[str, int]:
    return {name: int(size) for name, size in (entry.split() for entry in text.split(","))}


MODELS: dict[str, Callable[[], Made]] = {
    **{
        f"torchvision/{name}": _torchvision(name, (2, 3, size, size), num_classes=10, **OPTIONS.get(name, {}))
        for name, size in _sizes(CLASSIFIERS).items()
    },
    **{f"torchvision/{name}": _segmenter(name, size) for name, size in _sizes(SEGMENTERS).items()},
    **{f"torchvision/{name}": _torchvision(name, (1, 3, *dims), num_classes=10) for name, dims in VIDEOS.items()},
    **{f"timm/{name}": _timm(name, size) for name, size in _sizes(TIMM).items()},
}


def error(name: str) -> tuple[float, float]:
    """The relative 2-norm of the difference to torch, and the simulated time in us."""
    import neuronx_cc.torch as neuron

    torch.manual_seed(77)
    model, inputs = MODELS[name]()
    draw = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.1, generator=draw)
    for module in model.modules():  # statistics other than zeros and ones
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.1, generator=draw)
            module.running_var.uniform_(0.5, 1.5, generator=draw)
    model.eval()
    with torch.no_grad():
        expected = model(*inputs)
    found = neuron.trace(model, inputs, "--auto-cast none")(*inputs)
    return float((found - expected).norm() / expected.norm()), neuron.last_run().report.time_ns / 1000


def weights(name: str) -> int:
    """Of the model, made without memory for them."""
    with torch.device("meta"):
        try:
            return sum(weight.numel() for weight in MODELS[name]()[0].parameters())
        except (RuntimeError, NotImplementedError, ValueError):  # which its own code computes with
            return 1 << 24


class OutOfTime(Exception):
    """A model took longer than it may."""


def _stop(*_: object) -> None:
    raise OutOfTime


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--most", type=float, default=1e12, help="weights")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    first, step = map(int, arguments.share.split("/"))
    sizes = {name: weights(name) for name in MODELS if re.search(arguments.names, name)}
    chosen = sorted((name for name in sizes if sizes[name] <= arguments.most), key=sizes.__getitem__)[first::step]
    failed = 0
    for name in chosen:
        started = time.process_time()
        signal.alarm(arguments.seconds)
        try:
            difference, simulated = error(name)
            said = (
                f"{'ok ' if difference < 3e-5 else 'BAD'} {name}: error {difference:.1e}, {simulated:.0f} us simulated"
            )
        except OutOfTime:
            said = f"--- {name}: not done in {arguments.seconds} s"
        except Exception as problem:
            kind = "refused" if isinstance(problem, NeuronError) else type(problem).__name__
            said = f"BAD {name}: {kind}: {' '.join(str(problem).split())[:400]}"
        finally:
            signal.alarm(0)
        failed += not said.startswith("ok ")
        print(f"{said}, {sizes[name] / 1e6:.1f} M weights, {time.process_time() - started:.0f} s", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} agree")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
