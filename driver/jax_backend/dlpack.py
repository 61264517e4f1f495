"""DLPack, which has no name for this device: arrays are exported as copies in the memory of the host.

jaxlib packs the memory of its own platforms only. Imports end on a CPU device, as JAX defines it, or on the platform's
own device where JAX has no CPU device.
"""

from importlib import import_module
from typing import Any

import numpy as np

NEEDS_COPY = (
    "DLPack hands arrays of the platform neuron over as copies in the host's memory: copy=False is not possible; "
    "leave it out, or call numpy.asarray"
)
OTHER_DEVICE = (
    "DLPack hands arrays of the platform neuron over in the host's memory only (kDLCPU): call jax.device_put first"
)
NEEDS_CPU = (
    "NumPy has no DLPack type for {dtype}, a CPU device has: set JAX_PLATFORMS=neuron,cpu, or call numpy.asarray"
)


def register(platform: str) -> None:
    """Give JAX's arrays of ``platform`` the protocol, and its ``from_dlpack`` a place for arrays of the host.

    Exports raise BufferError for arrays on several devices (JAX's own error), ``copy=False`` and other devices.
    """
    from jax._src import array, xla_bridge

    public: Any = import_module("jax.dlpack")
    dlpack: Any = import_module("jax._src.dlpack")
    of_array: Any = array.ArrayImpl
    export, device_of, load = of_array.__dlpack__, of_array.__dlpack_device__, dlpack.from_dlpack
    host = (dlpack.DLDeviceType.kDLCPU, 0)

    def here(x: Any) -> bool:
        return len(x.sharding.device_set) == 1 and x.platform() == platform

    def __dlpack__(self: Any, **options: Any) -> Any:
        if not here(self):
            return export(self, **options)
        if options.get("copy") is False:
            raise BufferError(NEEDS_COPY)
        if tuple(options.get("dl_device") or host) != host:
            raise BufferError(OTHER_DEVICE)
        # the array's own copy on the host is shared and read-only; whoever takes this one may write to it
        return _packed(np.array(self), options.get("max_version"))

    def __dlpack_device__(self: Any) -> tuple[Any, int]:
        return host if here(self) else device_of(self)

    def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Any:
        has_cpu = "cpu" in xla_bridge.backends()
        if has_cpu or not hasattr(external_array, "__dlpack_device__") or external_array.__dlpack_device__()[0] != 1:
            return load(external_array, device, copy)
        if copy is False:
            raise ValueError(NEEDS_COPY)
        from jax import device_put

        return device_put(np.array(np.from_dlpack(external_array)), device)

    of_array.__dlpack__, of_array.__dlpack_device__ = __dlpack__, __dlpack_device__
    public.from_dlpack = dlpack.from_dlpack = from_dlpack


def _packed(values: Any, version: Any) -> Any:
    if values.dtype.kind in "biufc":
        return values.__dlpack__(max_version=version)
    import jax

    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError:
        raise BufferError(NEEDS_CPU.format(dtype=values.dtype)) from None
    return jax.device_put(values, cpu).__dlpack__()
