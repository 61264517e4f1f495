"""Exported programs of PyTorch: which of a graph's placeholders are inputs, weights and constants.

``lower_exported`` takes what ``torch.export.export`` gives, or ``archive.read_pt2``.
"""

import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.export._trace import _export
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import annotate_fn

import neuronx_cc
from neuronx_cc.driver.frontends.model import Fixed, Model
from neuronx_cc.driver.frontends.torch.arrays import shape_of, to_numpy
from neuronx_cc.driver.frontends.torch.interpreter import draws, remedy_of
from neuronx_cc.driver.frontends.torch.lowering import Lowered, lower_graph
from neuronx_cc.driver.frontends.torch.table import decomposed
from neuronx_cc.ir.errors import NO_LOC, CompileError, Loc, UsageError

TRANSFORMS = "torch._functorch.predispatch"
"""Where torch keeps what ``torch.func`` is in exported programs."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the tracebacks that torch logs of what it raises, and warnings about its own code."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        logger.disabled = before


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """An exported program lowered: parameters are its inputs, then its weights unless they are constants."""

    lowered: Lowered
    input_names: list[str]
    output_names: list[str]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """Those that are parameters, in order, by their names in the module."""
    used: list[bool] = field(default_factory=list)
    """For each input of the program whether it is a tensor."""


def exported(
    model: torch.nn.Module | Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> torch.export.ExportedProgram:
    """``torch.export.export``, of functions too and for one thread at a time: what it traces with is the process's.

    Raises what that raises, UsageError EARG906 for what is no model, and CompileError EVRF001 for programs that
    depend on values of tensors, with the line of the user's code.
    """
    with compile_lock:
        try:
            return _exported(_as_module(model), arguments, dict(keywords))
        except GuardOnDataDependentSymNode as error:
            said = "what the program does depends on a value of a tensor"
            raise CompileError("EVRF001", said, BY_BRANCH, _users_line(error)) from error
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            said = f"operator {error.func} of PyTorch is not supported"
            raise CompileError("EVRF001", said, remedy_of(error.func), _users_line(error)) from error


def _exported(
    module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> torch.export.ExportedProgram:
    """With ``torch.func`` too."""
    try:
        with _without_graphs():
            program = torch.export.export(module, arguments, keywords)
        if not _transforms(program):
            return program
    except (AttributeError, RuntimeError) as error:
        calls = traceback.extract_tb(error.__traceback__)
        if not any("_functorch" in Path(each.filename).parts for each in calls):
            raise
    # of operators below autograd, torch exports what torch.func makes
    return _export(module, arguments, keywords, strict=False, pre_dispatch=False)


@contextmanager
def _without_graphs() -> Iterator[None]:
    """What torch prints, but for the graph so far of what it cannot export: hundreds of lines ahead of the error."""
    printed, graph = StringIO(), ""
    try:
        with redirect_stderr(printed):
            yield
    except BaseException as error:
        graph = f"{error.partial_fx_graph}\n" if hasattr(error, "partial_fx_graph") else ""
        raise
    finally:
        sys.stderr.write(printed.getvalue().replace(graph, "") if graph else printed.getvalue())


def _transforms(program: torch.export.ExportedProgram) -> bool:
    return any(getattr(node.target, "__module__", "") == TRANSFORMS for node in program.graph.nodes)


BY_TRANSFORM = (
    "torch does not lower derivatives by torch.func in exported programs",
    "pass the module itself, to neuronx_cc.torch.trace or neuronx_cc.load_model",
)

BY_BRANCH = (
    "torch.where or torch.cond chooses between tensors, a size must be a number of Python; "
    "distributions check their arguments' values unless they are given validate_args=False"
)


def _users_line(error: BaseException) -> Loc:
    """Of the last call in the traceback that torch and this package do not make themselves."""
    own = tuple(str(Path(str(module.__file__)).parent) for module in (torch, neuronx_cc))
    calls = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in calls if not each.filename.startswith((*own, "<"))]
    return Loc(source_file=theirs[-1].filename, source_line=theirs[-1].lineno or 0) if theirs else NO_LOC


class _Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        # of calls outside of modules, torch keeps the lines in functions with an annotation alone
        self.function = annotate_fn({})(function)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)


def _as_module(model: Any) -> torch.nn.Module:
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "EARG906", "a scripted module has no Python code to export", "pass the module that it was made from"
        )
    if isinstance(model, torch.nn.Module):
        return model
    if callable(model):
        return _Function(model)
    raise UsageError("EARG906", f"cannot trace a {type(model).__name__}", "pass a module or a function")


def of_program(program: torch.export.ExportedProgram, source: str, fixed: Fixed) -> Model:
    """``program`` as HLO with its names; raises what ``lower_exported`` does."""
    made = lower_exported(program, fixed.inline_weights)
    module = made.lowered.module.compiler_ir("hlo").as_serialized_hlo_module_proto()
    weights = {name: to_numpy(value) for name, value in made.weights.items()}
    names = tuple(made.input_names), tuple(made.output_names)
    return Model("PyTorch", bytes(module), *names, source, weights, narrow=made.lowered.fp64_as_fp32)


def lower_exported(program: torch.export.ExportedProgram, inline_weights: bool = True) -> LoweredProgram:
    """``program`` with its weights as constants, or as parameters after the inputs.

    Raises CompileError EMOD025 for dynamic dims and EVRF064 for operators that do not fit,
    EVRF001 for what is not supported: operators, buffers that the program changes.
    """
    _refuse_dynamic(program)
    try:
        with compile_lock, quiet():
            program = decomposed(program)
    except Exception as error:
        if _transforms(program):
            raise CompileError("EVRF001", *BY_TRANSFORM) from error
        # torch computes all shapes anew, and raises what its operators do
        text = " ".join(str(error).split())[:200]
        raise CompileError(
            "EVRF064", f"the program's operators do not fit their operands: {text}", "export the module again"
        ) from error
    signature = program.graph_signature
    if draws(program.graph_module):
        raise CompileError(
            "EVRF001",
            "the program draws random numbers, and a compiled file has no generator",
            "call eval() on the module before it is exported, or pass the numbers as an input",
        )
    results = _without_tokens(program)
    changed = [spec.target for spec in results if spec.kind is not OutputKind.USER_OUTPUT]
    if changed:
        raise CompileError(
            "EVRF001",
            f"the program changes its state: {', '.join(map(str, changed[:4]))}",
            "call eval() on the module before it is exported, or return the state as a result",
        )
    held = {**program.constants, **program.state_dict}
    values: list[Any] = []
    inputs: dict[int, str] = {}
    parameters: dict[int, str] = {}
    weights: dict[str, torch.Tensor] = {}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for place, (node, spec) in enumerate(zip(placeholders, signature.input_specs, strict=True)):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT and isinstance(value, torch.Tensor):
            inputs[place] = node.name
            values.append(shape_of(value))
        elif spec.kind in (InputKind.USER_INPUT, InputKind.TOKEN):
            values.append(getattr(spec.arg, "value", None))
        elif inline_weights or spec.kind is InputKind.CONSTANT_TENSOR:
            values.append(_tensor(held, spec.target))
        else:
            parameters[place] = node.name
            weights[str(spec.target)] = held[str(spec.target)]
            values.append(shape_of(value))
    outputs = [spec.arg for spec in results]
    return LoweredProgram(
        lower_graph(program.graph_module, values, inputs | parameters),
        list(inputs.values()),
        [each.name for each in outputs if not isinstance(each, ConstantArgument)],
        weights,
        [place in inputs for place, spec in enumerate(signature.input_specs) if spec.kind is InputKind.USER_INPUT],
    )


def _without_tokens(program: torch.export.ExportedProgram) -> list[OutputSpec]:
    """What the graph returns but tokens, by which torch orders checks of values; it does not return those any more."""
    (output,) = program.graph.find_nodes(op="output")
    pairs = zip(output.args[0], program.graph_signature.output_specs, strict=True)
    kept = [(node, spec) for node, spec in pairs if spec.kind is not OutputKind.TOKEN]
    output.args = (tuple(node for node, _ in kept),)
    return [spec for _, spec in kept]


def _tensor(held: dict[str, Any], name: str | None) -> np.ndarray[Any, Any]:
    value = held[str(name)]
    if not isinstance(value, torch.Tensor):
        raise CompileError("EVRF001", f"{name} is a {type(value).__name__}, not a tensor", "register it as a buffer")
    return to_numpy(value)


def _refuse_dynamic(program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int):
                raise CompileError(
                    "EMOD025",
                    f"input {node.name} has a dynamic dim: dim {axis} is {size}",
                    "export it without dynamic_shapes, or compile a few sizes: "
                    "neuronx_cc.torch.bucketed(model, [inputs of one size, inputs of another, ...])",
                )
