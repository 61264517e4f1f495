"""What is not generated is refused with the unsupported-operator error: op, place and remedy, never a crash."""

import jax
import numpy as np
import pytest
from generated import compile_text, text_of
from opcode_texts import TEXTS

from neuronx_cc.ir.errors import CompileError

X = np.ones((20, 30), np.float32)

UNSUPPORTED = ("outfeed", "recv", "send", "set-dimension-size")


@pytest.mark.parametrize("opcode", UNSUPPORTED)
def test_unsupported_operators(opcode: str) -> None:
    with pytest.raises(CompileError, match=rf"EVRF001.*{opcode}.*\(at %") as caught:
        compile_text(TEXTS[opcode])
    assert caught.value.remedy
    assert caught.value.loc is not None
    assert caught.value.loc.text_line > 0


def test_all_of_a_module_at_once() -> None:
    text = """HloModule m

ENTRY main {
  a = f32[4] parameter(0)
  n = s32[] parameter(1)
  t = token[] after-all()
  o = token[] outfeed(a, t), outfeed_shape=f32[4]
  ROOT r = f32[4] set-dimension-size(a, n), dimensions={0}
}
"""
    with pytest.raises(CompileError) as caught:
        compile_text(text)
    for opcode in ("outfeed", "set-dimension-size"):
        assert opcode in caught.value.message


def test_element_types() -> None:
    with jax.enable_x64(True):
        text = text_of(lambda x: x * 2, X.astype(np.float64))
    with pytest.raises(CompileError, match="f64"):
        compile_text(text)


def test_more_than_the_memory_of_a_core() -> None:
    text = """HloModule m

ENTRY main {
  x = f32[65536,32768] parameter(0)
  y = f32[65536,32768] parameter(1)
  ROOT z = f32[65536,32768] add(x, y)
}
"""
    with pytest.raises(CompileError, match=r"EOOM001.*16 GiB") as caught:
        compile_text(text)
    assert "MiB" in caught.value.message
