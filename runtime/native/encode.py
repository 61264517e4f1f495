"""Writes instructions as the words that the native core decodes (``decode.cpp``).

Input: an instruction and what binds its operands (bases, places of registers). Output: a list of integers. An
instruction that the core cannot carry out becomes a FALLBACK item, for which the core calls Python.
"""

import struct
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from neuronx_cc.ir.combiners import OF_PREDICATES
from neuronx_cc.ir.isa import functions, integers
from neuronx_cc.ir.isa.elements import STORAGE, constant, raw
from neuronx_cc.ir.isa.names import engine_name
from neuronx_cc.ir.isa.pooling import windows_of
from neuronx_cc.ir.isa.program import Instr, Ref, Space
from neuronx_cc.ir.isa.semantics import BITVEC, UNARY_ALU
from neuronx_cc.ir.types import FLOATS, WIDE_FLOATS

(LOOP, END, FALLBACK, MAP, ACCUMULATE, COPY, SELECT, BITS, INTEGER, REDUCE, LOAD, MULTIPLY, GATHER, REG_LOAD, SCAN) = (
    range(15)
)
GROUP_GATHER, GROUP_SCATTER, WHILE, BRANCH, ELSE, SCATTER, SELECT_SCATTER = range(15, 22)
"""Kinds of items, numbered as in core.h; so are the types and steps below."""

TYPES = {"f32": 0, "bf16": 1, "f16": 2, "u8": 3, "s8": 4, "u16": 5, "s16": 6, "u32": 7, "s32": 8, "pred": 9}
RAW8, SMALL_FLOAT = 10, 11
SMALL_FLOATS = sorted(dtype for dtype in FLOATS if STORAGE[dtype].itemsize == 1)
TYPES |= {dtype: SMALL_FLOAT + k for k, dtype in enumerate(SMALL_FLOATS)}
WHOLE = frozenset(TYPES) - FLOATS
"""Integers and truth values."""
BY_SIZE = {1: TYPES["u8"], 2: TYPES["u16"], 4: TYPES["u32"], 8: RAW8}
"""Types for operands of which only the bits matter."""

_STEP_TEXT = (
    "add subtract divide multiply max min is_equal not_equal is_ge is_gt is_le is_lt bitwise_and bitwise_or "
    "bitwise_xor logical_shift_left logical_shift_right shift-right-arithmetic remainder mulhi power rotate-left "
    "atan2 reduce-precision totalorder-lt totalorder-le totalorder-eq totalorder-ne "
    "abs bitwise_not "
    "square relu sqrt rsqrt reciprocal sign exp tanh sigmoid erf gelu gelu_apprx_tanh silu negate "
    "round-nearest-even softplus log sine cosine truncate floor ceil round-nearest-afz is-finite "
    "exponential-minus-one log-plus-one tan sinh cosh asin acos atan asinh acosh atanh cbrt popcnt count-leading-zeros"
)
_STEP_NAMES = _STEP_TEXT.split()
STEP = {name: number for number, name in enumerate(_STEP_NAMES)}
_WHOLE_TEXT = (
    "bitwise_and bitwise_or bitwise_xor bitwise_not logical_shift_left logical_shift_right shift-right-arithmetic "
    "rotate-left mulhi popcnt count-leading-zeros"
)
NO_FLOAT_STEPS = {STEP[name] for name in _WHOLE_TEXT.split()}
_FLOAT_STEPS = STEP.keys() - {_STEP_NAMES[number] for number in NO_FLOAT_STEPS}
_INTEGER_NAMES = {
    name: engine_name(name) for name in (*integers.BINARY, *integers.COMPARE) if engine_name(name) in STEP
}
_UNARY_NAMES = {name: engine_name(name) for name in functions.UNARY if engine_name(name) in _FLOAT_STEPS}
_BINARY_NAMES = {name: engine_name(name) for name in functions.BINARY if engine_name(name) in _FLOAT_STEPS}
_ACTIVATIONS = {name: name for name in STEP.keys() & functions.ACTIVATION.keys()} | {"arctan": "atan"}

_ORDERED = frozenset(["f32", "bf16"])
"""Types whose bits, also those of NaNs, are the upper ones of FP32."""

