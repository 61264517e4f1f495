"""The examples at full size: what the slow tests compare with jaxlib and ``benchmarks/programs.py`` measures."""

from collections.abc import Callable

import bert
import diffusion
import gpt2
import llama
import mamba
import mlp_train
import moe
import recurrent
import resnet
import unet
from lowering import Model

PROGRAMS: dict[str, Callable[[], Model]] = {
    "mlp_train": mlp_train.build,
    "gpt2": gpt2.build,
    "bert": bert.build,
    "resnet": resnet.build,
    "resnet_train": lambda: resnet.build(resnet.Config(batch=4), mode="train"),
    "unet": unet.build,
    "diffusion": diffusion.build,
    "lstm": recurrent.build,
    "gru": lambda: recurrent.build(cell="gru"),
    "mamba": mamba.build,
    "llama": llama.build,
    "moe": moe.build,
}
