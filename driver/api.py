"""The Python API: ``neuronx_cc.compile(module, *arguments, **options)`` and ``neuronx_cc.load(path)``.

Options are those of ``neuronx-cc compile`` with underscores, and its defaults but one: 64-bit integers are computed
exactly (``int64="truncate"`` cuts them as the command does). Errors are the ``NeuronError`` subclasses that the command
line prints. Nothing is printed and no log file is written unless options ask for it.
"""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronx_cc.driver import files, options
from neuronx_cc.driver.compile import compile_data, compile_loaded, write_neff
from neuronx_cc.driver.failure import Session, as_neuron_error
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.ir import collector
from neuronx_cc.ir.errors import RunError, UsageError

if TYPE_CHECKING:
    from neuronx_cc.ir.neff import Neff
    from neuronx_cc.runtime import Executable

ERROR_LEVEL = options.LEVELS["error"]


def compile(module: Any, *arguments: Any, **options_: Any) -> "Executable":
    """Compile ``module`` and return the loaded program, which is called with arrays.

    ``module`` is a jitted function, whose ``arguments`` follow (arrays, or anything with shape and dtype); what
    ``jax.jit(f).trace(...)``, ``jax.jit(f).lower(...)`` or ``jax.export.export(...)`` return; HLO or StableHLO text
    (``str``), a serialized module (``bytes``), a path (``os.PathLike``, or ``str`` without a line break) or an
    ``HloModule``. With ``output=path`` the NEFF is also written there. Raises ``UsageError`` for wrong options,
    ``CompileError`` for modules that do not compile, and what JAX raises when it lowers a function.
    """
    from neuronx_cc import runtime
    from neuronx_cc.driver import jax_objects

    parsed = from_keywords(options.COMPILE, options_)
    if "int64" not in parsed.given:
        parsed.values["int64"] = "exact"
    source = jax_objects.module_of(module, arguments)
    session = Session("neuronx_cc.compile", [], Log(parsed.integer("verbose")), parsed)
    if "verbose" not in parsed.given:
        session.log.level = ERROR_LEVEL
    with session.log:
        if "logfile" in parsed.given:
            session.log.open(parsed.text("logfile"), required=True)
            session.log_command()
        for line in parsed.notices():
            session.log.warning(line)
        if "output" in parsed.given:
            files.check_writable(parsed.text("output"), "output")
        try:
            with collector.paused():
                neff = _compile(module if source is None else source.data, session)
                if "output" in parsed.given:
                    write_neff(neff, parsed.text("output"), session)
                executable = runtime.load(neff)
                executable.structure = source.structure if source is not None else None
                return executable
        except Exception as error:
            failure = as_neuron_error(error, session)
            if failure is error:
                raise
            raise failure from error


def load(path: str | os.PathLike[str]) -> "Executable":
    """Load a NEFF file; raises ``RunError`` when it cannot be read or is not valid."""
    from neuronx_cc import runtime

    if not isinstance(path, str | os.PathLike):
        raise UsageError("EARG906", f"load takes the path of a NEFF, found a {type(path).__name__}")
    return runtime.load(files.read(os.fspath(path), "NEFF", RunError))


def _compile(module: Any, session: Session) -> "Neff":
    parsed = session.parsed
    assert parsed is not None
    if isinstance(module, bytes | bytearray | memoryview):
        return compile_data(bytes(module), "", parsed, session)
    if isinstance(module, str) and not _is_path(module):
        return compile_data(module.encode(), "", parsed, session)
    if isinstance(module, str | os.PathLike):
        path = os.fspath(Path(module))
        return compile_data(files.read(path, "model file"), path, parsed, session)

    from neuronx_cc.ir.hlo import HloModule

    if isinstance(module, HloModule):
        # the passes work in place; the caller keeps the module as it is
        return compile_loaded(dataclasses.replace(module, op=module.op.clone()), parsed, session)
    raise UsageError(
        "EARG906",
        f"cannot compile a {type(module).__name__}",
        "pass a jitted function and its arguments, jax.jit(f).lower(...), HLO text, bytes, a path or an HloModule",
    )


def _is_path(text: str) -> bool:
    return "\n" not in text and not text.lstrip().startswith(("HloModule", "module"))
