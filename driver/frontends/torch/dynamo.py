"""The ``torch.compile`` backend ``neuron``: forward and backward graphs of AOT autograd, each a program.

A graph with fixed sizes is compiled at once, so that what does not compile is said there; one with symbolic sizes is
compiled for each set of sizes that it meets. Equal graphs are compiled once for the process.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils._python_dispatch import _disable_current_modes

from neuronx_cc import runtime
from neuronx_cc.driver.frontends.torch.arrays import shape_of
from neuronx_cc.driver.frontends.torch.layouts import laid_out, layouts
from neuronx_cc.driver.frontends.torch.lowering import KEY, CompilerArgs, Lowered, compile_lowered, lower_graph
from neuronx_cc.driver.frontends.torch.programs import execute, with_fixed
from neuronx_cc.driver.frontends.torch.table import decompositions
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.runtime import Executable

# dynamo would leave functions that call recurrent layers to the CPU, without a word
torch._dynamo.config.allow_rnn = True

KEPT = 128
"""Programs kept for graphs that are traced anew."""
_known: OrderedDict[str, Executable] = OrderedDict()
_lock = Lock()


def neuron(module: torch.fx.GraphModule, example_inputs: Sequence[Any], **keywords: Any) -> Callable[..., Any]:
    """The backend: ``torch.compile(model, backend="neuron", options={"auto_cast": "matmult"})``.

    Options are those of ``neuronx_cc.compile``, and auto-cast is ``none`` unless asked for. Raises UsageError and
    CompileError, which dynamo passes on inside its own ``BackendCompilerFailed``.
    """
    unknown = sorted(set(keywords) - {"options", "mode"})
    if unknown:
        raise UsageError("EARG901", f"the backend takes no {', '.join(unknown)}", 'give options={"auto_cast": ...}')
    options = keywords.get("options")

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with _disable_current_modes():  # constants of the graph are real ones, which torch's fake mode does not take
            boxed: Callable[..., Any] = make_boxed_func(Graph(graph, inputs, options))
        return boxed

    backend: Any = aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph, decompositions=decompositions())
    compiled: Callable[..., Any] = backend(module, example_inputs)
    return compiled


class Graph:
    """One graph of AOT autograd, and the programs of the sizes that it was called with."""

    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], options: CompilerArgs) -> None:
        self.module, self.options = module, options
        self._programs: dict[tuple[Any, ...], Callable[[Sequence[Any]], list[Any]]] = {}
        self._placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._taken = _taken_out(module)
        if _is_fixed(inputs):
            self._programs[_sizes(inputs)] = self._compiled(inputs)

    def __call__(self, *values: Any) -> list[Any]:
        sizes = _sizes(values)
        if sizes not in self._programs:
            self._programs[sizes] = self._compiled(values)
        results = self._programs[sizes](values)
        known = dict(zip(self._placeholders, values, strict=True))
        for place, node in self._taken.items():
            results[place] = _value(node, known)
        return results

    def _compiled(self, values: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        if not any(node.op == "call_function" for node in self.module.graph.nodes):
            return self._constant
        names = {
            place: node.name
            for place, (node, value) in enumerate(zip(self._placeholders, values, strict=True))
            if isinstance(value, torch.Tensor)
        }
        given = [shape_of(value) if isinstance(value, torch.Tensor) else value for value in values]
        lowered = lower_graph(self.module, given, names)
        program = _program(lowered, self.options)
        wanted = layouts(self.module, values)

        def call(values: Sequence[Any]) -> list[Any]:
            inputs = [values[place] for place in names]
            if lowered.draws:
                inputs.append(torch.randint(0, 2**31, (2,), dtype=torch.int64).numpy().astype(np.uint32))
            return laid_out(with_fixed(execute(program, inputs), lowered.fixed), wanted)

        return call

    def _constant(self, values: Sequence[Any]) -> list[Any]:
        """The results of a graph that computes nothing."""
        known = dict(zip(self._placeholders, values, strict=True))
        result: list[Any] = list(torch.fx.Interpreter(self.module).run(*known.values()))
        return result


def _taken_out(module: torch.fx.GraphModule) -> dict[int, torch.fx.Node]:
    """Place -> node of results that the host has: inputs, such as those that a backward graph reads, and numbers.

    The program neither copies inputs nor computes in FP64: the graph has None there from now on.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = list(output.args[0])
    taken = {n: each for n, each in enumerate(results) if isinstance(each, torch.fx.Node) and _is_the_hosts(each)}
    output.args = ([None if place in taken else each for place, each in enumerate(results)],)
    module.recompile()
    return taken


def _is_the_hosts(node: torch.fx.Node) -> bool:
    """An input, or what follows from Python's numbers alone, which torch has as FP64 without dims."""
    return node.op == "placeholder" or _follows_from_numbers(node)


def _follows_from_numbers(node: torch.fx.Node) -> bool:
    known = node.op in ("placeholder", "call_function")
    return known and _is_number(node) and all(map(_follows_from_numbers, node.all_input_nodes))


def _is_number(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64 and not value.ndim


def _value(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    """Of such a node, where ``known`` has the inputs."""
    if node not in known:
        target: Any = node.target
        arguments, keywords = (torch.fx.map_arg(each, lambda n: _value(n, known)) for each in (node.args, node.kwargs))
        known[node] = target(*arguments, **keywords)
    return known[node]


def _is_fixed(values: Sequence[Any]) -> bool:
    """Whether all sizes are numbers."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    fixed = all(isinstance(size, int) for tensor in tensors for size in tensor.shape)
    return fixed and not any(isinstance(value, torch.SymInt | torch.SymFloat) for value in values)


def _sizes(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in values)


def _program(lowered: Lowered, options: CompilerArgs) -> Executable:
    text = lowered.module.as_text() + repr(options) + KEY
    key = hashlib.sha256(text.encode()).hexdigest()
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
    program = runtime.load(compile_lowered(lowered, options, auto_cast="none"))
    with _lock:
        _known[key] = program
        while len(_known) > KEPT:
            _known.popitem(last=False)
    return program
