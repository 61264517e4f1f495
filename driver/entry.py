"""What the installed commands call: imports the rest so that Ctrl-C ends a command in one way from the start."""

import os
import sys


def neuronx_cc() -> int:
    """``neuronx-cc``."""
    try:
        from neuronx_cc.driver.cli import main
    except BaseException as error:
        return _interrupted(error)
    return main()


def neuron_cc() -> int:
    """``neuron-cc``."""
    try:
        from neuronx_cc.driver.neuron_cc import main
    except BaseException as error:
        return _interrupted(error)
    return main()


def _interrupted(error: BaseException) -> int:
    """The status of a command that was interrupted while it was imported; raises whatever else happened.

    Python makes other errors of an interrupted import, which name it as their cause.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        raise error
    os.write(sys.stderr.fileno(), b"interrupted\n")
    return 130
