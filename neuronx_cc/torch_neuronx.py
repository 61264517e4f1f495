"""For scripts written for ``torch_neuronx``: ``from neuronx_cc import torch_neuronx`` in place of importing that."""

from typing import Any

import neuronx_cc.torch  # noqa: F401 -- registers what saved modules need
from neuronx_cc.driver.frontends.torch.shim import (
    ABSENT,
    DataParallel,
    async_load,
    dynamic_batch,
    experimental,
    lazy_load,
    replace_weights,
    trace,
)

__all__ = ["DataParallel", "async_load", "dynamic_batch", "experimental", "lazy_load", "replace_weights", "trace"]


def __getattr__(name: str) -> Any:
    said = f": {ABSENT[name]}" if name in ABSENT else f"; there are {', '.join(__all__)}"
    raise AttributeError(f"neuronx_cc.torch_neuronx has no {name!r}{said}", name=name)
