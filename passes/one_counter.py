"""Lets a loop count once.

Input: ``flatten_control``'s form. Output: what else counts in the state of a counted loop, by a multiple of the step of
the counter that ends it, is computed from that one: ``lax.fori_loop`` and scans over numbers carry a counter of their
own, and only the one that ends a loop places windows without a look at memory.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.analysis.trip_count import Count, counted_loops, step_of
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import elements, packed


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for loop, counted in counted_loops(module):
        if counted.trips:
            _share(module, loop, counted)


def _share(module: HloModule, loop: hlo.WhileOp, counted: Count) -> None:
    body, initial = module.computation(loop.body.data[0]), packed(loop.operand)
    results, reads = packed(body.root), elements(body.block.args[0])
    type_ = initial[counted.index].type
    for index, found in reads.items():
        start, step = splat_number(initial[index], module), step_of(results[index], index, body, module)
        if index == counted.index or initial[index].type != type_ or start is None or step is None:
            continue
        if step % counted.step:
            continue
        shared = _from(Build.before(module, found[0]), body, type_, counted, int(start), step)
        for element in found:
            element.result.replace_all_uses_with(shared)


def _from(b: Build, body: hlo.ComputationOp, type_: hlo.Attribute, counted: Count, start: int, step: int) -> Value:
    """The number that is ``start`` at first and grows by ``step``, from the counter of the loop."""
    parameter, index = body.block.args[0], {"index": hlo.IntAttr(counted.index)}
    number = insert_before(b.anchor, hlo.GetTupleElementOp, [parameter], type_, b.loc, index)
    factor = step // counted.step
    if factor != 1:
        number = b.mul(number, b.number_like(factor, number))
    offset = start - factor * counted.start
    return number if not offset else b.add(number, b.number_like(offset, number))
