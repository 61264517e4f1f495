"""Variants of loops and branches (see ``sweeps``)."""

from collections.abc import Callable, Iterator

import numpy as np
from op_cases import ROUNDING, Array, random_array, shaped
from sweep_variants import Dims, Variant

SHAPES: tuple[Dims, ...] = ((), (1,), (129,), (131, 17), (3, 0, 5), (2, 1, 3, 1, 2, 1, 2, 1))


def _state(*shapes: str) -> str:
    return f"({', '.join(shapes)})"


def _read(state: str, *names: str) -> str:
    """Instructions of a body that name the elements of its parameter."""
    shapes = state[1:-1].split(", ")
    lines = [f"  p = {state} parameter(0)"]
    lines += [f"  {name} = {shapes[i]} get-tuple-element(p), index={i}" for i, name in enumerate(names)]
    return "\n".join(lines) + "\n"


def _below(name: str, state: str, count: int | str) -> str:
    """The condition that element 0 is below a number, or below element 1."""
    bound = "  n = s32[] get-tuple-element(p), index=1\n" if count == "n" else f"  n = s32[] constant({count})\n"
    return f"{name} {{\n{_read(state, 'i')}{bound}  ROOT c = pred[] compare(i, n), direction=LT\n}}\n"


NEXT = "  one = s32[] constant(1)\n  j = s32[] add(i, one)\n"


def while_(dtype: str) -> Iterator[Variant]:
    for dims in SHAPES:
        yield from _counted(dtype, dims)
    for dims in ((), (129,), (7, 130)):
        yield from _given(dtype, dims)
        yield from _nested(dtype, dims)
    for length, width in ((5, 3), (129, 1), (3, 513), (1, 7)):
        yield _rows(dtype, length, width)


def _counted(dtype: str, dims: Dims) -> Iterator[Variant]:
    """Doubles an array three times, or no time."""
    shape = shaped(dtype, dims)
    mark = f"{dtype}_{'x'.join(map(str, dims))}"
    state = _state("s32[]", shape)
    body = f"body_{mark} {{\n{_read(state, 'i', 'x')}{NEXT}"
    combine = "or" if dtype == "pred" else "add"
    body += f"  y = {shape} maximum(x, x)\n  z = {shape} {combine}(x, y)\n  ROOT t = {state} tuple(j, z)\n}}\n"
    for count in (0, 3):
        name = f"condition_{mark}_{count}"
        lines = (f"{state} tuple({{0}}, {{1}})", f"{state} while({{a}}), condition={name}, body=body_{mark}")
        inputs = (np.zeros((), np.int32), random_array(dtype, dims, "x", -1, 1))
        computations = body + _below(name, state, count)
        tolerance = 8 * ROUNDING.get(dtype, 0)
        yield Variant(f"{shape} {count} times", inputs, shape, _element(1, "b"), computations, tolerance, lines)


def _element(index: int, letter: str) -> str:
    return f"get-tuple-element({{{letter}}}), index={index}"


def _given(dtype: str, dims: Dims) -> Iterator[Variant]:
    """Swaps two arrays as often as a parameter says."""
    shape = shaped(dtype, dims)
    mark = f"swap_{dtype}_{'x'.join(map(str, dims))}"
    state = _state("s32[]", "s32[]", shape, shape)
    computations = f"body_{mark} {{\n{_read(state, 'i', 'n', 'x', 'y')}{NEXT}  ROOT t = {state} tuple(j, n, y, x)\n}}\n"
    computations += _below(f"condition_{mark}", state, "n")
    for count in (-1, 0, 1, 4):
        arrays = (random_array(dtype, dims, "x", -1, 1), random_array(dtype, dims, "y", -1, 1))
        inputs = (np.zeros((), np.int32), np.asarray(count, np.int32), *arrays)
        lines = (
            f"{state} tuple({{0}}, {{1}}, {{2}}, {{3}})",
            f"{state} while({{a}}), condition=condition_{mark}, body=body_{mark}",
        )
        yield Variant(f"swap {shape} {count} times", inputs, shape, _element(2, "b"), computations, 0.0, lines)


