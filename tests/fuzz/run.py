"""Runs fuzz targets: damaged inputs in a process of its own, whose deaths, hangs and foreign exceptions are findings.

    python tests/fuzz/run.py all --seconds 60                  # what CI does
    python tests/fuzz/run.py neff --seconds 7200 --seed 9      # by hand, for hours
    python tests/fuzz/run.py neff --seconds 0                  # the seeds and the corpus alone
    python tests/fuzz/run.py neff --input FILE                 # one input, with the traceback

A target is a module beside this one. It defines ``seeds() -> list[bytes]``, good inputs, and ``run(data: bytes) ->
None``, which lets only the project's own errors through (``NeuronError``, but none of code INTERNAL). It may define
``mutate(data: bytes, draw: random.Random) -> bytes`` for damage that gets past checksums; else ``mutation.mutate`` is
taken. ``corpus/TARGET/`` holds inputs that once were findings, each a regression test.

Input number k of a run is a function of the seed, k and what earlier inputs led to: an input with an outcome (a code
and the words of a message, numbers left out) that is new becomes one that others are made from. Findings are kept
in ``build/fuzz/TARGET/``; the status is 1 when there are any.
"""

import argparse
import hashlib
import importlib
import json
import mmap
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORPUS = HERE / "corpus"
_STATE = struct.Struct("<qqd")
"""Number of the input at hand, its length, when it began; the input follows."""
_ROOM = 64 << 20
_SAMPLE = 0.05
_SECONDS_TO_START = 120
_PATIENCE = 6
"""Limits are of processor time; an input that waits for something may take so many times as long."""


@dataclass
class Tally:
    """What a run has seen."""

    inputs: int = 0
    outcomes: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)


