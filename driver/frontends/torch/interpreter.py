"""Interprets a graph of ATen operators on JAX's values: one row of the table for each node.

Nodes that compute sizes are Python arithmetic, so a graph with symbolic sizes is interpreted for the numbers it is
called with. Results have the element types that torch has inferred.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._ops import HigherOrderOperator, OpOverload

from neuronx_cc.driver.frontends.torch import flex, table
from neuronx_cc.driver.frontends.torch.arrays import DTYPES, numpy_dtype, to_numpy
from neuronx_cc.driver.frontends.torch.checks import CHECKS
from neuronx_cc.driver.frontends.torch.elementwise import converted
from neuronx_cc.driver.frontends.torch.places import Place, place_of, within
from neuronx_cc.driver.frontends.torch.registry import Cast, Row, find, is_array, promoted
from neuronx_cc.ir.errors import CompileError, NeuronError

assert table.FAMILIES

PLACEMENT = frozenset(["device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad", "generator"])
"""Keywords that say where and how torch keeps a tensor."""

SIZES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda x, dim: x.shape[dim],
    "aten.sym_size.default": lambda x: list(x.shape),
    "aten.sym_numel.default": lambda x: x.size,
    "aten.sym_stride.int": lambda x, dim: int(np.prod(x.shape[dim % x.ndim + 1 :])),
    "aten.sym_storage_offset.default": lambda x: 0,
}
STRIDED = ("as_strided", "as_strided_copy", "as_strided_scatter")
"""Operators that count in memory, which rows know of dense arrays alone."""
FACTORIES = frozenset(
    [f"aten.{name}_window" for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")]
    + ["aten.fft_fftfreq", "aten.fft_rfftfreq", "aten.range"]
)
"""Operators of numbers alone, whose values torch computes when the graph is lowered."""
PYTHON = ("_operator", "math", "builtins", "torch")
"""Modules of the functions that compute sizes."""


class Interpreter:
    """One graph with its submodules and constants; ``keep`` says what a tensor of the module becomes."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.places: dict[str, Place] = {}
        self._draws = 0

    def run(self, values: Sequence[Any], key: Any = None) -> Any:
        """What the graph returns for its placeholders' ``values``. Raises CompileError EVRF001 with the place."""
        environment: dict[torch.fx.Node, Any] = {}
        given = iter(values)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                value = next(given)
                environment[node] = jnp.asarray(value) if is_array(value) else value
            elif node.op == "get_attr":
                environment[node] = self._attribute(str(node.target))
            elif node.op == "output":
                return torch.fx.map_arg(node.args[0], environment.__getitem__)
            else:
                place = place_of(node)
                arguments = torch.fx.map_arg(node.args, environment.__getitem__)
                keywords = torch.fx.map_arg(node.kwargs, environment.__getitem__)
                environment[node] = within(place, lambda: self._call(node, place, arguments, keywords, key))  # noqa: B023
        raise AssertionError("a graph without an output")

    def _attribute(self, name: str) -> Any:
        value: Any = self.module
        for part in name.split("."):
            value = getattr(value, part)
        return jnp.asarray(to_numpy(value)) if isinstance(value, torch.Tensor) else value

    def _call(self, node: torch.fx.Node, place: Place, arguments: Any, keywords: Any, key: Any) -> Any:
        target: Any = node.target
        name = str(target)
        if isinstance(target, HigherOrderOperator):
            return HIGHER[target.name()](self, key, *arguments, **keywords)
        if not isinstance(target, OpOverload):
            return target(*arguments, **keywords)
        if name in CHECKS:
            return None
        if name in SIZES:
            return SIZES[name](*arguments, **keywords)
        if name.rpartition(".")[0] in FACTORIES:
            return jnp.asarray(to_numpy(target(*arguments, **{**keywords, "device": "cpu"})))
        found = find(name)
        assert found is not None, name
        try:
            return _fitted(self._apply(found, node, arguments, keywords, key), node.meta.get("val"))
        except NeuronError:
            raise
        except NotImplementedError as error:
            raise CompileError("EVRF001", f"{name}: {error}", remedy_of(target), place.loc) from error
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise CompileError(
                "EVRF001", f"{name} cannot be lowered: {type(error).__name__}: {text}", REMEDY, place.loc
            ) from error

    def _apply(self, found: Row, node: torch.fx.Node, arguments: Any, keywords: Any, key: Any) -> Any:
        if str(node.target).split(".")[1] in STRIDED:
            _refuse_other_strides(node.all_input_nodes[0].meta.get("val"))
        plain = _plain(list(arguments))
        named = {name: _plain(value) for name, value in keywords.items() if name not in PLACEMENT}
        if found.draws:
            if key is None:
                raise NotImplementedError("it draws random numbers, and a compiled file has no generator")
            self._draws += 1
            plain.insert(0, jax.random.fold_in(key, self._draws))
        if found.cast is not Cast.NONE:
            leaves = [value for value in (*plain, *named.values()) if is_array(value) or isinstance(value, int | float)]
            meta = node.meta.get("val")
            wanted = numpy_dtype(meta.dtype) if found.cast is Cast.RESULT and _is_tensor(meta) else promoted(leaves)
            plain = [_cast(value, wanted) for value in plain]
            named = {name: _cast(value, wanted) for name, value in named.items()}
        return found.function(*plain, **named)


