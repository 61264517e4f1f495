"""Records of either front end -> ``HloModule``: resolves names, orders callees before callers, builds the ops.

Computations the entry does not reach are left out; combiners (of reduce, scatter, sort ...) with equal bodies become
one. Every op is verified; an error is placed at the instruction it came from.
"""

from collections.abc import Iterator

from neuronx_cc.hlo_import.bitcast import build_bitcast
from neuronx_cc.hlo_import.raw import RawComputation, RawInstruction, RawModule
from neuronx_cc.hlo_import.shapes import type_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.verify import CALL_FIELDS, op_problem, verify_structure

COMBINER_USERS = frozenset(
    [
        "all-reduce",
        "all-reduce-start",
        "collective-reduce",
        "map",
        "reduce",
        "reduce-scatter",
        "reduce-window",
        "scatter",
        "select-and-scatter",
        "sort",
    ]
)
Key = str | int


def build_module(raw: RawModule) -> hlo.HloModule:
    """The module of ``raw``. Raises ``CompileError`` at the instruction at fault."""
    return _Builder(raw).build()


class _Builder:
    def __init__(self, raw: RawModule):
        self.raw = raw
        self.module = hlo.HloModule.empty(raw.name)
        self.module.constants = raw.constants
        self.module.aliases = raw.aliases
        self.module.donors = raw.donors
        self.module.header = raw.header
        self.module.source = raw.source
        self.renamed: dict[str, str] = {}
        self.combiners: dict[object, str] = {}
        self.built: dict[str, hlo.ComputationOp] = {}
        self.by_name: dict[str, RawComputation] = {}

    def build(self) -> hlo.HloModule:
        entry = self._index()
        ordered = list(self._callees_first(entry))
        combiners = self._combiner_names(ordered)
        block = self.module.op.body.block
        for computation in ordered:
            op = self._computation(computation)
            if computation.name in combiners:
                kept = self.combiners.setdefault(_structure(op), computation.name)
                self.renamed[computation.name] = kept
                if kept != computation.name:
                    continue
            self.built[computation.name] = op
            block.add_op(op)
        verify_structure(self.module)
        return self.module

    def _index(self) -> RawComputation:
        entry = None
        for computation in self.raw.computations:
            if computation.name in self.by_name:
                raise self.raw.error(
                    computation.position, f"expected one computation {computation.name}, found a second"
                )
            self.by_name[computation.name] = computation
            if computation.is_entry:
                if entry is not None:
                    raise self.raw.error(computation.position, "expected one ENTRY computation, found a second")
                entry = computation
        assert entry is not None
        return entry

    def _called(self, computation: RawComputation) -> list[tuple[RawInstruction, str]]:
        return [
            (instruction, name)
            for instruction in computation.instructions
            if instruction.properties
            for field in CALL_FIELDS
            if isinstance(names := instruction.properties.get(field), hlo.StrsAttr)
            for name in names.data
        ]

    def _callees_first(self, entry: RawComputation) -> Iterator[RawComputation]:
        done: set[str] = set()
        active = {entry.name}
        stack = [(entry, iter(self._called(entry)))]
        while stack:
            computation, calls = stack[-1]
            for instruction, name in calls:
                if name in done:
                    continue
                if name in active:
                    raise self.raw.error(
                        instruction.position, f"expected calls without recursion, found {name} calling itself"
                    )
                callee = self.by_name.get(name)
                if callee is None:
                    raise self.raw.error(instruction.position, f"expected a computation of this module, found {name!r}")
                active.add(name)
                stack.append((callee, iter(self._called(callee))))
                break
            else:
                stack.pop()
                active.discard(computation.name)
                done.add(computation.name)
                yield computation

    def _combiner_names(self, ordered: list[RawComputation]) -> set[str]:
        combiners: set[str] = set()
        others: set[str] = set()
        for computation in ordered:
            for instruction, name in self._called(computation):
                (combiners if instruction.opcode in COMBINER_USERS else others).add(name)
        return combiners - others

    def _computation(self, raw: RawComputation) -> hlo.ComputationOp:
        parameters = self._parameters(raw)
        op = hlo.ComputationOp.make(raw.name, [parameter.type for parameter in parameters], raw.is_entry)
        if raw.execution_thread:
            op.attributes["execution_thread"] = hlo.StrAttr(raw.execution_thread)
        values: dict[Key, hlo.SSAValue] = {}
        layouts: dict[Key, tuple[int, ...] | None] = {}
        for index, parameter in enumerate(parameters):
            op.set_parameter_loc(index, parameter.loc)
            if extra := parameter.properties.get("extra"):
                op.attributes[f"param_extra.{index}"] = extra
            if parameter.metadata:
                op.attributes[f"param_metadata.{index}"] = hlo.StrAttr(parameter.metadata)
            values[parameter.key] = op.block.args[index]
            layouts[parameter.key] = parameter.layout
        for instruction in self._defined_first(raw):
            if instruction.opcode == "parameter":
                continue
            values[instruction.key] = self._instruction(op.block, instruction, values, layouts)
            layouts[instruction.key] = instruction.layout
        root = raw.instructions[-1].key if raw.root is None else raw.root
        op.block.add_op(hlo.ReturnOp.create(operands=[values[root]]))
        return op

    def _parameters(self, raw: RawComputation) -> list[RawInstruction]:
        by_number: dict[int, RawInstruction] = {}
        for instruction in raw.instructions:
            if instruction.opcode == "parameter":
                if instruction.parameter in by_number:
                    raise self.raw.error(
                        instruction.position, f"expected one parameter({instruction.parameter}), found two"
                    )
                by_number[instruction.parameter] = instruction
        for number, instruction in by_number.items():
            if not 0 <= number < len(by_number):
                raise self.raw.error(
                    instruction.position,
                    f"expected the parameters of {raw.name} to be numbered 0 to {len(by_number) - 1}, found {number}",
                )
        return [by_number[number] for number in range(len(by_number))]

    def _defined_first(self, raw: RawComputation) -> list[RawInstruction]:
        """The instructions, in file order if that defines every value before its uses."""
        defined: dict[Key, RawInstruction] = {}
        in_order = True
        for instruction in raw.instructions:
            if instruction.key in defined:
                raise self.raw.error(
                    instruction.position, f"expected one instruction {instruction.key}, found a second"
                )
            in_order = in_order and all(operand in defined for operand in instruction.operands)
            defined[instruction.key] = instruction
        if in_order:
            return raw.instructions
        for instruction in raw.instructions:
            for operand in instruction.operands:
                if operand not in defined:
                    raise self.raw.error(
                        instruction.position, f"expected operands defined in {raw.name}, found {operand!r}"
                    )
        return self._sorted(raw, defined)

    def _sorted(self, raw: RawComputation, defined: dict[Key, RawInstruction]) -> list[RawInstruction]:
        ordered: list[RawInstruction] = []
        state: dict[Key, int] = {}
        for first in raw.instructions:
            if first.key in state:
                continue
            state[first.key] = 1
            stack = [(first, iter(first.operands))]
            while stack:
                instruction, operands = stack[-1]
                for operand in operands:
                    if state.get(operand) == 1:
                        raise self.raw.error(
                            instruction.position, f"expected a value that does not depend on itself, found {operand!r}"
                        )
                    if operand not in state:
                        state[operand] = 1
                        stack.append((defined[operand], iter(defined[operand].operands)))
                        break
                else:
                    stack.pop()
                    state[instruction.key] = 2
                    ordered.append(instruction)
        return ordered

    def _instruction(
        self,
        block: hlo.Block,
        raw: RawInstruction,
        values: dict[Key, hlo.SSAValue],
        layouts: dict[Key, tuple[int, ...] | None],
    ) -> hlo.SSAValue:
        operands = [values[operand] for operand in raw.operands]
        properties = raw.properties
        if raw.operand_types:
            self._check_operand_types(raw, operands)
        if raw.opcode == "bitcast" and len(operands) == 1:
            operand_layout = layouts[raw.operands[0]]
            if operand_layout is not None or raw.layout is not None:
                return build_bitcast(block, operands[0], operand_layout, raw)
        if raw.opcode == "compare" and "comparison_type" not in properties:
            properties = {**properties, "comparison_type": _comparison_type(operands)}
        if self.renamed and any(field in properties for field in CALL_FIELDS):
            properties = {name: self._rename(name, attr) for name, attr in properties.items()}
        op = hlo.OPCODES[raw.opcode].make(operands, raw.type, raw.loc, properties)
        if raw.metadata:
            # beside the location, not among the properties: ops that compute the same should look the same
            op.attributes["metadata"] = hlo.StrAttr(raw.metadata)
        block.add_op(op)
        if problem := op_problem(op, self.built):
            raise self.raw.error(raw.position, f"{raw.opcode}: {problem}", raw.loc)
        return op.results[0]

    def _check_operand_types(self, raw: RawInstruction, operands: list[hlo.SSAValue]) -> None:
        assert raw.operand_types is not None
        for name, operand, written in zip(raw.operands, operands, raw.operand_types, strict=True):
            if written is not None and written != operand.type:
                found, is_ = type_text(written), type_text(operand.type)
                raise self.raw.error(raw.position, f"expected operand {name} of type {is_}, found {found}", raw.loc)

    def _rename(self, field: str, attribute: hlo.Attribute) -> hlo.Attribute:
        if field not in CALL_FIELDS or not isinstance(attribute, hlo.StrsAttr):
            return attribute
        return hlo.StrsAttr(tuple(self.renamed.get(name, name) for name in attribute.data))


def _comparison_type(operands: list[hlo.SSAValue]) -> hlo.Attribute:
    dtype = operands[0].type.data.dtype if operands and isinstance(operands[0].type, hlo.ArrayType) else "f32"
    if dtype[0] in "fbc":
        return hlo.StrAttr("FLOAT")
    return hlo.StrAttr("SIGNED" if dtype[0] == "s" else "UNSIGNED")


def _structure(op: hlo.ComputationOp) -> object:
    """Equal for computations that differ only in names and locations."""
    numbers: dict[hlo.SSAValue, int] = {argument: index for index, argument in enumerate(op.block.args)}
    rows: list[object] = [tuple(argument.type for argument in op.block.args)]
    for instruction in op.block.ops:
        operands = tuple(numbers[operand] for operand in instruction.operands)
        types = tuple(result.type for result in instruction.results)
        rows.append((instruction.name, operands, types, tuple(sorted(instruction.properties.items()))))
        for result in instruction.results:
            numbers[result] = len(numbers)
    return tuple(rows)
