"""Random contractions whose sums are whole numbers, so that every result is exact in any order of addition.

    python tests/support/contraction_cases.py [--count N] [--first SEED] [--seconds S] [--room FRACTION]

runs cases on the simulator, race check on, and prints those that differ from NumPy or do not compile.

An operand of a case is a parameter, a constant, computed by elementwise ops, or a product itself; it is read as it lies
or through a transpose and reshape of factors of its dims, a slice, or a broadcast, before or after the arithmetic. Dims
are at the limits of the hardware (1, 127 to 129, 511 to 513, primes, powers of two), k up to 32,768. Residents may fill
SBUF, of which there may be little; the result may be read by arithmetic, a reduction or another product; all of it may
stand in a loop. Operands of FP32 may be given in other types, which the program widens, and contractions of FP32 with
these be made in parts wherever that is possible.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from generated import TRN1, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.dots import statement
from neuronx_cc.ir.machine import Machine

Array = np.ndarray[Any, Any]

SIZES = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    12,
    16,
    24,
    31,
    32,
    33,
    48,
    60,
    64,
    65,
    96,
    100,
    120,
    127,
    128,
    129,
    131,
    144,
    192,
    197,
)
SIZES += (200, 251, 256, 257, 384, 500, 511, 512, 513, 640, 768, 1000, 1021, 1024, 1536, 2047, 2048, 2049, 3072, 4096)
LONG = (5000, 8191, 8192, 10_000, 12_288, 16_384, 20_000, 30_000, 32_768)
"""More sizes of k."""
MOST_PRODUCTS = 40_000_000
MOST_ELEMENTS = 1_500_000
FORMS = ("mk,kn", "mk,nk", "km,kn", "km,nk", "bmk,bkn", "bmk,bnk", "bkm,bkn", "mbk,kbn", "mbk,nbk", "bcmk,bcnk")
FORMS += ("cbmk,bkcn", "mpk,kn", "mpk,nk", "mkp,kn", "mkl,kln", "klm,nlk", "lmk,knl", "mk,knq", "mk,nqk", "mpk,qnk")
FORMS += ("k,kn", "mk,k", "kmp,nqk", "bmkl,bnlk", "mkl,lnkq", "bmpk,bknq")
TYPES = (("float32", "float32"),) * 6 + (("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32"))
TYPES += (("float16", "float16"), ("float8_e4m3", "float32"), ("float8_e5m2", "float32"), ("int8", "int32"))
TYPES += (("int32", "int32"), ("int16", "int32"))
WIDENED = ("bfloat16", "float16", "int8", "float8_e4m3", "float8_e5m2", "float8_e4m3fn")
CASTS = (("none", "bf16"),) * 5 + (("matmult", "bf16"), ("matmult", "tf32"), ("matmult", "fp16"), ("all", "tf32"))
CASTS += (("matmult", "fp8_e4m3"),)
ROOMS = (1.0, 1.0, 0.5, 0.25, 0.125)
"""Parts of SBUF that there are."""
KINDS = ("parameter",) * 4 + ("constant", "before", "before", "between", "after", "after", "product", "sum")
CONSUMERS = ("none", "negate", "row", "array", "maximum", "transposed", "product", "product as it is", "both")


@dataclass(frozen=True, slots=True)
class Source:
    """One operand: an array whose dims are products of ``factors`` in another order."""

    kind: str
    factors: tuple[int, ...]
    """Of the operand's dims, in their order."""
    order: tuple[int, ...]
    """Number of the factor at each place of the source."""
    groups: tuple[int, ...]
    """How many factors, one after the other, make each dim of the source."""
    repeated: frozenset[int]
    """Factors along which the source is broadcast."""
    margin: int
    """Rows of the first dim of the source that are sliced away at either end."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Of the source's array, without margins."""
        sizes = [1 if factor in self.repeated else self.factors[factor] for factor in self.order]
        dims, at = [], 0
        for count in self.groups:
            dims.append(prod(sizes[at : at + count]))
            at += count
        return tuple(dims)

    @property
    def stored(self) -> tuple[int, ...]:
        """Of the array that is given."""
        dims = self.dims
        return (dims[0] + 2 * self.margin, *dims[1:]) if dims else dims


