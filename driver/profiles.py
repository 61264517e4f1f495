"""Writes what was seen of a run to files: traces."""

import codecs
import gzip
from collections.abc import Sequence
from typing import BinaryIO

from neuronx_cc.driver import files
from neuronx_cc.ir.errors import RunError
from neuronx_cc.runtime.profiling import trace
from neuronx_cc.runtime.profiling.execution import Execution


def write_trace(path: str, executions: Sequence[Execution]) -> None:
    """Write a Chrome / Perfetto trace, compressed if ``path`` ends with ``.gz``. Raises RunError EFIL902."""

    def fill(file: BinaryIO) -> None:
        if path.endswith(".gz"):
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                trace.write_trace(codecs.getwriter("ascii")(packed), executions)
        else:
            trace.write_trace(codecs.getwriter("ascii")(file), executions)

    files.write(path, fill, RunError)
