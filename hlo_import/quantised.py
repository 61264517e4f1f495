"""StableHLO with quantised types -> the same in integers, scales and zero points, by StableHLO's own passes.

A quantised number is ``(code - zero point) * scale``, with one of each or one an index of a dim. Operations between
such arrays become operations on integers where StableHLO says how; others, if it has none for them, compute with the
numbers and round their results to codes.
"""

from io import BytesIO
from typing import Any

BRIDGE = "builtin.module(vhlo-legalize-to-stablehlo)"
"""Loads the dialect of quantised types, which has no module of its own in jaxlib."""
INTEGERS = "stablehlo-legalize-quant-to-math"
NUMBERS = "stablehlo-legalize-quantized-op-to-qdq," + INTEGERS
PIPELINE = "builtin.module(func.func({}),func.func(chlo-legalize-to-stablehlo))"


def without_quantised_types(data: bytes) -> bytes | None:
    """Bytecode of the module in ``data``, MLIR text or bytecode; None where these passes leave quantised types."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _chlo, _jax_mlir_ext, _stablehlo
    from jaxlib.mlir.passmanager import PassManager

    _stablehlo.register_stablehlo_passes()
    for passes in (INTEGERS, NUMBERS):
        context, registry = ir.Context(), ir.DialectRegistry()
        _jax_mlir_ext.register_dialects(registry)
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        for dialect in (_chlo, _stablehlo):
            dialect.register_dialect(context)
        with context:
            PassManager.parse(BRIDGE).run(ir.Module.parse("module {}").operation)
            try:
                module = ir.Module.parse(data)
                PassManager.parse(PIPELINE.format(passes)).run(module.operation)
            except ir.MLIRError:
                continue
            _without_barriers(module)
            written = BytesIO()
            module.operation.write_bytecode(written)
            return written.getvalue()
    return None


def _without_barriers(module: Any) -> None:
    """Codes of weights are behind a barrier, which would hide that they are constants."""
    from jaxlib.mlir import ir

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.optimization_barrier":
            for result, operand in zip(op.results, op.operands, strict=True):
                result.replace_all_uses_with(operand)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