def load(target: str) -> ModuleType:
    for folder in (HERE, ROOT / "tests" / "support", ROOT / "examples"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(target)


def targets() -> list[str]:
    """All targets there are."""
    return sorted(
        path.stem for path in HERE.glob("*.py") if "\ndef seeds(" in path.read_text() and path.stem[:5] != "test_"
    )


def corpus(target: str) -> list[bytes]:
    folder = CORPUS / target
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def outcome(module: ModuleType, data: bytes) -> tuple[str, str]:
    """What became of one input, and the traceback if that is a finding."""
    from neuronx_cc.ir.errors import NeuronError

    try:
        module.run(data)
    except NeuronError as error:
        if error.code == "INTERNAL":
            return "INTERNAL", traceback.format_exc()
        words = re.sub(r"'[^']*'|\"[^\"]*\"|%?[\w.-]*\d[\w.-]*", "#", error.message)
        return f"{error.code} {words[:60]}", ""
    except Exception as error:
        return type(error).__name__, traceback.format_exc()
    return "fine", ""


def place(trace: str) -> str:
    """The innermost places of a traceback, by which findings are told apart."""
    return "".join(line for line in trace.splitlines() if line.lstrip().startswith("File "))[-400:]


# the worker ---------------------------------------------------------------------------------------------------------


def work(target: str, folder: Path, seed: int, first: int, endless: bool) -> None:
    """Run inputs from number ``first`` on, ``endless``ly or up to the last one of the corpus.

    Prints a line of JSON for each with a new outcome, whose bytes are kept.
    """
    os.chdir(folder)  # reproducers of internal errors are written to where one is
    module = load(target)
    import mutation

    mutate = getattr(module, "mutate", mutation.mutate)
    fixed = [*module.seeds(), *corpus(target)]
    pool = [path.read_bytes() for path in sorted(folder.glob("new-*"))]
    known: set[str] = set()
    with (folder / "state").open("r+b") as file, mmap.mmap(file.fileno(), 0) as state:
        print(json.dumps({"fixed": len(fixed)}), flush=True)
        number = first
        while endless or number < len(fixed):
            if number < len(fixed):
                data = fixed[number]
            else:
                draw = random.Random(f"{seed} {number}")
                data = mutate(draw.choice([*fixed, *pool]), draw)[: _ROOM - _STATE.size]
            state[_STATE.size : _STATE.size + len(data)] = data
            state[: _STATE.size] = _STATE.pack(number, len(data), time.monotonic())
            what, trace = outcome(module, data)
            key = what + place(trace)
            if key not in known:
                known.add(key)
                kept = folder / f"{'bad' if trace else 'new'}-{number:012d}"
                kept.write_bytes(data)
                print(json.dumps({"input": str(kept), "outcome": what, "trace": trace}), flush=True)
                if not trace:
                    pool.append(data)
            number += 1
    print(json.dumps({"done": number}), flush=True)


# the watcher --------------------------------------------------------------------------------------------------------


class Watch:
    """Runs one target in workers, one after the other."""

    def __init__(self, target: str, options: argparse.Namespace) -> None:
        self.target, self.options = target, options
        self.tally = Tally()
        self.fixed, self.done = -1, False
        self.seen: set[str] = set()

    def run(self) -> Tally:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "state").touch()
            os.truncate(folder / "state", _ROOM)
            with (folder / "state").open("r+b") as file, mmap.mmap(file.fileno(), 0) as state:
                first, end = 0, None
                while first >= 0:
                    state[: _STATE.size] = _STATE.pack(first - 1, 0, time.monotonic())
                    first, end = self._worker(folder, state, first, end)
        return self.tally

    def _worker(self, folder: Path, state: mmap.mmap, first: int, end: float | None) -> tuple[int, float | None]:
        """Returns the number with which the next worker begins, or -1, and when the run ends."""
        output = folder / "output"
        options = self.options
        arguments = [self.target, "--seed", str(options.seed), "--seconds", str(options.seconds)]
        command = [sys.executable, "-X", "faulthandler", __file__, *arguments, "--worker", str(folder), str(first)]
        with output.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            why, read, number, seen, busy = "", 0, first - 1, first - 1, 0.0
            while not why:
                time.sleep(_SAMPLE)
                status = process.poll()
                read = self._report(output, read)
                number, _, begun = _STATE.unpack_from(state)
                if number != seen:
                    seen, busy = number, _processor_seconds(process.pid)
                allowed = options.limit if number >= first else _SECONDS_TO_START
                used = max(_processor_seconds(process.pid) - busy, (time.monotonic() - begun) / _PATIENCE)
                if status == 0 and self.done:
                    break
                if status is not None:
                    why = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
                elif used > allowed:
                    why = f"more than {allowed} s"
                elif _resident(process.pid) > options.memory << 20:
                    why = f"more than {options.memory} MiB"
                elif self.fixed >= 0:
                    end = time.monotonic() + options.seconds if end is None else end
                    if options.seconds > 0 and number >= self.fixed and time.monotonic() >= end:
                        break
            process.kill()
            process.wait()
        self._report(output, read)
        number, length, _ = _STATE.unpack_from(state)
        self.tally.inputs = number + 1
        if not why:
            return -1, end
        lines = output.read_text(errors="replace").splitlines()
        tail = "\n".join(line for line in lines if not line.startswith("{"))[-3000:]
        if number < first:
            self.tally.findings.append(f"the worker does not begin: {why}\n{tail}")
            return -1, end
        self._finding(state[_STATE.size : _STATE.size + length], why, tail)
        return number + 1, end

    def _report(self, path: Path, start: int) -> int:
        """Take note of the worker's lines from byte ``start`` on; returns where they end."""
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        for line in data[start:end].decode(errors="replace").splitlines():
            if line.startswith('{"fixed"'):
                self.fixed = json.loads(line)["fixed"]
            elif line.startswith('{"done"'):
                self.done = True
            elif line.startswith('{"input"'):
                note = json.loads(line)
                if note["trace"]:
                    self._finding(Path(note["input"]).read_bytes(), note["outcome"], note["trace"])
                else:
                    self.tally.outcomes.add(note["outcome"])
        return max(start, end)

    def _finding(self, data: bytes, why: str, trace: str) -> None:
        """Keep an input that was not survived, the first of each place."""
        key = f"{why} {place(trace)}"
        if key in self.seen:
            return
        self.seen.add(key)
        folder = self.options.found / self.target
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(data).hexdigest()[:16]
        (folder / name).write_bytes(data)
        (folder / f"{name}.txt").write_text(f"{why}\n{trace}")
        self.tally.findings.append(f"{why}: {folder / name}\n{trace[-1500:]}")


def _processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz targets of the project; see the top of this file.")
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target, after seeds and corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of processor time that one input may take")
    parser.add_argument("--memory", type=int, default=3072, help="MiB that a worker may take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at the same time")
    parser.add_argument("--found", type=Path, default=ROOT / "build" / "fuzz", help="where findings are kept")
    parser.add_argument("--input", type=Path, help="run this file alone")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        folder, first = options.worker
        work(options.targets[0], Path(folder), options.seed, int(first), options.seconds > 0)
        return 0
    if options.input:
        what, trace = outcome(load(options.targets[0]), options.input.read_bytes())
        print(trace or what)
        return int(bool(trace))
    if options.targets == ["all"]:
        options.targets = targets()
    with ThreadPoolExecutor(options.jobs) as threads:
        tallies = list(threads.map(lambda target: Watch(target, options).run(), options.targets))
    for target, tally in zip(options.targets, tallies, strict=True):
        print(f"{target}: {tally.inputs} inputs, {len(tally.outcomes)} outcomes, {len(tally.findings)} findings")
        for found in tally.findings:
            print(f"  {found}")
    return int(any(tally.findings for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
