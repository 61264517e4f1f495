"""Applies ``--implicit-integer-downcast`` to integer ops that have no integer datapath. Changes no op.

Input: an inlined module before 64-bit integers are narrowed. An op whose result provably fits the 24 bits that FP32
holds exactly is fine, and so is a contraction that ``exact_integer_dots`` makes exact (all but those of more than 2^18
terms), and what 64-bit integers are computed with in two words (``--int64 exact``). Of the others, one that the option
permits is warned about, one that it does not is an error (EVRF035 dot and convolution, EVRF060 scatter, EVRF061
all-reduce, EVRF062 power of 64-bit integers, EVRF063 reduce-scatter).
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import INTEGERS, SIGNED
from neuronx_cc.passes.analysis.values import computation_kind
from neuronx_cc.passes.exact_integer_dots import EXACT_BITS, digits, is_integer_contraction, sum_bits
from neuronx_cc.passes.manager import PassContext, only_for

RULES: dict[type, tuple[str, str]] = {
    hlo.DotOp: ("dot", "EVRF035"),
    hlo.ConvolutionOp: ("dot", "EVRF035"),
    hlo.ScatterOp: ("scatter", "EVRF060"),
    hlo.AllReduceOp: ("all_reduce", "EVRF061"),
    hlo.ReduceScatterOp: ("reduce_scatter", "EVRF063"),
    hlo.PowerOp: ("pow", "EVRF062"),
}


@only_for(*RULES)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if type(op) in RULES and isinstance(op.results[0].type, hlo.ArrayType):
                _check(op, module, context)


def _check(op: hlo.HloOp, module: HloModule, context: PassContext) -> None:
    dtype = op.shape.dtype
    in_words = dtype in ("s64", "u64") and context.options.int64 == "exact"
    if dtype not in INTEGERS or in_words or _is_exact(op, module):
        return
    name, code = RULES[type(op)]
    limit = "2**31" if isinstance(op, hlo.PowerOp) else f"2**{EXACT_BITS}"
    if name not in context.options.implicit_integer_downcast:
        raise CompileError(
            code,
            f"{op.opcode} on {dtype} has no integer datapath and may lose exactness above {limit}",
            f"cast the operands, or permit it with --implicit-integer-downcast={name}",
            op.loc,
        )
    context.warn(code, f"{op.opcode} on {dtype} is not guaranteed to be exact above {limit}", op.loc)


def _is_exact(op: hlo.HloOp, module: HloModule) -> bool:
    if isinstance(op, hlo.PowerOp):
        return op.shape.dtype not in ("s64", "u64")
    if isinstance(op, hlo.DotOp | hlo.ConvolutionOp):
        return sum_bits(op) <= EXACT_BITS or (is_integer_contraction(op) and digits(op) is not None)
    # replacing, minimum and maximum need only the operand's own bits; sums of narrow values may still grow
    kinds = {computation_kind(module.computation(name)) for name in _bodies(op)}
    return kinds <= {"maximum", "minimum", "and", "or"} and _bits(op.shape.dtype) <= EXACT_BITS


def _bodies(op: hlo.HloOp) -> tuple[str, ...]:
    attr = op.properties["to_apply"]
    assert isinstance(attr, hlo.StrsAttr)
    return attr.data


def _bits(dtype: str) -> int:
    """Bits of the largest magnitude of an integer type."""
    if dtype == "pred":
        return 1
    return int(dtype[1:]) - (1 if dtype in SIGNED else 0)
