"""What a map kernel decides before it emits: its partitions, and what stays on chip in these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import order_of
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Affine, Atom, View
from neuronx_cc.codegen.formation.graph import Kernel, base, squeeze, trace
from neuronx_cc.codegen.maps import inner_rows
from neuronx_cc.codegen.maps.axes import (
    SMALL_SHARE,
    full_view,
    is_laid_out,
    unsqueezed,
    value_view,
)
from neuronx_cc.codegen.maps.spread import (
    LEAST_CUT,
    Partitions,
    divides,
    fill_partitions,
    is_short,
    streaming_partitions,
    whole_rows,
)
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis import stored

COPIED = 3
"""How often a copy moves an array, besides the one time that it is loaded or stored without."""
WORTH_STAYING = 3
"""What stays on chip is best left with whole rows on partitions, unless the DMA is so many times slower for that."""
LEAST_ROW = 64
"""Elements of a row of a vector that is worth turning on chip."""
RESIDENT_STEPS = 48
"""A value whose last use is more kernels away than this does not stay on chip."""


@dataclass(slots=True)
class MapPlan:
    """Everything about a map kernel but its addresses."""

    kernel: Kernel
    iotas: dict[hlo.SSAValue, int] = field(default_factory=dict)
    """Counting operands -> axis of the kernel's shape."""
    partitions: Partitions | None = None
    transposed: dict[hlo.SSAValue, View] = field(default_factory=dict)
    """Inputs whose neighbours in memory go to different partitions: see ``maps.transposed``."""
    deepest: int = 0
    """Neighbours of these on a partition at most."""
    copied: dict[hlo.SSAValue, View] = field(default_factory=dict)
    """Inputs that all partitions read, and their copies in the order of tiles: see ``maps.shared_rows``."""
    ends: dict[hlo.SSAValue, bool] = field(default_factory=dict)
    """Scans of which others read one end alone, the last step if true: see ``maps.ends``."""
    along: int = -1
    """The axis of rows that are folded along which neighbours in memory lie, of all large inputs; -1 without one."""

    def gives_transposed(self, value: hlo.SSAValue) -> bool:
        """Whether rows lie across memory, and all that reads the result ``value`` wants it so as well."""
        if self.along < 0 or self.spreads_rows or self.kernel.order or self.kernel.is_row(hlo.shape_of(value)):
            return False
        last = hlo.shape_of(value).rank - 1
        readers = [use.operation for use in value.uses if use.operation not in self.kernel.ops]
        return bool(readers) and all(
            isinstance(op, hlo.TransposeOp) and op.dimensions.data[-1] != last for op in readers
        )

    def is_shared(self, shape: hlo.Shape) -> bool:
        """Whether all partitions have a value, which is one of a row that lies across them."""
        return self.partitions is not None and self.kernel.is_row(shape) and self.spreads_rows

    @property
    def spreads_rows(self) -> bool:
        """Whether rows that are folded lie across the partitions."""
        return self.partitions is not None and self.kernel.reduced > 0 and len(self.kernel.rows) <= self.partitions.axis

    @property
    def holds_rows(self) -> bool:
        """Whether a partition's elements of all axes but the one on the partitions lie side by side."""
        return self.kernel.scanned >= 0 or self.spreads_rows


def external_operands(context: Context, plan: MapPlan, member: dict[hlo.SSAValue, Kernel]) -> list[hlo.SSAValue]:
    """External operands that are arrays; fills ``plan.iotas``."""
    kernel = plan.kernel
    external: dict[hlo.SSAValue, None] = {}
    for op in kernel.ops:
        for operand in op.sources:
            if trace(operand, kernel, member) is not None or context.splat(operand) is not None:
                continue
            if isinstance(operand, hlo.OpResult) and isinstance(operand.op, hlo.IotaOp):
                dims = operand.op.shape.dims
                axis = operand.op.iota_dimension.data
                plan.iotas[operand] = kernel.axis_of(dims, axis)
                continue
            external[operand] = None
    return list(external)


def partitions_of(view: View) -> Partitions | None:
    for axis, atoms in enumerate(view.dims):
        for index, atom in enumerate(atoms):
            if atom.partition:
                return Partitions(axis, atom.size, prod(a.size for a in atoms[index + 1 :]))
    return None


