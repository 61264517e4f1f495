"""The table of operators, complete, and torch's decompositions of all that is not in it."""

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from neuronx_cc.driver.frontends.torch import (
    bags,
    contractions,
    elementwise,
    groups,
    histograms,
    indexing,
    layers,
    linalg,
    lists,
    losses,
    normalisation,
    polynomials,
    pooling,
    quantisation,
    randomness,
    recurrent,
    reductions,
    resampling,
    shapes,
)
from neuronx_cc.driver.frontends.torch.registry import find

FAMILIES = (
    bags,
    contractions,
    elementwise,
    groups,
    histograms,
    indexing,
    layers,
    linalg,
    losses,
    normalisation,
    polynomials,
    pooling,
    quantisation,
    randomness,
    recurrent,
    reductions,
    resampling,
    shapes,
)
"""Importing a family adds its rows."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For graphs of AOT autograd: what has no row becomes operators that have, as far as torch knows how."""
    return _without_rows({**lists.decompositions(), **decomposition_table, **core_aten_decompositions()})


def decomposed(program: "torch.export.ExportedProgram") -> "torch.export.ExportedProgram":
    """The same of an exported program, whose operators may be composite ones."""
    known = dict(torch.export.default_decompositions().items())
    return program.run_decompositions(_without_rows({**lists.decompositions(), **decomposition_table, **known}))


def _without_rows(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    return {operator: how for operator, how in table.items() if find(str(operator)) is None}
