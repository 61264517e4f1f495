"""Keeps the high words of 64-bit integers that a program reads or writes through ``bitcast-convert``.

Input: a module whose 64-bit integers are about to be narrowed. Output: every ``bitcast-convert`` between 64-bit and
32-bit types reads an entry parameter or makes a result of the program, where all 64 bits are; those of other values are
rewritten on their 32-bit words. A computed 64-bit integer has the extension of its low word as its high one.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, insert_before, ops_of
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext

WIDE = ("s64", "u64")
VIEWS = (hlo.ReshapeOp, hlo.SliceOp, hlo.TransposeOp, hlo.BroadcastOp, hlo.ConcatenateOp, hlo.OptBarrierOp, hlo.CopyOp)


def run(module: HloModule, context: PassContext) -> None:
    """Rewrite the bit casts of all computations; the caller leaves those that remain alone (``at_boundary``)."""
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.BitcastConvertOp):
                _in_two_steps(module, op)
        casts = [op for op in ops_of(computation.block) if isinstance(op, hlo.BitcastConvertOp) and _crosses(op)]
        if not casts:
            continue
        if computation.is_entry.data:
            _keep_results(module, computation)
        for op in casts:
            if hlo.shape_of(op.operand).dtype in WIDE and not isinstance(op.operand, hlo.BlockArgument):
                _read(module, op, context)
        for op in casts:
            if op.parent is None:
                continue
            if op.results[0].first_use is None:
                erase(op)
            elif op.shape.dtype in WIDE and not at_boundary(op):
                _make(module, op, context)


def _in_two_steps(module: HloModule, op: hlo.BitcastConvertOp) -> None:
    """A bit cast from or to 64 bits whose other side is not of 32 bits goes through u32 words."""
    source, target = hlo.shape_of(op.operand), op.shape
    widths = [NUMPY_DTYPE[shape.dtype].itemsize for shape in (source, target)]
    if 8 not in widths or 4 in widths:
        return
    b = Build.before(module, op)
    words = (*(source.dims if widths[0] == 8 else target.dims), 2)
    value: Value = op.operand
    if source.dtype == target.dtype:
        op.results[0].replace_all_uses_with(value)
        erase(op)
        return
    if widths[0] == 8:
        value = b.op(hlo.BitcastConvertOp, (value,), "u32", words)
    else:
        value = b.reshape(value, (*words, source.dims[-1] // 2))
        value = b.op(hlo.BitcastConvertOp, (value,), "u32", words)
    if widths[1] < 8:
        parts = (*words, target.dims[-1] // 2)
        value = b.reshape(b.op(hlo.BitcastConvertOp, (value,), target.dtype, parts), target.dims)
    else:
        value = b.op(hlo.BitcastConvertOp, (value,), target.dtype, target.dims)
    op.results[0].replace_all_uses_with(value)
    erase(op)


def at_boundary(op: hlo.HloOp) -> bool:
    """Whether a bit cast reads a parameter of the program or only makes results of it."""
    if hlo.shape_of(op.operands[0]).dtype in WIDE:
        return _is_known(op.operands[0]) and isinstance(op.operands[0], hlo.BlockArgument)
    return all(_is_result(use.operation) for use in op.results[0].uses)


def _crosses(op: hlo.BitcastConvertOp) -> bool:
    wide = [hlo.shape_of(value).dtype in WIDE for value in (op.operand, op.results[0])]
    return wide[0] != wide[1]


def _keep_results(module: HloModule, entry: hlo.ComputationOp) -> None:
    """Results of the program whose words are known become bit casts of their own."""
    pack = defining_op(entry.root)
    user = pack if isinstance(pack, hlo.TupleOp) else entry.block.last_op
    assert user is not None
    for index, value in enumerate(list(user.operands)):
        known = isinstance(value.type, hlo.ArrayType) and value.type.data.dtype in WIDE and _is_known(value)
        if known and not isinstance(value, hlo.BlockArgument):
            b = Build(module, user, hlo.loc_of(value))
            shape = hlo.shape_of(value)
            words = _words(b, value, None)
            user.operands[index] = b.op(hlo.BitcastConvertOp, (words,), shape.dtype, shape.dims)
            source = defining_op(value)
            if isinstance(source, hlo.ConstantOp) and value.first_use is None:
                erase(source)  # it may not fit 32 bits


def _is_known(value: Value) -> bool:
    """Whether both words of ``value`` are there: it is read, constant, put together from words, or a view of such."""
    op = defining_op(value)
    if op is None:
        return isinstance(value, hlo.BlockArgument) and value.block.parent_op().is_entry.data  # type: ignore[union-attr]
    if isinstance(op, VIEWS):
        return all(_is_known(operand) for operand in op.operands)
    return isinstance(op, hlo.BitcastConvertOp | hlo.ConstantOp)


def _words(b: Build, value: Value, context: PassContext | None) -> Value:
    """The u32 words of a 64-bit ``value``, low first, in a new last dim."""
    op, shape = defining_op(value), hlo.shape_of(value)
    dims = (*shape.dims, 2)
    if isinstance(op, hlo.BitcastConvertOp):
        source = hlo.shape_of(op.operand)
        return op.operand if source.dtype == "u32" else b.op(hlo.BitcastConvertOp, (op.operand,), "u32", source.dims)
    if isinstance(op, hlo.ConstantOp):
        array = b.module.constants[op.value.data]
        return b.array(array.reshape(-1).view("u4").reshape(dims), "u32")
    if isinstance(op, VIEWS) and _is_known(value):
        return _viewed(b, op, [_words(b, operand, context) for operand in op.operands], dims)
    if op is None and _is_known(value):
        return b.op(hlo.BitcastConvertOp, (value,), "u32", dims)
    if context is not None:
        context.warn("ESFH002", f"the high words of computed {shape.dtype} values extend the low ones", b.loc)
    signed = shape.dtype == "s64"
    low = b.convert(value, "s32" if signed else "u32")
    high = b.each(hlo.ShiftRightArithmeticOp, low, b.number_like(31, low)) if signed else b.number_like(0, low)
    both = b.concatenate([b.reshape(word, (*shape.dims, 1)) for word in (low, high)], shape.rank)
    return b.op(hlo.BitcastConvertOp, (both,), "u32", dims) if signed else both


def _viewed(b: Build, op: hlo.HloOp, words: list[Value], dims: tuple[int, ...]) -> Value:
    """View ``op`` of arrays that have one dim more."""
    rank = len(dims) - 1
    copied = copy_op(op, words, hlo.array_type("u32", dims))
    if isinstance(op, hlo.SliceOp):
        copied.properties["slice"] = hlo.SliceAttr((*op.slice.data, hlo.SliceDim(0, 2)))
    elif isinstance(op, hlo.TransposeOp | hlo.BroadcastOp):
        copied.properties["dimensions"] = hlo.IntsAttr((*op.dimensions.data, rank))
    assert isinstance(b.anchor.parent, hlo.Block)
    b.anchor.parent.insert_op_before(copied, b.anchor)
    return copied.results[0]


def _read(module: HloModule, op: hlo.BitcastConvertOp, context: PassContext) -> None:
    """A bit cast from 64 bits, on the words."""
    if NUMPY_DTYPE[op.shape.dtype].itemsize != 4:
        raise CompileError(
            "ESPP004",
            f"bitcast-convert of {hlo.shape_of(op.operand).dtype} to {op.shape.dtype} is not supported",
            "cast to u32 first, which gives the words of each integer",
            op.loc,
        )
    words = _words(Build.before(module, op), op.operand, context)
    if op.shape.dtype != "u32":
        words = insert_before(op, hlo.BitcastConvertOp, (words,), op.results[0].type, op.loc)
    op.results[0].replace_all_uses_with(words)


def _make(module: HloModule, op: hlo.BitcastConvertOp, context: PassContext) -> None:
    """A bit cast to 64 bits that the program computes with: the low words, which is what narrowing leaves."""
    if NUMPY_DTYPE[hlo.shape_of(op.operand).dtype].itemsize != 4:
        raise CompileError(
            "ESPP004",
            f"bitcast-convert of {hlo.shape_of(op.operand).dtype} to {op.shape.dtype} is not supported",
            "put u32 words together first",
            op.loc,
        )
    context.warn("ESFH002", f"{op.shape.dtype} made from words is computed on 32 bits", op.loc)
    b = Build.before(module, op)
    words = _words(b, op.results[0], None)
    rank = op.shape.rank
    low = b.reshape(b.slice(words, rank, 0, 1), op.shape.dims)
    value = b.convert(low, op.shape.dtype)
    kept = [use for use in op.results[0].uses if not _is_result(use.operation)]
    for use in kept:
        use.operation.operands[use.index] = value


def _is_result(user: hlo.Operation) -> bool:
    computation = user.parent_op()
    if not isinstance(computation, hlo.ComputationOp) or not computation.is_entry.data:
        return False
    return isinstance(user, hlo.ReturnOp) or (bool(user.results) and user.results[0] is computation.root)
