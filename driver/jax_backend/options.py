"""The effective options of one compilation: defaults, ``NEURON_CC_FLAGS``, then ``compiler_options`` of ``jax.jit``.

Names are those of ``neuronx-cc compile``, with dashes or underscores; XLA's, which begin with ``xla_``, do nothing here
and are accepted, since programs for several platforms pass them. Two defaults differ. ``--auto-cast`` is ``none``,
because JAX programs expect FP32 products close to the CPU's (and as the vendor's compiler has it from SDK 2.27 on);
``matmult`` and ``all`` are asked for. ``--int64`` is ``exact``, because JAX programs with 64-bit integers mean them.
"""

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from neuronx_cc.driver import options
from neuronx_cc.driver.jax_backend.settings import LOGGER
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.parse import Parsed, closest, from_keywords, parse, split_flags
from neuronx_cc.ir.errors import UsageError

PLUGIN_DEFAULTS: dict[str, str | int] = {"auto_cast": "none", "int64": "exact", "verbose": options.LEVELS["error"]}
UNUSED = ("output", "explain_options", "constants", "signature")
"""Options of the command that name files of its own."""


@cache
def _known_keywords() -> frozenset[str]:
    return frozenset(name for option in options.COMPILE.options for name in (option.key, *map(_keyword, option.flags)))


def effective_options(overrides: Iterable[tuple[str, Any]], environment: Mapping[str, str] | None = None) -> Parsed:
    """Options for one compilation; ``overrides`` are the pairs of ``compiler_options``.

    Raises UsageError EARG901 for a name that is no option, EARG902 for a bad value.
    """
    values = os.environ if environment is None else environment
    parsed = parse(split_flags(values.get("NEURON_CC_FLAGS", "")), options.COMPILE)
    if parsed.files:
        raise UsageError("EARG903", f"NEURON_CC_FLAGS names a file: {parsed.files[0]}", "give options only")
    for key, value in PLUGIN_DEFAULTS.items():
        if key not in parsed.given:
            parsed.values[key] = value
    target = values.get("NEURON_PLATFORM_TARGET_OVERRIDE", "").strip()
    keywords: dict[str, Any] = {}
    if target and "target" not in parsed.given:
        keywords["target"] = target
    if values.get("NEURON_LOGICAL_NC_CONFIG", "").strip() and "logical_nc_config" not in parsed.given:
        keywords["logical_nc_config"] = values["NEURON_LOGICAL_NC_CONFIG"].strip()
    known = _known_keywords()
    for name, value in overrides:
        key = _keyword(name)
        if name.startswith("xla_"):
            LOGGER.info("the XLA option %s has no effect on the simulated devices", name)
            continue
        if key not in known:
            raise UsageError(
                "EARG901",
                f"No such compile option: '{name}'{closest(key, known)}",
                "compiler_options takes the options of neuronx-cc compile",
            )
        keywords[key] = _word(value)
    if keywords:
        parsed = from_keywords(options.COMPILE, keywords, parsed)
    for key in UNUSED:
        if key in parsed.given:
            raise UsageError("EARG905", f"--{key.replace('_', '-')} has no meaning for JAX programs", "drop it")
    planned_machine(parsed)
    return parsed


def differing(parsed: Parsed) -> list[tuple[str, Any]]:
    """The recorded options that are not this backend's defaults, as ``effective_options`` takes them."""
    usual = effective_options((), {}).recorded()
    changed = [(key, value) for key, value in parsed.recorded().items() if value != usual[key]]
    return [(key, list(value) if isinstance(value, tuple) else value) for key, value in changed]


def _keyword(name: str) -> str:
    return re.sub("^-+", "", name).replace("-", "_")


def _word(value: Any) -> Any:
    """JAX hands flags over as booleans or as text."""
    if isinstance(value, str) and value in ("True", "true", "False", "false"):
        return value in ("True", "true")
    return value
