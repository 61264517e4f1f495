"""An HLO module: its computations as IR, its constants, and the header facts that no op carries."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import ModuleOp

from neuronx_cc.ir.constants import ConstantPool
from neuronx_cc.ir.hlo.base import ComputationOp


@dataclass(frozen=True, slots=True)
class Alias:
    """Output ``output_index`` may reuse the buffer of parameter ``parameter`` at ``parameter_index``."""

    output_index: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...] = ()
    must: bool = False


@dataclass(slots=True)
class HloModule:
    """``op`` holds the ``ComputationOp``s, callees before callers, the entry last."""

    name: str
    op: ModuleOp
    constants: ConstantPool = field(default_factory=ConstantPool)
    aliases: tuple[Alias, ...] = ()
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()
    header: tuple[tuple[str, str], ...] = ()
    """Other ``HloModule`` header attributes, as text (``entry_computation_layout``, ``replica_count`` ...)."""
    outputs: tuple[str, ...] = ()
    """What the framework calls the results, in order; none where it has no names for them."""
    source: str = ""
    """File the module came from, for error messages."""
    _by_name: dict[str, ComputationOp] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What ``computation`` found last; a computation may have gone or been renamed since."""

    @classmethod
    def empty(cls, name: str) -> "HloModule":
        return cls(name, ModuleOp([]))

    def copy(self) -> "HloModule":
        """The same module in ops of its own, for passes that work in place; the arrays of constants are shared."""
        return replace(self, op=self.op.clone(), constants=self.constants.copy())

    def computations(self) -> Iterator[ComputationOp]:
        op = self.op.body.block.first_op
        while op is not None:
            following = op.next_op  # the current one may be erased meanwhile
            assert isinstance(op, ComputationOp)
            yield op
            op = following

    @property
    def entry(self) -> ComputationOp:
        last = self.op.body.block.last_op
        if isinstance(last, ComputationOp) and last.is_entry.data:
            return last
        for computation in self.computations():
            if computation.is_entry.data:
                return computation
        raise ValueError(f"module {self.name} has no entry computation")

    def computation(self, name: str) -> ComputationOp:
        """The computation called ``name``; raises KeyError without one."""
        known = self._by_name.get(name)
        if known is None or known.parent is not self.op.body.block or known.computation_name != name:
            self._by_name = {each.computation_name: each for each in self.computations()}
            known = self._by_name[name]
        return known
