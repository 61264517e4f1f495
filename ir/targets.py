"""Finds machine descriptions: by the name of a known target, or by path.

The descriptions are the TOML files of ``runtime/machines``; ``ir.machine`` reads them.
"""

from functools import cache
from os import PathLike
from pathlib import Path

from neuronx_cc.ir import machine as machines
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.machine import Machine

MAX_DEVICES = 32
"""Cores of one trn1.32xlarge instance (hardware sheet 1.2)."""
FOLDER = Path(__file__).parent.parent / "runtime" / "machines"


def names() -> list[str]:
    """Known targets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_machine(source: Machine | str | PathLike[str]) -> Machine:
    """The description itself, of a known target, or in a file. Raises UsageError EFIL901 or EARG907."""
    if isinstance(source, Machine):
        return source
    if isinstance(source, str) and source in names():
        return _known(source)
    if not Path(source).exists():
        raise UsageError(
            "EFIL901",
            f"cannot read the machine description {source}: no such file or target",
            f"targets: {', '.join(names())}",
        )
    return machines.load(source)


@cache
def _known(name: str) -> Machine:
    return machines.load(FOLDER / f"{name}.toml")
