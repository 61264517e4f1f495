"""Prepares ``sort`` and ``topk`` for code generation, which sorts rows of s32 words upwards.

Input: a canonical module. Output: every ``sort`` has the properties ``keys`` and ``blocks``, two dims of which the last
is sorted, and s32 operands; every ``topk`` has rows of floats of 16 or 32 bits, or s32, that fit a partition. A
comparator that ``keys`` can read becomes integer keys (``words``); operands that nobody reads are dropped, those that
their key determines are restored from it. Any other comparator is applied by a bitonic network of
whole-array ops, which also merges rows that are too long for one tile (``network``). Every sort is stable.
"""

from dataclasses import replace as replace_fields
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, ops_of, replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.types import FLOATS, INTEGERS, WIDE_FLOATS
from neuronx_cc.passes.expansions.bodies import apply_body
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.sorting import network as sort_network
from neuronx_cc.passes.sorting.keys import Key, keys_of
from neuronx_cc.passes.sorting.words import HIGHEST, INFINITY, LOWEST, QUIET_NAN, Words

PARTITION_WORDS = 23552
"""Words that a sort may hold in a partition: what resident values leave."""
LEAST_BLOCK = 32
"""Elements of a row that are worth a partition of their own."""
LEAST_CHECKED = 1 << 15
"""Elements of a sort that are worth a look at all of them first."""
SORTED_SHARE = 4
"""A top-k of more than one element in so many is a sort."""


