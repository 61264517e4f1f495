"""From the module that JAX hands over to a program on devices: options, partitioning, compilation, reuse.

Modules that are equal but for locations are compiled once for the process, with equal options; everything goes through
our importer, passes and code generation.
"""

import hashlib
import threading
import time
import weakref
from collections import deque
from dataclasses import replace

from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]

from neuronx_cc.codegen.context import Transposes
from neuronx_cc.driver.compile import compile_loaded
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend import partition
from neuronx_cc.driver.jax_backend.cache import find_cache
from neuronx_cc.driver.jax_backend.failure import INVALID_ARGUMENT, PluginError, plugin_error
from neuronx_cc.driver.jax_backend.host_calls import inspect
from neuronx_cc.driver.jax_backend.identity import content_of, relocated
from neuronx_cc.driver.jax_backend.options import effective_options
from neuronx_cc.driver.jax_backend.partition import Division
from neuronx_cc.driver.jax_backend.placement import place
from neuronx_cc.driver.jax_backend.program import DEVICE_MEMORY, DeviceProgram, Signature, Unit, make_executables
from neuronx_cc.driver.jax_backend.service import SERVICE
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import Shape
from neuronx_cc.passes.analysis.effects import effectful_computations
from neuronx_cc.passes.drop_tokens import without_tokens

KEPT = 256
"""Small programs that stay compiled after JAX has dropped them."""
SMALL_BYTES = 1 << 20

_units: "weakref.WeakValueDictionary[str, Unit]" = weakref.WeakValueDictionary()
_recent: deque[Unit] = deque(maxlen=KEPT)
_lock = threading.Lock()


def compile(code: bytes, format: str, options: bytes, device_count: int) -> DeviceProgram:
    """Compile for the devices that the CompileOptions proto ``options`` names. Raises PluginError."""
    program: DeviceProgram = SERVICE.run(_compile, code, format, options, device_count)
    return program


def _compile(code: bytes, format: str, options: bytes, device_count: int) -> DeviceProgram:
    session = Session("jax", [], Log())
    try:
        if format not in ("mlir", "hlo"):
            raise PluginError(INVALID_ARGUMENT, f"programs arrive as mlir or hlo, found {format!r}")
        wanted = _jax.CompileOptions.ParseFromString(options)
        parsed = effective_options(wanted.env_option_overrides)
        session.parsed = parsed
        session.log.level = parsed.integer("verbose")
        placement = place(options, device_count)
        division = Division.of(placement.num_replicas, placement.num_partitions, wanted)
        unit = find_unit(code, division, parsed, session)
        return DeviceProgram(unit, placement, options)
    except BaseException as error:
        raise plugin_error(error, session) from None


def find_unit(code: bytes, division: Division, parsed: Parsed, session: Session) -> Unit:
    """The compiled module: this process's own, else a kept one, else a new one."""
    exact = unit_key(code, division, parsed)
    with _lock:
        unit = _units.get(exact)
    if unit is not None:
        return unit
    key = unit_key(content_of(code), division, parsed)
    with _lock:
        unit = _units.get(key)
    store = find_cache(parsed) if unit is None else None
    if store is not None:
        unit = store.unit(key)
    if unit is not None and unit.exact != exact:
        unit = move_unit(unit, exact, code, division, session)
    if unit is None:
        unit = compile_unit(key, exact, code, division, parsed, session)
        if store is not None and not unit.functions:
            store.keep(unit)
    with _lock:
        _units[exact] = _units[key] = unit
        if unit.neff.program.hbm_bytes <= SMALL_BYTES and not unit.functions:
            _recent.append(unit)
    return unit


def unit_key(content: bytes, division: Division, parsed: Parsed) -> str:
    """Of everything that decides the program."""
    text = f"{COMPILER_VERSION} {division} {sorted(parsed.recorded().items())!r}"
    return hashlib.sha256(content + text.encode()).hexdigest()


