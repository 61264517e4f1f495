"""How a chain is cut: into blocks of rows and chunks of columns, and what of it is under way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is decided."""

    row_parts: int
    """Rows of a block, one a partition."""
    row_blocks: int
    column_parts: int
    """Columns of a chunk."""
    column_chunks: int
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
    def columns(self) -> int:
        return self.column_parts * self.column_chunks

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
            + (f", {self.stay} products there" if self.stay else "")
        )
