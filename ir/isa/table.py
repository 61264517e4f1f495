"""The instruction set: one row per mnemonic, and nothing else knows what an instruction may be.

A row says which streams carry the instruction, what its operands are (role, memories, element types, shape), which
operators, constants and flags it takes, what it costs and what it computes. ``ir.isa.rules`` verifies instructions
against their rows. The vocabulary is that of the public NKI instruction set (hardware sheet section 3); instructions of
GpSimd that NKI does not have run as programs on its processors.
"""

from collections.abc import Callable
from dataclasses import dataclass

from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.isa import (
    collectives,
    functions,
    host_calls,
    indexing,
    integers,
    pooling,
    programs,
    scans,
    semantics,
    sorting,
)
from neuronx_cc.ir.isa import cost as costs
from neuronx_cc.ir.isa.elements import State
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr, Space, Stream
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.small_types import COMPUTED
from neuronx_cc.ir.types import FLOATS

HBM, SBUF, PSUM = Space.HBM, Space.SBUF, Space.PSUM
TENSOR, VECTOR, SCALAR, GPSIMD = Stream.TENSOR, Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD

FLOAT = frozenset(FLOATS - {"f64", "tf32"} - COMPUTED.keys() | {"f8e3m4"})
INTEGER = frozenset(["s8", "s16", "s32", "u8", "u16", "u32"])
BITS = INTEGER | {"pred"}
NUMBER = FLOAT | BITS
MEMORY = NUMBER | {"s64", "u64", "f64", "c64", "c128"} | COMPUTED.keys()
"""What the DMA moves: elements that no engine computes with, too, as opaque bits."""
F32 = frozenset(["f32"])
INDEX = frozenset(["s32", "u32"])
S32 = frozenset(["s32"])


@dataclass(frozen=True, slots=True)
class Role:
    """An operand of an instruction."""

    name: str
    spaces: frozenset[Space]
    dtypes: frozenset[str] = NUMBER
    shape: str = "tile"
    """``tile``: the instruction's common counts; ``partition``: one element a partition; ``own``: see the row's
    rule.
    """
    when: str = ""
    """Empty: always there. ``optional``: may be left out. Otherwise the flag that brings it."""


def _role(name: str, spaces: tuple[Space, ...], dtypes: frozenset[str] = NUMBER, shape: str = "tile") -> Role:
    return Role(name, frozenset(spaces), dtypes, shape)


def _when(flag: str, role: Role) -> Role:
    return Role(role.name, role.spaces, role.dtypes, role.shape, flag)


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction."""

    op: str
    streams: frozenset[Stream]
    outs: tuple[Role, ...]
    ins: tuple[Role, ...]
    cost: Callable[[Instr, Machine], float]
    """Engine cycles (``ir.isa.cost``)."""
    semantics: Callable[[Instr, State], semantics.Kernel]
    doc: str
    alu: tuple[frozenset[str], ...] = ()
    """Allowed operators of each place."""
    alu_optional: int = 0
    """How many of the last operators may be left out."""
    imm: tuple[int, int] = (0, 0)
    """Least and greatest number of constants."""
    flags: frozenset[str] = frozenset()
    rule: str = "same"
    """Which relation the operands' counts keep: see ``ir.isa.rules``."""


CHIP = (SBUF, PSUM)
ARITHMETIC = frozenset(semantics.ARITHMETIC) | frozenset(semantics.COMPARE)
BITVEC = frozenset(semantics.BITVEC)
VECTOR_ALU = ARITHMETIC | BITVEC
SCALAR_ALU = VECTOR_ALU | frozenset(semantics.UNARY_ALU)
REDUCE_ALU = frozenset(["add", "multiply", "max", "min", "bitwise_and", "bitwise_or", "bitwise_xor"])
PROGRAM_UNARY = frozenset(functions.UNARY) | {"is-finite", "not", "popcnt", "count-leading-zeros", "reduce-precision"}
TOTAL_ORDER = frozenset("compare-totalorder-" + name.rsplit("-", 1)[1] for name in integers.COMPARE)
PROGRAM_BINARY = frozenset(functions.BINARY) | TOTAL_ORDER | {"stochastic-convert"}
DMA = frozenset(DMA_STREAMS)

