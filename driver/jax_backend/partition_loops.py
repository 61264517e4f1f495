"""Stacks that a loop walks through are divided along another dim than the one that it walks along.

A loop takes one row of a stack (weights of a layer, a step of a sequence, a part of a batch) in each iteration, or
writes one. Where that dim is split, the row is one device's, and XLA gathers the whole stack in every iteration, or
lets each device write what all of them then have. Divided along another dim, each device has its part of every row:
what is exchanged is the stack, once, and in an iteration one row. A stack that no other dim divides is gathered once,
ahead of the loop. What a loop reads in another way than by rows, such as a cache that attention reads, stays as it is.
"""

from typing import Any

from jaxlib.mlir import ir

from neuronx_cc.driver.jax_backend.partition_shardings import Constraints, ops_named, shape_of, shardings_of

_SLICE, _UPDATE, _LOOP, _CALL = (
    "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice",
    "stablehlo.while",
    "func.call",
)
_RETURNS = ("stablehlo.return", "func.return")


def prepare_loops(module: Any) -> None:
    """Constrain such stacks in ``module``, StableHLO with Shardy's annotations."""
    constrain = Constraints.of(module)
    walks = _Walks(module)
    walked = [(op, walks.of_loop(op)) for op in ops_named(module, (_LOOP,))]
    walked = [(op, dims) for op, dims in walked if any(dims)]
    if constrain is None or not walked:
        return
    for (op, dims), found in zip(walked, shardings_of(module, [op for op, _ in walked]), strict=True):
        for number, along in enumerate(dims):
            axes = found.touched[number] if found is not None else ()
            moved = tuple(axis for dim in along for axis in axes[dim])
            if moved:
                other = constrain.rows(op.operands[number], axes, moved, along) or constrain.without(axes, moved)
                constrain.operand(op, number, other, closed=True)
                constrain.value(op, op.results[number], other, closed=True)


class _Walks:
    """Along which dims the values of a module are walked through: read, or written, some rows at a time."""

    def __init__(self, module: Any) -> None:
        self._functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.regions[0].blocks[0]
            for op in (each.operation for each in module.body.operations)
            if op.name == "func.func"
        }

    def of_loop(self, loop: Any) -> list[set[int]]:
        """Of each element of the state of ``loop``, in its body."""
        return [self._of(argument) or set() for argument in loop.regions[1].blocks[0].arguments]

    def _of(self, value: Any) -> set[int] | None:
        """None where ``value`` is read in another way as well."""
        dims: set[int] = set()
        for use in value.uses:
            found = self._of_use(value, use.owner.operation, use.operand_number)
            if found is None:
                return None
            dims |= found
        return dims

    def _of_use(self, value: Any, user: Any, number: int) -> set[int] | None:
        if user.name in _RETURNS:
            return set()
        if user.name == _CALL:
            body = self._functions[ir.FlatSymbolRefAttr(user.attributes["callee"]).value]
            inside = self._of(body.arguments[number])
            results = [result for result in user.results if result.type == value.type]
        elif user.name == _LOOP:
            inside = self._of(user.regions[1].blocks[0].arguments[number])
            results = [user.results[number]]
        elif user.name == _UPDATE and number == 0:
            inside, results = _moving(user), list(user.results)
        else:
            inside, results = _moving(user) if user.name == _SLICE and number == 0 else None, []
        after = [self._of(result) for result in results]
        if inside is None or None in after:
            return None
        return inside.union(*(each for each in after if each))


def _moving(op: Any) -> set[int]:
    """The dims along which a slice, or an update, is at a place that the program computes."""
    row, first = (op.results[0], 1) if op.name == _SLICE else (op.operands[1], 2)
    starts = list(op.operands)[first:]
    dims = zip(shape_of(op.operands[0]), shape_of(row), starts, strict=True)
    return {dim for dim, (size, length, start) in enumerate(dims) if length < size and not _is_constant(start)}


def _is_constant(value: Any) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name == "stablehlo.constant"
