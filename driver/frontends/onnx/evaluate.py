"""Evaluates an ONNX graph on NumPy and JAX values: what is known stays NumPy, the rest is traced.

Each node runs under ``jax.named_scope`` of its name, so that HLO, reports and errors name it. An operator means what
its row says (``table``); one without a row what its schema's function, or one of the model's own, says.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax
import numpy as np

from neuronx_cc.driver.frontends.onnx import library, table
from neuronx_cc.driver.frontends.onnx.attributes import typed, value_of
from neuronx_cc.driver.frontends.onnx.graphs import label, ordered
from neuronx_cc.driver.frontends.onnx.table import Row, Value, refusal
from neuronx_cc.driver.frontends.onnx.tensors import array_of
from neuronx_cc.driver.frontends.onnx.types import FOLD_ELEMENTS, folding
from neuronx_cc.ir.errors import CompileError, Loc, NeuronError

OLDEST = 13
"""The oldest opset that is supported as a whole; of older ones the operators whose definitions have not changed."""
MAX_DEPTH = 64
"""Functions and subgraphs in one another."""
_NO_LIMIT = 2**31 - 1
"""Inputs of operators that take any number."""
_MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, NotImplementedError)
"""What NumPy and JAX raise for operands that do not fit an operator."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a node stands: the opsets and functions it may use, and the attributes of the function around it."""

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Any]
    folder: str | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0
    path: str = ""
    """Names of the nodes around, for messages."""

    def inner(self, name: str) -> "Frame":
        if self.depth >= MAX_DEPTH:
            raise refusal(f"functions and subgraphs stand in one another more than {MAX_DEPTH} deep", code="EVRF064")
        return replace(self, depth=self.depth + 1, path=f"{self.path}{name}/")


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph as a function of its inputs; it reads the values around it."""

    graph: Any
    scope: Mapping[str, Value]
    frame: Frame

    @property
    def inputs(self) -> list[str]:
        return [value.name for value in self.graph.input]

    @property
    def outputs(self) -> list[str]:
        return [value.name for value in self.graph.output]

    def __call__(self, *values: Value) -> list[Value]:
        if len(values) != len(self.graph.input):
            raise refusal(
                f"the graph {self.graph.name!r} takes {len(self.graph.input)} inputs, is given {len(values)}",
                code="EVRF064",
            )
        own = dict(zip(self.inputs, values, strict=True))
        return graph_values(self.graph, {**self.scope, **own}, self.frame)


def graph_values(graph: Any, scope: Mapping[str, Value], frame: Frame) -> list[Value]:
    """The outputs of ``graph``, whose inputs, and what it reads of graphs around it, are in ``scope``."""
    values = dict(scope)
    for tensor in graph.initializer:
        values.setdefault(tensor.name, array_of(tensor, frame.folder))
    if graph.sparse_initializer:
        raise refusal("sparse initialisers are not supported", "store them dense")
    produced = {name for node in graph.node for name in node.output}
    shadowed = {name: value for name, value in values.items() if name not in produced}
    _run(graph.node, shadowed, frame, f"graph {graph.name!r}")
    return [_found(shadowed, value.name, f"graph {graph.name!r}") for value in graph.output]


def _found(values: Mapping[str, Value], name: str, where: str) -> Value:
    if name not in values:
        raise refusal(f"{where}: nothing defines the output {name!r}", "export the model again", "EVRF064")
    return values[name]


def _run(nodes: Sequence[Any], values: dict[str, Value], frame: Frame, where: str) -> None:
    """Evaluate ``nodes`` in order and add what they define to ``values``."""
    for index, node in ordered(nodes, values, where):
        name = label(node, index)
        with jax.named_scope("".join(c if c.isprintable() else "_" for c in name).strip("/") or node.op_type):
            outputs = _placed(node, name, values, frame)
        if len(outputs) < sum(map(bool, node.output)) and len(outputs) < len(node.output):
            raise _at(refusal(f"gives {len(outputs)} outputs, {len(node.output)} are read"), node, name, frame)
        values.update((key, value) for key, value in zip(node.output, outputs, strict=False) if key)


def _placed(node: Any, name: str, values: Mapping[str, Value], frame: Frame) -> list[Value]:
    """The outputs of a node; errors say which node it is."""
    try:
        return _node(node, name, values, frame)
    except NeuronError as error:
        raise _at(error, node, name, frame) from error.__cause__
    except jax.errors.JAXTypeError as error:
        problem = refusal("needs a value that is known only at run time", "make it a constant", "EMOD025")
        raise _at(problem, node, name, frame) from error
    except _MISFITS as error:
        detail = " ".join(str(error).split())[:300]
        problem = refusal(f"does not fit its inputs: {detail}", code="EVRF064")
        raise _at(problem, node, name, frame) from error


def _at(error: NeuronError, node: Any, name: str, frame: Frame) -> NeuronError:
    if error.loc.op_name:
        return error
    loc = Loc(op_name=f"{frame.path}{name}")
    return type(error)(error.code, f"{node.op_type}: {error.message}", error.remedy, loc)


def _node(node: Any, name: str, values: Mapping[str, Value], frame: Frame) -> list[Value]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    inputs = [values[key] if key else None for key in node.input]
    local = frame.functions.get((domain, node.op_type))
    if local is not None:
        return _function(local, node, inputs, frame, name, {})
    version = frame.opsets.get(domain)
    if version is None:
        raise refusal(f"the model imports no opset of its domain {domain!r}", "export it again", "EVRF064")
    schema = library.schema(node.op_type, version, domain)
    if schema is None:
        raise refusal(
            f"no operator {domain + '.' if domain else ''}{node.op_type} is defined in opset {version}",
            "custom operators need a function of the model that says what they mean",
        )
    _as_defined(schema, node, _given(node, frame))
    row = table.rows().get((domain, node.op_type))
    if row is not None and schema.since_version < row.since:
        raise refusal(
            f"its definition of opset {schema.since_version} is older than that of opset {row.since}",
            f"onnx.version_converter.convert_version(model, {max(row.since, OLDEST)}) brings the model up to date",
        )
    if row is not None:
        attributes = _attributes(node, schema, values, frame, name)
        return _apply(row, inputs, attributes, schema.since_version, len(node.output))
    body = _body_of(schema, node, inputs, version, frame)
    defaults = {key: item.default_value for key, item in schema.attributes.items() if item.default_value.type}
    return _function(body, node, inputs, frame, name, defaults)


def _as_defined(schema: Any, node: Any, given: Mapping[str, Any]) -> None:
    """Raises CompileError EVRF064 where a node's inputs or attributes are others than its operator is defined with."""
    count, least, most = len(node.input), schema.min_input, schema.max_input
    if not least <= count <= most:
        takes = f"{least}" if least == most else f"{least} or more" if most >= _NO_LIMIT else f"{least} to {most}"
        raise refusal(f"takes {takes} inputs, is given {count}", "export the model again", "EVRF064")
    for key, parameter in zip(node.input, schema.inputs, strict=False):
        if not key and parameter.option == schema.FormalParameterOption.Single:
            raise refusal(f"its input {parameter.name!r} is left out", "export the model again", "EVRF064")
    for name, item in schema.attributes.items():
        if name not in given and item.required:
            raise refusal(f"lacks the attribute {name!r}", "export the model again", "EVRF064")
        if name in given and given[name].type != item.type.value:
            raise refusal(f"expected {item.type.name} as attribute {name!r}", "export the model again", "EVRF064")


