"""Random programs in large numbers: ``python tests/soak.py --kind jax --seed 0 --count 1000``.

Each program goes through passes, code generation and the simulator, with all its checks, and is compared with jaxlib's
CPU client. What fails is written to ``--failures`` as a file of kind and seed, with the program's text. Programs run in
a process of their own, which is replaced now and then, and when one of them kills it or takes too long.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# else XLA leaves out roundings to narrow types that the program asks for
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_allow_excess_precision=false"
# beside the race check
os.environ.setdefault("NEURONX_CC_PROVENANCE", "1")
ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "support")]

PER_PROCESS = 500
SECONDS = 900
"""A program may take, on a machine that is busy."""


def serve(kind: str, first: int, count: int) -> None:
    """Worker: one line of JSON a program."""
    from soak_kinds import judge

    for seed in range(first, first + count):
        begun = time.process_time()
        outcome, detail = judge(kind, seed)
        line = {"seed": seed, "outcome": outcome, "detail": detail, "seconds": time.process_time() - begun}
        print(json.dumps(line), flush=True)


def outcomes(kind: str, seed: int, count: int):
    """The lines of workers, one after the other, for seeds from ``seed``."""
    end = seed + count
    while seed < end:
        part = min(PER_PROCESS, end - seed)
        command = [sys.executable, __file__, "--kind", kind, "--seed", str(seed), "--count", str(part), "--serve"]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(worker.stdout, selectors.EVENT_READ)
        first = seed
        while seed < first + part:
            ready = selector.select(SECONDS)
            line = worker.stdout.readline() if ready else ""
            if not line:
                worker.kill()
                _, errors = worker.communicate()
                what = "killed: " + errors[-2000:] if ready else f"took more than {SECONDS} s"
                yield {"seed": seed, "outcome": "died", "detail": what, "seconds": 0.0}
                seed += 1
                break
            result = json.loads(line)
            seed = result["seed"] + 1
            yield result
        else:
            worker.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="jax", help="jax, modules, or a family: see soak_kinds.KINDS")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--failures", default="build/soak", help="folder for reproducers")
    parser.add_argument("--show", action="store_true", help="print the program of --seed, no more")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve or arguments.show:
        from soak_kinds import text

        if arguments.show:
            print(text(arguments.kind, arguments.seed))
        else:
            with contextlib.suppress(BrokenPipeError):
                serve(arguments.kind, arguments.seed, arguments.count)
        return 0
    folder = Path(arguments.failures)
    folder.mkdir(parents=True, exist_ok=True)
    counts: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(summary(arguments, counts, begun)))
    for result in outcomes(arguments.kind, arguments.seed, arguments.count):
        outcome = result["outcome"]
        counts[outcome] += 1
        if outcome == "refused":
            print(f"{arguments.kind}-{result['seed']} refused: {result['detail'].splitlines()[0][:200]}", flush=True)
        elif outcome != "right":
            report(folder, arguments.kind, result)
        if counts.total() % 100 == 0:
            print(f"{arguments.kind} {counts.total()} of {arguments.count}: {dict(counts)}", flush=True)
    return summary(arguments, counts, begun)


def report(folder: Path, kind: str, result: dict) -> None:
    name = f"{kind}-{result['seed']}"
    head = result["detail"].strip().splitlines()
    print(f"{name} {result['outcome']}: {head[-1][:300] if head else ''}", flush=True)
    try:
        shown = [sys.executable, __file__, "--kind", kind, "--seed", str(result["seed"]), "--show"]
        text = subprocess.run(shown, capture_output=True, text=True, timeout=SECONDS).stdout
    except subprocess.TimeoutExpired:
        text = traceback.format_exc()
    (folder / f"{name}.txt").write_text(f"{result['outcome']}\n{result['detail']}\n\n{text}")


def summary(arguments: argparse.Namespace, counts: collections.Counter[str], begun: float) -> int:
    bad = counts.total() - counts["right"] - counts["refused"]
    print(
        f"{arguments.kind}, seeds from {arguments.seed}: {counts.total()} programs, {dict(counts)}, "
        f"{time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
