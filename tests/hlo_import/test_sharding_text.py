"""Shardings: the proto's form prints as XLA prints it, and survives import and print."""

import pytest
from jaxlib import _hlo

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.hlo_import.proto import parse_proto

SHARDINGS = [
    "{replicated}",
    "{manual}",
    "{maximal device=3}",
    "{devices=[2,4]<=[8]}",
    "{devices=[2,4]<=[4,2]T(1,0)}",
    "{devices=[2,2]0,3,1,2}",
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
    "{devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}",
    "{replicated shard_as 4}",
    "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}",
    "{mesh['x'=2,'y'=4], [{'x', ?}, {'y':(1)2}], replicated={'y':(2)2}}",
]


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_text_and_proto_agree(sharding: str) -> None:
    text = f"HloModule m\n\nENTRY e {{\n  ROOT a = f32[8,8] parameter(0), sharding={sharding}\n}}\n"
    module = _hlo.hlo_module_from_text(text)
    theirs = print_module(parse_text(module.to_string()))
    assert f"sharding={sharding}" in theirs
    assert print_module(parse_proto(module.as_serialized_hlo_module_proto())) == theirs
    _hlo.hlo_module_from_text(theirs)


def test_tuples() -> None:
    sharding = "{{replicated}, {devices=[2,1]<=[2]}}"
    text = f"HloModule m\n\nENTRY e {{\n  ROOT a = (f32[8], f32[8,8]) parameter(0), sharding={sharding}\n}}\n"
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    assert print_module(parse_proto(proto)) == print_module(parse_text(text))
