"""The numbers of rows in LU factorisations: where a row stands, as a fraction, or two more once it was a pivot."""

from neuronx_cc.ir.factors import MOST_ROWS

PLACE = 1 / (2 * MOST_ROWS)
"""What the number of a row counts in: exact, and below one."""
DONE = 2.0
"""Added to the number of a row that was a pivot."""
