"""HLO texts in the forms that dumps have beside the plain ones: each is read by XLA, and by us as the same module."""

from opcode_texts import ADD, FLIP, entry

A, B = "a = f32[4] parameter(0)", "a = f32[4,4] parameter(0)"
SHARDINGS = (
    "{replicated}", "{manual}", "{unknown}", "{unreduced}", "{maximal device=1}", "{device=1 maximal}",
    "{devices=[2,2]0,1,2,3}", "{devices=[2,2]<=[4]}", "{devices=[2,2] <= [2,2]T(1,0)}", "{replicated manual}",
    "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "{devices=[2,1,2]<=[4] last_tile_dims={manual, replicated}}",
    "{{replicated}, {devices=[2,2]<=[4]}}", "{devices=[2,2]<=[4] shard_as 3}", "{replicated shard_like 1}", "{ }",
    '{replicated metadata={op_name="x"}}', '{replicated metadata={{op_name="x"}, {op_name="y"}}}',
    "{mesh['x'=2,'y'=2], [{'x'}, {?}]}", "{mesh['x'=4], [{'x':(1)2}, {}], replicated={'x':(2)2}}",
    "{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [{'x'}, {'y'}]}", "{mesh['x'=2], replicated}",
    "{maximal_mesh[device_id=3]}",
)  # fmt: skip
ATTRIBUTES = (
    'metadata={op_type="t" op_name="a", source_file="f" source_line=3 source_end_line=4 profile_type={1}}',
    'frontend_attributes={k="v",j={"a": {"b": [1]}}}', "statistics={visualizing_index=1,a-1=33,b=1.5}",
    'backend_config={"a": {"b":[1,2,{"c":"}"}]}}', 'backend_config="a\\"b"', 'origin={{"v1" {0}}}',
    "origin={[synthetic_call]}", 'origin={({"v1"}, {"v2"})}', "control-predecessors={a}", 'origin={({"v1"}}',
    'backend_config={"a":[1,(2}', 'frontend_attributes={k={"a":]),"b":"}"}, j="v"}', 'backend_config={/* {*/ "a"[}}',
)  # fmt: skip
CUSTOM = (
    "schedule=SCHEDULE_EARLIEST", "padding_type=PADDING_SAME", "api_version=API_VERSION_TYPED_FFI",
    "output_to_operand_aliasing={{}: (0, {})}", "operand_layout_constraints={f32[4,4]{0,1}}",
    "window={size=2x2}, dim_labels=b0f_0io->b0f", 'backend_config="\\x41\\n\\101\\u0041"', "literal=s32[2]{0} {1,2}",
    "literal=f32[] -2.5", "literal=(s32[2,1]{1,0} {{1},{2}}, (c64[] (1,2), pred[] true), s32[0]{0} {})", "literal=()",
    "literal=f32[2]{0} {nan, -inf}, schedule=SCHEDULE_NONE",
    "custom_call_has_side_effect=true", "feature_group_count=2, operand_precision={high}",
)  # fmt: skip
HEADERS = (
    "is_scheduled=true", "replica_count=2, num_partitions=2", "alias_passthrough_params=true",
    'frontend_attributes={a="b"}', "input_output_alias={ {}: (0, {}, may-alias) }", "buffer_donor={ (0, {}) }",
    "allow_spmd_sharding_propagation_to_output={true}", "allow_spmd_sharding_propagation_to_parameters=false",
    "entry_computation_layout={(f32[4]{0:T(128)})->f32[4]{0}}", 'origin_recovery_table={ {"a"} : {"b"} }',
)  # fmt: skip
LAYOUTS = (
    "{0,1}", "{1,0:T(8,128)(2,1)}", "{1,0:T(8,128)E(16)S(1)}", "{0,1:L(4)S(2)}", "{1,0:D(D,C)}", "{1,0:M(8)}",
)  # fmt: skip
NESTED = (
    "negate(abs(a))", "negate(f32[4] abs(f32[4]{0} %a))", "add(f32[4] abs(a), f32[4]{0} abs( negate (a)))",
    "add(broadcast(f32[] constant(1.5)), a)", "negate(get-tuple-element(a), index=0)", "multiply(constant(2), a)",
    "select(compare(a, a), a, a)", "negate(f32[4] abs(a), dimensions={0})", "negate(n = f32[4] abs(a))",
    "add((f32[4] abs(a)), a)", "negate(%abs(a))", "negate(f32[5] abs(a))", "negate(abs(b))", "negate(abs())",
    "negate(abs(a)", "add(a, f32[4] parameter(1))", "negate(a), control-predecessors={}",
    "negate(f32[4] add(a, f32[4] constant({1,2,3,4})))", "negate(call-done(call-start(a)))",
)  # fmt: skip
DIMENSIONS = (
    "f32[8] all-gather(a), replica_groups={{0,1}}", "f32[2] reduce-scatter(a), replica_groups={{0,1}}, to_apply=add",
    "f32[4] all-to-all(a), replica_groups={{0,1}}", "f32[4] concatenate(a)", "s32[] get-dimension-size(a)",
)  # fmt: skip
CONSTRAINTS = (
    "",
    "f32[4]{0}",
    "f32[4]",
    "f32[4]{0}, f32[4]{0}",
    "f32[5]{0}",
    "s32[4]{0}",
    "(f32[4]{0})",
    "f32[2,2]{1,0}",
)
LITERALS = (
    "s32[2] {1,2}", "{1,2}", "constant(2)", '"s32[] 2"', "s32[2]{0} {1,2,3}", "(s32[], s32[]) (1, 2)", "s32[] true",
    "(s32[] 1, s32[] 2", "s32[] 1 2", "token[]", "s32[]", "(s32[] 1 s32[] 2)", "(s32[] 1,)", "s8[] 200", "f32[] {1}",
)  # fmt: skip
CHANNELS = ("", ", channel_id=0", ", channel_id=1", ", channel_id=2, is_host_transfer=true", ", is_host_transfer=true")
LEFT_OUT = (
    "exponential(a), result_accuracy={tolerance={rtol=0.5, atol=1.0, ulps=}}",
    "exponential(a), result_accuracy={tolerance={rtol=, atol=1.0}}",
    "exponential(a), result_accuracy={mode=}",
    'custom-call(a), custom_call_target="t", output_to_operand_aliasing={{}: (, {})}',
    'custom-call(a), custom_call_target="t", output_to_operand_aliasing={{,}: (0, {})}',
    "slice(a), slice={[:4]}",
)
"""Numbers that are not there, some of which XLA reads as 0."""
BELOW = "below {\n  x = f32[] parameter(0)\n  ROOT r = f32[] add(x, y)\n  y = f32[] parameter(1)\n}\n\n"
LONE = (
    "ROOT r = f32[4] add(f32[4], f32[4])", "f32[4]{0} add(f32[4] %x, f32[4]{0} %y)", "r = add(f32[4] x, f32[4] x)",
    "(f32[4], s32[]) tuple(f32[4], s32[] n)", "f32[4] add(f32[4] _1, f32[4])", "f32[4] add(f32[4], f32[4] _0)",
    "f32[4] get-tuple-element((f32[4], s32[]) t), index=0", "r = f32[4] parameter(0)", "f32[] constant(1)",
    "f32[4] negate(abs(f32[4] x))", "f32[4] negate(f32[4] abs(f32[4] x))", "f32[4] add(x, y)",
    "f32[4] negate(f32[4] x) y",
    "f32[4] fusion(f32[4]), kind=kLoop, calls={ p = f32[4] parameter(0) ROOT r = negate(p) }",
    "/* c */ f32[4] negate(f32[4] x), control-predecessors={x}", "ROOT f32[4] negate(f32[4] x)", "negate(f32[4] x)",
)  # fmt: skip
"""Instructions alone."""
WORDS = (
    "f32[2,2] 3", "f32[2] 1,2", "pred[3] true", "pred[] 2", "pred[2] {-3,0}", "s64[] 9223372036854775808", "u64[] -1",
    "s64[] 18446744073709551616", "u32[] -1", "s32[] +1", "f32[] +1", "f32[] .5", "f32[] -.5", "f32[] 1.", "f32[] 1.e5",
    "f32[] infinity", "f32[] +inf", "f32[] 0x1p3", "f32[] 1e39", "f32[] -3.4028236e38", "f32[] 3.4028235e38",
    "f32[] 18446744073709551615", "f32[] 18446744073709551616", "bf16[] 3.4e38", "f16[] 65519", "f16[] 65520",
    "f64[] -1e309",
    "f8e4m3fn[] 500", "f8e4m3fn[] nan(0x1)", "f8e5m2[] 60000", "f8e4m3[] 250", "c64[] (1e39,0)", "c64[] (+1,0)",
    *(f"f32[65] {{{','.join([word] * 65)}}}" for word in ("+1", ".5", "1e400", "inf", "1e39", "1.")),
)  # fmt: skip
"""Types of constants and what stands for their values."""
SPACED = ("f32 [4]", "f32/*x*/[4] {0}", "(f32 [4], s32 [])", "f32[ 4 ]", "f32 [4")
EITHER: dict[str, str] = {
    **{f"alone {each}": each for each in LONE},
    **{f"value {each}": entry(f"r = {each.replace(' ', ' constant(', 1)})") for each in WORDS},
    **{f"type {each}": entry(f"a = {each} parameter(0)", f"r = negate({each} a)") for each in SPACED},
    "type left out %%a": entry(A, "r = f32[4] negate(%%a)"),
    "type left out a%b": entry(A, "ab = f32[4] abs(a)", "r = f32[4] negate(a%b)"),
    "type no branches": entry("i = s32[] parameter(0)", "r = f32[4] conditional(i), branch_computations={}"),
    "type in a signature %a": entry(A, "r = f32[4] negate(a)").replace("main {", "main (%a: f32[4]) -> f32[4] {"),
    **{f"left out in {each}": entry(A, f"r = f32[4] {each}") for each in LEFT_OUT},
    **{
        f"left out in {each}": entry(A, "r = f32[4] negate(a)").replace("HloModule m", f"HloModule m, {each}")
        for each in ("input_output_alias={ {}: (, {}) }", "buffer_donor={ (, {}) }", "replica_count=")
    },
    **{
        f"channels{one} |{other}": entry(A, "t = token[] after-all()", start + one, end + other, "r = f32[4] negate(a)")
        for one in CHANNELS
        for other in CHANNELS
        for start, end in (
            ("s = (f32[4], u32[], token[]) send(a, t)", "d = token[] send-done(s)"),
            ("s = (f32[4], u32[], token[]) recv(t)", "d = (f32[4], token[]) recv-done(s)"),
        )
    },
    **{f"unused {n}": entry(A, "r = f32[4] negate(a)", before=each) for n, each in enumerate((BELOW, FLIP, ADD))},
    **{f"nested {each}": entry(A, f"r = f32[4] {each}") for each in NESTED},
    **{
        f"dimensions {dims} of {each}": entry(A, f"r = {each}, dimensions={dims}", before=ADD)
        for each in DIMENSIONS
        for dims in ("{}", "{0}", "{0,0}", "{0,1}", "{1,0}")
        if (each, dims) != (DIMENSIONS[-1], "{}")  # ends XLA's process
    },
    **{
        f"constraints {each}": entry(
            A, f'r = f32[4]{{0}} custom-call(a), custom_call_target="t", operand_layout_constraints={{{each}}}'
        )
        for each in CONSTRAINTS
    },
    **{
        f"literal {each}": entry(A, f'r = f32[4] custom-call(a), custom_call_target="t", literal={each}')
        for each in LITERALS
    },
    **{
        f"generator {each}": entry(
            "a = u64[2] parameter(0)", "b = u64[2] parameter(1)", f"r = {each}, algorithm=rng_default"
        )
        for each in (
            "(u64[2], u32[4]) rng-bit-generator(a, b)",
            "u32[4] rng-bit-generator(a)",
            "u32[4] rng-bit-generator(f32[4] constant(2))",
            "(u64[2], u32[4], u32[4]) rng-bit-generator(a)",
        )
    },
}
"""What is special -> text that XLA reads or refuses, for other reasons than a damaged token."""
_S = "s = ((f32[4]), f32[4], s32[])"
_THREAD = FLIP.replace("}\n\n", '}, execution_thread="p"\n\n')

