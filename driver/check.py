"""``run --check``: is what the simulator computed what the module means, and if not, which op is the first to differ?

Input: the module after all passes, with its casts explicit (so that rounding by request is no divergence), the inputs
and the simulated outputs. First the outputs are compared with the reference semantics. If they differ by more than
rounding, the module is compiled and run once more with every value of the entry computation as an output, and each op
is judged alone: its simulated result against its reference on the *simulated* operands. So errors do not add up, and
the first op that differs is the one at fault.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.errors import NO_LOC, Loc
from neuronx_cc.ir.types import COMPLEX, FLOATS

Array = np.ndarray[Any, np.dtype[Any]]
Rerun = Callable[[hlo.HloModule], list[Array]]
"""Compiles a module and runs it on the same inputs."""

_STEP = {"f64": 2.0**-23, "f32": 2.0**-23, "tf32": 2.0**-10, "f16": 2.0**-10, "bf16": 2.0**-7, "c64": 2.0**-23}
"""Largest relative distance of neighbouring values; the 8-bit floats have 1/4 at most."""
_EIGHT_BIT_STEP = 0.25
OP_TOLERANCE = 1e-5
"""Relative difference allowed to one FP32 op: order of summation, and the activation functions."""
_SUMS = frozenset(["dot", "convolution", "reduce", "reduce-window"])
_CHUNK_BYTES = 1 << 30
"""Values kept in one rerun, at most."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """One op whose simulated result differs from its reference."""

    opcode: str
    shape: str
    loc: Loc
    count: int
    """Elements that differ by more than rounding."""
    size: int
    index: tuple[int, ...]
    """The first of them."""
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.opcode} {self.shape}: {self.count} of {self.size} elements differ, first at "
            f"{list(self.index)}: expected {self.expected}, found {self.found}"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome. ``passed`` is false when an op diverges, or when values depend on which of them are outputs."""

    passed: bool
    error: float
    """Largest relative 2-norm of the difference over the outputs; for integers the share of unequal elements."""
    divergence: Divergence | None
    summary: str


def check(module: hlo.HloModule, inputs: Sequence[Array], outputs: Sequence[Array], rerun: Rerun) -> Check:
    """Judge ``outputs``. ``rerun`` is called only when they differ from the reference by more than rounding."""
    expected = reference.evaluate(module, list(inputs))
    error = max((difference(a, b) for a, b in zip(outputs, expected, strict=True)), default=0.0)
    allowed = max(OP_TOLERANCE, 4 * _coarsest_step(module))
    if error <= allowed and all(_same_kind(a, b) for a, b in zip(outputs, expected, strict=True)):
        return Check(True, error, None, f"outputs agree with the reference semantics, relative difference {error:.1e}")
    divergence, repeated = _first_divergence(module, inputs, rerun)
    drift = max((difference(a, b) for a, b in zip(outputs, repeated, strict=True)), default=0.0)
    if divergence is not None:
        summary = f"outputs differ by {error:.1e}; the first op to differ is {divergence}"
        if drift > allowed:
            summary += f" (seen when all values are outputs, which itself changes the results by {drift:.1e})"
        return Check(False, error, divergence, summary)
    if drift <= allowed:
        summary = f"outputs differ by {error:.1e} from the reference, but every op agrees on its own operands: rounding"
        return Check(True, error, None, summary)
    summary = (
        f"outputs differ by {error:.1e}, yet every op agrees when all values are outputs: "
        f"the fault lies in how ops are fused or scheduled"
    )
    return Check(False, error, None, summary)


def difference(found: Array, expected: Array) -> float:
    """Relative 2-norm of the difference; infinite where only one is finite; for integers the share that differs."""
    if expected.size == 0:
        return 0.0
    if not _is_float(expected):
        return float(np.mean(found != expected))
    a, b = _wide(found), _wide(expected)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    norm = float(np.linalg.norm(b[finite]))
    distance = float(np.linalg.norm(a[finite] - b[finite]))
    return distance / norm if norm else distance


def _same_kind(found: Array, expected: Array) -> bool:
    """Integers must be equal, floats were judged by their difference."""
    return _is_float(expected) or np.array_equal(found, expected)


