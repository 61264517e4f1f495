"""Elementwise HLO ops as engine instructions: a rule for each kind of op and class of types; ``emit`` chooses.

A rule gets blocks of equal sizes (dim 0 on the partitions) and emits instructions. Floats are computed
in FP32 by Vector and Scalar and rounded once on the way out; integers are exact on GpSimd; for bits see
``bits`` (hardware sheet 4.2 and 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, frexp, isfinite, prod

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import (
    Deferred,
    Emitter,
    Operand,
    Readable,
    Splat,
    block_of,
    fill,
    gpsimd,
    reads_at_once,
)
from neuronx_cc.codegen.maps.bits import BITWISE, ROTATE, SHIFTS, bitwise, logical_alu, shift
from neuronx_cc.codegen.maps.partition_scalars import (
    partition_block,
    partition_scalar,
)
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.functions import ACTIVATION as SCALAR_FUNCTIONS
from neuronx_cc.ir.isa.functions import UNARY
from neuronx_cc.ir.isa.names import engine_name
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Tile
from neuronx_cc.ir.types import FLOATS, INTEGERS, SIGNED, UNSIGNED, WORDS, itemsize
from neuronx_cc.passes.analysis.values import is_normal, tells_last_bit

ARITHMETIC = {"add": "add", "subtract": "subtract", "multiply": "multiply", "maximum": "max", "minimum": "min"}
"""HLO opcode -> ALU operator."""
COMPARE = {"EQ": "is_equal", "NE": "not_equal", "GE": "is_ge", "GT": "is_gt", "LE": "is_le", "LT": "is_lt"}
"""HLO comparison direction -> ALU operator."""
MIRROR = {"EQ": "EQ", "NE": "NE", "GE": "LE", "GT": "LT", "LE": "GE", "LT": "GT"}
"""Direction of a comparison -> that with its operands swapped."""
ACTIVATION = {opcode: engine_name(opcode) for opcode in UNARY if engine_name(opcode) in SCALAR_FUNCTIONS}
"""HLO opcode -> function of Scalar's tables (hardware sheet 4.1)."""
IN_FP32 = frozenset([*ARITHMETIC, *ACTIVATION])
"""Ops that one instruction computes in FP32, whatever floats it reads."""
MOST_ALIKE = 16
"""Instructions for parts of a tile, instead of one for all."""
ROUNDED = IN_FP32 | {"divide"}
"""Ops whose last instruction rounds its FP32 result to the type that it writes."""


def arithmetic(e: Emitter, alu: str, out: Block, lhs: Readable, rhs: Readable) -> None:
    """Float ``lhs alu rhs`` on Vector; on Scalar where an add or multiply has one value a partition."""
    if isinstance(lhs, Deferred) or isinstance(rhs, Deferred):
        _after_deferred(e, alu, out, lhs, rhs)
        return
    if isinstance(lhs, Splat) and isinstance(rhs, Splat):
        lhs = fill(e, out, lhs)
    if lhs == rhs and alu == "multiply" and out.dtype in FLOATS:
        e.over("activation", Stream.SCALAR, [out], [block_of(e, out, lhs)], alu=["square"], imm=[1.0])
        return
    if isinstance(lhs, Block) and isinstance(rhs, Block):
        for tile, other, reverse in ((lhs, rhs, []), (rhs, lhs, ["reverse0"])):
            scalar = _one_a_partition(e, other, out)
            if scalar is not None:
                _with_partition_scalar(e, alu, out, tile, scalar, reverse)
                return
        for tile, other, reverse in ((lhs, rhs, []), (rhs, lhs, ["reverse0"])):
            if parts := _alike(e, out, tile, other):
                for here, part, scalar in parts:
                    _with_partition_scalar(e, alu, here, part, partition_block(scalar), reverse)
                return
        e.over("tensor_tensor", Stream.VECTOR, [out], [lhs, rhs], alu=[alu])
        return
    block, splat = (lhs, rhs) if isinstance(lhs, Block) else (rhs, lhs)
    assert isinstance(block, Block)
    assert isinstance(splat, Splat)
    flags = [] if block is lhs else ["reverse0"]
    if e.scalar_is_free() and (alu == "multiply" or _rectifies(alu, splat)):
        function, factor = ("copy", splat.value) if alu == "multiply" else ("relu", 1.0)
        e.over("activation", Stream.SCALAR, [out], [block], alu=[function], imm=[factor])
        return
    e.over("tensor_scalar", Stream.VECTOR, [out], [block], alu=[alu], imm=[splat.value], flags=flags)


