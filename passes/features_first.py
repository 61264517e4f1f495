"""Orders the dims of images as a core wants them: features first, for they lie on the partitions.

Input: canonical hlo. Output: a convolution of many positions gives [features, batch, positions], or [batch, features,
positions] where images are computed one by one (``analysis.image_regions``) outside of loops, whatever order the
program asked for, and the transposes that restore the program's order are moved down past everything that need not
care: elementwise ops, reductions, windows, pads, slices, concatenates, exchanges with other devices that run this
program. Where they meet the transposes of other operands they vanish; convolutions take them into their dimension
numbers. Only transposes that this pass made are moved, and an op is transposed only if most of its operands' elements
come in the new order already. No value changes; reductions may add in another order.
"""

from collections.abc import Callable, Sequence, Set
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, ops_of, replace, users
from neuronx_cc.passes.analysis.exchanges import cut_of, is_exchange
from neuronx_cc.passes.analysis.image_regions import image_by_image, is_wide
from neuronx_cc.passes.canonical.contraction import swapped, swapped_order
from neuronx_cc.passes.canonical.movement import reshape_groups
from neuronx_cc.passes.expansions.reordered import inverse
from neuronx_cc.passes.manager import PassContext, only_for

Value = hlo.SSAValue
Order = tuple[int, ...]

CHANNELS = 16
"""Features up to which an image is sorted into planes before it is convolved."""


