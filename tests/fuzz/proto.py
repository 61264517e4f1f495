"""Serialized HloModuleProtos, from the first byte to the NEFF."""

import modules
from jaxlib import _hlo


def seeds() -> list[bytes]:
    return [
        _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        for opcode, text in modules.texts().items()
        if opcode not in modules.NOT_OF_XLA
    ]


def run(data: bytes) -> None:
    modules.compile_module(data)
