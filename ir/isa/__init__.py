"""The instruction set: structures (``program``), the table, encoding, and semantics."""
