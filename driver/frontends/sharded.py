"""Sharded StableHLO and HLO -> the module of one device, by XLA's own partitioner (``jax_backend.partition``).

StableHLO states its partitions. HLO as JAX lowers to it does not, but names the meshes of a program that is still to be
divided; XLA's partitioner takes them away.
"""

import re

from neuronx_cc.driver.jax_backend.meshes import mesh_devices
from neuronx_cc.driver.jax_backend.partition import localize_stated
from neuronx_cc.hlo_import.load import detect, load_module
from neuronx_cc.ir.errors import CompileError

_ONE_PARTITION = re.compile(rb"mhlo\.num_partitions = 1 ")


def is_sharded(data: bytes) -> bool:
    """Whether a module has annotations and is for several partitions, as far as its bytes tell."""
    if b"num_partitions" in data and (b"sdy" in data or b"mhlo.sharding" in data):
        return detect(data) == "stablehlo" and not _ONE_PARTITION.search(data)
    return mesh_devices(data) > 1


def divide(data: bytes, source: str) -> tuple[bytes, tuple[int, int]]:
    """One device's HloModuleProto of a sharded module, and the replicas and partitions that run it.

    Raises what ``load_module`` raises for a module that is malformed, EJAX901 for one that XLA cannot partition.
    """
    try:
        return localize_stated(data)
    except CompileError:
        load_module(data, source)
        raise
