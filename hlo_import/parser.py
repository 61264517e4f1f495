"""HLO text -> ``HloModule``.

Input: the text JAX, XLA dumps and people write, unoptimised or optimised. Output: a verified module (``builder``).
One fast path of regular expressions covers the usual instruction; everything else goes through the careful scans of
``lexer``. Grammar: xla/hlo/parser/hlo_parser.cc.
"""

import re
from dataclasses import replace
from functools import cache

from neuronx_cc.hlo_import.attributes import Attributes, MalformedAttribute, names, read_attributes, unquote
from neuronx_cc.hlo_import.builder import build_module
from neuronx_cc.hlo_import.header import read_header
from neuronx_cc.hlo_import.kept_types import value_end
from neuronx_cc.hlo_import.known_attributes import ASYNC_ATTRIBUTES, INLINE_CALLS, attribute_problem
from neuronx_cc.hlo_import.lexer import (
    COMMENT,
    IDENTIFIER,
    MAX_NESTING,
    NAME,
    RESERVED,
    SPACE,
    SourceText,
    without_comments,
)
from neuronx_cc.hlo_import.literals import LiteralError, literal_parts, parse_literal, splat_view
from neuronx_cc.hlo_import.lone import LONE, as_parameter
from neuronx_cc.hlo_import.metadata import TABLES, StackFrames, read_metadata, read_table
from neuronx_cc.hlo_import.raw import INFERRED, Properties, RawComputation, RawInstruction, RawModule, parameter
from neuronx_cc.hlo_import.shapes import TypedText, TypeReader, type_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.constants import ConstantPool
from neuronx_cc.ir.errors import CompileError, Loc

_NAME = rf"%?({NAME})"
_HEAD = re.compile(rf"(ROOT\s+)?{_NAME}\s*(?<![\w.\-])=\s*([a-z]\w*)\[([\d,]*)\](?:\{{([\d,]+)\}})?\s+([a-z][\w\-]*)\(")
_ROOT = re.compile(r"ROOT(?![\w.\-])")
_OPCODE = re.compile(r"[A-Za-z][\w\-]*(?![\w.\-\[])")
_OPERANDS = re.compile(r" *((?:%?[\w.\-]+ *, *)*%?[\w.\-]+)? *\)")
_TYPE_BEGINS = re.compile(rf"\(|[a-z]\w*{SPACE.pattern}\[", re.DOTALL)
_ATTRIBUTE = re.compile(r'\s*,\s*(?!literal=)([A-Za-z_][\w\-]*)=([^\s,{}()\[\]"/]+|\{[^{}"/]*\})(?=[\s,}]|$)')
_ATTRIBUTE_NAME = re.compile(rf"({NAME})=")
_TYPED_OPERAND = re.compile(rf"(?:([a-z]\w*)\[([^\][\n]*)\](?:\{{([\d,]+)\}})?\s+)?{_NAME}\s*(?=[,)/])")
_ENTRY = re.compile(r"ENTRY(?![\w.\-])")
_NUMBER = re.compile(r"\d{1,9}(?!\d)")
_PARENTHESIS = re.compile(rf"[()]|{COMMENT.pattern}", re.DOTALL)
_TYPED = frozenset(["parameter", "constant"])
"""Opcodes whose type the parser needs itself."""
_OVERLOOKED = {"rng-bit-generator": 1}
"""Opcode -> how many of its operands count; XLA overlooks those after them."""
_NO_OPERANDS: list[str] = []
MAX_INLINE_DEPTH = 50


def parse_text(text: str, source: str = "") -> hlo.HloModule:
    """The module that ``text`` spells; ``source`` is its file name for messages. Raises ``CompileError``."""
    return build_module(TextParser(text, source).module())


