"""Builds the native parts with sanitizers and runs the tests of native code on them: ``make sanitize``.

    python tests/sanitize/run.py                    # all
    python tests/sanitize/run.py thread --levels base
    python tests/sanitize/run.py address --tests "tests/runtime -k races"

``address`` has the address and the undefined-behaviour sanitizer, ``thread`` the thread sanitizer. Each has a complete
copy of the package in ``build/sanitize/KIND``, which stands ahead of the installed one in its tests; what a sanitizer
finds ends the process, so a test fails. Nothing is built again whose sources did not change. Both are built and run at
the same time.
"""

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "sanitize"


class Kind(NamedTuple):
    flags: str
    runtime: str
    """The sanitizer's library, which must be there before all others."""
    options: dict[str, str]
    tests: str


KINDS = {
    # processors of this kind read words at any address, and programs may place operands anywhere
    "address": Kind(
        "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=alignment"
        " -fno-sanitize-recover=all",
        "libasan.so",
        # the interpreter and jaxlib leave memory to the end of the process
        {"ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        "tests/runtime/test_native.py tests/runtime/test_loans.py tests/runtime/test_races.py"
        " tests/runtime/test_short_lived.py tests/runtime/test_pieces.py tests/runtime/test_threads.py"
        " tests/runtime/test_regions.py"
        " tests/runtime/test_one_hot.py tests/runtime/test_rows_of_few.py"
        " tests/sanitize/plugin_cases.py",
    ),
    # of what is not instrumented (NumPy, jaxlib) it sees neither locks nor atomics
    "thread": Kind(
        "-O1 -g1 -fsanitize=thread",
        "libtsan.so",
        {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66:report_signal_unsafe=0"},
        "tests/runtime/test_native.py tests/runtime/test_loans.py tests/runtime/test_threads.py"
        " tests/runtime/test_short_lived.py tests/runtime/test_pieces.py tests/sanitize/plugin_cases.py",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The native tests under sanitizers; see the top of this file.")
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], default=[], help="default: all")
    parser.add_argument("--levels", default="base,avx2", help="of the processor, to be built (default: base,avx2)")
    parser.add_argument("--tests", help="what pytest is given instead of the native tests")
    options = parser.parse_args()
    with ThreadPoolExecutor(len(KINDS)) as threads:
        done = list(threads.map(lambda kind: run(kind, options), options.kinds or list(KINDS)))
    for kind, (ok, seconds, output) in zip(options.kinds or list(KINDS), done, strict=True):
        print(f"{output}\n{kind}: {'passed' if ok else 'failed'} in {seconds:.0f} s")
    return int(not all(ok for ok, _, _ in done))


def run(kind: str, options: argparse.Namespace) -> tuple[bool, float, str]:
    """Whether all is well, how long it took, and what is to be read."""
    started = time.monotonic()
    failed = build(kind, options.levels)
    if failed:
        return False, time.monotonic() - started, failed
    chosen = KINDS[kind]
    environment = {
        **os.environ,
        **chosen.options,
        # the sanitizer looks for what throws exceptions when it starts, before jaxlib brings that
        "LD_PRELOAD": f"{runtime_library(chosen.runtime)} {runtime_library('libstdc++.so.6')}",
        "PYTHONPATH": str(BUILD / kind / "lib"),
        "PYTHONSAFEPATH": "1",  # the checkout's package is not looked for
        "NEURONX_CC_THREADS": "3",
        "CI": "true",
    }
    where = [sys.executable, "-c", "import neuronx_cc; print(neuronx_cc.__file__)"]
    place = subprocess.run(where, cwd=ROOT, env=environment | {"LD_PRELOAD": ""}, capture_output=True, text=True).stdout
    if not place.startswith(str(BUILD / kind)):
        return False, time.monotonic() - started, f"the tests would run on {place}"
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-x", "-q"]
    command += shlex.split(options.tests or chosen.tests)
    if kind == "thread" and shutil.which("setarch"):
        command = ["setarch", platform.machine(), "-R", *command]  # its shadow memory needs addresses of its own
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode == 0, time.monotonic() - started, (done.stdout + done.stderr)[-6000:]


def runtime_library(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def build(kind: str, levels: str) -> str:
    """Make the copy of the package. Returns why that did not work, or nothing."""
    folder = BUILD / kind
    sources = sorted([ROOT / "setup.py", *(ROOT / "runtime").glob("*/*.cpp"), *(ROOT / "runtime").glob("*/*.h")])
    digest = hashlib.sha256(f"{KINDS[kind].flags} {levels}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    stamp = folder / "built"
    base = "build_py" if stamp.exists() and stamp.read_text() == digest.hexdigest() else "build"
    places = ["--build-base", str(folder), "--build-lib", str(folder / "lib")] if base == "build" else []
    places = places or ["--build-lib", str(folder / "lib")]
    if base == "build":
        shutil.rmtree(folder / "lib", ignore_errors=True)  # what cannot be built must be missing
    environment = {**os.environ, "NATIVE_FLAGS": KINDS[kind].flags, "NATIVE_LEVELS": levels}
    command = [sys.executable, "setup.py", "-q", base, *places]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    missing = [name for name in ("libcore", "librace", "_pjrt") if not list((folder / "lib").rglob(f"{name}*.so"))]
    if done.returncode or missing:
        return f"{done.stdout}{done.stderr}\nnot built: {', '.join(missing)}"[-6000:]
    stamp.write_text(digest.hexdigest())
    return ""


if __name__ == "__main__":
    sys.exit(main())
