"""The grammar of HLO text beyond what JAX prints: long forms, tables, short asynchronous ops, layouts, header."""

import numpy as np
import pytest
from jaxlib import _hlo

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError, Loc
from neuronx_cc.ir.reference import evaluate

HEADER = """HloModule jit_f, is_scheduled=true,
  input_output_alias={ {0}: (1, {}, must-alias), {1}: (0, {1}, may-alias) },
  buffer_donor={ (1, {}), (0, {0}) },
  entry_computation_layout={((f32[2]{0}, s32[]), f32[4]{0:T(256)})->(f32[4]{0}, s32[])},
  replica_count=2, num_partitions=4, allow_spmd_sharding_propagation_to_output={true,false},
  frontend_attributes={a="b{,}",mesh={"x"=2}}

ENTRY main {
  p = (f32[2], s32[]) parameter(0)
  q = f32[4] parameter(1)
  s = s32[] get-tuple-element(p), index=1
  ROOT r = (f32[4], s32[]) tuple(q, s)
}
"""


def test_header() -> None:
    module = parse_text(HEADER)
    assert module.name == "jit_f"
    assert module.aliases == (hlo.Alias((0,), 1, (), must=True), hlo.Alias((1,), 0, (1,)))
    assert module.donors == ((1, ()), (0, (0,)))
    header = dict(module.header)
    assert header["replica_count"] == "2"
    assert header["frontend_attributes"] == '{a="b{,}",mesh={"x"=2}}'
    again = parse_text(print_module(module))
    assert (again.aliases, again.donors) == (module.aliases, module.donors)
    assert dict(again.header)["num_partitions"] == "4"


def test_an_alias_must_exist() -> None:
    with pytest.raises(Exception, match="expected an output index"):
        parse_text(HEADER.replace("{ {0}: (1", "{ {7}: (1"))


ALIASED = """HloModule m, input_output_alias={{ {} }}

ENTRY main {{
  p = {} parameter(0)
  q = f32[4] parameter(1)
  ROOT r = (f32[4], f32[4]) tuple(q, q)
}}
"""


@pytest.mark.parametrize(
    ("aliases", "parameter", "problem"),
    [
        ("{0}: (0, {}, may-alias)", "f32[5]", r"f32\[4\] and f32\[5\], which have different sizes"),
        ("{1}: (0, {}, must-alias)", "s32[4]", r"f32\[4\] and s32\[4\], which differ"),
        ("{0}: (0, {}, must-alias)", "f32[2,2]", r"f32\[4\] and f32\[2,2\], which differ"),
        ("{0}: (0, {}, may-alias), {1}: (0, {}, may-alias)", "f32[4]", "one output for each parameter, found two"),
    ],
)
def test_aliases_that_cannot_be(aliases: str, parameter: str, problem: str) -> None:
    with pytest.raises(CompileError, match=problem):
        parse_text(ALIASED.format(aliases, parameter))


@pytest.mark.parametrize(
    ("aliases", "parameter"),
    [
        ("{0}: (0, {}, may-alias)", "s32[4]"),
        ("{0}: (0, {}, may-alias)", "f32[2,2]"),
        ("{0}: (0, {}, must-alias), {1}: (1, {}, must-alias)", "f32[4]"),
    ],
)
def test_aliases_that_xla_takes_too(aliases: str, parameter: str) -> None:
    """An alias that need not be may change shape and type, as jaxlib's CPU client has it."""
    assert len(parse_text(ALIASED.format(aliases, parameter)).aliases) == aliases.count(":")


LONG = """HloModule m

%add (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %r.1 = f32[] add(f32[] %x.1, f32[] %y.1)
}

ENTRY %main (p: (f32[2,3], /*index=1*/s32[])) -> f32[2] {
  %p = (f32[2,3]{1,0:T(8,128)S(1)}, /*index=1*/s32[]) parameter(0), sharding={{replicated}, {maximal device=0}}
  // a comment
  %a = f32[2,3]{1,0} get-tuple-element((f32[2,3]{1,0}, s32[]) %p), index=0
  %z = f32[] constant(-0.)
  ROOT %r = f32[2]{0} reduce(f32[2,3]{1,0} %a, /* two */ f32[] %z), dimensions={1},
    to_apply=%add, metadata={op_type="reduce" op_name="jit(f)/\\"sum\\"{1}" source_file="/a b/c.py" source_line=12}
}
"""


def test_long_form() -> None:
    module = parse_text(LONG, "long.hlo")
    short = parse_text(print_module(module))
    assert print_module(short) == print_module(module)
    reduce = next(op for op in module.entry.block.ops if op.name == "hlo.reduce")
    assert isinstance(reduce, hlo.HloOp)
    assert reduce.loc == Loc("r", 'jit(f)/"sum"{1}', "/a b/c.py", 12, 14)
    assert 'op_type="reduce"' in print_module(module)
    assert "sharding={{replicated}, {maximal device=0}}" in print_module(module)


