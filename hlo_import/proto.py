"""Serialized ``HloModuleProto`` or ``HloProto`` -> ``HloModule``.

The bytes are read with our own wire reader (``wire``, ``schema``), without protobuf or JAX. Constants are not copied:
their arrays are views of the file's bytes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuronx_cc.hlo_import.attribute_text import quote
from neuronx_cc.hlo_import.attributes import MalformedAttribute, read_attributes
from neuronx_cc.hlo_import.builder import build_module
from neuronx_cc.hlo_import.lexer import UNSUPPORTED_DTYPES
from neuronx_cc.hlo_import.literals import splat_view
from neuronx_cc.hlo_import.metadata import Metadata, StackFrames
from neuronx_cc.hlo_import.proto_attributes import ProtoAttributes, frontend_text
from neuronx_cc.hlo_import.raw import Properties, RawComputation, RawInstruction, RawModule
from neuronx_cc.hlo_import.schema import (
    ELEMENT_TYPES,
    SCHEMA,
    TOKEN_TYPE,
    TUPLE_TYPE,
)
from neuronx_cc.hlo_import.shapes import TypedText, check_dims, check_dtype, joined, laid_out, type_text
from neuronx_cc.hlo_import.wire import Message, Span, WireError, decode, varints
from neuronx_cc.ir import hlo
from neuronx_cc.ir.constants import ConstantPool
from neuronx_cc.ir.errors import NO_LOC, CompileError, Loc
from neuronx_cc.ir.types import SIGNED, Shape, bits

_VARINTS = frozenset(["s32", "s64", "u32", "u64"])
_REST = (
    "op_type",
    "deduplicated_name",
    "scheduling_name",
    "source_end_line",
    "source_column",
    "source_end_column",
)


def parse_proto(data: bytes, source: str = "") -> hlo.HloModule:
    """The module serialized in ``data``; ``source`` is its file name for messages. Raises ``CompileError``."""
    return build_module(ProtoReader(data, source).module())


class ProtoReader:
    """Reads one file; positions in its errors are byte offsets or instructions.

    ``renamed_files`` replaces source file names in locations.
    """

    def __init__(self, data: bytes, source: str = "", renamed_files: Mapping[str, str] | None = None):
        self.renamed_files = renamed_files or {}
        self.data = data
        self.source = source or "<proto>"
        self.constants = ConstantPool()
        self.frames = StackFrames()
        self._types: dict[bytes, TypedText] = {}
        self._metadata: dict[bytes, Metadata] = {}
        self._properties: dict[tuple[str, tuple[tuple[str, str], ...]], Properties] = {}
        self._computations: dict[int, str] = {}

    def error(self, message: str, code: str = "EVRF064", remedy: str = "", loc: Loc = NO_LOC) -> CompileError:
        return CompileError(code, f"{self.source}: {message}", remedy, loc)

    def _error_at(self, position: int, message: str, loc: Loc | None = None) -> CompileError:
        return self.error(message, loc=self._instructions[position] if loc is None else loc)

    def module(self) -> RawModule:
        """The whole file as records."""
        try:
            proto = self._top()
        except WireError as problem:
            raise self.error(
                f"expected a serialized HloModuleProto; byte {problem.position}: {problem.message}",
                remedy="pass HLO text, a serialized HloModuleProto or HloProto, or StableHLO",
            ) from None
        computations = proto.get("computations", [])
        if not computations:
            raise self.error("expected an HloModuleProto with computations, found none")
        self._read_frames(proto.get("stack_frame_index", {}))
        for computation in computations:
            number, name = computation.get("id", 0), computation.get("name", "")
            if number in self._computations:
                raise self.error(f"expected distinct computation ids, found {number} twice")
            if not _is_name(name):
                raise self.error(f"expected computations with names, found {name[:60]!r}")
            self._computations[number] = name
        entry = self._entry(proto, computations)
        # one number per instruction stands for its position
        self._instructions: list[Loc] = []
        records = [self._computation(computation, computation is entry) for computation in computations]
        header: tuple[tuple[str, str], ...] = ()
        if proto.get("frontend_attributes", {}).get("map"):
            header = (("frontend_attributes", frontend_text(proto["frontend_attributes"])),)
        return RawModule(
            proto.get("name", "") if _is_name(proto.get("name", "")) else "module",
            records,
            self._error_at,
            self.constants,
            tuple(map(_alias, proto.get("input_output_alias", {}).get("entries", ()))),
            tuple(
                (donor.get("parameter_number", 0), tuple(donor.get("parameter_shape_index", ())))
                for donor in proto.get("buffer_donor", {}).get("entries", ())
            ),
            header,
            self.source,
        )

    def _top(self) -> Message:
        """The module message; an HloProto has only fields 1 and 3, a module always names its entry (2)."""
        probe = {2: SCHEMA["HloModuleProto"][2], 6: SCHEMA["HloModuleProto"][6]}
        seen = decode({"HloModuleProto": probe}, "HloModuleProto", self.data, 0, len(self.data))
        if seen:
            return decode(SCHEMA, "HloModuleProto", self.data, 0, len(self.data))
        wrapped = decode(SCHEMA, "HloProto", self.data, 0, len(self.data))
        if "hlo_module" not in wrapped:
            raise WireError(0, "expected an HloModuleProto or HloProto, found another message")
        module: Message = wrapped["hlo_module"]
        return module

    def _entry(self, proto: Message, computations: list[Message]) -> Message:
        wanted = proto.get("entry_computation_id")
        for computation in computations:
            if computation.get("id", 0) == wanted:
                return computation
        for computation in computations:
            if computation.get("name") == proto.get("entry_computation_name"):
                return computation
        raise self.error(f"expected an entry computation, found none with id {wanted}")

    def _read_frames(self, index: Message) -> None:
        self.frames.files = dict(enumerate(index.get("file_names", ()), 1))
        self.frames.locations = {
            number: (location.get("file_name_id", 0), location.get("line", 0))
            for number, location in enumerate(index.get("file_locations", ()), 1)
        }
        self.frames.frames = {
            number: frame.get("file_location_id", 0) for number, frame in enumerate(index.get("stack_frames", ()), 1)
        }

    def _computation(self, proto: Message, is_entry: bool) -> RawComputation:
        instructions = proto.get("instructions", [])
        name = proto.get("name", "")
        if not instructions:
            raise self.error(f"expected at least one instruction in computation {name}")
        names = {one.get("id", 0): one.get("name", "") for one in instructions}
        position = len(self._instructions)
        records = [self._instruction(one, names) for one in instructions]
        root = proto.get("root_id", 0)
        if root not in names:
            raise self.error(f"expected the root of computation {name}, found id {root}")
        thread = proto.get("execution_thread", "")
        return RawComputation(name, records, root, position, is_entry, "" if thread == "main" else thread)

    def _instruction(self, proto: Message, names: dict[int, str]) -> RawInstruction:
        name, opcode = proto.get("name", ""), proto.get("opcode", "")
        metadata = self._read_metadata(proto["metadata"][-1]) if "metadata" in proto else Metadata()
        loc = Loc(name, metadata.op_name, metadata.source_file, metadata.source_line)
        position = len(self._instructions)
        self._instructions.append(loc)
        if not _is_name(name):
            raise self.error(f"expected an instruction with a name, found {name[:60]!r}", loc=loc)
        if opcode != "parameter" and opcode not in hlo.OPCODES:
            raise self.error(f"expected an HLO opcode, found {opcode[:60]!r}", "EVRF001", loc=loc)
        if "shape" not in proto:
            raise self.error("expected an instruction with a shape, found none", loc=loc)
        typed = self._typed(proto["shape"][-1], loc)
        operands = proto.get("operand_ids", [])
        control = [names[one] for one in proto.get("control_predecessor_ids", ()) if one in names]
        properties = self._read_properties(opcode, proto, control, loc)
        record = RawInstruction(
            proto.get("id", 0), opcode, typed.type, operands, properties, loc, position, typed.layout, typed.spelled
        )
        record.metadata = metadata.rest
        if opcode == "parameter":
            record.parameter = proto.get("parameter_number", 0)
        elif opcode == "constant":
            record.properties = {**properties, "value": self._constant(proto.get("literal", {}), typed.type, loc)}
        return record

    def _read_properties(self, opcode: str, proto: Message, control: list[str], loc: Loc) -> Properties:
        converter = ProtoAttributes(self._called, lambda span: self._layout_text(span, loc))
        try:
            texts = converter.texts(opcode, proto, control)
        except (ValueError, KeyError) as problem:
            what = problem.args[0] if isinstance(problem, ValueError) else f"expected known numbers, found {problem}"
            raise self.error(f"{opcode}: {what}", loc=loc) from None
        key = (opcode, tuple(texts.items()))
        properties = self._properties.get(key)
        if properties is None:
            try:
                properties = read_attributes(opcode, texts)
            except MalformedAttribute as problem:
                raise self.error(problem.message, loc=loc) from None
            self._properties[key] = properties
        return properties

    def _called(self, number: int) -> str:
        if number not in self._computations:
            raise ValueError(f"expected a computation of this module, found id {number}")
        return self._computations[number]

    def _read_metadata(self, span: Span) -> Metadata:
        raw = self.data[span[0] : span[1]]
        known = self._metadata.get(raw)
        if known is None:
            try:
                fields = decode(SCHEMA, "OpMetadata", self.data, *span)
            except WireError as problem:
                raise self.error(f"byte {problem.position}: {problem.message}") from None
            file, line = fields.get("source_file", ""), fields.get("source_line", 0)
            if not file and "stack_frame_id" in fields:
                file, line = self.frames.resolve(fields["stack_frame_id"])
            file = self.renamed_files.get(file, file)
            rest = " ".join(
                f"{name}={quote(value) if isinstance(value := fields[name], str) else value}"
                for name in _REST
                if name in fields
            )
            known = self._metadata[raw] = Metadata(fields.get("op_name", ""), file, line, rest)
        return known

    def _typed(self, span: Span, loc: Loc) -> TypedText:
        raw = self.data[span[0] : span[1]]
        known = self._types.get(raw)
        if known is None:
            try:
                shape = decode(SCHEMA, "ShapeProto", self.data, *span)
            except WireError as problem:
                raise self.error(f"byte {problem.position}: {problem.message}", loc=loc) from None
            known = self._types[raw] = self._type_of(shape, loc)
        return known

    def _layout_text(self, span: Span, loc: Loc) -> str:
        """The type at ``span`` with its layouts."""
        typed = self._typed(span, loc)
        return typed.spelled or type_text(typed.type, layout=True)

    def _type_of(self, shape: Message, loc: Loc) -> TypedText:
        kind = shape.get("element_type", 0)
        if kind == TUPLE_TYPE:
            parts = shape.get("tuple_shapes", ())
            return joined([self._type_of(part, loc) for part in parts])
        if kind == TOKEN_TYPE:
            return TypedText(hlo.TOKEN)
        dtype = ELEMENT_TYPES.get(kind, f"number {kind}")
        dims = tuple(shape.get("dimensions", ()))
        if problem := check_dtype(dtype):
            known = dtype in UNSUPPORTED_DTYPES
            raise self.error(problem, "ESPP004" if known else "EVRF064", "use bf16" if known else "", loc)
        if any(shape.get("is_dynamic_dimension", ())):
            raise self.error(
                f"dynamic shape {dtype}{dynamic_text(dims)} is not supported: expected static dimensions",
                "EMOD025",
                "use static shapes: pad to a fixed size or compile one module per bucket",
                loc,
            )
        if problem := check_dims(dtype, dims):
            raise self.error(problem, loc=loc)
        layout = shape.get("layout", {})
        order = tuple(layout.get("minor_to_major", ()))
        if order and sorted(order) != list(range(len(dims))):
            raise self.error(f"expected a layout that permutes {len(dims)} dimensions, found {order}", loc=loc)
        default = tuple(range(len(dims) - 1, -1, -1))
        return laid_out(hlo.array_type(dtype, dims), None if order in ((), default) else order, _rest_text(layout))

    def _constant(self, literal: Message, type_: hlo.Attribute, loc: Loc) -> hlo.Attribute:
        if not isinstance(type_, hlo.ArrayType):
            raise self.error(f"expected a constant of an array type, found {type_text(type_)}", loc=loc)
        shape = type_.data
        try:
            flat = self._elements(literal, shape, loc)
        except WireError as problem:
            raise self.error(f"byte {problem.position}: {problem.message}", loc=loc) from None
        order = self._typed(literal["shape"][-1], loc) if "shape" in literal else TypedText(type_)
        if order.type != type_:
            raise self.error(f"expected a literal of {shape}, found {type_text(order.type)}", loc=loc)
        if order.layout is None:
            array = flat.reshape(shape.dims)
        else:
            stored = tuple(reversed(order.layout))
            array = flat.reshape(tuple(shape.dims[dim] for dim in stored)).transpose(
                tuple(stored.index(dim) for dim in range(shape.rank))
            )
        return hlo.ConstantAttr(self.constants.add(splat_view(array), shape.dtype))

    def _elements(self, literal: Message, shape: Shape, loc: Loc) -> "np.ndarray[Any, Any]":
        """The stored elements, flat, as a view of the file where the format allows."""
        dtype, storage = shape.dtype, shape.numpy_dtype
        spans = literal.get(f"{dtype}s", [])
        if dtype in _VARINTS or dtype == "pred":
            parts = [varints(self.data, *span) for span in spans]
            numbers = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
            flat = numbers.view(np.int64).astype(storage) if dtype != "u64" else numbers
        elif bits(dtype) < 8:
            # one element a byte, whatever its high bits say
            byte = np.dtype(np.int8 if dtype in SIGNED else np.uint8)
            unused = byte.type(8 - bits(dtype))
            stored = [np.frombuffer(self.data, byte, end - start, start) for start, end in spans]
            flat = (np.concatenate([np.zeros(0, byte), *stored]) << unused >> unused).astype(storage)
        else:
            size = storage.itemsize
            if any((end - start) % size for start, end in spans):
                raise self.error(f"expected whole elements of {dtype} in a constant", loc=loc)
            views = [np.frombuffer(self.data, storage, (end - start) // size, start) for start, end in spans]
            flat = views[0] if len(views) == 1 else np.concatenate(views) if views else np.zeros(0, storage)
        if flat.size != shape.size:
            raise self.error(f"expected {shape.size} elements for {shape}, found {flat.size}", loc=loc)
        return flat


def _rest_text(layout: Message) -> str:
    """What XLA prints of a layout after its order: ``T(8,128)(2,1)S(1)``."""
    text = "".join(
        f"({','.join('*' if n < 0 else str(n) for n in one.get('dimensions', ()))})" for one in layout.get("tiles", ())
    )
    text = f"T{text}" if text else ""
    if layout.get("tail_padding_alignment_in_elements", 1) != 1:
        text += f"L({layout['tail_padding_alignment_in_elements']})"
    for mark, name in (("#", "index_primitive_type"), ("*", "pointer_primitive_type")):
        if layout.get(name):
            text += f"{mark}({ELEMENT_TYPES.get(layout[name], 'u32')})"
    for mark, name in (("E", "element_size_in_bits"), ("S", "memory_space")):
        if layout.get(name):
            text += f"{mark}({layout[name]})"
    splits = "".join(
        f"({one.get('dimension', 0)}:{','.join(map(str, one.get('split_indices', ())))})"
        for one in layout.get("split_configs", ())
    )
    text += f"SC{splits}" if splits else ""
    if layout.get("dynamic_shape_metadata_prefix_bytes"):
        text += f"M({layout['dynamic_shape_metadata_prefix_bytes']})"
    return text


def _is_name(text: str) -> bool:
    return bool(text) and len(text) < 10_000 and not set(text) & set(' \t\r\n"{}()[],=%/')


def dynamic_text(dims: tuple[int, ...]) -> str:
    """Dims with ``?`` for the unbounded ones, which the proto has as the least int64."""
    return f"[{','.join('?' if dim < 0 else str(dim) for dim in dims)}]"


def _alias(entry: Message) -> hlo.Alias:
    return hlo.Alias(
        tuple(entry.get("output_shape_index", ())),
        entry.get("parameter_number", 0),
        tuple(entry.get("parameter_shape_index", ())),
        entry.get("kind") == 2,
    )
