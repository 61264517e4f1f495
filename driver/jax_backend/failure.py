"""Errors on their way to JAX: whatever compiling or running raises becomes one ``PluginError``.

Its text is the paragraph that the command line prints; its ``pjrt_code`` decides what JAX makes of it.
"""

from neuronx_cc.driver.errors import render
from neuronx_cc.driver.failure import Session, as_neuron_error
from neuronx_cc.ir.errors import NeuronError, UsageError

INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
"""Status codes of the interface."""

_CODES = {
    "EOOM001": RESOURCE_EXHAUSTED,
    "EOOM002": RESOURCE_EXHAUSTED,
    "EVRF009": RESOURCE_EXHAUSTED,
    "EMEM901": RESOURCE_EXHAUSTED,
    "INTERNAL": INTERNAL,
    "EJAX902": INVALID_ARGUMENT,
}
_RUN = ("ERUN", "EBIR", "EOOB", "ENEF")
"""Codes whose appearance here means a defect of the compiler, not of the user's program."""


class PluginError(Exception):
    """What the C++ side turns into a status."""

    def __init__(self, pjrt_code: int, message: str) -> None:
        super().__init__(message)
        self.pjrt_code = pjrt_code


def plugin_error(error: BaseException, session: Session) -> PluginError:
    """``error`` as a status with the message that the command line would print."""
    if isinstance(error, PluginError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return PluginError(1, "interrupted")
    if not isinstance(error, Exception):
        return PluginError(INTERNAL, repr(error))
    failure = as_neuron_error(error, session)
    return PluginError(_code(failure), render(failure))


def _code(error: NeuronError) -> int:
    if error.code in _CODES:
        return _CODES[error.code]
    if isinstance(error, UsageError):
        return INVALID_ARGUMENT
    return INTERNAL if error.code.startswith(_RUN) else UNIMPLEMENTED
