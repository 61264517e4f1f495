"""Version lines, as ``--version`` and the diagnostic block of a failure print them.

Tools take the last word of the line that contains "Compiler version", which reads like ``2.15.143.0+e39249ad``.
"""

import sys

from neuronx_cc import __version__

COMPILER_VERSION = f"{__version__}.0+open"
HARDWARE_MODEL = "NeuronCore-v2"


def version_lines(compiler: str = "NeuronX") -> list[str]:
    """Versions of the compiler and of what it runs on; ``compiler`` is ``NeuronX`` or ``Neuron``."""
    from importlib.metadata import PackageNotFoundError, version

    lines = [
        f"{compiler} Compiler version {COMPILER_VERSION}",
        "",
        f"Python version {sys.version.split()[0]}",
        f"HWM version {HARDWARE_MODEL}",
    ]
    for name, package in (("NumPy", "numpy"), ("xDSL", "xdsl"), ("JAX", "jax")):
        try:
            lines.append(f"{name} version {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{name} not installed")
    return lines
