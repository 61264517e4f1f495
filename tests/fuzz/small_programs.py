"""Small compiled programs that between them have most instructions, loops and regions: what targets damage."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

import numpy as np
from generated import Compiled, compile_text

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Variable
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import NUMPY_DTYPE

_COMPUTATIONS = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
larger { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
ascending { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }
"""
_TEXTS = {
    "dense": """
  x = bf16[300,24] parameter(0)
  w = bf16[24,10] parameter(1)
  y = bf16[300,10] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT z = bf16[300,10] tanh(y)
""",
    "norm": """
  x = f32[40,130] parameter(0)
  zero = f32[] constant(0)
  s = f32[40] reduce(x, zero), dimensions={1}, to_apply=add
  m = f32[130] reduce(x, zero), dimensions={0}, to_apply=larger
  r = f32[40,130] broadcast(s), dimensions={0}
  c = f32[40,130] broadcast(m), dimensions={1}
  d = f32[40,130] divide(x, r)
  ROOT y = f32[40,130] subtract(d, c)
""",
    "integers": """
  x = s32[9,33] parameter(0)
  y = u8[9,33] parameter(1)
  w = s32[9,33] convert(y)
  a = s32[9,33] multiply(x, w)
  b = s32[9,33] remainder(a, x)
  p = pred[9,33] compare(a, b), direction=LT
  s = s32[9,33] select(p, a, b)
  h = s16[9,33] convert(s)
  ROOT out = (s32[9,33], s16[9,33], pred[9,33]) tuple(s, h, p)
""",
    "rows": """
  x = f32[50,20] parameter(0)
  i = s32[7,1] parameter(1)
  g = f32[7,20] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1,20}
  t = f32[20,7] transpose(g), dimensions={1,0}
  u = f8e4m3fn[20,7] convert(t)
  v = f32[20,7] convert(u)
  ROOT s = f32[20,7] sort(v), dimensions={1}, to_apply=ascending
""",
    "window": """
  x = bf16[2,9,9,5] parameter(0)
  w = bf16[3,3,5,7] parameter(1)
  y = bf16[2,9,9,7] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  f = f32[2,9,9,7] convert(y)
  none = f32[] constant(-inf)
  ROOT m = f32[2,4,4,7] reduce-window(f, none), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=larger
""",
}
_LOOP = """HloModule loop
body {
  s = (s32[], f32[6,8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[6,8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  row = f32[1,8] dynamic-slice(x, i, i), dynamic_slice_sizes={1,8}
  e = f32[1,8] exponential(row)
  zero = s32[] constant(0)
  y = f32[6,8] dynamic-update-slice(x, e, i, zero)
  ROOT r = (s32[], f32[6,8]) tuple(j, y)
}
more {
  s = (s32[], f32[6,8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[6,8] get-tuple-element(s), index=1
  c = f32[1,1] slice(x), slice={[0:1], [0:1]}
  v = f32[] reshape(c)
  most = f32[] constant(10)
  five = s32[] constant(5)
  p = pred[] compare(v, most), direction=LT
  q = pred[] compare(i, five), direction=LT
  ROOT b = pred[] and(p, q)
}
ENTRY main {
  x = f32[6,8] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[6,8]) tuple(zero, x)
  w = (s32[], f32[6,8]) while(s), condition=more, body=body
  ROOT y = f32[6,8] get-tuple-element(w), index=1
}"""


@cache
def compiled() -> list[Compiled]:
    """All of them, compiled."""
    texts = [f"HloModule {name}\n{_COMPUTATIONS}\nENTRY main {{{body}}}" for name, body in _TEXTS.items()]
    return [compile_text(text) for text in (*texts, _LOOP)]


@cache
def neffs() -> list[bytes]:
    """All of them, as files that are not compressed, but for the first one."""
    return [
        Neff(each.program, each.constants, name="small", fast_loading=number > 0).to_bytes()
        for number, each in enumerate(compiled())
    ]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends a run that only takes long by an error from a signal handler."""

    def end(number: int, frame: FrameType | None) -> None:
        raise RunError("TIME", "more time than there is")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def zeros(variables: list[Variable]) -> list[np.ndarray]:
    """Inputs for a program of these variables."""
    given = sorted((each for each in variables if each.kind == "input"), key=lambda each: each.index)
    return [np.zeros(each.dims, NUMPY_DTYPE[each.dtype]) for each in given]
