"""Scans as one op: a custom call ``neuronx_cc.scan`` that passes make and map kernels compute along one dim.

Operands: k arrays of one shape. ``called``: one computation that combines k scalars of what comes before with k scalars
of what follows, associatively. Result: array ``result`` of the k folds of all elements up to each one along ``axis``
(from each one on with ``reverse``). The first element stays as it is, unless the last operand is an initial value: of a
fold, or of the ``h`` of a recurrence, repeated along ``axis``.
"""

from collections.abc import Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.scans import PREVIOUS, TARGET, Scan, scan_of
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.expansions import log_sum_exp
from neuronx_cc.passes.expansions.bodies import apply_body, is_elementwise
from neuronx_cc.passes.expansions.build import Build, Value

DTYPES = frozenset(["f32", "bf16", "f16", "s32", "u32", "s16", "u16", "s8", "u8", "pred"])
LONGEST = 4096
"""Elements of a row that is scanned at once; longer ones are cut into blocks."""
SHARE = (1, 2)
"""Of a partition of SBUF: a row with its scratch."""
LEAST_ELEMENTS = 1 << 18
"""Elements of an array that is scanned along a leading dim as it lies, and of its rows."""
LEAST_ROW = 256
MOST_SLICES = 32
"""Rows of a block, each a slice that is folded by an op of its own."""
ALIVE = 7
"""Arrays around a shift that are alive at once, of which a partition must hold whole rows."""
MOST_ARRAYS = 6
"""Arrays that are scanned together."""
RECURRENCES = frozenset([("add", "multiply"), ("maximum", "add"), ("minimum", "add")])
"""(outer, inner) of ``h = outer(inner(a, h), b)`` where the inner op distributes over the outer one."""


def body_of(op: hlo.HloOp) -> hlo.ComputationOp:
    """The computation that the scan ``op`` calls."""
    scan, caller = scan_of(op), op.parent_op()
    assert scan is not None
    assert caller is not None
    assert caller.parent is not None
    for computation in caller.parent.ops:
        if isinstance(computation, hlo.ComputationOp) and computation.computation_name == scan.body:
            return computation
    raise AssertionError(f"no computation {scan.body}")


def insert(
    build: Build,
    arrays: Sequence[Value],
    body: str,
    axis: int,
    reverse: bool = False,
    result: int = 0,
    initial: Value | None = None,
) -> Value:
    """Array ``result`` of the scan of ``arrays`` along ``axis`` by the computation ``body``, after ``initial``."""
    if hlo.shape_of(arrays[0]).dims[axis] == 1:  # kernels have no axis for it
        return _one_step(build, arrays, body, result, initial)
    properties = {
        "target": hlo.StrAttr(TARGET),
        "backend_config": Scan(axis, reverse, result, body, initial is not None).config(axis),
        "called": hlo.StrsAttr((body,)),
    }
    operands = arrays if initial is None else [*arrays, initial]
    return build.typed(hlo.CustomCallOp, operands, arrays[result].type, **properties)


def _one_step(build: Build, arrays: Sequence[Value], body: str, result: int, initial: Value | None) -> Value:
    if initial is None:
        return arrays[result]
    computation = next(each for each in build.module.computations() if each.computation_name == body)
    return combined(build, computation, [*arrays[:-1], initial, *arrays])[result]


def previous(build: Build, array: Value, axis: int, reverse: bool = False, initial: Value | None = None) -> Value:
    """``array`` with each element but the first (with ``reverse`` the last) replaced by the one before (after) it, and
    that one by ``initial`` if there is one. Rows that no partition holds are put together of parts.
    """
    assert build.timing is not None, "who makes scans knows the machine"
    shape = hlo.shape_of(array)
    size = shape.dims[axis]
    if ALIVE * size * itemsize("f32") > build.timing.sizes.sbuf_bytes:
        end, first = (1, size - 1) if reverse else (0, 0)
        ahead = build.slice(array if initial is None else initial, axis, first, first + 1)
        parts = [ahead, build.slice(array, axis, end, end + size - 1)]
        return build.concatenate(parts[::-1] if reverse else parts, axis)
    config = Scan(axis, reverse, 0, "", initial is not None).config(axis)
    operands = [array] if initial is None else [array, initial]
    return build.typed(hlo.CustomCallOp, operands, array.type, target=hlo.StrAttr(PREVIOUS), backend_config=config)


