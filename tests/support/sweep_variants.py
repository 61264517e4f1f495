"""What the conformance matrix is made of: one op on arrays of its own, as text (see ``sweeps``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from op_cases import Array, shaped

Dims = tuple[int, ...]

SHAPES: tuple[Dims, ...] = (
    (),
    (0,),
    (1,),
    (127,),
    (128,),
    (129,),
    (513,),
    (1031,),
    (3, 0, 5),
    (131, 17),
    (7, 11, 13),
    (2, 1, 3, 1, 2, 1, 2, 1),
)
"""Of ops that take any."""


@dataclass(frozen=True)
class Variant:
    """``result = body``; {0}, {1}, ... stand for the inputs in it, {a}, {b}, ... for the results of ``lines``."""

    label: str
    inputs: tuple[Array, ...]
    result: str
    body: str
    computations: str = ""
    tolerance: float = 0.0
    """Relative to the larger of 1 and the value; 0 for equal."""
    lines: tuple[str, ...] = ()
    """Instructions before it: shape, opcode, operands and attributes."""
    wanted: Array | None = None
    """The result, where jaxlib's CPU client is no oracle."""


def variant(
    opcode: str,
    dtype: str,
    dims: Dims,
    inputs: Sequence[Array],
    attributes: str = "",
    computations: str = "",
    tolerance: float = 0.0,
    wanted: Array | None = None,
) -> Variant:
    """One op on all of ``inputs``."""
    arguments = ", ".join(f"{{{i}}}" for i in range(len(inputs)))
    result = shaped(dtype, dims)
    shapes = " ".join(str(list(array.shape)) for array in inputs)
    body = f"{opcode}({arguments}){escaped(attributes)}"
    label = f"{shapes} -> {result}{attributes}"
    return Variant(label, tuple(inputs), result, body, computations, tolerance, wanted=wanted)


def escaped(text: str) -> str:
    """``text`` with its braces kept apart from placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def braces(values: Sequence[int]) -> str:
    """An HLO list of numbers."""
    return "{" + ",".join(map(str, values)) + "}"
