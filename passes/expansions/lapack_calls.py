"""Rules for the calls of LAPACK and BLAS that JAX emits when it lowers for a CPU, one for each routine.

Each replaces a custom call by the operator or custom call that means the same on other platforms; ``getrf`` stays for
``expand_linear_algebra``. Numbers in the configuration are the characters of the routines' own parameters.
"""

import re
from collections.abc import Callable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo.editing import replace
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements


def _letter(op: hlo.CustomCallOp, name: str) -> str:
    """The character that is parameter ``name``."""
    config = op.backend_config.data if op.backend_config is not None else ""
    found = re.search(rf'\b{name}"?\s*[=:]\s*(\d+)', config)
    if found is None:
        raise CompileError(
            "EVRF001",
            f"custom call {op.target.data}: expected {name} in backend_config, found {config!r}",
            "lower the function with the JAX release that is installed",
            op.loc,
        )
    return chr(int(found[1]))


def _cholesky(b: Build, op: hlo.CustomCallOp) -> None:
    """(matrix) -> (factor, info): a factor of NaN, and so one whose last element is, has 1 as info."""
    lower = hlo.BoolAttr(_letter(op, "uplo") == "L")
    factor = b.typed(hlo.CholeskyOp, op.args, op.args[0].type, lower=lower)
    dims = hlo.shape_of(factor).dims
    if 0 in dims:
        replace_elements(op, [factor, b.number(0, "s32", dims[:-2])])
        return
    part = {"c64": "f32", "c128": "f64"}.get(hlo.shape_of(factor).dtype)
    real = b.op(hlo.RealOp, (factor,), part, dims) if part else factor
    for axis in (-2, -1):
        real = b.slice(real, len(dims) + axis, dims[axis] - 1, dims[axis])
    last = b.reshape(real, dims[:-2])
    replace_elements(op, [factor, b.convert(b.compare(last, last, "NE"), "s32")])


def _triangular_solve(b: Build, op: hlo.CustomCallOp) -> None:
    """(triangle, right) -> solution."""
    form = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[_letter(op, "trans_x")]
    solution = b.typed(
        hlo.TriangularSolveOp,
        op.args,
        op.results[0].type,
        left_side=hlo.BoolAttr(_letter(op, "side") == "L"),
        lower=hlo.BoolAttr(_letter(op, "uplo") == "L"),
        unit_diagonal=hlo.BoolAttr(_letter(op, "diag") == "U"),
        transpose_a=hlo.StrAttr(form),
    )
    replace(op, solution)


def _renamed(target: str) -> Callable[[Build, hlo.CustomCallOp], None]:
    def rule(b: Build, op: hlo.CustomCallOp) -> None:
        made: Value = b.typed(hlo.CustomCallOp, op.args, op.results[0].type, target=hlo.StrAttr(target))
        replace(op, made)

    return rule


_ROUTINES: dict[str, Callable[[Build, hlo.CustomCallOp], None]] = {
    "potrf": _cholesky,
    "trsm": _triangular_solve,
    "geqrf": _renamed("Qr"),
    "orgqr": _renamed("ProductOfElementaryHouseholderReflectors"),
    "ungqr": _renamed("ProductOfElementaryHouseholderReflectors"),
}

_LETTERS = {"orgqr": "sd", "ungqr": "cz"}

RULES = {
    f"lapack_{letter}{name}_ffi": rule for name, rule in _ROUTINES.items() for letter in _LETTERS.get(name, "sdcz")
}
"""Target -> rule, as of ``expand_custom_calls``."""
LU_TARGETS = tuple(f"lapack_{letter}getrf_ffi" for letter in "sdcz")
