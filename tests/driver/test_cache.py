"""The compile cache of the JAX backend: what lies there is served or a miss, for one user and for several at a time."""

import io
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from generated import compile_text

from neuronx_cc.driver.jax_backend import artifact, cache
from neuronx_cc.driver.jax_backend.cache import DONE, HEADER, MODULE, NEFF, Cache
from neuronx_cc.driver.jax_backend.options import effective_options
from neuronx_cc.driver.jax_backend.program import Signature, Unit, make_executables
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import shape

TEXT = """HloModule small
ENTRY main {
  x = f32[4,8] parameter(0)
  y = f32[4] parameter(1)
  z = f32[4,8] broadcast(y), dimensions={0}
  ROOT w = f32[4,8] multiply(x, z)
}"""
KEY = "0123456789abcdef" * 4
NOBODY = 65534


@pytest.fixture(scope="module")
def unit() -> Unit:
    compiled = compile_text(TEXT)
    neff = Neff(compiled.program, compiled.constants)
    sides = [tuple(shape(each.dtype, each.dims) for each in side) for side in (neff.inputs, neff.outputs)]
    signature = Signature("small", *sides, (), (), ("device",))
    options = effective_options([], {})
    return Unit(KEY, "exact", signature, neff, make_executables(neff), b"module", options, 2.0)


def computes(found: Unit | None) -> bool:
    assert found is not None
    result = [np.zeros((4, 8), np.float32)]
    found.executables[0].compute([np.ones((4, 8), np.float32), np.full(4, 3, np.float32)], result)
    return bool((result[0] == 3).all())


def clean(place: Cache) -> bool:
    """Only the one entry is there: no draft is left."""
    return [path.name for path in place.folder.iterdir()] == [place.entry(KEY).name]


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Damage: something else in a file's place."""

    def damage(entry: Path) -> None:
        (entry / name).unlink()
        make(entry / name)

    return damage


