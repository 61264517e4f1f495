"""When two modules are one program: equal but for the source lines and names that their operations come from.

Programs are known by their content without locations, so that a moved line compiles nothing. A program found that way
gets the locations of the module at hand (``relocated``): what traces, reports and faults name is where the code is now.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]
from jaxlib.mlir import ir

from neuronx_cc.driver.jax_backend.program import Unit, make_executables
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.isa.program import Debug

CONTEXT_BYTES = 16 << 20
"""An MLIR context keeps all constants it has seen; after modules of so many bytes there is a new one."""

_context: Any = None
_context_used = 0


def content_of(code: bytes) -> bytes:
    """The module without locations; ``code`` itself if it is no portable artifact. One thread at a time."""
    global _context, _context_used
    if not code.startswith(b"ML\xefR"):
        return code
    if _context is None or _context_used > CONTEXT_BYTES:
        _context, _context_used = _make_context(), 0
    _context_used += len(code)
    try:
        with _context:
            module = _jax.mlir.deserialize_portable_artifact(code, _context)
            text: str = module.operation.get_asm(enable_debug_info=False)
    except ir.MLIRError:
        return code  # the importer says what is wrong with it
    return text.encode()


def _make_context() -> Any:
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    context = ir.Context()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def relocated(unit: Unit, exact: str, code: bytes, before: hlo.HloModule, now: hlo.HloModule) -> Unit | None:
    """``unit`` with the locations of the module ``now``, whose local code is ``code`` and whose key is ``exact``.

    ``before`` is the unit's own module as imported. None when the two modules differ in more than locations.
    """
    old, new = list(_places(before)), list(_places(now))
    if [opcode for opcode, _ in old] != [opcode for opcode, _ in new]:
        return None
    places = {was.name: place for (_, was), (_, place) in zip(old, new, strict=True)}
    program = unit.neff.program
    moved = replace(program, debug=[_moved(entry, places) for entry in program.debug])
    neff = replace(unit.neff, program=moved)
    return replace(unit, exact=exact, neff=neff, executables=make_executables(neff), code=code)


def _places(module: hlo.HloModule) -> Iterator[tuple[str, Loc]]:
    for computation in module.computations():
        for index in range(len(computation.block.args)):
            yield "parameter", computation.parameter_loc(index)
        for op in computation.block.ops:
            if isinstance(op, hlo.HloOp):
                yield op.opcode, op.loc


def _moved(entry: Debug, places: dict[str, Loc]) -> Debug:
    place = places.get(entry.hlo)
    if place is None:
        return entry
    return replace(
        entry,
        hlo=place.name,
        op_name=place.op_name,
        source_file=place.source_file,
        source_line=place.source_line,
    )
