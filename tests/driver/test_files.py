"""Outputs appear whole or not at all; inputs that cannot be read are errors, not tracebacks."""

import os
import stat
from pathlib import Path

import pytest

from neuronx_cc.driver import files
from neuronx_cc.ir.errors import CompileError, RunError, UsageError


def test_write_replaces_by_rename(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")
    inode = target.stat().st_ino
    files.write_bytes(str(target), b"new", CompileError)
    assert target.read_bytes() == b"new"
    assert target.stat().st_ino != inode
    assert os.listdir(tmp_path) == ["out"]


def test_mode_follows_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        files.write_bytes(str(tmp_path / "out"), b"x", CompileError)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


def test_failure_in_the_middle_leaves_the_old_file_alone(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")

    def fill(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="No space left") as caught:
        files.write(str(target), fill, RunError)
    assert caught.value.code == "EFIL902"
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_interrupt_leaves_nothing(tmp_path):
    def fill(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write(str(tmp_path / "out"), fill, RunError)
    assert os.listdir(tmp_path) == []


def test_symlink_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write_bytes(str(tmp_path / "link"), b"x", CompileError)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_device_is_written_not_replaced(tmp_path):
    files.write_bytes(os.devnull, b"x", CompileError)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_device():
    with pytest.raises(CompileError, match="No space left"):
        files.write_bytes("/dev/full", b"x" * 100_000, CompileError)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "directory"), ("no/such/file", "no directory"), ("bad\0name", "null"), ("input", "it is the input")],
)
def test_hopeless_outputs_are_refused_early(tmp_path, name, problem):
    (tmp_path / "input").write_text("x")
    with pytest.raises(UsageError, match=problem) as caught:
        files.check_writable(str(tmp_path / name) if name else str(tmp_path), "--output", [str(tmp_path / "input")])
    assert caught.value.code == "EFIL902"


def test_files_that_overwrite_each_other(tmp_path):
    module, link, new = (str(tmp_path / name) for name in ("module", "link", "new"))
    Path(module).write_text("x")
    os.link(module, link)
    files.check_distinct({"--output": new, "--trace": os.devnull, "--logfile": os.devnull}, [module, "bad\0name"])
    with pytest.raises(UsageError, match="it is the input"):
        files.check_distinct({"--logfile": link}, [module])
    with pytest.raises(UsageError, match="--output and --logfile are one file") as caught:
        files.check_distinct({"--output": new, "--logfile": f"{tmp_path}/./new"}, [module])
    assert caught.value.code == "EARG905"


def test_possible_outputs_pass(tmp_path):
    files.check_writable(str(tmp_path / "new"), "--output", [str(tmp_path / "absent")])
    files.check_writable(os.devnull, "--output")


@pytest.mark.parametrize("name", ["absent", "directory", "bad\0name"])
def test_unreadable_inputs(tmp_path, name):
    (tmp_path / "directory").mkdir()
    with pytest.raises(UsageError) as caught:
        files.read(str(tmp_path / name), "model file")
    assert caught.value.code == "EFIL901"
    with pytest.raises(RunError):
        files.read(str(tmp_path / name), "NEFF", RunError)
