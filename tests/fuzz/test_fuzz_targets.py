"""Seeds and corpus of every fuzz target are survived, and the runner finds what it is for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")

BAD_TARGET = """
import os
import time

from neuronx_cc.ir.errors import RunError


def seeds():
    return [b"good", b"refused", b"segfault", b"hang", b"foreign", b"internal", b"greedy"]


def run(data):
    if data == b"refused":
        raise RunError("ENEF901", "refused")
    if data == b"internal":
        raise RunError("INTERNAL", "internal")
    if data == b"segfault":
        os.kill(os.getpid(), 11)
    if data == b"hang":
        while True:
            pass
    if data == b"foreign":
        raise KeyError(data)
    if data == b"greedy":
        kept = b"1" * (400 << 20)
        time.sleep(100)
"""


def fuzz(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.slow
def test_seeds_and_corpus_are_survived() -> None:
    done = fuzz("all", "--seconds", "0")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_runner_finds_crashes_hangs_greed_and_foreign_exceptions(tmp_path: Path) -> None:
    (tmp_path / "bad_target.py").write_text(BAD_TARGET)
    arguments = ["--seconds", "0", "--limit", "2", "--memory", "256", "--found", str(tmp_path)]
    done = fuzz("bad_target", *arguments, path=str(tmp_path))
    assert done.returncode == 1
    assert "bad_target: 7 inputs, 2 outcomes, 5 findings" in done.stdout
    for what in ("signal SIGSEGV", "more than 2.0 s", "KeyError", "INTERNAL", "more than 256 MiB"):
        assert f"  {what}: " in done.stdout
    kept = {path.read_bytes() for path in (tmp_path / "bad_target").iterdir() if path.suffix != ".txt"}
    assert kept == {b"segfault", b"hang", b"foreign", b"internal", b"greedy"}