Operation = tuple[int, int, int, int]
"""Step, operand or -1, whether the sides are swapped, the constant's bits."""
MAX_OPERANDS = 6
MAX_DIMS = 5
MAX_COEFS = 6
MAX_ROW = 65536
"""Elements of a partition that a sum can take (``Workspace.row``)."""


SCANNED = frozenset(["add", "multiply", "max", "min"])
"""Operators of scans."""


class Form(NamedTuple):
    """An instruction as the core sees it, but for its operands' addresses."""

    kind: int
    params: tuple[int, ...] = ()
    operations: tuple[Operation, ...] = ()
    order: tuple[int, ...] | None = None
    """Which of (results..., sources...) are the item's operands; None for all, in that order; -1: ``params[1]``."""
    partitions: frozenset[int] = frozenset()
    """Operands with one element a partition, which count as tiles of the first one's counts."""
    opaque: bool = False
    """Only the operands' bits matter."""
    flipped: bool = False
    """The source's two dims change places; in a reduction the result's, too."""


_FLAGS: dict[str, frozenset[str]] = {
    "tensor_scalar": frozenset(["ap0", "ap1", "reverse0", "reverse1"]),
    "scalar_tensor_tensor": frozenset(["ap0", "reverse0", "reverse1"]),
    "tensor_reduce": frozenset(["negate"]),
    "tensor_tensor_scan": frozenset(["ap0"]),
    "group_gather": frozenset(["keep"]),
    "copy_predicated": frozenset(["reverse"]),
    "activation": frozenset(["scale_ap", "bias", "accumulate"]),
    "int_tensor_tensor": frozenset(["reverse"]),
    "program_binary": frozenset(["reverse"]),
    "load_stationary": frozenset(["tf32"]),
    "multiply_moving": frozenset(["accumulate", "tf32"]),
    "select_scatter": frozenset(["lowest"]),
    "dma_gather": frozenset(["clamp"]),
    "dma_scatter": frozenset(["skip", "add"]),
}
"""The flags that the core knows. An instruction with any other one is not for it."""


def left_to_python(instr: Instr) -> Form:
    """Of this the core need only know what it touches; without operands, that is everything, registers too."""
    refs = (*instr.outs, *instr.ins)
    known = (
        instr.op != "reg_load"
        and len(refs) <= MAX_OPERANDS
        and all(
            len(ref.dims) <= MAX_DIMS and len(ref.coefs) <= MAX_COEFS and STORAGE[ref.dtype].itemsize in BY_SIZE
            for ref in refs
        )
    )
    return Form(FALLBACK, opaque=True, order=None if known else ())


def form(instr: Instr, constant_tile: bool) -> Form | None:
    """How the core carries the instruction out, or None. ``constant_tile``: the moving tile never changes."""
    build = _FORMS.get(instr.op)
    refs = (*instr.outs, *instr.ins)
    results = (
        0 if instr.op == "load_stationary" else 2 if instr.op == "activation" and "accumulate" in instr.flags else 1
    )
    if build is None or not instr.flags <= _FLAGS.get(instr.op, frozenset()) or len(instr.outs) != results:
        return None
    if any(len(ref.dims) > MAX_DIMS or len(ref.coefs) > MAX_COEFS for ref in refs):
        return None
    if any(stride == 0 and count > 1 for ref in instr.outs for count, stride in _free(ref)):
        return None
    if instr.op == "multiply_moving":
        return _multiply(instr, constant_tile)
    try:
        found = build(instr)
    except (KeyError, IndexError, ValueError, TypeError):  # unknown to the core, or wrong: Python says what
        return None
    if found is None or found.opaque:
        return found
    if found.kind in (MAP, ACCUMULATE) and any(operation[0] in NO_FLOAT_STEPS for operation in found.operations):
        return None
    order = range(len(refs)) if found.order is None else found.order
    return found if all(place < 0 or refs[place].dtype in TYPES for place in order) else None


def _free(ref: Ref) -> tuple[tuple[int, int], ...]:
    return ref.dims[1:] if ref.space is not Space.HBM else ref.dims


def _bits(value: float) -> int:
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def _same_counts(*refs: Ref) -> bool:
    return all(ref.counts == refs[0].counts for ref in refs)


