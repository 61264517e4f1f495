"""Which devices hold the same values. No pass: ``check_shares`` asks it.

The *kinds* of a value number, for each device, what it holds: devices of one number are known to hold the same. Input:
``flatten_control``'s form, collectives as ``resolve_collectives`` leaves them, shardings of the entry's parameters.
"""

import re
from collections.abc import Hashable, Sequence

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.passes.analysis.devices import device_counts

Kinds = tuple[int, ...]
MOST_ROUNDS = 64
"""Of a loop's body; each makes at least one element of its state differ on more devices."""

_TILED = re.compile(r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))(.*)\}")


class Shares:
    """The kinds of all values of ``module``."""

    def __init__(self, module: HloModule) -> None:
        replicas, partitions = device_counts(module)
        self.module = module
        self.devices = replicas * partitions
        self._same: Kinds = (0,) * self.devices
        self._own: Kinds = tuple(range(self.devices))
        self._known: dict[hlo.SSAValue, Kinds] = {}
        entry = module.entry
        for index, parameter in enumerate(entry.block.args):
            extra = entry.attributes.get(f"param_extra.{index}")
            text = dict(extra.data).get("sharding", "") if isinstance(extra, hlo.ExtraAttr) else ""
            self._known[parameter] = _of_sharding(text, replicas, partitions) or self._own
        self._walk(entry)

    def of(self, value: hlo.SSAValue) -> Kinds:
        """The kinds of ``value``; of a tuple those of all its elements together."""
        return self._known.get(value, self._own)

    def join(self, kinds: Sequence[Kinds]) -> Kinds:
        """What is made of values of these kinds."""
        return numbered(list(zip(*kinds, strict=True))) if kinds else self._same

    def _walk(self, computation: hlo.ComputationOp) -> None:
        for op in computation.block.ops:
            if isinstance(op, hlo.WhileOp):
                self._loop(op)
            elif isinstance(op, hlo.ConditionalOp):
                self._branches(op)
            elif isinstance(op, hlo.HloOp):
                self._known[op.results[0]] = self._made(op)

    def _loop(self, op: hlo.WhileOp) -> None:
        body, condition = (self.module.computation(name.data[0]) for name in (op.body, op.condition))
        state = self._elements(op.operands[0])
        for _ in range(MOST_ROUNDS):
            self._enter(body, state)
            made = self._elements(body.root)
            both = [self.join(pair) for pair in zip(state, made, strict=True)]
            if both == state:
                break
            state = both
        self._enter(condition, state)
        self._hand_out(op, state)

    def _branches(self, op: hlo.ConditionalOp) -> None:
        made: list[list[Kinds]] = []
        for name, operand in zip(op.branches.data, op.operands[1:], strict=True):
            branch = self.module.computation(name)
            self._enter(branch, self._elements(operand))
            made.append(self._elements(branch.root))
        chosen = self.of(op.operands[0])
        self._hand_out(op, [self.join([chosen, *each]) for each in zip(*made, strict=True)])

    def _enter(self, computation: hlo.ComputationOp, state: list[Kinds]) -> None:
        self._name(computation.block.args[0], state)
        self._walk(computation)

    def _hand_out(self, op: hlo.HloOp, state: list[Kinds]) -> None:
        self._name(op.results[0], state)

    def _name(self, packed: hlo.SSAValue, state: list[Kinds]) -> None:
        self._known[packed] = self.join(state)
        for use in packed.uses:
            if isinstance(use.operation, hlo.GetTupleElementOp):
                self._known[use.operation.results[0]] = state[use.operation.index.data]

    def _elements(self, packed: hlo.SSAValue) -> list[Kinds]:
        source = packed.owner
        assert isinstance(source, hlo.TupleOp), "flatten_control gives operands and roots that are tuple ops"
        return [self.of(operand) for operand in source.operands]

    def _made(self, op: hlo.HloOp) -> Kinds:
        if op.results[0] in self._known and isinstance(op, hlo.GetTupleElementOp):
            return self._known[op.results[0]]
        if isinstance(op, hlo.DeviceNumberOp):
            return self._own
        given = self.join([self.of(operand) for operand in op.operands])
        if isinstance(op, hlo.CollectivePermuteOp):
            sources = {target: source for source, target in op.source_target_pairs.data}
            return numbered([given[sources[d]] if d in sources else -1 for d in range(self.devices)])
        groups = op.properties.get("replica_groups")
        if not isinstance(groups, hlo.GroupsAttr):
            return given
        parts = isinstance(op, hlo.ReduceScatterOp | hlo.AllToAllOp)
        made: list[Hashable] = list(given)
        for group in groups.data:
            together = tuple(given[device] for device in group)
            for place, device in enumerate(group):
                made[device] = (together, place) if parts else together
        return numbered(made)


def numbered(names: Sequence[Hashable]) -> Kinds:
    """0, 1, ... for each name in the order in which they come."""
    known: dict[Hashable, int] = {}
    return tuple(known.setdefault(name, len(known)) for name in names)


def _of_sharding(text: str, replicas: int, partitions: int) -> Kinds | None:
    """The kinds of a parameter of this sharding, in XLA's text; None where that does not tell."""
    if text == "{replicated}":
        parts = [0] * partitions
    else:
        found = _TILED.fullmatch(text)
        if found is None or "manual" in found[5] or "unreduced" in found[5]:
            return None
        tiles = [int(size) for size in found[1].split(",")]
        if found[4]:
            devices = np.array([int(device) for device in found[4].split(",")])
        else:
            sizes = [int(size) for size in found[2].split(",")]
            devices = np.arange(int(np.prod(sizes))).reshape(sizes)
            if found[3]:
                devices = devices.transpose([int(axis) for axis in found[3].split(",")])
        if devices.size != partitions or int(np.prod(tiles)) != partitions:
            return None
        alike = found[5].count("replicated") if "last_tile_dims" in found[5] else "last_tile_dim_replicate" in found[5]
        grid = devices.reshape(-1, tiles[-1] if alike else 1)
        parts = [0] * partitions
        for part, row in enumerate(grid.tolist()):
            for device in row:
                parts[device] = part
    return numbered([(replica, part) for replica in range(replicas) for part in parts])
