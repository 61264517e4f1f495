"""Ragged and scaled dots, expanded and by the reference semantics, beside plain loops in NumPy."""

import jax
import numpy as np
import pytest
from op_cases import module_text, shaped

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.expansions import group_plan
from neuronx_cc.passes.manager import PassContext, run_passes

SIZES = np.array([2, 0, 5], np.int32)
BOUNDS = [(0, 2), (2, 2), (2, 7)]


def check(inputs: list[np.ndarray], want: np.ndarray, attributes: str, opcode: str = "ragged-dot") -> None:
    types = [({"i4": "s32", "f2": "f16"}.get(x.dtype.str[1:], "f32"), x.shape) for x in inputs]
    arguments = ", ".join(f"p{i}" for i in range(len(inputs)))
    text = module_text(types, f"  ROOT r = {shaped('f32', want.shape)} {opcode}({arguments}), {attributes}")
    module = parse_text(text)
    run_passes(module, ["expand_ragged_dots", "expand_dots"], PassContext(), verify_each=True)
    for result in (evaluate(module, inputs)[0], evaluate(parse_text(text), inputs)[0]):
        np.testing.assert_allclose(result, want, 1e-5, 1e-5)


def random(*dims: int) -> np.ndarray:
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32)


def test_ragged_rows() -> None:
    """Rows after the last group are zero."""
    x, w = random(9, 4), random(3, 4, 5)
    want = np.zeros((9, 5), np.float32)
    for group, (start, end) in enumerate(BOUNDS):
        want[start:end] = x[start:end] @ w[group]
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    check([x, w, SIZES], want, dims)


def test_ragged_rows_with_a_negative_size() -> None:
    """Such a group is empty."""
    x, w = random(9, 4), random(3, 4, 5)
    sizes = np.array([3, -2, 5], np.int32)
    want = np.concatenate([x[:3] @ w[0], x[3:8] @ w[2], np.zeros((1, 5), np.float32)])
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    check([x, w, sizes], want, dims)
    check([x, w, np.array([-4, 3, 20], np.int32)], np.concatenate([x[:3] @ w[1], x[3:] @ w[2]]), dims)


def test_ragged_rows_of_a_batch() -> None:
    x, w = random(2, 9, 4), random(2, 4, 3, 5)
    want = np.zeros((2, 9, 5), np.float32)
    for group, (start, end) in enumerate(BOUNDS):
        want[:, start:end] = x[:, start:end] @ w[:, :, group]
    dims = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    check([x, w, SIZES], want, f"{dims}, lhs_ragged_dims={{1}}, rhs_group_dims={{2}}")


def test_ragged_contraction() -> None:
    x, y = random(2, 6, 7), random(2, 7, 5)
    want = np.stack([x[:, :, start:end] @ y[:, start:end] for start, end in BOUNDS])
    dims = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    check([x, y, SIZES], want, f"{dims}, lhs_ragged_dims={{2}}, rhs_group_dims={{}}")


def test_ragged_batch() -> None:
    x, y = random(7, 2, 4), random(7, 4, 3)
    dims = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    check([x, y, SIZES], x @ y, f"{dims}, lhs_ragged_dims={{0}}, rhs_group_dims={{}}")


