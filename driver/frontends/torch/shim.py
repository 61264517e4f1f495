"""What scripts written for ``torch_neuronx`` call: ``from neuronx_cc import torch_neuronx``.

``trace`` takes that function's arguments and names those that have no effect here; ``DataParallel`` splits a batch over
simulated cores that run one traced module.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuronx_cc.driver.frontends.torch import module as modules
from neuronx_cc.driver.frontends.torch.lowering import CompilerArgs
from neuronx_cc.driver.frontends.torch.module import NeuronModule
from neuronx_cc.driver.frontends.torch.programs import execute_apart
from neuronx_cc.ir.errors import RunError, UsageError
from neuronx_cc.ir.targets import MAX_DEVICES
from neuronx_cc.runtime import Executable

LOG = logging.getLogger("neuronx_cc.torch")
CORES = 2
"""NeuronCores of a chip, which ``DataParallel`` takes unless it is told other ones."""
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
    """Calls ``model`` on parts of the batch, each as long as the batch that it was traced for.

    The parts are dealt out over as many simulated cores as there are ``device_ids``, which run at the same time.
    """

    def __init__(self, model: NeuronModule, device_ids: Sequence[Any] | None = None, dim: int = 0) -> None:
        super().__init__()
        self.model, self.dim = model, dim
        self.device_ids = list(range(CORES) if device_ids is None else device_ids)
        if not 0 < len(set(map(str, self.device_ids))) == len(self.device_ids) <= MAX_DEVICES:
            raise UsageError(
                "EARG906",
                f"device_ids are {self.device_ids}, expected 1 to {MAX_DEVICES} cores, each once",
                f"the default is the {CORES} cores of a chip",
            )
        self._cores: list[Executable] = []

    def forward(self, *inputs: torch.Tensor) -> Any:
        batch = self.model.input_shapes[0][self.dim]
        lengths = sorted({each.shape[self.dim] for each in inputs})
        if len(lengths) != 1 or not lengths[0] or lengths[0] % batch:
            raise RunError(
                "ERUN001",
                f"a batch of {' and '.join(map(str, lengths))} does not split into parts of {batch}, which the model "
                "was traced for",
                f"pad the batch to {max(1, -(-lengths[-1] // batch)) * batch}",
            )
        parts = [[each.narrow(self.dim, start, batch) for each in inputs] for start in range(0, lengths[0], batch)]
        found = execute_apart(self._programs(), [self.model.flat(tuple(part), {}) for part in parts])
        leaves, specs = zip(*(pytree.tree_flatten(self.model.nested(each)) for each in found), strict=True)
        joined = [self._joined(same) for same in zip(*leaves, strict=True)]
        return pytree.tree_unflatten(joined, specs[0])

    def _programs(self) -> list[Executable]:
        """The program with memories of its own for each core; made at the first call."""
        first = self.model.executable
        if not self._cores or self._cores[0] is not first:
            self._cores = [first, *(first.on_another_device() for _ in self.device_ids[1:])]
        return self._cores

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Tensors of all parts one behind the other; what is no tensor, or has no dims, is that of the first part."""
        tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.ndim]
        return torch.cat(tensors, self.dim) if tensors else parts[0]