@only_for(hlo.SortOp, hlo.TopkOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if isinstance(op, hlo.SortOp) and op.keys is None:
                _expand_sort(module, op)
            elif isinstance(op, hlo.TopkOp):
                _expand_topk(module, op)


# sorts


def _expand_sort(module: HloModule, op: hlo.SortOp) -> None:
    b = Build.before(module, op)
    first = hlo.shape_of(op.args[0])
    axis = op.dimension.data
    if first.size == 0 or first.dims[axis] == 1:
        _finish(op, list(op.args))
        return
    last = [*(dim for dim in range(first.rank) if dim != axis), axis]
    moved = tuple(first.dims[dim] for dim in last)
    count = first.dims[axis]
    rows = (first.size // count, count)
    operands = [b.reshape(b.transpose(operand, last), rows) for operand in op.args]
    body = module.computation(op.to_apply.data[0])
    keys = keys_of(body, module)
    if keys and not op.is_stable.data:  # equal elements may come in any order
        keys = [replace_fields(key, total_order=True) for key in keys]
    if keys and _expand_partial(b, op, operands, body, keys):
        return
    if keys and _may_restore(keys, operands):
        results = [_restoring_if_plain(b, op, operands[0], body, keys[0])]
    else:
        results = _by_keys(b, op, operands, body, keys) if keys else sort_network.by_comparator(b, operands, body)
    back = [last.index(dim) for dim in range(first.rank)]
    _finish(op, [b.transpose(b.reshape(value, moved), back) for value in results])


def _finish(op: hlo.SortOp, results: list[Value]) -> None:
    if isinstance(op.results[0].type, hlo.TupleType):
        replace_elements(op, results)
    else:
        replace(op, results[0])


def _by_keys(b: Build, op: hlo.SortOp, operands: list[Value], body: hlo.ComputationOp, keys: list[Key]) -> list[Value]:
    """The sorted operands; those that nobody reads as they were."""
    words = Words(b)
    doubled = [operand for operand in operands for _ in range(2)]
    dims = hlo.shape_of(operands[0]).dims
    values = apply_body(b.anchor, body, doubled, dims, [key.value for key in keys])
    columns = [
        words.key(value, key.upwards, key.total_order, key.canonical) for value, key in zip(values, keys, strict=True)
    ]
    count = len(columns)
    read = _elements_read(op)
    restored: dict[int, tuple[int, Key]] = {}
    carried: dict[int, int] = {}
    for position, key in enumerate(keys):
        if isinstance(key.value, hlo.BlockArgument) and _determines(key, hlo.shape_of(operands[key.value.index // 2])):
            restored.setdefault(key.value.index // 2, (position, key))
    for number in sorted(read - restored.keys()):
        if _counts(op.args[number], op.dimension.data):
            # unique and upwards: as a key it makes the sort stable at no cost
            columns.insert(count, words.packed(operands[number]))
            carried = {other: place + (place >= count) for other, place in carried.items()}
            carried[number] = count
            count += 1
        else:
            carried[number] = len(columns)
            columns.append(words.packed(operands[number]))
    done = sort_rows(b, columns, count)
    results = []
    for number, operand in enumerate(operands):
        dtype = hlo.shape_of(operand).dtype
        if number in carried:
            results.append(words.unpacked(done[carried[number]], dtype))
        elif number in restored and number in read:
            position, key = restored[number]
            results.append(words.restored(done[position], dtype, key.upwards))
        else:
            results.append(operand)
    return results


def _may_restore(keys: list[Key], operands: list[Value]) -> bool:
    """Whether one large array of floats is sorted by its own values, of which equal ones may have other bits."""
    shape, key = hlo.shape_of(operands[0]), keys[0]
    alone = len(operands) == 1 and len(keys) == 1 and isinstance(key.value, hlo.BlockArgument)
    return alone and shape.dtype in FLOATS and not _determines(key, shape) and shape.size >= LEAST_CHECKED


def _restoring_if_plain(b: Build, op: hlo.SortOp, operand: Value, body: hlo.ComputationOp, key: Key) -> Value:
    """Without a minus zero or a NaN of its own kind, the bits follow from the keys: one word an element is sorted, not
    two. That shows at run time.
    """
    words = Words(b)
    bits = words.cast(b.convert(operand, "f32"), "s32")
    special = b.compare(bits, b.number_like(LOWEST, bits), "EQ")
    if key.canonical:
        size = b.each(hlo.AndOp, bits, b.number_like(HIGHEST, bits))
        nan = b.compare(size, b.number_like(INFINITY, bits), "GT")
        other = b.compare(bits, b.number_like(QUIET_NAN, bits), "NE")
        special = b.each(hlo.OrOp, special, b.each(hlo.AndOp, nan, other))
    found = b.reduce(hlo.OrOp, special, (0, 1), 0)
    state = hlo.tuple_type((operand.type,))
    branches = []
    for name, known in (("sort_pairs", key), ("sort_keys", replace_fields(key, total_order=True, canonical=False))):
        computation, inner = b.computation(b.fresh_name(name), [state])
        (done,) = _by_keys(inner, op, [inner.element(computation.block.args[0], 0)], body, [known])
        assert computation.block.last_op is not None
        computation.block.last_op.operands = [inner.typed(hlo.TupleOp, [done], state)]
        branches.append(computation.computation_name)
    packed = [b.typed(hlo.TupleOp, [operand], state) for _ in branches]
    chosen = b.typed(hlo.ConditionalOp, [found, *packed], state, branches=hlo.StrsAttr(tuple(branches)))
    return b.element(chosen, 0)


def _expand_partial(b: Build, op: hlo.SortOp, operands: list[Value], body: hlo.ComputationOp, keys: list[Key]) -> bool:
    """A sort of which only the first elements are read is a top-k, when one key and the places determine them."""
    axis, dims = op.dimension.data, hlo.shape_of(op.args[0]).dims
    wanted, count = _taken(op), dims[axis]
    read = _elements_read(op)
    key = keys[0]
    shape = hlo.shape_of(operands[0])
    own = key.value.index // 2 if isinstance(key.value, hlo.BlockArgument) else -1
    counted = {number for number in read if _counts(op.args[number], axis)}
    known = counted | ({own} if own >= 0 and _determines(key, hlo.shape_of(operands[own])) else set())
    if len(keys) > 1 or not 0 < wanted * SORTED_SHARE <= count or not read <= known:
        return False
    words = Words(b)
    doubled = [operand for operand in operands for _ in range(2)]
    (value,) = apply_body(op, body, doubled, shape.dims, [key.value])
    found, places = _largest(b, words.key(value, not key.upwards, key.total_order, key.canonical), wanted)
    last = [*(dim for dim in range(len(dims)) if dim != axis), axis]
    moved = (*(dims[dim] for dim in last[:-1]), wanted)
    for number, element in _readers(op):
        dtype = hlo.shape_of(operands[number]).dtype
        first = b.convert(places, dtype) if number in counted else words.restored(found, dtype, not key.upwards)
        first = b.transpose(b.reshape(first, moved), [last.index(dim) for dim in range(len(dims))])
        for use in list(element.uses):
            use.operation.operands[use.index] = first
    for user in [use.operation for use in op.results[0].uses]:
        erase(user)
    erase(op)
    return True


def _readers(op: hlo.SortOp) -> list[tuple[int, Value]]:
    """(number, array) of the results that anything uses."""
    result = op.results[0]
    if not isinstance(result.type, hlo.TupleType):
        return [(0, result)]
    users = [use.operation for use in result.uses]
    return [(user.index.data, user.results[0]) for user in users if isinstance(user, hlo.GetTupleElementOp)]


def _taken(op: hlo.SortOp) -> int:
    """How many elements along the sorted dim slices take of the results, from the first on; 0 if others look."""
    result, axis, most = op.results[0], op.dimension.data, 0
    is_tuple = isinstance(result.type, hlo.TupleType)
    if is_tuple and not all(isinstance(use.operation, hlo.GetTupleElementOp) for use in result.uses):
        return 0
    for _, value in _readers(op):
        for use in value.uses:
            user = use.operation
            if not isinstance(user, hlo.SliceOp) or user.slice.data[axis].start or user.slice.data[axis].stride != 1:
                return 0
            most = max(most, user.slice.data[axis].limit)
    return most


def _elements_read(op: hlo.SortOp) -> set[int]:
    result = op.results[0]
    if not isinstance(result.type, hlo.TupleType):
        return {0}
    users = [use.operation for use in result.uses]
    if all(isinstance(user, hlo.GetTupleElementOp) for user in users):
        return {user.index.data for user in users if user.results[0].first_use is not None}
    return set(range(len(op.args)))


def _determines(key: Key, shape: hlo.Shape) -> bool:
    """Whether elements whose keys are equal are the same bits."""
    return shape.dtype in INTEGERS or shape.dtype == "pred" or (key.total_order and not key.canonical)


def _counts(value: Value, axis: int) -> bool:
    """Whether ``value`` is the place along ``axis``."""
    op = defining_op(value)
    if isinstance(op, hlo.BroadcastOp):
        places = [at for at, dim in enumerate(op.dimensions.data) if dim == axis]
        return len(places) == 1 and _counts(op.operand, places[0])
    return isinstance(op, hlo.IotaOp) and op.iota_dimension.data == axis and op.shape.dtype in ("s32", "u32")


def sort_rows(b: Build, words: list[Value], keys: int) -> list[Value]:
    """s32 ``words`` [rows, n] sorted along the rows by the first ``keys``."""
    rows, count = hlo.shape_of(words[0]).dims
    blocks = _blocks(rows, count, len(words))
    if blocks == 0:
        block = PARTITIONS * (PARTITION_WORDS // (len(words) + (keys < len(words))))
        return sort_network.by_blocks(b, words, keys, block, PARTITIONS)
    length = -(-count // blocks) * blocks
    padded = [_padded(b, word, length, HIGHEST if place < keys else 0) for place, word in enumerate(words)]
    done = Words(b).sorted(padded, keys, blocks)
    return [b.slice(word, 1, 0, count) for word in done]


def _padded(b: Build, word: Value, length: int, number: int) -> Value:
    return b.pad(word, [(0, 0), (0, length - hlo.shape_of(word).dims[1])], number)


def _blocks(rows: int, count: int, words: int) -> int:
    """Partitions for a row: 1, or a power of two where few rows would leave partitions idle; 0 when 128 do not hold
    it.
    """
    best, least = 0, 0.0
    blocks = 1
    while blocks <= PARTITIONS:
        inner = -(-count // blocks)
        enough = blocks == 1 or inner >= LEAST_BLOCK
        if inner * words <= PARTITION_WORDS and enough:
            levels = (inner * blocks - 1).bit_length()
            tiles = -(-rows // PARTITIONS) if blocks == 1 else rows
            cost = float(tiles * inner * levels * (levels + 1))
            if not best or cost < least:
                best, least = blocks, cost
        blocks *= 2
    return best


# top-k


def _expand_topk(module: HloModule, op: hlo.TopkOp) -> None:
    b, words = Build.before(module, op), Words(Build.before(module, op))
    shape = hlo.shape_of(op.operand)
    count, wanted = shape.dims[-1], op.k.data
    outer = shape.dims[:-1]
    rows = prod(outer)
    if not rows or not wanted:
        result = op.results[0].type
        assert isinstance(result, hlo.TupleType)
        replace_elements(op, [b.number(0, part.data.dtype, part.data.dims) for part in result.data])  # type: ignore[attr-defined]
        return
    flat = b.reshape(op.operand, (rows, count))
    is_truth = shape.dtype == "pred"
    if is_truth:
        flat = b.convert(flat, "u8")
    dtype = hlo.shape_of(flat).dtype
    largest = op.largest.data
    if count < SORTED_SHARE * wanted:
        places = b.iota((rows, count), 1)
        done = sort_rows(b, [words.key(flat, not largest), places], 2)
        keys, places = (b.slice(word, 1, 0, wanted) for word in done)
        values = words.restored(keys, dtype, not largest)
    elif largest and dtype in FLOATS:
        values, places = _largest(b, flat, wanted)
    else:
        found, places = _largest(b, words.key(flat, largest), wanted)
        values = words.restored(found, dtype, largest)
    if is_truth:
        values = b.convert(values, "pred")
    replace_elements(op, [b.reshape(values, (*outer, wanted)), b.reshape(places, (*outer, wanted))])


def _largest(b: Build, rows: Value, wanted: int) -> tuple[Value, Value]:
    """The ``wanted`` largest of rows of floats or s32, and their places; rows are cut where partitions or SBUF ask for
    it.
    """
    height, count = hlo.shape_of(rows).dims
    most = PARTITION_WORDS // 2 - 2 * wanted
    spread = max(SORTED_SHARE * wanted, 512, -(-count * height // PARTITIONS))
    length = min(count, most if height >= PARTITIONS // 2 else min(most, spread))
    whole = count // length
    length = count // whole
    if whole == 1 and count - length == 0:
        return _native(b, rows, wanted)
    cut = whole * length
    parts = [(b.reshape(b.slice(rows, 1, 0, cut), (height * whole, length)), whole, length, 0)]
    if cut < count:
        parts.append((b.slice(rows, 1, cut, count), 1, count - cut, cut))
    found = []
    for part, pieces, size, start in parts:
        taken = min(wanted, size)
        values, places = _native(b, part, taken)
        dims = (height, pieces, taken)
        base = b.mul(b.iota(dims, 1), b.number(size, "s32", dims))
        places = b.add(b.add(b.reshape(places, dims), base), b.number(start, "s32", dims))
        found.append([b.reshape(value, (height, pieces * taken)) for value in (values, places)])
    values, places = (b.concatenate(columns, 1) for columns in zip(*found, strict=True))
    words, dtype = Words(b), hlo.shape_of(rows).dtype
    wide = "f32" if dtype in FLOATS else dtype
    done = sort_rows(b, [words.key(b.convert(values, wide), False), places], 2)
    best, places = (b.slice(word, 1, 0, wanted) for word in done)
    return b.convert(words.restored(best, wide, False), dtype), places


def _native(b: Build, rows: Value, wanted: int) -> tuple[Value, Value]:
    """A ``topk`` that code generation has, of words or of floats that the DMA casts."""
    shape = hlo.shape_of(rows)
    if shape.dtype in FLOATS and shape.dtype not in WIDE_FLOATS:
        values, places = _native(b, b.convert(rows, "f32"), wanted)
        return b.convert(values, shape.dtype), places
    dims = (shape.dims[0], wanted)
    types = hlo.tuple_type((hlo.array_type(shape.dtype, dims), hlo.array_type("s32", dims)))
    both = b.typed(hlo.TopkOp, (rows,), types, k=hlo.IntAttr(wanted), largest=hlo.BoolAttr(True))
    return b.element(both, 0), b.element(both, 1)