def _attributes(node: Any, schema: Any, values: Mapping[str, Value], frame: Frame, name: str) -> dict[str, Any]:
    """Attributes by name: the node's own, those of the function around it that it refers to, the schema's defaults."""
    protos = {key: item.default_value for key, item in schema.attributes.items() if item.default_value.type}
    protos.update(_given(node, frame))
    return {key: value_of(proto, lambda graph: Body(graph, values, frame.inner(name)), frame.folder)
            for key, proto in protos.items()}  # fmt: skip


def _given(node: Any, frame: Frame) -> dict[str, Any]:
    found = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in frame.attributes:
            found[attribute.name] = frame.attributes[attribute.ref_attr_name]
    return found


def _apply(row: Row, inputs: list[Value], attributes: dict[str, Any], version: int, count: int) -> list[Value]:
    """The outputs of an operator with a row."""
    unknown = sorted(key for key in attributes if not {key, "**"} & set(row.parameters))
    if unknown:
        raise refusal(f"attribute {', '.join(map(repr, unknown))} is not supported")
    for name, value in zip(row.parameters, inputs, strict=False):
        if name in row.static and not known(value):
            raise refusal(
                f"its input {name!r} is known only at run time, and shapes follow from it",
                "make it a constant; shapes are fixed at compile time (--shape for named dimensions)",
                "EMOD025",
            )
    asked = {"version": version, "count": count}
    keywords = {**attributes, **{key: asked[key] for key in row.asks}}
    if row.foldable and all(map(known, inputs)) and _small(inputs):
        with ExitStack() as stack:
            stack.enter_context(jax.ensure_compile_time_eval())
            if folding.device is not None:
                stack.enter_context(jax.default_device(folding.device))
            stack.enter_context(folding)
            try:
                return [_plain(value) for value in _listed(row.meaning(*inputs, **keywords))]
            except folding.TooLarge:
                pass
    return _listed(row.meaning(*inputs, **keywords))