def _cast(instr: Instr, spread: bool = False) -> Form | None:
    """Copies and casts: bits when the storage is the same, else through f32. ``spread``: from one partition to all."""
    y, x = instr.outs[0], instr.ins[0]
    if (x.counts[0] != 1 or y.counts[1:] != x.counts[1:]) if spread else not _same_counts(y, x):
        return None
    if STORAGE[y.dtype] == STORAGE[x.dtype]:
        return Form(COPY, opaque=True) if STORAGE[y.dtype].itemsize in BY_SIZE else None
    return Form(MAP)


def _fill(instr: Instr) -> Form | None:
    y = instr.outs[0]
    bits = int(raw(constant(instr.imm[0], y.dtype)))
    return Form(COPY, (0, bits - (1 << 64) if bits >> 63 else bits), order=(0, -1), opaque=True)


def _alu(instr: Instr, k: int, operand: int, value: float) -> Operation:
    return STEP[instr.alu[k]], operand, int(f"reverse{k}" in instr.flags), _bits(value) if operand < 0 else 0


def _tensor_tensor(instr: Instr) -> Form | None:
    y, a, b = *instr.outs, *instr.ins
    if not _same_counts(y, a, b):
        return None
    if instr.alu[0] in BITVEC:
        same = len({STORAGE[ref.dtype].itemsize for ref in (y, a, b)}) == 1
        return Form(BITS, (), ((STEP[instr.alu[0]], 2, 0, 0),)) if same else None
    return Form(MAP, (), ((STEP[instr.alu[0]], 2, 0, 0),))


def _immediate(instr: Instr, k: int) -> float:
    if len(instr.imm) >= len(instr.alu):
        return instr.imm[k]
    return instr.imm[k - sum(f"ap{j}" in instr.flags for j in range(k))] if instr.imm else 0.0


def _tensor_scalar(instr: Instr) -> Form | None:
    y, x = instr.outs[0], instr.ins[0]
    if not _same_counts(y, x):
        return None
    bitwise = [op in BITVEC or op == "bitwise_not" for op in instr.alu]
    if any(bitwise) != all(bitwise) or (all(bitwise) and STORAGE[y.dtype].itemsize != STORAGE[x.dtype].itemsize):
        return None
    operations, partition = [], 2
    for k, op in enumerate(instr.alu):
        if f"ap{k}" in instr.flags:
            operations.append(_alu(instr, k, partition, 0))
            partition += 1
        elif all(bitwise):
            value = 0 if op in UNARY_ALU else int(_immediate(instr, k)) & 0xFFFFFFFF
            operations.append((STEP[op], -1, int(f"reverse{k}" in instr.flags), value))
        else:
            operations.append(_alu(instr, k, -1, 0.0 if op in UNARY_ALU else _immediate(instr, k)))
    return Form(BITS if all(bitwise) else MAP, (), tuple(operations), partitions=frozenset(range(2, partition)))


def _scalar_tensor_tensor(instr: Instr) -> Form | None:
    y, x, other = instr.outs[0], *instr.ins[:2]
    if not _same_counts(y, x, other):
        return None
    ap = "ap0" in instr.flags
    first = _alu(instr, 0, 3 if ap else -1, 0.0 if ap else instr.imm[0])
    return Form(MAP, (), (first, _alu(instr, 1, 2, 0)), partitions=frozenset([3] if ap else []))


def _reduce(instr: Instr) -> Form | None:
    y, x = instr.outs[0], instr.ins[0]
    if instr.alu[0] not in ("add", "max", "min"):
        return None
    outer = len(y.dims) if y.counts == x.counts[: len(y.dims)] else 1
    if outer == 1 and (prod(y.counts[1:]) != 1 or y.counts[0] != x.counts[0]):
        return None
    if outer == len(x.dims) or not 0 < prod(x.counts[outer:]) <= MAX_ROW:
        return None
    return Form(REDUCE, (int("negate" in instr.flags), outer), ((STEP[instr.alu[0]], 1, 0, 0),))


def _partition_reduce(instr: Instr) -> Form | None:
    """Extremes, of which the order does not matter."""
    y, x = instr.outs[0], instr.ins[0]
    fits = len(y.dims) == len(x.dims) == 2 and {y.dtype, x.dtype} <= FLOATS and instr.alu[0] in ("max", "min")
    return Form(REDUCE, (0, 1), ((STEP[instr.alu[0]], 1, 0, 0),), flipped=True) if fits else None


