"""Divides what stands between contractions whose sums go over devices: what is added to these, norms of it, dropout.

Where the contracted dim of both operands is split (tensor parallelism), XLA sums the products over the devices, and all
of them compute alike with the sum until the next contraction. Here each device keeps rows of the sum instead, and what
a contraction reads is gathered again: as many bytes are sent. Only values without annotation are concerned.

``spread`` is of two kinds: what contractions read and give is held as it is without this pass (``PINNED``), or Shardy
may choose (``FREE``), and gathers weights where these are few. Which of the three takes least time, estimates say.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from neuronx_cc.driver.jax_backend.partition_shardings import Constraints, Found, ops_named, shardings_of

PINNED, FREE = "pinned", "free"
CONTRACTIONS = ("stablehlo.dot_general", "stablehlo.convolution")


def spread(module: Any, kind: str) -> bool:
    """Constrain sums over devices, and what reads them, in ``module``, StableHLO; whether there are such."""
    constrain = Constraints.of(module)
    if constrain is None:
        return False
    ops = list(ops_named(module, CONTRACTIONS))
    end, free = _results(module)
    *found, ended = shardings_of(module, [*ops, end])
    known = [(op, each) for op, each in zip(ops, found, strict=True) if each is not None]
    summed = [_summed(op, each) for op, each in known]
    if not any(summed):
        return False
    flow = _Flow(module)
    ends = flow.before([operand for op in ops for operand in op.operands])
    summed = [axes if op.results[0] in ends else () for (op, _), axes in zip(known, summed, strict=True)]
    sums = [(op, each.results[0], axes) for (op, each), axes in zip(known, summed, strict=True) if axes]
    reached = {axes: flow.after([op.results[0] for op, _, some in sums if some == axes]) for _, _, axes in sums}
    if kind == PINNED:
        for (op, each), axes in zip(known, summed, strict=True):
            _pin(op, each, bool(axes), reached, constrain)
    for op, made, axes in sums:
        constrain.value(op, op.results[0], constrain.rows(op.results[0], made, axes), closed=False)
    for number, kept in enumerate(ended.operands if ended is not None else ()):
        if free[number] and isinstance(end.operands[number].type, ir.RankedTensorType):
            constrain.operand(end, number, kept, closed=True)
    return constrain.made > 0


def _results(module: Any) -> tuple[Any, list[bool]]:
    """The op that returns the results of ``module``, and which of these have no annotation."""
    main = next(op.operation for op in module.body.operations if op.attributes["sym_name"] == ir.StringAttr.get("main"))
    end = _last(main.regions[0].blocks[0])
    if "res_attrs" not in main.attributes:
        return end, [True] * len(end.operands)
    return end, ["sdy.sharding" not in ir.DictAttr(each) for each in ir.ArrayAttr(main.attributes["res_attrs"])]


def _summed(op: Any, found: Found) -> tuple[str, ...]:
    """The mesh axes over which the products of ``op`` are summed."""
    lhs, rhs = found.operands
    made = found.results[0]
    if lhs is None or rhs is None or made is None:
        return ()
    if op.name == "stablehlo.dot_general":
        dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        pairs = list(zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True))
    else:
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        pairs = [(numbers.input_feature_dimension, numbers.kernel_input_feature_dimension)]
    return tuple(sorted(axis for one, other in pairs for axis in lhs[one] if axis in rhs[other]))


def _pin(op: Any, found: Found, summed: bool, reached: dict[tuple[str, ...], set[Any]], to: Constraints) -> None:
    """Hold operands and result of a contraction as Shardy has them; rows of what is whole are gathered here."""
    concerned = {axis for axes in reached for axis in axes}
    used = {axis for each in (*found.operands, *found.results) for dim in each or () for axis in dim}
    if not used & concerned:
        return
    for number, axes in enumerate(found.operands):
        if axes is None:
            continue
        kept = {axis for dim in axes for axis in dim}
        value = op.operands[number]
        for added in (axes for axes, values in reached.items() if value in values and not kept & set(axes)):
            to.operand(op, number, to.rows(value, axes, added), closed=False)
        if kept & concerned or op.operands[number] != value:
            to.operand(op, number, axes, closed=True)
    if not summed and (made := found.results[0]) is not None and {axis for dim in made for axis in dim} & concerned:
        to.value(op, op.results[0], made, closed=True)


class _Flow:
    """Which values each value of a module is made of, by anything but contractions."""

    def __init__(self, module: Any) -> None:
        self._sources: dict[Any, list[Any]] = defaultdict(list)
        self._made: dict[Any, list[Any]] = defaultdict(list)
        self._functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.regions[0].blocks[0]
            for op in (each.operation for each in module.body.operations)
            if op.name == "func.func"
        }

        def note(op: Any) -> Any:
            if op.name not in CONTRACTIONS:
                self._note(op)
            return ir.WalkResult.ADVANCE

        module.operation.walk(note)

    def before(self, values: Iterable[Any]) -> set[Any]:
        """``values``, and those that they are made of."""
        return _closure(values, self._sources)

    def after(self, values: Iterable[Any]) -> set[Any]:
        """``values``, and those that are made of them."""
        return _closure(values, self._made)

    def _note(self, op: Any) -> None:
        given = list(op.operands)
        if op.name == "func.call":
            body = self._functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            self._pair(body.arguments, given)
            self._pair(op.results, _last(body).operands)
        elif op.name == "stablehlo.while":
            condition, body = (region.blocks[0] for region in op.regions)
            for targets in (condition.arguments, body.arguments, op.results):
                self._pair(targets, given)
                self._pair(targets, _last(body).operands)
        elif op.name in ("stablehlo.case", "stablehlo.if"):
            for region in op.regions:
                self._pair(op.results, _last(region.blocks[0]).operands)
        else:
            for result in op.results:
                self._pair([result] * len(given), given)

    def _pair(self, made: Iterable[Any], sources: Iterable[Any]) -> None:
        for one, source in zip(made, sources, strict=True):
            self._sources[one].append(source)
            self._made[source].append(one)


def _last(block: Any) -> Any:
    return list(block.operations)[-1].operation


def _closure(values: Iterable[Any], steps: dict[Any, list[Any]]) -> set[Any]:
    found: set[Any] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += steps.get(value, ())
    return found
