"""The simulated device: loads NEFFs, computes their values and their time.

``load(neff)`` gives an ``Executable``; ``Executable.run(inputs)`` a ``RunResult``. Never imports the compiler.
"""

if __name__ != "neuronx_cc.runtime":
    raise ImportError("import this package as neuronx_cc.runtime, not as runtime")

import os

from neuronx_cc.ir.neff import Neff
from neuronx_cc.runtime.executable import Executable, RunResult

__all__ = ["Executable", "RunResult", "load"]


def load(source: str | os.PathLike[str] | bytes | Neff) -> Executable:
    """An executable from a NEFF: a path, a file's content, or one in memory. Raises RunError when it is damaged."""
    if isinstance(source, bytes):
        neff = Neff.from_bytes(source)
    elif isinstance(source, Neff):
        neff = source
    else:
        neff = Neff.read(source)
    return Executable.of(neff)