def fits(body: hlo.ComputationOp) -> bool:
    """Whether map kernels scan by ``body``: elementwise, on types that no pass makes others of."""
    types = [arg.type for arg in body.block.args]
    known = all(isinstance(type_, hlo.ArrayType) and type_.data.dtype in DTYPES for type_ in types)
    return known and is_elementwise(body) and len(types) <= MOST_ARRAYS * 2


def blocks_of_rows(shape: hlo.Shape, axis: int) -> int:
    """Blocks into which a leading dim is cut for a scan of rows that lie one after the other; 0 where it is not.

    Each partition then scans a block of whole rows as they lie in memory.
    """
    row = prod(shape.dims[axis + 1 :])
    if shape.dtype not in ("f32", "s32", "u32") or row < LEAST_ROW or shape.size < LEAST_ELEMENTS:
        return 0
    size = shape.dims[axis]
    blocks = max((count for count in range(64, 129) if size % count == 0), default=0)
    return blocks if blocks and 2 <= size // blocks <= MOST_SLICES else 0


def longest(build: Build, body: hlo.ComputationOp) -> int:
    """Elements of a row that a partition surely holds with all that ``body`` needs."""
    assert build.timing is not None, "who makes scans knows the machine"
    arrays, ops = len(body.block.args) // 2, sum(1 for _ in ops_of(body.block))
    return max(1, min(LONGEST, build.timing.sizes.sbuf_share(SHARE) // (8 * arrays + 4 + 2 * ops)))


def goes_on(body: hlo.ComputationOp, dims: Sequence[int], axis: int) -> bool:
    """Whether a scan of any length stays one, of which ``passes.chunk_scans`` makes a loop over ranges: a recurrence of
    so many rows, which lie apart in memory, that all partitions have some.
    """
    rows = prod(dims) // max(1, dims[axis])
    return recurrence(body) is not None and axis < len(dims) - 1 and rows >= PARTITIONS


def is_whole(build: Build, body: hlo.ComputationOp, dims: Sequence[int], axis: int) -> bool:
    """Whether a scan of arrays of ``dims`` is one op."""
    return dims[axis] <= longest(build, body) or goes_on(body, dims, axis)


def running(build: Build, arrays: Sequence[Value], body: hlo.ComputationOp, axis: int, reverse: bool) -> list[Value]:
    """All arrays of the scan of ``arrays`` by ``body``; what is not used is left to ``dce``.

    Rows that no partition holds are cut into blocks: each is scanned, then the blocks' totals, and every block but the
    first is combined with what came before it.
    """
    dims = hlo.shape_of(arrays[0]).dims
    size, rows = dims[axis], prod(dims) // max(1, dims[axis])
    if is_whole(build, body, dims, axis):
        return _whole(build, arrays, body, axis, reverse)
    if reverse:
        flipped = running(build, [build.reverse(array, [axis]) for array in arrays], body, axis, False)
        return [build.reverse(array, [axis]) for array in flipped]
    blocks = max(-(-size // longest(build, body)), 128 // rows)
    length = size // blocks
    cut = [build.slice(array, axis, 0, blocks * length) for array in arrays]
    parts = (*dims[:axis], blocks, length, *dims[axis + 1 :])
    local = running(build, [build.reshape(array, parts) for array in cut], body, axis + 1, False)
    totals = _last(build, local, axis + 1)
    carried = running(build, totals, body, axis, False)
    before = [
        build.concatenate([build.slice(array, axis, 0, 1), build.slice(array, axis, 0, blocks - 1)], axis)
        for array in carried
    ]
    kept = [place for place in range(len(parts)) if place != axis + 1]
    spread = [build.broadcast(array, parts, kept) for array in before]
    joined = combined(build, body, [*spread, *local])
    later = build.compare(build.iota(parts, axis), build.number(0, "s32", parts), "GT")
    chosen = [build.select(later, both, alone) for both, alone in zip(joined, local, strict=True)]
    whole = [build.reshape(array, (*dims[:axis], blocks * length, *dims[axis + 1 :])) for array in chosen]
    if blocks * length == size:
        return whole
    rest = [build.slice(array, axis, blocks * length, size) for array in arrays]
    shape = (*dims[:axis], size - blocks * length, *dims[axis + 1 :])
    others = [place for place in range(len(dims)) if place != axis]
    ends = [build.broadcast(array, shape, others) for array in _last(build, whole, axis)]
    tail = combined(build, body, [*ends, *running(build, rest, body, axis, False)])
    return [build.concatenate(pair, axis) for pair in zip(whole, tail, strict=True)]


def _whole(build: Build, arrays: Sequence[Value], body: hlo.ComputationOp, axis: int, reverse: bool) -> list[Value]:
    kinds = recurrence(body)
    if hlo.shape_of(arrays[0]).dims[axis] == 1:
        return list(arrays)
    name = body.computation_name
    if log_sum_exp.matches(body):
        most = build.combiner(hlo.MaximumOp, "f32")
        steps = recurrence_body(build, "add", "multiply", "f32")
        return [
            log_sum_exp.running(
                build,
                arrays[0],
                lambda x: insert(build, [x], most, axis, reverse),
                lambda x: previous(build, x, axis, reverse),
                lambda a, b: insert(build, [a, b], steps, axis, reverse, 1),
            )
        ]
    if kinds is None:
        return [insert(build, arrays, name, axis, reverse, result) for result in range(len(arrays))]
    factor = build.combiner(hlo.OPCODES[kinds[1]], hlo.shape_of(arrays[0]).dtype)
    return [insert(build, arrays[:1], factor, axis, reverse), insert(build, arrays, name, axis, reverse, 1)]


def combined(build: Build, body: hlo.ComputationOp, operands: Sequence[Value]) -> list[Value]:
    """What ``body`` makes of whole arrays."""
    if log_sum_exp.matches(body):
        return [log_sum_exp.both(build, *operands)]
    return apply_body(build.anchor, body, operands, hlo.shape_of(operands[0]).dims)


def _last(build: Build, arrays: Sequence[Value], axis: int) -> list[Value]:
    """The last elements along ``axis``, which goes."""
    dims = hlo.shape_of(arrays[0]).dims
    ends = [build.slice(array, axis, dims[axis] - 1, dims[axis]) for array in arrays]
    return [build.reshape(array, (*dims[:axis], *dims[axis + 1 :])) for array in ends]


def recurrence_body(build: Build, outer: str, inner: str, dtype: str) -> str:
    """Name of the computation that composes two steps ``h -> outer(inner(a, h), b)``, made if the module lacks it."""
    name = f"recurrence.{outer}.{inner}.{dtype}"
    if any(computation.computation_name == name for computation in build.module.computations()):
        return name
    scalar = hlo.array_type(dtype, ())
    computation, inside = build.computation(name, [scalar] * 4, shared=True)
    a, b, later_a, later_b = computation.block.args
    both = inside.each(hlo.OPCODES[inner], later_a, a)
    value = inside.each(hlo.OPCODES[outer], inside.each(hlo.OPCODES[inner], later_a, b), later_b)
    packed = inside.typed(hlo.TupleOp, [both, value], hlo.tuple_type((scalar, scalar)))
    computation.block.last_op.operands = [packed]  # type: ignore[union-attr]
    return name


def recurrence(body: hlo.ComputationOp) -> tuple[str, str] | None:
    """(outer, inner) when ``body`` composes two steps ``h -> outer(inner(a, h), b)`` of floats; else None."""
    args, root = list(body.block.args), defining_op(body.root)
    if len(args) != 4 or not isinstance(root, hlo.TupleOp) or hlo.shape_of(args[0]).dtype not in FLOATS:
        return None
    a, b, later_a, later_b = args
    both, value = (defining_op(part) for part in root.operands)
    if both is None or value is None or set(both.operands) != {a, later_a} or len(both.operands) != 2:
        return None
    if not isinstance(value, hlo.CombinerOp) or later_b not in value.operands:
        return None
    carried = next((defining_op(part) for part in value.operands if part is not later_b), None)
    if not isinstance(carried, hlo.CombinerOp) or type(carried) is not type(both):
        return None
    if set(carried.operands) != {later_a, b}:
        return None
    kinds = value.opcode, carried.opcode
    return kinds if kinds in RECURRENCES else None
