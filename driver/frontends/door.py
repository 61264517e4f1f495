"""One door for all models: whatever a file or an object holds becomes an HLO module, or an error that says what lacks.

Formats are told apart by content (``formats``); the framework that reads one is imported when the first such arrives.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronx_cc import hlo_import
from neuronx_cc.driver import files, jax_objects
from neuronx_cc.driver.frontends.formats import BY_NAME, BYTECODE, Format, detect
from neuronx_cc.driver.frontends.model import Fixed, Model
from neuronx_cc.driver.frontends.sharded import divide, is_sharded
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.ir.errors import CompileError, NeuronError, UsageError

if TYPE_CHECKING:
    from neuronx_cc.ir.hlo import HloModule

SAVED_MODEL = "saved_model.pb"
"""What makes a folder a SavedModel."""
_HERE = "neuronx_cc.driver.frontends"
_WITH_WEIGHTS = frozenset([Format.KERAS, Format.SAVED_MODEL, Format.PT2])
"""Whose weights may be parameters."""
_INSTALL = {
    "keras": "pip install keras",
    "torch": "pip install torch",
    "tensorflow": "pip install tensorflow-cpu",
}


def read(path: str) -> bytes:
    """The bytes of a model file; of a SavedModel's folder those of its graph. Raises UsageError EFIL901."""
    return files.read(str(Path(path) / SAVED_MODEL) if is_saved_model(path) else path, "model file")


def is_saved_model(path: str) -> bool:
    """Whether ``path`` is the folder of a SavedModel."""
    try:
        return (Path(path) / SAVED_MODEL).is_file()
    except (OSError, ValueError):
        return False


def fixed_by(parsed: Parsed) -> Fixed:
    """What ``--shape``, ``--value``, ``--no-inline-weights-to-neff``, ``--constants`` and ``--signature`` fix."""
    inline = parsed.values.get("inline_weights_to_neff") is not False
    words = [parsed.text_or_none(option) or "" for option in ("constants", "signature")]
    return Fixed.of_words(parsed.names("shape"), parsed.names("value"), inline, *words)


def load_module(data: bytes, source: str, fixed: Fixed) -> "HloModule":
    """The module in ``data``, the content of the file ``source`` (empty when it comes from no file).

    Raises UsageError EARG914 when the framework that reads it is not installed, EARG915 for shapes and values that it
    has no use for, and what the readers raise.
    """
    return of_bytes(data, source, fixed).load()


def of_bytes(data: bytes, source: str, fixed: Fixed) -> Model:
    """The same as a ``Model``."""
    return replace(_of_bytes(data, source, fixed), constants=fixed.constants)


def _of_bytes(data: bytes, source: str, fixed: Fixed) -> Model:
    kind = detect(data)
    if not fixed.inline_weights and kind not in _WITH_WEIGHTS:
        raise UsageError(
            "EARG915",
            f"{source or 'the model'} is {kind.value}, whose weights are what it makes of them",
            "weights of .keras files, SavedModels and .pt2 files may be parameters; drop --no-inline-weights-to-neff",
        )
    if fixed.signature and kind is not Format.SAVED_MODEL:
        raise UsageError(
            "EARG915", f"{source or 'the model'} is {kind.value}, which has no signatures", "drop --signature"
        )
    if kind is Format.ONNX:
        importer = _import(f"{_HERE}.onnx.importer")
        folder = str(Path(source).resolve().parent) if source else None
        model: Model = importer.lower(data, source, folder, fixed)
        return model
    if kind is Format.SAVED_MODEL:
        if Path(source).name != SAVED_MODEL and not Path(source).is_dir():
            raise CompileError("EVRF064", f"{source or 'this'} is {kind.value} without its folder", "give the folder")
        folder = source if Path(source).is_dir() else str(Path(source).parent)
        _needs("tensorflow", kind, source)
        saved: Model = _import(f"{_HERE}.tensorflow").of_saved_model(folder, fixed)
        return saved
    if kind is Format.KERAS:
        if not source:
            raise CompileError("EVRF064", f"{kind.value} came as bytes", "give the path of the file")
        _needs("keras", kind, source)
        layers: Model = _import(f"{_HERE}.keras").of_file(source, fixed)
        return layers
    if fixed.shapes or fixed.values:
        names = ", ".join(map(repr, [*fixed.shapes, *fixed.values]))
        raise UsageError("EARG915", f"{source or 'the model'} is {kind.value} of fixed shapes; {names} cannot be set")
    if kind is Format.PICKLE:
        raise CompileError(
            "EVRF064",
            f"{source or 'the model'} is {kind.value}, which holds Python code that is never run here",
            "export the module: torch.export.save(torch.export.export(module, inputs), 'model.pt2')",
        )
    if kind is Format.PT2:
        archive = _import(f"{_HERE}.torch.archive", "torch", kind, source)
        exported: Model = _import(f"{_HERE}.torch.export").of_program(archive.read_pt2(source), source, fixed)
        return exported
    if kind is Format.HLO:
        _as_named(data, source)
    framework = "JAX" if kind is Format.JAX_EXPORT else "HLO"
    code = _exported(data, source) if kind is Format.JAX_EXPORT else data
    if is_sharded(code):
        local, counts = divide(code, source)
        return Model(framework, local, (), (), source, devices=counts)
    return Model(framework, code, (), (), source)