def _listed(result: Any) -> list[Value]:
    return list(result) if isinstance(result, tuple) else [result]


def _plain(value: Value) -> Value:
    return [_plain(item) for item in value] if isinstance(value, list) else None if value is None else np.asarray(value)


def known(value: Value) -> bool:
    """Whether a value is known at compile time."""
    if isinstance(value, list):
        return all(map(known, value))
    return value is None or isinstance(value, np.ndarray | np.generic)


def _small(inputs: list[Value]) -> bool:
    """Whether no result of one broadcast, product or concatenation of ``inputs`` is large."""
    sizes = [1 if value is None or isinstance(value, list) else value.size for value in inputs]
    return sum(sizes) <= 1024 or prod(max(size, 1) for size in sizes) <= FOLD_ELEMENTS


def _body_of(schema: Any, node: Any, inputs: list[Value], version: int, frame: Frame) -> Any:
    """The function by which a schema defines an operator, as a FunctionProto."""
    onnx = library.library()
    body = None
    if schema.has_function:
        text = schema.get_function_with_opset_version(_nearest(schema.function_opset_versions, version))
        body = onnx.FunctionProto.FromString(text) if text else None
    elif schema.has_context_dependent_function:
        types = [typed(value).SerializeToString() for value in inputs]
        bound = onnx.NodeProto()
        bound.CopyFrom(node)
        del bound.attribute[:]
        for key, proto in _given(node, frame).items():
            copied = bound.attribute.add()
            copied.CopyFrom(proto)
            copied.name = key
        chosen = _nearest(schema.context_dependent_function_opset_versions, version)
        text = schema.get_context_dependent_function_with_opset_version(chosen, bound.SerializeToString(), types)
        body = onnx.FunctionProto.FromString(text) if text else None
    if body is None or not body.node:
        raise refusal("the operator is not supported", "the table of operators is in the guide on ONNX")
    return body


def _nearest(versions: Sequence[int], version: int) -> int:
    """The newest of ``versions`` that is no newer than ``version``, else the oldest."""
    return max((each for each in versions if each <= version), default=min(versions))


def _function(
    body: Any, node: Any, inputs: list[Value], frame: Frame, name: str, defaults: Mapping[str, Any]
) -> list[Value]:
    """The outputs of a node that calls ``body``, a FunctionProto."""
    if len(inputs) > len(body.input):
        raise refusal(f"takes {len(body.input)} inputs, is given {len(inputs)}", code="EVRF064")
    attributes = {**defaults, **{item.name: item for item in body.attribute_proto}, **_given(node, frame)}
    opsets = {("" if item.domain == "ai.onnx" else item.domain): item.version for item in body.opset_import}
    inner = replace(frame.inner(name), opsets={**frame.opsets, **opsets}, attributes=attributes)
    values: dict[str, Value] = dict.fromkeys(body.input)
    values.update(zip(body.input, inputs, strict=False))
    _run(body.node, values, inner, f"function {body.name}")
    asked = list(node.output)[: len(body.output)]
    where = f"function {body.name}"
    return [_found(values, key, where) if used else None for key, used in zip(body.output, asked, strict=False)]


def missing(error: CompileError) -> bool:
    """Whether an error says that the importer lacks something, not that the model is wrong."""
    return error.code in ("EVRF001", "EMOD025", "ESPP004")
