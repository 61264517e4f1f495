"""TensorFlow: ``tf.function``s and SavedModels, lowered to HLO by TensorFlow's own bridge.

A SavedModel is a program that TensorFlow runs when it loads it (initialisers, tables): load those that you trust.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from neuronx_cc import hlo_import
from neuronx_cc.driver.frontends.model import Fixed, Model, fixed_dims
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError, UsageError

SIGNATURE = "serving_default"


def of_saved_model(folder: str, fixed: Fixed) -> Model:
    """A signature of the SavedModel in ``folder``: the one asked for, that for serving, or the only one.

    Raises UsageError EARG915 when it has no such signature, or several of which none is for serving; CompileError
    EVRF064 when it is damaged, EMOD025 for open dimensions, EVRF001 for what XLA does not compile.
    """
    tf = import_module("tensorflow")
    try:
        loaded = tf.saved_model.load(folder)
    except Exception as error:
        # TensorFlow, protobuf and Keras raise errors of their own
        raise CompileError("EVRF064", f"{folder}: expected a SavedModel: {_said(error)}", "save it again") from None
    return of_loaded(loaded, fixed, folder)


def of_loaded(loaded: Any, fixed: Fixed, folder: str = "") -> Model:
    """The same of what ``tf.saved_model.load`` gives."""
    signatures = dict(loaded.signatures)
    source = folder or "the model"
    if not signatures:
        remedy = "tf.saved_model.save(module, folder, signatures=function)"
        raise CompileError("EVRF064", f"{source} has no signatures", remedy)
    name = fixed.signature or (SIGNATURE if len(signatures) > 1 else next(iter(signatures)))
    if name not in signatures:
        remedy = f"--signature {min(signatures)} (load_model(..., signature={min(signatures)!r}))"
        found = ", ".join(map(repr, sorted(signatures)))
        raise UsageError("EARG915", f"{source} has no signature {name!r}; its signatures are {found}", remedy)
    function = signatures[name]
    return _lowered(function, function.structured_input_signature[1], fixed, folder)


def of_function(function: Any, arguments: Sequence[Any], fixed: Fixed) -> Model:
    """A ``tf.function`` for ``arguments``: tensors, arrays or ``tf.TensorSpec``s; without them for its signature."""
    tf = import_module("tensorflow")
    specs = [
        each if isinstance(each, tf.TensorSpec) else tf.TensorSpec.from_tensor(tf.convert_to_tensor(each))
        for each in arguments
    ]
    try:
        concrete = function.get_concrete_function(*specs)
    except (TypeError, ValueError) as error:
        raise UsageError("EARG906", f"tf.function: {_said(error)}", "give load_model its arguments") from None
    given, keywords = concrete.structured_input_signature
    if not all(isinstance(each, tf.TensorSpec) for each in (*given, *keywords.values())):
        raise UsageError("EARG906", "tf.function: expected tensors as arguments", "wrap it in one of tensors alone")
    names = [spec.name or f"arg{index}" for index, spec in enumerate(given)]
    called = {**dict(zip(names, given, strict=True)), **keywords}
    return _lowered(lambda **values: function(*(values.pop(name) for name in names), **values), called, fixed, "")


def _lowered(function: Callable[..., Any], specs: Mapping[str, Any], fixed: Fixed, source: str) -> Model:
    """``function`` of keywords, its variables frozen, or parameters after them."""
    tf = import_module("tensorflow")
    for name in (*fixed.shapes, *fixed.values):
        if name not in specs or name in fixed.values:
            raise UsageError("EARG915", f"{name!r} cannot be set", f"--shape takes {', '.join(specs) or 'nothing'}")
    closed = {
        name: tf.TensorSpec(
            fixed_dims(name, spec.shape.as_list() if spec.shape.rank is not None else None, fixed), spec.dtype, name
        )
        for name, spec in specs.items()
    }
    concrete = tf.function(lambda **values: function(**values)).get_concrete_function(**closed)
    weights: dict[str, Any] = {}
    if fixed.inline_weights:
        freeze = import_module("tensorflow.python.framework.convert_to_constants").convert_variables_to_constants_v2
        try:
            frozen = freeze(concrete, lower_control_flow=False)
        except ValueError as error:  # a variable that is assigned
            raise _state(_said(error), source) from None
        names = [tensor.name.rpartition(":")[0] for tensor in frozen.inputs]
        if not set(names) <= set(closed):
            raise _state(_users_of_resources(frozen.graph), source)
        compiled = tf.function(lambda *values: frozen(*values), jit_compile=True)
    else:
        names = list(closed)
        compiled = tf.function(lambda *values: function(**dict(zip(names, values, strict=True))), jit_compile=True)
        weights = _captured(compiled.get_concrete_function(*closed.values()))
    try:
        made = compiled.experimental_get_compiler_ir(*(closed[name] for name in names))(stage="hlo_serialized")
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise CompileError(
            "EVRF001",
            f"{source or 'tf.function'}: XLA does not compile it: {_said(error)}",
            "compile the part that does",
        ) from None
    results = concrete.structured_outputs
    keys = sorted(results) if isinstance(results, Mapping) else range(len(tf.nest.flatten(results)))
    outputs = tuple(key if isinstance(key, str) else f"out{key}" for key in keys)
    if weights:
        made_of = hlo_import.load_module(bytes(made)).entry.root.type
        if isinstance(made_of, hlo.TupleType) and len(made_of.data) > len(outputs):
            # XLA returns the new values of variables after the results
            raise _state("a variable is assigned", source)
    return Model("TensorFlow", bytes(made), tuple(names), outputs, source, weights)


def _state(said: str, source: str) -> CompileError:
    """For handles that freezing leaves: tables, and variables that are assigned."""
    text = f"{source or 'tf.function'}: it reads or changes what is no constant: {said}"
    return CompileError("EVRF001", text, "look up outside of the model, and pass state as an input and a result")


def _users_of_resources(graph: Any) -> str:
    users = {each.type for each in graph.get_operations() if any(one.dtype.name == "resource" for one in each.inputs)}
    return ", ".join(sorted(users - {"Identity"}))


def _captured(concrete: Any) -> dict[str, Any]:
    """Name -> array of what a function reads from outside, in the order of its parameters."""
    known = {id(variable.handle): variable for variable in concrete.graph.variables}
    found: dict[str, Any] = {}
    for number, captured in enumerate(concrete.captured_inputs):
        variable = known.get(id(captured))
        base = f"captured{number}" if variable is None else variable.name.rpartition(":")[0] or variable.name
        name, count = base, 1
        while name in found:
            name, count = f"{base}_{count}", count + 1
        found[name] = (captured if variable is None else variable).numpy()
    return found


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