FORMS: dict[str, str] = {
    **{f"sharding {each}": entry(B, f"r = f32[4,4] negate(a), sharding={each}") for each in SHARDINGS},
    **{f"attribute {each}": entry(A, f"r = f32[4] negate(a), {each}") for each in ATTRIBUTES},
    **{f"custom {each}": entry(B, f'r = f32[4,4] custom-call(a), custom_call_target="t", {each}') for each in CUSTOM},
    **{
        f"header {each}": entry(A, "r = f32[4] negate(a)").replace("HloModule m", f"HloModule m, {each}")
        for each in HEADERS
    },
    **{
        f"layout {each}": entry(f"a = f32[4,4]{each} parameter(0)", f"r = (f32[4,4]{each}, f32[4,4]{each}) tuple(a, a)")
        for each in LAYOUTS
    },
    **{
        f"accuracy {each}": entry(A, f"r = f32[4] exponential(a), result_accuracy={each}")
        for each in ("{mode=highest}", "{tolerance={rtol=0.5, atol=1.0, ulps=2}}")
    },
    **{
        f"groups {each}": entry(A, f"r = f32[4] all-reduce(a), replica_groups={each}, to_apply=add", before=ADD)
        for each in ("{}", "[2,4]<=[8]", "[2,4] <= [4,2]T (1,0)", "{ {0,1}, {2,3} }", "mesh['x'=2,'y'=2] {'x'}")
    },
    "sugar": entry(A, f"{_S} negate-start(a)", "u" + _S[1:] + " negate-update(s)", "r = f32[4] negate-done(u)"),
    "sugar of a call": entry(
        A, f'{_S} call-start(a), async_execution_thread="p", to_apply=flip', "r = f32[4] call-done(s)", before=_THREAD
    ),
    "thread": entry(
        A, f'{_S} async-start(a), async_execution_thread="p", calls=flip', "r = f32[4] async-done(s)", before=_THREAD
    ),
    "scatter on its way": entry(
        A,
        "s = ((f32[4]), f32[2]) reduce-scatter-start(a), replica_groups={{0,1}}, dimensions={0}, to_apply=add",
        "r = f32[2] reduce-scatter-done(s)",
        before=ADD,
    ),
    "prefetch": entry(
        A,
        "s = (f32[4]{0:S(1)}, f32[4], u32[]) copy-start(a), cross_program_prefetch_index=0",
        "r = f32[4]{0:S(1)} copy-done(s)",
    ),
    "composite": entry(
        A, 'r = f32[4] call(a), to_apply=flip, is_composite=true, frontend_attributes={n="x.y"}', before=FLIP
    ),
    "index comments": entry(A, "r = (f32[4], /*index=1*/f32[4]) tuple(a, /*index=1*/a)"),
    "comments": entry("a = f32[2] constant({1, /*)*/ 2}) // ) {", "r = f32[1] slice(a), slice={\n [0:1]/*]*/}"),
    "typed operands": entry("a = f32[2,3]{0,1} parameter(0)", "r = f32[2,3]{0,1} negate(f32[2,3]{0,1} %a)"),
    "signature": "HloModule m\n\nENTRY %e (a: f32[2,3]{0,1}) -> f32[2,3] {\n  ROOT %a = f32[2,3] parameter(0)\n}\n",
    "words": entry("%true = f32[4] parameter(0)", "%manual = f32[4] negate(%true)"),
}
"""What is special -> module."""
