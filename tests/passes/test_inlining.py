"""inline_calls, dce and dedupe_computations on IR built by hand."""

import numpy as np
import pytest

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError, UsageError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes import inline_calls
from neuronx_cc.passes.manager import PassContext, run_passes, timing_table

F32 = hlo.array_type("f32", (4,))
SCALAR = hlo.array_type("f32", ())


def computation(module, name, types, build, is_entry=False):
    made = hlo.ComputationOp.make(name, types, is_entry)
    module.op.body.block.add_op(made)

    def emit(kind, operands, result_type, **properties):
        op = kind.make(operands, result_type, hlo.Loc(name=f"{name}.op"), properties)
        made.block.add_op(op)
        return op.results[0]

    made.block.add_op(hlo.ReturnOp.create(operands=[build(emit, *made.block.args)]))
    return made


def opcodes(module):
    return [op.opcode for op in ops_of(module.entry.block)]


def test_nested_calls_are_moved_and_copied():
    module = hlo.HloModule.empty("m")
    computation(module, "double", [F32], lambda emit, x: emit(hlo.AddOp, (x, x), F32))
    computation(
        module,
        "twice",
        [F32],
        lambda emit, x: emit(hlo.CallOp, (emit(hlo.NegateOp, (x,), F32),), F32, to_apply=hlo.StrsAttr(("double",))),
    )

    def main(emit, x):
        first = emit(hlo.CallOp, (x,), F32, to_apply=hlo.StrsAttr(("twice",)))
        return emit(hlo.CallOp, (first,), F32, to_apply=hlo.StrsAttr(("twice",)))

    computation(module, "main", [F32], main, is_entry=True)
    run_passes(module, ["inline_calls"], PassContext())
    assert opcodes(module) == ["negate", "add", "negate", "add"]
    assert [c.computation_name for c in module.computations()] == ["main"]


def test_what_says_no_line_has_the_line_of_its_call():
    """Both of two calls of one body, the copied and the moved one; an op with a line of its own keeps it."""
    module = hlo.HloModule.empty("calls")

    def body(emit, x):
        kept = emit(hlo.NegateOp, (x,), F32)
        kept.owner.attributes["loc"] = hlo.LocAttr(hlo.Loc(name="own", source_file="own.py", source_line=1))
        return emit(hlo.AbsOp, (kept,), F32)

    def entry(emit, x):
        for line in (5, 9):
            x = emit(hlo.CallOp, (x,), F32, to_apply=hlo.StrsAttr(("body",)))
            x.owner.attributes["loc"] = hlo.LocAttr(hlo.Loc(name="call", source_file="user.py", source_line=line))
        return x

    computation(module, "body", [F32], body)
    made = computation(module, "main", [F32], entry, is_entry=True)
    run_passes(module, ["inline_calls"], PassContext())
    assert [op.loc.place for op in ops_of(made.block)] == ["own.py:1", "user.py:5", "own.py:1", "user.py:9"]


def test_call_of_identity_becomes_its_argument():
    module = hlo.HloModule.empty("m")
    computation(module, "same", [F32], lambda emit, x: x)
    computation(
        module, "main", [F32], lambda emit, x: emit(hlo.CallOp, (x,), F32, to_apply=hlo.StrsAttr(("same",))), True
    )
    run_passes(module, ["inline_calls"], PassContext())
    assert opcodes(module) == []
    assert module.entry.root is module.entry.block.args[0]


def test_map_applies_its_scalar_body_to_arrays():
    module = hlo.HloModule.empty("m")
    one = module.constants.add(np.array(1, np.float32), "f32")
    computation(
        module,
        "body",
        [SCALAR],
        lambda emit, x: emit(hlo.AddOp, (x, emit(hlo.ConstantOp, (), SCALAR, value=hlo.ConstantAttr(one))), SCALAR),
    )
    computation(
        module, "main", [F32], lambda emit, x: emit(hlo.MapOp, (x,), F32, to_apply=hlo.StrsAttr(("body",))), True
    )
    run_passes(module, ["inline_calls"], PassContext())
    assert opcodes(module) == ["constant", "broadcast", "add"]
    assert all(op.shape.dims == (4,) for op in list(ops_of(module.entry.block))[1:])


def conditional(index):
    module = hlo.HloModule.empty("m")
    digest = module.constants.add(np.asarray(index), "pred" if isinstance(index, np.bool_) else "s32")
    computation(module, "negate", [F32], lambda emit, x: emit(hlo.NegateOp, (x,), F32))
    computation(module, "sine", [F32], lambda emit, x: emit(hlo.SineOp, (x,), F32))
    dtype = "pred" if isinstance(index, np.bool_) else "s32"

    def main(emit, x):
        chooser = emit(hlo.ConstantOp, (), hlo.array_type(dtype, ()), value=hlo.ConstantAttr(digest))
        return emit(hlo.ConditionalOp, (chooser, x, x), F32, branches=hlo.StrsAttr(("negate", "sine")))

    computation(module, "main", [F32], main, is_entry=True)
    return module


