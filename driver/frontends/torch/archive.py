"""Reads ``.pt2`` archives of ``torch.export.save`` without unpickling and without evaluating what they say.

torch's own reader unpickles sample inputs and whatever says that it is pickled, evaluates symbolic sizes as Python, and
takes any attribute of ``torch`` for an operator. Here the archive is checked first: a zip file of stored members, one
model, tensors as plain bytes, operators of ATen, sizes that are numbers, results in plain containers. Only then torch
builds the program from the parts, and never sees the file.
"""

import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import (
    ExportedProgramDeserializer,
    _bytes_to_dataclass,
    deserialize_scalar_type,
)
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from neuronx_cc.driver.frontends.torch.arrays import numpy_dtype
from neuronx_cc.driver.frontends.torch.export import quiet
from neuronx_cc.driver.frontends.torch.interpreter import HIGHER
from neuronx_cc.ir.errors import CompileError, UsageError

EXPERTS_ADVICE = 'before the export, say model.set_experts_implementation("batched_mm"), which is made of ATen alone'
REMEDY = "write the file again with torch.export.save"
TARGET = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+(\.\w+)?|_operator\.\w+|math\.\w+"
    rf"|torch\.ops\.higher_order\.({'|'.join(sorted(HIGHER))})"
)
"""Operators that a file may name."""
PYTHON_TARGETS = re.compile(
    r"(?!(_operator|math)\.)|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|l[et]|g[et]|eq|ne|and_|or_|not_)$|math\.\w+$"
)
CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
WORD = re.compile(r"[\w.,:/#<>*+ \[\]-]*")
"""Text that means nothing more where torch puts it into the Python code that it makes of a graph."""
FRAME = re.compile(r'File "[^"\n]+", line \d{1,9}, in \S+')
MOST_DEPTH = 200
MOST_BYTES = 1 << 30
"""Of all tensors beyond what the file holds: strides of 0 make large ones of few bytes."""


def read_pt2(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    """The exported program in the file at ``path``.

    Raises UsageError EFIL901 when it cannot be read, CompileError EVRF064 when it is none, is damaged, or holds what is
    never loaded (pickles, custom objects), EVRF001 for operators that are not torch's, EMOD025 for dynamic sizes.
    """
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(name) as archive:
            return _Reader(archive, name).program()
    except OSError as error:
        raise UsageError("EFIL901", f"cannot read model file {name}: {error.strerror}") from None
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, struct.error):
        # what zipfile raises for directories that are none
        raise _damaged(name, "it is no zip archive, or a damaged one") from None


def _damaged(name: str, what: str) -> CompileError:
    return CompileError("EVRF064", f"{name}: expected an exported program (.pt2) of PyTorch; {what}", REMEDY)


