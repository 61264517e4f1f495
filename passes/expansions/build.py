"""Builds hlo ops above an anchor, one short call each, with the result types worked out from the operands.

``Build.before(module, op)`` inserts above ``op`` and gives the new ops its location. Attributes are those of HLO text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, insert_before, insert_constant, insert_splat, replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, SIGNED

Value = hlo.SSAValue
HIGHEST = hlo.StrsAttr(("highest", "highest"))
"""``operand_precision`` of a dot that auto-cast leaves in FP32."""


class Build:
    """Inserts ops above ``anchor``."""

    def __init__(self, module: HloModule, anchor: hlo.Operation, loc: Loc, timing: Timing | None = None):
        self.module = module
        self.anchor = anchor
        self.loc = loc
        self.timing = timing
        """Of the machine, for what chooses by time."""

    @classmethod
    def before(cls, module: HloModule, op: hlo.HloOp, timing: Timing | None = None) -> Build:
        return cls(module, op, op.loc, timing)

    def op(
        self, kind: type[hlo.HloOp], operands: Sequence[Value], dtype: str, dims: Sequence[int], **properties: Any
    ) -> Value:
        """Any op of one array result; ``properties`` are attributes."""
        return self.typed(kind, operands, hlo.array_type(dtype, tuple(dims)), **properties)

    def typed(self, kind: type[hlo.HloOp], operands: Sequence[Value], type_: hlo.Attribute, **properties: Any) -> Value:
        return insert_before(self.anchor, kind, operands, type_, self.loc, properties)

    def each(self, kind: type[hlo.HloOp], *operands: Value) -> Value:
        """An elementwise op whose result has the type of its first operand."""
        return self.typed(kind, operands, operands[0].type)

    def number(self, number: float, dtype: str = "f32", dims: Sequence[int] = ()) -> Value:
        """A splat."""
        scalar = np.asarray(number).astype(NUMPY_DTYPE[dtype])
        return insert_splat(self.module, self.anchor, scalar, dtype, tuple(dims), self.loc)

    def number_like(self, number: float, value: Value) -> Value:
        shape = hlo.shape_of(value)
        return self.number(number, shape.dtype, shape.dims)

    def array(self, array: np.ndarray[Any, Any], dtype: str = "f32") -> Value:
        return insert_constant(self.module, self.anchor, array.astype(NUMPY_DTYPE[dtype]), dtype, self.loc)

    # elementwise

    def add(self, lhs: Value, rhs: Value) -> Value:
        return self.each(hlo.AddOp, lhs, rhs)

    def sub(self, lhs: Value, rhs: Value) -> Value:
        return self.each(hlo.SubtractOp, lhs, rhs)

    def mul(self, lhs: Value, rhs: Value) -> Value:
        return self.each(hlo.MultiplyOp, lhs, rhs)

    def div(self, lhs: Value, rhs: Value) -> Value:
        return self.each(hlo.DivideOp, lhs, rhs)

    def neg(self, operand: Value) -> Value:
        return self.each(hlo.NegateOp, operand)

    def compare(self, lhs: Value, rhs: Value, direction: str) -> Value:
        shape = hlo.shape_of(lhs)
        kind = "FLOAT" if shape.dtype in FLOATS else "SIGNED" if shape.dtype in SIGNED else "UNSIGNED"
        properties = {"direction": hlo.StrAttr(direction), "comparison_type": hlo.StrAttr(kind)}
        return self.op(hlo.CompareOp, (lhs, rhs), "pred", shape.dims, **properties)

    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value:
        return self.typed(hlo.SelectOp, (predicate, on_true, on_false), on_true.type)

    def convert(self, operand: Value, dtype: str) -> Value:
        shape = hlo.shape_of(operand)
        return operand if shape.dtype == dtype else self.op(hlo.ConvertOp, (operand,), dtype, shape.dims)

    # movement

    def broadcast(self, operand: Value, dims: Sequence[int], dimensions: Sequence[int] = ()) -> Value:
        """Operand dim i becomes dim ``dimensions[i]``."""
        dtype = hlo.shape_of(operand).dtype
        return self.op(hlo.BroadcastOp, (operand,), dtype, dims, dimensions=hlo.IntsAttr(tuple(dimensions)))

    def reshape(self, operand: Value, dims: Sequence[int]) -> Value:
        shape = hlo.shape_of(operand)
        return operand if shape.dims == tuple(dims) else self.op(hlo.ReshapeOp, (operand,), shape.dtype, dims)

    def transpose(self, operand: Value, order: Sequence[int]) -> Value:
        shape = hlo.shape_of(operand)
        if list(order) == list(range(shape.rank)):
            return operand
        dims = [shape.dims[axis] for axis in order]
        return self.op(hlo.TransposeOp, (operand,), shape.dtype, dims, dimensions=hlo.IntsAttr(tuple(order)))

    def reverse(self, operand: Value, axes: Sequence[int]) -> Value:
        return self.typed(hlo.ReverseOp, (operand,), operand.type, dimensions=hlo.IntsAttr(tuple(axes)))

    def slice(self, operand: Value, axis: int, start: int, limit: int) -> Value:
        """Elements ``start`` to ``limit`` of one dim."""
        shape = hlo.shape_of(operand)
        if (start, limit) == (0, shape.dims[axis]):
            return operand
        bounds = [(0, size) for size in shape.dims]
        bounds[axis] = (start, limit)
        attr = hlo.SliceAttr(tuple(hlo.SliceDim(low, high) for low, high in bounds))
        return self.op(hlo.SliceOp, (operand,), shape.dtype, [high - low for low, high in bounds], slice=attr)

    def concatenate(self, operands: Sequence[Value], axis: int) -> Value:
        if len(operands) == 1:
            return operands[0]
        shapes = [hlo.shape_of(operand) for operand in operands]
        dims = list(shapes[0].dims)
        dims[axis] = sum(shape.dims[axis] for shape in shapes)
        return self.op(hlo.ConcatenateOp, operands, shapes[0].dtype, dims, dimension=hlo.IntAttr(axis))

    def pad(self, operand: Value, padding: Sequence[tuple[int, int]], number: float = 0) -> Value:
        """``number`` around ``operand``: (low, high) elements for each dim."""
        if not any(low or high for low, high in padding):
            return operand
        shape = hlo.shape_of(operand)
        dims = [size + low + high for size, (low, high) in zip(shape.dims, padding, strict=True)]
        attr = hlo.PaddingAttr(tuple(hlo.PadDim(low, high) for low, high in padding))
        return self.op(hlo.PadOp, (operand, self.number(number, shape.dtype)), shape.dtype, dims, padding=attr)

    def iota(self, dims: Sequence[int], axis: int, dtype: str = "s32") -> Value:
        return self.op(hlo.IotaOp, (), dtype, dims, iota_dimension=hlo.IntAttr(axis))

    def dynamic_slice(self, operand: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        dtype = hlo.shape_of(operand).dtype
        attr = hlo.IntsAttr(tuple(sizes))
        return self.op(hlo.DynamicSliceOp, (operand, *starts), dtype, sizes, dynamic_slice_sizes=attr)

    def dynamic_update_slice(self, operand: Value, update: Value, starts: Sequence[Value]) -> Value:
        return self.typed(hlo.DynamicUpdateSliceOp, (operand, update, *starts), operand.type)

    # contractions and reductions

    def dot(
        self,
        lhs: Value,
        rhs: Value,
        contracting: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Value:
        """A contraction that auto-cast leaves in FP32; result dims are batch, lhs free, rhs free."""
        left, right = hlo.shape_of(lhs), hlo.shape_of(rhs)
        dims = [left.dims[axis] for axis in batch[0]]
        dims += [size for axis, size in enumerate(left.dims) if axis not in (*contracting[0], *batch[0])]
        dims += [size for axis, size in enumerate(right.dims) if axis not in (*contracting[1], *batch[1])]
        attr = hlo.DotDimsAttr(hlo.DotDims(*(tuple(axes) for axes in (*contracting, *batch))))
        type_ = hlo.array_type(left.dtype, tuple(dims))
        return self.typed(hlo.DotOp, (lhs, rhs), type_, dims=attr, operand_precision=HIGHEST)

    def reduce(self, kind: type[hlo.HloOp], operand: Value, axes: Sequence[int], start: float) -> Value:
        """``operand`` folded over ``axes`` by the binary op ``kind`` from the constant ``start``."""
        if not axes:
            return operand
        shape = hlo.shape_of(operand)
        dims = [size for axis, size in enumerate(shape.dims) if axis not in axes]
        properties = {
            "dimensions": hlo.IntsAttr(tuple(axes)),
            "to_apply": hlo.StrsAttr((self.combiner(kind, shape.dtype),)),
        }
        return self.op(hlo.ReduceOp, (operand, self.number(start, shape.dtype)), shape.dtype, dims, **properties)

    def sum(self, operand: Value, axes: Sequence[int]) -> Value:
        return self.reduce(hlo.AddOp, operand, axes, 0)

    # computations

    def combiner(self, kind: type[hlo.HloOp], dtype: str) -> str:
        """Name of the computation ``kind(a, b)`` on scalars, made if the module lacks it."""
        name = f"{kind.name.removeprefix('hlo.')}.{dtype}.scalar"
        if any(computation.computation_name == name for computation in self.module.computations()):
            return name
        scalar = hlo.array_type(dtype, ())
        computation, inner = self.computation(name, [scalar, scalar], shared=True)
        computation.block.last_op.operands = [inner.each(kind, *computation.block.args)]  # type: ignore[union-attr]
        return name

    def computation(
        self, name: str, parameters: Sequence[hlo.Attribute], shared: bool = False
    ) -> tuple[hlo.ComputationOp, Build]:
        """A new computation that returns its first parameter so far; and a builder for its body.

        Callees come first: it stands just before its caller, and so after what it may call itself. What others will
        look up by name and call (``shared``) calls nothing, and stands ahead of all.
        """
        computation = hlo.ComputationOp.make(name, parameters)
        last = hlo.ReturnOp.create(operands=[computation.block.args[0]])
        computation.block.add_op(last)
        block = self.module.op.body.block
        caller = block.first_op if shared else self.anchor.parent_op()
        assert caller is not None
        block.insert_op_before(computation, caller)
        return computation, Build(self.module, last, self.loc, self.timing)

    def fresh_name(self, stem: str) -> str:
        """A computation name that the module does not have."""
        taken = {computation.computation_name for computation in self.module.computations()}
        return next(name for number in range(len(taken) + 1) if (name := f"{stem}.{number}") not in taken)

    def loop(
        self, count: int | Value, state: Sequence[Value], step: Callable[[Build, Value, list[Value]], Sequence[Value]]
    ) -> list[Value]:
        """``for i in range(count): state = step(i, state)`` as a ``while``; ``i`` and a ``count`` known at run time
        are s32 scalars.
        """
        counts = [] if isinstance(count, int) else [count]
        types = [hlo.array_type("s32", ()), *(value.type for value in (*counts, *state))]
        first = len(types) - len(state)
        carried = hlo.tuple_type(tuple(types))
        body, inner = self.computation(self.fresh_name("loop_body"), [carried])
        parts = [inner.element(body.block.args[0], index) for index in range(len(types))]
        following = inner.add(parts[0], inner.number(1, "s32"))
        results = [following, *parts[1:first], *step(inner, parts[0], parts[first:])]
        body.block.last_op.operands = [inner.typed(hlo.TupleOp, results, carried)]  # type: ignore[union-attr]
        test, inner = self.computation(self.fresh_name("loop_test"), [carried])
        index = inner.element(test.block.args[0], 0)
        end = inner.number(count, "s32") if isinstance(count, int) else inner.element(test.block.args[0], 1)
        test.block.last_op.operands = [inner.compare(index, end, "LT")]  # type: ignore[union-attr]
        start = self.typed(hlo.TupleOp, [self.number(0, "s32"), *counts, *state], carried)
        names = {"condition": test.computation_name, "body": body.computation_name}
        properties = {key: hlo.StrsAttr((name,)) for key, name in names.items()}
        done = self.typed(hlo.WhileOp, [start], carried, **properties)
        return [self.element(done, index + first) for index in range(len(state))]

    def element(self, value: Value, index: int) -> Value:
        assert isinstance(value.type, hlo.TupleType)
        return self.typed(hlo.GetTupleElementOp, [value], value.type.data[index], index=hlo.IntAttr(index))


def replace_elements(op: hlo.HloOp, elements: Sequence[Value]) -> None:
    """Let the users of the tuple that ``op`` makes use ``elements``, and remove ``op``."""
    for use in list(op.results[0].uses):
        user = use.operation
        if isinstance(user, hlo.GetTupleElementOp):
            user.results[0].replace_all_uses_with(elements[user.index.data])
            erase(user)
    if op.results[0].first_use is not None:
        packed = insert_before(op, hlo.TupleOp, elements, op.results[0].type, op.loc)
        op.results[0].replace_all_uses_with(packed)
    erase(op)


def replace_results(op: hlo.HloOp, results: Sequence[Value]) -> None:
    """Let the users of ``op`` (one array, or a tuple of arrays) use ``results``, and remove ``op``."""
    if isinstance(op.results[0].type, hlo.TupleType):
        replace_elements(op, results)
    else:
        replace(op, results[0])
