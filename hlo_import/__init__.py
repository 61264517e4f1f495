"""Front ends: HLO text, HloModuleProto and StableHLO into the hlo dialect; the dialect back to HLO text.

``load_module(data, source)`` tells the formats apart by content.
"""

if __name__ != "neuronx_cc.hlo_import":
    raise ImportError("import this package as neuronx_cc.hlo_import, not as hlo_import")

from neuronx_cc.hlo_import.load import load_module

__all__ = ["load_module"]