def test_an_entry_stands_below_what_it_calls_and_above_others() -> None:
    start = LONG.index("%add (")
    entry = LONG.index("ENTRY")
    with pytest.raises(CompileError, match="stands above its caller, found 'add'"):
        parse_text(LONG[:start] + LONG[entry:] + LONG[start:entry])
    above = parse_text(LONG + LONG[start:entry].replace("%add (", "%unused ("))
    assert print_module(above) == print_module(parse_text(LONG))


def test_computations_in_place() -> None:
    text = """HloModule m
ENTRY main {
  a = f32[2,3] parameter(0)
  z = f32[] constant(1)
  ROOT r = f32[2] reduce(a, z), dimensions={1}, to_apply={
    x = f32[] parameter(0)
    y = f32[] parameter(1)
    ROOT m = f32[] multiply(x, y)
  }, metadata={op_name="prod"}
}"""
    module = parse_text(text)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(module, [array])[0], array.prod(1))


def test_equal_combiners_become_one() -> None:
    body = "{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT r = f32[] add(x, y)\n}\n"
    text = (
        f"HloModule m\nf {body}g {body}h {body.replace('add(x, y)', 'add(y, x)')}"
        "ENTRY main {\n  a = f32[2,3] parameter(0)\n  z = f32[] constant(1)\n"
        "  b = f32[2] reduce(a, z), dimensions={1}, to_apply=f\n"
        "  c = f32[2] reduce(a, z), dimensions={1}, to_apply=g\n"
        "  d = f32[2] reduce(a, z), dimensions={1}, to_apply=h\n"
        "  ROOT r = (f32[2], f32[2], f32[2]) tuple(b, c, d)\n}\n"
    )
    module = parse_text(text)
    assert [computation.computation_name for computation in module.computations()] == ["f", "h", "main"]
    calls = [op.to_apply.data[0] for op in module.entry.block.ops if isinstance(op, hlo.ReduceOp)]
    assert calls == ["f", "f", "h"]


TABLES = """HloModule m

FileNames
1 "/home/me/model.py"
2 "/lib/jax.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=42 end_line=42 column=8 end_column=20}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=0 end_column=0}

StackFrames
1 {file_location_id=2 parent_frame_id=2}
2 {file_location_id=1}

ENTRY main {
  a = f32[2] parameter(0)
  b = f32[2] negate(a), metadata={op_name="jit(f)/neg" stack_frame_id=2}
  ROOT c = f32[2] negate(b), metadata={op_name="jit(f)/neg" stack_frame_id=99}
}
"""


def test_stack_frames_resolve() -> None:
    first, second = [op for op in parse_text(TABLES).entry.block.ops if isinstance(op, hlo.NegateOp)]
    assert (first.loc.source_file, first.loc.source_line) == ("/home/me/model.py", 42)
    assert (second.loc.source_file, second.loc.source_line) == ("", 0)


ASYNC = """HloModule m

ENTRY main {
  a = f32[4] parameter(0)
  s = ((f32[4]), f32[4], s32[]) custom-call-start(a), async_execution_thread="side", custom_call_target="Erf",
    backend_config={"x": [1, "}"]}
  u = ((f32[4]), f32[4], s32[]) custom-call-update(s)
  ROOT d = f32[4] custom-call-done(u)
}
"""


def test_short_asynchronous_form() -> None:
    module = parse_text(ASYNC)
    inner, entry = module.computations()
    wrapped = next(op for op in inner.block.ops if isinstance(op, hlo.CustomCallOp))
    assert wrapped.target.data == "Erf"
    assert [op.name for op in entry.block.ops] == [
        "hlo.async_start",
        "hlo.async_update",
        "hlo.async_done",
        "hlo.return",
    ]
    printed = print_module(module)
    assert 'execution_thread="side"' in printed
    assert print_module(parse_text(printed)) == printed


@pytest.mark.parametrize(
    ("operand", "result"),
    [("{1,0}", "{1,0}"), ("{0,1}", "{1,0}"), ("{1,0}", "{0,1}"), ("{0,1}", "{0,1}")],
)
def test_bitcast_keeps_storage_order(operand: str, result: str) -> None:
    text = (
        f"HloModule m\nENTRY main {{\n  a = f32[2,6]{operand} parameter(0)\n  ROOT b = f32[3,4]{result} bitcast(a)\n}}"
    )
    array = np.arange(12, dtype=np.float32).reshape(2, 6)
    stored = array.ravel("C" if operand == "{1,0}" else "F")
    expected = stored.reshape((3, 4), order="C" if result == "{1,0}" else "F")
    np.testing.assert_array_equal(evaluate(parse_text(text), [array])[0], expected)


