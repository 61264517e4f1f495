"""Sessions of jax.profiler: which programs ran between a start and a stop.

The clock runs when a session is collected (``planes``). With ``NEURON_XPROF=1`` the session is one that XProf's
analyses of ops read (``xprof``).
"""

import itertools
import os
import threading

from neuronx_cc.driver.jax_backend.records import Record, recorders

XPROF = "NEURON_XPROF"
"""Variable of the environment that asks for planes in XProf's terms."""

_sessions: dict[int, list[Record]] = {}
_numbers = itertools.count()
_lock = threading.Lock()


def start() -> int:
    """Begin a session; its number."""
    with _lock:
        session = next(_numbers)
        _sessions[session] = []
        recorders.append(_sessions[session])
    return session


def stop(session: int) -> None:
    """Note no more programs."""
    with _lock:
        records = _sessions.get(session)
        recorders[:] = [each for each in recorders if each is not records]


def collect(session: int) -> bytes:
    """The session as an XSpace message, empty if no program ran; the session is gone."""
    stop(session)
    with _lock:
        records = _sessions.pop(session, [])
    if not records:
        return b""
    from neuronx_cc.driver.jax_backend.planes import make_space

    return make_space(records, os.environ.get(XPROF, "") not in ("", "0"))
