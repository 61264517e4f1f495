"""Conformance cases of normalisation, linear algebra, Fourier transforms and complex numbers (see ``op_cases``)."""

from collections.abc import Callable

from op_cases import ROUNDING, Array, Case, module_text, random_array


def _case(opcode: str, dtype: str, inputs: list[Array], root: str, tolerance: float) -> Case:
    text = module_text([(dtype, array.shape) for array in inputs], f"  ROOT r = {root}")
    return Case(opcode, dtype, text, tuple(inputs), tolerance)


def _batch_norm(opcode: str, dtype: str) -> Case:
    dims = (4, 3, 5)
    operand = random_array(dtype, dims, opcode, -2, 2)
    scale, offset, mean = (random_array(dtype, (3,), name, -1, 1) for name in ("scale", "offset", "mean"))
    variance = random_array(dtype, (3,), "variance", 1, 3)
    array, vector = f"{dtype}[4,3,5]", f"{dtype}[3]"
    attributes = ", epsilon=0.01, feature_index=1"
    tolerance = 4 * ROUNDING[dtype]
    if opcode == "batch-norm-training":
        root = f"({array}, {vector}, {vector}) {opcode}(p0, p1, p2){attributes}"
        return _case(opcode, dtype, [operand, scale, offset], root, tolerance)
    if opcode == "batch-norm-inference":
        root = f"{array} {opcode}(p0, p1, p2, p3, p4){attributes}"
        return _case(opcode, dtype, [operand, scale, offset, mean, variance], root, tolerance)
    root = f"({array}, {vector}, {vector}) {opcode}(p0, p1, p2, p3, p4){attributes}"
    inputs = [operand, scale, mean, variance, random_array(dtype, dims, "grad", -1, 1)]
    return _case(opcode, dtype, inputs, root, 2 * tolerance)


BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "batch-norm-grad": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-training": _batch_norm,
}
