"""The ``scan`` opcode, expanded and by the reference semantics, beside plain loops in NumPy."""

from typing import Any

import numpy as np
import pytest
from generated import compile_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, run_passes

Array = np.ndarray[Any, Any]

SUMS = """HloModule sums
double { a = f32[3] parameter(0) ROOT b = f32[3] add(a, a) }
step {
  x = f32[3] parameter(0)
  c = f32[3] parameter(1)
  s = f32[3] add(x, c)
  d = f32[3] call(s), to_apply=double
  ROOT t = (f32[3], f32[3]) tuple(d, s)
}
ENTRY main {
  a = f32[3,7] parameter(0)
  z = f32[3] parameter(1)
  ROOT r = (f32[3,7], f32[3]) scan(a, z), dimensions={1}, num_carries=1, is_reverse=REVERSE, to_apply=step
}
"""

SEVERAL = """HloModule several
step {
  x = f32[] parameter(0)
  i = s32[2] parameter(1)
  n = s32[] parameter(2)
  one = s32[] constant(1)
  m = s32[] add(n, one)
  y = f32[] convert(n)
  o = f32[] multiply(x, y)
  ROOT t = (f32[], s32[2], s32[]) tuple(o, i, m)
}
ENTRY main {
  a = f32[5] parameter(0)
  i = s32[5,2] parameter(1)
  n = s32[] constant(10)
  ROOT r = (f32[5], s32[5,2], s32[]) scan(a, i, n), dimensions={0}, num_carries=1, to_apply=step
}
"""

WITHOUT_CARRIES = """HloModule apart
step { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY main {
  a = f32[3,4] parameter(0)
  ROOT r = f32[3,4] scan(a), dimensions={0}, num_carries=0, to_apply=step
}
"""


def check(text: str, inputs: list[Array], wanted: list[Array]) -> None:
    module = parse_text(text)
    run_passes(module, ["expand_scan", "inline_calls"], PassContext(), verify_each=True)
    again = parse_text(print_module(parse_text(text)))
    for results in (evaluate(module, inputs), evaluate(again, inputs), compile_text(text).run(inputs)):
        for result, want in zip(results, wanted, strict=True):
            assert result.dtype == want.dtype
            np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse: bool) -> None:
    random = np.random.default_rng(0)
    x, start = (random.integers(-9, 10, dims).astype(np.float32) for dims in ((3, 7), (3,)))
    turn = slice(None, None, -1 if reverse else 1)
    sums = x[:, turn].cumsum(1)[:, turn] + start[:, None]
    last = sums[:, 0 if reverse else -1]
    check(SUMS.replace("REVERSE", str(reverse).lower()), [x, start], [2 * sums, last])


def test_several_arrays() -> None:
    x, i = np.arange(5, dtype=np.float32), np.arange(10, dtype=np.int32).reshape(5, 2)
    check(SEVERAL, [x, i], [x * np.arange(10, 15, dtype=np.float32), i, np.array(15, np.int32)])


def test_without_carries() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    check(WITHOUT_CARRIES, [x], [-x])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dimensions={0}", "dimensions={1}"),
        ("num_carries=0", "num_carries=2"),
        ("x = f32[4] parameter(0)", "x = f32[3] parameter(0)"),
        ("ROOT r = f32[3,4]", "ROOT r = f32[2,4]"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str) -> None:
    with pytest.raises(CompileError, match="EVRF064"):
        parse_text(WITHOUT_CARRIES.replace(old, new))
