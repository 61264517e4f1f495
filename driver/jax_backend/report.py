"""What users ask about programs that JAX has run: simulated time, utilisation, traces.

    with neuronx_cc.recording() as runs:
        step(state, batch)
    print(runs[-1].report)                 # also runs[-1].seconds
    runs[-1].write_trace("step.json")      # for ui.perfetto.dev

``neuronx_cc.last_run()`` is the last program alone. Values never wait for the clock: it runs when it is asked.
"""

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import overload

from neuronx_cc.driver import files
from neuronx_cc.driver.jax_backend import launch
from neuronx_cc.driver.jax_backend.records import Record, recorders
from neuronx_cc.driver.profiles import write_trace
from neuronx_cc.ir.errors import RunError
from neuronx_cc.runtime.profiling.analysis import Analysis, analyse
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.page import make_page
from neuronx_cc.runtime.report import RunReport


class Run:
    """One call of one program on its devices."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._unit, self.device_ids, self._course, _ = record
        self.name = self._unit.signature.name
        """Name of the module, such as ``jit_step``."""

    @property
    def warnings(self) -> list[str]:
        """What the compiler has warned of, operators that several devices compute alike among it."""
        return list(self._unit.neff.warnings)

    @cached_property
    def report(self) -> RunReport:
        """Time and utilisation of the first device."""
        executable = self._unit.executables[0]
        return executable.report(executable.execution(self._course))

    @property
    def executions(self) -> list[Execution]:
        """The run on each device, for the clock; of all devices with the course of the first one."""
        executable = self._unit.executables[0]
        return [executable.execution(self._course, device=device) for device in self.device_ids or (0,)]

    @property
    def seconds(self) -> float:
        """Simulated time on the device."""
        return self.report.time_ns * 1e-9

    def write_trace(self, path: str) -> None:
        """Write a Chrome / Perfetto trace of all devices, packed if ``path`` ends with ``.gz``.

        Raises RunError EFIL902.
        """
        write_trace(path, self.executions)

    @property
    def analysis(self) -> Analysis:
        """Everything a report of the first device says; ``analysis.document`` is ready for ``json.dump``."""
        return analyse(self.executions[0], self._unit.neff.options)

    def write_report(self, path: str) -> None:
        """Write a page that explains where the time of the first device goes. Raises RunError EFIL902."""
        files.write_text(path, make_page(self.analysis.document), RunError)

    def __repr__(self) -> str:
        return f"<run of {self.name} on devices {list(self.device_ids)}>"


class Runs(Sequence[Run]):
    """The runs of a ``recording`` in order; it grows while the block runs."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> list[Run]: ...
    def __getitem__(self, index: int | slice) -> Run | list[Run]:
        if isinstance(index, slice):
            return [Run(record) for record in self._records[index]]
        return Run(self._records[index])

    @property
    def seconds(self) -> float:
        """Simulated time of all runs, one after the other."""
        return sum(run.seconds for run in self)


@contextmanager
def recording() -> Iterator[Runs]:
    """Notes every program that JAX runs on simulated devices inside the block, in any thread."""
    records: list[Record] = []
    recorders.append(records)
    try:
        yield Runs(records)
    finally:
        recorders.remove(records)


def last_run() -> Run:
    """The last program that JAX has run on simulated devices. Raises RunError when there is none."""
    if launch.last is None:
        raise RunError("ERUN905", "no program has run on a simulated device yet", "JAX_PLATFORMS=neuron selects them")
    return Run(launch.last)


def write_xprof(directory: str, runs: Run | Iterable[Run]) -> str:
    """Write runs of JAX programs as a profile for XProf and TensorBoard under ``directory``; the path of the file.

    ``runs`` is what ``recording()`` gives, or some of it, or ``last_run()``. The file says that the device is a
    simulated one. Raises RunError EFIL902 when it cannot be written, ERUN905 when there is nothing to write.
    """
    from neuronx_cc.driver.jax_backend.planes import make_space

    chosen: Sequence[Run] = [runs] if isinstance(runs, Run) else list(runs)
    if not chosen:
        raise RunError("ERUN905", "no program has run on a simulated device yet", "JAX_PLATFORMS=neuron selects them")
    data = make_space([run.record for run in chosen], True, consecutive=True)
    folder = Path(directory) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError("EFIL902", f"cannot write {folder}: {reason}", "choose another place") from None
    path = str(folder / f"{platform.node() or 'host'}.xplane.pb")
    files.write_bytes(path, data, RunError)
    return path