def is_rectifier(limit: float) -> bool:
    """Whether ``max(x, limit)`` is what Scalar's rectifier makes, down to the sign of zero."""
    return limit == 0 and copysign(1, limit) > 0


def _rectifies(alu: str, other: Operand) -> bool:
    return alu == "max" and isinstance(other, Splat) and is_rectifier(other.value)


def _one_a_partition(e: Emitter, block: Block, out: Block) -> Block | None:
    """``block`` as FP32 scalars of the partitions, cast where that takes less time than reading a narrow tile."""
    if any(atom.stride and atom.size > 1 for atom in block.dims[1:]):
        return None
    narrow, timing, size = partition_block(block), e.builder.timing, prod(atom.size for atom in out.dims[1:])
    if block.dtype == "f32":
        return narrow
    if block.dtype not in ("bf16", "f16"):
        return None
    tiles = (Tile(out.dtype),), (Tile(block.dtype), Tile("f32"))  # whose steps are none of a narrow tile's
    whole = timing.engine("tensor_tensor", Stream.VECTOR, size, *tiles, ("add",))
    scalar = timing.engine("tensor_scalar", Stream.VECTOR, size, tiles[0], tiles[1][:1], ("add",))
    cast = timing.engine("tensor_copy", Stream.VECTOR, 1, (Tile(),), tiles[1][:1])
    if (scalar + cast).bound + timing.latency(Stream.VECTOR) >= whole.bound:
        return None
    widened, is_there = e.derived("widened", narrow)
    if not is_there:
        e.copy(widened, narrow)
    return widened


def _alike(e: Emitter, out: Block, tile: Block, other: Block) -> list[tuple[Block, ...]]:
    """Parts of all three, of which that of ``other`` has one value a partition: if an instruction for each of them,
    which are few, takes less time than one for all; else empty.
    """
    depth = max(other.varying, default=0)
    sizes = [atom.size for atom in out.dims[1 : depth + 1]]
    if other.dtype != "f32" or not depth or prod(sizes) > MOST_ALIKE or reads_at_once([tile, other]):
        return []
    timing, size = e.builder.timing, prod(atom.size for atom in out.dims[depth + 1 :])
    made, read = (Tile(out.dtype),), (Tile(tile.dtype), Tile(other.dtype))
    whole = timing.engine("tensor_tensor", Stream.VECTOR, prod(sizes) * size, made, read, ("add",))
    each = timing.engine("tensor_scalar", Stream.VECTOR, size, made, read[:1], ("add",))
    if each.times(prod(sizes)).bound >= whole.bound:
        return []
    return list(zip(*(block.at_each(1, depth) for block in (out, tile, other)), strict=True))


def _after_deferred(e: Emitter, alu: str, out: Block, lhs: Readable, rhs: Readable) -> None:
    """``(block op0 constant) alu other`` in one Vector instruction."""
    first = isinstance(lhs, Deferred)
    deferred, other = (lhs, rhs) if first else (rhs, lhs)
    assert isinstance(deferred, Deferred)
    assert not isinstance(other, Deferred), "one operand is deferred at most"
    if deferred.alu in COMPARE.values() and deferred.partition is not None:
        scalar = _one_a_partition(e, deferred.partition, out)
        if scalar is None:
            between = e.scratch(out, "f32")
            _compared(e, between, deferred)
            arithmetic(e, alu, out, *((between, other) if first else (other, between)))
            return
        deferred = replace(deferred, partition=scalar)
    alus = [deferred.alu, alu]
    flags = (["reverse0"] if deferred.reverse else []) + ([] if first else ["reverse1"])
    linear = deferred.alu == "multiply" or (deferred.alu == "add" and deferred.partition is not None)
    if _rectifies(alu, other) and (deferred.bias is not None or (linear and e.scalar_is_free())):
        _activation(e, "relu", out, deferred)
        return
    assert deferred.bias is None, "what else reads a summand is no activation"
    if alus == ["multiply", "add"] and isinstance(other, Block) and partition_scalar(other) and e.scalar_is_free():
        _activation(e, "copy", out, replace(deferred, bias=other))
    elif deferred.partition is not None:
        _after_partition(e, alus, out, deferred.block, partition_block(deferred.partition), other, flags)
    elif isinstance(other, Splat):
        imm = [deferred.constant, other.value]
        e.over("tensor_scalar", Stream.VECTOR, [out], [deferred.block], alu=alus, imm=imm, flags=flags)
    else:
        blocks = [deferred.block, other]
        e.over("scalar_tensor_tensor", Stream.VECTOR, [out], blocks, alu=alus, imm=[deferred.constant], flags=flags)


