"""Tunes the examples at full size: what is chosen at two tolerances, beside the strategy that goes op by op.

    python benchmarks/tuning.py measure [PROGRAM ...]      # into docs/tuning.json, one process a program
    python benchmarks/tuning.py basic [PROGRAM ...]        # beside what was measured
    FRONT=2 python benchmarks/tuning.py measure gpt2       # with that many points of the front besides
    python benchmarks/tuning.py write                      # docs/tuning.md and docs/images/tuning-*.svg from it

Every count of trials is that of a tuning by itself; equal trials of one program's tunings are made once here. The
strategy ``basic`` may make ``SHARE`` times the trials of ours: where it is not done by then, the table says so.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from full_size import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, IMAGES = ROOT / "docs/tuning.json", ROOT / "docs/tuning.md", ROOT / "docs/images"
TOLERANCES = (1e-2, 1e-3)
SHARE = 5
FRONT = int(os.environ.get("FRONT", "0"))
"""Points of the front that are looked for besides."""
EQUAL = 1e-6
"""Relative difference of times that are equal but for rounding."""
NEAR = 0.2
"""Relative difference of predicted and true errors that is not remarked on."""
CHOSEN = ("gpt2", "bert", "llama", "resnet", "mamba", "moe", "unet", "diffusion")
INTRODUCTION = f"""# Tuning the examples

By `benchmarks/tuning.py`: the programs of `examples/` at full size, weights as parameters, random values, types
`bf16`, `fp16`, `tf32` and `fp8_e4m3`. A trial is the whole program compiled and run once, the FP32 program among them.
`basic` goes op by op and may make {SHARE} times the trials of the default strategy: "not done" means that it had looked
at some of the types only by then; nothing, that it was not measured. Errors are relative 2-norms of the worst output
against FP32, of the simulated program; of integers the share that differs.

All but FP32 and what is chosen is told without a trial: times by the clock alone, which takes about half of one, the
column "timed"; errors by the reference semantics, without compiling, of all casts together, and of single contractions
where a type that would be faster is not tolerated: the column "evaluated". Where `basic` is not done, its time is that
of the best that it had found. All rows and charts are of one state of the compiler.

No strategy takes fewer than two trials, FP32 and the chosen one, and `basic` itself is done after five where every
type is tolerated at once, so that a fifth of its trials is out of reach there. By its algorithm, `basic` takes at
least five trials more than there are contractions where `fp8_e4m3` is tolerated neither for all of them nor for all
but one. On 14 models drawn by seed, of up to 17 contractions, at 1e-2, 1e-3 and 1e-4, which are a test
(`tests/driver/tuning/test_small_models.py`), the default strategy took at most two trials or a fifth of those of
`basic`, and was nowhere slower by more than 0.2 %.

| program | contractions | FP32 | tolerance | chosen | error | trials | timed | evaluated | `basic` | its trials |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def measured(name: str, before: dict[str, Any] | None) -> dict[str, Any]:
    """The default strategy at each tolerance, for one program; or ``before``, with ``basic`` beside it."""
    import numpy as np

    from neuronx_cc.driver.options import CAST_TYPES
    from neuronx_cc.driver.tuning.bench import Bench, Trial
    from neuronx_cc.driver.tuning.chart import chart
    from neuronx_cc.driver.tuning.history import History
    from neuronx_cc.driver.tuning.mixing import Mixing
    from neuronx_cc.driver.tuning.model import model_of
    from neuronx_cc.driver.tuning.op_wise import OpWise
    from neuronx_cc.driver.tuning.tuner import Goal, Tuner
    from neuronx_cc.hlo_import import load_module
    from neuronx_cc.passes.precision.policy import Policy

    program = PROGRAMS[name]()
    known: dict[Policy, Trial] = {}
    clocked: dict[Policy, tuple[float, float]] = {}
    evaluated: dict[Policy, float] = {}

    class Once(Bench):
        """Asks the clock and the reference semantics once for equal policies."""

        def timed(self, policy: Policy) -> tuple[float, float]:
            if policy not in clocked:
                clocked[policy] = super().timed(policy)
            return clocked[policy]

        def evaluated(self, policy: Policy) -> float:
            if policy not in evaluated:
                evaluated[policy] = super().evaluated(policy)
            return evaluated[policy]

    bench = Once(model_of(lambda: load_module(program.proto), {}), [[np.asarray(each) for each in program.arguments]])

    def once(policies: Sequence[Policy]) -> Iterator[tuple[Policy, Trial]]:
        for policy in policies:
            if policy not in known:
                known[policy] = bench.trial(policy)
                print(f"{name} {len(known)} {known[policy]}", file=sys.stderr, flush=True)
            yield policy, known[policy]

    def tuned(kind: type[Tuner], goal: Goal) -> dict[str, Any]:
        tuner = kind(bench, once, History(None, {}), CAST_TYPES, goal, lambda what, done, of: None)
        found = tuner.tune()
        document = found.to_json()
        if kind is Mixing and goal.tolerance == TOLERANCES[0]:
            (IMAGES / f"tuning-{name}.svg").write_text(chart(found))
        keys = ["error", "microseconds", "fp32_microseconds", "trials", "timed", "evaluated", "complete", "front"]
        keys.append("not_additive")
        return {key: document[key] for key in keys} | {"contractions": len(document["groups"])}

    if before is not None:
        for row in before["rows"]:
            row["basic"] = tuned(OpWise, Goal(row["tolerance"], max_trials=SHARE * row["ours"]["trials"]))
        return before
    started = time.monotonic()
    rows = [{"tolerance": tolerance, "ours": tuned(Mixing, Goal(tolerance))} for tolerance in TOLERANCES]
    seconds = round(time.monotonic() - started)
    return {"program": name, "seconds": seconds, "rows": rows, "front": tuned(Mixing, Goal(TOLERANCES[0], front=FRONT))}