@only_for(hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        if any(isinstance(op, hlo.ConvolutionOp) for op in ops_of(computation.block)):
            given = computation is module.entry
            mover = Mover(given=given, batch_first=image_by_image(computation) if given else frozenset())
            for op in ops_of(computation.block):
                mover.visit(op)
            for op in ops_of(computation.block):
                if op in mover.made and isinstance(op, hlo.TransposeOp) and _is_kept(op.dimensions.data):
                    replace(op, op.operand)


class Mover:
    """The transposes made so far. ``transpose(x, order)``: dim i of the result is dim ``order[i]`` of x."""

    def __init__(
        self,
        dots: Set[hlo.Operation] = frozenset(),
        made: Set[hlo.Operation] = frozenset(),
        given: bool = False,
        batch_first: Set[hlo.Operation] = frozenset(),
    ) -> None:
        """``dots``: contractions that are to be computed with their operands swapped; ``made``: transposes that move as
        if this pass had made them; ``given``: whether the order of the computation's results is, unlike that of a
        loop's state; ``batch_first``: convolutions whose results have the features after the batch.
        """
        self.made = set(made)
        self.dots, self.given, self.batch_first = dots, given, batch_first

    def visit(self, op: hlo.HloOp) -> None:
        if isinstance(op, hlo.ConvolutionOp):
            self._convolution(op)
        elif isinstance(op, hlo.DotOp):
            if op in self.dots:
                self._restore(op, swapped(op, op), inverse(swapped_order(op)))
        elif isinstance(op, hlo.TransposeOp):
            self._transpose(op)
        elif isinstance(op, hlo.BroadcastOp):
            self._broadcast(op)
        elif isinstance(op, hlo.ReshapeOp):
            self._reshape(op)
        elif isinstance(op, hlo.ReduceOp):
            self._reduce(op)
        elif isinstance(op, hlo.ElementwiseOp):
            self._turn(op, list(op.operands), lambda order: {})
        elif isinstance(op, hlo.ConcatenateOp):
            axis = op.dimension.data
            self._turn(op, list(op.operands), lambda order: {"dimension": hlo.IntAttr(order[axis])})
        elif isinstance(op, hlo.DynamicSliceOp | hlo.DynamicUpdateSliceOp):
            self._at_places(op)
        elif is_exchange(op):
            cut = cut_of(op)
            self._turn(
                op, list(op.operands), lambda order: {name: hlo.IntAttr(order[axis]) for name, axis in cut.items()}
            )
        elif type(op) in DIMWISE and isinstance(op.results[0].type, hlo.ArrayType):
            data, make = DIMWISE[type(op)]
            if isinstance(op, hlo.SelectAndScatterOp) and not self._selects_alike(op):
                return
            self._turn(op, list(op.operands), lambda order: make(_transposed(data(op), order)))

    # sources of the new order

    def _convolution(self, op: hlo.ConvolutionOp) -> None:
        dims, lhs, rhs = op.dims.data, op.lhs, op.rhs
        left, right = self._source(lhs) or _sorted_channels(op) or self._spread(op), self._source(rhs)
        shape = op.shape
        keep: Order = tuple(range(shape.rank))
        rows = (dims.out_batch, dims.out_feature) if op in self.batch_first else (dims.out_feature, dims.out_batch)
        numbers = [*rows, *dims.out_spatial]
        new = tuple(numbers) if is_wide(op) and shape.rank > 2 and not self._leaves(op) else keep
        if left is None and right is None and new == keep and op not in self.batch_first:
            return
        # dim i of the new result is dim new[i] of the old one
        place = inverse(new)
        of_left, of_right = (source[1] if source else None for source in (left, right))
        changed = hlo.ConvDims(
            _at(of_left, dims.lhs_batch),
            _at(of_left, dims.lhs_feature),
            tuple(_at(of_left, axis) for axis in dims.lhs_spatial),
            _at(of_right, dims.rhs_input_feature),
            _at(of_right, dims.rhs_output_feature),
            tuple(_at(of_right, axis) for axis in dims.rhs_spatial),
            place[dims.out_batch],
            place[dims.out_feature],
            tuple(place[axis] for axis in dims.out_spatial),
        )
        properties = {**op.properties, "dims": hlo.ConvDimsAttr(changed)}
        operands = (left[0] if left else lhs, right[0] if right else rhs)
        type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in new))
        result = insert_before(op, hlo.ConvolutionOp, operands, type_, op.loc, properties)
        self._restore(op, result, place)

    def _spread(self, op: hlo.ConvolutionOp) -> tuple[Value, Order] | None:
        """An image of broadcasts, as gradients of means are: it is made with its features first."""
        made = defining_op(op.lhs)
        parts = made.operands if isinstance(made, hlo.ConcatenateOp) else (op.lhs,)
        if not all(isinstance(defining_op(part), hlo.BroadcastOp) for part in parts) or not is_wide(op):
            return None
        planes = _planes(op)
        order = inverse(planes)
        ordered = [self._in_order(op, part, order) for part in parts]
        if not isinstance(made, hlo.ConcatenateOp):
            return ordered[0], order
        shape, properties = hlo.shape_of(op.lhs), {"dimension": hlo.IntAttr(order[made.dimension.data])}
        type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in planes))
        return insert_before(op, hlo.ConcatenateOp, ordered, type_, op.loc, properties), order

    def _source(self, value: Value) -> tuple[Value, Order] | None:
        """(x, order) when ``value`` is ``transpose(x, order)`` of this pass."""
        op = defining_op(value)
        if op not in self.made or not isinstance(op, hlo.TransposeOp):
            return None
        return op.operand, op.dimensions.data

    def _restore(self, op: hlo.HloOp, result: Value, order: Order) -> None:
        """Let users of ``op`` use ``transpose(result, order)``, of images with the batch first also where that changes
        nothing: the program's own transposes of them then move as those of this pass.
        """
        if not self.batch_first and _is_kept(order):
            replace(op, result)
            return
        restored = insert_before(
            op, hlo.TransposeOp, (result,), op.results[0].type, op.loc, {"dimensions": hlo.IntsAttr(order)}
        )
        made = defining_op(restored)
        assert made is not None
        self.made.add(made)
        replace(op, restored)

    def _leaves(self, op: hlo.HloOp) -> bool:
        """Whether nothing but the computation's result uses ``op``: then it is best made in the order asked for; so it
        is where elementwise ops come before a result whose order is given, unless they read what lies in the new one.
        """
        seen: set[hlo.Operation] = {op}
        after = [op]
        while after:
            made = after.pop()
            for user in users(made.results[0]):
                if isinstance(user, hlo.ReturnOp | hlo.TupleOp) or user in seen:
                    continue
                if not self.given or not isinstance(user, hlo.ElementwiseOp) or user.shape.dims != op.shape.dims:
                    return False
                if any(self._source(operand) is not None for operand in user.operands):
                    return False
                seen.add(user)
                after.append(user)
        return True

    # what transposes move past

    def _transpose(self, op: hlo.TransposeOp) -> None:
        source = self._source(op.operand)
        if source is not None:
            self._restore(op, source[0], tuple(source[1][axis] for axis in op.dimensions.data))

    def _broadcast(self, op: hlo.BroadcastOp) -> None:
        source = self._source(op.operand)
        if source is None:
            return
        place = inverse(source[1])
        dimensions = tuple(op.dimensions.data[axis] for axis in place)
        properties = {"dimensions": hlo.IntsAttr(dimensions)}
        replace(op, insert_before(op, hlo.BroadcastOp, (source[0],), op.results[0].type, op.loc, properties))

    def _reshape(self, op: hlo.ReshapeOp) -> None:
        """Dims that merge, or that one splits into, do so where they are, if they are neighbours; those of size 1 come
        first.
        """
        source, dims = self._source(op.operand), op.shape.dims
        groups = reshape_groups(hlo.shape_of(op.operand).dims, dims)
        if source is None or groups is None or len(groups) < 2 or _is_contracted(op.result):
            return
        value, order = source
        wide = [axis for axis, size in enumerate(hlo.shape_of(value).dims) if size != 1]
        places = [[wide.index(order[axis]) for axis in before] for before, _ in groups]
        if any(place != list(range(place[0], place[0] + len(place))) for place in places):
            return
        ones = [axis for axis, size in enumerate(dims) if size == 1]
        parts = (after for _, (_, after) in sorted(zip(places, groups, strict=True)))
        kept = [*ones, *(axis for after in parts for axis in after)]
        type_ = hlo.array_type(op.shape.dtype, tuple(dims[axis] for axis in kept))
        result = insert_before(op, hlo.ReshapeOp, (value,), type_, op.loc)
        self._restore(op, result, inverse(tuple(kept)))

    def _reduce(self, op: hlo.ReduceOp) -> None:
        source = self._source(op.operands[0])
        if source is None or len(op.operands) != 2:
            return
        value, order = source
        folded = {order[axis] for axis in op.dimensions.data}
        kept = [axis for axis in range(len(order)) if axis not in folded]
        wanted = [order[axis] for axis in range(len(order)) if axis not in op.dimensions.data]
        dims = hlo.shape_of(value).dims
        type_ = hlo.array_type(op.shape.dtype, tuple(dims[axis] for axis in kept))
        properties = {**op.properties, "dimensions": hlo.IntsAttr(tuple(sorted(folded)))}
        result = insert_before(op, hlo.ReduceOp, (value, op.operands[1]), type_, op.loc, properties)
        self._restore(op, result, tuple(kept.index(axis) for axis in wanted))

    def _selects_alike(self, op: hlo.SelectAndScatterOp) -> bool:
        """Whether windows keep the order of their elements, of which the first of equal ones is selected."""
        wide = [axis for axis, window in enumerate(op.window.data) if window.size > 1]
        orders = [source[1] for value in op.operands if (source := self._source(value)) is not None]
        return all(sorted(wide, key=order.__getitem__) == wide for order in orders)

    def _at_places(self, op: hlo.DynamicSliceOp | hlo.DynamicUpdateSliceOp) -> None:
        """Starts of windows, which are scalars, are sorted as the dims are."""
        arrays = list(op.operands[: op.PLACES])

        def properties(order: Order) -> dict[str, hlo.Attribute]:
            if isinstance(op, hlo.DynamicUpdateSliceOp):
                return {}
            sizes = tuple(op.dynamic_slice_sizes.data[axis] for axis in inverse(order))
            return {"dynamic_slice_sizes": hlo.IntsAttr(sizes)}

        made = self._turn(op, arrays, properties)
        if made is not None:
            (moved, order), count = made, len(arrays)
            starts = moved.operands[count:]
            moved.operands = (*moved.operands[:count], *(starts[axis] for axis in inverse(order)))

    def _turn(
        self, op: hlo.HloOp, operands: list[Value], properties: Callable[[Order], dict[str, hlo.Attribute]]
    ) -> tuple[hlo.HloOp, Order] | None:
        """Compute ``op`` in the order of its largest moved operand; ``operands`` are the arrays that have its dims.

        ``properties`` gives the attributes that change, for an order in which old dim i becomes ``order[i]``. The op
        that there is now, and this order, if any.
        """
        arrays = [value for value in dict.fromkeys(operands) if hlo.shape_of(value).rank == op.shape.rank]
        moved = {value: source for value in arrays if (source := self._source(value)) is not None}
        if not moved:
            return None
        order = max(moved.items(), key=lambda item: hlo.shape_of(item[0]).size)[1][1]
        ready = sum(hlo.shape_of(value).size for value, source in moved.items() if source[1] == order)
        missing = [value for value in arrays if not self._is_free(value, order)]
        if not self._pays(op, missing, ready):
            return None
        inputs = [self._in_order(op, value, order) if value in arrays else value for value in op.operands]
        place = inverse(order)
        dims = tuple(op.shape.dims[axis] for axis in place)
        transposed = copy_op(op, inputs, hlo.array_type(op.shape.dtype, dims))
        for name, attr in properties(order).items():
            transposed.properties[name] = attr
        block = op.parent
        assert block is not None
        block.insert_op_before(transposed, op)
        self._restore(op, transposed.results[0], order)
        return transposed, order

    def _pays(self, op: hlo.HloOp, missing: Sequence[Value], ready: int) -> bool:
        """Whether ``op`` moves if ``missing`` are transposed for it, and so many elements come in the order already."""
        del op
        return sum(hlo.shape_of(value).size for value in missing) <= ready

    def _is_free(self, value: Value, order: Order) -> bool:
        source = self._source(value)
        if source is not None:
            return source[1] == order
        return isinstance(defining_op(value), hlo.BroadcastOp | hlo.IotaOp)

    def _in_order(self, anchor: hlo.HloOp, value: Value, order: Order) -> Value:
        """``value`` so that ``transpose(result, order)`` is it."""
        source = self._source(value)
        if source is not None and source[1] == order:
            return source[0]
        place = inverse(order)
        shape = hlo.shape_of(value)
        type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in place))
        made = defining_op(value)
        if isinstance(made, hlo.BroadcastOp):
            dimensions = tuple(order[axis] for axis in made.dimensions.data)
            properties: dict[str, hlo.Attribute] = {"dimensions": hlo.IntsAttr(dimensions)}
            return insert_before(anchor, hlo.BroadcastOp, (made.operand,), type_, made.loc, properties)
        if isinstance(made, hlo.IotaOp):
            properties = {"iota_dimension": hlo.IntAttr(order[made.iota_dimension.data])}
            return insert_before(anchor, hlo.IotaOp, (), type_, made.loc, properties)
        return insert_before(anchor, hlo.TransposeOp, (value,), type_, anchor.loc, {"dimensions": hlo.IntsAttr(place)})