class _Reader:
    """One archive."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self.archive, self.name = archive, name
        self.room = MOST_BYTES
        self.members: dict[str, zipfile.ZipInfo] = {}
        if all(each.header_offset for each in archive.infolist()):
            raise zipfile.BadZipFile  # the directory of an archive within, for that of the whole is lost
        for member in archive.infolist():
            inner = member.filename.split("/", 1)[-1]
            if member.compress_type != zipfile.ZIP_STORED or inner in self.members:
                raise _damaged(name, f"member {member.filename} is compressed or there twice")
            self.members[inner] = member

    def program(self) -> torch.export.ExportedProgram:
        """Checks, then builds."""
        if "archive_format" not in self.members:
            hint = (
                "it is a pickle of torch.save, which is never loaded" if "data.pkl" in self.members else "other parts"
            )
            raise _damaged(self.name, hint)
        models = [inner for inner in self.members if re.fullmatch(r"models/[^/]+\.json", inner)]
        if len(models) != 1:
            raise _damaged(self.name, f"it holds {len(models)} models")
        if "byteorder" in self.members and (order := self._bytes("byteorder")) != b"little":
            raise _damaged(self.name, f"its numbers are in the byte order {order[:20]!r}, little is read")
        model = models[0].removeprefix("models/").removesuffix(".json")
        document = self._json(models[0])
        self._check(document)
        weights = self._tensors("data/weights", f"{model}_weights_config.json", ("weight_",))
        constants = self._tensors("data/constants", f"{model}_constants_config.json", ("tensor_",))
        try:
            serialized = _bytes_to_dataclass(schema.ExportedProgram, json.dumps(document).encode())
            # the reader takes tensors as they are; what it would unpickle is not given to it
            with quiet():
                program = ExportedProgramDeserializer(None).deserialize(serialized, weights, constants, ((), {}))  # type: ignore[arg-type, unused-ignore]
                return _with_examples(program)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise _damaged(self.name, f"its graph cannot be read ({type(error).__name__}: {text})") from None

    def _bytes(self, inner: str) -> bytes:
        member = self.members.get(inner)
        if member is None:
            raise _damaged(self.name, f"it has no member {inner}")
        try:
            return self.archive.read(member)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
            raise _damaged(self.name, f"member {inner} is damaged ({error})") from None

    def _json(self, inner: str) -> dict[str, Any]:
        try:
            document = json.loads(self._bytes(inner))
        except (ValueError, RecursionError):
            raise _damaged(self.name, f"member {inner} is no JSON") from None
        if not isinstance(document, dict):
            raise _damaged(self.name, f"member {inner} is no JSON object")
        return document

    def _check(self, document: dict[str, Any]) -> None:
        """Refuse what torch would evaluate, look up or put into code; take out what is not wanted."""
        document["guards_code"] = []
        for parent in _objects(document, self.name):
            target = parent.get("target", parent.get("as_operator"))
            if isinstance(target, str) and not (TARGET.fullmatch(target) and PYTHON_TARGETS.match(target)):
                place = str(parent.get("name") or "")
                raise CompileError(
                    "EVRF001",
                    f"{self.name}: operator {target[:100]} of node {place[:100]} is not one of ATen",
                    EXPERTS_ADVICE
                    if target.startswith("torch.ops.transformers.grouped_mm")
                    else "custom operators have no meaning outside their process: write the model without it",
                )
            if "expr_str" in parent and not re.fullmatch(r"-?\d+", str(parent["expr_str"])):
                raise CompileError(
                    "EMOD025",
                    f"{self.name}: a dim is dynamic: {str(parent['expr_str'])[:60]}",
                    "export it without dynamic_shapes, once for each size that is wanted",
                )
            for key in ("in_spec", "out_spec"):
                if isinstance(parent.get(key), str):
                    self._check_containers(parent[key])
            self._check_words({key: value for key, value in parent.items() if key not in FREE})
            if isinstance(parent.get("metadata"), dict):
                parent["metadata"] = _shown(parent["metadata"])
            if isinstance(parent.get("device"), dict):
                parent["device"] = {"type": "cpu", "index": None}

    def _check_words(self, given: Any) -> None:
        """The keys of an object, its texts, and those of lists in it."""
        values = [*given, *given.values()] if isinstance(given, dict) else given
        for value in values:
            if isinstance(value, list):
                self._check_words(value)
            elif isinstance(value, str) and not WORD.fullmatch(value):
                raise _damaged(self.name, f"a name in its graph is {value[:60]!r}")

    def _check_containers(self, text: str) -> None:
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError):
            raise _damaged(self.name, "how its results are nested is no JSON") from None
        for each in _objects(spec, self.name):
            if "type" in each and each["type"] not in CONTAINERS:
                raise CompileError(
                    "EVRF064",
                    f"{self.name}: arguments or results are nested in a {str(each['type'])[:100]}",
                    "return tensors in tuples, lists and dictionaries",
                )
            if "context" in each:
                self._check_keys(each["context"])

    def _check_keys(self, context: Any) -> None:
        """The keys of a dictionary, which are named arguments at the top."""
        try:
            keys = json.loads(context) if isinstance(context, str) else context
        except (ValueError, RecursionError):
            keys = context
        if keys is not None and not (
            isinstance(keys, list) and all(isinstance(key, int) or str(key).isidentifier() for key in keys)
        ):
            raise _damaged(self.name, f"the keys of its arguments or results are {str(keys)[:60]!r}")

    def _tensors(self, folder: str, config: str, prefixes: tuple[str, ...]) -> dict[str, torch.Tensor]:
        entries = self._json(f"{folder}/{config}").get("config")
        if not isinstance(entries, dict):
            raise _damaged(self.name, f"{config} lists no tensors")
        return {name: self._tensor(folder, name, entry, prefixes) for name, entry in entries.items()}

    def _tensor(self, folder: str, name: str, entry: Any, prefixes: tuple[str, ...]) -> torch.Tensor:
        try:
            path, meta = str(entry["path_name"]), entry["tensor_meta"]
            if entry["use_pickle"] is not False or not path.startswith(prefixes):
                raise CompileError(
                    "EVRF064", f"{self.name}: {name} is a pickle or a custom object, which is never loaded", REMEDY
                )
            sizes, strides = ([_whole(size) for size in meta[key]] for key in ("sizes", "strides"))
            offset = _whole(meta["storage_offset"])
            dtype = deserialize_scalar_type(meta["dtype"])
            parameter = entry["is_param"] is True
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _damaged(self.name, f"the entry of tensor {name} is malformed") from None
        data = self._bytes(f"{folder}/{path}")
        wanted = numpy_dtype(dtype)
        if len(sizes) != len(strides):
            raise _damaged(self.name, f"tensor {name} has {len(sizes)} sizes and {len(strides)} strides")
        reach = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
        if math.prod(sizes) and (reach * wanted.itemsize > len(data) or len(data) % wanted.itemsize):
            raise _damaged(self.name, f"tensor {name} is larger than its {len(data)} bytes")
        self.room -= max(0, math.prod(sizes) * wanted.itemsize - len(data))
        if self.room < 0:
            raise _damaged(self.name, f"tensor {name} repeats its {len(data)} bytes to more than fit")
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.zeros(0, dtype=dtype)
        if not math.prod(sizes):
            tensor = torch.zeros(sizes, dtype=dtype)
        else:
            tensor = torch.as_strided(flat, sizes, strides, offset)
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point()) if parameter else tensor


FREE = ("metadata", "in_spec", "out_spec")
"""Texts that are checked by their own rules."""


def _shown(metadata: dict[str, Any]) -> dict[str, str]:
    """Of a node's metadata, what is shown: lines of source, and the modules around it."""
    trace, stack = (str(metadata.get(key) or "") for key in ("stack_trace", "nn_module_stack"))
    kept = {"stack_trace": "\n".join(FRAME.findall(trace)), "nn_module_stack": stack if WORD.fullmatch(stack) else ""}
    return {key: value for key, value in kept.items() if value}


def _with_examples(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """torch looks at the sample inputs when it decomposes a program: the shapes alone take their place."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
    leaves = [node.meta["val"] for node, spec in specs if spec.kind is InputKind.USER_INPUT]
    program.example_inputs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return program


def _whole(value: Any) -> int:
    number = value["as_int"] if isinstance(value, dict) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < np.iinfo(np.int64).max:
        raise ValueError
    return number


def _objects(document: Any, name: str) -> Iterator[dict[str, Any]]:
    """Every JSON object within ``document``, but no metadata."""
    level = [document]
    for _ in range(MOST_DEPTH):
        yield from (each for each in level if isinstance(each, dict))
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += [value for key, value in each.items() if key != "metadata"]
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise _damaged(name, "its parts are nested too deep")