REMEDY = "compute this part otherwise, or leave it to the CPU: torch.compiler.disable"
BY_VALUES = {
    "nonzero": "torch.nonzero_static with a size has one shape, torch.where(mask, x, y) needs none of the indices",
    "index": "keep all elements and choose by torch.where, or weigh them by the mask",
    "index_put": "torch.where(mask, values, x), with values of the shape of x",
    "masked_select": "keep all elements and choose by torch.where, or weigh them by the mask",
    "_unique2": "sort, and compare neighbours",
    "unique_dim": "sort, and compare neighbours",
    "unique_consecutive": "compare neighbours",
    "bincount": "torch.zeros(most).scatter_add(0, x, torch.ones(...)) with a number of bins",
    "_local_scalar_dense": "keep it a tensor: no .item(), no int(tensor), no size that comes from a value",
    "equal": "torch.all(x == y) is a tensor",
    "repeat_interleave": "give output_size, or repeat by an index that does not depend on values",
}
"""Operators whose results' shape, or the program itself, would depend on values, and what to write instead."""


def _refuse_other_strides(meta: Any) -> None:
    if _is_tensor(meta) and not (meta.is_contiguous() and meta.storage_offset() == 0):
        raise NotImplementedError(
            "strides of a tensor that does not lie dense in its memory, row by row from its start"
        )


def _cast(value: Any, dtype: Any) -> Any:
    return converted(jnp.asarray(value), dtype) if is_array(value) and value.dtype != dtype else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _plain(value: Any) -> Any:
    """Arguments as rows take them."""
    if isinstance(value, torch.dtype):
        return numpy_dtype(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, torch.device | torch.layout | torch.memory_format) else value


def _fitted(value: Any, meta: Any) -> Any:
    """``value`` in the element type, and of the shape, that torch has inferred."""
    if isinstance(meta, list | tuple) and isinstance(value, list | tuple):
        return [_fitted(each, other) for each, other in zip(value, meta, strict=False)]
    if not _is_tensor(meta) or value is None:
        return value
    array = jnp.asarray(value)
    shape = tuple(meta.shape)
    if all(isinstance(size, int) for size in shape) and array.shape != shape:
        raise AssertionError(f"shape {list(array.shape)} where torch has {list(shape)}")
    wanted = DTYPES.get(meta.dtype)
    return array if wanted is None or array.dtype == wanted else converted(array, wanted)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _cond(above: Interpreter, key: Any, predicate: Any, yes: Any, no: Any, operands: Sequence[Any] = ()) -> Any:
    def branch(module: Any) -> Callable[..., Any]:
        return lambda *values: _listed(Interpreter(module).run(values, key))

    if isinstance(predicate, bool):
        return branch(yes if predicate else no)(*operands)
    return jax.lax.cond(jnp.asarray(predicate).astype(bool).reshape(()), branch(yes), branch(no), *operands)


