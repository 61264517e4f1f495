"""The cheap check that always runs: definitions before uses, one return per computation, callees before callers."""

from neuronx_cc.ir.errors import CompileError, Loc
from neuronx_cc.ir.hlo import Alias, Attribute, ComputationOp, HloModule, HloOp, ReturnOp, SSAValue, StrsAttr, TupleType
from neuronx_cc.ir.verify.op import CALL_FIELDS


def verify_structure(module: HloModule) -> None:
    """Raises ``CompileError`` EVRF064 when the module is not well formed, whatever its ops mean."""
    seen: set[str] = set()
    entries = 0
    for computation in module.op.body.block.ops:
        if not isinstance(computation, ComputationOp):
            raise CompileError("EVRF064", f"expected computations in a module, found {computation.name}")
        name = computation.computation_name
        if name in seen:
            raise CompileError("EVRF064", f"expected distinct computation names, found {name} twice")
        _computation(computation, seen)
        seen.add(name)
        entries += computation.is_entry.data
    if entries != 1:
        raise CompileError("EVRF064", f"expected one entry computation, found {entries}")
    _aliases(module)


def _computation(computation: ComputationOp, seen: set[str]) -> None:
    block = computation.block
    defined: set[SSAValue] = set(block.args)
    last = block.last_op
    for op in block.ops:
        for operand in op.operands:
            if operand not in defined:
                raise CompileError(
                    "EVRF064",
                    f"expected operands defined above their use in {computation.computation_name}",
                    loc=op.loc if isinstance(op, HloOp) else Loc(),
                )
        if isinstance(op, HloOp):
            defined.add(op.results[0])
            for field in CALL_FIELDS:
                names = op.properties.get(field)
                for name in names.data if isinstance(names, StrsAttr) else ():
                    if name not in seen:
                        raise CompileError(
                            "EVRF064", f"expected a computation defined above its caller, found {name}", loc=op.loc
                        )
        elif op is not last or not isinstance(op, ReturnOp):
            raise CompileError("EVRF064", f"expected hlo ops and one return at the end, found {op.name}")
    if not isinstance(last, ReturnOp):
        raise CompileError("EVRF064", f"expected a return at the end of {computation.computation_name}")


def _aliases(module: HloModule) -> None:
    entry = module.entry
    parameters = [argument.type for argument in entry.block.args]
    for alias in module.aliases:
        if not _exists(entry.root.type, alias.output_index):
            raise CompileError("EVRF064", f"expected an output index of the entry, found {_shown(alias)}")
        if not 0 <= alias.parameter < len(parameters) or not _exists(
            parameters[alias.parameter], alias.parameter_index
        ):
            raise CompileError("EVRF064", f"expected a parameter of the entry, found {_shown(alias)}")
    for parameter, index in module.donors:
        if not 0 <= parameter < len(parameters) or not _exists(parameters[parameter], index):
            raise CompileError("EVRF064", f"expected a parameter of the entry to donate, found {parameter} {index}")


def _exists(type_: Attribute, index: tuple[int, ...]) -> bool:
    for number in index:
        if not isinstance(type_, TupleType) or not 0 <= number < len(type_.data):
            return False
        type_ = type_.data[number]
    return True


def _shown(alias: Alias) -> str:
    return f"output {list(alias.output_index)} of parameter {alias.parameter} {list(alias.parameter_index)}"
