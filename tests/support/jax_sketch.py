"""Random JAX programs as Python text: values with what is known of them, and how operands are found.

A program is *whole*: all its numbers are whole and small enough that every result is exact, in floats as in integers.
Or it is *real*: smooth functions of normal numbers, to be compared within rounding. In both, what is discontinuous
(comparisons, sorting with what travels along, indices) is done with whole numbers alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 33, 48, 64, 65, 96, 127, 128, 129, 130, 131, 192, 255, 256, 257)
SIZES += (384, 509, 511, 512, 513, 640, 1000, 1023, 1024, 1025, 2048, 2053, 4096, 6000, 8192, 10_007, 16_384)
RANKS = (0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6)
FLOAT_LIMITS = {"f32": 2**20, "bf16": 2**8, "f16": 2**11, "f8e4m3fn": 2**4, "f8e5m2": 2**3}
"""Whole numbers up to which all are exact, and sums of some of them in any order."""
INTEGER_LIMITS = {"s32": 2**31, "u32": 2**32, "s16": 2**15, "u16": 2**16, "s8": 2**7, "u8": 2**8}
ALL_LIMITS = INTEGER_LIMITS | {"s64": 2**63, "u64": 2**64}
SUM_LIMIT = 2**24
"""Of integers whose sums may be taken in FP32, which is permitted by default."""
NUMPY = {"f32": "float32", "s32": "int32", "u32": "uint32", "s16": "int16", "u16": "uint16", "s8": "int8"}
NUMPY |= {"u8": "uint8", "pred": "bool", "f16": "float16", "bf16": "bfloat16"}
NUMPY |= {
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "s64": "int64",
    "u64": "uint64",
    "f64": "float64",
    "s4": "int4",
    "u4": "uint4",
}
_SMALL = 3
"""Magnitude of whole inputs."""
_LARGEST_REAL = 50.0


@dataclass(frozen=True)
class Value:
    name: str
    dtype: str
    dims: tuple[int, ...]
    most: float
    """Bound of the magnitude; of real values about."""
    exact: bool
    home: str = "made"
    """``input`` or ``constant`` where nothing has computed it."""

    @property
    def size(self) -> int:
        return prod(self.dims)

    @property
    def floating(self) -> bool:
        return self.dtype in FLOAT_LIMITS


@dataclass
class Sketch:
    """A function that is being written: the program, or one inside it."""

    random: random.Random
    whole: bool
    largest: int = 20_000
    """Elements of a value."""
    limits: dict[str, int] = field(default_factory=lambda: dict(FLOAT_LIMITS))
    dot_limit: int = 2**20
    """Of operands of contractions, which may be cast."""
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    outer: Sketch | None = None
    smooth: bool = False
    """Whether it is to be differentiated."""
    _names: list[int] = field(default_factory=lambda: [0])

    # ---- choices ---------------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *dtypes: str, least_rank: int = 0, exact: bool = False) -> Value:
        """A value of these types; later ones are somewhat more likely. Raises LookupError without any."""
        found = [
            v
            for v in self.values
            if (not dtypes or v.dtype in dtypes) and len(v.dims) >= least_rank and (v.exact or not exact)
        ]
        if not found:
            raise LookupError(dtypes)
        recent = found[-6:] if self.chance(0.5) else found
        return self.random.choice(recent)

    def floats(self, **wanted: int) -> Value:
        return self.pick("f32", "f32", "bf16", "f16", **wanted)

    def dims(self, rank: int | None = None) -> tuple[int, ...]:
        """A shape within ``largest``."""
        rank = self.random.choice(RANKS) if rank is None else rank
        room, dims = self.largest, []
        for _ in range(rank):
            sizes = [size for size in SIZES if size <= room]
            size = self.random.choice(sizes if self.chance(0.5) else sizes[: max(len(sizes) // 2, 1)])
            dims.append(size)
            room //= size
        self.random.shuffle(dims)
        return tuple(dims)

    # ---- text ------------------------------------------------------------------------------------------------

    def name(self, letter: str = "v") -> str:
        self._names[0] += 1
        return f"{letter}{self._names[0]}"

    def let(self, text: str, dtype: str, dims: tuple[int, ...], most: float, exact: bool, home: str = "made") -> Value:
        """A line that defines a value."""
        value = Value(self.name(), dtype, tuple(dims), most, exact, home)
        self.lines.append(f"{value.name} = {text}")
        self.values.append(value)
        return value

    def like(self, value: Value, text: str, most: float | None = None, exact: bool | None = None) -> Value:
        """The same with the type and shape of ``value``."""
        return self.let(
            text, value.dtype, value.dims, value.most if most is None else most, value.exact if exact is None else exact
        )

    def inner(self, *values: Value, smooth: bool = False, budget: int | None = None) -> Sketch:
        """A function inside that sees ``values`` alone; its lines are added by ``define``."""
        return Sketch(
            self.random,
            self.whole,
            self.largest if budget is None else budget,
            self.limits,
            self.dot_limit,
            values=list(values),
            outer=self,
            smooth=smooth,
            _names=self._names,
        )

    def define(self, inner: Sketch, parameters: str, result: str) -> str:
        """Writes the function; its name."""
        name = self.name("f")
        self.lines.append(f"def {name}({parameters}):")
        self.lines += ["    " + line for line in [*inner.lines, f"return {result}"]]
        return name

    # ---- operands --------------------------------------------------------------------------------------------

    def limit(self, dtype: str) -> float:
        return 1 if dtype == "pred" else self.limits.get(dtype) or ALL_LIMITS[dtype]

    def bounded(self, value: Value, most: float) -> Value:
        """The value, clipped where its numbers may be larger."""
        if value.most <= most or value.dtype == "pred":
            return value
        low = 0 if value.dtype.startswith("u") else -int(most)
        if not value.exact:
            return self.like(value, f"{most:.1f} * jnp.tanh({value.name})", most)
        return self.like(value, f"jnp.clip({value.name}, {low}, {int(most)})", most)

    def fresh(self, dtype: str, dims: tuple[int, ...]) -> Value:
        """An input, in functions inside a constant; where there are many, a constant or a splat too."""
        exact = self.whole or dtype not in FLOAT_LIMITS
        most = 1 if dtype == "pred" else _SMALL
        if self.outer is None and (len(self.inputs) < 3 or (len(self.inputs) < 9 and self.chance(0.6))):
            value = Value(f"a{len(self.inputs)}", dtype, dims, most, exact, "input")
            self.inputs.append(value)
            self.values.append(value)
            return value
        if self.chance(0.3):
            number = self.random.choice((0, 1, 2, 3))
            text = f"jnp.full({dims}, {bool(number) if dtype == 'pred' else number}, T['{dtype}'])"
            return self.let(text, dtype, dims, most, exact, "constant")
        text = f"K('{dtype}', {dims}, {self.random.randrange(10**6)}, {exact})"
        return self.let(text, dtype, dims, most, exact, "constant")

    def viewed(self, value: Value) -> Value:
        """The value after up to three movements that keep its elements."""
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 3))):
            value = self.random.choice((self.permuted, self.permuted, self.reshaped, self.reshaped, self.reversed))(
                value
            )
        return value

    def permuted(self, value: Value) -> Value:
        if len(value.dims) < 2:
            return value
        order = self.random.sample(range(len(value.dims)), len(value.dims))
        dims = tuple(value.dims[axis] for axis in order)
        return self.let(f"{value.name}.transpose({order})", value.dtype, dims, value.most, value.exact, value.home)

    def reshaped(self, value: Value) -> Value:
        dims = list(value.dims)
        if len(dims) > 1 and self.chance(0.5):
            at = self.random.randrange(len(dims) - 1)
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        elif dims and len(dims) < 6:
            at = self.random.randrange(len(dims))
            factors = [n for n in range(1, min(dims[at], 300) + 1) if dims[at] % n == 0] or [1]
            part = self.random.choice(factors)
            dims[at : at + 1] = [part, dims[at] // part]
        else:
            dims = [*dims, 1]
        return self.reshape_to(value, tuple(dims))

    def reshape_to(self, value: Value, dims: tuple[int, ...]) -> Value:
        if dims == value.dims:
            return value
        return self.let(f"{value.name}.reshape({dims})", value.dtype, dims, value.most, value.exact, value.home)

    def reversed(self, value: Value) -> Value:
        if not value.dims or self.chance(0.7):
            return value
        axis = self.random.randrange(len(value.dims))
        return self.let(f"jnp.flip({value.name}, {axis})", value.dtype, value.dims, value.most, value.exact)

    def make(self, dtype: str, dims: tuple[int, ...], most: float | None = None) -> Value:
        """A value of this type and shape: one that exists, as it is, permuted, reshaped or broadcast, or a fresh one,
        as it is or computed with."""
        found = self._found(dtype, dims)
        if found is None:
            order = self.random.sample(range(len(dims)), len(dims)) if self.chance(0.5) else list(range(len(dims)))
            found = self.fresh(dtype, tuple(dims[axis] for axis in order))
            if self.chance(0.5):
                found = self.computed(found)
            if order != sorted(order):
                back = [order.index(axis) for axis in range(len(dims))]
                found = self.let(f"{found.name}.transpose({back})", dtype, dims, found.most, found.exact, found.home)
        return found if most is None else self.bounded(found, most)

    def computed(self, value: Value) -> Value:
        """Something of the value that an engine computes."""
        if value.dtype == "pred":
            return self.like(value, f"~{value.name}")
        if value.exact:
            return self.like(value, f"{value.name} * {value.name}", value.most**2) if value.most < 12 else value
        return self.like(value, f"{self.random.choice(('jnp.tanh', 'jnp.sin'))}({value.name})", 1)

    def _found(self, dtype: str, dims: tuple[int, ...]) -> Value | None:
        if self.chance(0.4):
            return None
        same = [v for v in self.values if v.dtype == dtype and v.size == prod(dims)]
        self.random.shuffle(same)
        for value in same:
            if value.dims == dims:
                return value
            if sorted(value.dims) == sorted(dims):
                rest, order = list(enumerate(value.dims)), []
                for size in dims:
                    axis = next(axis for axis, other in rest if other == size)
                    rest.remove((axis, size))
                    order.append(axis)
                return self.let(f"{value.name}.transpose({order})", dtype, dims, value.most, value.exact, value.home)
        if same and self.chance(0.7):
            return self.reshape_to(same[0], dims)
        if self.chance(0.3):
            for value in self.random.sample(self.values, len(self.values)):
                axes = _places(value.dims, dims)
                if value.dtype == dtype and axes is not None and self.chance(0.6):
                    text = f"lax.broadcast_in_dim({value.name}, {dims}, {axes})"
                    return self.let(text, dtype, dims, value.most, value.exact)
        return None


def _places(dims: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Dims of ``wanted`` in order that have the sizes ``dims``."""
    places, start = [], 0
    for size in dims:
        while start < len(wanted) and wanted[start] != size:
            start += 1
        if start == len(wanted):
            return None
        places.append(start)
        start += 1
    return tuple(places)
