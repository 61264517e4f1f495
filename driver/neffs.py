"""Reading the NEFF that a command was given."""

from contextlib import suppress

from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.ir.errors import NeuronError, RunError, UsageError
from neuronx_cc.ir.neff import Neff


def read_neff(path: str, session: Session) -> tuple[Neff, int]:
    """The program in ``path`` and the size of that file.

    Raises UsageError EFIL901 when it cannot be read and ENEF901 when it is a module, RunError ENEF901 or EBIR902 when
    it is damaged or something else.
    """
    session.enter("loading the NEFF")
    data = files.read(path, "NEFF")
    session.module = (path, data)
    try:
        return Neff.from_bytes(data), len(data)
    except RunError as error:
        if error.code == "ENEF901" and is_module(data):
            raise UsageError(
                "ENEF901",
                f"{path} is a module, not a NEFF",
                f"compile it first: neuronx-cc compile {path} --output {path.removesuffix('.pb')}.neff",
            ) from None
        raise


def is_module(data: bytes) -> bool:
    """Whether ``compile`` would take these bytes for a module."""
    from neuronx_cc.driver.frontends import formats
    from neuronx_cc.hlo_import import load_module
    from neuronx_cc.hlo_import.load import detect

    if formats.detect(data) is not formats.Format.HLO:
        return True
    with suppress(NeuronError):
        # a proto has no mark of its own: it is one if it can be read
        return detect(data) != "proto" or load_module(data) is not None
    return False
