"""Compiled programs kept across processes, in the vendor's layout: ``<place>/neuronxcc-<version>/MODULE_<m>+<f>/``.

The place is ``--cache_dir`` of ``NEURON_CC_FLAGS``, else ``NEURON_COMPILE_CACHE_URL``, else a folder of the user's own,
where only compilations of a second and more are kept; ``--no_cache`` turns it off. An entry appears by rename,
complete; the first of several writers wins. The key covers the module without locations, effective options, the
compiler's files and the machine description. A failed compilation leaves nothing. Several users may share a place:
entries get the permissions that the umask gives, and what another user does not let us read is compiled, not touched.
An entry that is damaged, or no entry at all but a pipe, a link or a directory, is removed and made again.
"""

import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from neuronx_cc.driver.jax_backend import artifact
from neuronx_cc.driver.jax_backend.program import Unit
from neuronx_cc.driver.jax_backend.settings import LOGGER
from neuronx_cc.driver.kept import compiler_files, place_of
from neuronx_cc.driver.parse import Parsed

WORTHWHILE_SECONDS = 1.0
HEADER, MODULE, NEFF, DONE = "header.json", "model.mlirbc", "model.neff", "model.done"
ABANDONED_SECONDS = 3600.0
"""A draft of this age was left by a process that did not live to finish it."""


class Cache:
    """One place; ``unit`` and ``keep`` never raise for what is wrong with files."""

    def __init__(self, place: Path, least_seconds: float) -> None:
        self.folder = place
        self.least_seconds = least_seconds

    def entry(self, key: str) -> Path:
        """The folder of a program; it exists when the program is kept."""
        flags = hashlib.sha256(f"{key}{compiler_files()}".encode()).hexdigest()
        return self.folder / f"MODULE_{key[:20]}+{flags[:12]}"

    def unit(self, key: str) -> Unit | None:
        """The kept program, or None."""
        entry = self.entry(key)
        try:
            if not _is_there(entry / DONE):
                return None
            header = json.loads(_content(entry / HEADER))
            unit = artifact.unit_of(header, _content(entry / MODULE), _content(entry / NEFF))
            if unit.key != key:
                raise ValueError("it belongs to another module")
        except PermissionError as error:
            LOGGER.warning(
                "no permission to read the cache entry %s (%s); the program is compiled", entry, error.filename
            )
            return None
        except Exception as error:
            LOGGER.warning("the cache entry %s is damaged (%s) and is made again", entry, error)
            with suppress(OSError):
                self._discard(entry)
            return None
        LOGGER.info("Using a cached neff at %s", entry / NEFF)
        return unit

    def keep(self, unit: Unit) -> None:
        """Store a program, if that is worthwhile."""
        if unit.seconds < self.least_seconds:
            return
        entry = self.entry(unit.key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            draft = self._draft()
            try:
                header, code, neff = artifact.parts_of(unit)
                (draft / MODULE).write_bytes(code)
                (draft / NEFF).write_bytes(neff)
                (draft / HEADER).write_text(json.dumps(header, sort_keys=True))
                (draft / DONE).touch()
                try:
                    os.rename(draft, entry)
                except OSError:
                    if not _is_there(entry / DONE):  # else another process was first
                        self._discard(entry)
                        os.rename(draft, entry)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        except PermissionError as error:
            LOGGER.warning("no permission to keep a compiled program in %s (%s)", self.folder, error.filename)
        except OSError as error:
            LOGGER.warning("cannot keep a compiled program in %s: %s", self.folder, error)

    def _draft(self) -> Path:
        """A fresh folder, with the permissions that the umask gives."""
        draft = self.folder / f".{os.getpid()}-{secrets.token_hex(8)}"
        draft.mkdir()
        return draft

    def _sweep(self) -> None:
        """Remove drafts that nobody works on any more."""
        for draft in self.folder.glob(".*"):
            with suppress(OSError):
                if time.time() - draft.lstat().st_mtime > ABANDONED_SECONDS:
                    _remove(draft)

    def _discard(self, entry: Path) -> None:
        """Take the entry away, at once for everybody, then remove it. Raises OSError."""
        doomed = self._draft()
        try:
            os.rename(entry, doomed / "entry")
        finally:
            _remove(doomed)


def _remove(path: Path) -> None:
    """Remove what is there, of whatever kind; links are not followed. Raises OSError."""
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


def _is_there(path: Path) -> bool:
    """Raises PermissionError where nobody may say."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _content(path: Path) -> bytes:
    """The bytes of a plain file; does not wait for who writes into a pipe. Raises OSError, ValueError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path.name} is no plain file")
        return file.read()


def find_cache(parsed: Parsed) -> Cache | None:
    """The cache that options and environment ask for."""
    place = place_of(parsed)
    return None if place is None else Cache(place.folder, 0.0 if place.chosen else WORTHWHILE_SECONDS)
