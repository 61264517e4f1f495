"""``trace``: a module of PyTorch compiled for the shapes of example inputs, as a module that runs the program.

It is saved by ``torch.jit.save`` and ``torch.save``; a process that loads it imports ``neuronx_cc.torch`` first, and
needs no compiler. ``torch.load`` takes it with ``weights_only=True``: what is stored are bytes, weights and a line of
JSON.
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import torch
from torch.utils import _pytree as pytree

from neuronx_cc import runtime
from neuronx_cc.driver.frontends.torch.arrays import torch_dtype
from neuronx_cc.driver.frontends.torch.export import LoweredProgram, exported, lower_exported
from neuronx_cc.driver.frontends.torch.lowering import CompilerArgs, compile_lowered
from neuronx_cc.driver.frontends.torch.programs import bytes_of, keep, loaded, run, with_fixed
from neuronx_cc.ir.errors import RunError, UsageError
from neuronx_cc.runtime import Executable


def trace(
    model: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    example_inputs: Any,
    compiler_args: CompilerArgs = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    inline_weights_to_neff: bool = True,
) -> "NeuronModule":
    """Compile ``model`` for the shapes of ``example_inputs``: a tensor, or a tuple of its arguments.

    ``compiler_args`` are options of ``neuronx-cc compile``: a command line, its words, or keywords. With
    ``inline_weights_to_neff=False`` weights are parameters of the program, which may be replaced. Raises what
    ``torch.export.export`` raises for models that it cannot export, UsageError for wrong options, CompileError for what
    does not compile.
    """
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    else:
        given = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
        program = exported(model, given, kwargs or {})
    lowered = lower_exported(program, inline_weights_to_neff)
    neff = compile_lowered(lowered.lowered, compiler_args)
    data = bytes_of(neff)
    keep(data, runtime.load(neff))
    form = _form(program, lowered) | {"parameters": _parameters(model)}
    return NeuronModule(data, list(lowered.weights.values()), form)


def _parameters(model: Any) -> list[str]:
    """Names of the arguments that may come by place or by name, as far as they are known."""
    if isinstance(model, torch.export.ExportedProgram):
        return []
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # functions of C tell nothing
        return []
    return [each.name for each in found if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


def _form(program: torch.export.ExportedProgram, lowered: LoweredProgram) -> dict[str, Any]:
    """How arguments and results are nested, as JSON; results that cannot be told so are a flat tuple."""
    inputs, outputs = program.call_spec.in_spec, program.call_spec.out_spec
    return {
        "inputs": pytree.treespec_dumps(inputs),
        "outputs": _dumped(outputs),
        "names": lowered.input_names,
        "used": lowered.used,
        "fixed": {str(place): value for place, value in lowered.lowered.fixed.items()},
        "weights": list(lowered.weights),
    }


def _dumped(spec: Any) -> str | None:
    try:
        return str(pytree.treespec_dumps(spec))
    except (NotImplementedError, ValueError):
        return None


FORM = "form_json"
"""The buffer with a module's form."""