def _is_contracted(value: Value) -> bool:
    """Whether a contraction reads ``value``, as layers of tokens do: in any order, and gives its own."""
    reads = hlo.ConvertOp | hlo.TransposeOp
    return any(
        isinstance(user, hlo.DotOp) or (isinstance(user, reads) and _is_contracted(user.results[0]))
        for user in users(value)
    )


def _sorted_channels(op: hlo.ConvolutionOp) -> tuple[Value, Order] | None:
    """An image whose few channels lie side by side, with one plane for each: the kernel's taps are packed from rows."""
    dims, shape = op.dims.data, hlo.shape_of(op.lhs)
    few = shape.dims[dims.lhs_feature] <= CHANNELS and dims.lhs_feature == shape.rank - 1
    if not few or shape.size == 0 or prod(dim.size for dim in op.window.data) == 1:
        return None
    planes = _planes(op)
    type_ = hlo.array_type(shape.dtype, tuple(shape.dims[axis] for axis in planes))
    value = insert_before(op, hlo.TransposeOp, (op.lhs,), type_, op.loc, {"dimensions": hlo.IntsAttr(planes)})
    return value, inverse(planes)


def _planes(op: hlo.ConvolutionOp) -> Order:
    """The dims of the image: features, batch, positions."""
    dims = op.dims.data
    return (dims.lhs_feature, dims.lhs_batch, *dims.lhs_spatial)


