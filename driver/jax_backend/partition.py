"""One device's module of a program for several devices.

Sharded programs arrive whole, with Shardy annotations. A module without annotations is every device's module as it is.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Local:
    """The module that each device runs."""

    code: bytes
    result_kinds: tuple[str, ...] = ()
    """Memory kinds of the results; empty when all lie in device memory."""
    parameter_shardings: tuple[bytes, ...] | None = None
    result_shardings: tuple[bytes, ...] | None = None


def localize(code: bytes, replicas: int, partitions: int) -> Local:
    """The local module of the portable artifact ``code``."""
    return Local(code)
