"""Records of either front end -> ``HloModule``: resolves names, infers types left out, builds the ops.

Operands stand above their uses and computations above their callers, as XLA has it. Computations the entry does not
reach are checked and left out; combiners (of reduce, scatter, sort ...) with equal bodies become one. Every op is
verified; an error is placed at the instruction it came from.
"""

from collections.abc import Iterator, Sequence

from neuronx_cc.hlo_import.bitcast import build_bitcast
from neuronx_cc.hlo_import.kept_types import constraints
from neuronx_cc.hlo_import.raw import INFERRED, Properties, RawComputation, RawInstruction, RawModule
from neuronx_cc.hlo_import.shapes import TypedText, joined, laid_out, type_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.verify import CALL_FIELDS, op_problem, verify_structure
from neuronx_cc.ir.verify.infer import CannotInfer, infer_type

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
        ordered = list(self._callees_first([entry]))
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
        reached = {computation.name for computation in ordered}
        for computation in self._callees_first(self.raw.computations):
            if computation.name not in reached:
                self.built[computation.name] = self._computation(computation)
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

    def _callees_first(self, roots: Sequence[RawComputation]) -> Iterator[RawComputation]:
        """The computations that ``roots`` reach, in one order however the file has them."""
        places = {computation.name: place for place, computation in enumerate(self.raw.computations)}
        done: set[str] = set()
        stack = [(root, iter(self._called(root))) for root in reversed(roots)]
        while stack:
            computation, calls = stack[-1]
            for instruction, name in calls:
                if name not in places:
                    raise self.raw.error(instruction.position, f"expected a computation of this module, found {name!r}")
                if places[name] >= places[computation.name]:
                    raise self.raw.error(
                        instruction.position, f"expected a computation that stands above its caller, found {name!r}"
                    )
                if name not in done:
                    callee = self.by_name[name]
                    stack.append((callee, iter(self._called(callee))))
                    break
            else:
                stack.pop()
                if computation.name not in done:
                    done.add(computation.name)
                    yield computation

    def _combiner_names(self, ordered: list[RawComputation]) -> set[str]:
        combiners: set[str] = set()
        others: set[str] = set()
        scalar = hlo.opcodes(hlo.ApplyingOp)
        for computation in ordered:
            for instruction, name in self._called(computation):
                (combiners if instruction.opcode in scalar else others).add(name)
        return combiners - others

    def _computation(self, raw: RawComputation) -> hlo.ComputationOp:
        parameters = self._parameters(raw)
        op = hlo.ComputationOp.make(raw.name, [parameter.type for parameter in parameters], raw.is_entry)
        if raw.execution_thread:
            op.attributes["execution_thread"] = hlo.StrAttr(raw.execution_thread)
        values: dict[Key, hlo.SSAValue] = {}
        records: dict[Key, RawInstruction] = {}
        for index, parameter in enumerate(parameters):
            op.set_parameter_loc(index, parameter.loc)
            if extra := parameter.properties.get("extra"):
                op.attributes[f"param_extra.{index}"] = extra
            if parameter.spelled:
                op.attributes[f"param_layout.{index}"] = hlo.StrAttr(parameter.spelled)
            if parameter.metadata:
                op.attributes[f"param_metadata.{index}"] = hlo.StrAttr(parameter.metadata)
            values[parameter.key] = op.block.args[index]
            records[parameter.key] = parameter
        self._check_order(raw)
        for instruction in raw.instructions:
            if instruction.opcode == "parameter":
                continue
            values[instruction.key] = self._instruction(op.block, instruction, values, records)
            records[instruction.key] = instruction
        root = raw.instructions[-1].key if raw.root is None else raw.root
        if raw.result is not None and raw.result != values[root].type:
            found, is_ = type_text(raw.result), type_text(values[root].type)
            raise self.raw.error(raw.position, f"expected a result of type {is_} of {raw.name}, found {found}")
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

    def _check_order(self, raw: RawComputation) -> None:
        """Names are distinct, and operands stand above their uses."""
        defined: set[Key] = set()
        for instruction in raw.instructions:
            if instruction.key in defined:
                raise self.raw.error(
                    instruction.position, f"expected one instruction {instruction.key}, found a second"
                )
            for operand in instruction.operands:
                if operand not in defined:
                    raise self.raw.error(
                        instruction.position, f"expected operands defined above in {raw.name}, found {operand!r}"
                    )
            defined.add(instruction.key)

    def _instruction(
        self,
        block: hlo.Block,
        raw: RawInstruction,
        values: dict[Key, hlo.SSAValue],
        records: dict[Key, RawInstruction],
    ) -> hlo.SSAValue:
        operands = [values[operand] for operand in raw.operands]
        properties = raw.properties
        if raw.operand_types:
            self._check_operand_types(raw, operands)
        if raw.opcode == "custom-call":
            self._check_constraints(raw, operands)
        if (
            raw.opcode in ("copy", "bitcast", "concatenate")
            and len(operands) == 1
            and isinstance(raw.type, hlo.TupleType)
        ):
            return self._same_tuple(raw, operands[0])
        if raw.opcode in ("async-update", "async-done"):
            self._check_started(raw, records)
        if raw.opcode in ("send-done", "recv-done") and raw.operands:
            self._check_channel(raw, records[raw.operands[0]])
        if raw.opcode == "bitcast" and len(operands) == 1:
            operand_layout = records[raw.operands[0]].layout
            if operand_layout is not None or raw.layout is not None:
                return _laid_out(build_bitcast(block, operands[0], operand_layout, raw), raw)
        if raw.opcode == "compare" and "comparison_type" not in properties:
            properties = {**properties, "comparison_type": _comparison_type(operands)}
        if self.renamed and any(field in properties for field in CALL_FIELDS):
            properties = {name: self._rename(name, attr) for name, attr in properties.items()}
        if raw.type is INFERRED or raw.opcode == "add-dependency":  # of which XLA overlooks the type
            raw.type = self._inferred(raw, operands, properties)
            typed = _inferred_layout(raw, properties, [records[operand] for operand in raw.operands])
            raw.layout, raw.spelled = typed.layout, typed.spelled
        op = hlo.OPCODES[raw.opcode].make(operands, raw.type, raw.loc, properties)
        if raw.metadata:
            # beside the location, not among the properties: ops that compute the same should look the same
            op.attributes["metadata"] = hlo.StrAttr(raw.metadata)
        block.add_op(op)
        if problem := op_problem(op, self.built):
            raise self.raw.error(raw.position, f"{raw.opcode}: {problem}", raw.loc)
        return _laid_out(op.results[0], raw)

    def _check_started(self, raw: RawInstruction, records: dict[Key, RawInstruction]) -> None:
        found = [records[operand].opcode for operand in raw.operands]
        if len(found) != 1 or found[0] not in ("async-start", "async-update"):
            what = (
                f"{raw.opcode}: expected an async-start or async-update as operand, found {', '.join(found) or 'none'}"
            )
            raise self.raw.error(raw.position, what, raw.loc)

    def _check_channel(self, raw: RawInstruction, started: RawInstruction) -> None:
        """What ends a transfer names the channel that its start names."""
        wanted, found = (_extra(each, "channel_id") for each in (started, raw))
        if started.opcode in ("send", "recv") and found != wanted:
            what = f"{raw.opcode}: expected {_channel(wanted)}, as the {started.opcode} has, found {_channel(found)}"
            raise self.raw.error(raw.position, what, raw.loc)

    def _inferred(self, raw: RawInstruction, operands: list[hlo.SSAValue], properties: Properties) -> hlo.Attribute:
        try:
            return infer_type(raw.opcode, properties, [operand.type for operand in operands], self.built)
        except CannotInfer as problem:
            raise self.raw.error(raw.position, f"{raw.opcode}: {problem}", raw.loc) from None

    def _same_tuple(self, raw: RawInstruction, operand: hlo.SSAValue) -> hlo.SSAValue:
        """A copy of a tuple, or what it alone is joined of, is the tuple: values have no place yet."""
        if operand.type != raw.type:
            found, is_ = type_text(raw.type), type_text(operand.type)
            raise self.raw.error(raw.position, f"{raw.opcode}: expected a result of {is_}, found {found}", raw.loc)
        return operand

    def _check_operand_types(self, raw: RawInstruction, operands: list[hlo.SSAValue]) -> None:
        assert raw.operand_types is not None
        for name, operand, written in zip(raw.operands, operands, raw.operand_types, strict=True):
            if written is not None and written != operand.type:
                found, is_ = type_text(written), type_text(operand.type)
                raise self.raw.error(raw.position, f"expected operand {name} of type {is_}, found {found}", raw.loc)

    def _check_constraints(self, raw: RawInstruction, operands: list[hlo.SSAValue]) -> None:
        """Layouts that a custom call wants are those of its operands' types."""
        text = _extra(raw, "operand_layout_constraints")
        if text is not None and (wanted := constraints(text)) != tuple(operand.type for operand in operands):
            found, is_ = (", ".join(map(type_text, types)) for types in (wanted, [each.type for each in operands]))
            what = f"custom-call: expected operand_layout_constraints of types {is_ or 'none'}, found {found or 'none'}"
            raise self.raw.error(raw.position, what, raw.loc)

    def _rename(self, field: str, attribute: hlo.Attribute) -> hlo.Attribute:
        if field not in CALL_FIELDS or not isinstance(attribute, hlo.StrsAttr):
            return attribute
        return hlo.StrsAttr(tuple(self.renamed.get(name, name) for name in attribute.data))