def as_whole(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(entry: Path) -> None:
        shutil.rmtree(entry)
        make(entry)

    return damage


def edited(**changes: object) -> Callable[[Path], None]:
    """Damage: a header with other fields."""

    def damage(entry: Path) -> None:
        header = json.loads((entry / HEADER).read_text())
        (entry / HEADER).write_text(json.dumps(header | changes))

    return damage


DAMAGE = {
    "truncated NEFF": lambda entry: os.truncate(entry / NEFF, 1500),
    "truncated module": lambda entry: os.truncate(entry / MODULE, 3),
    "no header": lambda entry: (entry / HEADER).unlink(),
    "header is a list": lambda entry: (entry / HEADER).write_text("[1]"),
    "nested header": lambda entry: (entry / HEADER).write_text("[" * 100000),
    "binary header": lambda entry: (entry / HEADER).write_bytes(b"\xff\xfe"),
    "pipe": instead(NEFF, os.mkfifo),
    "directory": instead(NEFF, Path.mkdir),
    "dangling link": instead(HEADER, lambda path: path.symlink_to("nowhere")),
    "link to itself": instead(HEADER, lambda path: path.symlink_to(path.name)),
    "device": instead(MODULE, lambda path: path.symlink_to("/dev/zero")),
    "other key": edited(key="f" * 64),
    "other shape": edited(parameters=[["f32", [4000, 8]], ["f32", [4]]]),
    "other type": edited(parameters=[["f64", [4, 8]], ["f32", [4]]]),
    "fewer parameters": edited(parameters=[["f32", [4, 8]]]),
    "larger result": edited(results=[["f32", [400, 800]]]),
    "donor that is not there": edited(donors=[7]),
    "alias of no donor": edited(aliases=[[0, 0]]),
    "kinds": edited(result_kinds=[]),
    "shardings": edited(parameter_shardings=[""]),
    "no number": edited(parameters=[["f32", [4.0, 8]], ["f32", [4]]]),
    "options": edited(options=[["no_such_option", 1]]),
    "entry is a file": as_whole(Path.touch),
    "entry is a link": as_whole(lambda path: path.symlink_to("nowhere")),
    "entry is empty": as_whole(Path.mkdir),
    "entry is not done": lambda entry: (entry / DONE).unlink(),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_a_miss_and_made_again(
    name: str, unit: Unit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Cache(tmp_path / "kept", 0.0)
    place.keep(unit)
    DAMAGE[name](place.entry(KEY))
    with caplog.at_level(logging.WARNING):
        assert place.unit(KEY) is None
    if not name.startswith("entry is"):
        assert "is damaged" in caplog.text
    place.keep(unit)
    assert computes(place.unit(KEY))
    assert clean(place)


def test_entries_follow_the_umask_and_drafts_are_swept(unit: Unit, tmp_path: Path) -> None:
    place = Cache(tmp_path / "kept", 0.0)
    place.folder.mkdir(parents=True)
    old, new = place.folder / ".1-old", place.folder / ".2-new"
    for draft in (old, new):
        draft.mkdir()
        (draft / NEFF).touch()
    hours = time.time() - 2 * cache.ABANDONED_SECONDS
    os.utime(old, (hours, hours))
    for mask, folder, file in ((0o022, 0o755, 0o644), (0o077, 0o700, 0o600), (0o002, 0o775, 0o664)):
        shutil.rmtree(place.entry(KEY), ignore_errors=True)
        before = os.umask(mask)
        try:
            place.keep(unit)
        finally:
            os.umask(before)
        assert stat.S_IMODE(place.entry(KEY).stat().st_mode) == folder
        assert {stat.S_IMODE(path.stat().st_mode) for path in place.entry(KEY).iterdir()} == {file}
    assert not old.exists()
    assert new.exists()


def as_another_user(place: Cache, unit: Unit) -> tuple[bool, str]:
    """Whether another user's process finds the program, and what it is told, also when it keeps another one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            stream = io.StringIO()
            cache.LOGGER.handlers[:] = [logging.StreamHandler(stream)]
            found = place.unit(KEY) is not None
            place.keep(replace(unit, key="f" * 64))
            os.write(writing, f"{found} {stream.getvalue()}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as pipe:
        found, said = pipe.read().split(" ", 1)
    return found == "True", said


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reads_what_the_permissions_allow(unit: Unit, tmp_path: Path) -> None:
    place = Cache(tmp_path / "kept", 0.0)
    place.keep(unit)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    assert place.unit(KEY) is not None, "whatever that imports, the other user need not"
    found, said = as_another_user(place, unit)
    assert found
    assert "no permission to keep a compiled program" in said
    for path, mode in ((place.entry(KEY) / NEFF, 0o600), (place.entry(KEY), 0o700), (place.folder, 0o700)):
        path.chmod(mode)
        found, said = as_another_user(place, unit)
        assert not found
        assert "no permission to read the cache entry" in said
        assert computes(place.unit(KEY))
        path.chmod(0o755)
    place.folder.chmod(0o777)
    assert as_another_user(place, unit) == (True, "")
    assert computes(place.unit(KEY))


def test_writers_and_readers_at_the_same_time(unit: Unit, tmp_path: Path) -> None:
    """Processes keep, damage and read one entry: each reads the whole program or nothing."""
    place = Cache(tmp_path / "kept", 0.0)
    children = []
    for number in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for turn in range(8):
                    place.keep(unit)
                    if number == 0 and turn % 4 == 3:
                        (place.entry(KEY) / NEFF).unlink(missing_ok=True)
                    found = place.unit(KEY)
                    assert found is None or len(found.neff.program.records) == len(unit.neff.program.records)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    place.unit(KEY)
    place.keep(unit)
    assert computes(place.unit(KEY))
    assert clean(place)


def test_a_place_that_cannot_be_written_is_a_warning(
    unit: Unit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        Cache(tmp_path / "file", 0.0).keep(unit)
        assert Cache(tmp_path / "file", 0.0).unit(KEY) is None
    assert "cannot keep a compiled program" in caplog.text


def test_what_is_said_of_a_program_must_be_what_it_takes(unit: Unit) -> None:
    header, code, neff = artifact.parts_of(unit)
    wrong = header | {"results": [["f32", [4, 9]]]}
    with pytest.raises(RunError, match=r"result 0 is f32\[4,9\] in its header and f32\[4,8\] in its NEFF") as error:
        artifact.unit_of(wrong, code, neff)
    assert error.value.code == "EJAX902"
    donating = replace(unit, signature=replace(unit.signature, donors=(0,), aliases=((0, 0),)))
    assert artifact.unit_of(*artifact.parts_of(donating)).signature.aliases == ((0, 0),)
