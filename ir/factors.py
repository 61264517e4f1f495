"""Factorisations of blocks that one kernel does: the custom calls that ``passes.expansions`` makes, and their limits.

``CHOLESKY``: f32 [batch, n, n] -> the lower factors, zero above, of which the lower triangles are read; NaN all over
where there is none. ``LU``: f32 [batch, m, n], n at most ``MOST_COLUMNS`` -> (packed factors [batch, m, n], the rows
swapped with, from 1, s32 [batch, min(m, n)], and the permutation s32 [batch, m]: which row of the operand each row is).
A pivot of zero divides nothing. Rows with an infinity or a NaN may be NaN from the first column on.
"""

CHOLESKY = "neuronx_cc.cholesky"
LU = "neuronx_cc.lu"
MOST_COLUMNS = 128
"""Columns lie on the partitions."""
MOST_ROWS = 2048
"""Of ``LU``: rows of a column, in each partition."""
