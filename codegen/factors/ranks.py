"""The numbers of rows in LU factorisations: where a row stands, as a fraction, or two more once it was a pivot."""

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.factors.vector import Vector
from neuronx_cc.ir.factors import MOST_ROWS

PLACE = 1 / (2 * MOST_ROWS)
"""What the number of a row counts in: exact, and below one."""
DONE = 2.0
"""Added to the number of a row that was a pivot."""


def take_largest(vector: Vector, chosen: Block, sizes: Block, numbers: Block, top: Block) -> None:
    """Let ``chosen`` be the number of the first row with the largest of ``sizes``; these and ``top`` are scratch."""
    vector.folded(top, sizes, "max")
    # one for rows that are not the largest; a NaN is not less than any
    vector.combined(sizes, sizes, "is_lt", top, "max", numbers)
    vector.folded(chosen, sizes, "min")


def renumber(
    vector: Vector,
    numbers: Block,
    rows: tuple[Block, Block],
    differences: tuple[Block, Block],
    changes: tuple[Block, Block],
) -> None:
    """``rows`` are the numbers of the pivot and of the place that it takes: the row in that place takes its number.

    ``differences`` (one value a partition each) and ``changes`` (like ``numbers``) are scratch.
    """
    (chosen, place), (step, rest) = rows, differences
    vector.both(step, chosen, "subtract", place)
    vector.scaled(rest, step, ["multiply", "add"], -1.0, DONE)
    vector.scaled(changes[0], numbers, ["is_equal", "multiply"], place, step)
    vector.scaled(changes[1], numbers, ["is_equal", "multiply"], chosen, rest)
    for change in changes:
        vector.both(numbers, numbers, "add", change)