class NeuronModule(torch.nn.Module):
    """A compiled program with its weights, called like the module that it came from. It has no gradients."""

    def __init__(self, neff: torch.Tensor, weights: Sequence[torch.Tensor], form: Mapping[str, Any]) -> None:
        super().__init__()
        self.form = dict(form)
        self.register_buffer("neff", neff)
        # scripted modules keep buffers alone
        self.register_buffer(FORM, torch.frombuffer(bytearray(json.dumps(self.form).encode()), dtype=torch.uint8))
        self.weight_names = list(form["weights"])
        for number, weight in enumerate(weights):
            self.register_buffer(f"weight_{number}", weight.detach())
        self._inputs = pytree.treespec_loads(form["inputs"])
        self._outputs = pytree.treespec_loads(form["outputs"]) if form["outputs"] else None

    @classmethod
    def of_scripted(cls, module: torch.jit.ScriptModule) -> "NeuronModule":
        """The module that ``torch.jit.save`` wrote, of what ``torch.jit.load`` gives; both have the same weights.

        Raises UsageError EARG906 for scripted modules without a program.
        """
        buffers = dict(module.named_buffers())
        if not {"neff", FORM} <= set(buffers):
            raise UsageError(
                "EARG906", "this scripted module holds no compiled program", "trace the module, and save that"
            )
        form = json.loads(bytes(buffers[FORM].numpy()))
        return cls(buffers["neff"], [buffers[f"weight_{n}"] for n in range(len(form["weights"]))], form)

    @property
    def weights(self) -> list[torch.Tensor]:
        """The weights that are parameters of the program, in order."""
        return [self.get_buffer(f"weight_{number}") for number in range(len(self.weight_names))]

    def replace_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take other values, by their names in the module's ``state_dict``; raises UsageError EARG906 for others."""
        for name, value in weights.items():
            if name not in self.weight_names:
                known = ", ".join(self.weight_names[:4]) or "none: trace with inline_weights_to_neff=False"
                raise UsageError("EARG906", f"the program has no weight {name!r} as a parameter", f"it has {known}")
            place = self.get_buffer(f"weight_{self.weight_names.index(name)}")
            if place.shape != value.shape:
                sizes = f"{list(place.shape)}, not {list(value.shape)}"
                raise UsageError(
                    "EARG906", f"weight {name!r} has the shape {sizes}", "trace the model with such weights"
                )
            place.copy_(value.detach())

    @property
    def executable(self) -> Executable:
        """The loaded program: reports, times, traces."""
        return loaded(self.get_buffer("neff"))

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self.nested(run(self.get_buffer("neff"), self.flat(arguments, keywords)))

    def nested(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The results of the program as the model returns them."""
        fixed = {int(place): value for place, value in self.form["fixed"].items()}
        results = with_fixed(tensors, fixed)
        return tuple(results) if self._outputs is None else pytree.tree_unflatten(results, self._outputs)

    def flat(self, arguments: Any, keywords: Any) -> list[torch.Tensor]:
        """The inputs of the program for a call. Raises RunError ERUN001 for arguments that are nested otherwise."""
        leaves, spec = pytree.tree_flatten((arguments, keywords))
        if spec != self._inputs:
            leaves, spec = pytree.tree_flatten(self._as_traced(arguments, keywords))
        if spec != self._inputs:
            names = ", ".join(self.form["names"])
            raise RunError("ERUN001", "the arguments are nested otherwise than those traced", f"it takes {names}")
        return [leaf for leaf, used in zip(leaves, self.form["used"], strict=True) if used] + self.weights

    def _as_traced(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that came by place where the model was traced by name, and the other way round."""
        names = self.form.get("parameters", [])
        given = {**dict(zip(names, arguments, strict=False)), **keywords}
        by_place, by_name = self._inputs.children()
        first = names[: by_place.num_children]
        if len(given) != len(arguments) + len(keywords) or {*first, *by_name.context} != set(given):
            return tuple(arguments), dict(keywords)
        return tuple(given[name] for name in first), {name: given[name] for name in by_name.context}

    def scripted(self) -> torch.jit.ScriptModule:
        """The same as TorchScript: results nested as TorchScript has types for, or a flat tuple of the tensors."""
        examples = [torch.zeros(shape, dtype=dtype) for shape, dtype in self._signature()]
        leaves = iter(examples)
        flat = [next(leaves) if used else None for used in self.form["used"]]
        arguments, keywords = pytree.tree_unflatten(flat, self._inputs)
        given = {"example_kwarg_inputs": _named(arguments, keywords)} if keywords else {"example_inputs": arguments}
        flat_results = {**self.form, "outputs": None, "fixed": {}}
        with torch.no_grad():
            try:
                return torch.jit.trace(self, check_trace=False, strict=False, **given)
            except RuntimeError:  # TorchScript has no type for such results
                plain = NeuronModule(self.get_buffer("neff"), self.weights, flat_results)
                return torch.jit.trace(plain, check_trace=False, strict=False, **given)

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """Of the inputs that are tensors."""
        return [shape for shape, _ in self._signature()]

    def _signature(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        found = sorted((v for v in self.executable.program.variables if v.kind == "input"), key=lambda v: v.index)
        return [(tuple(v.dims), torch_dtype(v.dtype)) for v in found[: sum(self.form["used"])]]

    def save(self, path: str | os.PathLike[str], _extra_files: Any = None) -> None:
        """What ``torch.jit.save`` calls."""
        self.scripted().save(os.fspath(path), _extra_files=_extra_files or {})

    def save_to_buffer(self, _extra_files: Any = None) -> bytes:
        """The same, for files that are open."""
        data: bytes = self.scripted().save_to_buffer(_extra_files=_extra_files or {})
        return data

    def write_neff(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the program alone, for ``neuronx-cc run`` and ``report``. Raises OSError."""
        data = self.get_buffer("neff").numpy().tobytes()
        if hasattr(file, "write"):
            file.write(data)
        else:
            with open(file, "wb") as opened:
                opened.write(data)

    def __reduce__(self) -> Any:
        return _restored, (self.get_buffer("neff"), self.weights, json.dumps(self.form))


def _named(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    if arguments:
        raise UsageError(
            "EARG906",
            "TorchScript takes either positional or named arguments, and the module was traced with both",
            "save it with torch.save, or trace it with one kind of arguments",
        )
    return dict(keywords)


def _restored(neff: torch.Tensor, weights: list[torch.Tensor], form: str) -> NeuronModule:
    return NeuronModule(neff, weights, json.loads(form))


torch.serialization.add_safe_globals([_restored])
