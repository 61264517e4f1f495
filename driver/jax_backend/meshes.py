"""The meshes that HLO names while it is still to be divided over them; Shardy's partitioner takes them away."""

import re
from math import prod

_MESHES = b"xla.sdy.meshes"
_MESH, _AXIS = re.compile(rb"#sdy\.mesh<\[([^\]]*)\]"), re.compile(rb"=(\d{1,9})")


def mesh_devices(code: bytes) -> int:
    """Devices of the largest mesh over which HLO ``code``, or its attributes as text, is still to be divided."""
    at = code.find(_MESHES)
    meshes = _MESH.findall(code[at : at + 65536]) if at >= 0 else []
    return max((prod(map(int, _AXIS.findall(each))) for each in meshes), default=1)
