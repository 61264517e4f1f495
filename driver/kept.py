"""Where the JAX backend keeps compiled programs, and ``-O3`` what it has measured, for other processes."""

import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.version import COMPILER_VERSION

LOGGER = logging.getLogger("neuronx_cc")


class Place(NamedTuple):
    """A folder that need not exist."""

    folder: Path
    chosen: bool
    """Whether the user named it; else it is a folder of the user's own for all programs."""


def place_of(parsed: Parsed) -> Place | None:
    """What options and environment ask for; None for nothing."""
    if parsed.values.get("no_cache"):
        return None
    version = f"neuronxcc-{COMPILER_VERSION}"
    chosen = parsed.text_or_none("cache_dir") or os.environ.get("NEURON_COMPILE_CACHE_URL", "").strip()
    if chosen:
        path = chosen.removeprefix("file://")
        if "://" in path:
            _cannot_reach(path)
            return None
        return Place(Path(path).expanduser() / version, True)
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Place(Path(base).expanduser() / "neuron-compile-cache" / version, False)


@cache
def _cannot_reach(place: str) -> None:
    LOGGER.warning("the compile cache %s is not used: only folders are, no remote places", place)


@cache
def compiler_files() -> str:
    """A digest of names, sizes and times of the compiler's files, machine descriptions among them."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for folder in ("hlo_import", "ir", "passes", "codegen", "runtime", "driver"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".toml"):
                facts = path.stat()
                digest.update(f"{path.relative_to(root)} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