class TextParser:
    """Recursive descent over one text; every method takes a position and returns the one after what it read."""

    def __init__(self, text: str, source: str = ""):
        self.source = SourceText(text, source)
        self.text = text
        self.types = TypeReader(self.source)
        self.frames = StackFrames()
        self.constants = ConstantPool()
        self.computations: list[RawComputation] = []
        self.lone: RawComputation | None = None
        self._read_metadata = cache(lambda text: read_metadata(text, self.frames))
        self._properties: dict[tuple[str, tuple[tuple[str, str], ...]], Properties] = {}

    def module(self) -> RawModule:
        """The whole text as records."""
        source = self.source
        position = source.skip(0)
        name, header = "", Attributes()
        if self.text.startswith("HloModule", position):
            name, position = source.identifier(position + len("HloModule"), "the name of the module")
            position += source.at(position) == ":"
            header, position = self._attributes(position)
        elif LONE.match(self.text, position):
            return self._lone(position)
        length = len(self.text)
        while (position := source.skip(position)) < length:
            word = IDENTIFIER.match(self.text, position)
            if word and word.group(1) in TABLES:
                position = read_table(word.group(1), source, word.end(), self.frames)
            else:
                position = self._computation(position)
        if not self.computations:
            raise source.error(length, "expected at least one computation")
        if not any(computation.is_entry for computation in self.computations):
            self.computations[-1].is_entry = True
        facts = read_header(source, header)
        name = name or next(computation.name for computation in self.computations if computation.is_entry)
        return RawModule(
            name, self.computations, self._error, self.constants, facts.aliases, facts.donors, facts.rest, source.source
        )

    def _lone(self, position: int) -> RawModule:
        """One instruction, which is all there is."""
        self.lone = RawComputation("_", [], None, position, True)
        end = self.source.skip(self._instruction(position, self.lone, 0, None))
        if end < len(self.text):
            raise self.source.error(end, f"expected nothing after an instruction alone, found {self.source.found(end)}")
        self.computations.append(self.lone)
        return RawModule("_", self.computations, self._error, self.constants, source=self.source.source)

    def _error(self, position: int, message: str, loc: Loc | None = None) -> CompileError:
        return self.source.error(position, message, loc=loc)

    def _computation(self, position: int) -> int:
        source = self.source
        entry = _ENTRY.match(self.text, position)
        name, scan = source.identifier(entry.end() if entry else position, "a computation")
        scan, result = source.skip(scan), None
        if source.at(scan) == "(":
            result, scan = self._signature(scan)
        scan = source.expect(scan, "{", f"to begin computation {name}")
        computation = RawComputation(name, [], None, position, entry is not None, result=result)
        scan = self._instructions(scan, computation, 0)
        attributes, scan = self._attributes(scan)
        if attributes.keys() - {"execution_thread"}:
            raise source.error(scan, f"expected execution_thread of a computation, found {min(attributes)}")
        try:
            computation.execution_thread = unquote(attributes.get("execution_thread", '""'))
        except ValueError as problem:
            raise source.error(scan, f"{problem} in execution_thread") from None
        self.computations.append(computation)
        return scan

    def _signature(self, position: int) -> tuple[hlo.Attribute, int]:
        """The result type of ``(x: f32[2], ...) -> f32[2]``; what stands there of parameters, they say themselves."""
        source = self.source
        scan = source.skip(position + 1)
        while source.at(scan) != ")":
            if source.at(scan) == "%":
                raise source.error(scan, "expected the name of a parameter, without a %")
            _, scan = source.identifier(scan, "the name of a parameter")
            _, scan = self.types.read(source.expect(scan, ":", "after the name of a parameter"))
            scan = source.skip(scan)
            if source.at(scan) != ")":
                scan = source.skip(source.expect(scan, ",", "between parameters"))
        scan = source.expect(scan + 1, "->", "after the parameters of a computation")
        result, scan = self.types.read(scan)
        return result.type, scan

    def _instructions(self, position: int, computation: RawComputation, depth: int) -> int:
        source = self.source
        defined: set[str | int] = set()
        while True:
            position = source.skip(position)
            character = source.at(position)
            if character == "}":
                break
            if not character:
                raise source.error(
                    computation.position, "expected '}' to end this computation, found the end of the text"
                )
            position = self._instruction(position, computation, depth, defined)
            defined.add(computation.instructions[-1].key)
        if not computation.instructions:
            raise source.error(position, f"expected at least one instruction in computation {computation.name}")
        return position + 1

    def _instruction(
        self, position: int, computation: RawComputation, depth: int, defined: "set[str | int] | None"
    ) -> int:
        source, text = self.source, self.text
        head = _HEAD.match(text, position)
        if head is not None:
            root, name, dtype, dims, layout, opcode = head.groups()
            if name in RESERVED:
                source.identifier(head.start(2) - (text[head.start(2) - 1] == "%"), "the name of an instruction")
            type_start, scan = head.start(3), head.end()
            typed = self.types.array(dtype, dims, layout, type_start)
            opcode_position = scan - 1 - len(opcode)
        else:
            root, name, scan = self._head(position)
            type_start = source.skip(scan)
            if (word := _OPCODE.match(text, type_start)) and word.group() not in RESERVED:
                typed, scan = TypedText(INFERRED), type_start
            else:
                typed, scan = self.types.read(type_start)
            scan = source.skip(scan)
            match = _OPCODE.match(text, scan)
            if match is None:
                raise source.error(scan, f"expected an opcode and '(', found {source.found(scan)}")
            opcode, opcode_position = match.group(), scan
            scan = source.expect(match.end(), "(", f"after the opcode {opcode}")
            if typed.type is INFERRED and opcode in _TYPED:
                raise source.error(type_start, f"expected a type such as f32[2,3], found {opcode!r}")
        instruction = RawInstruction(name, opcode, typed.type, _NO_OPERANDS, {}, Loc(name), position, typed.layout)
        instruction.spelled = typed.spelled
        opcode, scan = self._given(scan, instruction, computation)
        attributes, scan = self._attributes(scan, computation, depth)
        known = {each.key for each in computation.instructions} if defined is None else defined
        self._check_order(instruction, attributes.get("control-predecessors", "{}"), known)
        try:
            metadata = self._read_metadata(attributes.pop("metadata", ""))
        except ValueError as problem:
            raise self._at_attribute(instruction, "metadata", str(problem)) from None
        instruction.metadata = metadata.rest
        instruction.loc = Loc(
            name, metadata.op_name, metadata.source_file, metadata.source_line, source.line_of(position)
        )
        self._finish(instruction, opcode, attributes, opcode_position)
        computation.instructions.append(instruction)
        if root:
            if computation.root is not None:
                raise source.error(position, f"expected one ROOT in computation {computation.name}, found a second")
            computation.root = name
        return scan

    def _check_order(self, instruction: RawInstruction, predecessors: str, defined: "set[str | int]") -> None:
        try:
            listed = names(predecessors)
        except ValueError as problem:
            raise self._at_attribute(instruction, "control-predecessors", str(problem)) from None
        for before in listed:
            if before and before not in defined:
                message = f"expected control-predecessors defined above, found {before!r}"
                raise self.source.error(instruction.position, message)

    def _given(
        self, position: int, instruction: RawInstruction, computation: RawComputation, depth: int = 0
    ) -> tuple[str, int]:
        """Reads what stands in the parentheses of ``instruction``; its opcode, and the position after them."""
        if instruction.opcode == "constant":
            return self._constant(position, instruction, computation)
        if instruction.opcode == "parameter":
            return "parameter", self._parameter(position, instruction)
        operands, types, position = self._operands(position, computation, depth)
        kept = _OVERLOOKED.get(instruction.opcode)
        instruction.operands, instruction.operand_types = operands[:kept], types and types[:kept]
        return instruction.opcode, position

    def _nested(
        self, opcode: str, position: int, typed: TypedText, computation: RawComputation, depth: int
    ) -> tuple[str, int]:
        """Reads an operand that is an instruction, which has neither a name nor attributes; its key.

        ``position`` is after its opening parenthesis. Returns the position after the closing one as well.
        """
        source, begin = self.source, position
        if depth >= MAX_NESTING:
            raise source.error(begin, f"expected at most {MAX_NESTING} instructions inside each other")
        if typed.type is INFERRED and opcode in _TYPED:
            raise source.error(begin, f"expected a type such as f32[2,3] of the operand {opcode}")
        loc = Loc(opcode, text_line=source.line_of(begin))
        nested = RawInstruction("", opcode, typed.type, _NO_OPERANDS, {}, loc, begin, typed.layout, typed.spelled)
        # no name of an instruction has such a key
        nested.key = f"{opcode}({begin})"
        opcode, position = self._given(position, nested, computation, depth + 1)
        self._finish(nested, opcode, {}, begin)
        computation.instructions.append(nested)
        return str(nested.key), position

    def _head(self, position: int) -> tuple[bool, str, int]:
        """Whether ``ROOT`` stands at ``position``, the name after it, and the position after the equals sign."""
        source = self.source
        if self.lone and _TYPE_BEGINS.match(self.text, position):
            return False, "_", position
        root = _ROOT.match(self.text, position)
        scan = source.skip(root.end()) if root else position
        name = IDENTIFIER.match(self.text, scan)
        equals = source.skip(name.end()) if name else scan
        if name is None or source.at(equals) != "=" or name.group() in RESERVED:
            raise source.error(
                position, f"expected an instruction such as 'a = f32[2] add(b, c)', found {source.found(position)}"
            )
        if equals == name.end() and not name.group().startswith("%"):
            raise source.error(equals, f"expected a space after the name {name.group()}, as XLA does")
        return root is not None, name.group(1), equals + 1

    def _finish(self, instruction: RawInstruction, opcode: str, attributes: Attributes, position: int) -> None:
        """Sets opcode and properties; unwraps the short spelling of asynchronous ops, such as ``call-start``."""
        if opcode not in hlo.OPCODES and opcode not in _TYPED:
            base, _, stage = opcode.rpartition("-")
            if base not in hlo.OPCODES or stage not in ("start", "update", "done"):
                raise self.source.error(position, f"expected an HLO opcode, found {opcode!r}", "EVRF001")
            opcode = f"async-{stage}"
            if stage == "start":
                kept = {name: text for name, text in attributes.items() if name in ASYNC_ATTRIBUTES}
                inner = {name: text for name, text in attributes.items() if name not in ASYNC_ATTRIBUTES}
                self._check_attributes(instruction, "async-start", kept)
                thread = kept.get("async_execution_thread", '""')
                attributes = {**kept, "calls": self._wrap(instruction, base, inner, position, thread)}
        instruction.opcode = opcode
        key = (opcode, tuple(attributes.items()))
        properties = self._properties.get(key)
        if properties is None:
            self._check_attributes(instruction, opcode, attributes)
            if opcode in _TYPED:
                properties = {"extra": hlo.ExtraAttr(tuple(sorted(attributes.items())))} if attributes else {}
            else:
                properties = self._read_properties(instruction, opcode, attributes)
            self._properties[key] = properties
        instruction.properties = {**properties, **instruction.properties} if instruction.properties else properties

    def _read_properties(self, instruction: RawInstruction, opcode: str, attributes: Attributes) -> Properties:
        try:
            return read_attributes(opcode, attributes)
        except MalformedAttribute as problem:
            raise self._at_attribute(instruction, problem.name, problem.message) from None

    def _check_attributes(self, instruction: RawInstruction, opcode: str, attributes: Attributes) -> None:
        name, problem = attribute_problem(opcode, attributes)
        if problem:
            raise self._at_attribute(instruction, name, problem)

    def _at_attribute(self, instruction: RawInstruction, name: str, message: str) -> CompileError:
        position = instruction.position
        if name:
            found = re.compile(rf"\b{re.escape(name)}\s*=").search(self.text, position)
            position = found.end() if found else position
        return self.source.error(position, message)

    def _wrap(self, instruction: RawInstruction, base: str, attributes: Attributes, position: int, thread: str) -> str:
        """Adds the computation that an asynchronous op calls in its long spelling; returns its name."""
        parts = instruction.type.data if isinstance(instruction.type, hlo.TupleType) else ()
        if len(parts) < 2 or not isinstance(parts[0], hlo.TupleType):
            raise self.source.error(
                instruction.position,
                f"expected a {base}-start of type ((operands), result, ...), found {type_text(instruction.type)}",
            )
        name = f"wrapped_{base}.{instruction.key}"
        loc, where = instruction.loc, instruction.position
        parameters = [f"param_{index}" for index in range(len(parts[0].data))]
        body = [
            parameter(*each, where, index) for index, each in enumerate(zip(parameters, parts[0].data, strict=True))
        ]
        inner = RawInstruction(f"{base}.wrapped", base, parts[1], parameters, {}, loc, where)
        self._finish(inner, base, attributes, position)
        inner.loc = Loc(f"{base}.wrapped", loc.op_name, loc.source_file, loc.source_line, loc.text_line)
        self.computations.append(
            RawComputation(name, [*body, inner], inner.key, where, execution_thread=unquote(thread))
        )
        return name

    def _parameter(self, position: int, instruction: RawInstruction) -> int:
        source = self.source
        number = _NUMBER.match(self.text, source.skip(position))
        if number is None:
            raise source.error(position, f"expected the number of a parameter, found {source.found(position)}")
        instruction.parameter = int(number.group())
        return source.expect(number.end(), ")", "after the number of a parameter")

    def _constant(self, position: int, instruction: RawInstruction, computation: RawComputation) -> tuple[str, int]:
        """Reads a literal into the constant pool; ``position`` is after the opening parenthesis.

        A tuple becomes constants and an op that puts them together. Returns the opcode, and the position after it.
        """
        source = self.source
        depth, end = 1, position
        while depth:
            match = _PARENTHESIS.search(self.text, end)
            if match is None:
                raise source.error(position, "expected ')' to end this constant, found the end of the text")
            depth += {"(": 1, ")": -1}.get(match.group(), 0)
            end = match.end()
        self._literal(self.text[position : end - 1], position, instruction, computation)
        return instruction.opcode, end

    def _literal(self, text: str, position: int, instruction: RawInstruction, computation: RawComputation) -> None:
        """Reads ``text``, which starts at ``position``, as the value of ``instruction``."""
        if isinstance(instruction.type, hlo.TupleType):
            parts = instruction.type.data
            try:
                texts = literal_parts(text)
            except LiteralError as problem:
                raise self.source.error(position, str(problem)) from None
            if len(texts) != len(parts):
                raise self.source.error(position, f"expected {len(parts)} values of a tuple, found {len(texts)}")
            # no name of an instruction has such a key
            keys = [f"{instruction.key}{{{number}}}" for number in range(len(parts))]
            for key, type_, part in zip(keys, parts, texts, strict=True):
                loc = replace(instruction.loc, name=f"{instruction.loc.name}.part")
                element = RawInstruction(key, "constant", type_, _NO_OPERANDS, {}, loc, instruction.position)
                self._literal(part, position, element, computation)
                computation.instructions.append(element)
            instruction.opcode, instruction.operands = "tuple", keys
            return
        if not isinstance(instruction.type, hlo.ArrayType):
            found = type_text(instruction.type)
            raise self.source.error(position, f"expected a constant of an array type, found {found}")
        shape = instruction.type.data
        try:
            array = parse_literal(text, shape)
        except LiteralError as problem:
            if str(problem) == "elided":
                raise self.source.error(
                    position,
                    f"expected the value of constant {instruction.key}, found the placeholder {{...}}",
                    remedy="print the module with its constants: as_hlo_text(print_large_constants=True), "
                    "or --xla_dump_large_constants for a dump; or pass the serialized HloModuleProto",
                ) from None
            raise self.source.error(position, str(problem)) from None
        instruction.properties = {"value": hlo.ConstantAttr(self.constants.add(splat_view(array), shape.dtype))}

    def _operands(
        self, position: int, computation: RawComputation, depth: int
    ) -> tuple[list[str], list[hlo.Attribute | None] | None, int]:
        """Keys of the operands, the types before them if there are any, and the position after the parenthesis."""
        match = _OPERANDS.match(self.text, position)
        if match is not None:
            names = match.group(1).replace("%", "").replace(" ", "").split(",") if match.group(1) else []
            if RESERVED.isdisjoint(names):
                return names, None, match.end()
        source = self.source
        operands: list[str] = []
        types: list[hlo.Attribute | None] = []
        scan = source.skip(position)
        while source.at(scan) != ")":
            if source.at(scan) == ",":  # XLA overlooks those in excess
                scan = source.skip(scan + 1)
                continue
            typed = _TYPED_OPERAND.match(self.text, scan)
            if typed and (typed[4] not in RESERVED or self.text[typed.start(4) - 1] == "%"):
                dtype, dims, layout, name = typed.groups()
                scan = typed.end()
                known = None if dtype is None else self.types.array(dtype, dims, layout, typed.start())
            else:
                known = None
                if _TYPE_BEGINS.match(self.text, scan):
                    known, scan = self.types.read(scan)
                    scan = source.skip(scan)
                begin = scan
                unnamed = computation is self.lone and known and source.at(scan) in ",)"
                name, scan = ("", scan) if unnamed else source.identifier(scan, "the name of an operand")
                if source.at(after := source.skip(scan)) == "(" and source.at(begin) != "%":
                    if computation is self.lone and known:  # one that nothing reads
                        as_parameter(computation, name, known, scan)
                    name, scan = self._nested(name, after + 1, known or TypedText(INFERRED), computation, depth)
                    known = None
            if computation is self.lone and known:
                name = as_parameter(computation, name, known, scan)
            operands.append(name)
            types.append(known.type if known else None)
            scan = source.skip(scan)
            if source.at(scan) != ")":
                scan = source.skip(source.expect(scan, ",", "or ')' between operands"))
        return operands, types if any(types) else None, scan + 1

    def _attributes(
        self, position: int, computation: RawComputation | None = None, depth: int = 0
    ) -> tuple[Attributes, int]:
        """``, name=value`` pairs as text; computations written in place are read and replaced by a name."""
        source, text = self.source, self.text
        attributes: Attributes = {}
        while True:
            match = _ATTRIBUTE.match(text, position)
            if match is not None:
                name, value = match.groups()
                end = match.end()
                inline = False
            else:
                scan = source.skip(position)
                if source.at(scan) != ",":
                    return attributes, position
                scan = source.skip(scan + 1)
                head = _ATTRIBUTE_NAME.match(text, scan)
                if head is None:
                    raise source.error(
                        scan, f"expected an attribute such as dimensions={{0}}, found {source.found(scan)}"
                    )
                name, start = head.group(1), source.skip(head.end())
                inline = computation is not None and name in INLINE_CALLS and source.at(start) == "{"
                if not inline:
                    end = value_end(self.types, name, start)
                    value = text[start:end]
                    if name != "backend_config":  # whose text is the backend's
                        value = without_comments(value)
            if match is not None and computation is not None and name in INLINE_CALLS and value[0] == "{":
                inline, start = True, match.start(2)
            if inline:
                assert computation is not None
                value, end = self._inline(start, computation, name, depth)
            if value[:1] == "=":
                raise source.error(end - len(value), f"expected a value of attribute {name}, found '='")
            if name in attributes:
                raise source.error(position, f"expected attribute {name} once, found it twice")
            attributes[name] = value
            position = end

    def _inline(self, position: int, outer: RawComputation, attribute: str, depth: int) -> tuple[str, int]:
        if depth >= MAX_INLINE_DEPTH:
            raise self.source.error(position, f"expected at most {MAX_INLINE_DEPTH} computations inside each other")
        name = f"{outer.name}.{attribute}.{len(self.computations)}"
        inner = RawComputation(name, [], None, position)
        end = self._instructions(position + 1, inner, depth + 1)
        self.computations.append(inner)
        return name, end
