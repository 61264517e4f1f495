"""The rows of the operator coverage table (see ``ir.operators``), in opcode order, and the custom-call targets.

To flip a row, change its status word; to constrain it, add a ``Limit`` (predicates live in ``ir.operators_limits``).
Sources: the vendor's XLA operator list and notes as printed with releases 2.1 to 2.3, and the published error codes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neuronx_cc.ir import operators_limits as limits

if TYPE_CHECKING:
    from neuronx_cc.ir import hlo

RELEASES = ("2.1", "2.2", "2.3", "latest")
"""Vendor releases whose operator sets ``--release`` selects, oldest first."""

VENDOR = ("2.1", "2.2", "2.3")

GENERATED = frozenset(["native", "decomposed", "folded"])
"""Statuses that compile."""

F = ("f32", "bf16", "f16", "f8e4m3", "f8e5m2")
I = ("s8", "s16", "s32", "u8", "u16", "u32")  # noqa: E741
SIGNED = I[:3]
UNSIGNED = I[3:]
P = ("pred",)
ALL = (*F, *I, *P)

C64 = "c64"
DTYPES = (*ALL, C64)
"""Element types that compile; 64-bit integers are narrowed and complex numbers split first."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A constraint in some releases. ``holds(op, module)`` says whether an op keeps it."""

    releases: tuple[str, ...]
    sentence: str
    holds: "Callable[[hlo.HloOp, hlo.HloModule], bool]"
    remedy: str = ""
    code: str = "EVRF001"
    warns: bool = False
    """The vendor compiled it, with a caveat: a warning rather than an error."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One row: an opcode, its printed names, what we do with it and where it is limited."""

    opcode: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    status: str
    """native, decomposed, folded (these compile), planned or refused."""
    since: str = "latest"
    """Vendor release that introduced it; ``latest`` when it is in no list up to 2.3."""
    limits: tuple[Limit, ...] = ()
    reason: str = ""
    """Why it is refused, or what it waits for."""
    remedy: str = ""
    """What to write instead."""

    def introduced(self, release: str) -> bool:
        return RELEASES.index(self.since) <= RELEASES.index(release)

    def limits_of(self, release: str) -> tuple[Limit, ...]:
        return tuple(limit for limit in self.limits if release in limit.releases)


def _row(
    opcode: str,
    names: str,
    dtypes: tuple[str, ...],
    status: str,
    since: str = "latest",
    *limits: Limit,
    reason: str = "",
    remedy: str = "",
) -> Operator:
    return Operator(opcode, tuple(names.split()), dtypes, status, since, limits, reason, remedy)


_HOST = "the device has no host channel inside a program"
_DYNAMIC = "shapes are static"
_OF_SCALARS = Limit(
    ("latest",),
    "The computation must consist of elementwise operators on its scalars.",
    limits.computations_are_elementwise,
    "keep loops and array operators out of the computation",
)
_OF_SCALARS_AND_LOOPS = Limit(
    ("latest",),
    "The computation must consist of elementwise operators on its scalars and loops of such, outside of branches.",
    limits.computations_are_elementwise,
    "keep loops in branches and array operators out of the computation",
)

