"""``run --check``: is what the simulator computed what the module means, and if not, which op is the first to differ?

Input: the module after all passes, with its casts explicit (so that rounding by request is no divergence), the inputs
and the simulated outputs. First the outputs are compared with the reference semantics. If they differ by more than
rounding, the program is run once more, and what each kernel has left in memory is judged as it comes: against the
reference of the kernel's ops on the operands *that the simulator had*. So errors do not add up, whatever is chaotic
about the module, and the first op that differs is the one at fault.

Iterations of a loop are judged one by one, each on the state that the simulator had at its start.

Inside a kernel rounding may still decide: a rectifier of a sum near 0, the larger of two equal sums. An element that
differs is excused if the reference itself takes such values when its intermediate results are moved by a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from neuronx_cc.driver.side_by_side import joined, side_by_side
from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference.devices import on_any
from neuronx_cc.ir.types import COMPLEX, FLOATS, NARROW

Array = np.ndarray[Any, np.dtype[Any]]
Values = dict[hlo.SSAValue, Array]
Progress = Callable[[str, int, int], None]
"""Called with what is gone through, how many are done, and of how many."""

_STEP = {"f64": 2.0**-23, "f32": 2.0**-23, "tf32": 2.0**-10, "f16": 2.0**-10, "bf16": 2.0**-7, "c64": 2.0**-23}
"""Largest relative distance of neighbouring values; the 8-bit floats have 1/4 at most."""
_EIGHT_BIT_STEP = 0.25
AMPLIFIED = 100
"""Times by which last bits of all sums may move a program's outputs more than last bits of its inputs do."""
FEW = 61
"""One element of so many is rounded otherwise."""
OP_TOLERANCE = 1e-5
"""Relative difference allowed to one FP32 op: order of summation, and the activation functions."""
TRIALS = 12
"""Times that a kernel in doubt is evaluated with moved intermediate results."""
_REACH = 4
"""Times the largest difference that these evaluations show which rounding may make."""
SPREADING = (
    "compile with --no-fast-relayout: TensorE transposes 16- and 8-bit operands by products, over 128 rows of which an "
    "infinity or NaN spreads"
)
_SUMS = (hlo.ContractionOp, hlo.ReduceOp, hlo.ReduceWindowOp)
_MOVES = (hlo.MovementOp, hlo.NullaryOp, hlo.GetTupleElementOp)


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
    spreads: bool = False
    """Whether it is no number, and a contraction has such an operand."""

    def __str__(self) -> str:
        return (
            f"{self.opcode} {self.shape}: {self.count} of {self.size} elements differ, first at "
            f"{list(self.index)}: expected {self.expected}, found {self.found}"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome. ``passed`` is false when an op diverges, or when the second run gives other outputs than the first."""

    passed: bool
    error: float
    """Largest relative 2-norm of the difference over the outputs; for integers the share of unequal elements."""
    divergence: Divergence | None
    summary: str
    remedy: str = ""
    """Where it is a known one."""


class Watcher(Protocol):
    """Is shown what a run leaves in memory, as it comes."""

    def kernel(self, found: Sequence[Array]) -> None:
        """The values of the next kernel."""

    def iteration(self, loop: hlo.WhileOp, found: Mapping[int, Array], filled: Set[int]) -> None:
        """Of the state of ``loop``, ahead of its next iteration, the elements that iterations change, by number; but
        for those that it counts in. The iterations write all of ``filled``, which is undefined ahead of the first."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """The program once more."""

    module: hlo.HloModule
    """What was compiled: code generation may have changed it."""
    kernels: Sequence[Sequence[hlo.SSAValue]]
    """The values that each kernel leaves in memory."""
    run: Callable[[Sequence[Watcher]], Sequence[Sequence[Array]]]
    """Runs it, shows a watcher of each device what is left there in turn, and gives back the outputs of each."""
    before: Callable[[Sequence[Sequence[Array]]], Sequence[Sequence[Array]]]
    """The outputs of the program as it was, for any inputs, computed by NumPy, as what is watched in loops is."""


def check(
    module: hlo.HloModule,
    inputs: Sequence[Sequence[Array]],
    outputs: Sequence[Sequence[Array]],
    rerun: Callable[[], Rerun],
    progress: Progress = lambda what, done, of: None,
) -> Check:
    """Judge ``outputs``, those of each device as ``inputs`` are.

    ``rerun`` is called only when they differ from the reference by more than rounding.
    """
    expected = evaluated(module, inputs, progress)
    found = joined(outputs)
    error = largest_difference(found, expected)
    allowed = max(OP_TOLERANCE, 4 * _coarsest_step(module))
    if error <= allowed and all(_same_kind(a, b) for a, b in zip(found, expected, strict=True)):
        return Check(True, error, None, f"outputs agree with the reference semantics, relative difference {error:.1e}")
    again = rerun()
    judges = [_Judge(again, row, progress if device == 0 else _silent) for device, row in enumerate(inputs)]
    repeated = again.run(judges)
    side_by_side(again.module, lambda device: judges[device].results(repeated[device]))
    drift = largest_difference(found, joined(repeated))
    first = min(judges, key=lambda judge: judge.first)
    divergence = first.divergence
    if divergence is not None:
        summary = f"outputs differ by {error:.1e}; the first op to differ is {divergence}"
        return Check(False, error, divergence, summary, SPREADING if divergence.spreads else "")
    if drift > 0 and not _amplifies(again, inputs, repeated, drift):
        summary = (
            f"outputs differ by {error:.1e}, yet every op agrees on its own operands in the module compiled again, "
            f"whose outputs differ from the program's by {drift:.1e}"
        )
        return Check(False, error, None, summary)
    summary = f"outputs differ by {error:.1e} from the reference, but every op agrees on its own operands: rounding"
    if excused := sum(judge.excused for judge in judges):
        summary += f" ({excused} elements by decisions that rounding takes)"
    return Check(True, error, None, summary)


def _amplifies(
    again: Rerun, inputs: Sequence[Sequence[Array]], repeated: Sequence[Sequence[Array]], drift: float
) -> bool:
    """Whether NumPy computes the same with the program as it was, and what rounding does to inputs moves that by about
    ``drift``.

    The core may differ from NumPy in the last bits of sums and functions, and so in where few numbers of 16 bits are
    rounded to.
    """
    settled = joined(again.before(inputs))
    if largest_difference(settled, joined(repeated)) > 0:
        return False

    def moved(nudge: Callable[[Array], Array]) -> float:
        nudged = [[nudge(x) if x.dtype == np.float32 else x for x in row] for row in inputs]
        return largest_difference(joined(again.before(nudged)), settled)

    if drift <= AMPLIFIED * moved(lambda x: np.nextafter(x, np.float32(np.inf))):
        return True
    ops = (op for computation in again.module.computations() for op in ops_of(computation.block))
    narrow = any(isinstance(op, hlo.ConvertOp) and op.shape.dtype in NARROW for op in ops)
    return narrow and drift <= _REACH * moved(_rounded_otherwise)


def _rounded_otherwise(x: Array) -> Array:
    """Few elements by a unit of BF16."""
    made = x.copy()
    made.reshape(-1)[::FEW] *= np.float32(1 + 2.0**-8)
    return made


class _Judge:
    """Takes what the kernels of a run leave, one after the other, and remembers the first op of them that differs.

    Kernels need not come in the order of the module's ops.
    """

    def __init__(self, again: Rerun, inputs: Sequence[Array], progress: Progress) -> None:
        self.divergence: Divergence | None = None
        self.excused = 0
        """Elements that a moved intermediate result explains."""
        self._again = again
        self._progress = progress
        self._evaluator = reference.evaluator(again.module)
        self._moved = _Moved(again.module)
        entry = again.module.entry
        self._place: dict[hlo.SSAValue, int] = {
            value: number for number, op in enumerate(entry.block.ops) for value in op.results
        }
        self.first = len(self._place)
        """Place of the op that differs."""
        self._known: Values = dict(zip(entry.block.args, inputs, strict=True))
        self._number = 0
        self._needed_until = _last_needs(entry, again.kernels)
        self._states: dict[hlo.WhileOp, tuple[Any, ...]] = {}
        """Of each loop that has begun, ahead of its last iteration so far."""

    def kernel(self, found: Sequence[Array]) -> None:
        """Judge the values of the next kernel."""
        values = self._again.kernels[self._number]
        for value, array in zip(values, found, strict=True):
            element = value.owner
            loop = element.operand.owner if isinstance(element, hlo.GetTupleElementOp) else None
            if isinstance(element, hlo.GetTupleElementOp) and isinstance(loop, hlo.WhileOp) and loop in self._states:
                result = self._results(loop)[element.index.data]
                self._compare(result, array, self._inside(loop), self._place[loop.results[0]])
            else:
                self._compare(value, array, self._known, self._place.get(value, -1))
        self._known |= zip(values, found, strict=True)
        for value in [value for value in self._known if self._needed_until.get(value, -1) <= self._number]:
            del self._known[value]
        self._number += 1
        self._progress("kernel", self._number, len(self._again.kernels))

    def iteration(self, loop: hlo.WhileOp, found: Mapping[int, Array], filled: Set[int]) -> None:
        """Judge what the iteration before has made of the state that it was shown to have had."""
        initial = loop.operand.owner
        assert isinstance(initial, hlo.TupleOp), "flatten_control left another form"
        first = loop not in self._states
        values = list(initial.operands) if first else self._results(loop)
        known = dict(self._known) if first else self._inside(loop)
        for index, array in found.items():
            if not (first and index in filled):
                self._compare(values[index], array, known, self._place[loop.results[0]])
        state = [found[index] if index in found else self._evaluate(v, known) for index, v in enumerate(values)]
        self._states[loop] = tuple(state)

    def _results(self, loop: hlo.WhileOp) -> list[hlo.SSAValue]:
        """What the body makes of each element of the state."""
        results = self._again.module.computation(loop.body.data[0]).root.owner
        assert isinstance(results, hlo.TupleOp), "flatten_control left another form"
        return list(results.operands)

    def _inside(self, loop: hlo.WhileOp) -> dict[hlo.SSAValue, Any]:
        """What is known in an iteration."""
        return {self._again.module.computation(loop.body.data[0]).block.args[0]: self._states[loop]}

    def results(self, outputs: Sequence[Array]) -> None:
        """What is after the kernels: views, and copies to where results belong."""
        if not on_any(self.divergence is not None):
            for value, array in zip(outputs_of(self._again.module), outputs, strict=True):
                self._compare(value, array, self._known, self._place.get(value, -1))

    def _compare(self, value: hlo.SSAValue, array: Array, given: Mapping[hlo.SSAValue, Any], place: int) -> None:
        """``given``: what is known; ``place``: that of the op in the entry computation."""
        known = dict(given)
        expected = np.asarray(self._evaluate(value, known))
        if value in given or not isinstance(value.owner, hlo.HloOp):
            scale = expected
        else:
            taken = [self._evaluate(operand, known) for operand in value.owner.operands]
            scale = _magnitude(self._evaluator, value.owner, taken, expected)
        wrong = _wrong(array, expected, scale, hlo.shape_of(value).dtype)
        if on_any(bool(wrong.any())):
            excused = wrong & self._explained(value, array, expected, scale, given)
            self.excused += int(excused.sum())
            wrong &= ~excused
        if wrong.any() and place < self.first:
            self.first = place
            spreads = not np.isfinite(_wide(array[wrong])).any() and _multiplies_infinities(value, given, known)
            self.divergence = _divergence(value, wrong, array, expected, spreads)

    def _evaluate(self, value: hlo.SSAValue, known: dict[hlo.SSAValue, Any], moved: bool = False) -> Any:
        """The reference of ``value`` on what is known; ``moved``: results on the way are moved by a rounding."""
        for op in _to_evaluate(value, known):
            operands = [known[operand] for operand in op.operands]
            on_the_way = moved and (op.results[0] is not value or isinstance(op, hlo.RegionOp))
            known[op.results[0]] = (self._moved if on_the_way else self._evaluator).apply(op, operands)
        return known[value]

    def _explained(
        self, value: hlo.SSAValue, found: Array, expected: Array, scale: Array, given: Mapping[hlo.SSAValue, Any]
    ) -> Array:
        """Which elements the reference reaches when what lies between is moved by roundings; where numbers become none
        by that, or are none, any other is reached."""
        low, high = _wide(expected), _wide(expected)
        if low.dtype.kind == "c":
            return np.zeros(low.shape, bool)
        ends = np.isfinite(low)
        open_ended = np.zeros(low.shape, bool)
        for _ in range(TRIALS):
            other = _wide(np.asarray(self._evaluate(value, dict(given), moved=True)))
            open_ended |= np.isfinite(other) != ends
            low, high = np.fmin(low, other), np.fmax(high, other)
        with np.errstate(all="ignore"):
            reach = _REACH * np.maximum(high - _wide(expected), _wide(expected) - low)
            if _is_float(expected):
                reach = reach + OP_TOLERANCE * np.abs(_wide(scale))
            inside: Array = np.abs(_wide(found) - _wide(expected)) <= reach
            return (inside & (high > low)) | open_ended


class _Moved(reference.Evaluator):
    """The reference with each result, in loops and branches too, moved up or down by what may be rounding."""

    def __init__(self, module: hlo.HloModule) -> None:
        super().__init__(module, reference.REFERENCE, reference.CALLING)
        self._plain = reference.evaluator(module)
        self._random = np.random.default_rng(0)

    def apply(self, op: hlo.HloOp, operands: Sequence[Any]) -> Any:
        result = super().apply(op, operands)
        if not isinstance(result, np.ndarray) or not _is_float(result) or isinstance(op, _MOVES):
            return result
        scale = _magnitude(self._plain, op, operands, result) if isinstance(op, _SUMS) else np.abs(_wide(result))
        step = max(OP_TOLERANCE / 4, _step(op.shape.dtype))
        signs = self._random.choice(np.array([-step, step]), result.shape)
        with np.errstate(all="ignore"):
            return (_wide(result) + signs * _wide(scale)).astype(result.dtype)


def _to_evaluate(value: hlo.SSAValue, known: dict[hlo.SSAValue, Any]) -> Iterator[hlo.HloOp]:
    """The ops between ``known`` and ``value``, operands first."""
    pending: list[tuple[hlo.SSAValue, bool]] = [(value, False)]
    while pending:
        wanted, ready = pending.pop()
        if wanted in known:
            continue
        op = wanted.owner
        assert isinstance(op, hlo.HloOp), "parameters are known"
        if ready:
            yield op
        else:
            pending.append((wanted, True))
            pending += [(operand, False) for operand in reversed(op.operands)]


def _multiplies_infinities(
    value: hlo.SSAValue, given: Mapping[hlo.SSAValue, Any], known: Mapping[hlo.SSAValue, Any]
) -> bool:
    """Whether an infinity or NaN is in an operand of a contraction between ``given`` and ``value``."""
    seen = dict(given)
    for op in _to_evaluate(value, seen):
        seen[op.results[0]] = None
        if isinstance(op, hlo.ContractionOp) and not all(np.isfinite(_wide(known[each])).all() for each in op.operands):
            return True
    return False


def _last_needs(entry: hlo.ComputationOp, kernels: Sequence[Sequence[hlo.SSAValue]]) -> dict[hlo.SSAValue, int]:
    """Value -> the number of the last kernel that is evaluated with it; after all for what results need."""
    made = {value: number for number, values in enumerate(kernels) for value in values}
    needed: dict[hlo.SSAValue, int] = {}
    for op in reversed(list(entry.block.ops)):
        if not isinstance(op, hlo.HloOp):
            for operand in op.operands:
                needed[operand] = len(kernels)
            continue
        until = max((made.get(result, needed.get(result, -1)) for result in op.results), default=-1)
        if isinstance(op, hlo.TupleOp) and needed.get(op.results[0]) == len(kernels):
            until = len(kernels)
        for operand in op.operands:
            needed[operand] = max(until, needed.get(operand, -1))
    return needed


def evaluated(module: hlo.HloModule, inputs: Sequence[Sequence[Array]], progress: Progress) -> list[Array]:
    """Outputs by the reference semantics, ``joined`` from those of all devices."""
    steps, seen = sum(1 for _ in module.entry.block.ops), count(1)

    def on_device(device: int) -> list[Array]:
        def watch(op: hlo.HloOp, value: Any) -> None:
            if device == 0:
                progress("reference of op", next(seen), steps)

        return reference.evaluate(module, list(inputs[device]), watch)

    return joined(side_by_side(module, on_device))


def _silent(what: str, done: int, of: int) -> None:
    """Of several devices one says how far it is."""


def largest_difference(found: Iterable[Array], expected: Iterable[Array]) -> float:
    """That of the output that differs most."""
    return max((difference(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


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
    norm, distance = _norm(b[finite]), _norm(a[finite] - b[finite])
    return distance / norm if norm else distance


def _norm(array: Array) -> float:
    """The 2-norm, with the same bits in every process: BLAS adds up in as many parts as it has threads."""
    return float(np.sqrt(np.sum(np.square(np.abs(array)))))


def _same_kind(found: Array, expected: Array) -> bool:
    """Integers must be equal, floats were judged by their difference."""
    return _is_float(expected) or np.array_equal(found, expected)


def _wrong(found: Array, expected: Array, scale: Array, dtype: str) -> Array:
    """Elements of ``found`` farther from ``expected`` than rounding at magnitude ``scale`` explains."""
    if not _is_float(expected):
        return np.asarray(found != expected)
    step = max(OP_TOLERANCE, 1.01 * _step(dtype))
    a, b = _wide(found), _wide(expected)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= step * _wide(scale)
    return np.asarray(~(near | (a == b) | (np.isnan(a) & np.isnan(b))))


def _divergence(value: hlo.SSAValue, wrong: Array, found: Array, expected: Array, spreads: bool) -> Divergence:
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    opcode = value.owner.opcode if isinstance(value.owner, hlo.HloOp) else "parameter"
    return Divergence(
        opcode,
        str(hlo.shape_of(value)),
        hlo.loc_of(value),
        int(wrong.sum()),
        int(wrong.size),
        index,
        str(expected[index]),
        str(found[index]),
        spreads,
    )


def _magnitude(evaluator: reference.Evaluator, op: hlo.HloOp, operands: Sequence[Any], expected: Any) -> Array:
    """What rounding is relative to: for sums the sum of magnitudes, else the value itself and the typical value."""
    array = np.asarray(expected)
    if not isinstance(expected, np.ndarray) or not _is_float(array):
        return array
    if isinstance(op, _SUMS):
        parts = [np.abs(part) if isinstance(part, np.ndarray) and _is_float(part) else part for part in operands]
        return np.asarray(evaluator.apply(op, parts))
    wide = np.abs(_wide(array))
    finite = wide[np.isfinite(wide)]
    return np.asarray(wide + (finite.mean() if finite.size else 0.0))


def outputs_of(module: hlo.HloModule) -> list[hlo.SSAValue]:
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