def table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of the page."""
    for result in results:
        for row in result["rows"]:
            ours, basic = row["ours"], row.get("basic")
            beside = ["", ""]
            if basic is not None:
                done = "" if basic["complete"] else ", not done"
                beside = [f"{basic['microseconds'] / 1e3:.3f} ms", f"{basic['trials']}{done}"]
            yield (
                f"| {result['program']} | {ours['contractions']} | {ours['fp32_microseconds'] / 1e3:.3f} ms "
                f"| {row['tolerance']:.0e} | {ours['microseconds'] / 1e3:.3f} ms | {ours['error']:.1e} "
                f"| {ours['trials']} | {ours.get('timed', 'among trials') or ''} | {ours['evaluated'] or ''} "
                f"| {' | '.join(beside)} |"
            )


def compared(results: Sequence[dict[str, Any]]) -> str:
    """How the default strategy does beside ``basic``."""
    rows = [row for result in results for row in result["rows"] if row.get("basic") is not None]
    ratios = [row["ours"]["microseconds"] / row["basic"]["microseconds"] for row in rows]
    slower = sum(ratio > 1 + EQUAL for ratio in ratios)
    faster = sum(ratio < 1 - EQUAL for ratio in ratios)
    worst = f", by up to {max(ratios) - 1:.1%}" if slower else ""
    return (
        f"\nOf {len(rows)} rows with `basic` beside, the default strategy is faster in {faster}, as fast in "
        f"{len(rows) - slower - faster} and slower in {slower}{worst}.\n"
    )


def predictions(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was told of each assignment that was measured."""
    for result in results:
        pairs = {
            (point["predicted"], point["error"])
            for found in (result["front"], *(row["ours"] for row in result["rows"]))
            for point in found["front"]
            if point["predicted"] and point.get("measured", True) and 0 < point["error"] < float("inf")
        }
        if pairs:
            off = [abs(predicted / error - 1) for predicted, error in pairs]
            founds = (result["front"], *(row["ours"] for row in result["rows"]))
            apart = next((found["not_additive"]["ops"] for found in founds if found.get("not_additive")), [])
            named = ", ".join(f"{each['op']} in {each['type']}" for each in apart)
            remark = "" if max(off) <= NEAR else f"; errors of {named or 'casts and sums'} do not add up"
            yield f"| {result['program']} | {len(pairs)} | {max(off):.0%}{remark} |"


def write(results: Sequence[dict[str, Any]]) -> None:
    parts = [INTRODUCTION, *(f"{line}\n" for line in table(results)), compared(results), "\n"]
    for result in (each for each in results if each["seconds"]):
        parts.append(f"{result['program']} was tuned at both tolerances in {result['seconds']} s on a busy machine.\n")
    if lines := list(predictions(results)):
        parts.append("\nPredicted errors on the fronts, beside the true ones, where single casts were evaluated:\n\n")
        parts.append("| program | assignments | farthest off |\n|---|---|---|\n")
        parts += [f"{line}\n" for line in lines]
    parts.append(
        "\nError against simulated time, points of the front besides what was chosen, all types tried; crosses are "
        "predicted\nerrors:\n\n"
    )
    parts += [f"![{each['program']}](images/tuning-{each['program']}.svg)\n" for each in results]
    PAGE.write_text("".join(parts))


def main(words: Sequence[str]) -> int:
    results = {each["program"]: each for each in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    if words[:1] == ["one"]:
        print(json.dumps(measured(words[2], results[words[2]] if words[1] == "basic" else None)))
        return 0
    if words[:1] not in (["measure"], ["basic"], ["write"]) or set(words[1:]) - set(PROGRAMS):
        print(__doc__, file=sys.stderr)
        return 2
    for name in (words[1:] or CHOSEN) if words[0] != "write" else ():
        command = [sys.executable, __file__, "one", words[0], name]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if child.returncode == 0:
            results[name] = json.loads(child.stdout.splitlines()[-1])
            RESULTS.write_text(json.dumps([results[key] for key in sorted(results)], indent=1) + "\n")
    write([results[key] for key in sorted(results)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
