"""What the environment says about devices, options and the cache.

Read once for each process when JAX makes the backend, except ``NEURON_CC_FLAGS``, which counts for every compilation.
Variables that the vendor's runtime knows and that have no meaning here are named in one log line.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.targets import MAX_DEVICES

LOGGER = logging.getLogger("neuronx_cc.jax")
DEFAULT_DEVICES = 2
"""Cores of one Trainium chip."""

HONOURED = frozenset(
    [
        "NEURON_CC_FLAGS",
        "NEURON_COMPILE_CACHE_URL",
        "NEURON_NUM_DEVICES",
        "NEURON_RT_NUM_CORES",
        "NEURON_RT_VISIBLE_CORES",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN",
        "NEURON_RT_STOCHASTIC_ROUNDING_SEED",
        "NEURON_PLATFORM_TARGET_OVERRIDE",
        "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_FAIL_ON_NAN",
        "NEURON_XPROF",
    ]
)


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """How many devices JAX sees, and how they round."""

    count: int
    stochastic_rounding_seed: int | None
    """None: FP32 is rounded to the nearest narrower value."""
    fail_on_nan: bool


def device_settings(environment: Mapping[str, str] | None = None) -> DeviceSettings:
    """The settings in ``environment`` (default: the process's). Raises UsageError EARG902 for a bad value."""
    values = os.environ if environment is None else environment
    seed = _number(values, "NEURON_RT_STOCHASTIC_ROUNDING_SEED", 0)
    rounding = _number(values, "NEURON_RT_STOCHASTIC_ROUNDING_EN", 0)
    return DeviceSettings(
        _device_count(values), seed if rounding else None, bool(_number(values, "NEURON_FAIL_ON_NAN", 0))
    )


def ignored_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Variables of the vendor's software that are set and have no effect here."""
    values = os.environ if environment is None else environment
    return sorted(name for name in values if name.startswith("NEURON_") and name not in HONOURED)


def _device_count(values: Mapping[str, str]) -> int:
    """``NEURON_RT_VISIBLE_CORES`` wins over ``NEURON_RT_NUM_CORES`` (vendor's rule) and over ``NEURON_NUM_DEVICES``."""
    visible = values.get("NEURON_RT_VISIBLE_CORES", "").strip()
    if visible:
        count = len(_ranges(visible))
    else:
        count = _number(values, "NEURON_RT_NUM_CORES", 0) or _number(values, "NEURON_NUM_DEVICES", DEFAULT_DEVICES)
    if not 1 <= count <= MAX_DEVICES:
        raise UsageError("EARG902", f"{count} NeuronCores are asked for", f"ask for 1 to {MAX_DEVICES}")
    return count


def _ranges(text: str) -> set[int]:
    """``0``, ``0-3`` (inclusive) and comma lists of these."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise UsageError("EARG902", f"NEURON_RT_VISIBLE_CORES is {text!r}", "write a core or a range such as 0-3")
        cores |= set(range(int(first), int(last if dash else first) + 1))
    return cores


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise UsageError("EARG902", f"{name} is {text!r}", "write a whole number")
    return int(text)
