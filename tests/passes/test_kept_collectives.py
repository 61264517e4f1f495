"""Collectives of modules whose devices run programs of their own: all of them stay, in their order."""

import pytest
from pipelines import ADD

from neuronx_cc.hlo_import import load_module
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.passes.analysis.effects import keep_collectives
from neuronx_cc.passes.manager import PassContext, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

HEAD = f"HloModule m, replica_count=2\n{ADD}"
REDUCED = "all-reduce(x), replica_groups={{0,1}}, to_apply=add"
STEP = """step {
  s = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  x = f32[8] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  g = f32[8] REDUCED
  w = f32[8] add(v, g)
  ROOT t = (s32[], f32[8], f32[8]) tuple(j, w, x)
}
more {
  s = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
"""
CASES = {
    "unused": ("", ["a = f32[8] REDUCED", "ROOT r = f32[8] negate(x)"], (0, 1)),
    "equal": ("", ["a = f32[8] REDUCED", "b = f32[8] REDUCED", "ROOT r = f32[8] multiply(a, b)"], (1, 2)),
    "added": (
        "",
        ["a = f32[8] REDUCED", "b = f32[8] all-reduce(y), to_apply=add", "ROOT r = f32[8] add(a, b)"],
        (1, 2),
    ),
    "scattered": (
        "",
        [
            "a = f32[8] REDUCED",
            "i = u32[] replica-id()",
            "four = u32[] constant(4)",
            "at = u32[] multiply(i, four)",
            "ROOT r = f32[4] dynamic-slice(a, at), dynamic_slice_sizes={4}",
        ],
        (0, 1),
    ),
    "transposed": (
        "",
        [
            "two = f32[2,4] reshape(x)",
            "a = f32[2,4] all-reduce(two), replica_groups={{0,1}}, to_apply=add",
            "ROOT r = f32[4,2] transpose(a), dimensions={1,0}",
        ],
        (1, 1),
    ),
    "of 64-bit integers, unused": ("", ["i = s64[8] convert(x)", "a = s64[8] all-reduce(i), to_apply=add64",
                                        "ROOT r = f32[8] negate(x)"], (0, 1)),
    "in a loop": (
        STEP,
        [
            "z = s32[] constant(0)",
            "none = f32[] constant(0)",
            "zeros = f32[8] broadcast(none), dimensions={}",
            "s = (s32[], f32[8], f32[8]) tuple(z, zeros, x)",
            "l = (s32[], f32[8], f32[8]) while(s), condition=more, body=step",
            "ROOT r = f32[8] get-tuple-element(l), index=1",
        ],
        ("after", "inside"),
    ),
}  # fmt: skip
ADD64 = ADD.replace("add {", "add64 {").replace("f32", "s64")


@pytest.mark.parametrize("name", CASES)
def test_collectives_stay(name: str) -> None:
    more, lines, (shared, own) = CASES[name]
    body = "\n  ".join(["x = f32[8] parameter(0)", "y = f32[8] parameter(1)", *lines])
    text = f"{HEAD}{ADD64}{more}ENTRY main {{\n  {body}\n}}\n".replace("REDUCED", REDUCED)
    for kept, wanted in ((False, shared), (True, own)):
        module = load_module(text.encode())
        if kept:
            keep_collectives(module)
        run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext())
        printed = print_module(module)
        if name == "transposed":
            assert ("f32[2,4] all-reduce(" in printed) is kept, printed  # others expect elements in this order
        if isinstance(wanted, int):
            assert printed.count(" all-reduce(") == wanted, printed
        else:
            entry = printed[printed.index("ENTRY") :]
            assert (" all-reduce(" in entry) is (wanted == "after"), printed