@pytest.mark.parametrize(
    ("index", "branch"),
    [(np.bool_(True), "negate"), (np.bool_(False), "sine"), (np.int32(0), "negate"), (np.int32(-3), "sine")],
)
def test_conditional_on_a_constant_keeps_one_branch(index, branch):
    module = conditional(index)
    run_passes(module, ["inline_calls", "dce"], PassContext())
    assert opcodes(module) == [branch]
    assert [c.computation_name for c in module.computations()] == ["main"]


def test_async_copy_and_domain_vanish():
    module = hlo.HloModule.empty("m")
    computation(module, "work", [F32], lambda emit, x: emit(hlo.TanhOp, (x,), F32))
    pair = hlo.tuple_type((hlo.tuple_type((F32,)), F32))

    def main(emit, x):
        start = emit(hlo.AsyncStartOp, (x,), pair, calls=hlo.StrsAttr(("work",)))
        update = emit(hlo.AsyncUpdateOp, (start,), pair)
        done = emit(hlo.AsyncDoneOp, (update,), F32)
        return emit(hlo.DomainOp, (emit(hlo.CopyOp, (done,), F32),), F32)

    computation(module, "main", [F32], main, is_entry=True)
    run_passes(module, ["inline_calls"], PassContext())
    assert opcodes(module) == ["tanh"]


def test_equal_combiners_are_merged():
    module = hlo.HloModule.empty("m")
    for name in ("sum.1", "sum.2"):
        computation(module, name, [SCALAR, SCALAR], lambda emit, a, b: emit(hlo.AddOp, (a, b), SCALAR))
    computation(module, "max", [SCALAR, SCALAR], lambda emit, a, b: emit(hlo.MaximumOp, (a, b), SCALAR))

    def main(emit, x, zero):
        reduced = [
            emit(hlo.ReduceOp, (x, zero), SCALAR, dimensions=hlo.IntsAttr((0,)), to_apply=hlo.StrsAttr((name,)))
            for name in ("sum.1", "sum.2", "max")
        ]
        return emit(hlo.TupleOp, reduced, hlo.tuple_type((SCALAR,) * 3))

    computation(module, "main", [F32, SCALAR], main, is_entry=True)
    run_passes(module, ["dedupe_computations"], PassContext())
    assert [c.computation_name for c in module.computations()] == ["sum.1", "max", "main"]
    reduces = [op for op in ops_of(module.entry.block) if isinstance(op, hlo.ReduceOp)]
    assert [op.to_apply.data for op in reduces] == [("sum.1",), ("sum.1",), ("max",)]


def test_calls_of_calls_that_no_memory_holds():
    module = hlo.HloModule.empty("m")
    computation(module, "f0", [F32], lambda emit, x: emit(hlo.NegateOp, (x,), F32))
    for level in range(1, 60):
        callee = hlo.StrsAttr((f"f{level - 1}",))
        computation(
            module,
            f"f{level}",
            [F32],
            lambda emit, x, callee=callee: emit(
                hlo.CallOp, (emit(hlo.CallOp, (x,), F32, to_apply=callee),), F32, to_apply=callee
            ),
            level == 59,
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline_calls, "MOST_COPIES", 1000)
        with pytest.raises(CompileError, match=r"EVRF007.*more than 1,119 instructions"):
            run_passes(module, ["inline_calls"], PassContext())


def test_call_of_a_missing_computation_is_an_error_that_names_the_pass():
    module = hlo.HloModule.empty("m")
    computation(
        module, "main", [F32], lambda emit, x: emit(hlo.CallOp, (x,), F32, to_apply=hlo.StrsAttr(("gone",))), True
    )
    context = PassContext()
    with pytest.raises(CompileError, match=r"EVRF064.*'gone'.*pass inline_calls"):
        run_passes(module, ["inline_calls"], context)
    assert context.failed_pass == "inline_calls"


def test_unknown_pass_is_refused_before_anything_runs():
    module = conditional(np.bool_(True))
    with pytest.raises(UsageError, match="no pass 'inline'"):
        run_passes(module, ["inline_calls", "inline"], PassContext())
    assert opcodes(module) == ["constant", "conditional"]


def test_dumps_and_timings():
    module = conditional(np.bool_(True))
    context = PassContext()
    titles = []
    run_passes(
        module,
        ["inline_calls", "dce"],
        context,
        print_before={"dce"},
        print_after={"all"},
        dump=lambda _, title: titles.append(title),
    )
    assert titles == ["after inline_calls", "before dce", "after dce"]
    assert [(t.name, t.ops_before, t.ops_after) for t in context.timings] == [("inline_calls", 4, 2), ("dce", 2, 1)]
    assert "inline_calls" in timing_table(context)
