"""What kernels have to read, for the coverage check (``runtime.coverage``)."""

from __future__ import annotations

import os

from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.context import Context, apply_view
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import Kernel, base, is_view, operands_of, trace
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Home, Need

READ_WHOLE = frozenset(["attention", "bitcast-convert", "concatenate", "dot", "map", "reduce", "sort", "topk"])
"""Kinds of kernels that read each element of each operand."""
READ_IN_PART = {
    "conditional": "its kernels have needs of their own",
    "convolution": "strides step over elements",
    "custom-call": "one instruction with a buffer of its own",
    "dynamic-slice": "a window",
    "dynamic-update-slice": "what the update replaces is not read, the rest may stay where it is",
    "gather": "what the indices say",
    "pad": "negative padding cuts elements off",
    "reduce-window": "windows may lie apart",
    "scatter": "rows that are replaced, and updates that lie outside",
    "select-and-scatter": "windows may lie apart",
    "while": "its kernels have needs of their own",
} | dict.fromkeys(hlo.opcodes(hlo.CollectiveOp, hlo.DeviceNumberOp), "one instruction between whole arrays")
"""Kinds that may leave elements out, and why."""


def wanted() -> bool:
    """Whether programs are checked in this process (as ``runtime.provenance.wanted``)."""
    return os.environ.get("NEURONX_CC_PROVENANCE") == "1"


def note(context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel], first: int) -> None:
    """Add what ``kernel``, whose records begin at ``first``, has to read to the program's needs."""
    program = context.builder.program
    kind = kernel.kind
    if kind not in READ_WHOLE or first == len(program.records):
        return
    attention = kernel.attention
    part = set(map(base, attention.read_in_part())) if isinstance(attention, Attention) else set()
    made = [view for op in kernel.ops for result in op.results for view in context.homes.get(result, ())]
    for operand in dict.fromkeys(operand for op in kernel.ops for operand in operands_of(op)):
        if (
            base(operand) in part
            or isinstance(base(operand).owner, hlo.ConstantOp | hlo.IotaOp)
            or trace(operand, kernel, member) is not None
        ):
            continue
        views = [view for view in _known(context, operand) if view.alloc.owner >= 0]
        if kind == "concatenate" and any(view.alloc is home.alloc for view in views for home in made):
            continue  # the part was written where it belongs
        if views and not any(view.start.terms for view in views):
            name = f"%{operand.owner.loc.name}" if isinstance(operand.owner, hlo.HloOp) else "a parameter"
            program.needs.append(Need(first, len(program.records), name, tuple(map(_home, views))))


def _known(context: Context, value: hlo.SSAValue) -> list[View]:
    """The views of ``value`` that there are, of its own homes and of what it is a view of; maybe none."""
    found = list(context.homes.get(value, []))
    if isinstance(value, hlo.OpResult) and is_view(value.op):
        derived = (apply_view(value.op, view) for view in _known(context, value.op.operands[0]))
        found += [view for view in derived if view is not None]
    return found


def _home(view: View) -> Home:
    atoms = tuple((atom.size, atom.stride, atom.partition) for dim in view.dims for atom in dim)
    return Home(view.alloc.owner, view.start.const, atoms)