def _while(above: Interpreter, key: Any, test: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> Any:
    def go_on(values: Sequence[Any]) -> Any:
        return _listed(Interpreter(test).run([*values, *more], key))[0].reshape(())

    def step(values: Sequence[Any]) -> Any:
        return _listed(Interpreter(body).run([*values, *more], key))

    return jax.lax.while_loop(go_on, step, [jnp.asarray(value) for value in carried])


def _scan(above: Interpreter, key: Any, step: Any, start: Sequence[Any], rows: Sequence[Any], more: Any = ()) -> Any:
    def body(carry: Sequence[Any], row: Sequence[Any]) -> Any:
        results = _listed(Interpreter(step).run([*carry, *row, *more], key))
        return results[: len(start)], results[len(start) :]

    carry, made = jax.lax.scan(body, [jnp.asarray(value) for value in start], list(rows))
    return [*carry, *made]


def _map(above: Interpreter, key: Any, step: Any, rows: Sequence[Any], more: Sequence[Any] = ()) -> Any:
    return jax.lax.map(lambda row: _listed(Interpreter(step).run([*row, *more], key)), list(rows))


def _as_function(module: Any) -> Callable[..., Any]:
    """A graph with one result."""
    return lambda *values: _listed(Interpreter(module).run(values))[0]


def _flex(above: Interpreter, key: Any, query: Any, keys: Any, values: Any, changed: Any, *how: Any) -> Any:
    kept, scale, _, buffers, mask_buffers = how[0][-1], *how[1:5]
    return flex.forward(_as_function(changed), _as_function(kept), scale, query, keys, values, buffers, mask_buffers)


HIGHER: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "flex_attention": _flex,
    "map_impl": _map,
    "while_loop": _while,
    "scan": _scan,
    "wrap_with_set_grad_enabled": lambda above, key, on, module, *values: Interpreter(module).run(values, key),
    "with_effects": lambda above, key, token, *_, **more: [token, None],
    "wrap_with_autocast": lambda above, key, *rest: Interpreter(rest[4]).run(rest[5:], key),
}
"""Operators that take graphs."""


def modules_of(module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graph and those within."""
    return [each for each in module.modules() if isinstance(each, torch.fx.GraphModule)]


def draws(module: torch.fx.GraphModule) -> bool:
    """Whether the graph draws random numbers."""
    targets = [node.target for each in modules_of(module) for node in each.graph.nodes]
    rows = [find(str(target)) for target in targets if isinstance(target, OpOverload)]
    return any(row is not None and row.draws for row in rows)


def uses_double(module: torch.fx.GraphModule) -> bool:
    """Whether the graph computes in FP64. Python's numbers are such arrays for torch, without dims, on their way."""
    wide = (torch.float64, torch.complex128)
    nodes = [node for each in modules_of(module) for node in each.graph.nodes]
    shown = {node for each in nodes if each.op == "output" for node in each.all_input_nodes}
    found = [(node in shown, leaf) for node in nodes for leaf in _listed(node.meta.get("val"))]
    return any(_is_tensor(leaf) and leaf.dtype in wide and (leaf.ndim or seen) for seen, leaf in found)


def refuse_unknown(module: torch.fx.GraphModule) -> None:
    """Raise CompileError EVRF001 with all nodes that have no row."""
    lines: dict[str, None] = {}
    remedies: dict[str, None] = {}
    first: torch.fx.Node | None = None
    for each in modules_of(module):
        for node in each.graph.nodes:
            if node.op == "call_function" and not _is_known(node.target, node.args):
                first = first or node
                place = str(place_of(node))
                target = _computed_by(node)
                lines[f"{target}" + (f", {place}" if place else "")] = None
                remedies[remedy_of(target)] = None
    if first is None:
        return
    if len(lines) == 1:
        name = next(iter(lines)).split(",", 1)[0]
        raise CompileError(
            "EVRF001", f"operator {name} of PyTorch is not supported", next(iter(remedies)), place_of(first).loc
        )
    listed = "\n".join(f"  {line}" for line in lines)
    raise CompileError(
        "EVRF001", f"{len(lines)} operators of PyTorch are not supported:\n{listed}", "; ".join(remedies)
    )


def _computed_by(node: torch.fx.Node) -> Any:
    """The operator of a node, also of one that stands in order with other effects."""
    return node.args[1] if str(node.target) == "with_effects" else node.target


def remedy_of(target: Any) -> str:
    """What to write instead of an operator."""
    return BY_VALUES.get(str(target).split(".")[1], REMEDY) if isinstance(target, OpOverload) else REMEDY


def _is_known(target: Any, arguments: Sequence[Any]) -> bool:
    if isinstance(target, HigherOrderOperator):
        # of what has effects, checks alone can be left out
        return target.name() in HIGHER and (target.name() != "with_effects" or str(arguments[1]) in CHECKS)
    if isinstance(target, OpOverload):
        name = str(target)
        known = name in SIZES or name in CHECKS or name.rpartition(".")[0] in FACTORIES
        return known or find(name) is not None
    return getattr(target, "__module__", None) in PYTHON
