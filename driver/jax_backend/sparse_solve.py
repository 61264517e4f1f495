"""``jax.experimental.sparse.linalg.spsolve``, for which JAX has no lowering on other platforms than its own.

The matrix is made dense and solved by LU with pivots: its zeros cost memory and time, but the order of the elimination
need not be known when the program is compiled, as the fill-in of a sparse one would have to be.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import jax.numpy as jnp

from neuronx_cc.driver.jax_backend.eigh import lowering, plain_promotion

MODULE = "jax.experimental.sparse.linalg"


def register(platform: str) -> None:
    """Give JAX this lowering of its primitive ``spsolve``, as soon as a program imports it: that takes 0.2 s."""
    if MODULE in sys.modules:
        _register(sys.modules[MODULE], platform)
    else:
        sys.meta_path.insert(0, _Finder(platform))


def _register(module: ModuleType, platform: str) -> None:
    from jax._src.interpreters import mlir

    mlir.register_lowering(module.spsolve_p, lowering(solve), platform=platform)


class _Finder:
    """Finds the module as the others do, once, and registers after its execution."""

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(module, self.platform)

            setattr(spec.loader, "exec_module", execute_and_register)  # noqa: B010
        return spec


@plain_promotion
def solve(data: Any, columns: Any, starts: Any, right: Any, **_: Any) -> tuple[Any]:
    """Solution [n] of a matrix in CSR form: numbers and their columns [entries], first entry of each row [n + 1]."""
    size, entries = right.shape[0], data.shape[0]
    if size == 0:
        return (right,)
    rows = jnp.cumsum(jnp.zeros(entries, jnp.int32).at[starts[1:]].add(1))  # an index of `entries` is dropped
    data = jnp.where(jnp.arange(entries) < starts[-1], data, 0)
    matrix = jnp.zeros((size, size), data.dtype).at[rows, columns].add(data)
    return (jnp.linalg.solve(matrix, right),)