@dataclass(frozen=True, slots=True)
class Case:
    """What is computed, and how."""

    seed: int
    form: str
    sizes: tuple[tuple[str, int], ...]
    lhs: Source
    rhs: Source
    types: tuple[str, str]
    """Of the operands and of the result."""
    consumer: str
    resident: tuple[int, int] | None
    """Dims of an array that is computed ahead, read by the operands and again at the end."""
    trips: int
    """Of a loop around, 0 for none."""
    cast: tuple[str, str]
    fast: bool
    """Whether TensorE may transpose values."""
    room: float
    """Part of SBUF that there is."""
    given: tuple[str, str]
    """Types in which the operands are given."""
    split: bool
    """Whether FP32 is multiplied in parts wherever it may be."""

    def __str__(self) -> str:
        sizes = " ".join(f"{letter}={size}" for letter, size in self.sizes)
        sides = "; ".join(
            f"{side.kind} {list(side.dims)} of {list(side.factors)} as {list(side.order)}"
            + (f" repeats {sorted(side.repeated)}" if side.repeated else "")
            + (f" margin {side.margin}" if side.margin else "")
            for side in (self.lhs, self.rhs)
        )
        rest = f"resident {self.resident}, trips {self.trips}, cast {'/'.join(self.cast)}, fast {self.fast}"
        rest += f", given {'/'.join(self.given)}{' split' * self.split}"
        return (
            f"seed {self.seed}: {self.form} {sizes} {'->'.join(self.types)} | {sides} | {self.consumer}, {rest}, "
            f"room {self.room}"
        )


