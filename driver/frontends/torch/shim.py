"""What scripts written for ``torch_neuronx`` call: ``from neuronx_cc import torch_neuronx``.

``trace`` takes that function's arguments and names those that have no effect here; ``DataParallel`` splits a batch over
simulated cores that run one traced module, also one that ``torch.jit.load`` gives.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
}
"""Arguments of ``torch_neuronx.trace`` that change nothing, and why."""
ABSENT = {
    "BucketModelConfig": "neuronx_cc.torch.bucketed(model, [inputs of each size]) is one module for all",
    "bucket_model_trace": "neuronx_cc.torch.bucketed(model, [inputs of each size]) is one module for all",
    "PartitionerConfig": "the whole model is compiled, or refused with the names of its operators",
    "analyze": "neuronx_cc.torch.trace names all operators that are not supported at once",
    "xla_impl": "models are traced by torch.export",
}
"""Names of ``torch_neuronx`` that are not here, and what to do instead."""


def trace(
    func: torch.nn.Module | Callable[..., Any],
    example_inputs: Any,
    *more: Any,
    compiler_args: CompilerArgs = None,
    inline_weights_to_neff: bool = True,
    input_output_aliases: Mapping[Any, int] | None = None,
    **others: Any,
) -> NeuronModule:
    """``neuronx_cc.torch.trace``; other arguments of ``torch_neuronx.trace`` are named in one warning."""
    if more:
        raise UsageError("EARG906", "arguments after the example inputs go by name", "compiler_args=...")
    if input_output_aliases:
        raise UsageError(
            "EARG906",
            "input_output_aliases would keep results as the state of the module, which has none here",
            "pass the state as an input, and take the new one from the results",
        )
    for name in others:
        if name not in WITHOUT_EFFECT:
            raise UsageError("EARG901", f"trace takes no argument {name!r}")
    _without_effect([f"{name} ({WITHOUT_EFFECT[name]})" for name, value in others.items() if value])
    return modules.trace(func, example_inputs, compiler_args, inline_weights_to_neff=inline_weights_to_neff)


def _without_effect(given: Sequence[str]) -> None:
    if given:
        LOG.warning("without effect: %s", "; ".join(given))


def _module(model: Any) -> NeuronModule:
    if isinstance(model, torch.jit.ScriptModule):
        return NeuronModule.of_scripted(model)
    if isinstance(model, NeuronModule):
        return model
    raise UsageError("EARG906", f"a {type(model).__name__} is no traced module", "trace it first")


def replace_weights(
    model: NeuronModule | torch.jit.ScriptModule, weights: torch.nn.Module | Mapping[str, torch.Tensor]
) -> None:
    """Other weights for a module traced with ``inline_weights_to_neff=False``."""
    _module(model).replace_weights(weights.state_dict() if isinstance(weights, torch.nn.Module) else weights)


def dynamic_batch(model: NeuronModule | torch.jit.ScriptModule) -> "DataParallel":
    """``model`` for any batch, in parts of the batch that it was traced for, one after the other."""
    return DataParallel(model, [0])


def async_load(model: Any, enable: bool = True) -> None:
    """Without effect: programs are loaded at their first call."""
    _without_effect(["async_load (programs are loaded at their first call)"])


lazy_load = async_load


class experimental:
    """Where programs are put, which changes nothing here: each runs on simulated cores of its own."""

    @staticmethod
    def set_neuron_cores(model: Any, start_nc: int = -1, nc_count: int = -1) -> None:
        """Without effect."""
        _without_effect(["cores (each program runs on simulated cores of its own)"])

    set_multicore = set_neuron_cores

    @staticmethod
    @contextmanager
    def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
        """Without effect."""
        experimental.set_neuron_cores(None)
        yield

    multicore_context = neuron_cores_context


class DataParallel(torch.nn.Module):
    """Calls ``model`` on parts of the batch, each as long as the batch that it was traced for.

    The parts are dealt out over as many simulated cores as there are ``device_ids``, which run at the same time. The
    last part is filled up with zeros, and the results cut back, so the model must treat rows apart. Without dynamic
    batching, and for another dim than the first, the batch must be one part for each core.
    """

    def __init__(
        self,
        model: NeuronModule | torch.jit.ScriptModule,
        device_ids: Sequence[Any] | None = None,
        dim: int = 0,
        set_dynamic_batching: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.dim = _module(model), dim
        self.device_ids = list(range(CORES) if device_ids is None else device_ids)
        self.dynamic = set_dynamic_batching and dim == 0
        self.num_workers = len(self.device_ids)
        """Threads of the vendor's; without effect."""
        if not 0 < len(set(map(str, self.device_ids))) == len(self.device_ids) <= MAX_DEVICES:
            raise UsageError(
                "EARG906",
                f"device_ids are {self.device_ids}, expected 1 to {MAX_DEVICES} cores, each once",
                f"the default is the {CORES} cores of a chip",
            )
        self._cores: list[Executable] = []

    def disable_dynamic_batching(self) -> None:
        """From now on the batch must be one part for each core."""
        self.dynamic = False

    def forward(self, *inputs: torch.Tensor) -> Any:
        part, whole = self.model.input_shapes[0][self.dim], self._batch(inputs)
        found = execute_apart(
            self._programs(),
            [
                self.model.flat(tuple(_part(each, self.dim, start, part) for each in inputs), {})
                for start in range(0, whole, part)
            ],
        )
        leaves, specs = zip(*(pytree.tree_flatten(self.model.nested(each)) for each in found), strict=True)
        joined = [self._joined(same, part, whole) for same in zip(*leaves, strict=True)]
        return pytree.tree_unflatten(joined, specs[0])

    def _batch(self, inputs: Sequence[torch.Tensor]) -> int:
        """The length of the batch. Raises RunError ERUN001 where inputs differ in it, or it does not fit."""
        part = self.model.input_shapes[0][self.dim]
        lengths = sorted({int(each.shape[self.dim]) for each in inputs})
        if len(lengths) != 1 or not lengths[0]:
            raise RunError("ERUN001", f"inputs have batches of {' and '.join(map(str, lengths)) or 'no length'}")
        wanted = part * len(self.device_ids)
        if not self.dynamic and lengths[0] != wanted:
            raise RunError(
                "ERUN001",
                f"a batch of {lengths[0]} is not {len(self.device_ids)} parts of the traced {part}",
                f"without dynamic batching, which dim 0 alone has, the batch is {wanted}",
            )
        return lengths[0]

    def _programs(self) -> list[Executable]:
        """The program with memories of its own for each core; made at the first call."""
        first = self.model.executable
        if not self._cores or self._cores[0] is not first:
            self._cores = [first, *(first.on_another_device() for _ in self.device_ids[1:])]
        return self._cores

    def _joined(self, parts: Sequence[Any], part: int, whole: int) -> Any:
        """Tensors of all parts one after the other; what is no tensor, or has no dims, is that of the first part."""
        tensors = [each for each in parts if isinstance(each, torch.Tensor) and each.ndim]
        if not tensors:
            return parts[0]
        joined = torch.cat(tensors, self.dim)
        extent = joined.shape[self.dim]
        # rows of a part may be several of the result, or fewer
        return joined.narrow(self.dim, 0, extent * whole // (part * len(parts))) if whole % part else joined


def _part(value: torch.Tensor, dim: int, start: int, size: int) -> torch.Tensor:
    """``size`` rows of ``value``, filled up with zeros after its last."""
    there = value.narrow(dim, start, min(size, value.shape[dim] - start))
    missing = list(value.shape)
    missing[dim] = size - there.shape[dim]
    return torch.cat([there, value.new_zeros(missing)], dim) if missing[dim] else there