def _as_named(data: bytes, source: str) -> None:
    """Raises CompileError EVRF064 where a file is named like a framework's, and holds nothing that is known."""
    wanted = BY_NAME.get(Path(source).suffix)
    if wanted is None:
        return
    try:
        hlo_import.load_module(data)
    except NeuronError as error:
        found = error.message.rpartition(", found ")[2] if isinstance(error, UsageError) else "damaged or cut off data"
        raise CompileError(
            "EVRF064", f"{source}: expected {wanted.value}, as its name says, found {found}", "write the file again"
        ) from None


def load_model(
    given: Any,
    *arguments: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    inline_weights_to_neff: bool = True,
    constants: str | Mapping[str, Any] = "",
    signature: str = "",
) -> Model:
    """A model of any framework as HLO, which ``neuronx_cc.compile`` takes.

    ``given`` is the path or the bytes of a file that ``neuronx-cc compile`` takes, an ``onnx.ModelProto``, a module or
    exported program of PyTorch, a ``tf.function``, a loaded SavedModel, a Keras model, or one of JAX's objects;
    ``arguments`` are a function's, or a module's.
    ``shapes`` fixes inputs, or dimensions by their names; ``values`` makes inputs constants. With
    ``inline_weights_to_neff=False`` the weights of a Keras, TensorFlow or PyTorch model are parameters after its
    inputs, and the result's ``weights`` has their values by name. ``constants``, an ``.npz`` file or arrays by any name
    of a parameter, become constants of the program. ``signature`` is which function of a SavedModel. Raises what
    ``compile`` raises for files.
    """
    fixed = Fixed(shapes or {}, values or {}, inline_weights_to_neff, constants, signature)
    return replace(_load_model(given, arguments, fixed), constants=constants)


def _load_model(given: Any, arguments: tuple[Any, ...], fixed: Fixed) -> Model:
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        return of_bytes(read(path), path, fixed)
    if isinstance(given, bytes | bytearray | memoryview):
        return of_bytes(bytes(given), "", fixed)
    framework = type(given).__module__.partition(".")[0]
    if framework == "onnx" and hasattr(given, "SerializeToString"):
        return of_bytes(given.SerializeToString(), "", fixed)
    if framework == "tensorflow" and hasattr(given, "signatures"):
        loaded: Model = _import(f"{_HERE}.tensorflow").of_loaded(given, fixed)
        return loaded
    if fixed.signature:
        raise UsageError("EARG915", f"a {type(given).__name__} has no signatures", "drop signature")
    if framework == "tensorflow" and hasattr(given, "get_concrete_function"):
        made: Model = _import(f"{_HERE}.tensorflow").of_function(given, arguments, fixed)
        return made
    if hasattr(given, "stateless_call") and "keras" in sys.modules:
        layers: Model = _import(f"{_HERE}.keras").of_model(given, arguments, fixed)
        return layers
    if "torch" in sys.modules and isinstance(given, sys.modules["torch"].nn.Module):
        return _of_module(given, arguments, fixed)
    if framework == "torch":
        if not hasattr(given, "graph_signature"):
            raise UsageError(
                "EARG906", f"a {type(given).__name__} is no exported program", "torch.export.export(module, inputs)"
            )
        program: Model = _import(f"{_HERE}.torch.export").of_program(given, "", fixed)
        return program
    source = jax_objects.module_of(given, arguments)
    if source is None:
        raise UsageError(
            "EARG906", f"cannot load a {type(given).__name__}", "pass a path, bytes or a framework's model"
        )
    return Model("JAX", source.data, (), ())


def _of_module(module: Any, arguments: tuple[Any, ...], fixed: Fixed) -> Model:
    """A module of PyTorch for ``arguments``."""
    bridge = _import(f"{_HERE}.torch.export")
    if not arguments:
        remedy = "give it examples of its inputs: load_model(module, x)"
        raise UsageError("EARG906", f"the inputs of {type(module).__name__} are not known", remedy)
    made: Model = bridge.of_program(bridge.exported(module, arguments, {}), "", fixed)
    return made


def _exported(data: bytes, source: str) -> bytes:
    """The StableHLO inside a ``jax.export`` artifact: a flatbuffer holds it as bytes after their number."""
    start = data.index(BYTECODE)
    size = int.from_bytes(data[start - 4 : start], "little")
    if start < 4 or start + size > len(data):
        raise CompileError(
            "EVRF064",
            f"{source or 'the artifact'}: expected an artifact of jax.export; {size} bytes of StableHLO are announced, "
            f"{len(data) - start} are there",
            "write it again: it is cut off or damaged",
        )
    return data[start : start + size]


def _needs(package: str, kind: Format, source: str) -> None:
    """Raises UsageError EARG914 when ``package`` is not installed; it is not imported yet."""
    if find_spec(package) is None:
        raise UsageError("EARG914", f"{source} is {kind.value}; reading it needs {package}", _INSTALL[package])


def _import(module: str, package: str = "", kind: Format | None = None, source: str = "") -> Any:
    """``module``; raises UsageError EARG914 when ``package`` is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        if not package:
            raise
        what = f"{source or 'the model'} is {kind.value}; reading it" if kind else "this model"
        raise UsageError("EARG914", f"{what} needs {package} ({error})", _INSTALL[package]) from None
