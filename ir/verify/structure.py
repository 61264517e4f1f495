"""The cheap check that always runs: definitions before uses, one return per computation, callees before callers."""

from neuronx_cc.ir.errors import CompileError, Loc
from neuronx_cc.ir.hlo import (
    Alias,
    ArrayType,
    Attribute,
    ComputationOp,
    HloModule,
    HloOp,
    ReturnOp,
    SSAValue,
    StrsAttr,
    TupleType,
)
from neuronx_cc.ir.verify.op import CALL_FIELDS
from neuronx_cc.ir.verify.rule import show


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
    """Aliases and donors exist, and each buffer is given once, for what fits: an alias that must be for the same type,
    others for as many bytes, as XLA has it."""
    entry = module.entry
    parameters = [argument.type for argument in entry.block.args]
    given: set[tuple[int, tuple[int, ...]]] = set()
    for alias in module.aliases:
        output = _part(entry.root.type, alias.output_index)
        if output is None:
            raise CompileError("EVRF064", f"expected an output index of the entry, found {_shown(alias)}")
        parameter = _parameter(parameters, alias.parameter, alias.parameter_index)
        if parameter is None:
            raise CompileError("EVRF064", f"expected a parameter of the entry, found {_shown(alias)}")
        if output != parameter and (alias.must or _nbytes(output) != _nbytes(parameter)):
            how = "which differ" if alias.must else "which have different sizes"
            types = f"{show(output)} and {show(parameter)}, {how}"
            raise CompileError("EVRF064", f"expected one buffer for both, found an alias of {_shown(alias)}: {types}")
        source = (alias.parameter, alias.parameter_index)
        if source in given:
            raise CompileError("EVRF064", f"expected one output for each parameter, found two: {_shown(alias)}")
        given.add(source)
    for number, index in module.donors:
        if _parameter(parameters, number, index) is None:
            raise CompileError("EVRF064", f"expected a parameter of the entry to donate, found {number} {index}")


def _parameter(parameters: list[Attribute], number: int, index: tuple[int, ...]) -> Attribute | None:
    return _part(parameters[number], index) if 0 <= number < len(parameters) else None


def _part(type_: Attribute, index: tuple[int, ...]) -> Attribute | None:
    """The type at an index of nested tuples; None where there is none."""
    for number in index:
        if not isinstance(type_, TupleType) or not 0 <= number < len(type_.data):
            return None
        type_ = type_.data[number]
    return type_


def _nbytes(type_: Attribute) -> int:
    if isinstance(type_, TupleType):
        return sum(_nbytes(part) for part in type_.data)
    return type_.data.nbytes if isinstance(type_, ArrayType) else 0


def _shown(alias: Alias) -> str:
    return f"output {list(alias.output_index)} of parameter {alias.parameter} {list(alias.parameter_index)}"
