"""The race check with and without its native passes and grids of HBM, which must say the same."""

from unittest import mock

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Program
from neuronx_cc.runtime import race_maps, race_native, races


def check(program: Program) -> races.RaceSummary:
    """``races.check``, done both ways; where they differ in result or message, an AssertionError."""
    if program.race_summary is not None:
        return races.check(program)
    with mock.patch.object(race_native, "load", return_value=None), mock.patch.object(race_maps, "GRID_CELLS", 0):
        plain = _outcome(program)
    program.race_summary = None
    with mock.patch.object(race_maps, "GRID_CELLS", 1 << 40):
        native = _outcome(program)
    assert repr(native) == repr(plain)
    assert str(native) == str(plain)
    if isinstance(native, RunError):
        raise native
    return native


def _outcome(program: Program) -> races.RaceSummary | RunError:
    try:
        return races.check(program)
    except RunError as error:
        return error