def _extra(raw: RawInstruction, name: str) -> str | None:
    """The attribute ``name`` that is kept as text."""
    extra = raw.properties.get("extra")
    return dict(extra.data).get(name) if isinstance(extra, hlo.ExtraAttr) else None


def _channel(number: str | None) -> str:
    return "no channel_id" if number is None else f"channel_id={number}"


def _laid_out(value: hlo.SSAValue, raw: RawInstruction) -> hlo.SSAValue:
    """``value``, whose op is told the layout that the file gives it; what passes make has none."""
    if raw.spelled and isinstance(value, hlo.OpResult):
        value.op.attributes["layout"] = hlo.StrAttr(raw.spelled)
    return value


_KEEPS_LAYOUT = (hlo.opcodes(hlo.ElementwiseOp) - {"select", "map"}) | {"add-dependency", "fft", "reverse"}


def _inferred_layout(raw: RawInstruction, properties: Properties, operands: list[RawInstruction]) -> TypedText:
    """The type of ``raw``, which was left out, with the layout that XLA infers: that of an operand."""
    if raw.opcode == "tuple":
        return joined([TypedText(operand.type, operand.layout, operand.spelled) for operand in operands])
    if not isinstance(raw.type, hlo.ArrayType) or (raw.opcode not in _KEEPS_LAYOUT and raw.opcode != "transpose"):
        return TypedText(raw.type)
    order = operands[raw.opcode == "clamp"].layout
    major = tuple(range(raw.type.data.rank - 1, -1, -1))
    dims = properties.get("dimensions")
    if raw.opcode == "transpose" and isinstance(dims, hlo.IntsAttr):
        order = tuple(dims.data.index(dim) for dim in order or major)
    return laid_out(raw.type, None if order == major else order, "")


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