def residents(
    context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue]
) -> Iterator[tuple[hlo.SSAValue, Partitions]]:
    """What of ``external`` lies on chip in partitions that a plan of this space may have."""
    for value in external:
        for view in context.views(value):
            partitions = partitions_of(full_view(view, plan.kernel)) if view.in_sbuf else None
            if (
                partitions is not None
                and partitions.axis < _row_axes(plan.kernel)
                and partitions.axis != plan.kernel.scanned
            ):
                yield value, partitions


def _row_axes(kernel: Kernel) -> int:
    """The axes ahead of those that are reduced or added up."""
    folded = kernel.folded % len(kernel.shape) if kernel.shape else 0
    return min(len(kernel.rows) if kernel.reduced else len(kernel.shape), folded or len(kernel.shape))


def choose_partitions(
    context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue], stores: bool = False
) -> Partitions | None:
    """The partition assignment of most resident bytes; without residents, the axis that fills most partitions.

    A small resident along the innermost axis does not decide, for what is large would move element by element, nor
    does one that would leave most partitions without work.
    ``stores``: no result stays on chip.
    """
    kernel = plan.kernel
    folded = kernel.folded % len(kernel.shape) if kernel.shape else 0
    row_axes = _row_axes(kernel)
    votes: dict[Partitions, int] = {}
    elements: dict[Partitions, int] = {}
    for value, partitions in residents(context, plan, external):
        votes[partitions] = votes.get(partitions, 0) + prod(hlo.shape_of(value).dims)
        elements[partitions] = elements.get(partitions, 0) + prod(hlo.shape_of(base(value)).dims)
    if kernel.order and not votes:
        return inner_rows.options(context.timing, kernel)[0]
    largest = max(map(prod, {op.shape.dims for op in kernel.ops}), default=1)
    if kernel.scanned >= 0:
        # a partition of several rows would leave single elements of the others' arrays to the DMA
        votes = {partitions: count for partitions, count in votes.items() if partitions.inner == 1}
    if votes:
        best = max(votes, key=lambda partitions: (votes[partitions], -partitions.axis))
        if stores and is_column(kernel.shape, best):
            return Partitions(0, kernel.shape[0] // best.size, best.size)
        fills = best.size >= 32 or prod(kernel.shape) <= best.size * LEAST_CUT
        outer = best.axis < len(kernel.shape) - 1 and fills
        if outer or len(kernel.shape) == 1 or elements[best] * SMALL_SHARE >= largest:
            return best
    if (not kernel.rows and kernel.reduced) or not kernel.shape:
        return None
    streams = largest * 4 > 128 * 49152
    rows = [axis for axis in range(row_axes) if axis != kernel.scanned]
    whole = kernel.reduced or folded or len(kernel.shape) == 1 or kernel.scanned >= 0
    axes = rows if whole else range(len(kernel.shape) - 1)
    if not axes:
        return None
    if streams and kernel.scanned < 0:
        return streaming_partitions(context.timing, kernel.shape, rows)
    if kernel.scanned >= 0:
        return whole_rows(context.timing, kernel.shape, axes)
    partitions = fill_partitions(kernel.shape, axes, not kernel.reduced)
    worth = 1 if stores and not kernel.reduced else WORTH_STAYING
    widths = [itemsize(hlo.shape_of(value).dtype) for value in external if hlo.shape_of(value).size == largest]
    short = is_short(context.timing, kernel.shape, partitions, worth, min(widths, default=4))
    if short or 4 < _shortest_term(kernel, partitions.axis) < context.timing.long_run:
        return streaming_partitions(context.timing, kernel.shape, rows)
    return partitions


def _shortest_term(kernel: Kernel, axis: int) -> int:
    """Bytes of a term in that operand of contractions over ``axis``, which are all that reads the large results, of
    which it has least: terms lie as those of the result, so that short ones are to be neighbours. 0 if others read it.
    """
    found, size = [], prod(kernel.shape)
    made = [op.results[0] for op in kernel.ops if hlo.shape_of(op.results[0]).size == size]
    for use in (use for value in made for use in value.uses if use.operation not in kernel.ops):
        op = use.operation
        if not isinstance(op, hlo.DotOp):
            return 0
        for index, operand in enumerate(op.sources):
            shape, (_, free, summed) = hlo.shape_of(operand), order_of(op, index)
            if index == use.index and axis not in [kernel.axis_of(shape.dims, each) for each in summed]:
                return 0
            if shape.rank - 1 not in summed:  # else it is transposed, whatever lies where
                found.append(prod(shape.dims[each] for each in free) * itemsize(shape.dtype))
    return min(found, default=0)


def counted_axes(plan: MapPlan) -> set[int]:
    """Axes that are counted along."""
    counting = [op for op in plan.kernel.ops if isinstance(op, hlo.IotaOp)]
    return {plan.kernel.axis_of(op.shape.dims, op.iota_dimension.data) for op in counting} | set(plan.iotas.values())


def is_column(shape: Sequence[int], partitions: Partitions) -> bool:
    """Whether a vector lies with neighbours on neighbouring partitions, several times around: a DMA would move each
    element by itself. Its rows of all partitions are whole runs, no more of them than partitions.
    """
    rows, rest = divmod(shape[0], partitions.size) if len(shape) == 1 else (0, 0)
    return partitions.inner == 1 and not rest and partitions.size >= LEAST_ROW and 1 < rows <= 128


def resident_layout(
    timing: Timing, shape: hlo.Shape, most: int, contracted: bool = False
) -> tuple[int, Callable[[Alloc], View]] | None:
    """Bytes a partition, and the view in a buffer, of an array laid out as most kernels would; None above ``most``.

    ``contracted``: as contractions take it that fold its first dim, in chunks of neighbours on the partitions, if these
    can be equal.
    """
    dims = squeeze(shape.dims)
    size = itemsize(shape.dtype)
    if not dims:
        return size, lambda alloc: View(alloc, shape.dtype, Affine(alloc.lo), tuple(() for _ in shape.dims))
    partitions = fill_partitions(dims, range(max(1, len(dims) - 1)), True)
    if contracted and (chunk := stored.equal_chunk(dims[0], timing.sizes.partitions)):
        partitions = Partitions(0, chunk, 1)
    elif is_short(timing, dims, partitions, WORTH_STAYING, size):
        several = streaming_partitions(timing, dims, range(len(dims)))
        partitions = several if divides(dims, several) else partitions
    nbytes = prod(dims) // partitions.size * size
    if not divides(dims, partitions) or nbytes > most:
        return None
    return nbytes, lambda alloc: unsqueezed(resident_view(alloc, shape.dtype, dims, partitions), shape.dims)


def lies_along(full: View, plan: MapPlan) -> bool:
    """Whether a view of the kernel's space has one step along the partitions and one from each group of them on."""
    partitions = plan.partitions
    return partitions is None or all(is_laid_out(full, axis, step) for axis, step in partitions.steps)


def lies_across(view: View, partitions: Partitions, timing: Timing) -> bool:
    """Whether neighbours in memory go to different partitions, so that copying the array first costs less.

    Every run of a DMA is one element then; a copy with the partitions outermost is read, written, and read again in
    long ones, each of which waits for the one before. Neighbours on one partition would lie apart in such a copy.
    """
    if partitions.inner > 1:
        return False
    size = itemsize(view.dtype)
    atoms = [(axis, atom) for axis, dims in enumerate(view.dims) for atom in dims if atom.stride]
    contiguous = [axis for axis, atom in atoms if abs(atom.stride) == size]
    if contiguous != [partitions.axis] or len(view.dims) < 2:
        return False
    nbytes = prod(atom.size for _, atom in atoms) * size
    here, there = (timing.transfer(nbytes, run).bound for run in (size, timing.long_run))
    return here > COPIED * (there + timing.transfer_latency)


def used_outside(value: hlo.SSAValue, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> bool:
    for use in value.uses:
        user = use.operation
        if not isinstance(user, hlo.HloOp):
            return True
        if member.get(user.results[0]) is kernel:
            if trace(value, kernel, member) is None:
                return True
            continue
        if member.get(user.results[0]) is None and user.opcode != "tuple":
            if used_outside(user.results[0], kernel, member):
                return True
            continue
        return True
    return False


def results_of(context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> list[hlo.SSAValue]:
    """What others than ``kernel`` read of what it computes, but column sums."""
    made = [op.results[0] for op in kernel.ops if not kernel.sums_columns(op)]
    return [value for value in made if used_outside(value, kernel, member) or value in context.outputs]


def only_stored(context: Context, results: Sequence[hlo.SSAValue], step: int) -> bool:
    """Whether all are results of the program that nothing reads after the kernel of number ``step``."""
    return all(value in context.outputs and context.last_use(value) <= step for value in results)


def staying_bytes(context: Context, plan: MapPlan, results: Sequence[hlo.SSAValue], step: int) -> int:
    """Bytes a partition that ``choose_output`` will take for those ``results`` that stay on chip."""
    taken = 0
    for value in results:
        nbytes = resident_bytes(context, plan, value, step)
        if nbytes and context.residents.may_stay(nbytes, beside=taken):
            alignment = context.builder.sbuf.alignment
            taken += -(-nbytes // alignment) * alignment
    return taken


def resident_bytes(context: Context, plan: MapPlan, value: hlo.SSAValue, step: int) -> int:
    """Bytes a partition of a result in the kernel's partitions; 0 where it does not stay in them."""
    shape, partitions = hlo.shape_of(value), plan.partitions
    if (
        partitions is None
        or partitions.groups > 1
        or only_stored(context, [value], step)
        or plan.is_shared(shape)
        or plan.gives_transposed(value)
        or not divides(plan.kernel.shape, partitions)
    ):
        return 0
    if not _is_view_of(plan.kernel, partitions, shape):
        return 0
    nbytes = prod(shape.dims) // partitions.size * itemsize(shape.dtype)
    return nbytes if context.last_use(value) - step <= RESIDENT_STEPS or nbytes <= 1024 else 0


def _is_view_of(kernel: Kernel, partitions: Partitions, shape: hlo.Shape) -> bool:
    """Whether a value of ``shape`` that lies in these partitions is an array of its dims there."""
    dims = kernel.rows if kernel.is_row(shape) else kernel.shape
    made = resident_view(Alloc(Space.SBUF, 0, 0), shape.dtype, dims, partitions)
    return value_view(made, kernel, shape.dims) is not None


def resident_view(alloc: Alloc, dtype: str, dims: Sequence[int], partitions: Partitions) -> View:
    stride = itemsize(dtype)
    atoms: list[tuple[Atom, ...]] = []
    for axis in reversed(range(len(dims))):
        pieces = [(dims[axis], 0)]
        if axis == partitions.axis:
            pieces = [(dims[axis] // partitions.step, 0), (partitions.size, 1), (partitions.inner, 0)]
        elif axis == partitions.group_axis:
            pieces = [(dims[axis] // partitions.groups, 0), (partitions.groups, partitions.size)]
        built = []
        for size, partition in reversed(pieces):
            if size == 1:
                continue
            built.append(Atom(size, partition or stride, partition > 0))
            stride *= 1 if partition else size
        atoms.append(tuple(reversed(built)))
    return View(alloc, dtype, Affine(alloc.lo), tuple(reversed(atoms)))


def held_rows(alloc: Alloc, dtype: str, dims: Sequence[int], partitions: Partitions) -> View:
    """As ``resident_view``, but all axes but that of the partitions are dense: a step of a scan, an image."""
    axis = partitions.axis
    view = resident_view(alloc, dtype, (dims[axis], *dims[:axis], *dims[axis + 1 :]), replace(partitions, axis=0))
    return view.transpose([*range(1, axis + 1), 0, *range(axis + 1, len(dims))])


def load_stream(value: hlo.SSAValue) -> Stream:
    """The queue that loads ``value``: what is there before the program starts waits for nothing that is stored."""
    return Stream.DMA_WEIGHT if is_given(value) else Stream.DMA_LOAD


def is_given(value: hlo.SSAValue) -> bool:
    """Whether the data is there before a program or iteration starts: a parameter, a constant, or a window of one."""
    source = base(value)
    if isinstance(source.owner, hlo.DynamicSliceOp):
        array, *starts = source.owner.args
        return is_given(array) and all(_counts(start) for start in starts)
    return stored.is_given(source) or isinstance(source.owner, hlo.ConstantOp)


def _counts(number: hlo.SSAValue, steps: int = 4) -> bool:
    """Whether a few scalar ops make ``number`` of what is given: a loop's count, for one."""
    source = base(number)
    if not isinstance(source.owner, hlo.ElementwiseOp):
        return stored.is_given(source) or isinstance(source.owner, hlo.ConstantOp)
    return steps > 0 and not hlo.shape_of(source).rank and all(_counts(x, steps - 1) for x in source.owner.operands)