_ROWS = (
    _row("abs", "Abs", (*F, *SIGNED), "native", "2.1"),
    _row("acos", "Acos", F, "decomposed"),
    _row("acosh", "Acosh", F, "decomposed"),
    _row("add", "Add", ALL, "native", "2.1"),
    _row("add-dependency", "AddDependency", ALL, "folded"),
    _row("after-all", "", (), "folded"),
    _row("all-gather", "Allgather", ALL, "native", "2.1"),
    _row("all-gather-done", "", ALL, "decomposed"),
    _row("all-gather-start", "", ALL, "decomposed"),
    _row("all-reduce", "Allreduce", ALL, "native", "2.1"),
    _row("all-reduce-done", "", ALL, "decomposed"),
    _row("all-reduce-start", "", ALL, "decomposed"),
    _row("all-to-all", "AllToAll", ALL, "native"),
    _row("and", "And LogicalAnd", (*I, *P), "native", "2.1"),
    _row("asin", "Asin", F, "decomposed"),
    _row("asinh", "Asinh", F, "decomposed"),
    _row("async-done", "", ALL, "folded"),
    _row("async-start", "", ALL, "folded"),
    _row("async-update", "", ALL, "folded"),
    _row("atan", "Atan", F, "decomposed"),
    _row("atan2", "Atan2", F, "decomposed", "2.2"),
    _row("atanh", "Atanh", F, "decomposed"),
    _row("batch-norm-grad", "Batchnormgrad", F, "decomposed", "2.1"),
    _row("batch-norm-inference", "Batchnorminference", F, "decomposed", "2.1"),
    _row("batch-norm-training", "Batchnorm", F, "decomposed", "2.1"),
    _row("bitcast", "", ALL, "folded", "2.1"),
    _row("bitcast-convert", "BitcastConvertType", ALL, "native"),
    _row("broadcast", "Broadcast BroadcastInDim", ALL, "folded", "2.1"),
    _row("call", "Call", ALL, "folded", "2.1"),
    _row("cbrt", "Cbrt", F, "decomposed"),
    _row("ceil", "Ceil", F, "decomposed", "2.1"),
    _row("cholesky", "Cholesky", F, "decomposed"),
    _row("clamp", "Clamp", (*F, *I), "decomposed", "2.1"),
    _row("collective-broadcast", "CollectiveBroadcast", ALL, "native"),
    _row("collective-permute", "CollectivePermute", ALL, "native"),
    _row("collective-permute-done", "", ALL, "decomposed"),
    _row("collective-permute-start", "", ALL, "decomposed"),
    _row(
        "collective-reduce",
        "CollectiveReduce",
        ALL,
        "refused",
        reason="what devices hold that do not receive the result is specified nowhere",
        remedy="use all-reduce",
    ),
    _row("compare", "Compare Eq Ge Gt Le Lt Ne", ALL, "native", "2.1"),
    _row("complex", "Complex", ("f32",), "native"),
    _row("concatenate", "Concatenate", ALL, "folded", "2.1"),
    _row("conditional", "Conditional", ALL, "native"),
    _row("constant", "Constant ConstantLiteral", ALL, "native", "2.1"),
    _row("convert", "ConvertElementType", ALL, "native", "2.1"),
    _row("convolution", "Convolution", ALL, "native"),
    _row("copy", "Copy", ALL, "folded", "2.1"),
    _row("copy-done", "", ALL, "folded"),
    _row("copy-start", "", ALL, "folded"),
    _row("cosh", "Cosh", F, "decomposed"),
    _row("cosine", "Cos", F, "native", "2.1"),
    _row("count-leading-zeros", "Clz", I, "decomposed"),
    _row("custom-call", "Customcall", ALL, "decomposed", "2.1"),
    _row("divide", "Div", (*F, *I), "native", "2.1"),
    _row("domain", "", ALL, "folded"),
    _row("dot", "Dot DotGeneral", ALL, "native", "2.1"),
    _row(
        "dynamic-reshape", "DynamicReshape", ALL, "refused", reason=_DYNAMIC, remedy="pad or bucket to a static shape"
    ),
    _row("dynamic-slice", "DynamicSlice", ALL, "native"),
    _row(
        "dynamic-update-slice",
        "DynamicUpdateSlice",
        ALL,
        "native",
        "2.2",
        Limit(
            ("2.2", "2.3"),
            "Only for constant start indices.",
            limits.starts_are_constant,
            "make the start indices constants, or compile with --release latest",
        ),
    ),
    _row("erf", "Erf", F, "native"),
    _row("exponential", "Exp", F, "native", "2.1"),
    _row("exponential-minus-one", "Expm1", F, "decomposed"),
    _row("fft", "Fft", ("f32",), "decomposed"),
    _row("floor", "Floor", F, "decomposed", "2.1"),
    _row("fusion", "", ALL, "folded", "2.1"),
    _row(
        "gather",
        "Gather",
        ALL,
        "native",
        "2.1",
        Limit(
            VENDOR,
            "Only when start_index_map and the remapped offset dims are disjoint.",
            limits.gather_dims_disjoint,
            "index whole rows along the gathered dimensions, or compile with --release latest",
        ),
    ),
    _row("get-dimension-size", "GetDimensionSize", ALL, "folded"),
    _row("get-tuple-element", "GetTupleElement", ALL, "folded", "2.1"),
    _row("imag", "Imag", F, "native"),
    _row("infeed", "Infeed", ALL, "refused", reason=_HOST, remedy="pass the data as a parameter"),
    _row("iota", "Iota", (*F, *I), "native", "2.1"),
    _row("is-finite", "IsFinite", F, "decomposed"),
    _row("log", "Log", F, "native", "2.1"),
    _row("log-plus-one", "Log1p", F, "decomposed"),
    _row("logistic", "Logistic", F, "native"),
    _row("map", "Map", ALL, "folded", "latest", _OF_SCALARS_AND_LOOPS),
    _row("maximum", "Max", ALL, "native", "2.1"),
    _row("minimum", "Min", ALL, "native", "2.1"),
    _row("mulhi", "MulHi", I, "decomposed"),
    _row("multiply", "Mul", ALL, "native", "2.1"),
    _row("negate", "Neg", (*F, *I), "native", "2.1"),
    _row("not", "LogicalNot Not", (*I, *P), "native", "2.2"),
    _row("opt-barrier", "OptimizationBarrier", ALL, "folded"),
    _row("or", "Or LogicalOr", (*I, *P), "native"),
    _row("outfeed", "Outfeed", ALL, "refused", reason=_HOST, remedy="return the data as an output"),
    _row("pad", "Pad", ALL, "native", "2.1"),
    _row("parameter", "Parameter", ALL, "folded", "2.1"),
    _row("partition-id", "PartitionId", ("u32",), "native"),
    _row("popcnt", "PopulationCount", I, "decomposed"),
    _row(
        "power",
        "Pow",
        (*F, *I),
        "decomposed",
        "2.1",
        Limit(
            ("2.1", "2.2"),
            "The exponent must be a compile-time integer constant.",
            limits.exponent_is_constant_integer,
            "use a constant integer exponent, or exp(y * log(x)), or compile with --release latest",
        ),
    ),
    _row("ragged-all-to-all", "RaggedAllToAll", ALL, "decomposed"),
    _row("ragged-dot", "RaggedDot", F, "decomposed"),
    _row("real", "Real", F, "native"),
    _row("recv", "Recv", ALL, "refused", reason=_HOST, remedy="pass the data as a parameter"),
    _row("recv-done", "", ALL, "refused", reason=_HOST, remedy="pass the data as a parameter"),
    _row(
        "reduce",
        "Reduce",
        ALL,
        "native",
        "2.1",
        Limit(
            VENDOR,
            "The computation must be min, max, add or mul and the initial value a constant.",
            limits.reduce_is_plain,
            "use one of the four computations with a constant initial value, or compile with --release latest",
        ),
        _OF_SCALARS_AND_LOOPS,
    ),
    _row("reduce-precision", "ReducePrecision", F, "decomposed"),
    _row("reduce-scatter", "ReduceScatter", ALL, "native"),
    _row(
        "reduce-window",
        "ReduceWindow",
        ALL,
        "native",
        "latest",
        _OF_SCALARS_AND_LOOPS,
    ),
    _row("remainder", "Rem", (*F, *I), "decomposed"),
    _row("replica-id", "ReplicaId", ("u32",), "native"),
    _row("reshape", "Reshape", ALL, "folded", "2.1"),
    _row("reverse", "Rev", ALL, "folded", "2.3"),
    _row("rng", "RngUniform", (*F, *I), "decomposed", "2.1"),
    _row(
        "rng-bit-generator",
        "RngBitGenerator",
        UNSIGNED,
        "decomposed",
        "2.1",
        Limit(VENDOR, "Ignores the user's seed.", limits.never, "compile with --release latest", warns=True),
    ),
    _row("rng-get-and-update-state", "", ("u32",), "decomposed"),
    _row("round-nearest-afz", "Round", F, "decomposed"),
    _row("round-nearest-even", "RoundNearestEven", F, "decomposed"),
    _row("rsqrt", "Rsqrt", F, "native", "2.1"),
    _row("scaled-dot", "ScaledDot", F, "decomposed"),
    _row("scan", "Scan", ALL, "decomposed"),
    _row(
        "scatter",
        "Scatter",
        ALL,
        "decomposed",
        "2.1",
        _OF_SCALARS,
    ),
    _row("select", "Select", ALL, "native", "2.1"),
    _row(
        "select-and-scatter",
        "SelectAndScatter",
        (*F, *I),
        "native",
        "latest",
        _OF_SCALARS,
    ),
    _row("send", "Send", ALL, "refused", reason=_HOST, remedy="return the data as an output"),
    _row("send-done", "", ALL, "refused", reason=_HOST, remedy="return the data as an output"),
    _row(
        "set-dimension-size",
        "SetDimensionSize",
        ALL,
        "refused",
        reason=_DYNAMIC,
        remedy="pad or bucket to a static shape",
    ),
    _row("shift-left", "ShiftLeft", I, "native"),
    _row("shift-right-arithmetic", "ShiftRightArithmetic", I, "native"),
    _row("shift-right-logical", "ShiftRightLogical", I, "native", "2.1"),
    _row("shuffle", "", ALL, "refused", reason="its semantics are published nowhere", remedy="use gather"),
    _row("sign", "Sign", (*F, *SIGNED), "native", "2.1"),
    _row("sine", "Sin", F, "native", "2.1"),
    _row("sinh", "Sinh", F, "decomposed"),
    _row("slice", "Slice", ALL, "folded", "2.1"),
    _row("sort", "Sort", ALL, "native", "latest", _OF_SCALARS),
    _row("sqrt", "Sqrt", F, "native", "2.1"),
    _row("stochastic-convert", "StochasticConvertType", F, "native"),
    _row("subtract", "Sub", (*F, *I), "native", "2.1"),
    _row("tan", "Tan", F, "decomposed"),
    _row("tanh", "Tanh", F, "native", "2.1"),
    _row("topk", "TopK", (*F, *I, *P), "native"),
    _row("transpose", "Transpose", ALL, "native", "2.1"),
    _row("triangular-solve", "TriangularSolve", F, "decomposed"),
    _row("tuple", "Tuple", ALL, "folded", "2.1"),
    _row(
        "while",
        "While",
        ALL,
        "native",
        "2.1",
        Limit(
            VENDOR,
            "Only when the number of trips is a constant.",
            limits.trips_are_static,
            "count with constants from a constant to a constant, or compile with --release latest",
        ),
    ),
    _row("xor", "Xor", (*I, *P), "native"),
)