def draw(seed: int, room: float | None = None, small: bool = False) -> Case:
    """The case of a number. ``room``: part of SBUF, else drawn; ``small``: of few products."""
    random = np.random.default_rng(seed)

    def one(choices: Sequence[Any]) -> Any:
        return choices[int(random.integers(len(choices)))]

    form = one(FORMS)
    types = one(TYPES)
    most = MOST_PRODUCTS // (20 if small else 1)
    sizes = _sizes(random, form, most, MOST_ELEMENTS // (10 if small else 1))
    left, right = form.split(",")
    resident = None
    if random.random() < 0.3:
        resident = (int(one((128, 130, 1024, 2048))), int(one((8, 64, 128, 512))))
    cast = one(CASTS)
    if types[0] != "float32" and cast[0] != "none":
        cast = ("none", "bf16")
    trips = int(one((0, 0, 0, 0, 3)))
    consumer = one(CONSUMERS)
    if cast[0] != "none" and consumer == "product as it is":
        consumer = "product"  # a cast would round what is larger than its mantissa
    lhs, rhs = (_source(random, [sizes[letter] for letter in side]) for side in (left, right))
    fast, drawn = bool(random.random() < 0.7), one(ROOMS)
    given = [types[0], types[0]]
    if types[0] == "float32":
        given = [one(WIDENED) if random.random() < 0.3 else "float32" for _ in range(2)]
    return Case(
        seed,
        form,
        tuple(sizes.items()),
        lhs,
        rhs,
        types,
        consumer,
        resident,
        trips,
        cast,
        fast,
        drawn if room is None else room,
        (given[0], given[1]),
        bool(random.random() < 0.5),
    )


def _sizes(random: np.random.Generator, form: str, most: int, elements: int) -> dict[str, int]:
    """Sizes of the letters, with few enough products; k is long now and then."""
    left, right = form.split(",")
    letters = sorted({*left, *right})
    out = [letter for letter in letters if letter in "bc" or (letter in left) != (letter in right)]
    while True:
        long = random.random() < 0.3
        sizes = {}
        for letter in letters:
            choices = (*SIZES, *LONG) if letter == "k" and long else SIZES
            limit = len(choices) if letter in "mnk" else 16
            low = len(SIZES) - 4 if letter == "k" and long else 0
            sizes[letter] = int(choices[int(random.integers(low, limit))])
        arrays = [prod(sizes[letter] for letter in side) for side in (left, right, out)]
        if prod(sizes.values()) <= most and max(arrays) <= elements:
            return sizes


def _factors(random: np.random.Generator, size: int) -> list[int]:
    """Up to three factors of a size, all but the last larger than 1."""
    factors = []
    while len(factors) < 2 and random.random() < 0.5:
        choices = [factor for factor in range(2, min(size, 257)) if size % factor == 0]
        if not choices:
            break
        factors.append(int(random.choice(choices)))
        size //= factors[-1]
    return [*factors, size]


def _source(random: np.random.Generator, dims: Sequence[int]) -> Source:
    kind = KINDS[int(random.integers(len(KINDS)))]
    if kind == "constant" and prod(dims) > 20_000:
        kind = "parameter"
    way = random.random()
    cut = [_factors(random, size) if way > 0.35 else [size] for size in dims]
    factors = [factor for each in cut for factor in each]
    order = list(range(len(factors)))
    groups = [len(each) for each in cut]
    if way > 0.35:
        order = [int(index) for index in random.permutation(len(factors))]
        groups = _groups(random, len(factors))
    elif way > 0.2:
        order = [int(index) for index in random.permutation(len(factors))]
    margin = int(random.integers(1, 4)) if random.random() < 0.1 else 0
    repeated = frozenset(index for index in range(len(factors)) if random.random() < 0.1) if way > 0.9 else frozenset()
    return Source(kind, tuple(factors), tuple(order), tuple(groups), repeated, margin)


def _groups(random: np.random.Generator, count: int) -> list[int]:
    groups = []
    while count:
        taken = int(random.integers(1, min(count, 3) + 1))
        groups.append(taken)
        count -= taken
    return groups


@dataclass
class Program:
    """A case as a function of its inputs, in NumPy or in JAX."""

    case: Case
    xp: Any
    """``numpy`` or ``jax.numpy``."""
    inputs: list[Any] = field(default_factory=list)
    """In the order in which they are asked for; made then, unless they are there."""
    taken: int = 0

    def given(self, dims: Sequence[int], dtype: str) -> Any:
        """The next input."""
        if self.taken == len(self.inputs):
            self.inputs.append(_whole(np.random.default_rng([self.case.seed, self.taken]), dims, dtype))
        self.taken += 1
        return self.inputs[self.taken - 1]

    def compute(self) -> Any:
        """The results."""
        case, xp = self.case, self.xp
        early = self._resident()
        made: list[Callable[[Any], Any]] = [
            self._operand(case.lhs, case.form.split(",")[0], case.given[0]),
            self._operand(case.rhs, case.form.split(",")[1], case.given[1]),
        ]
        more = self._consumer()
        shift = None if early is None else _narrow(xp, early.max() - early.min(), case.types[0])

        def body(state: Any) -> Any:
            """``state``: a number added to the left operand where that is computed."""
            left, right = (each(state) for each in made)
            return more(self._dot(left, right, case.form))

        if not case.trips:
            results = body(shift)
        else:
            zero = xp.zeros((), xp.int32)
            start = zero if shift is None else shift.astype(xp.int32)

            def step(_: Any, state: Any) -> Any:
                number, _ = state
                first = body(_narrow(xp, number, case.types[0]))
                return (number + 1) % 3, first

            state = (start % 3, body(_narrow(xp, start % 3, case.types[0])))
            if xp is np:
                for trip in range(case.trips):
                    state = step(trip, state)
            else:
                state = lax.fori_loop(0, case.trips, step, state)
            results = state[1]
        if early is not None:
            results = (*results, early)
        return results

    def _resident(self) -> Any:
        if self.case.resident is None:
            return None
        rows, columns = self.case.resident
        x, y = self.given((rows, 128), "float32"), self.given((128, columns), "float32")
        return self._clip(self._product(x, y, "float32"))

    def _operand(self, source: Source, letters: str, given: str) -> Callable[[Any], Any]:
        case, dtype = self.case, self.case.types[0]
        if source.kind == "constant":
            array = self.xp.asarray(_whole(np.random.default_rng([case.seed, 77]), source.stored, given))
        elif source.kind == "product":
            dims = source.stored
            rows = dims[0] if dims else 1
            x, y = self.given((rows, 3), dtype), self.given((3, prod(dims[1:])), dtype)
            array = self._clip(self._product(x, y, dtype)).reshape(dims)
        elif source.kind == "sum":
            x, y = self.given(source.stored, dtype), self.given(source.stored[-1:], dtype)
            array = self._clip(x + y)
        else:
            array = self.given(source.stored, given)
        array = _narrow(self.xp, array, dtype) if given != dtype else array
        sizes = dict(case.sizes)

        def made(shift: Any) -> Any:
            value = array
            if source.kind == "before":
                value = self._arithmetic(value, shift)
            if source.margin:
                value = value[source.margin : source.margin + source.dims[0]]
            value = value.reshape([1 if at in source.repeated else source.factors[at] for at in source.order])
            if source.kind == "between":
                value = self._arithmetic(value, shift)
            value = value.transpose([source.order.index(at) for at in range(len(source.order))])
            value = self.xp.broadcast_to(value, source.factors)
            value = value.reshape([sizes[letter] for letter in letters])
            return self._arithmetic(value, shift) if source.kind == "after" else value

        return made

    def _arithmetic(self, value: Any, shift: Any) -> Any:
        value = -value if shift is None else value + shift
        return self._clip(value)

    def _consumer(self) -> Callable[[Any], Any]:
        case, xp = self.case, self.xp
        out = case.types[1]
        left, right = case.form.split(",")
        letters = [x for x in left if x in right and x in "bc"]
        letters += [x for side, other in ((left, right), (right, left)) for x in side if x not in other]
        dims = [dict(case.sizes)[letter] for letter in letters]
        extra = None
        if case.consumer == "row" and dims:
            extra = self.given(dims[-1:], out)
        elif case.consumer == "array":
            extra = self.given(dims, out)
        elif case.consumer.startswith("product") and dims:
            extra = self.given((dims[-1], 5), out)

        def made(value: Any) -> Any:
            narrow = self._clip(value)
            if extra is not None and case.consumer.startswith("product"):
                return (self._dot(value if "as it is" in case.consumer else narrow, extra, None),)
            if extra is not None:
                return (value + extra,)
            if case.consumer == "maximum" and dims:
                return (value.max(len(dims) // 2),)
            if case.consumer == "transposed":
                return (value.transpose(range(len(dims))[::-1]) * 2,)
            if case.consumer == "both":
                return value, xp.abs(value)
            return (value if case.consumer == "none" else -value,)

        return made

    def _clip(self, value: Any) -> Any:
        low, high = (_narrow(np, np.asarray(bound), str(value.dtype)) for bound in (-2, 2))
        return self.xp.minimum(self.xp.maximum(value, low), high)

    def _product(self, x: Any, y: Any, dtype: str) -> Any:
        return self._numbers(x, y, (((1,), (0,)), ((), ())), dtype)

    def _dot(self, x: Any, y: Any, form: str | None) -> Any:
        out = self.case.types[1]
        if form is None:
            return self._numbers(x, y, (((x.ndim - 1,), (0,)), ((), ())), out)
        lhs, rhs = form.split(",")
        shared = [letter for letter in lhs if letter in rhs]
        batch = [letter for letter in shared if letter in "bc"]
        folded = [letter for letter in shared if letter not in "bc"]
        numbers = tuple(tuple([side.index(at) for at in group] for side in (lhs, rhs)) for group in (folded, batch))
        return self._numbers(x, y, numbers, out)

    def _numbers(self, x: Any, y: Any, numbers: Any, dtype: str) -> Any:
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if self.xp is not np:
            return lax.dot_general(x, y, numbers, preferred_element_type=kind)
        (left, right), (left_batch, right_batch) = numbers
        sides = []
        for array, batch, folded in ((x, left_batch, left), (y, right_batch, right)):
            free = [axis for axis in range(array.ndim) if axis not in (*batch, *folded)]
            moved = array.transpose([*batch, *free, *folded])
            head = [array.shape[axis] for axis in batch]
            terms = prod(array.shape[axis] for axis in folded)
            sides.append((moved.reshape([*head, -1, terms]).astype(np.float64), [array.shape[axis] for axis in free]))
        (a, m), (b, n) = sides
        return (a @ b.swapaxes(-1, -2)).reshape([*a.shape[:-2], *m, *n]).astype(kind)


def _narrow(xp: Any, value: Any, dtype: str) -> Any:
    return value.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def _whole(random: np.random.Generator, dims: Sequence[int], dtype: str) -> Array:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return random.integers(-2, 3, tuple(dims)).astype(kind)


def machine_of(room: float) -> Machine:
    """A machine with only ``room`` of the memories on chip, and at least one bank of PSUM for each half of a kernel."""
    sizes = TRN1.sizes()
    sbuf = int(sizes.sbuf_bytes * room) // 64 * 64 + int(TRN1["sbuf.reserved_bytes"])
    psum = max(2, int(sizes.banks * room)) * sizes.bank_bytes
    return TRN1.with_settings([f"memory.sbuf_partition_bytes={sbuf}", f"memory.psum_partition_bytes={psum}"])


def check(case: Case) -> None:
    """Compile and run ``case``; AssertionError where a value differs from NumPy's."""
    program = Program(case, np)
    wanted, inputs = program.compute(), program.inputs
    text = text_of(lambda *given: Program(case, jnp, list(given)).compute(), *inputs)
    options = {"auto_cast": case.cast[0], "auto_cast_type": case.cast[1], "fast_relayout": case.fast}
    ways = statement._splits
    with patch.object(statement, "_splits", lambda *asked: ways(*asked)[-1 if case.split else 0 :]):
        compiled = compile_text(text, machine_of(case.room), **options)
    results = compiled.run(inputs)
    assert len(results) == len(wanted)
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result.astype(np.float64), np.asarray(want).astype(np.float64))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1 << 30, help="cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seconds", type=float, default=60, help="time after which no case is begun")
    parser.add_argument("--room", type=float, default=None, help="part of SBUF that there is")
    parser.add_argument("--small", action="store_true", help="cases of few products")
    parser.add_argument("--verbose", action="store_true", help="tracebacks")
    arguments = parser.parse_args()
    began, wrong, ran = time.monotonic(), 0, 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        if time.monotonic() - began > arguments.seconds:
            break
        case = draw(seed, arguments.room, arguments.small)
        ran += 1
        try:
            check(case)
        except Exception as error:
            wrong += 1
            said = str(error).strip().replace("\n", " ")
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{type(error).__name__} {said[:160]} ({where.filename.split('/')[-1]}:{where.lineno})\n    {case}")
            if arguments.verbose:
                traceback.print_exc()
            sys.stdout.flush()
    print(f"{ran} cases, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
