"""Decompositions of operators on lists of tensors (``_foreach_add``), as optimizers use: one operator a tensor."""

from collections.abc import Callable
from typing import Any

import torch

OTHERS: dict[str, Callable[..., Any]] = {
    "addcdiv": lambda x, y, z, value=1: x + value * (y / z),
    "addcmul": lambda x, y, z, value=1: x + value * y * z,
    "clone": lambda x, **_: x.clone(),
    "copy": lambda x, y, *_: y.to(x.dtype).expand(x.shape),
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": torch.linalg.vector_norm,
    "powsum": lambda x, order=2, dtype=None: x.to(dtype).abs().pow(order).sum(),
    "zero": torch.zeros_like,
}
"""What a list's operator is of a tensor where no function of torch has its name and arguments."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For all of torch's that make a list of tensors of lists of the same length."""
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::_foreach_") and "out" not in overload:
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            single = base.removeprefix("_foreach_")
            function = OTHERS.get(single) or getattr(torch, single, None)
            if function is not None and not operator._schema.is_mutable:
                found[operator] = _each(function)
    return found


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of one tensor, on lists; what is no list is for all of them."""

    def of_lists(*arguments: Any, **keywords: Any) -> list[Any]:
        length = next(len(each) for each in arguments if isinstance(each, list | tuple))
        columns = [each if isinstance(each, list | tuple) else [each] * length for each in arguments]
        return [function(*row, **keywords) for row in zip(*columns, strict=True)]

    return of_lists