def _scan(instr: Instr) -> Form | None:
    y, a, b = instr.outs[0], *instr.ins[:2]
    refs = (*instr.outs, *instr.ins)
    plain = len(y.dims) > 1 and _same_counts(y, a, b) and all(ref.dtype == "f32" for ref in refs)
    if not plain or any(op not in SCANNED for op in instr.alu):
        return None
    first, second = (STEP[op] for op in instr.alu)
    operations = ((first, 1, 0, 0), (second, 2, 0, 0))
    if "ap0" not in instr.flags:
        return Form(SCAN, (0, _bits(instr.imm[0])), operations, order=(0, 1, 2, -1))
    return Form(SCAN, (), operations, partitions=frozenset([3]))


def _select(instr: Instr) -> Form | None:
    y, predicate = instr.outs[0], instr.ins[0]
    width = STORAGE[y.dtype].itemsize
    if width > 4 or predicate.dtype not in TYPES:
        return None
    if predicate.dtype in FLOATS and predicate.dtype not in WIDE_FLOATS:
        return None
    reverse, floats = int("reverse" in instr.flags), int(predicate.dtype in FLOATS)  # of which there are two zeros
    if len(instr.ins) == 1:
        bits = int(raw(constant(instr.imm[0], y.dtype)))
        same = _same_counts(y, predicate)
        return Form(SELECT, (reverse, bits, floats), order=(0, 1, -1), opaque=True) if same else None
    same = STORAGE[instr.ins[1].dtype] == STORAGE[y.dtype] and _same_counts(y, predicate, instr.ins[1])
    return Form(SELECT, (reverse, floats), opaque=True) if same else None


def _transpose(instr: Instr) -> Form | None:
    y, x = instr.outs[0], instr.ins[0]
    fits = len(y.dims) == len(x.dims) == 2 and y.counts == x.counts[::-1]
    same = STORAGE[y.dtype].itemsize == STORAGE[x.dtype].itemsize
    return Form(COPY, (), opaque=True, flipped=True) if fits and same else None


def _reciprocal(instr: Instr) -> Form | None:
    return Form(MAP, (), ((STEP["reciprocal"], -1, 0, 0),)) if _same_counts(instr.outs[0], instr.ins[0]) else None


def _activation(instr: Instr) -> Form | None:
    function, accumulate = instr.alu[0], "accumulate" in instr.flags
    y, x = instr.outs[0], instr.ins[0]
    if not _same_counts(y, x) or (function != "copy" and function not in _ACTIVATIONS):
        return None
    operations: list[Operation] = []
    order = [0, 2] if accumulate else [0, 1]
    source = order[1]
    scale = instr.imm[0] if instr.imm else 1.0
    if "scale_ap" in instr.flags:
        source += 1
        operations.append((STEP["multiply"], len(order), 0, 0))
        order.append(source)
    elif scale != 1:
        operations.append((STEP["multiply"], -1, 0, _bits(scale)))
    if "bias" in instr.flags:
        source += 1
        operations.append((STEP["add"], len(order), 0, 0))
        order.append(source)
    if function != "copy":
        operations.append((STEP[_ACTIVATIONS[function]], -1, 0, 0))
    partitions = set(range(2, len(order)))
    if accumulate:
        if not 1 < prod(x.counts[1:]) <= MAX_ROW or STORAGE[instr.outs[1].dtype] != STORAGE["f32"]:
            return None
        partitions.add(len(order))
        order.append(1)
    kind = ACCUMULATE if accumulate else MAP
    return Form(kind, (), tuple(operations), tuple(order), frozenset(partitions))


def _integer(instr: Instr) -> Form | None:
    y, a = instr.outs[0], instr.ins[0]
    name = _INTEGER_NAMES.get(instr.alu[0])
    if name is None or not _same_counts(y, *instr.ins) or y.dtype in FLOATS:
        return None
    if any(ref.dtype not in TYPES for ref in (y, *instr.ins)):
        return None
    reverse = int("reverse" in instr.flags)
    if len(instr.ins) == 2:
        if name.startswith("bitwise_") and y.dtype == a.dtype == instr.ins[1].dtype:
            return Form(BITS, (), ((STEP[name], 2, 0, 0),))
        return Form(INTEGER, (0,), ((STEP[name], 2, reverse, 0),))
    return Form(INTEGER, (int(constant(instr.imm[0], a.dtype)),), ((STEP[name], -1, reverse, 0),))


