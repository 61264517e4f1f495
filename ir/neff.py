"""The executable file (NEFF): a compiled program with everything needed to load, run and explain it.

A 1024-byte header (hardware sheet section 6.5) is followed by a tar archive, gzip-compressed unless fast loading was
asked for:

==================================  ================================================================================
``info.json``                       compiler version, target, machine planned for, module name, warnings, names
``signature.json``                  inputs and outputs: name, element type, dims, bytes, aliasing
``options.json``                    the effective options
``sg00/def.json``                   memory map (variables) and the list of engines and DMA queues
``sg00/debug.json``                 debug map: instruction -> kernel -> HLO op -> source line, as columns
``sg00/<stream>.records|...``       one set of binary tables per engine and DMA queue (``ir.isa.format``)
``constants/<n>.bin``               raw little-endian arrays, row-major
==================================  ================================================================================

Constants are stored, not compressed: they stand in a gzip member of their own at level 0, which keeps the file
an ordinary ``.tar.gz`` at memory speed. The same ``Neff`` gives the same bytes: no time stamps, no dependence on
hashing. Everything read is checked before it is used; a bad file is RunError ENEF901 with the reason.
"""

import io
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from neuronx_cc.ir import neff_archive as archive
from neuronx_cc.ir import neff_members as members
from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.ir.isa.decoding import decode
from neuronx_cc.ir.isa.encoding import encode
from neuronx_cc.ir.isa.program import Program, Variable
from neuronx_cc.ir.isa.soundness import check_instructions, of_kind
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.ir.types import NUMPY_DTYPE

Array = np.ndarray[Any, np.dtype[Any]]
Option = str | int | float | bool | None | list[str]
"""A value of an option as JSON knows it."""


@dataclass(frozen=True, slots=True)
class PlannedFor:
    """The machine description that a program was planned for; its settings are among the options."""

    name: str
    digest: str
    """``Machine.digest``."""


@dataclass(slots=True)
class Neff:
    """An executable in memory.

    ``constants[i]`` is the data of the variable of kind ``constant`` with ``index`` i: the array as stored on the
    device, of NumPy type ``types.NUMPY_DTYPE[variable.dtype]``.
    """

    program: Program
    constants: list[Array] = field(default_factory=list)
    options: Mapping[str, Option] = field(default_factory=dict)
    target: str = "trn1"
    compiler_version: str = ""
    name: str = ""
    """Module name."""
    warnings: list[str] = field(default_factory=list)
    fast_loading: bool = False
    """The archive is not compressed."""
    planned_for: PlannedFor | None = None
    exact: "Callable[[], Neff] | None" = field(default=None, compare=False, repr=False)
    """Makes the same program for inputs with NaNs among codes of which this one relies on it that there are none
    (``Variable.defined``); None where it relies on nothing, and for what was read from a file."""

    def machine(self) -> Machine:
        """The target's description with the settings of the compilation, under the planned machine's name.

        Raises UsageError EFIL901 or EARG907 for a target or settings that are not known.
        """
        settings = self.options.get("set")
        machine = find_machine(self.target).with_settings(settings if isinstance(settings, list) else ())
        return machine if self.planned_for is None else replace(machine, name=self.planned_for.name)

    @property
    def inputs(self) -> list[Variable]:
        """Input variables by parameter number."""
        return of_kind(self.program.variables, "input")

    @property
    def outputs(self) -> list[Variable]:
        """Output variables by result number."""
        return of_kind(self.program.variables, "output")

    def save(self, file: BinaryIO) -> None:
        """Write to a seekable binary file that is at its start. Raises CompileError for what the format cannot hold."""
        self._check_constants()
        for call in self.program.host_calls:
            raise CompileError(
                "EHCA901",
                "the program calls a function of the host process, which no file can hold",
                "run it through JAX, or take jax.debug.print and callbacks out",
                call.loc,
            )
        encoded = encode(self.program.records)
        texts = {
            "info.json": members.info_json(
                self.compiler_version,
                self.target,
                (self.planned_for.name, self.planned_for.digest) if self.planned_for else ("", ""),
                self.name,
                self.warnings,
                encoded.names,
            ),
            "signature.json": members.signature_json(self.program.variables),
            "options.json": members.options_json(self.options),
            "sg00/def.json": members.definition_json(self.program, encoded),
            "sg00/debug.json": members.debug_json(self.program),
        }
        tables: dict[str, Any] = {
            members.stream_member(stream, kind): table
            for stream, parts in encoded.streams.items()
            for kind, table in members.tables_of(parts).items()
        }
        constants = {members.constant_member(i): array for i, array in enumerate(self.constants)}
        archive.write(file, texts, tables, constants, self.compiler_version, self.name, compress=not self.fast_loading)

    def _check_constants(self) -> None:
        variables = of_kind(self.program.variables, "constant")
        stored = [(variable.index, NUMPY_DTYPE[variable.dtype], variable.dims) for variable in variables]
        if stored != [(index, array.dtype, array.shape) for index, array in enumerate(self.constants)]:
            raise ValueError("the constants are not those of the memory map")

    def to_bytes(self) -> bytes:
        """The file's content."""
        buffer = io.BytesIO()
        self.save(buffer)
        return buffer.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; it appears complete, by rename. Raises OSError."""
        target = Path(path).resolve()
        temporary = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
        try:
            with temporary.open("xb") as file:
                self.save(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            with suppress(OSError):
                temporary.unlink()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Neff":
        """Check and decode the content of a file. Raises RunError ENEF901 or EBIR902."""
        reader = archive.Reader(data)
        info = members.parse_info(reader.text("info.json"))
        signature = reader.text("signature.json")
        options = members.parse_options(reader.text("options.json"))
        definition = members.parse_definition(reader.text("sg00/def.json"))
        debug = members.parse_debug(reader.text("sg00/debug.json"))
        variables = definition.variables
        if signature != members.signature_json(variables):
            raise archive.malformed("signature.json and sg00/def.json disagree")
        encoded = members.read_streams(reader, info.names, definition)
        program = Program(
            decode(encoded, len(debug.entries), definition.hbm_bytes),
            debug.entries,
            variables,
            definition.hbm_bytes,
            definition.sbuf_peak,
            debug.kernels,
            definition.groups,
            definition.devices,
            schedules=debug.schedules,
        )
        check_instructions(program)
        constants = [members.read_constant(reader, variable) for variable in of_kind(variables, "constant")]
        reader.finish()
        return cls(
            program,
            constants,
            options,
            info.target,
            info.compiler,
            info.name,
            info.warnings,
            not reader.compressed,
            PlannedFor(*info.planned_for) if any(info.planned_for) else None,
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Neff":
        """Load a file. Raises RunError EFIL901 when it cannot be read, and as ``from_bytes``."""
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RunError("EFIL901", f"cannot read the NEFF {path}: {reason}", "check the path") from None
        return cls.from_bytes(data)
