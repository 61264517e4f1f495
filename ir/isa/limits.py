"""Sizes that the instruction format fixes: what a record can address at all.

The machine description (``runtime/machines``) holds what a program may use and what it costs; these are the
outer bounds that a decoded record is checked against before anything else looks at it.
Source: hardware sheet sections 1.1 (HBM of a chip), 1.3 (registers), 1.4 (on-chip memories), 1.6 (access patterns).
"""

PARTITIONS = 128
SBUF_PARTITION_BYTES = 196608
"""Physical bytes of one SBUF partition."""
PSUM_PARTITION_BYTES = 16384
HBM_BYTES = 32 << 30
"""HBM of one chip."""
REGISTERS = 64
"""32-bit registers of one sequencer."""
MAX_DIMS = 5
"""Dims of an operand: the partition dim and four free dims."""

MAX_OPERANDS = 6
"""Results and sources of one instruction together."""
MAX_OPERAND_COEFS = 6
MAX_WAITS = 12
MAX_WAIT_COEFS = 4
MAX_ALU = 4
MAX_IMMEDIATES = 8
MAX_PHASES = 6
"""Phase registers of one loop."""
DEVICES = 1024
"""Most devices that run one program together."""
MAX_FLAGS = 32
"""Distinct flag names in one program."""