_INTEGER_UNARY = {
    "not": ("bitwise_xor", -1), "negate": ("subtract", 0), "abs": ("abs", 0), "sign": ("sign", 0),
    "popcnt": ("popcnt", 0), "count-leading-zeros": ("count-leading-zeros", 0),
}  # fmt: skip
"""The step and its constant, from which is subtracted."""


def _program_unary(instr: Instr) -> Form | None:
    y, x = instr.outs[0], instr.ins[0]
    if not _same_counts(y, x):
        return None
    if x.dtype not in FLOATS and instr.alu[0] in _INTEGER_UNARY and y.dtype not in FLOATS:
        step, value = ("is_equal", 0) if (instr.alu[0], x.dtype) == ("not", "pred") else _INTEGER_UNARY[instr.alu[0]]
        return Form(INTEGER, (value,), ((STEP[step], -1, int(step == "subtract"), 0),))
    if x.dtype not in FLOATS:
        return None
    if instr.alu[0] == "reduce-precision":
        exponent, mantissa = map(int, instr.imm[:2])
        return Form(MAP, (), ((STEP["reduce-precision"], -1, 0, exponent << 16 | mantissa),))
    name = instr.alu[0] if instr.alu[0] == "is-finite" else _UNARY_NAMES.get(instr.alu[0])
    return None if name is None else Form(MAP, (), ((STEP[name], -1, 0, 0),))


def _program_binary(instr: Instr) -> Form | None:
    op, a, reverse = instr.alu[0], instr.ins[0], "reverse" in instr.flags
    name = _BINARY_NAMES.get(op)
    if op.startswith("compare-totalorder-") and {each.dtype for each in instr.ins} <= _ORDERED and len(instr.ins) == 2:
        name = op.removeprefix("compare-")
        swapped = {"totalorder-gt": "totalorder-lt", "totalorder-ge": "totalorder-le"}
        name, reverse = swapped.get(name, name), reverse ^ (name in swapped)
    if name is None or not _same_counts(instr.outs[0], *instr.ins):
        return None
    if len(instr.ins) == 2:
        return Form(MAP, (), ((STEP[name], 2, int(reverse), 0),))
    value = float(constant(instr.imm[0], a.dtype).astype("f4")) if a.dtype in FLOATS else None
    return None if value is None else Form(MAP, (), ((STEP[name], -1, int(reverse), _bits(value)),))


def _convert(instr: Instr) -> Form | None:
    """A cast; of floats to integers, towards zero; of integers to others, wrapped; to truth, whether it is not zero."""
    y, x = instr.outs[0], instr.ins[0]
    if STORAGE[y.dtype] == STORAGE[x.dtype] or y.dtype in FLOATS:
        return _cast(instr)
    if not _same_counts(y, x):
        return None
    if x.dtype in FLOATS:
        return Form(MAP, (), () if y.dtype == "pred" else ((STEP["truncate"], -1, 0, 0),))
    return Form(INTEGER, (0,), ((STEP["not_equal" if y.dtype == "pred" else "add"], -1, 0, 0),))


def _load(instr: Instr) -> Form | None:
    x = instr.ins[0]
    return Form(LOAD) if x.counts[0] <= 128 and prod(x.counts[1:]) <= 128 else None


def _multiply(instr: Instr, constant_tile: bool) -> Form | None:
    y, x = instr.outs[0], instr.ins[0]
    if prod(y.counts[1:]) != prod(x.counts[1:]) or prod(x.counts[1:]) > 512 or y.dtype != "f32" or x.dtype not in TYPES:
        return None
    return Form(MULTIPLY, (int("accumulate" in instr.flags), int("tf32" in instr.flags), int(constant_tile)))


