"""One small HLO module for every opcode, in HLO text that XLA's own parser accepts."""

ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT r = f32[] add(x, y)\n}\n\n"
LESS = (
    "less {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT r = pred[] compare(x, y), direction=LT\n}\n\n"
)
GREATER_EQUAL = LESS.replace("less", "ge").replace("LT", "GE")
DOUBLE = "double {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] add(x, x)\n}\n\n"
FLIP = "flip {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x)\n}\n\n"
ONE = "one {\n  x = f32[] parameter(0)\n  ROOT r = f32[] negate(x)\n}\n\n"
STEP = (
    "step {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  s = f32[] add(x, y)\n"
    "  ROOT r = (f32[], f32[]) tuple(s, s)\n}\n\n"
)
LOOP = (
    "cond {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
    "  n = s32[] constant(3)\n  ROOT r = pred[] compare(i, n), direction=LT\n}\n\n"
    "body {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
    "  v = f32[4] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n"
    "  w = f32[4] add(v, v)\n  ROOT r = (s32[], f32[4]) tuple(j, w)\n}\n\n"
)


def entry(*lines: str, before: str = "") -> str:
    """A module whose entry has these instructions; the last one is the root."""
    body = "".join(f"  {line}\n" for line in (*lines[:-1], f"ROOT {lines[-1]}"))
    return f"HloModule m\n\n{before}ENTRY main {{\n{body}}}\n"


def unary(opcode: str, dtype: str = "f32", result: str = "") -> str:
    return entry(f"a = {dtype}[2,3] parameter(0)", f"r = {result or dtype}[2,3] {opcode}(a)")


def binary(opcode: str, dtype: str = "f32", attributes: str = "", result: str = "") -> str:
    return entry(
        f"a = {dtype}[2,3] parameter(0)",
        f"b = {dtype}[2,3] parameter(1)",
        f"r = {result or dtype}[2,3] {opcode}(a, b){attributes}",
    )


_FLOAT_UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "copy",
    "cosine",
    "cosh",
    "erf",
    "exponential",
    "exponential-minus-one",
    "floor",
    "log",
    "log-plus-one",
    "logistic",
    "negate",
    "opt-barrier",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "sign",
    "sine",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