def _is_kept(order: Order) -> bool:
    """Whether all dims stay where they are."""
    return order == tuple(range(len(order)))


def _at(order: Order | None, axis: int) -> int:
    return axis if order is None else order[axis]


def _transposed(each: tuple[object, ...], order: Order) -> tuple[object, ...]:
    """What is given for each old dim, for each new one."""
    return tuple(each[axis] for axis in inverse(order))


DIMWISE: dict[type, tuple[Callable[..., tuple[object, ...]], Callable[..., dict[str, hlo.Attribute]]]] = {
    hlo.PadOp: (lambda op: op.padding.data, lambda each: {"padding": hlo.PaddingAttr(each)}),
    hlo.SliceOp: (lambda op: op.slice.data, lambda each: {"slice": hlo.SliceAttr(each)}),
    hlo.ReduceWindowOp: (lambda op: op.window.data, lambda each: {"window": hlo.WindowAttr(each)}),
    hlo.SelectAndScatterOp: (lambda op: op.window.data, lambda each: {"window": hlo.WindowAttr(each)}),
    hlo.ReverseOp: (
        lambda op: tuple(axis in op.dimensions.data for axis in range(op.shape.rank)),
        lambda each: {"dimensions": hlo.IntsAttr(tuple(axis for axis, transposed in enumerate(each) if transposed))},
    ),
}
"""Ops with an attribute for each dim: how to read it, and how to write it."""
