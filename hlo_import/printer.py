"""``HloModule`` -> HLO text that XLA's own parser accepts.

Names come from the locations; where passes left two ops with one name, later ones get a number. Layouts say where XLA
puts values, not what they are: an op keeps the one that its file gave it while its type stays, what passes make is
row-major, and so is what a ``bitcast`` reads, whose meaning depends on it. The header's entry layout is the imported
one while parameters and results are, else theirs. A schedule stays one: any order that is printed can be executed.
"""

import re

from neuronx_cc.hlo_import.attribute_text import attribute_texts, braces, quote
from neuronx_cc.hlo_import.lexer import RESERVED
from neuronx_cc.hlo_import.literals import literal_text
from neuronx_cc.hlo_import.shapes import type_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import Loc

_AFRESH = frozenset(["entry_computation_layout", "input_output_alias", "buffer_donor"])
"""Header attributes that do not print as they were read."""
_LAYOUT = re.compile(r"(?<=\])\{[^{}]*\}|/\*.*?\*/|\s")
"""What the text of a type may have that says nothing about the value."""


def print_module(module: hlo.HloModule, large_constants: bool = True) -> str:
    """The module as HLO text. Without ``large_constants`` those of more than ten elements print as ``{...}``."""
    parts = [_header(module)]
    for computation in module.computations():
        parts.append("\n\n" + print_computation(computation, module, large_constants))
    return "".join(parts) + "\n"


def print_computation(computation: hlo.ComputationOp, module: hlo.HloModule, large_constants: bool = True) -> str:
    """One computation as HLO text."""
    names = value_names(computation)
    root = computation.root
    lines = [f"{'ENTRY ' if computation.is_entry.data else ''}{spelled(computation.computation_name)} {{"]
    for index, argument in enumerate(computation.block.args):
        text = f"{names[argument]} = {laid_out_text(argument)} parameter({index})"
        extra = computation.attributes.get(f"param_extra.{index}")
        extras = extra.data if isinstance(extra, hlo.ExtraAttr) else ()
        rest = computation.attributes.get(f"param_metadata.{index}")
        text += _attributes(extras, computation.parameter_loc(index), rest)
        lines.append(f"  {'ROOT ' if argument is root else ''}{text}")
    for op in computation.block.ops:
        if isinstance(op, hlo.HloOp):
            mark = "ROOT " if op.results[0] is root else ""
            lines.append(f"  {mark}{_instruction(op, names, module, large_constants)}")
    thread = computation.attributes.get("execution_thread")
    lines.append(f"}}, execution_thread={quote(thread.data)}" if isinstance(thread, hlo.StrAttr) else "}")
    return "\n".join(lines)


def value_names(computation: hlo.ComputationOp) -> dict[hlo.SSAValue, str]:
    """A distinct HLO name for every value of ``computation``."""
    used: dict[str, int] = {}
    names: dict[hlo.SSAValue, str] = {}

    def name(value: hlo.SSAValue, wanted: str) -> None:
        chosen = wanted
        while chosen in used:
            used[wanted] += 1
            chosen = f"{wanted}.{used[wanted]}"
        used[chosen] = 0
        names[value] = spelled(chosen)

    for index, argument in enumerate(computation.block.args):
        name(argument, computation.parameter_loc(index).name or f"arg{index}")
    for op in computation.block.ops:
        if isinstance(op, hlo.HloOp):
            name(op.results[0], op.loc.name or op.opcode)
    return names


def spelled(name: str) -> str:
    """``name`` as text; a word of the grammar is one with a sign only."""
    return f"%{name}" if name in RESERVED else name


def _header(module: hlo.HloModule) -> str:
    parts = [f"HloModule {spelled(module.name)}"]
    if module.aliases:
        aliases = [
            f"{braces(alias.output_index)}: ({alias.parameter}, {braces(alias.parameter_index)}, "
            f"{'must' if alias.must else 'may'}-alias)"
            for alias in module.aliases
        ]
        parts.append(f"input_output_alias={{ {', '.join(aliases)} }}")
    if module.donors:
        donors = [f"({parameter}, {braces(index)})" for parameter, index in module.donors]
        parts.append(f"buffer_donor={{ {', '.join(donors)} }}")
    entry = module.entry
    arguments = ", ".join(laid_out_text(argument, always=True) for argument in entry.block.args)
    layout = f"{{({arguments})->{laid_out_text(entry.root, always=True)}}}"
    imported = dict(module.header).get("entry_computation_layout", "")
    same = _LAYOUT.sub("", imported) == _LAYOUT.sub("", layout)
    parts.append(f"entry_computation_layout={imported if same else layout}")
    parts.extend(f"{name}={text}" for name, text in module.header if name not in _AFRESH)
    return ", ".join(parts)


def _instruction(op: hlo.HloOp, names: dict[hlo.SSAValue, str], module: hlo.HloModule, large_constants: bool) -> str:
    if isinstance(op, hlo.ConstantOp):
        operands = _literal(op, module, large_constants)
    else:
        operands = ", ".join([names[operand] for operand in op.operands])
    result = op.results[0]
    attributes = tuple(attribute_texts(op, spelled))
    rest = op.attributes.get("metadata")
    type_ = laid_out_text(result, always=any(name == "operand_layout_constraints" for name, _ in attributes))
    return f"{names[result]} = {type_} {op.opcode}({operands}){_attributes(attributes, op.loc, rest)}"


def laid_out_text(value: hlo.SSAValue, always: bool = False) -> str:
    """The type of ``value`` with the layout that it came with; ``always``: also where that is row-major."""
    if isinstance(value, hlo.OpResult):
        spelled = value.op.attributes.get("layout")
    else:
        computation = value.owner.parent_op()
        spelled = computation.attributes.get(f"param_layout.{value.index}")  # type: ignore[union-attr, attr-defined]
    spelling = spelled.data if isinstance(spelled, hlo.StrAttr) else ""
    if _LAYOUT.sub("", spelling) != _LAYOUT.sub("", type_text(value.type)):
        spelling = ""
    if any(isinstance(use.operation, hlo.BitcastOp) for use in value.uses):
        spelling = ""
    return spelling or type_text(value.type, layout=always)


def _literal(op: hlo.ConstantOp, module: hlo.HloModule, large_constants: bool) -> str:
    shape = op.shape
    if not large_constants and shape.size > 10:
        return "{...}"
    return literal_text(module.constants[op.value.data], shape.dtype)


def _attributes(attributes: tuple[tuple[str, str], ...], loc: Loc, rest: hlo.Attribute | None) -> str:
    parts = [f", {name}={text}" for name, text in attributes]
    metadata = _metadata(loc)
    if isinstance(rest, hlo.StrAttr):
        metadata.append(rest.data)
    if metadata:
        parts.append(f", metadata={{{' '.join(metadata)}}}")
    return "".join(parts)


def _metadata(loc: Loc) -> list[str]:
    fields = [f"op_name={quote(loc.op_name)}"] if loc.op_name else []
    if loc.source_file:
        fields.append(f"source_file={quote(loc.source_file)}")
    if loc.source_line:
        fields.append(f"source_line={loc.source_line}")
    return fields