_ON_COMPLEX = (
    "abs add add-dependency all-gather all-reduce all-to-all async-done async-start async-update bitcast broadcast "
    "call cholesky collective-permute compare concatenate "
    "conditional constant convert convolution copy copy-done copy-start cosine custom-call divide domain dot "
    "dynamic-slice dynamic-update-slice exponential exponential-minus-one fft fusion gather get-tuple-element imag "
    "iota log log-plus-one logistic map multiply negate opt-barrier pad parameter power ragged-all-to-all real reduce "
    "reduce-window reduce-scatter reshape reverse rsqrt scatter select sign sine slice sort sqrt subtract tan tanh "
    "transpose triangular-solve tuple while"
)
"""Opcodes that take c64 besides the types of their row."""


def _with_complex(row: Operator) -> Operator:
    return replace(row, dtypes=(*row.dtypes, C64)) if row.opcode in _ON_COMPLEX.split() else row


OPERATORS: dict[str, Operator] = {row.opcode: _with_complex(row) for row in _ROWS}
"""Opcode -> row."""


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A custom-call target: those the vendor's compiler recognises, and those that JAX and PyTorch/XLA emit."""

    target: str
    family: str
    status: str
    """As of an operator."""
    reason: str = ""
    """Why it is refused."""


_TARGETS = {
    ("activation and normalisation", "decomposed"): (
        "AwsNeuronErf AwsNeuronGelu AwsNeuronGeluApprxTanh AwsNeuronGeluBackward AwsNeuronSilu AwsNeuronSiluBackward "
        "AwsNeuronRmsNorm AwsNeuronSoftmax AwsNeuronSoftmaxBackward"
    ),
    ("indexing", "decomposed"): "AwsNeuronArgMax AwsNeuronArgMin AwsNeuronTopK TopK ApproxTopK PartialReduce",
    (
        "linear algebra",
        "decomposed",
    ): "AwsNeuronCollectiveMatmul Qr ProductOfElementaryHouseholderReflectors LuDecomposition",
    ("LAPACK, as JAX calls it on a CPU", "decomposed"): " ".join(
        f"lapack_{letter}{routine}_ffi"
        for routine, letters in {"potrf": "sdcz", "trsm": "sdcz", "geqrf": "sdcz", "orgqr": "sd", "ungqr": "cz"}.items()
        for letter in letters
    )
    + " lapack_sgetrf_ffi lapack_dgetrf_ffi lapack_cgetrf_ffi lapack_zgetrf_ffi",
    ("host", "native"): "neuron_host_call",
    ("image", "decomposed"): "ResizeNearest ResizeBilinear ResizeNearestGrad",
    ("marker", "folded"): (
        "AwsNeuronLNCShardingConstraint AwsNeuronTransferWithStaticRing "
        "AwsNeuronModuleMarkerStart-Forward AwsNeuronModuleMarkerStart-Backward "
        "AwsNeuronModuleMarkerEnd-Forward AwsNeuronModuleMarkerEnd-Backward "
        "NeuronBoundaryMarker-Start NeuronBoundaryMarker-End"
    ),
    ("wish for an order of execution", "folded"): "control_dep",
    ("sharding and placement", "folded"): (
        "Sharding SPMDFullToShardShape SPMDShardToFullShape LayoutConstraint xla.sdy.FuncResultSharding "
        "xla.sdy.GlobalToLocalShape xla.sdy.LocalToGlobalShape xla.sdy.ShardingGroup MoveToHost "
        "MoveToDevice PinToDevice annotate_device_placement"
    ),
}

_REFUSED_CALLS = {
    "AwsNeuronIntMatmult": "its operands and attributes are published nowhere; use dot, which is exact on integers",
    "AwsNeuronDropoutMaskV1": "its operands and generator are published nowhere; use rng-bit-generator and compare",
    "AwsNeuronCustomNativeKernel": "it carries a kernel compiled for the vendor's tool chain",
    "AwsNeuronCustomOp": "it names a C++ library for the device's processors, which the module does not hold",
    "AwsNeuronDevicePrint": "the device has no host channel inside a program; return the value instead",
    "InspectSharding": "it asks XLA's partitioner how a value is sharded; leave jax.debug.inspect_array_sharding out",
    "QuantizeMX": "microscaling formats belong to a later device (trn3)",
    "__op$block_scaled_dot": "microscaling formats belong to a later device (trn3)",
}

CUSTOM_CALLS: dict[str, CustomCall] = {
    **{
        target: CustomCall(target, family, status)
        for (family, status), targets in _TARGETS.items()
        for target in targets.split()
    },
    **{target: CustomCall(target, "other", "refused", reason) for target, reason in _REFUSED_CALLS.items()},
}
"""Target -> row."""
