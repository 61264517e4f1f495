"""Lowers one computation: its kernels in order, each with its homes, and the lifetimes of the values between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial

from neuronx_cc.codegen import needs
from neuronx_cc.codegen.attention import choose as attention_choice
from neuronx_cc.codegen.attention import kernel as attention_kernel
from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.chains import choose as chain_choice
from neuronx_cc.codegen.chains import kernel as chain_kernel
from neuronx_cc.codegen.chains.pattern import Chain
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control import regions as control
from neuronx_cc.codegen.dots import scales
from neuronx_cc.codegen.epilogues import choose as epilogue_choice
from neuronx_cc.codegen.exchange import order as exchange_order
from neuronx_cc.codegen.exchange.kernel_time import Estimate
from neuronx_cc.codegen.formation import columns, recompute
from neuronx_cc.codegen.formation import form as formation
from neuronx_cc.codegen.formation.graph import Kernel, base, operands_of, same_order, squeeze
from neuronx_cc.codegen.indexing.gather_kernel import bring_together
from neuronx_cc.codegen.kernels import CONTRACTIONS, LOWERINGS
from neuronx_cc.codegen.left import Left
from neuronx_cc.codegen.maps import kernel as map_kernel
from neuronx_cc.codegen.movement import tail_kernel
from neuronx_cc.codegen.movement.straight import straighten
from neuronx_cc.codegen.parts import Parts
from neuronx_cc.ir import hlo, progress
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import ORDER
from neuronx_cc.passes.analysis.effects import runs_once


@dataclass(slots=True)
class Block:
    """A computation as kernels; steps are their numbers."""

    context: Context
    kernels: list[Kernel]
    member: dict[hlo.SSAValue, Kernel]
    """Result (of multi-result ops: each element) -> its kernel."""

    @classmethod
    def of(cls, context: Context, computation: hlo.ComputationOp, without: Set[hlo.Operation] = frozenset()) -> Block:
        """The kernels of ``computation``, but of the ops ``without``, which nothing needs."""
        chains = chain_choice.worthwhile(context, computation, without)
        chained = {op for each in chains for op in each.ops}
        attentions = attention_choice.worthwhile(context, computation, without | chained)
        tails = tail_kernel.worthwhile(context, computation, without | chained, attentions)
        inside = formation.inside_of(attentions, tails) | chained
        found = scales.found(computation, inside | without, context.sizes, context.splat)
        scaled = dict(found) if context.moves_values("bf16") else {}
        context.scaled |= scaled
        made = {op for each in scaled.values() for op in each.ops}
        late = recompute.spread(computation, partial(columns.folded_by, context, sections=1), inside | made)
        epilogues = epilogue_choice.worthwhile(context, computation, inside | without)
        context.cast_on_load(computation, {op for ops in epilogues.values() for op in ops})
        kernels = formation.form(
            context,
            computation,
            without,
            [
                *((each.ops, each) for each in attentions),
                *((each.ops, each) for each in chains),
                *(((op,), None) for op in tails),
            ],
            inside,
            epilogues,
            late,
            made,
        )
        member: dict[hlo.SSAValue, Kernel] = {
            result: kernel for kernel in kernels for op in kernel.ops for result in op.results
        }
        for op in computation.block.ops:
            if isinstance(op, hlo.GetTupleElementOp) and op.operand in member:
                member[op.result] = member[op.operand]
        return cls(context, _overlapped(context, computation, kernels, member), member)

    def note_uses(self, results: Iterable[hlo.SSAValue]) -> None:
        """Tell the context until when each value is needed; ``results`` are needed after the last kernel."""
        for step, kernel in enumerate(self.kernels):
            for op in kernel.ops:
                for value in _used_by(self.context, op):
                    self.context.note_use(value, step)
        for value in results:
            self.context.note_use(value, len(self.kernels))

    def step_of(self, value: hlo.SSAValue) -> int:
        """The step that computes ``value``; -1 for views, constants and what is given."""
        kernel = self.member.get(value)
        return -1 if kernel is None else kernel.number

    def overwrites(self, old: hlo.SSAValue, result: hlo.SSAValue) -> bool:
        """Whether the kernel of ``result`` reads the HBM array ``old`` just where it writes ``result``.

        A map kernel without folds loads all of a tile before it stores any of it, so both may have one buffer; so does
        a contraction with what its sums are combined with, as they leave PSUM.
        """
        kernel = self.member.get(result)
        if kernel is None or kernel.reduced or kernel.scanned >= 0 or kernel.together is not None:
            return False
        before, after = hlo.shape_of(old), hlo.shape_of(result)
        dims, first = squeeze(after.dims), kernel.ops[0]
        if (before.dtype, before.size) != (after.dtype, after.size) or (kernel.is_map and dims != kernel.shape):
            return False
        if not kernel.is_map and not isinstance(first, hlo.DotOp):
            return False
        multiplied = () if kernel.is_map else first.sources
        if any(base(self.context.source_of(operand)) is old for operand in multiplied):
            return False
        reads = [operand for op in kernel.ops for operand in op.sources if base(operand) is old]
        return all(same_order(operand, old) and squeeze(hlo.shape_of(operand).dims) == dims for operand in reads)

    def lower(self) -> None:
        parts = Parts.of(self.context, self)
        for step, kernel in enumerate(self.kernels):
            if not self.context.prefix:
                progress.note(step, len(self.kernels), "kernel")
                if self.context.recovery.repeatable and self._runs_once(kernel, step):
                    self.context.recovery.settle()
            parts.before(step)
            self._lower_kernel(kernel, step)

    def _runs_once(self, kernel: Kernel, step: int) -> bool:
        """Whether what comes before ``kernel`` cannot be run again after it, as where it writes into a parameter."""
        context = self.context
        if any(runs_once(op, context.module, context.recovery.once) for op in kernel.ops):
            return True
        given = {view.alloc for view in context.carried.values()}
        made = [
            context.outputs[result] for op in kernel.ops for result in _made(context, op) if result in context.outputs
        ]
        read = [operand for op in kernel.ops for operand in operands_of(op) if base(operand) in context.carried]
        return any(view.alloc in given for view in made) or any(context.last_use(each) <= step for each in read)

    def _lower_kernel(self, kernel: Kernel, step: int) -> None:
        context, first = self.context, kernel.ops[0]
        name = f"{context.prefix}{kernel.number}.{kernel.kind}"
        context.builder.program.kernels.append(name)
        context.builder.at(name, kernel.ops[-1].loc)
        types = [op.result.type for op in kernel.ops]
        sizes = [type_.data.size for type_ in types if isinstance(type_, hlo.ArrayType)]
        if sizes and not any(sizes):
            for op in kernel.ops:
                context.homes[op.result] = [context.new_hbm(op.result)]
            return
        start = len(context.builder.program.records)
        if context.listed and (kernel.together is not None or not isinstance(first, hlo.DotOp)):
            for value in dict.fromkeys(operand for op in kernel.ops for operand in operands_of(op)):
                bring_together(context, base(context.source_of(value)))
        if kernel.together is None:
            straighten(context, first, step)
        if isinstance(kernel.together, Attention):
            attention_kernel.lower(context, kernel.together)
        elif isinstance(kernel.together, Chain):
            chain_kernel.lower(context, kernel.together)
        elif kernel.is_map:
            map_kernel.lower(context, kernel, self.member, step)
        elif first.opcode in CONTRACTIONS:
            CONTRACTIONS[first.opcode].lower(context, kernel, step)
        elif isinstance(first, hlo.WhileOp):
            control.lower_while(context, first, step, name, Block.of)
        elif isinstance(first, hlo.ConditionalOp):
            control.lower_conditional(context, first, step, name, Block.of)
        elif first.opcode in LOWERINGS:
            LOWERINGS[first.opcode].lower(context, first, step)
        else:
            raise CompileError(
                "EVRF001",
                f"operator {first.opcode} has no code generation",
                "rewrite it with supported operators; `neuronx-cc list-operators` lists them",
                first.loc,
            )
        if needs.wanted():
            needs.note(context, kernel, self.member, start)
        for op in kernel.ops:
            for result in _made(context, op):
                target = context.outputs.get(result)
                if target is not None and not context.lies_in(result, target):
                    context.store(result, target)
                    context.homes[result].append(target)
                if context.left is not None and not context.prefix and result in context.homes:
                    at = len(context.builder.program.records)
                    context.left.append(Left(at, result, context.homes[result][0]))
        context.release(step, [value for op in kernel.ops for value in _used_by(context, op)])


def _used_by(context: Context, op: hlo.HloOp) -> list[hlo.SSAValue]:
    """The values whose memory ``op`` reads or writes."""
    return [*(source for operand in operands_of(op) for source in context.read_for(operand)), *op.results]


def _overlapped(
    context: Context, computation: hlo.ComputationOp, kernels: list[Kernel], member: Mapping[hlo.SSAValue, Kernel]
) -> list[Kernel]:
    """``kernels`` in the order in which collectives overlap with computing."""
    order = exchange_order.plan(
        kernels,
        lambda value: member.get(base(context.source_of(base(value)))),
        Estimate(context.module, context.timing),
        context.effectful,
    )
    if order is None:
        return kernels
    context.builder.program.schedules[computation.computation_name + ORDER] = order.line()
    for number, kernel in enumerate(order.kernels):
        kernel.number = number
    return order.kernels


def _made(context: Context, op: hlo.HloOp) -> Iterator[hlo.SSAValue]:
    """What other kernels read of ``op``: its result, or the elements of that tuple."""
    for result in op.results:
        if isinstance(result.type, hlo.ArrayType):
            yield result
        else:
            for same in context.elements(result).values():
                yield from same
