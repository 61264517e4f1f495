"""What kernels have to read, for the coverage check (``runtime.coverage``)."""

from __future__ import annotations

import os

from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.chains.choose import read_in_part
from neuronx_cc.codegen.chains.pattern import Chain
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import Kernel, base, is_view, operands_of, trace
from neuronx_cc.codegen.kernels import CONTRACTIONS, LOWERINGS
from neuronx_cc.codegen.view_ops import apply_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Home, Need
from neuronx_cc.ir.scans import scan_of


def wanted() -> bool:
    """Whether programs are checked in this process (as ``runtime.provenance.wanted``)."""
    return os.environ.get("NEURONX_CC_PROVENANCE") == "1"


def reads_all(kernel: Kernel) -> bool:
    """Whether ``kernel`` reads each element of each operand."""
    if kernel.is_map or kernel.together is not None:
        return True
    lowering = CONTRACTIONS.get(kernel.kind) or LOWERINGS.get(kernel.kind)
    return lowering is not None and not lowering.in_part


def _in_part(context: Context, together: object) -> set[hlo.SSAValue]:
    """Operands of which columns are not read that have no weight."""
    if isinstance(together, Attention):
        return together.read_in_part()
    return read_in_part(context, together) if isinstance(together, Chain) else set()


def note(context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel], first: int) -> None:
    """Add what ``kernel``, whose records begin at ``first``, has to read to the program's needs."""
    program = context.builder.program
    kind = kernel.kind
    if not reads_all(kernel) or first == len(program.records):
        return
    part = set(map(base, _in_part(context, kernel.together)))
    # a recurrence starts with its first term, whatever the factor there
    scanned = ((op, scan) for op in kernel.ops if (scan := scan_of(op)) is not None)
    part |= {base(op.operands[0]) for op, scan in scanned if len(op.operands) > 1 and not (scan.body and scan.initial)}
    made = [view for op in kernel.ops for result in op.results for view in context.homes.get(result, ())]
    for operand in dict.fromkeys(operand for op in kernel.ops for operand in operands_of(op)):
        if (
            base(operand) in part
            or base(operand) in context.listed
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
