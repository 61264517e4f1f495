"""Results that lie in the memory of donated parameters.

Input: the entry as kernels, with every use noted. A result takes the buffer of the parameter that the module's header
gives up for it when nothing is lost by that: when all reads of the parameter come before the kernel that writes the
result, when that kernel reads it elementwise or updates it in place, or when the result is the parameter. A parameter
that is given up for no result in particular serves the first that it fits. Other results have memory of their own;
where the header demands the parameter's (``must-alias``), they are copied there at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neuronx_cc.codegen.blocks import Block
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import base, same_order
from neuronx_cc.codegen.sharing import is_free, updates
from neuronx_cc.ir import hlo


@dataclass(slots=True)
class Donation:
    """``parameter``: result -> the parameter named for it. ``shared``: the results that lie in that one's memory.

    ``late``: those of ``shared`` that are copied there when everything else is done.
    """

    parameter: dict[int, int] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)


def plan(
    context: Context,
    block: Block,
    results: Sequence[hlo.SSAValue],
    writers: Mapping[hlo.SSAValue, int],
) -> Donation:
    """``writers``: values whose kernels write a result -> its number."""
    module = context.module
    arguments = module.entry.block.args
    found = Donation()
    written = {index: value for value, index in writers.items()}
    perhaps_late = {(alias.output_index or (0,))[0] for alias in module.aliases if alias.must}
    elsewhere = {
        value
        for value, index in writers.items()
        if index not in perhaps_late and not isinstance(value.owner, hlo.GetTupleElementOp)
    }
    taken: set[int] = set()

    def alike(index: int, number: int) -> bool:
        value, old = results[index], arguments[number]
        return number not in taken and value.type == old.type and hlo.shape_of(value).size > 0

    def fits(index: int, number: int) -> bool:
        """Whether result ``index`` may be written into parameter ``number``, or is it."""
        value, old = results[index], arguments[number]
        if not alike(index, number):
            return False
        if base(value) is old:
            return same_order(value, old)
        writer = written.get(index)
        if writer is None:
            return is_free(context, old, len(block.kernels), elsewhere, lambda read: False)

        def meets(read: hlo.SSAValue) -> bool:
            return block.overwrites(read, writer) or updates(read, writer)

        return is_free(context, old, block.step_of(writer), elsewhere | {writer}, meets)

    def take(index: int, number: int) -> None:
        found.parameter[index] = number
        found.shared.add(index)
        taken.add(number)

    for alias in module.aliases:
        index, number = (alias.output_index or (0,))[0], alias.parameter
        found.parameter[index] = number
        if fits(index, number):
            take(index, number)
        elif alias.must and alike(index, number):
            take(index, number)
            found.late.add(index)
    for number, _ in module.donors:
        if number not in found.parameter.values():
            free = (index for index in range(len(results)) if index not in found.parameter)
            chosen = next((index for index in free if fits(index, number)), None)
            if chosen is not None:
                take(chosen, number)
    return found