def test_attributes_survive() -> None:
    text = (
        "HloModule m\n\nENTRY main {\n  a = f32[4] parameter(0), parameter_replication={true}\n"
        "  b = f32[4] negate(a)\n"
        '  ROOT c = f32[4] add(a, b), sharding={devices=[2]<=[2] metadata={op_name="x"}}, '
        'frontend_attributes={k="v,}",q={"a":1}}, control-predecessors={b}, backend_config={"n":"1","t":["}"]}, '
        'statistics={visualizing_index=0,stat=1}, metadata={op_name="n"}\n}\n'
    )
    printed = print_module(parse_text(text))
    for piece in (
        "parameter_replication={true}",
        'sharding={devices=[2]<=[2] metadata={op_name="x"}}',
        'frontend_attributes={k="v,}",q={"a":1}}',
        "control-predecessors={b}",
        'backend_config={"n":"1","t":["}"]}',
        "statistics={visualizing_index=0,stat=1}",
        'metadata={op_name="n"}',
    ):
        assert piece in printed


def test_names_stay_distinct_when_passes_reuse_them() -> None:
    module = parse_text("HloModule m\nENTRY main {\n  a = f32[4] parameter(0)\n  ROOT b = f32[4] negate(a)\n}")
    block = module.entry.block
    first = block.first_op
    assert isinstance(first, hlo.NegateOp)
    again = hlo.NegateOp.make([first.results[0]], first.results[0].type, first.loc)
    block.insert_op_after(again, first)
    printed = print_module(module)
    assert "b.1 = f32[4] negate(b)" in printed
    parse_text(printed)


def test_combiners_that_differ_in_places_only_become_one() -> None:
    body = "{{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT r = f32[] add(x, y), metadata={{{}}}\n}}\n"
    bodies = [
        f"{name} " + body.format(f'op_name="{name}" source_file="a.py" source_line={line} source_end_line={line}')
        for line, name in enumerate("fg", 3)
    ]
    text = (
        f"HloModule m\n{bodies[0]}{bodies[1]}ENTRY main {{\n  a = f32[2,3] parameter(0)\n  z = f32[] constant(1)\n"
        "  b = f32[2] reduce(a, z), dimensions={1}, to_apply=f\n"
        "  ROOT r = f32[] reduce(b, z), dimensions={0}, to_apply=g\n}\n"
    )
    module = parse_text(text)
    assert [computation.computation_name for computation in module.computations()] == ["f", "main"]
    assert "source_end_line=3" in print_module(module)


def test_large_constants_can_be_left_out() -> None:
    text = f"HloModule m\nENTRY main {{\n  ROOT a = s32[20] constant({{{', '.join(map(str, range(20)))}}})\n}}"
    module = parse_text(text)
    assert "constant({...})" in print_module(module, large_constants=False)
    assert "18, 19}" in print_module(module)


LAID_OUT = """HloModule m, is_scheduled=true,
  entry_computation_layout={(f32[2,3]{0,1:T(8,128)}, /*index=1*/s32[])->f32[2,3]{0,1}}

ENTRY e {
  a = f32[2,3]{0,1} parameter(0)
  b = s32[] parameter(1)
  c = f32[] convert(b)
  d = f32[2,3]{0,1} broadcast(c), dimensions={}
  ROOT r = f32[2,3]{0,1} add(a, d)
}
"""


def test_the_entry_layout_and_the_schedule_stay_while_they_are_true() -> None:
    header = print_module(parse_text(LAID_OUT)).splitlines()[0]
    assert "is_scheduled=true" in header
    assert "entry_computation_layout={(f32[2,3]{0,1:T(8,128)}, s32[])->f32[2,3]{0,1}}" in header
    _hlo.hlo_module_from_text(print_module(parse_text(LAID_OUT)))
    other = LAID_OUT.replace("{(f32[2,3]{0,1:T(8,128)}, /*index=1*/s32[])", "{(f32[3,2]{0,1}, s32[])")
    module = parse_text(other)
    assert "{(f32[2,3]{0,1}, s32[])->f32[2,3]{0,1}}" in print_module(module)


def test_comments_within_metadata():
    metadata = '{/*c*/op_name="a//b" /* "d" */ source_file="/*e*/f" // g\n source_line=3 }'
    text = f"HloModule m\nENTRY main {{\n  ROOT a = f32[] constant(1), metadata={metadata}\n}}\n"
    loc = parse_text(text).entry.block.first_op.loc
    assert (loc.op_name, loc.source_file, loc.source_line) == ("a//b", "/*e*/f", 3)