TEXTS: dict[str, str] = {
    **{opcode: unary(opcode) for opcode in _FLOAT_UNARY},
    **{opcode: unary(opcode, "s32") for opcode in ("count-leading-zeros", "not", "popcnt")},
    **{opcode: unary(opcode, "c64", "f32") for opcode in ("real", "imag")},
    **{
        opcode: binary(opcode)
        for opcode in ["add", "atan2", "divide", "maximum", "minimum", "multiply", "power", "subtract"]
    },
    **{opcode: binary(opcode, "s32") for opcode in ["and", "mulhi", "or", "remainder", "xor"]},
    **{opcode: binary(opcode, "u32") for opcode in ["shift-left", "shift-right-arithmetic", "shift-right-logical"]},
    "is-finite": unary("is-finite", "f32", "pred"),
    "convert": unary("convert", "f32", "bf16"),
    "complex": binary("complex", result="c64"),
    "compare": binary("compare", attributes=", direction=GE, type=TOTALORDER", result="pred"),
    "parameter": entry('a = f32[2] parameter(0), sharding={replicated}, metadata={op_name="x"}'),
    "constant": entry("a = f32[2,2] constant({ {1, nan}, {-inf, 0.1} })"),
    "iota": entry("a = s32[2,3] iota(), iota_dimension=1"),
    "add-dependency": entry("a = f32[2] parameter(0)", "t = token[] after-all()", "r = f32[2] add-dependency(a, t)"),
    "after-all": entry("a = token[] after-all()", "b = token[] after-all()", "r = token[] after-all(a, b)"),
    "all-gather": entry(
        "a = f32[2,3] parameter(0)",
        "r = f32[4,3] all-gather(a), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}, "
        "use_global_device_ids=true",
    ),
    "all-gather-start": entry(
        "a = f32[2,3] parameter(0)",
        "r = (f32[2,3], f32[4,3]) all-gather-start(a), replica_groups={{0,1}}, dimensions={0}",
    ),
    "all-gather-done": entry(
        "a = f32[2,3] parameter(0)",
        "s = (f32[2,3], f32[4,3]) all-gather-start(a), replica_groups={{0,1}}, dimensions={0}",
        "r = f32[4,3] all-gather-done(s)",
    ),
    "all-reduce": entry(
        "a = f32[2,3] parameter(0)",
        "r = f32[2,3] all-reduce(a), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), "
        "use_global_device_ids=true, to_apply=add",
        before=ADD,
    ),
    "all-reduce-start": entry(
        "a = f32[2,3] parameter(0)", "r = f32[2,3] all-reduce-start(a), replica_groups={}, to_apply=add", before=ADD
    ),
    "all-reduce-done": entry(
        "a = f32[2,3] parameter(0)",
        "s = f32[2,3] all-reduce-start(a), replica_groups={}, to_apply=add",
        "r = f32[2,3] all-reduce-done(s)",
        before=ADD,
    ),
    "all-to-all": entry(
        "a = f32[4,3] parameter(0)", "r = f32[4,3] all-to-all(a), replica_groups={{0,1}}, dimensions={0}"
    ),
    "ragged-all-to-all": entry(
        "a = f32[8] parameter(0)",
        "o = f32[16] parameter(1)",
        "n = s32[2] parameter(2)",
        "r = f32[16] ragged-all-to-all(a, o, n, n, n, n), replica_groups={{0,1}}",
    ),
    "collective-broadcast": entry(
        "a = f32[4] parameter(0)", "r = f32[4] collective-broadcast(a), replica_groups={{0,1}}"
    ),
    "collective-permute": entry(
        "a = f32[4] parameter(0)", "r = f32[4] collective-permute(a), source_target_pairs={{0,1},{1,0}}"
    ),
    "collective-permute-start": entry(
        "a = f32[4] parameter(0)",
        "r = (f32[4], f32[4], u32[], u32[]) collective-permute-start(a), source_target_pairs={{0,1}}",
    ),
    "collective-permute-done": entry(
        "a = f32[4] parameter(0)",
        "s = (f32[4], f32[4], u32[], u32[]) collective-permute-start(a), source_target_pairs={{0,1}}",
        "r = f32[4] collective-permute-done(s)",
    ),
    "collective-reduce": entry(
        "a = f32[4] parameter(0)", "r = f32[4] collective-reduce(a), replica_groups={{0,1}}, to_apply=add", before=ADD
    ),
    "reduce-scatter": entry(
        "a = f32[4] parameter(0)",
        "r = f32[2] reduce-scatter(a), replica_groups={{0,1}}, dimensions={0}, to_apply=add",
        before=ADD,
    ),
    "partition-id": entry("r = u32[] partition-id()"),
    "replica-id": entry("r = u32[] replica-id()"),
    "async-start": entry(
        "a = f32[4] parameter(0)", "r = ((f32[4]), f32[4], s32[]) async-start(a), calls=flip", before=FLIP
    ),
    "async-update": entry(
        "a = f32[4] parameter(0)",
        "s = ((f32[4]), f32[4], s32[]) async-start(a), calls=flip",
        "r = ((f32[4]), f32[4], s32[]) async-update(s)",
        before=FLIP,
    ),
    "async-done": entry(
        "a = f32[4] parameter(0)",
        "s = ((f32[4]), f32[4], s32[]) async-start(a), calls=flip",
        "r = f32[4] async-done(s)",
        before=FLIP,
    ),
    "batch-norm-training": entry(
        "a = f32[2,3] parameter(0)",
        "s = f32[3] parameter(1)",
        "o = f32[3] parameter(2)",
        "r = (f32[2,3], f32[3], f32[3]) batch-norm-training(a, s, o), epsilon=0.001, feature_index=1",
    ),
    "batch-norm-inference": entry(
        "a = f32[2,3] parameter(0)",
        "s = f32[3] parameter(1)",
        "r = f32[2,3] batch-norm-inference(a, s, s, s, s), epsilon=0.001, feature_index=1",
    ),
    "batch-norm-grad": entry(
        "a = f32[2,3] parameter(0)",
        "s = f32[3] parameter(1)",
        "r = (f32[2,3], f32[3], f32[3]) batch-norm-grad(a, s, s, s, a), epsilon=0.001, feature_index=1",
    ),
    "bitcast": entry("a = f32[2,3] parameter(0)", "r = f32[3,2] bitcast(a)"),
    "bitcast-convert": entry("a = f32[2,3] parameter(0)", "r = u8[2,3,4] bitcast-convert(a)"),
    "broadcast": entry("a = f32[3] parameter(0)", "r = f32[2,3] broadcast(a), dimensions={1}"),
    "call": entry("a = f32[4] parameter(0)", "r = f32[4] call(a), to_apply=double", before=DOUBLE),
    "cholesky": entry("a = f32[3,3] parameter(0)", "r = f32[3,3] cholesky(a), lower=true"),
    "clamp": entry("a = f32[] parameter(0)", "b = f32[4] parameter(1)", "r = f32[4] clamp(a, b, a)"),
    "concatenate": entry(
        "a = f32[2,3] parameter(0)", "b = f32[2,1] parameter(1)", "r = f32[2,4] concatenate(a, b), dimensions={1}"
    ),
    "conditional": entry(
        "p = pred[] parameter(0)",
        "a = f32[4] parameter(1)",
        "r = f32[4] conditional(p, a, a), true_computation=double, false_computation=double",
        before=DOUBLE,
    ),
    "convolution": entry(
        "a = f32[1,8,8,4] parameter(0)",
        "k = f32[3,3,2,6] parameter(1)",
        "r = f32[1,4,8,6] convolution(a, k), window={size=3x3 stride=2x1 pad=1_1x2_2 rhs_dilate=1x2}, "
        "dim_labels=b01f_01io->b01f, feature_group_count=2, operand_precision={highest,default}",
    ),
    "copy-start": entry("a = f32[4] parameter(0)", "r = (f32[4], f32[4], u32[]) copy-start(a)"),
    "copy-done": entry(
        "a = f32[4] parameter(0)", "s = (f32[4], f32[4], u32[]) copy-start(a)", "r = f32[4] copy-done(s)"
    ),
    "custom-call": entry(
        "a = f32[4] parameter(0)",
        'r = f32[4] custom-call(a), custom_call_target="AwsNeuronGelu", custom_call_has_side_effect=true, '
        'api_version=API_VERSION_STATUS_RETURNING_UNIFIED, backend_config="{\\"a\\": \\"b\\\\n}\\"}"',
    ),
    "domain": entry(
        "a = f32[4] parameter(0)",
        'r = f32[4] domain(a), domain={kind="sharding", entry={maximal device=0}, exit={replicated}}',
    ),
    "dot": entry(
        "a = f32[5,2,3] parameter(0)",
        "b = f32[5,3,4] parameter(1)",
        "r = f32[5,2,4] dot(a, b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={1}, operand_precision={highest,high}, algorithm=dot_tf32_tf32_f32",
    ),
    "dynamic-slice": entry(
        "a = f32[4,5] parameter(0)",
        "i = s32[] parameter(1)",
        "r = f32[2,5] dynamic-slice(a, i, i), dynamic_slice_sizes={2,5}",
    ),
    "dynamic-update-slice": entry(
        "a = f32[4,5] parameter(0)",
        "u = f32[2,1] parameter(1)",
        "i = s32[] parameter(2)",
        "r = f32[4,5] dynamic-update-slice(a, u, i, i)",
    ),
    "fft": entry("a = f32[2,8] parameter(0)", "r = c64[2,5] fft(a), fft_type=RFFT, fft_length={8}"),
    "fusion": entry("a = f32[4] parameter(0)", "r = f32[4] fusion(a), kind=kLoop, calls=double", before=DOUBLE),
    "gather": entry(
        "a = f32[5,7] parameter(0)",
        "i = s32[3,1] parameter(1)",
        "r = f32[3,7] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1,7}, indices_are_sorted=true",
    ),
    "get-dimension-size": entry("a = f32[4] parameter(0)", "r = s32[] get-dimension-size(a), dimensions={0}"),
    "get-tuple-element": entry("a = (f32[4], s32[]) parameter(0)", "r = s32[] get-tuple-element(a), index=1"),
    "infeed": entry("t = token[] after-all()", 'r = ((f32[4]), token[]) infeed(t), infeed_config="a\\"b"'),
    "outfeed": entry(
        "a = f32[4] parameter(0)",
        "t = token[] after-all()",
        'r = token[] outfeed(a, t), outfeed_shape=f32[4], outfeed_config="c"',
    ),
    "send": entry(
        "a = f32[4] parameter(0)",
        "t = token[] after-all()",
        "r = (f32[4], u32[], token[]) send(a, t), channel_id=3, is_host_transfer=true",
    ),
    "send-done": entry(
        "a = f32[4] parameter(0)",
        "t = token[] after-all()",
        "s = (f32[4], u32[], token[]) send(a, t), channel_id=3, is_host_transfer=true",
        "r = token[] send-done(s), channel_id=3, is_host_transfer=true",
    ),
    "recv": entry("t = token[] after-all()", "r = (f32[4], u32[], token[]) recv(t), channel_id=4"),
    "recv-done": entry(
        "t = token[] after-all()",
        "s = (f32[4], u32[], token[]) recv(t), channel_id=4",
        "r = (f32[4], token[]) recv-done(s), channel_id=4",
    ),
    "map": entry("a = f32[4] parameter(0)", "r = f32[4] map(a), dimensions={0}, to_apply=one", before=ONE),
    "pad": entry("a = f32[4,5] parameter(0)", "z = f32[] parameter(1)", "r = f32[13,4] pad(a, z), padding=1_2_2x0_-1"),
    "ragged-dot": entry(
        "a = f32[8,4] parameter(0)",
        "b = f32[3,4,5] parameter(1)",
        "g = s32[3] parameter(2)",
        "r = f32[8,5] ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
        "lhs_ragged_dims={0}, rhs_group_dims={0}",
    ),
    "scaled-dot": entry(
        "a = f8e4m3fn[8,64] parameter(0)",
        "b = f8e4m3fn[64,8] parameter(1)",
        "s = f8e5m2[8,2] parameter(2)",
        "t = f8e5m2[2,8] parameter(3)",
        "r = f32[8,8] scaled-dot(a, b, s, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "reduce": entry(
        "a = f32[2,3] parameter(0)",
        "z = f32[] constant(0)",
        "r = f32[2] reduce(a, z), dimensions={1}, to_apply=add",
        before=ADD,
    ),
    "reduce-precision": entry(
        "a = f32[4] parameter(0)", "r = f32[4] reduce-precision(a), exponent_bits=8, mantissa_bits=10"
    ),
    "reduce-window": entry(
        "a = f32[4,6] parameter(0)",
        "z = f32[] constant(0)",
        "r = f32[4,3] reduce-window(a, z), window={size=3x2 stride=1x2 pad=1_1x0_0}, to_apply=add",
        before=ADD,
    ),
    "reshape": entry("a = f32[4,6] parameter(0)", "r = f32[3,8] reshape(a)"),
    "dynamic-reshape": entry(
        "a = f32[4] parameter(0)", "n = s32[] parameter(1)", "r = f32[2,2] dynamic-reshape(a, n, n)"
    ),
    "reverse": entry("a = f32[4,6] parameter(0)", "r = f32[4,6] reverse(a), dimensions={0,1}"),
    "rng": entry("a = f32[] parameter(0)", "b = f32[] parameter(1)", "r = f32[4] rng(a, b), distribution=rng_uniform"),
    "rng-bit-generator": entry(
        "a = u64[2] parameter(0)", "r = (u64[2], u32[8]) rng-bit-generator(a), algorithm=rng_three_fry"
    ),
    "rng-get-and-update-state": entry("r = u64[2] rng-get-and-update-state(), delta=4"),
    "scan": entry(
        "a = f32[4] parameter(0)",
        "z = f32[] parameter(1)",
        "r = (f32[4], f32[]) scan(a, z), dimensions={0}, num_carries=1, is_reverse=true, is_associative=false, "
        "to_apply=step",
        before=STEP,
    ),
    "shuffle": entry("a = f32[4] parameter(0)", "r = f32[4] shuffle(a)"),
    "scatter": entry(
        "a = f32[5,7] parameter(0)",
        "i = s32[3,1] parameter(1)",
        "u = f32[3,7] parameter(2)",
        "r = f32[5,7] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, unique_indices=true, to_apply=add",
        before=ADD,
    ),
    "select": entry(
        "p = pred[4] parameter(0)", "a = f32[4] parameter(1)", "b = f32[4] parameter(2)", "r = f32[4] select(p, a, b)"
    ),
    "select-and-scatter": entry(
        "a = f32[4,6] parameter(0)",
        "s = f32[2,3] parameter(1)",
        "z = f32[] constant(0)",
        "r = f32[4,6] select-and-scatter(a, s, z), window={size=2x2 stride=2x2}, select=ge, scatter=add",
        before=GREATER_EQUAL + ADD,
    ),
    "set-dimension-size": entry(
        "a = f32[4] parameter(0)", "n = s32[] parameter(1)", "r = f32[4] set-dimension-size(a, n), dimensions={0}"
    ),
    "slice": entry("a = f32[8,9] parameter(0)", "r = f32[4,2] slice(a), slice={[0:8:2], [3:5]}"),
    "sort": entry(
        "a = f32[4,6] parameter(0)", "r = f32[4,6] sort(a), dimensions={1}, is_stable=true, to_apply=less", before=LESS
    ),
    "stochastic-convert": entry(
        "a = f32[4] parameter(0)", "b = u32[4] parameter(1)", "r = s8[4] stochastic-convert(a, b)"
    ),
    "topk": entry("a = f32[4,9] parameter(0)", "r = (f32[4,3], s32[4,3]) topk(a), k=3, largest=true"),
    "transpose": entry("a = f32[4,6,2] parameter(0)", "r = f32[2,4,6] transpose(a), dimensions={2,0,1}"),
    "triangular-solve": entry(
        "a = f32[4,4] parameter(0)",
        "b = f32[4,2] parameter(1)",
        "r = f32[4,2] triangular-solve(a, b), left_side=true, lower=true, transpose_a=ADJOINT",
    ),
    "tuple": entry("a = f32[4] parameter(0)", "r = (f32[4], f32[4]) tuple(a, a)"),
    "while": entry(
        "s = (s32[], f32[4]) parameter(0)", "r = (s32[], f32[4]) while(s), condition=cond, body=body", before=LOOP
    ),
}
"""Opcode -> module."""
