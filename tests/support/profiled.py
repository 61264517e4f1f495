"""Small programs whose time goes somewhere obvious, and their analyses."""

from functools import cache

from generated import compile_text

from neuronx_cc.runtime.executable import Executable
from neuronx_cc.runtime.profiling.analysis import Analysis, analyse


def entry(body: str, more: str = "") -> str:
    return f"HloModule m\n{more}\nENTRY main {{\n{body}\n}}\n"


def at(name: str, line: int) -> str:
    return f'metadata={{op_name="{name}" source_file="/home/user/model.py" source_line={line}}}'


DOT = entry(
    f"""  x = f32[512,1024] parameter(0)
  w = f32[1024,1024] parameter(1)
  d = f32[512,1024] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {at("dot", 4)}
  ROOT e = f32[512,1024] tanh(d), {at("tanh", 5)}"""
)
BF16 = DOT.replace("f32", "bf16")
TRANSPOSE = entry(
    f"""  x = f32[513,1025] parameter(0)
  y = f32[513,1025] tanh(x), {at("tanh", 2)}
  r = f32[1025,513] transpose(x), dimensions={{1,0}}, {at("transpose", 3)}
  ROOT t = (f32[513,1025], f32[1025,513]) tuple(y, r)"""
)
STRIDED = entry(
    f"""  x = f32[64,64,64] parameter(0)
  ROOT r = f32[64,64,1] slice(x), slice={{[0:64],[0:64],[3:4]}}, {at("pick", 7)}"""
)
SORT = entry(
    f"""  x = s32[128,512] parameter(0)
  ROOT r = s32[128,512] sort(x), dimensions={{1}}, to_apply=less, {at("sort", 9)}""",
    """less { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }""",
)
LOOP = entry(
    """  zero = s32[] constant(0)
  x = f32[64,64] parameter(0)
  start = (s32[], f32[64,64]) tuple(zero, x)
  w = (s32[], f32[64,64]) while(start), condition=condition, body=body
  ROOT r = f32[64,64] get-tuple-element(w), index=1""",
    f"""body {{ p = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64,64] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[64,64] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {at("dot", 3)}
  ROOT t = (s32[], f32[64,64]) tuple(j, y) }}
condition {{ p = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(20000)
  ROOT l = pred[] compare(i, n), direction=LT }}""",
)
ALL = {"dot": DOT, "bf16": BF16, "transpose": TRANSPOSE, "strided": STRIDED, "sort": SORT, "loop": LOOP}


@cache
def analysis(name: str) -> Analysis:
    compiled = compile_text(ALL[name])
    return analyse(Executable.from_program(compiled.program, compiled.constants).execution())
