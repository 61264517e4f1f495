"""Brings modules into the form that jaxlib's Shardy passes take, and back: calls inlined, no CHLO ops.

The passes do not follow calls, and their conversion to local shapes does not know CHLO: an elementwise CHLO op stands
behind an elementwise op of StableHLO meanwhile.
"""

from typing import Any

from jaxlib.mlir import ir

STAND_IN = {1: "stablehlo.tan", 2: "stablehlo.atan2"}
"""Elementwise ops without folders, by number of operands."""
MARK = "neuron.stands_for"


def inline_calls(module: Any) -> None:
    """Replace every call by the body of its function, and drop functions that nothing names any more."""
    functions = {}
    for op in module.body.operations:
        if op.operation.name == "func.func":
            functions[ir.StringAttr(op.attributes["sym_name"]).value] = op.operation
    while calls := _find(functions["main"], lambda op: op.name in ("func.call", "call")):
        for call in calls:
            _inline(call, functions[ir.FlatSymbolRefAttr(call.attributes["callee"]).value])
    composites = _find(functions["main"], lambda op: "decomposition" in op.attributes)
    named = {ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value for op in composites}
    # jaxlib's conversion to HLO crashes where a custom call names a function that is gone
    for op in _find(functions["main"], lambda op: "called_computations" in op.attributes):
        named |= {ir.FlatSymbolRefAttr(name).value for name in ir.ArrayAttr(op.attributes["called_computations"])}
    for name, function in functions.items():
        if name != "main" and name not in named:
            function.erase()


def _inline(call: Any, function: Any) -> None:
    block = function.regions[0].blocks[0]
    known = dict(zip(block.arguments, call.operands, strict=True))
    *body, last = list(block.operations)
    for op in body:
        copy = op.operation.clone(ip=ir.InsertionPoint(call))

        def rename(inner: Any) -> Any:
            for index, operand in enumerate(inner.operands):
                if operand in known:
                    inner.operands[index] = known[operand]
            return ir.WalkResult.ADVANCE

        copy.operation.walk(rename)
        known.update(zip(op.operation.results, copy.operation.results, strict=True))
    for result, value in zip(call.results, last.operation.operands, strict=True):
        result.replace_all_uses_with(known.get(value, value))
    call.erase()


def _find(root: Any, wanted: Any) -> list[Any]:
    found: list[Any] = []

    def note(op: Any) -> Any:
        if wanted(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.operation.walk(note)
    return found


def hide_composites(module: Any) -> None:
    """Put a stand-in in the place of each elementwise CHLO op."""
    found = _find(module, lambda op: op.name.startswith("chlo.") and len(op.results) == 1 and _elementwise(op))
    for op in found:
        text = op.name
        made = ir.Operation.create(
            STAND_IN[len(op.operands)],
            [op.results[0].type],
            list(op.operands),
            {MARK: ir.StringAttr.get(text)},
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        for name in ("sdy.sharding", "mhlo.frontend_attributes"):
            if name in op.attributes:
                made.attributes[name] = op.attributes[name]
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()


def _elementwise(op: Any) -> bool:
    return len(op.operands) in STAND_IN and all(operand.type == op.results[0].type for operand in op.operands)


def restore_composites(module: Any) -> None:
    """Put the CHLO ops back."""
    found = _find(module, lambda op: MARK in op.attributes)
    for op in found:
        made = ir.Operation.create(
            ir.StringAttr(op.attributes[MARK]).value,
            [op.results[0].type],
            list(op.operands),
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()