def _gather(instr: Instr) -> Form | None:
    y, x, index = instr.outs[0], *instr.ins
    same = STORAGE[y.dtype] == STORAGE[x.dtype] and STORAGE[y.dtype].itemsize in BY_SIZE
    if not same or y.counts[1:] != x.counts[1:] or index.dtype not in ("s32", "u32") or index.counts[0] != y.counts[0]:
        return None
    return Form(GATHER, (int("clamp" in instr.flags),), opaque=True)


def _scatter(instr: Instr) -> Form | None:
    y, x, index = instr.outs[0], *instr.ins
    add = "add" in instr.flags
    same = y.dtype == x.dtype == "f32" if add else STORAGE[y.dtype] == STORAGE[x.dtype]
    if not same or STORAGE[y.dtype].itemsize not in BY_SIZE or y.counts[1:] != x.counts[1:]:
        return None
    if index.dtype not in ("s32", "u32") or index.counts[0] != x.counts[0]:
        return None
    step = STEP["add" if add else "bitwise_or"]
    return Form(SCATTER, (int("skip" in instr.flags),), ((step, 1, 0, 0),), opaque=not add)


def _is_table(ref: Ref) -> bool:
    """Whether rows of elements lie dense in each partition."""
    (_, _), (slots, row), (width, stride) = ref.dims
    size = STORAGE[ref.dtype].itemsize
    return (width == 1 or stride == size) and (slots == 1 or row == width * size)


def _group_gather(instr: Instr) -> Form | None:
    y, x, index = instr.outs[0], *instr.ins
    fits = _is_table(x) and y.counts == (*index.counts, x.counts[2]) and x.counts[0] == y.counts[0]
    same = STORAGE[y.dtype] == STORAGE[x.dtype] and STORAGE[y.dtype].itemsize in BY_SIZE
    known = fits and same and index.dtype in ("s32", "u32")
    return Form(GROUP_GATHER, (int("keep" in instr.flags),), opaque=True) if known else None


def _group_scatter(instr: Instr) -> Form | None:
    y, x, index = instr.outs[0], *instr.ins
    fits = _is_table(y) and x.counts == (*index.counts, y.counts[2]) and x.counts[0] == y.counts[0]
    if not fits or y.dtype != x.dtype or index.dtype not in ("s32", "u32"):
        return None
    if instr.alu[0] == "assign":
        return Form(GROUP_SCATTER, (1,), opaque=True) if STORAGE[y.dtype].itemsize in BY_SIZE else None
    step = engine_name(OF_PREDICATES.get(instr.alu[0], instr.alu[0]) if y.dtype == "pred" else instr.alu[0])
    if y.dtype in FLOATS and step.startswith("bitwise_"):
        return None
    return Form(GROUP_SCATTER, (0,), ((STEP[step], 1, 0, 0),))


def _select_scatter(instr: Instr) -> Form | None:
    y, x, source = instr.outs[0], *instr.ins[:2]
    lowest, floats = "lowest" in instr.flags, x.dtype in FLOATS
    if (source.dtype in FLOATS) != floats or (y.dtype in FLOATS) != floats or (lowest and not floats):
        return None
    start = _bits(instr.imm[0]) if floats else int(instr.imm[0])
    windows = [number for pair in zip(*windows_of(instr), strict=True) for number in pair]
    keep, combine = (STEP[name] for name in instr.alu)
    return Form(SELECT_SCATTER, (start, int(lowest), *windows), ((keep, 1, 0, 0), (combine, 1, 0, 0)))


_FORMS: dict[str, Callable[[Instr], Form | None]] = {
    "tensor_copy": _cast,
    "dma_copy": _cast,
    "memset": _fill,
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_reduce": _reduce,
    "partition_reduce": _partition_reduce,
    "tensor_tensor_scan": _scan,
    "copy_predicated": _select,
    "transpose": _transpose,
    "reciprocal": _reciprocal,
    "activation": _activation,
    "int_tensor_tensor": _integer,
    "program_unary": _program_unary,
    "program_binary": _program_binary,
    "convert": _convert,
    "partition_broadcast": lambda instr: _cast(instr, spread=True),
    "load_stationary": _load,
    "multiply_moving": lambda instr: None,
    "select_scatter": _select_scatter,
    "dma_gather": _gather,
    "dma_scatter": _scatter,
    "group_gather": _group_gather,
    "group_scatter": _group_scatter,
}