def _compared(e: Emitter, out: Block, deferred: Deferred) -> None:
    """Ones and zeros, as floats."""
    other = Splat(deferred.constant, "f32") if deferred.partition is None else deferred.partition
    arithmetic(e, deferred.alu, out, deferred.block, other)


def _after_partition(
    e: Emitter, alus: list[str], out: Block, block: Block, partition: Block, other: Operand, flags: list[str]
) -> None:
    """``(block op0 partition) op1 other`` in one Vector instruction; in two where both tiles lie in PSUM."""
    tiles = [block] if isinstance(other, Splat) or partition_scalar(other) else [block, other]
    if len(tiles) > 1 and all(each.alloc.space is Space.PSUM for each in tiles):
        between = e.scratch(out, "f32")
        _with_partition_scalar(e, alus[0], between, block, partition, [flag for flag in flags if flag == "reverse0"])
        operands = (other, between) if "reverse1" in flags else (between, other)
        arithmetic(e, alus[1], out, *operands)
        return
    flags = ["ap0", *flags]
    if isinstance(other, Splat):
        e.over("tensor_scalar", Stream.VECTOR, [out], [block, partition], alu=alus, imm=[other.value], flags=flags)
    elif partition_scalar(other):
        ins = [block, partition, partition_block(other)]
        e.over("tensor_scalar", Stream.VECTOR, [out], ins, alu=alus, flags=[*flags, "ap1"])
    else:
        e.over("scalar_tensor_tensor", Stream.VECTOR, [out], [block, other, partition], alu=alus, flags=flags)


def _read_deferred(e: Emitter, opcode: str, out: Block, readable: Sequence[Readable]) -> None:
    """An op with a deferred operand: arithmetic, scaled activations, the pair of a rotation, or a whole function."""
    first = readable[0]
    if isinstance(first, Deferred) and first.function:
        _activation(e, first.function, out, first)
        return
    if isinstance(first, Deferred) and first.alu == ROTATE:
        e.over("int_tensor_tensor", Stream.GPSIMD, [out], [first.block], alu=[ROTATE], imm=[first.constant])
        return
    if opcode in ARITHMETIC and isinstance(first, Deferred) and first == readable[-1]:
        _squared(e, out, first)
        return
    if opcode in ARITHMETIC:
        arithmetic(e, ARITHMETIC[opcode], out, first, readable[1])
        return
    assert isinstance(first, Deferred)
    if first.alu in COMPARE.values():
        _compared(e, out, first)
        return
    _activation(e, ACTIVATION[opcode], out, first)


def _activation(e: Emitter, function: str, out: Block, of: Deferred) -> None:
    """``function`` of a product, a sum with one value a partition, or both, in one Scalar instruction."""
    if of.scale is not None:
        _scaled(e, function, out, of.block, of.scale)
        return
    scale, bias = (of.partition, of.bias) if of.alu == "multiply" else (None, of.partition)
    if of.alu == "subtract" and bias is not None and not of.reverse:
        bias = _negative(e, partition_block(bias))
    ins = [of.block, *(partition_block(each) for each in (scale, bias) if each is not None)]
    flags = ["scale_ap"] * (scale is not None) + ["bias"] * (bias is not None)
    factor = of.constant if of.alu == "multiply" and scale is None else 1.0
    factor = -1.0 if of.alu == "subtract" and of.reverse else factor
    e.over("activation", Stream.SCALAR, [out], ins, alu=[function], imm=[factor], flags=flags)


def _squared(e: Emitter, out: Block, of: Deferred) -> None:
    """The square of a sum with, or difference from, one value a partition, on Scalar: of whichever sign."""
    assert of.partition is not None, "other operands are deferred once"
    bias = partition_block(of.partition)
    if of.alu == "subtract":
        bias = _negative(e, bias)
    e.over("activation", Stream.SCALAR, [out], [of.block, bias], alu=["square"], imm=[1.0], flags=["bias"])


def _negative(e: Emitter, value: Block) -> Block:
    """``-value``, of one number a partition."""
    negative, is_there = e.derived("negative", value)
    if not is_there:
        e.over("tensor_scalar", Stream.VECTOR, [negative], [value], alu=["multiply"], imm=[-1.0])
    return negative