def _nested(dtype: str, dims: Dims) -> Iterator[Variant]:
    """A loop whose inner loop runs as often as the outer one has; its values turn round in the outer one."""
    shape = shaped(dtype, dims)
    mark = f"{dtype}_{'x'.join(map(str, dims))}"
    inner, outer = _state("s32[]", "s32[]", shape), _state("s32[]", shape)
    turn = f"{shape} reverse(x), dimensions={{0}}" if dims else f"{shape} maximum(x, x)"
    computations = f"inner_{mark} {{\n{_read(inner, 'i', 'n', 'x')}{NEXT}"
    computations += f"  y = {turn}\n  ROOT t = {inner} tuple(j, n, y)\n}}\n" + _below(f"more_inner_{mark}", inner, "n")
    computations += (
        f"outer_{mark} {{\n{_read(outer, 'i', 'x')}{NEXT}  zero = s32[] constant(0)\n"
        f"  s = {inner} tuple(zero, i, x)\n"
        f"  w = {inner} while(s), condition=more_inner_{mark}, body=inner_{mark}\n"
        f"  y = {shape} get-tuple-element(w), index=2\n  ROOT t = {outer} tuple(j, y)\n}}\n"
    )
    for count in (0, 2, 3):
        name = f"more_outer_{mark}_{count}"
        inputs = (np.zeros((), np.int32), random_array(dtype, dims, "x", -1, 1))
        lines = (f"{outer} tuple({{0}}, {{1}})", f"{outer} while({{a}}), condition={name}, body=outer_{mark}")
        text = computations + _below(name, outer, count)
        yield Variant(f"nested {shape} {count} times", inputs, shape, _element(1, "b"), text, 0.0, lines)


def _rows(dtype: str, length: int, width: int) -> Variant:
    """Copies row ``i`` of one array to row ``length - 1 - i`` of another, by dynamic slices."""
    table, row = shaped(dtype, (length, width)), shaped(dtype, (1, width))
    mark = f"rows_{dtype}_{length}x{width}"
    state = _state("s32[]", table, table)
    computations = (
        f"body_{mark} {{\n{_read(state, 'i', 'x', 'y')}{NEXT}  zero = s32[] constant(0)\n"
        f"  r = {row} dynamic-slice(x, i, zero), dynamic_slice_sizes={{1,{width}}}\n"
        f"  last = s32[] constant({length - 1})\n  k = s32[] subtract(last, i)\n"
        f"  z = {table} dynamic-update-slice(y, r, k, zero)\n  ROOT t = {state} tuple(j, x, z)\n}}\n"
    )
    computations += _below(f"condition_{mark}", state, length)
    arrays = (random_array(dtype, (length, width), "x"), random_array(dtype, (length, width), "y"))
    lines = (
        f"{state} tuple({{0}}, {{1}}, {{2}})",
        f"{state} while({{a}}), condition=condition_{mark}, body=body_{mark}",
    )
    inputs = (np.zeros((), np.int32), *arrays)
    return Variant(f"rows of {table}", inputs, table, _element(2, "b"), computations, 0.0, lines)


def conditional(dtype: str) -> Iterator[Variant]:
    combine = "or" if dtype == "pred" else "add"
    for dims in SHAPES:
        shape = shaped(dtype, dims)
        mark = f"{dtype}_{'x'.join(map(str, dims))}"
        computations = (
            f"twice_{mark} {{\n  x = {shape} parameter(0)\n  ROOT y = {shape} {combine}(x, x)\n}}\n"
            f"same_{mark} {{\n  x = {shape} parameter(0)\n  ROOT y = {shape} maximum(x, x)\n}}\n"
        )
        for chosen in (False, True):
            predicate: Array = np.asarray(chosen)
            inputs = (predicate, random_array(dtype, dims, "x", -1, 1))
            body = f"conditional({{0}}, {{1}}, {{1}}), true_computation=twice_{mark}, false_computation=same_{mark}"
            yield Variant(f"{shape} {chosen}", inputs, shape, body, computations, ROUNDING.get(dtype, 0))
    for dims in ((), (127,), (3, 130)):
        yield from _by_index(dtype, dims)


def _by_index(dtype: str, dims: Dims) -> Iterator[Variant]:
    """Three branches; an index outside takes the last one."""
    shape = shaped(dtype, dims)
    mark = f"{dtype}_{'x'.join(map(str, dims))}"
    roots = {
        "first": "ROOT x = {0} parameter(0)",
        "splat": "x = {0} parameter(0)\n  z = {1}[] constant(1)\n  ROOT y = {0} broadcast(z), dimensions={{}}",
        "other": "x = {0} parameter(0)\n  y = {0} maximum(x, x)\n  ROOT z = {0} minimum(y, x)",
    }
    names = [f"{name}_{mark}" for name in roots]
    computations = "".join(
        f"{name} {{\n  {root.format(shape, dtype)}\n}}\n" for name, root in zip(names, roots.values(), strict=True)
    )
    for index in (-1, 0, 1, 2, 3):
        arrays = [random_array(dtype, dims, name, -1, 1) for name in roots]
        inputs = (np.asarray(index, np.int32), *arrays)
        body = f"conditional({{0}}, {{1}}, {{2}}, {{3}}), branch_computations={{{{{', '.join(names)}}}}}"
        yield Variant(f"{shape} branch {index}", inputs, shape, body, computations)


SWEEPS: dict[str, Callable[[str], Iterator[Variant]]] = {"conditional": conditional, "while": while_}
