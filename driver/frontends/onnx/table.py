"""The table of ONNX operators that the importer knows: one row an operator, made where its meaning is written.

``@op("Reshape", static=("shape",))`` above a function of the operator's inputs (in order, absent ones None) and
attributes (by name) makes its row. Values are NumPy arrays where they are known, else JAX's; sequences are lists.
Attributes that older opsets have in place of an input arrive under that input's name. What the schema defines as a
function of other operators needs no row; rows count more, where JAX has a better form.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from neuronx_cc.ir.errors import CompileError

Value = Any
"""A NumPy array (known), a JAX array (traced), a list of values (a sequence), or None (absent)."""
Meaning = TypeVar("Meaning", bound=Callable[..., Any])

FAMILIES = {
    "elementwise": "Arithmetic, comparisons, functions of single elements",
    "shapes": "Shapes and movement",
    "indexing": "Gathers, scatters, selections by index",
    "reductions": "Reductions, softmax, sorting",
    "linear": "Products and convolutions",
    "pooling": "Pooling",
    "normalization": "Normalisation",
    "quantized": "Quantisation",
    "recurrent": "Recurrent layers",
    "images": "Images and regions",
    "signal": "Signals",
    "control": "Control flow, sequences, optional values",
    "randomness": "Random numbers",
    "training": "Optimisers",
    "trees": "Classical machine learning (ai.onnx.ml)",
}
"""Module of this package -> what its operators are about."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operator."""

    name: str
    domain: str
    family: str
    meaning: Callable[..., Any]
    static: tuple[str, ...]
    """Inputs that must be known at compile time."""
    since: int
    """The opset of the oldest definition that it follows; attributes that it does not know are refused anyway."""
    note: str
    """What is not supported of it, if anything."""
    parameters: tuple[str, ...]
    """Names of the inputs and attributes in order; ``*`` takes any number of inputs, ``**`` all attributes."""
    asks: frozenset[str]
    """What else the function wants to know: ``version`` of the definition, ``count`` of outputs in use."""

    @property
    def foldable(self) -> bool:
        """Whether it may be computed at compile time from known inputs."""
        return self.family not in ("control", "randomness")


_ROWS: dict[tuple[str, str], Row] = {}
_ASKS = frozenset(["version", "count"])


def op(
    *names: str, static: tuple[str, ...] = (), since: int = 1, note: str = "", domain: str = ""
) -> Callable[[Meaning], Meaning]:
    """Make the rows of the operators ``names``, all of which the function below means."""

    def register(meaning: Meaning) -> Meaning:
        parameters = inspect.signature(meaning).parameters.values()
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
        listed = tuple(stars.get(p.kind.name, p.name) for p in parameters if p.name not in _ASKS)
        asks = _ASKS & {parameter.name for parameter in parameters}
        family = meaning.__module__.rpartition(".")[2]
        for name in names:
            assert (domain, name) not in _ROWS, name
            _ROWS[domain, name] = Row(name, domain, family, meaning, static, since, note, listed, asks)
        return meaning

    return register


def rows() -> Mapping[tuple[str, str], Row]:
    """(domain, name) -> row of every operator."""
    for family in FAMILIES:
        import_module(f"neuronx_cc.driver.frontends.onnx.{family}")
    return _ROWS


def refusal(message: str, remedy: str = "", code: str = "EVRF001") -> CompileError:
    """An operator that cannot be imported; the interpreter adds the node."""
    return CompileError(code, message, remedy)


def namespace(*values: Value) -> ModuleType:
    """NumPy when all of ``values`` are known, else ``jax.numpy``."""
    import numpy

    if all(value is None or isinstance(value, numpy.ndarray | numpy.generic | int | float) for value in values):
        return numpy
    return import_module("jax.numpy")