FORMS = {
    # lhs, rhs, sizes; contracting, batch, ragged and group dims
    "rows": ((9, 4), (3, 4, 5), (3,), ([1], [1]), ([], []), [0], [0]),
    "rows of a batch": ((2, 9, 4), (2, 3, 4, 5), (3,), ([2], [2]), ([0], [0]), [1], [1]),
    "rows beside a free dim": ((2, 9, 4), (3, 4, 5), (3,), ([2], [1]), ([], []), [1], [0]),
    "contraction of a batch": ((2, 9, 4), (2, 9, 5), (3,), ([1], [1]), ([0], [0]), [1], []),
    "contraction": ((9, 4), (9, 5), (3,), ([0], [0]), ([], []), [0], []),
    "batch": ((9, 4, 6), (9, 6, 5), (3,), ([2], [1]), ([0], [0]), [0], []),
    "rows, sizes of each batch": ((2, 9, 4), (2, 3, 4, 5), (2, 3), ([2], [2]), ([0], [0]), [1], [1]),
    "rows, sizes of each batch, which lies behind": ((9, 4, 2), (4, 2, 3, 5), (2, 3), ([1], [0]), ([2], [1]), [0], [2]),
    "rows, sizes of each free dim ahead": ((2, 9, 4), (3, 4, 5), (2, 3), ([2], [1]), ([], []), [1], [0]),
    "rows, sizes of both": ((2, 5, 3, 4, 7), (7, 3, 4, 2), (7, 2, 3), ([3], [2]), ([4], [0]), [1], [1]),
    "contraction, sizes of each batch": ((2, 9, 4), (2, 9, 5), (2, 3), ([1], [1]), ([0], [0]), [1], []),
    "contraction, sizes of two batches": ((3, 9, 2, 4), (9, 2, 3, 5), (2, 3, 4), ([1], [0]), ([2, 0], [1, 2]), [1], []),
    "contraction, sizes of contracted dims ahead": ((3, 9, 4), (9, 3, 5), (3, 4), ([0, 1], [1, 0]), ([], []), [1], []),
    "contraction, one group": ((9, 4), (9, 5), (1,), ([0], [0]), ([], []), [0], []),
    "batch, sizes of each batch": ((2, 9, 4, 6), (2, 9, 6, 5), (2, 3), ([3], [2]), ([0, 1], [0, 1]), [1], []),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("first", [0, 1, 3, 9])
def test_ragged_forms_of_jax(form: str, dtype: type, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``first``: rows of each group that are taken at once, 0 for the plan of the machine, which masks so few."""
    if first:
        monkeypatch.setattr(group_plan, "choose", lambda timing, work: group_plan.Plan(0.0, first, 2))
    lhs, rhs, counts, contracting, batch, ragged, groups = FORMS[form]
    draw = np.random.default_rng(len(form))
    x, y = (draw.standard_normal(dims).astype(dtype) for dims in (lhs, rhs))
    sizes = draw.integers(0, 4, counts).astype(np.int32)
    numbers = jax.lax.RaggedDotDimensionNumbers((contracting, batch), ragged, groups)
    want = np.asarray(jax.lax.ragged_dot_general(x, y, sizes, numbers, preferred_element_type=np.float32))
    names = ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")
    dims = dict(zip((*names, "lhs_ragged_dims", "rhs_group_dims"), (*contracting, *batch, ragged, groups), strict=True))
    check([x, y, sizes], want, ", ".join(f"{name}={{{','.join(map(str, each))}}}" for name, each in dims.items()))


def test_ragged_contraction_beside_infinities() -> None:
    """What lies in other groups, or in none, counts for nothing."""
    x, y = random(6, 7), random(7, 5)
    x[:, 1], y[5] = np.inf, np.nan
    sizes = np.array([2, 3], np.int32)
    with np.errstate(invalid="ignore"):
        want = np.stack([x[:, :2] @ y[:2], x[:, 2:5] @ y[2:5]])
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={1}, rhs_group_dims={}"
    check([x, y, sizes], want, dims)


def test_ragged_sizes_of_other_dims_are_refused() -> None:
    types = [("f32", (2, 9, 4)), ("f32", (3, 4, 5)), ("s32", (7, 3))]
    dims = "lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_ragged_dims={1}, rhs_group_dims={0}"
    root = f"  ROOT r = f32[2,9,5] ragged-dot(p0, p1, p2), {dims}"
    with pytest.raises(CompileError, match=r"EVRF001.*expected sizes of dims \[2, 3\] or \[3\], found \[7, 3\]"):
        run_passes(parse_text(module_text(types, root)), ["expand_ragged_dots"], PassContext())


def test_scales_of_blocks() -> None:
    x, y, s, t = random(4, 6), random(6, 5), random(4, 2), random(3, 1)
    want = (x * s.repeat(3, 1)) @ (y * t.repeat(2, 0).repeat(5, 1))
    check([x, y, s, t], want, "lhs_contracting_dims={1}, rhs_contracting_dims={0}", "scaled-dot")


def test_a_scalar_scale() -> None:
    x, y, s, t = random(4, 6), random(6, 5), random(4, 6), np.float32(3)
    check([x, y, s, np.asarray(t)], (x * s) @ y * 3, "lhs_contracting_dims={1}, rhs_contracting_dims={0}", "scaled-dot")


def test_scales_that_are_no_blocks_are_refused() -> None:
    types = [("f32", (4, 6)), ("f32", (6, 5)), ("f32", (4, 4)), ("f32", (6, 5))]
    root = "  ROOT r = f32[4,5] scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    with pytest.raises(CompileError, match="EVRF001"):
        run_passes(parse_text(module_text(types, root)), ["expand_dots"], PassContext())
