"""Rows of the table of operators: what each ATen operator computes, as a function of JAX arrays.

A row has ATen's name, with or without its overload (``sum.dim_IntList`` or ``sum``), and takes ATen's arguments: arrays
for tensors, NumPy types for torch's, no device, layout or memory format. Its results are converted to the element types
that torch has inferred, so a row need not end in the right one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax.numpy as jnp
import numpy as np

Function = Callable[..., Any]


class Cast(Enum):
    """To which type a row's operands are converted first."""

    NONE = "as they are"
    RESULT = "the result's type"
    COMMON = "the type that torch promotes them to"


@dataclass(frozen=True, slots=True)
class Row:
    """One operator."""

    function: Function
    cast: Cast = Cast.NONE
    draws: bool = False
    """Whether the function takes a key for random numbers ahead of ATen's arguments."""


ROWS: dict[str, Row] = {}


def row(*names: str, cast: Cast = Cast.NONE, draws: bool = False) -> Callable[[Function], Function]:
    """Add a row under each of ``names``."""

    def add(function: Function) -> Function:
        for name in names:
            assert name not in ROWS, name
            ROWS[name] = Row(function, cast, draws)
        return function

    return add


def find(operator: str) -> Row | None:
    """The row of an operator as torch prints it: ``aten.sum.dim_IntList``."""
    name = operator.removeprefix("aten.")
    return ROWS.get(name) or ROWS.get(name.rpartition(".")[0])


def is_array(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def kind(dtype: Any) -> int:
    """Category of a type for promotion: 0 bool, 1 integer, 2 float, 3 complex."""
    given = jnp.dtype(dtype)
    if given == np.bool_:
        return 0
    return 1 if jnp.issubdtype(given, np.integer) else 3 if jnp.issubdtype(given, np.complexfloating) else 2


def promoted(values: Sequence[Any]) -> np.dtype[Any]:
    """The type in which torch combines ``values``: arrays with dims, arrays without, then Python's numbers decide."""
    ranks: list[list[Any]] = [[], [], []]
    for value in values:
        if is_array(value):
            ranks[value.ndim == 0].append(value.dtype)
        elif isinstance(value, bool | int | float | complex):
            ranks[2].append({bool: np.bool_, int: np.int64, float: np.float32, complex: np.complex64}[type(value)])
    result: Any = None
    for types in ranks:
        for dtype in types:
            if result is None or kind(dtype) > kind(result) or (types is ranks[0] and kind(dtype) == kind(result)):
                result = dtype if result is None or types is not ranks[0] else jnp.promote_types(result, dtype)
            elif types is ranks[1] and not ranks[0] and kind(dtype) == kind(result):
                result = jnp.promote_types(result, dtype)
    chosen: np.dtype[Any] = np.dtype(np.float32 if result is None else result)
    return chosen


def widened(x: Any) -> Any:
    """``x`` for sums and powers: 16-bit floats as FP32."""
    return x.astype(jnp.float32) if kind(x.dtype) >= 2 and x.dtype.itemsize < 4 else x


def limits(dtype: Any) -> tuple[Any, Any]:
    """The least and the largest value of a type; infinities of floats."""
    if kind(dtype) >= 2:
        return -np.inf, np.inf
    if kind(dtype) == 0:
        return False, True
    info: Any = np.iinfo(np.dtype(dtype))
    return info.min, info.max


def axis_of(dim: int, rank: int) -> int:
    """A dim counted from the front; arrays without dims have dim 0 for torch."""
    return dim % rank if rank else 0


def axes_of(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dims counted from the front; all when there are none."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({axis_of(dim, rank) for dim in listed})) if rank else ()