def _scaled(e: Emitter, alu: str, out: Block, block: Block, scale: Block) -> None:
    """``alu(block * scale)`` on Scalar: an instruction for each element of ``scale`` on a partition."""
    for dim in range(1, len(scale.dims)):
        if scale.dims[dim].stride and scale.dims[dim].size > 1:
            with e.builder.loop(scale.dims[dim].size) as index:
                _scaled(e, alu, *(operand.index(dim, index) for operand in (out, block, scale)))
            return
    ins = [block, partition_block(scale)]
    e.over("activation", Stream.SCALAR, [out], ins, alu=[alu], imm=[1.0], flags=["scale_ap"])


def defer(op: hlo.HloOp, ins: Sequence[Readable], scale: int = -1, partition: int = -1) -> Deferred | None:
    """``op`` as a deferred operand; None unless of a block with a constant, or operand ``scale`` or ``partition``."""
    lhs, rhs = ins
    if partition >= 0:
        block, value = ins[1 - partition], ins[partition]
        assert isinstance(value, Block)
        if isinstance(block, Deferred):
            return replace(block, bias=value)
        assert isinstance(block, Block)
        return Deferred(block, ARITHMETIC[op.opcode], 0.0, partition == 0, partition=value)
    if scale >= 0:
        block, factor = ins[1 - scale], ins[scale]
        return Deferred(block, "multiply", 1.0, False, factor) if isinstance(block, Block) else None  # type: ignore[arg-type]
    if op.opcode in SHIFTS and isinstance(lhs, Block) and isinstance(rhs, Splat):
        return Deferred(lhs, ROTATE, rhs.value if op.opcode == "shift-left" else 32 - rhs.value, False)
    if isinstance(lhs, Block) and isinstance(rhs, Splat):
        return Deferred(lhs, ARITHMETIC[op.opcode], rhs.value, False)
    if isinstance(lhs, Splat) and isinstance(rhs, Block):
        return Deferred(rhs, ARITHMETIC[op.opcode], lhs.value, True)
    return None


def defer_comparison(op: hlo.CompareOp, ins: Sequence[Readable]) -> Deferred:
    """A comparison of floats, whose result another instruction reads as numbers."""
    lhs, rhs = ins
    direction = op.direction.data
    if isinstance(lhs, Splat):
        lhs, rhs, direction = rhs, lhs, MIRROR[direction]
    assert isinstance(lhs, Block), "one operand is an array"
    if isinstance(rhs, Splat):
        return Deferred(lhs, COMPARE[direction], rhs.value, False)
    assert isinstance(rhs, Block), "comparisons read no deferred operands"
    return Deferred(lhs, COMPARE[direction], 0.0, False, partition=rhs)


def _with_partition_scalar(e: Emitter, alu: str, out: Block, block: Block, scalar: Block, reverse: list[str]) -> None:
    """``block alu scalar``; sums, differences and products on Scalar if that has less to do."""
    if alu in ("add", "subtract", "multiply") and e.scalar_is_free():
        flag, sign = "scale_ap" if alu == "multiply" else "bias", 1.0
        if alu == "subtract" and reverse:
            sign = -1.0
        elif alu == "subtract":
            scalar = _negative(e, scalar)
        e.over("activation", Stream.SCALAR, [out], [block, scalar], alu=["copy"], imm=[sign], flags=[flag])
    else:
        e.over("tensor_scalar", Stream.VECTOR, [out], [block, scalar], alu=[alu], flags=["ap0", *reverse])


def _power_of_two(value: float) -> bool:
    return isfinite(value) and value != 0 and abs(frexp(value)[0]) == 0.5 and 2.0**-126 <= abs(1 / value) < 2.0**127


def _is_invertible(value: float) -> bool:
    return value != 0 and is_normal(value, "f32") and is_normal(1 / value, "f32")