Y, X = _role("y", CHIP), _role("x", CHIP)
POOL_Y, POOL_X = _role("y", (SBUF,)), _role("x", (SBUF,))
LANE = _role("s", CHIP, F32, "partition")

_ROWS = (
    Row(
        "load_stationary",
        frozenset([TENSOR]),
        (),
        (_role("x [K, M]", (SBUF,), FLOAT, "own"),),
        costs.load_stationary,
        semantics.load_stationary,
        "Loads the stationary tile: K <= 128 partitions, M <= 128 elements.",
        flags=frozenset(["tf32"]),
        rule="stationary",
    ),
    Row(
        "multiply_moving",
        frozenset([TENSOR]),
        (_role("y [M, N]", (PSUM,), F32, "own"),),
        (_role("x [K, N]", (SBUF,), FLOAT, "own"),),
        costs.multiply_moving,
        semantics.multiply_moving,
        "y = stationary^T x, or y += with ``accumulate``: exact products, f32 sums; ``tf32`` rounds both inputs to 10 "
        "mantissa bits. N <= 512 within one PSUM bank.",
        flags=frozenset(["accumulate", "tf32"]),
        rule="multiply",
    ),
    Row(
        "tensor_copy",
        frozenset([VECTOR, GPSIMD]),
        (Y,),
        (X,),
        costs.copy,
        semantics.tensor_copy,
        "y = x: bit exact for one element type, else through f32 (to integers: to nearest even, saturating).",
    ),
    Row(
        "memset",
        frozenset([VECTOR, GPSIMD]),
        (_role("y", CHIP, MEMORY),),
        (),
        costs.memset,
        semantics.memset,
        "Fills y with the bits of a constant, of elements that no engine computes with, too.",
        imm=(1, 1),
    ),
    Row(
        "tensor_tensor",
        frozenset([VECTOR]),
        (Y,),
        (_role("a", CHIP), _role("b", CHIP)),
        costs.tensor_tensor,
        semantics.tensor_tensor,
        "y = a op b in f32 (comparisons give 1 or 0), or on bit patterns of integers.",
        (VECTOR_ALU,),
    ),
    Row(
        "tensor_scalar",
        frozenset([VECTOR]),
        (Y,),
        (
            X,
            _when("ap0", _role("s0", CHIP, F32 | BITS, "partition")),
            _when("ap1", _role("s1", CHIP, F32 | BITS, "partition")),
        ),
        costs.tensor_scalar,
        semantics.tensor_scalar,
        "y = (x op0 s0) op1 s1 with constants or one scalar a partition; ``reverse`` swaps the operator's sides.",
        (SCALAR_ALU, SCALAR_ALU),
        1,
        (0, 2),
        frozenset(["ap0", "ap1", "reverse0", "reverse1"]),
    ),
    Row(
        "scalar_tensor_tensor",
        frozenset([VECTOR]),
        (Y,),
        (X, _role("y2", CHIP), _when("ap0", LANE)),
        costs.scalar_tensor_tensor,
        semantics.scalar_tensor_tensor,
        "y = (x op0 s) op1 y2.",
        (ARITHMETIC, ARITHMETIC),
        imm=(0, 1),
        flags=frozenset(["ap0", "reverse0", "reverse1"]),
    ),
    Row(
        "tensor_reduce",
        frozenset([VECTOR]),
        (_role("y [P, outer]", CHIP, NUMBER, "own"),),
        (_role("x [P, outer, reduced]", CHIP, NUMBER, "own"),),
        costs.tensor_reduce,
        semantics.tensor_reduce,
        "Reduces the trailing free dims in f32 (pairwise sums), or bit patterns; ``negate`` negates the result.",
        (REDUCE_ALU,),
        flags=frozenset(["negate"]),
        rule="reduce",
    ),
    Row(
        "copy_predicated",
        frozenset([VECTOR]),
        (Y,),
        (_role("predicate", CHIP, BITS), _when("optional", _role("source", CHIP))),
        costs.copy_predicated,
        semantics.copy_predicated,
        "y = source (or the constant) where the predicate is not 0 (is 0 with ``reverse``); y is kept elsewhere.",
        imm=(0, 1),
        flags=frozenset(["reverse"]),
    ),
    Row(
        "transpose",
        frozenset([VECTOR]),
        (_role("y [C, R]", CHIP, NUMBER | {"c64"}, "own"),),
        (_role("x [R, C]", CHIP, NUMBER | {"c64"}, "own"),),
        costs.copy,
        semantics.transpose,
        "Bit-exact transpose of a tile of at most 32 x 32.",
        rule="transpose",
    ),
    Row(
        "reciprocal",
        frozenset([VECTOR]),
        (Y,),
        (X,),
        costs.reciprocal,
        semantics.reciprocal,
        "y = 1 / x, correctly rounded in f32.",
    ),
    Row(
        "activation",
        frozenset([SCALAR]),
        (Y, _when("accumulate", _role("sum", CHIP, F32, "partition"))),
        (X, _when("scale_ap", LANE), _when("bias", _role("bias", CHIP, F32, "partition"))),
        costs.activation,
        semantics.activation,
        "y = f(x * scale + bias) in f32; ``accumulate`` also writes the sum of each partition's f32 results.",
        (frozenset(functions.ACTIVATION),),
        imm=(0, 1),
        flags=frozenset(["scale_ap", "bias", "accumulate"]),
    ),
    Row(
        "iota",
        frozenset([GPSIMD]),
        (POOL_Y,),
        (),
        costs.pool_move,
        programs.iota,
        "y = base + partition * step0 + sum(index * step) in wrapping int32, cast to y's type.",
        imm=(2, 6),
        rule="affine",
    ),
    Row(
        "affine_select",
        frozenset([GPSIMD]),
        (POOL_Y,),
        (POOL_X,),
        costs.pool_move,
        programs.affine_select,
        "y = x where cmp(base + partition * step0 + sum(index * step), 0), else the constant.",
        (frozenset(semantics.COMPARE),),
        imm=(3, 7),
        rule="affine",
    ),
    Row(
        "int_tensor_tensor",
        frozenset([GPSIMD]),
        (POOL_Y,),
        (_role("a", (SBUF,), BITS), _when("optional", _role("b", (SBUF,), BITS))),
        costs.int_tensor_tensor,
        programs.int_tensor_tensor,
        "y = a op b (or the constant; ``reverse`` swaps) in exact integers with HLO's rules.",
        (frozenset(integers.BINARY) | frozenset(integers.COMPARE),),
        imm=(0, 1),
        flags=frozenset(["reverse"]),
    ),
    Row(
        "tensor_tensor_scan",
        frozenset([VECTOR]),
        (Y,),
        (_role("a", CHIP), _role("b", CHIP), _when("ap0", LANE)),
        costs.scan,
        scans.tensor_tensor_scan,
        "y[k] = (a[k] op0 y[k - 1]) op1 b[k] along the free elements in f32; y[-1] is a constant or one scalar a "
        "partition.",
        (ARITHMETIC, ARITHMETIC),
        imm=(0, 1),
        flags=frozenset(["ap0"]),
    ),
    Row(
        "int_scan",
        frozenset([GPSIMD]),
        (POOL_Y,),
        (_role("x", (SBUF,), BITS), _when("ap0", _role("s", (SBUF,), BITS, "partition"))),
        costs.int_tensor_tensor,
        scans.int_scan,
        "y[k] = y[k - 1] op x[k] along the free elements in exact integers; y[-1] is a constant or one scalar a "
        "partition.",
        (frozenset(COMBINERS),),
        imm=(0, 1),
        flags=frozenset(["ap0"]),
    ),
    Row(
        "select_scatter",
        frozenset([GPSIMD]),
        (_role("y [P, part]", (SBUF,), NUMBER, "own"),),
        (
            _role("x [P, inputs]", (SBUF,), NUMBER, "own"),
            _role("source [P, windows]", (SBUF,), NUMBER, "own"),
            _role("bounds [P, 5 dims]", (SBUF,), frozenset(["s32"]), "own"),
        ),
        costs.select_scatter,
        pooling.select_scatter,
        "y starts as the constant; each window of x combines its source into y where ``kept op0 next`` selects; "
        "constants (start, size and stride of the window along each dim); bounds (x low, high, window low, high, y "
        "start). With ``lowest``, what x lacks is minus infinity, and may be selected.",
        (pooling.KEEPS, pooling.COMBINES),
        imm=(1, 7),
        flags=frozenset(["lowest"]),
        rule="select_scatter",
    ),
    Row(
        "program_unary",
        frozenset([GPSIMD]),
        (POOL_Y,),
        (POOL_X,),
        costs.program,
        programs.program_unary,
        "y = f(x) with HLO's rules over the full range, in f32 or exact integers.",
        (PROGRAM_UNARY,),
        imm=(0, 2),
    ),
    Row(
        "program_binary",
        frozenset([GPSIMD]),
        (POOL_Y,),
        (_role("a", (SBUF,)), _when("optional", _role("b", (SBUF,)))),
        costs.program,
        programs.program_binary,
        "y = f(a, b) (or the constant; ``reverse`` swaps) with HLO's rules, in f32.",
        (PROGRAM_BINARY,),
        imm=(0, 1),
        flags=frozenset(["reverse"]),
    ),
    Row(
        "convert",
        frozenset([GPSIMD]),
        (_role("y", (SBUF,), NUMBER | {"f64"}),),
        (_role("x", (SBUF,), NUMBER | {"f64"}),),
        costs.convert,
        programs.convert,
        "HLO's convert: floats to integers truncate and saturate, NaN gives 0, integers wrap, pred is x != 0.",
    ),
    Row(
        "sort",
        frozenset([GPSIMD]),
        (_role("y [P, W, R, n]", (SBUF,), S32, "own"),),
        (_role("x [P, W, R, n]", (SBUF,), S32, "own"),),
        sorting.sort_cost,
        sorting.sort,
        "Sorts R rows of n elements of W words in each partition, stably, upwards by their first words, as many as the "
        "constant says; ``across``: one row that goes on from partition to partition.",
        imm=(1, 1),
        flags=frozenset(["across"]),
        rule="sort",
    ),
    Row(
        "topk",
        frozenset([GPSIMD]),
        (_role("y [P, R, K]", (SBUF,), F32 | S32, "own"), _role("place [P, R, K]", (SBUF,), S32, "own")),
        (_role("x [P, R, n]", (SBUF,), F32 | S32, "own"),),
        sorting.topk_cost,
        sorting.topk,
        "The K largest of each row of n elements, downwards (floats in total order, equal ones as they stand), and "
        "their places.",
        rule="topk",
    ),
    Row(
        "partition_reduce",
        frozenset([GPSIMD]),
        (_role("y [1, F]", (SBUF,), NUMBER, "own"),),
        (_role("x [P, F]", (SBUF,), NUMBER, "own"),),
        costs.partition_reduce,
        programs.partition_reduce,
        "Reduces over partitions: floats in f32, integers exactly.",
        (REDUCE_ALU,),
        rule="partition_reduce",
    ),
    Row(
        "partition_broadcast",
        frozenset([GPSIMD]),
        (_role("y [P, F]", (SBUF,), NUMBER, "own"),),
        (_role("x [1, F]", (SBUF,), NUMBER, "own"),),
        costs.partition_broadcast,
        programs.partition_broadcast,
        "Copies one partition to all.",
        rule="partition_broadcast",
    ),
    Row(
        "group_gather",
        frozenset([GPSIMD]),
        (_role("y [P, M, E]", (SBUF,), MEMORY, "own"),),
        (_role("x [P, F, E]", (SBUF,), MEMORY, "own"), _role("index [P, M]", (SBUF,), INDEX, "own")),
        costs.group_gather,
        indexing.group_gather,
        "In each group of 16 partitions, y[n] = x[index[n]]: x is a table of 16 F rows, y and index are lists of 16 M; "
        "an index outside the table gives 0, or leaves y with ``keep``.",
        flags=frozenset(["keep"]),
        rule="group_gather",
    ),
    Row(
        "group_scatter",
        frozenset([GPSIMD]),
        (_role("y [P, F, E]", (SBUF,), NUMBER, "own"),),
        (_role("x [P, M, E]", (SBUF,), NUMBER, "own"), _role("index [P, M]", (SBUF,), INDEX, "own")),
        costs.group_scatter,
        indexing.group_scatter,
        "In each group of 16 partitions, y[index[n]] = y[index[n]] op x[n] for entry after entry n of the list; "
        "an index outside the table is skipped.",
        (frozenset(indexing.COMBINE),),
        rule="group_scatter",
    ),
    Row(
        "dma_copy",
        DMA,
        (_role("y", (HBM, SBUF), MEMORY),),
        (_role("x", (HBM, SBUF), MEMORY),),
        costs.no_cycles,
        programs.dma_copy,
        "y = x: bit exact for one element type, else through f32.",
    ),
    Row(
        "dma_gather",
        frozenset([Stream.DMA_DYNAMIC]),
        (_role("y [P, F]", (SBUF,), MEMORY, "own"),),
        (_role("x [rows, F]", (HBM,), MEMORY, "own"), _role("index [P, 1]", (SBUF,), INDEX, "own")),
        costs.no_cycles,
        programs.dma_gather,
        "y[p] = x[index[p]]; ``clamp`` clamps the index into the rows, otherwise one outside is a fault.",
        flags=frozenset(["clamp"]),
        rule="gather",
    ),
    Row(
        "dma_scatter",
        frozenset([Stream.DMA_DYNAMIC]),
        (_role("y [rows, F]", (HBM,), MEMORY, "own"),),
        (_role("x [P, F]", (SBUF,), MEMORY, "own"), _role("index [P, 1]", (SBUF,), INDEX, "own")),
        costs.no_cycles,
        programs.dma_scatter,
        "y[index[p]] = x[p], or += with ``add``; an index outside the rows is skipped with ``skip``, else a fault.",
        flags=frozenset(["skip", "add"]),
        rule="scatter",
    ),
    Row(
        "collective",
        frozenset([Stream.COLLECTIVE]),
        (_role("y", (HBM,), MEMORY, "own"),),
        (_role("x", (HBM,), MEMORY, "own"),),
        costs.no_cycles,
        collectives.collective,
        "Exchanges x with the members of this device's group in ``Program.groups``: imm = (groups, members). With one "
        "block for each member, y (all_gather, all_to_all) or x (reduce_scatter, all_to_all) has it as its first dim.",
        alu=(collectives.KINDS, frozenset(collectives.REDUCTIONS)),
        alu_optional=1,
        imm=(2, 2),
        rule="collective",
    ),
    Row(
        "host_call",
        frozenset([Stream.SYNC]),
        (_role("y [bytes]", (HBM,), frozenset(["u8"]), "own"),),
        (_role("x [bytes]", (HBM,), frozenset(["u8"]), "own"),),
        costs.no_cycles,
        host_calls.host_call,
        "Calls a function of the host process, ``Program.host_calls`` number imm[0], on the arrays in x; y gets its "
        "results. The host's time is not modelled.",
        imm=(1, 1),
        rule="host",
    ),
    Row(
        "reg_load",
        frozenset(Stream),
        (),
        (_role("x [1, 1]", (HBM, SBUF), INDEX | {"pred"}, "own"),),
        costs.no_cycles,
        semantics.reg_load,
        "Loads a sequencer register: imm = (register, least, greatest); the value is clamped into the range.",
        imm=(3, 3),
        rule="one",
    ),
    Row(
        "nop",
        frozenset(Stream),
        (),
        (),
        costs.no_cycles,
        semantics.nop,
        "Only waits.",
    ),
)

TABLE: dict[str, Row] = {row.op: row for row in _ROWS}
"""Mnemonic -> row."""