def _first_divergence(
    module: hlo.HloModule, inputs: Sequence[Array], rerun: Rerun
) -> tuple[Divergence | None, list[Array]]:
    """The first op that differs on its own simulated operands, and the outputs as rerun."""
    ops = [op for op in module.entry.block.ops if isinstance(op, hlo.HloOp)]
    outputs = _outputs(module)
    places = {value: index for index, value in enumerate(outputs)}
    simulated: dict[hlo.SSAValue, Array] = {}
    repeated: list[Array] = []
    for chunk in _chunks([op for op in ops if op.results[0] not in places]):
        results = rerun(_with_outputs(module, chunk))
        repeated = results[: len(outputs)]
        simulated |= dict(zip((op.results[0] for op in chunk), results[len(outputs) :], strict=True))
    simulated |= {value: repeated[index] for value, index in places.items() if isinstance(value, hlo.OpResult)}

    evaluator = reference.evaluator(module)
    values: dict[hlo.SSAValue, Any] = dict(zip(module.entry.block.args, inputs, strict=True))
    for op in ops:
        operands = [values[operand] for operand in op.operands]
        expected = evaluator.apply(op, operands)
        found = simulated.get(op.results[0])
        if found is not None:
            scale = _magnitude(evaluator, op, operands, expected)
            divergence = compare(op, found, np.asarray(expected), scale)
            if divergence is not None:
                return divergence, repeated
        values[op.results[0]] = expected if found is None else found
    return None, repeated


def compare(op: hlo.HloOp, found: Array, expected: Array, scale: Array) -> Divergence | None:
    """Elements of ``found`` farther from ``expected`` than rounding at magnitude ``scale`` explains."""
    if _is_float(expected):
        step = max(OP_TOLERANCE, 1.01 * _step(op.shape.dtype))
        a, b = _wide(found), _wide(expected)
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= step * _wide(scale)
        wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    else:
        wrong = found != expected
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return Divergence(
        op.opcode,
        str(op.shape),
        op.loc,
        int(wrong.sum()),
        int(wrong.size),
        index,
        str(expected[index]),
        str(found[index]),
    )


def _magnitude(evaluator: reference.Evaluator, op: hlo.HloOp, operands: Sequence[Any], expected: Any) -> Array:
    """What rounding is relative to: for sums the sum of magnitudes, else the value itself and the typical value."""
    array = np.asarray(expected)
    if not isinstance(expected, np.ndarray) or not _is_float(array):
        return array
    if op.opcode in _SUMS:
        parts = [np.abs(part) if isinstance(part, np.ndarray) and _is_float(part) else part for part in operands]
        return np.asarray(evaluator.apply(op, parts))
    wide = np.abs(_wide(array))
    finite = wide[np.isfinite(wide)]
    return np.asarray(wide + (finite.mean() if finite.size else 0.0))


def _chunks(ops: Sequence[hlo.HloOp]) -> list[list[hlo.HloOp]]:
    """The ops whose values are worth keeping, in runs of bounded size; at least one run."""
    chunks: list[list[hlo.HloOp]] = [[]]
    used = 0
    for op in ops:
        if not isinstance(op.results[0].type, hlo.ArrayType) or op.opcode in ("constant", "iota"):
            continue
        if used + op.shape.nbytes > _CHUNK_BYTES and chunks[-1]:
            chunks.append([])
            used = 0
        chunks[-1].append(op)
        used += op.shape.nbytes
    return chunks


def _with_outputs(module: hlo.HloModule, kept: Sequence[hlo.HloOp]) -> hlo.HloModule:
    """A copy whose results are the module's own, flat, then those of the entry's ops ``kept``."""
    copy = dataclasses.replace(module, op=module.op.clone(), aliases=(), donors=())
    block = copy.entry.block
    twin = dict(zip(module.entry.block.ops, block.ops, strict=True))
    values = [*_outputs(copy), *(twin[op].results[0] for op in kept)]
    result = hlo.TupleOp.make(values, hlo.tuple_type(tuple(value.type for value in values)), NO_LOC)
    last = block.last_op
    assert isinstance(last, hlo.ReturnOp)
    block.insert_op_before(result, last)
    last.operands[0] = result.results[0]
    return copy


def _outputs(module: hlo.HloModule) -> list[hlo.SSAValue]:
    """The array results of the entry computation; the passes leave a flat tuple or one array."""
    root = module.entry.root
    owner = root.owner
    return list(owner.operands) if isinstance(owner, hlo.TupleOp) else [root]


def _coarsest_step(module: hlo.HloModule) -> float:
    """The largest rounding step of any float value of the module; tf32 shows as ``reduce-precision``."""
    coarsest = 0.0
    for computation in module.computations():
        for op in computation.block.ops:
            if not isinstance(op, hlo.HloOp) or not isinstance(op.results[0].type, hlo.ArrayType):
                continue
            if op.shape.dtype in FLOATS | COMPLEX:
                coarsest = max(coarsest, _step(op.shape.dtype))
            if isinstance(op, hlo.ReducePrecisionOp):
                coarsest = max(coarsest, 2.0**-op.mantissa_bits.data)
    return coarsest


def _step(dtype: str) -> float:
    return _STEP.get(dtype, _EIGHT_BIT_STEP) if dtype in FLOATS | COMPLEX else 0.0


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float8"))


def _wide(array: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return array if array.dtype.kind == "c" else array.astype(np.float64)
