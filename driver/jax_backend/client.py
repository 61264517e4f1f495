"""Options of the client that JAX makes; loads what it needs when it is asked."""

from contextlib import suppress
from typing import Any


def client_options() -> dict[str, Any]:
    """Options of the client; the message of a bad setting becomes that of the client's creation."""
    from neuronx_cc.driver.errors import render
    from neuronx_cc.driver.jax_backend.settings import LOGGER, device_settings, ignored_variables
    from neuronx_cc.driver.version import COMPILER_VERSION
    from neuronx_cc.ir.errors import NeuronError
    from neuronx_cc.ir.targets import find_machine

    # imports Pallas, which processes that do not use this platform are spared
    with suppress(ImportError, AttributeError):
        from neuronx_cc.driver.jax_backend import pallas

        pallas.register("neuron")
    try:
        settings = device_settings()
    except NeuronError as error:
        return {"error": render(error)}
    ignored = ignored_variables()
    if ignored:
        LOGGER.warning("variables without effect on the simulated devices: %s", ", ".join(ignored))
    return {
        "num_devices": settings.count,
        "hbm_bytes": find_machine("trn1").sizes().hbm_bytes,
        "platform_version": f"open-neuronx-cc {COMPILER_VERSION}",
    }


# the compiler and the simulator are imported by the first call ------------------------------------------------------