def move_unit(unit: Unit, exact: str, code: bytes, division: Division, session: Session) -> Unit | None:
    """``unit``, compiled from a module that differs in locations, with those of ``code``."""
    session.module = ("module.mlir", code)
    session.enter("locating the module's operations")
    local = partition.localize(code, division).code
    before, now = (import_local(each, division.replicas, division.partitions) for each in (unit.code, local))
    return relocated(unit, exact, local, before, now)


def compile_unit(key: str, exact: str, code: bytes, division: Division, parsed: Parsed, session: Session) -> Unit:
    started = time.perf_counter()
    session.module = ("module.mlir", code)
    session.enter("partitioning the module")
    local = partition.localize(code, division)
    inspect(local.inspections)
    session.enter("importing the module")
    module = import_local(local.code, division.replicas, division.partitions)
    signature = signature_of(module, local.result_kinds)
    neff = compile_loaded(module, parsed, session, transposes_of(module, signature))
    shardings = local.parameter_shardings, local.result_shardings
    if division.partitions > 1 and local.parameter_shardings is None:
        whole = partition.replicated()
        shardings = (whole,) * len(signature.parameters), (whole,) * len(signature.results)
    return Unit(
        key,
        exact,
        signature,
        neff,
        make_executables(neff),
        local.code,
        parsed,
        time.perf_counter() - started,
        *shardings,
    )


def transposes_of(module: hlo.HloModule, signature: Signature) -> Transposes:
    """Watched where a program may run twice: it gives up no parameter, and calls nothing that has effects."""
    return Transposes.BITS if signature.donors or effectful_computations(module) else Transposes.WATCHED


def careful_unit(unit: Unit) -> Unit:
    """``unit`` for inputs with infinities or NaNs; compiled on first request.

    All transposes are of bit patterns, and any code of an 8-bit float may be NaN.
    """
    if unit.careful is None:
        unit.careful = SERVICE.run(_compile_careful, unit)
    return unit.careful


def _compile_careful(unit: Unit) -> Unit:
    started = time.perf_counter()
    session = Session("jax", [], Log())
    session.parsed, session.module = unit.parsed, ("module.mlir", unit.code)
    module = import_local(unit.code, *unit.neff.program.devices)
    neff = compile_loaded(module, unit.parsed, session, Transposes.BITS, nan_codes=True)
    seconds = time.perf_counter() - started
    return replace(unit, neff=neff, executables=make_executables(neff), seconds=seconds)


def import_local(code: bytes, replicas: int, partitions: int) -> hlo.HloModule:
    """The module of one device; its header says how many run it."""
    module = load_module(code, "", trusted=True)
    counts = (("replica_count", str(replicas)), ("num_partitions", str(partitions)))
    module.header = (*(entry for entry in module.header if entry[0] not in dict(counts)), *counts)
    return module


def signature_of(module: hlo.HloModule, kinds: tuple[str, ...]) -> Signature:
    """Shapes, donors and aliases of an imported module."""
    entry = module.entry
    # of a tuple, which any op may make that is divided over devices
    made = list(entry.root.type.data) if isinstance(entry.root.type, hlo.TupleType) else [entry.root.type]
    results = tuple(map(_shape, made))
    donors = {index for index, _ in module.donors} | {alias.parameter for alias in module.aliases}
    aliases = [(alias.output_index[0] if alias.output_index else 0, alias.parameter) for alias in module.aliases]
    return Signature(
        module.name,
        tuple(_shape(argument.type) for argument in entry.block.args),
        results,
        tuple(sorted(donors)),
        tuple(aliases),
        kinds or (DEVICE_MEMORY,) * len(results),
        tuple(number for number, type_ in enumerate(made) if isinstance(type_, hlo.TokenType)),
    )


def _shape(given: hlo.Attribute) -> Shape:
    """Tokens are what ``passes.drop_tokens`` makes of them."""
    type_ = without_tokens(given)
    assert isinstance(type_, hlo.ArrayType), "JAX passes and returns arrays and tokens"
    return type_.data
