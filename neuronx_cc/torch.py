"""PyTorch: ``trace``, ``bucketed``, and the ``torch.compile`` backend ``neuron``, which importing this registers too.

Needs the extra ``open-neuronx-cc[torch]``. Scripted modules that hold programs load after this import.
"""

try:
    import torch
except ImportError as problem:
    raise ImportError("neuronx_cc.torch needs PyTorch: pip install 'open-neuronx-cc[torch]'") from problem

from torch._dynamo import list_backends, register_backend

from neuronx_cc.driver.frontends.torch.archive import read_pt2
from neuronx_cc.driver.frontends.torch.buckets import Bucketed, bucketed
from neuronx_cc.driver.frontends.torch.dynamo import neuron
from neuronx_cc.driver.frontends.torch.export import lower_exported
from neuronx_cc.driver.frontends.torch.module import NeuronModule, trace
from neuronx_cc.driver.frontends.torch.programs import last_run

__all__ = ["Bucketed", "NeuronModule", "bucketed", "last_run", "lower_exported", "read_pt2", "trace"]

assert torch
if "neuron" not in list_backends():
    register_backend(neuron, "neuron")
