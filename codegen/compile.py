"""From an HLO module that the passes have prepared to a program: kernels in order, then the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from neuronx_cc.codegen import donation, wide_words
from neuronx_cc.codegen.attention.kernel import NoRoomLeft
from neuronx_cc.codegen.blocks import Block
from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.context import Context, Transposes
from neuronx_cc.codegen.control.regions import write_back
from neuronx_cc.codegen.dots.homes import unpermuted
from neuronx_cc.codegen.dots.problem import DECODED
from neuronx_cc.codegen.emission.views import View, linear
from neuronx_cc.codegen.formation.graph import ELEMENTWISE, is_view
from neuronx_cc.codegen.kernels import CONTRACTIONS, LOWERINGS
from neuronx_cc.codegen.left import Left, State
from neuronx_cc.codegen.residents import PARTS
from neuronx_cc.ir import collector, hlo
from neuronx_cc.ir.errors import NO_LOC, CompileError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.program import Program
from neuronx_cc.ir.machine import Machine
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.values import argument_names


def lower_module(
    module: hlo.HloModule,
    machine: Machine,
    fast_relayout: bool = True,
    transposes: Transposes = Transposes.VALUES,
    left: list[Left | State] | None = None,
    planner: Planner | None = None,
    defined_codes: bool = False,
) -> tuple[Program, list[np.ndarray]]:
    """The program of ``module``'s entry computation, planned for ``machine``, and the data of its constants.

    ``fast_relayout``: TensorE transposes 16- and 8-bit operands of contractions as values, so that an infinity
    or NaN spreads over its 128 rows (hardware sheet 2.3); without it, and for FP32 always, as bit patterns.
    ``left``: a list that is told where each kernel of the entry computation leaves its results.

    ``transposes`` says more of those of contractions; with ``WATCHED`` a program that transposes values has one result
    more than its module.

    ``defined_codes``: whoever runs the program sees to it that no 8-bit code of the inputs that it says so of is NaN.

    ``planner`` chooses the schedules of contractions; the default takes the best by estimate.

    Where a kernel's smallest tiles find no room beside what other kernels keep on chip, less is kept.

    Raises CompileError EVRF001 for an op without code generation, EOOM001 when HBM does not suffice, EXSP001 for a
    kernel whose smallest tiles the whole of SBUF does not hold.
    """
    wide_words.run(module)
    apart: set[hlo.Operation] = set()
    parts = list(PARTS)
    with collector.paused():
        while True:
            context = Context(module, machine, fast_relayout, transposes, planner, apart, parts[0], defined_codes)
            context.left = left
            if left is not None:
                context.recovery.settle()  # kernels leave what they should at once, for who looks at it
            try:
                return _lower(module, context)
            except NoRoomLeft as found:
                apart.add(found.first)
            except CompileError as error:  # tiles find no room beside what is kept on chip
                if error.code != "EXSP001" or not parts[1:]:
                    raise
                del parts[0]
            if left is not None:
                left.clear()


def takes_codes(module: hlo.HloModule) -> bool:
    """Whether there are parameters of codes that contractions decode."""
    return any(hlo.shape_of(argument).dtype in DECODED for argument in module.entry.block.args)


def _lower(module: hlo.HloModule, context: Context) -> tuple[Program, list[np.ndarray]]:
    context.builder.program.devices = device_counts(module)
    entry = module.entry
    arguments = argument_names(entry)
    for index, argument in enumerate(entry.block.args):
        shape = hlo.shape_of(argument)
        name = entry.parameter_loc(index).name
        home = context.variable(name, "input", shape.dtype, shape.dims, index, argument=arguments[index])
        context.homes[argument] = [home]
    results = _results(entry)
    writers = _writers(results)
    block = Block.of(context, entry)
    counts = Counter(results)
    for alias in module.aliases:
        counts[results[(alias.output_index or (0,))[0]]] += alias.must  # copied at the end if need be
    needed = [value for value in results if value not in writers or counts[value] > 1]
    block.note_uses(needed)
    shares = donation.plan(context, block, results, writers)
    targets = _targets(context, results, shares)
    for writer, index in writers.items():
        if index not in shares.late:
            shape, target = hlo.shape_of(writer), targets[index]
            context.outputs[writer] = linear(target.alloc, target.start, shape.dtype, shape.dims)
            first = _first_state(writer) if index not in shares.shared else None
            if first is not None and first not in context.outputs:
                shape = hlo.shape_of(first)
                context.outputs[first] = linear(target.alloc, target.start, shape.dtype, shape.dims)
    for index, (value, target) in enumerate(zip(results, targets, strict=True)):
        if index not in shares.parameter and value not in writers:
            source, place = unpermuted(value, target)
            if place is not None and source not in context.outputs:
                context.permuted.setdefault(source, place)
    for number in {alias.parameter for alias in module.aliases} | {number for number, _ in module.donors}:
        context.carried[entry.block.args[number]] = context.homes[entry.block.args[number]][0]
    convolving = [each for each in module.computations() if any(map(_convolves, ops_of(each.block)))]
    if not convolving:
        context.recovery.settle()  # nothing looks at its sums
    elif convolving != [entry]:
        context.recovery.prepare()
    block.lower()
    if shares.shared:
        context.recovery.settle()
    for index, (value, target) in enumerate(zip(results, targets, strict=True)):
        context.builder.at("results", hlo.loc_of(value))
        if index not in shares.late and not context.lies_in(value, target):
            context.store(value, target)
    write_back(context, [(results[index], targets[index]) for index in sorted(shares.late)])
    if context.watch is not None and context.watch.used:
        context.builder.at("watch", NO_LOC)
        context.watch.store(context.variable("watch", "output", "f32", (1,), len(results)))
    context.builder.at("recovery", NO_LOC)
    context.recovery.settle()
    return context.builder.finish(), context.constants


def _convolves(op: hlo.HloOp) -> bool:
    return isinstance(op, hlo.ConvolutionOp)


def _writers(results: Sequence[hlo.SSAValue]) -> dict[hlo.SSAValue, int]:
    """Values that their kernels may write where a result belongs -> its number; what is left is copied at the end."""
    writers: dict[hlo.SSAValue, int] = {}
    for index, value in enumerate(results):
        if not isinstance(value, hlo.OpResult) or is_view(value.op) or isinstance(value.op, hlo.ConstantOp):
            continue
        writers.setdefault(value, index)
    for index, value in enumerate(results):
        source = _reshaped(value)
        if source is not None and source not in results:
            writers.setdefault(source, index)
    return writers


def _targets(
    context: Context,
    results: Sequence[hlo.SSAValue],
    shares: donation.Donation,
) -> list[View]:
    """The memory of each result, that of a parameter where ``shares`` says so."""
    arguments = context.module.entry.block.args
    targets = []
    for index, value in enumerate(results):
        shape, alias = hlo.shape_of(value), shares.parameter.get(index, -1)
        alloc = context.homes[arguments[alias]][0].alloc if index in shares.shared else None
        name = context.module.outputs[index] if index < len(context.module.outputs) else ""
        target = context.variable(f"out{index}", "output", shape.dtype, shape.dims, index, alias, alloc, name)
        targets.append(target)
    return targets


def _first_state(result: hlo.SSAValue) -> hlo.SSAValue | None:
    """What the loop that makes ``result`` starts from, when a kernel makes it for that loop alone; else None."""
    op = result.owner
    if not isinstance(op, hlo.GetTupleElementOp) or not isinstance(op.operand.owner, hlo.WhileOp):
        return None
    initial = op.operand.owner.operand.owner
    if not isinstance(initial, hlo.TupleOp) or not initial.result.has_one_use():
        return None
    value = initial.operands[op.index.data]
    source = _computed(value)
    while source is not None and value is not source and value.has_one_use():
        assert isinstance(value, hlo.OpResult)
        value = value.op.operands[0]
    return source if value is source and source.has_one_use() else None


def _reshaped(value: hlo.SSAValue) -> hlo.SSAValue | None:
    """What ``value`` is a reshape of, when a kernel can write it where the result belongs; else None."""
    source = _computed(value)
    return source if source is not value else None


def _computed(value: hlo.SSAValue) -> hlo.SSAValue | None:
    """``value``, or what it is a reshape of, if a kernel computes that; else None."""
    source = value
    while isinstance(source, hlo.OpResult) and isinstance(source.op, hlo.ReshapeOp):
        source = source.op.operand
    if not isinstance(source, hlo.OpResult) or not isinstance(source.op, hlo.HloOp):
        return None
    computed = source.op.opcode in {*LOWERINGS, *CONTRACTIONS, *ELEMENTWISE}
    return source if computed and not is_view(source.op) else None


def _results(entry: hlo.ComputationOp) -> list[hlo.SSAValue]:
    root = entry.root
    if isinstance(root, hlo.OpResult) and isinstance(root.op, hlo.TupleOp):
        return list(root.op.operands)
    return [root]
