"""StableHLO -> ``HloModule``: jaxlib turns MLIR text, MLIR bytecode and portable artifacts into an HloModuleProto.

jaxlib is imported when the first StableHLO module arrives, not before.
"""

import re

from neuronx_cc.hlo_import.builder import build_module
from neuronx_cc.hlo_import.proto import ProtoReader
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError, UsageError

_PLACE = re.compile(r"(?:UNKNOWN: |INVALID_ARGUMENT: )?-:(\d+):(\d+): (?:error: )?(.*)", re.DOTALL)


def parse_stablehlo(data: bytes, source: str = "") -> hlo.HloModule:
    """The module in ``data``; ``source`` is its file name for messages.

    Raises ``CompileError`` when the module is malformed, ``UsageError`` when jaxlib is not installed.
    """
    name = source or "<stablehlo>"
    try:
        # jaxlib gives its extension modules no type stubs under this name
        from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]
    except ImportError as problem:
        raise UsageError(
            "EVRF064",
            f"{name}: reading StableHLO needs jaxlib, which cannot be imported ({problem})",
            "install jaxlib, or write HLO: jax.jit(f).lower(...).compiler_ir('hlo')",
        ) from None
    try:
        computation = _jax.mlir.mlir_module_to_xla_computation(data, use_tuple_args=False, return_tuple=False)
        serialized: bytes = computation.as_serialized_hlo_module_proto()
    except Exception as problem:
        # jaxlib raises its own error classes, which are not importable everywhere; all carry MLIR's diagnostic
        raise _error(name, str(problem), data) from None
    # MLIR calls the text it was given "-"; ops without locations of their own point there
    return build_module(ProtoReader(serialized, name, {"-": name}).module())


def _error(name: str, diagnostic: str, data: bytes) -> CompileError:
    remedy = "check the module with the StableHLO version that wrote it"
    match = _PLACE.match(diagnostic)
    lines = data.split(b"\n")
    if match is None or data.startswith(b"ML\xef"):
        return CompileError("EVRF064", f"{name}: {_first_line(diagnostic)}", remedy)
    line, column = int(match.group(1)), int(match.group(2))
    shown = lines[line - 1][:160].decode("utf-8", "replace") if 0 < line <= len(lines) else ""
    message = f"{name}:{line}:{column}: {_first_line(match.group(3))}"
    caret = f"\n  {shown}\n  {' ' * (column - 1)}^" if column <= 160 else ""
    return CompileError("EVRF064", message + caret, remedy)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:500] or "expected a StableHLO module"
