"""What scripts written for ``torch_neuronx`` call: ``from neuronx_cc import torch_neuronx``.

``trace`` takes that function's arguments and names those that have no effect here; ``DataParallel`` splits a batch over
programs of one traced module, which the simulator runs one after the other.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuronx_cc.driver.frontends.torch import module as modules
from neuronx_cc.driver.frontends.torch.lowering import CompilerArgs
from neuronx_cc.driver.frontends.torch.module import NeuronModule
from neuronx_cc.ir.errors import RunError, UsageError

LOG = logging.getLogger("neuronx_cc.torch")
WITHOUT_EFFECT = {
    "compiler_workdir": "give --dump in compiler_args",
    "partitioner_config": "the whole model is compiled, or refused",
    "cpu_backend": "there is no device to do without",
    "input_output_aliases": "results are new tensors",
}
"""Arguments of ``torch_neuronx.trace`` that change nothing, and why."""


def trace(
    func: torch.nn.Module | Callable[..., Any],
    example_inputs: Any,
    *more: Any,
    compiler_args: CompilerArgs = None,
    inline_weights_to_neff: bool = True,
    **others: Any,
) -> NeuronModule:
    """``neuronx_cc.torch.trace``; other arguments of ``torch_neuronx.trace`` are named in one warning."""
    if more:
        raise UsageError("EARG906", "arguments after the example inputs go by name", "compiler_args=...")
    for name in others:
        if name not in WITHOUT_EFFECT:
            raise UsageError("EARG901", f"trace takes no argument {name!r}")
    given = [f"{name} ({WITHOUT_EFFECT[name]})" for name, value in others.items() if value]
    if given:
        LOG.warning("without effect: %s", "; ".join(given))
    return modules.trace(func, example_inputs, compiler_args, inline_weights_to_neff=inline_weights_to_neff)


def replace_weights(model: NeuronModule, weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
    """Other weights for a module traced with ``inline_weights_to_neff=False``."""
    model.replace_weights(weights.state_dict() if isinstance(weights, torch.nn.Module) else weights)


class DataParallel(torch.nn.Module):
    """Calls ``model`` on parts of the batch, each as long as the batch that it was traced for."""

    def __init__(self, model: NeuronModule, device_ids: Sequence[Any] | None = None, dim: int = 0) -> None:
        super().__init__()
        self.model, self.dim = model, dim
        self.device_ids = list(device_ids or [0])

    def forward(self, *inputs: torch.Tensor) -> Any:
        batch = self.model.input_shapes[0][self.dim]
        length = inputs[0].shape[self.dim]
        if length % batch:
            raise RunError(
                "ERUN001",
                f"a batch of {length} does not split into parts of {batch}, which the model was traced for",
                f"pad the batch to {-(-length // batch) * batch}",
            )
        parts = [
            self.model(*(each.narrow(self.dim, start, batch) for each in inputs)) for start in range(0, length, batch)
        ]
        flat = [pytree.tree_flatten(part) for part in parts]
        joined = [torch.cat(leaves, self.dim) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
        return pytree.tree_unflatten(joined, flat[0][1])
