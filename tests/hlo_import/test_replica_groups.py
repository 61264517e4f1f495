"""Replica groups: every spelling expands to the same lists, from text and from protos."""

import pytest
from jaxlib import _hlo

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.hlo_import.proto import parse_proto
from neuronx_cc.hlo_import.replica_groups import replica_groups
from neuronx_cc.ir import hlo

TEXT = """HloModule m

ENTRY e {
  a = f32[4,4] parameter(0)
  ROOT g = f32[4,4] all-to-all(a), channel_id=1, replica_groups=GROUPS, dimensions={1}
}
"""

SPELLINGS = {
    "{}": (),
    "{{0,1},{2,3}}": ((0, 1), (2, 3)),
    "[2,4]<=[8]": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "[2,4]<=[4,2]T(1,0)": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "mesh['x'=2,'y'=4] {'x'}": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['x'=2,'y'=4] {'y','x'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['x'=2,'y'=4] {'y':(1)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['x'=2,'y'=4] {'y':(2)2}": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "mesh['x'=2,'y'=4], device_ids=(0,2,1,3,4,5,6,7) {'x'}": ((0, 4), (2, 5), (1, 6), (3, 7)),
    "mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'x'}": ((0, 1), (2, 3), (4, 5), (6, 7)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_expansion(spelling: str) -> None:
    assert replica_groups(spelling) == SPELLINGS[spelling]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_text_and_proto_agree(spelling: str) -> None:
    text = TEXT.replace("GROUPS", spelling)
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    module = parse_text(text)
    printed = print_module(module)
    assert print_module(parse_proto(proto)) == printed
    op = module.entry.block.first_op
    assert isinstance(op, hlo.AllToAllOp)
    assert op.replica_groups == hlo.GroupsAttr(SPELLINGS[spelling])
    _hlo.hlo_module_from_text(printed)


@pytest.mark.parametrize(
    "spelling",
    [
        "0,1",
        "{0,1}",
        "{{0,x}}",
        "[2,4]<=[9]",
        "[2,4]<=[4,2]T(1,1)",
        "[999999999,999999999]<=[999999999,999999999]",
        "mesh['x'=2] {'y'}",
        "mesh['x'=0] {'x'}",
        "mesh['x'=4] {'x':(3)2}",
        "mesh['x'=4] {'x','x'}",
        "mesh['x'=999999999,'y'=999999999] {'x'}",
        "mesh['x'=2], device_ids=(0,1,2) {'x'}",
    ],
)
def test_malformed(spelling: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        replica_groups(spelling)
