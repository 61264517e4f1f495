"""What the instruction that calls a function of the host process means."""

from collections.abc import Callable

from neuronx_cc.ir.isa.elements import Array, State
from neuronx_cc.ir.isa.program import Instr


def host_call(instr: Instr, state: State) -> Callable[[Array, Array], None]:
    """The kernel ``(results, operands)`` of a ``host_call`` instruction."""
    number = int(instr.imm[0])
    return lambda results, operands: state.hosted().call(number, results, operands)
