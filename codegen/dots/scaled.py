"""What codes that are scaled as they come to a contraction take: how their groups lie, tiles and time (``scaling``)."""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.dots.problem import Operand, Problem
from neuronx_cc.codegen.dots.scales import nests
from neuronx_cc.codegen.epilogues.work import leave
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

BUFFERS = 4
"""Of codes that are not scaled yet, and of scales."""
SHORT = 64
"""Terms below which an instruction of a group takes longer than its elements."""
CODES, TURNED_CODES = 4, 2
"""Banks of PSUM that codes which come at a time are as large as: in runs that are long for each neighbouring term; and
those of rows that are to be transposed.
"""
CODES_SHARE = 20
"""Such codes take at most one part in so many of the room, in each buffer."""
BETWEEN = 2
"""Buffers of what comes of codes by all steps but the last one."""


class Nest:
    """How the dims of k lie in groups, where terms lie on the partitions and rows are neighbours."""

    def __init__(self, problem: Problem, operand: Operand) -> None:
        """Raises ValueError where they do not nest."""
        atoms, size = operand.contracted, min(scale.terms for scale in operand.scales)
        width = min(atom.stride for atom in atoms if atom.size > 1 or len(atoms) == 1)
        inner = atoms[problem.k_dim]
        self.partitions, self.near = inner.size, inner.stride // width
        self.beside = [dim for dim, atom in enumerate(atoms) if dim != problem.k_dim and atom.stride < inner.stride]
        self.steps = [dim for dim in range(len(atoms)) if dim != problem.k_dim and dim not in self.beside]
        self.groups = self.partitions * self.near // size
        whole = inner.stride * inner.size
        fits = len(self.beside) < 2 and len(self.steps) < 2 and nests(self.partitions, self.near, size)
        fits = fits and all(atoms[dim].stride % whole == 0 for dim in self.steps) and len(problem.segments) == 1
        if not fits or problem.segments[0].steps > 1 or problem.segments[0].partitions != inner.size:
            raise ValueError("terms of a partition belong to several groups")
        self.pitch = {dim: atoms[dim].stride // width // size for dim in self.steps}
        """Groups from one index of a dim to the next."""


def nests_in(problem: Problem) -> bool:
    """Whether the operand whose codes are scaled comes so that they can be."""
    operand = problem.scaled
    if operand is None:
        return True
    if operand.transposed:
        return len(problem.k) == 1
    try:
        Nest(problem, operand)
    except ValueError:
        return False
    return True


def size_of(operand: Operand) -> int:
    """Terms of a group."""
    return min(scale.terms for scale in operand.scales)


def in_one(operand: Operand) -> bool:
    """Whether scales are repeated for short groups of rows that are to be transposed, in one instruction for all."""
    return len(operand.scales) == 1 and size_of(operand) < SHORT


def by_scalar(operand: Operand, timing: Timing) -> float:
    """The part of the groups of such rows that Scalar scales, which takes transposed ones out of PSUM besides."""
    if len(operand.scales) > 1:
        return 0.0
    size = size_of(operand)
    scalar, vector = (work.bound for work in _of_group(operand, timing))
    leaves = leave(timing.sizes.bank_columns, operand.dtype, timing).scalar * size / timing.sizes.bank_columns
    return max(0.0, (vector - leaves) / (scalar + vector))


def _of_group(operand: Operand, timing: Timing) -> tuple[Work, Work]:
    """What Scalar and Vector take for a group of a row."""
    size, tiles = size_of(operand), ((Tile(operand.dtype),), (Tile(operand.stored),))
    return (
        timing.engine("activation", Stream.SCALAR, size, *tiles, ("copy",)),
        timing.engine("tensor_scalar", Stream.VECTOR, size, *tiles, ("multiply",)),
    )


def _rows(problem: Problem, operand: Operand) -> int:
    return max(1, prod(problem.n if operand.name == "rhs" else problem.m))


def _work_of_rows(problem: Problem, operand: Operand, timing: Timing) -> Work:
    elements = problem.products * _rows(problem, operand)
    if in_one(operand):
        tiles = (Tile(operand.dtype),), (Tile(operand.stored), F32)
        each = timing.engine("tensor_tensor", Stream.VECTOR, timing.sizes.bank_columns, *tiles, ("multiply",))
        return each.times(elements / timing.sizes.bank_columns)
    part, (scalar, vector) = by_scalar(operand, timing), _of_group(operand, timing)
    return (scalar.times(part) + vector.times(1 - part)).times(elements / size_of(operand))


def work(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand, once."""
    if operand.transposed:
        return _work_of_rows(problem, operand, timing)
    elements, columns = problem.products * _rows(problem, operand), timing.sizes.bank_columns
    each_time = near(problem)
    total, read = NOTHING, operand.stored
    for scale in operand.scales:
        size, made = each_time * columns, (Tile(scale.dtype),)
        if scale.number is not None:
            each = timing.engine("activation", Stream.SCALAR, size, made, (Tile(read),), ("copy",))
        else:
            each = timing.engine("tensor_tensor", Stream.VECTOR, size, made, (Tile(read), F32_PSUM), (scale.opcode,))
            each += timing.product(problem.partitions, columns, scale.stored)
        total, read = total + each.times(elements / size), scale.dtype
    return total


def near(problem: Problem) -> int:
    """Chunks of the other operand whose scales are the same, partition by partition."""
    operand = problem.scaled
    if operand is None or operand.transposed:
        return 1
    return prod(problem.k[dim] for dim in Nest(problem, operand).beside)


def moved(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """The transfers of scales, once."""
    rows, total = _rows(problem, operand), NOTHING
    for scale in operand.scales:
        if scale.number is None:
            groups = prod(problem.k) // scale.terms if scale.along else 1
            run = (groups if operand.transposed else min(rows, timing.sizes.bank_columns)) * itemsize(scale.stored)
            total += timing.transfer(rows * groups * itemsize(scale.stored), run)
    return total


def footprint(problem: Problem, operand: Operand, rows: int, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Bytes of a buffer of each tile beside the blocks: (name, buffers) -> bytes."""
    most, tiles = most_codes(problem, operand, sizes), dict[tuple[str, int], int]()
    beside = near(problem)
    wide = most if operand.transposed else min(rows, max(1, most // beside))
    tiles[f"{operand.name} unconverted", BUFFERS] = beside * wide
    for number, scale in enumerate(operand.scales):
        if scale.number is not None:
            tiles[number_name(operand, number), 1] = itemsize("f32")
        elif operand.transposed:
            tiles[scales_name(operand, number), BUFFERS] = (1 - -most // scale.terms) * itemsize("f32")
        else:
            tiles[scales_name(operand, number), BUFFERS] = wide * itemsize(scale.stored)
        if number + 1 < len(operand.scales) and not operand.transposed:
            tiles[f"{operand.name} between", BETWEEN] = (
                beside * most_columns(problem, operand, sizes) * itemsize(scale.dtype)
            )
    return tiles


def scales_name(operand: Operand, number: int) -> str:
    """Of the tiles of what codes are scaled by."""
    return f"{operand.name} scales {number}"


def number_name(operand: Operand, number: int) -> str:
    """Of the tile of a number that Scalar adds."""
    return f"{operand.name} number {number}"


def most_codes(problem: Problem, operand: Operand, sizes: Sizes) -> int:
    """Codes of a partition that come at a time, at most."""
    most = (TURNED_CODES if operand.transposed else CODES) * sizes.bank_bytes
    return max(1, min(most, problem.room // CODES_SHARE))


def most_columns(problem: Problem, operand: Operand, sizes: Sizes) -> int:
    """Rows of codes that are scaled by one instruction, at most, where they are neighbours."""
    return min(sizes.bank_columns, max(1, most_codes(problem, operand, sizes) // near(problem)))
