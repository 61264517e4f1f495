"""The examples with convolutions, loops, caches and routing, compiled, run on the simulator and compared with jaxlib.

In bf16, besides, with the reference semantics of the module as the passes left it, which cast at the same places. Quick
variants take seconds; full-size ones carry the slow marker.
"""

from collections.abc import Callable
from functools import cache

import diffusion
import llama
import mamba
import moe
import numpy as np
import pytest
import recurrent
import resnet
import unet
from full_size import PROGRAMS
from lowering import Model, difference, differences

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

FP32_TOLERANCE = 1e-5
BF16_ROUNDING = 2.0**-8
"""Largest relative rounding error of bf16."""
BLOCK_OUTPUTS = 12
"""Outputs of ResNet's training step for one of its blocks: three convolutions and the shortcut's, their norms."""

QUICK: dict[str, Callable[[], Model]] = {
    "resnet": lambda: resnet.build(resnet.Config((1, 1), 8, 10, 32, 2)),
    "resnet_train": lambda: resnet.build(resnet.Config((1, 1), 8, 10, 32, 8), mode="train"),
    "unet": lambda: unet.build(unet.Config(32, width=8, levels=2)),
    "diffusion": lambda: diffusion.build(diffusion.Config(16, 8, 2, 32, 2)),
    "lstm": lambda: recurrent.build(recurrent.Config(2, 24, 50, 7, 3)),
    "gru": lambda: recurrent.build(recurrent.Config(2, 24, 50, 7, 3), cell="gru"),
    "mamba": lambda: mamba.build(mamba.Config(2, 32, 4, 8, 4, 50, 13)),
    "mamba_wide": lambda: mamba.build(mamba.Config(1, 256, 16, 8, 4, 50, 40)),
    "llama": lambda: llama.build(llama.Config(2, 64, 4, 2, 96, 50, 32)),
    "moe": lambda: moe.build(moe.Config(24, 32, 48, 4, 2, 12)),
}
FULL = [name for name in PROGRAMS if name not in ("mlp_train", "gpt2", "bert", "resnet_train")]
"""Those of ``test_models`` aside, and the one that is compared with FP64."""


@cache
def quick(name: str) -> Model:
    return QUICK[name]()


def run(model: Model, auto_cast: str) -> list[np.ndarray]:
    return list(neuronx_cc.compile(model.proto, auto_cast=auto_cast).run(model.arguments).outputs)


def reference(model: Model, auto_cast: str) -> list[np.ndarray]:
    """What the module means once the passes have cast it to bf16."""
    module = load_module(model.proto)
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast=auto_cast)))
    return evaluate(module, model.arguments)


@pytest.mark.parametrize("name", QUICK)
def test_quick_model(name: str) -> None:
    error = differences(run(quick(name), "none"), quick(name).expected)
    assert error.largest <= FP32_TOLERANCE, error


@pytest.mark.parametrize("name", QUICK)
def test_quick_model_in_bf16(name: str) -> None:
    model = quick(name)
    outputs = run(model, "matmult")
    error = differences(outputs, reference(model, "matmult"))
    # sums that differ in their last bit may round to either side, and each such value disturbs all behind it
    assert error.norm <= 2 * BF16_ROUNDING, error
    error = differences(outputs, model.expected)
    assert error.norm > 0, "nothing was cast"


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_full_size_model(name: str) -> None:
    model = PROGRAMS[name]()
    error = differences(run(model, "none"), model.expected)
    assert error.largest <= FP32_TOLERANCE, error


@pytest.mark.slow
def test_full_size_training_step_is_as_near_to_fp64_as_jaxlib() -> None:
    """A step through 50 normalised layers amplifies the rounding of FP32 so much that two sound orders of summation
    differ by percents in some weights: errors are measured against those of jaxlib's FP32.

    Of 38 million rectified values some ten lie so near 0 that they fall to the other side, here others than there. Each
    moves the outputs of its block as jaxlib's move those of others: which outputs have the large errors is luck, how
    many have which is not. So errors are compared in order of size, and ours may be large in two blocks more.
    """
    model = PROGRAMS["resnet_train"]()
    outputs = run(model, "none")
    pairs = [
        [difference(array.astype(exact.dtype), exact) for array in (ours, peer)]
        for ours, peer, exact in zip(outputs, model.expected, model.exact, strict=True)
    ]
    for measure in ("norm", "largest"):
        errors, peers = (np.sort([getattr(pair[side], measure) for pair in pairs]) for side in (0, 1))
        allowed = 2 * peers[np.minimum(np.arange(len(peers)) + 2 * BLOCK_OUTPUTS, len(peers) - 1)]
        worst = int(np.argmax(errors - allowed))
        assert (errors <= allowed + FP32_TOLERANCE).all(), (measure, worst, errors[worst], allowed[worst])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "llama", "unet"])
def test_full_size_model_in_bf16(name: str) -> None:
    model = PROGRAMS[name]()
    error = differences(run(model, "matmult"), model.expected)
    assert 0 < error.norm <= 20 * BF16_ROUNDING, error
