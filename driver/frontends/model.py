"""What every front end makes of a framework's model: an HLO module with the framework's names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neuronx_cc.ir.errors import CompileError, Loc, UsageError
from neuronx_cc.passes.analysis.devices import state_counts
from neuronx_cc.passes.demote_f64 import demote

if TYPE_CHECKING:
    from neuronx_cc.ir.hlo import HloModule


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the user fixes of a model whose shapes are open."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its dimensions, or symbolic dimension -> its one size."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Input -> its value, a constant of the program; shapes may follow from it."""
    inline_weights: bool = True
    """Weights are constants of the program; else they are parameters after the inputs."""
    constants: str | Mapping[str, Any] = ""
    """An ``.npz`` file of parameters of the module that become constants, or these by name."""
    signature: str = ""
    """Which function of a SavedModel; empty: that for serving, or the only one."""

    @classmethod
    def of_words(
        cls,
        shapes: Sequence[str],
        values: Sequence[str],
        inline_weights: bool = True,
        constants: str = "",
        signature: str = "",
    ) -> "Fixed":
        """From ``NAME=1,128`` words of the command line, a file and a name. Raises UsageError EARG902."""
        numbers = _parsed("--shape", shapes, int), _parsed("--value", values, _number)
        return cls(*numbers, inline_weights, constants, signature)

    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """``of_words`` of these gives the same."""
        return _written(self.shapes), _written(self.values)


@dataclass(frozen=True, slots=True)
class Model:
    """A framework's model as HLO; ``neuronx_cc.compile`` takes it."""

    framework: str
    module: bytes
    """A serialized HloModuleProto, or what else ``hlo_import`` reads."""
    inputs: tuple[str, ...]
    """The framework's names of the parameters, in order; none where the module has them."""
    outputs: tuple[str, ...]
    source: str = ""
    """File that the model came from."""
    weights: Mapping[str, Any] = field(default_factory=dict)
    """Name -> array of the parameters after the inputs, where weights are parameters."""
    importer: bool = False
    """Source lines in the module are those of an importer, not the user's."""
    constants: str | Mapping[str, Any] = ""
    """As of ``Fixed``."""
    devices: tuple[int, int] | None = None
    """Replicas and partitions that run the module, where its format cannot say so."""
    narrow: bool = False
    """The model has no FP64; what its importer computes in it on the way becomes FP32."""

    def load(self) -> "HloModule":
        """The module, its parameters and results called as the framework calls them."""
        from neuronx_cc.hlo_import import load_module

        module = load_module(self.module, self.source)
        module.outputs = self.outputs
        for index, name in enumerate((*self.inputs, *self.weights)):
            module.entry.set_parameter_loc(index, Loc(module.entry.parameter_loc(index).name, name))
        if self.devices is not None:
            state_counts(module, *self.devices)
        if self.narrow:
            demote(module)
        if self.importer:
            _forget_lines(module)
        if self.constants:
            from neuronx_cc.driver.frontends.constants import bind

            bind(module, self.constants)
        return module


def fixed_dims(name: str, declared: Sequence[int | None] | None, fixed: Fixed) -> tuple[int, ...]:
    """The dimensions of an input, all of them known; None are open. Raises CompileError EMOD025, UsageError EARG915."""
    given = fixed.shapes.get(name)
    if given is None:
        if declared is None or None in declared:
            shown = (
                "no declared shape" if declared is None else f"dimensions {', '.join(str(n or '?') for n in declared)}"
            )
            raise CompileError("EMOD025", f"input {name!r} has {shown}", open_remedy(name, declared))
        return tuple(n for n in declared if n is not None)
    if declared is not None and len(given) != len(declared):
        raise UsageError("EARG915", f"input {name!r} has {len(declared)} dimensions, --shape gives {len(given)}")
    for size, known in zip(given, declared or (), strict=False):
        if known is not None and known != size:
            raise UsageError("EARG915", f"input {name!r} has a dimension of {known}, --shape gives {size}")
    return tuple(given)


def open_remedy(name: str, declared: Sequence[int | str | None] | None = None) -> str:
    """What to do about open dimensions: an example that fits those that are known."""
    dims = (1, 128) if declared is None else tuple(size if isinstance(size, int) else 1 for size in declared)
    words = ",".join(map(str, dims))
    return f"give every dimension: --shape {name}={words} (load_model(..., shapes={{{name!r}: {dims}}}))"


def _forget_lines(module: "HloModule") -> None:
    """Source lines are those of the importer, which nobody wants to see: ops go by the names of the model's nodes."""
    from neuronx_cc.ir.hlo import HloOp, LocAttr

    for computation in module.computations():
        for op in computation.block.ops:
            if isinstance(op, HloOp) and op.loc.source_file:
                op.attributes["loc"] = LocAttr(Loc(op.loc.name, op.loc.op_name))


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _parsed(option: str, words: Sequence[str], convert: Any) -> dict[str, Any]:
    found = {}
    for word in words:
        # names may have "=" in them, numbers have not
        name, equals, text = word.rpartition("=")
        try:
            numbers = [convert(part) for part in text.strip("()[] ").split(",") if part.strip()]
        except ValueError:
            numbers = None
        if not name or not equals or numbers is None:
            raise UsageError("EARG902", f"{option} takes NAME=1,128, found {word!r}", f"{option} input=1,128")
        found[name] = numbers
    return found


def _written(values: Mapping[str, Any]) -> tuple[str, ...]:
    import numpy as np

    return tuple(
        f"{name}={','.join(map(str, np.asarray(value).reshape(-1).tolist()))}" for name, value in values.items()
    )
