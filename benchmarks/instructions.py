"""What an element takes in the native core, by instruction, element type and how operands lie.

    python benchmarks/instructions.py [--above 2] [--level avx2] [PATTERN ...]

Each instruction works on 64K elements on chip, many times over, by one thread; the least of some rounds counts. Lines
are those that take more than ``--above`` times what a sum of dense FP32 takes, the slowest first; those that the core
leaves to Python say so. A kernel that a compiler did not vectorise stands out here, whatever the program is.
"""

import argparse
import fnmatch
import itertools
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neuronx_cc.ir.isa import functions, integers
from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Ref, Space, Stream
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.native.executor import NativeExecutor

V, S, G = Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD
LANES, ROW, TIMES, ROUNDS = 128, 512, 8, 5
SLOT = 16384
FLOATS, WHOLE = ("f32", "bf16", "f16"), ("u8", "s8", "u16", "s16", "u32", "s32", "pred")
LAYOUTS = ("dense", "apart", "short", "repeated", "one")
"""Elements one after the other; every other one; rows of 16; each row of 16 for all; one element for all."""
FLAGS = frozenset


class Case(NamedTuple):
    name: str
    instr: Instr


def operand(slot: int, dtype: str, layout: str = "dense") -> Ref:
    size = STORAGE[dtype].itemsize
    dims = {
        "dense": ((ROW, size),),
        "apart": ((ROW, 2 * size),),
        "short": ((ROW // 16, 24 * size), (16, size)),
        "repeated": ((ROW // 16, 0), (16, size)),
        "one": ((ROW, 0),),
        "lane": ((1, size),),
    }[layout]
    return Ref(Space.SBUF, dtype, slot * SLOT, ((LANES, 0), *dims))


def made(op: str, stream: Stream, out: Ref, *sources: Ref, **rest: object) -> Instr:
    return Instr(op, stream, (out,), sources, **rest)  # type: ignore[arg-type]


def whole(slot: int, dtype: str, layout: str) -> Ref:
    """An operand of as many elements of which each has a place of its own."""
    return operand(slot, dtype, {"one": "dense", "repeated": "short"}.get(layout, layout))


def of_floats() -> Iterator[Case]:
    for dtype, layout in itertools.product((*FLOATS, *WHOLE, "f8e4m3"), LAYOUTS):
        y, x, z = whole(0, dtype, layout), whole(1, dtype, layout), operand(2, dtype, layout)
        yield Case(f"tensor_tensor add {dtype} {layout}", made("tensor_tensor", V, y, x, z, alu=("add",)))
        yield Case(f"tensor_tensor max {dtype} {layout}", made("tensor_tensor", V, y, x, z, alu=("max",)))
        truth = whole(0, "pred", layout)
        yield Case(f"tensor_tensor is_gt {dtype} {layout}", made("tensor_tensor", V, truth, x, z, alu=("is_gt",)))
    for dtype in FLOATS:
        for name in functions.ACTIVATION:
            y, x = operand(0, dtype), operand(1, dtype)
            yield Case(f"activation {name} {dtype}", made("activation", S, y, x, alu=(name,), imm=(1.0,)))
        for name in functions.UNARY:
            yield Case(f"program_unary {name} {dtype}", made("program_unary", G, y, x, alu=(name,)))
        for name in functions.BINARY:
            case = made("program_binary", G, y, x, operand(2, dtype), alu=(name,))
            yield Case(f"program_binary {name} {dtype}", case)
        for op in ("add", "max", "min"):
            total = operand(0, dtype, "lane")
            yield Case(f"tensor_reduce {op} {dtype}", made("tensor_reduce", V, total, x, alu=(op,)))
            rows = Ref(Space.SBUF, dtype, 0, ((LANES, 0), (ROW // 16, STORAGE[dtype].itemsize)))
            case = made("tensor_reduce", V, rows, operand(1, dtype, "short"), alu=(op,))
            yield Case(f"tensor_reduce {op} {dtype} short", case)
    y, x, z = (operand(slot, "f32") for slot in range(3))
    yield Case("tensor_tensor_scan", made("tensor_tensor_scan", V, y, x, z, alu=("multiply", "add"), imm=(0.0,)))


def of_moves() -> Iterator[Case]:
    kinds = (*FLOATS, *WHOLE, "f8e4m3")
    for left, right in itertools.product(kinds, kinds):
        yield Case(f"tensor_copy {left} > {right}", made("tensor_copy", V, operand(0, right), operand(1, left)))
        if right not in FLOATS:
            yield Case(f"convert {left} > {right}", made("convert", G, operand(0, right), operand(1, left)))
    for dtype, layout in itertools.product(("f32", "bf16", "u8"), LAYOUTS):
        y, x = whole(0, dtype, layout), operand(1, dtype, layout)
        yield Case(f"tensor_copy {dtype} {layout}", made("tensor_copy", V, y, x))
        for truth in ("pred", "s32"):
            by = operand(2, truth, layout)
            yield Case(f"copy_predicated {dtype} by {truth} {layout}", made("copy_predicated", V, y, by, x))
            yield Case(f"copy_predicated {dtype} #1 by {truth} {layout}", made("copy_predicated", V, y, by, imm=(1.0,)))
        yield Case(f"memset {dtype} {layout}", made("memset", V, y, imm=(1.0,)))


def of_integers() -> Iterator[Case]:
    names = (*integers.BINARY, *integers.COMPARE)
    for name, dtype, layout in itertools.product(names, WHOLE, LAYOUTS):
        out = "pred" if name in integers.COMPARE else dtype
        y, x, z = whole(0, out, layout), whole(1, dtype, layout), operand(2, dtype, layout)
        yield Case(f"int_tensor_tensor {name} {dtype} {layout}", made("int_tensor_tensor", G, y, x, z, alu=(name,)))
        if layout == "dense":
            yield Case(
                f"int_tensor_tensor {name} {dtype} #3", made("int_tensor_tensor", G, y, x, alu=(name,), imm=(3,))
            )
    for name, dtype in itertools.product(("bitwise_and", "logical_shift_left"), ("u8", "u16", "u32")):
        y, x, z = (operand(slot, dtype) for slot in range(3))
        yield Case(f"tensor_tensor {name} {dtype}", made("tensor_tensor", V, y, x, z, alu=(name,)))
        yield Case(f"tensor_scalar {name} {dtype}", made("tensor_scalar", V, y, x, alu=(name,), imm=(3,)))
    for name, dtype in itertools.product(("not", "negate", "abs", "sign", "popcnt", "count-leading-zeros"), WHOLE):
        case = made("program_unary", G, operand(0, dtype), operand(1, dtype), alu=(name,))
        yield Case(f"program_unary {name} {dtype}", case)


def measure(case: Case, level: str) -> tuple[float, bool]:
    """Nanoseconds an element, and whether Python carried it out."""
    program = Program(records=[Loop(TIMES, 1), case.instr, End()])
    memory = Memory(64)
    memory.bytes[Space.SBUF][:] = np.random.default_rng(0).integers(1, 60, memory.bytes[Space.SBUF].shape, np.uint8)
    executor = NativeExecutor(program, memory, level)
    executor.run()
    best = float("inf")
    for _ in range(1 if executor._python_steps else ROUNDS):
        start = time.perf_counter()
        executor.run()
        best = min(best, time.perf_counter() - start)
    elements = max(np.prod(ref.counts, dtype=np.int64) for ref in (*case.instr.outs, *case.instr.ins))
    return best / TIMES / float(elements) * 1e9, bool(executor._python_steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="all instructions without any")
    parser.add_argument("--above", type=float, default=2, help="how many sums of FP32 a line has to take")
    parser.add_argument("--level", default="", help="of the processor: base, avx2, avx512")
    options = parser.parse_args()
    library.required().core_threads(1)
    first = next(of_floats())
    unit = min(measure(first, options.level)[0] for _ in range(3))
    rows = []
    for case in itertools.chain(of_floats(), of_moves(), of_integers()):
        if options.patterns and not any(fnmatch.fnmatch(case.name, pattern) for pattern in options.patterns):
            continue
        taken, in_python = measure(case, options.level)
        rows.append((taken / unit, taken, case.name + ("  (Python)" if in_python else "")))
    for ratio, taken, name in sorted(rows, reverse=True):
        if ratio >= options.above:
            print(f"{ratio:>8.1f} x {taken:>8.3f} ns  {name}")
    print(f"{len(rows)} instructions; a sum of dense FP32 takes {unit:.3f} ns an element")
    return 0


if __name__ == "__main__":
    sys.exit(main())