def divide(e: Emitter, op: hlo.HloOp, out: Block, lhs: Operand, rhs: Operand) -> None:
    """Float division; by one value a row as a multiplication with its reciprocal, unless a rounding op looks.

    By a constant, too, where that is exact, or where FP32, in which engines compute, has more bits than the result.
    """
    if isinstance(rhs, Splat) and (_power_of_two(rhs.value) or (itemsize(out.dtype) < 4 and _is_invertible(rhs.value))):
        arithmetic(e, "multiply", out, lhs, Splat(1 / rhs.value, rhs.dtype))
    elif isinstance(rhs, Block) and _repeats(rhs) and isinstance(lhs, Block) and not tells_last_bit(op.result):
        kept = [dim for dim, atom in enumerate(rhs.dims) if dim == 0 or atom.stride]
        divisors = rhs.select(kept)
        sizes = [atom.size for atom in divisors.dims[1:]]
        inverse, is_there = (e.inverses(sizes), False) if e.inverses is not None else e.derived("inverse", divisors)
        if not is_there:
            e.over("reciprocal", Stream.VECTOR, [inverse], [divisors])
        strides = dict(zip(kept, inverse.dims, strict=True))
        spread = tuple(strides.get(dim, atom) for dim, atom in enumerate(rhs.dims))
        arithmetic(e, "multiply", out, lhs, replace(inverse, dims=spread))
    else:
        arithmetic(e, "divide", out, lhs, rhs)


def _repeats(block: Block) -> bool:
    """Whether each value serves several elements, so that inverting it once is cheaper."""
    return prod(atom.size for atom in block.dims[1:] if not atom.stride) >= 4


def select(e: Emitter, out: Block, predicate: Operand, on_true: Operand, on_false: Operand) -> None:
    """Copies one operand, from where Vector need not, and the other where the predicate says so: a constant, which
    Vector reads nowhere, rather than an array.
    """
    if isinstance(predicate, Splat):
        e.copy(out, on_true if predicate.value else on_false)
        return
    if isinstance(on_false, Splat) and not isinstance(on_true, Splat):
        if out != on_true:  # whose place it takes
            e.copy(out, on_true)
        e.over("copy_predicated", Stream.VECTOR, [out], [predicate], imm=[on_false.value], flags=["reverse"])
        return
    e.copy(out, on_false)
    if isinstance(on_true, Splat):
        e.over("copy_predicated", Stream.VECTOR, [out], [predicate], imm=[on_true.value])
    else:
        e.over("copy_predicated", Stream.VECTOR, [out], [predicate, on_true])


def compare(e: Emitter, op: hlo.HloOp, out: Block, lhs: Operand, rhs: Operand) -> None:
    direction = op.direction.data  # type: ignore[attr-defined]
    dtype = lhs.dtype
    if op.comparison_type.data == "TOTALORDER" and dtype in FLOATS:  # type: ignore[attr-defined]
        gpsimd(e, "program_binary", f"compare-totalorder-{direction.lower()}", out, lhs, rhs)
        return
    exact = itemsize(dtype) <= 2 and (isinstance(lhs, Splat) or isinstance(rhs, Splat))  # in FP32, as one stream
    if dtype in INTEGERS and not exact:
        gpsimd(e, "int_tensor_tensor", f"compare-{direction.lower()}", out, lhs, rhs)
        return
    if isinstance(lhs, Splat) and isinstance(rhs, Block):
        lhs, rhs, direction = rhs, lhs, MIRROR[direction]
    arithmetic(e, COMPARE[direction], out, lhs, rhs)


def _widens(source: str, target: str) -> bool:
    """Whether FP32, through which Vector casts, and ``target`` hold every integer of type ``source``."""
    if source not in INTEGERS or target not in INTEGERS or itemsize(source) > 2 or itemsize(target) <= itemsize(source):
        return False
    return source in UNSIGNED or target in SIGNED


def convert(e: Emitter, out: Block, source: Operand) -> None:
    if isinstance(source, Block) and "f64" in (source.dtype, out.dtype):
        e.over("convert", Stream.GPSIMD, [out], [source])
    elif isinstance(source, Splat) or source.dtype == out.dtype or out.dtype in FLOATS:
        e.copy(out, source)
    elif source.dtype == "pred" or _widens(source.dtype, out.dtype):
        e.over("tensor_copy", Stream.VECTOR, [out], [source])
    elif out.dtype == "pred" and source.dtype in FLOATS:
        e.over("tensor_scalar", Stream.VECTOR, [out], [source], alu=["not_equal"], imm=[0.0])
    else:
        e.over("convert", Stream.GPSIMD, [out], [source])


def whole(e: Emitter, out: Block, source: Operand) -> None:
    """Integers of floats that are whole, or are to be rounded to the nearest: as Vector and Scalar write them, within
    the range of the type, and 0 for NaN (hardware sheet 5.2).
    """
    if isinstance(source, Splat) or not e.scalar_is_free():
        e.over("tensor_copy", Stream.VECTOR, [out], [block_of(e, out, source)])
    else:
        e.over("activation", Stream.SCALAR, [out], [source], alu=["copy"], imm=[1.0])


