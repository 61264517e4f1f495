"""Donated parameters are named in the signature of the results that take them over."""

from neuronx_cc.codegen.compile import lower_module
from neuronx_cc.hlo_import.parser import parse_text

TEXT = """
HloModule m, input_output_alias={ {1}: (0, {}, may-alias) }

ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  s = f32[4] add(x, y)
  p = f32[4] multiply(x, y)
  ROOT r = (f32[4], f32[4]) tuple(s, p)
}
"""


def test_alias_is_recorded_on_the_result() -> None:
    program, _ = lower_module(parse_text(TEXT))
    outputs = {variable.index: variable.alias for variable in program.variables if variable.kind == "output"}
    assert outputs == {0: -1, 1: 0}
