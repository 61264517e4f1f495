"""For scripts written for ``torch_neuronx``: ``from neuronx_cc import torch_neuronx`` in place of importing that."""

import neuronx_cc.torch  # noqa: F401 -- registers what saved modules need
from neuronx_cc.driver.frontends.torch.shim import DataParallel, replace_weights, trace

__all__ = ["DataParallel", "replace_weights", "trace"]