def part(block: Block, opcode: str, dtype: str) -> Block:
    """The ``real`` or ``imag`` parts of a complex block, the low or high words of 64-bit integers: side by side."""
    return replace(block, dtype=dtype, offset=block.offset + (itemsize(dtype) if opcode == "imag" else 0))


def emit(e: Emitter, op: hlo.HloOp, out: Block, readable: Sequence[Readable]) -> None:
    """Emit ``op`` from ``ins`` (blocks of out's sizes, or splats) into ``out``. Raises EVRF001 without a rule."""
    opcode = op.opcode
    dtype = hlo.shape_of(op.sources[0]).dtype
    is_float = dtype in FLOATS
    ins = [operand for operand in readable if not isinstance(operand, Deferred)]
    if len(ins) < len(readable):
        _read_deferred(e, opcode, out, readable)
        return
    if opcode == "select":
        select(e, out, ins[0], ins[1], ins[2])
    elif opcode in ("real", "imag"):
        convert(e, out, part(block_of(e, out, ins[0]), opcode, out.dtype))
    elif opcode == "complex":
        convert(e, part(out, "real", dtype), ins[0])
        convert(e, part(out, "imag", dtype), ins[1])
    elif opcode == "convert" and out.dtype in WORDS and isinstance(op.sources[0].owner, hlo.RoundingOp):
        whole(e, out, ins[0])
    elif opcode == "convert":
        convert(e, out, ins[0])
    elif opcode == "bitcast-convert":  # in computations of scalars; elsewhere it is a view
        convert(e, replace(out, dtype=dtype), ins[0])
    elif opcode == "compare":
        compare(e, op, out, ins[0], ins[1])
    elif opcode == "clamp":
        tile = e.scratch(out, out.dtype)
        emit_binary(e, "maximum", dtype, tile, ins[1], ins[0])
        emit_binary(e, "minimum", dtype, out, tile, ins[2])
    elif opcode == "divide" and is_float:
        divide(e, op, out, ins[0], ins[1])
    elif opcode in ACTIVATION and is_float:
        e.over("activation", Stream.SCALAR, [out], [block_of(e, out, ins[0])], alu=[ACTIVATION[opcode]], imm=[1.0])
    elif opcode == "negate":
        if is_float:
            arithmetic(e, "multiply", out, ins[0], Splat(-1.0, dtype))
        else:
            gpsimd(e, "int_tensor_tensor", "subtract", out, Splat(0, dtype), block_of(e, out, ins[0]))
    elif opcode == "not":
        source = block_of(e, out, ins[0])
        if dtype == "pred":
            e.over("tensor_scalar", Stream.VECTOR, [out], [source], alu=["is_equal"], imm=[0.0])
        else:
            e.over("tensor_scalar", Stream.VECTOR, [out], [source], alu=["bitwise_not"], imm=[0.0])
    elif isinstance(op, hlo.ElementwiseUnaryOp):
        widths = [op.exponent_bits.data, op.mantissa_bits.data] if isinstance(op, hlo.ReducePrecisionOp) else []
        gpsimd(e, "program_unary", opcode, out, ins[0], imm=widths)
    elif len(ins) == 2:
        emit_binary(e, opcode, dtype, out, ins[0], ins[1])
    else:
        raise CompileError("EVRF001", f"no instruction for {opcode} on {dtype}", "run list-operators", op.loc)


def emit_binary(e: Emitter, opcode: str, dtype: str, out: Block, lhs: Operand, rhs: Operand) -> None:
    """Binary arithmetic and logic by type class."""
    if dtype == "pred":
        bitwise(e, logical_alu(opcode), out, lhs, rhs)
    elif opcode in BITWISE:
        bitwise(e, BITWISE[opcode], out, lhs, rhs)
    elif opcode in SHIFTS:
        shift(e, opcode, out, lhs, rhs)
    elif dtype in INTEGERS:
        gpsimd(e, "int_tensor_tensor", opcode, out, lhs, rhs)
    elif opcode in ARITHMETIC:
        arithmetic(e, ARITHMETIC[opcode], out, lhs, rhs)
    else:
        gpsimd(e, "program_binary", opcode, out, lhs, rhs)
