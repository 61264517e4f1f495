"""What the C++ side holds of one compiled program, and the element types of the PJRT interface.

``DeviceProgram``'s plain attributes are copied out by ``runtime/pjrt/python.cpp`` (``read_program``).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronx_cc.driver.jax_backend.host_calls import HostFunction, functions_of
from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import in_donated_memory
from neuronx_cc.ir.types import Shape

if TYPE_CHECKING:
    from neuronx_cc.driver.parse import Parsed
    from neuronx_cc.ir.neff import Neff
    from neuronx_cc.runtime import Executable
    from neuronx_cc.runtime.memory import OnChip

TYPE_CODES = {
    name: code
    for code, name in enumerate(
        (
            *("", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "bf16", "c64"),
            *("c128", "f8e5m2", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s4", "u4", "token"),
            *("s2", "u2", "f8e4m3", "f8e3m4", "f8e8m0fnu", "f4e2m1fn"),
        )
    )
    if name
}
"""HLO element type -> number in the interface (its public enumeration of buffer types)."""

DEVICE_MEMORY = "device"

WATCH = ("f32", (1,))
"""Type and dims of the result that says whether all that a program transposed as values was finite."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The program as its caller sees it; the same on every device."""

    name: str
    parameters: tuple[Shape, ...]
    results: tuple[Shape, ...]
    donors: tuple[int, ...]
    """Parameters whose memory the caller gives up."""
    aliases: tuple[tuple[int, int], ...]
    """(result, parameter) pairs that share memory."""
    result_kinds: tuple[str, ...]
    """Memory kind of each result."""
    tokens: tuple[int, ...] = ()
    """Results that JAX knows as tokens; here they are arrays without elements."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Unit:
    """A compiled module, shared by all programs made from the same module and options."""

    key: str
    """Of the module without locations, and the options."""
    exact: str
    """The same with locations."""
    signature: Signature
    neff: "Neff"
    executables: "list[Executable]"
    """One for each device, sharing constants, when devices exchange data; else a single one serves all devices."""
    code: bytes
    """The module of one device, as it was imported."""
    parsed: "Parsed"
    """Effective options."""
    seconds: float
    """Wall time of the compilation."""
    parameter_shardings: tuple[bytes, ...] | None = None
    result_shardings: tuple[bytes, ...] | None = None
    arguments: "list[tuple[tuple[int, ...], np.dtype[Any]]]" = field(init=False)
    """Dims and storage type of each parameter, and of each result."""
    careful: "Unit | None" = None
    """The same program with all transposes as bit patterns, once inputs asked for it."""
    functions: "dict[int, HostFunction]" = field(init=False)
    """The functions of the host that the program calls; it keeps them alive."""
    results: "list[tuple[tuple[int, ...], np.dtype[Any]]]" = field(init=False)

    @property
    def watched(self) -> bool:
        """Whether the program has one more result, which says whether what it transposed as values was finite."""
        return len(self.neff.outputs) > len(self.signature.results)

    def __post_init__(self) -> None:
        self.arguments = [(shape.dims, STORAGE[shape.dtype]) for shape in self.signature.parameters]
        self.results = [(shape.dims, STORAGE[shape.dtype]) for shape in self.signature.results]
        self.functions = functions_of(self.neff.program)


_on_chip: "list[OnChip]" = []
"""Launches take turns, so all programs share the SBUF and PSUM of each place in a launch."""


def make_executables(neff: "Neff") -> "list[Executable]":
    """The loaded program; one for each device when devices must run together because they exchange data."""
    from neuronx_cc.runtime.devices import device_count
    from neuronx_cc.runtime.executable import Executable
    from neuronx_cc.runtime.memory import OnChip

    if not _on_chip:
        _on_chip.append(OnChip())
    first = Executable.of(neff, _on_chip[0])
    count = device_count(first) if neff.program.groups else 1
    while len(_on_chip) < count:
        _on_chip.append(OnChip())
    return [first, *(first.on_another_device(place) for place in _on_chip[1:count])]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a program runs."""

    num_replicas: int
    num_partitions: int
    device_ids: tuple[int, ...]
    """Flattened [replica][partition]; empty for a program that runs on any device."""
    assignment: bytes
    """A serialized DeviceAssignmentProto."""


@dataclass(slots=True)
class DeviceProgram:
    """A unit placed on devices."""

    unit: Unit
    placement: Placement
    options: bytes
    """The serialized CompileOptions."""

    @property
    def num_replicas(self) -> int:
        return self.placement.num_replicas

    @property
    def num_partitions(self) -> int:
        return self.placement.num_partitions

    @property
    def device_ids(self) -> tuple[int, ...]:
        return self.placement.device_ids

    @property
    def assignment(self) -> bytes:
        return self.placement.assignment

    @property
    def name(self) -> str:
        return self.unit.signature.name

    @property
    def fingerprint(self) -> str:
        return self.unit.key

    @property
    def num_parameters(self) -> int:
        return len(self.unit.signature.parameters)

    @property
    def parameter_ranks(self) -> list[int]:
        return [shape.rank for shape in self.unit.signature.parameters]

    @property
    def donated(self) -> tuple[int, ...]:
        return self.unit.signature.donors

    @property
    def outputs(self) -> list[tuple[int, tuple[int, ...], str, int]]:
        """Type code, dims, memory kind and donor (or -1) of each result."""
        signature = self.unit.signature
        donors = dict(signature.aliases)
        return [
            (TYPE_CODES["token" if index in signature.tokens else shape.dtype], shape.dims, kind, donors.get(index, -1))
            for index, (shape, kind) in enumerate(zip(signature.results, signature.result_kinds, strict=True))
        ]

    @property
    def argument_bytes(self) -> int:
        return sum(shape.nbytes for shape in self.unit.signature.parameters)

    @property
    def output_bytes(self) -> int:
        return sum(shape.nbytes for shape in self.unit.signature.results)

    @property
    def alias_bytes(self) -> int:
        return sum(self.unit.signature.results[result].nbytes for result, _ in self.unit.signature.aliases)

    @property
    def constant_bytes(self) -> int:
        return sum(variable.nbytes for variable in self.unit.neff.program.variables if variable.kind == "constant")

    @property
    def temp_bytes(self) -> int:
        """Scratch in HBM beside inputs, outputs and constants; outputs in donated memory count once."""
        program = self.unit.neff.program
        once = sum(variable.nbytes for variable in in_donated_memory(program.variables))
        named = self.argument_bytes + self.output_bytes - once + self.constant_bytes
        return max(0, program.hbm_bytes - named)

    @property
    def code_bytes(self) -> int:
        """Size of the instruction streams in the NEFF: 128 bytes a record."""
        return 128 * len(self.unit.neff.program.records)

    @property
    def parameter_shardings(self) -> tuple[bytes, ...] | None:
        return self.unit.parameter_shardings

    @property
    def output_shardings(self) -> tuple[bytes, ...] | None:
        return self.unit.result_shardings
