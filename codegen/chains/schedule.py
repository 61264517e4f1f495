"""How a chain is cut: into blocks of rows and chunks of columns, and what of it is under way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """What is computed of a block of rows: some of the columns, from the first of a chunk on."""

    rows: int
    begin: int
    columns: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is decided."""

    rows: int
    columns: int
    row_parts: int
    """Rows of a block, one a partition."""
    column_parts: int
    """Columns of a chunk."""
    in_order: bool
    """Whether rows of a block, and columns of a chunk, follow each other, and the last may have fewer; else every so
    many-th is one, so that a partition loads neighbours."""
    weighted: tuple[tuple[int, int], ...] | None
    """Of each block the first column that is computed, and how many; None where all are."""
    heads: int
    """Heads that follow each other in straight-line code."""
    under_way: int
    """Blocks of rows."""
    in_psum: bool
    """Whether what is contracted along the rows adds up in PSUM over all blocks, not in SBUF."""
    one_bank: bool
    """Whether all such sums are in one bank."""
    products: int
    """Banks of PSUM for products."""
    stay: int
    """Products of blocks of rows that stay there until they have been read; none: they leave for SBUF."""
    turning: int
    """The same for transposes."""
    together: int
    """Heads whose rows are loaded, and stored, together where they lie beside each other in HBM."""

    @property
    def row_blocks(self) -> int:
        return -(-self.rows // self.row_parts)

    @property
    def column_chunks(self) -> int:
        return -(-self.columns // self.column_parts)

    @property
    def share(self) -> float:
        """Of what is computed of all blocks."""
        if self.weighted is None:
            return 1.0
        return sum(count for _, count in self.weighted) / (len(self.weighted) * self.columns)

    def extent(self, block: int) -> Extent:
        """What is computed of a block."""
        return Extent(self.rows_of(block), *(self.weighted[block] if self.weighted is not None else (0, self.columns)))

    def rows_of(self, block: int) -> int:
        """How many block number ``block`` has."""
        return min(self.row_parts, self.rows - block * self.row_parts)

    def columns_of(self, chunk: int) -> int:
        """How many chunk number ``chunk`` has."""
        return min(self.column_parts, self.columns - chunk * self.column_parts)

    @property
    def staged(self) -> int:
        """Heads whose operands are there: those under way, and the next."""
        return 2 + (-(-(self.under_way - 1) // self.row_blocks) if self.row_blocks < self.under_way else 0)

    @property
    def groups(self) -> int:
        """Groups of such heads whose operands are there."""
        return 1 + -(-(self.staged - 1) // self.together)

    def products_a_bank(self, bank_columns: int) -> int:
        """Products of blocks of rows that a bank holds, or one that several hold."""
        return max(1, bank_columns // self.columns)

    def sum_banks(self, width: int, bank_columns: int) -> int:
        """Banks for sums of ``width`` for all chunks of columns."""
        return -(-self.column_chunks // (bank_columns // width))

    def line(self) -> str:
        """For people."""
        return (
            f"chain of {self.row_blocks} blocks of {self.row_parts} rows, {self.column_chunks} chunks of "
            f"{self.column_parts} columns: {self.under_way} blocks under way, {self.heads} heads in a body, "
            f"{self.together} loaded together, sums in "
            + ("PSUM" if self.in_psum else "SBUF")
            + (", in order" if self.in_order else "")
            + (f", {self.share:.0%} of the columns" if self.weighted is not None else "")
            + (f", {self.stay} products there" if self.stay else "")
        )
