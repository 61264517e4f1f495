"""``sweep`` and ``batch``: many compilations, on several processes, and a table of what came of them.

Input: a module and values to go through, or a list of modules. Output: simulated times; of ``batch`` a NEFF for each.
"""

import json
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from neuronx_cc.driver import files
from neuronx_cc.driver.engines import engine
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jobs import Engine, Job, Outcome
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import Parsed, from_keywords
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.targets import find_machine

MOST_JOBS = 10_000


def sweep_command(session: Session) -> int:
    """Body of ``neuronx-cc sweep``. Exit status 1 when a compilation fails."""
    parsed = _opened(session)
    path = parsed.files[0]
    files.read(path, "model file")
    axes = [_axis(word, is_set) for key, is_set in (("set", True), ("option", False)) for word in parsed.names(key)]
    if not axes:
        raise UsageError("EARG905", "sweep has nothing to go through", "give --set KEY=VALUE,... or --option")
    for key, value, is_set in chain.from_iterable(axes):
        if is_set:
            _check_setting(key, value)
    points = list(product(*axes))
    _few_enough(len(points))
    names = [_name(axis[0]) for axis in axes]
    jobs = {_job(path, point): [value for _, value, _ in point] for point in points}
    for job in jobs:
        from_keywords(COMPILE, dict(job.options))  # bad values are said before anything is compiled
    done = _done(session, list(jobs), engine(parsed))
    rows = [{**dict(zip(names, values, strict=True)), **_told(done[job])} for job, values in jobs.items()]
    return _show(session, parsed, [*names, "microseconds", "error"], rows)


def batch_command(session: Session) -> int:
    """Body of ``neuronx-cc batch``. Exit status 1 when a compilation fails."""
    parsed = _opened(session)
    listed = parsed.files[0]
    try:
        lines = files.read(listed, "list of modules").decode().splitlines()
    except UnicodeDecodeError:
        raise UsageError("EFIL901", f"{listed} is not text", "give a file with one path a line") from None
    paths = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not paths:
        raise UsageError("EARG905", f"{listed} names no modules", "give a file with one path a line")
    _few_enough(len(paths))
    folder = parsed.text_or_none("output")
    if folder is not None:
        files.make_folder(folder)
    options = tuple((name.replace("-", "_"), value) for name, _, value in _pairs(parsed, "option"))
    from_keywords(COMPILE, dict(options))
    jobs = [Job(path, options, neff_beside(path, folder)) for path in dict.fromkeys(paths)]
    check_once([(job.path, job.output) for job in jobs])
    done = _done(session, jobs, engine(parsed))
    rows = [{"module": job.path, "neff": job.output, **_told(done[job])} for job in jobs]
    return _show(session, parsed, ["module", "neff", "microseconds", "error"], rows)


Choice = tuple[str, str, bool]
"""A key, a value, and whether the key is one of the machine description."""


def _opened(session: Session) -> Parsed:
    parsed = session.parsed
    assert parsed is not None
    session.open_logfile()
    return parsed


def _pairs(parsed: Parsed, key: str) -> list[tuple[str, str, str]]:
    return [word.partition("=") for word in parsed.names(key)]


def _axis(word: str, is_set: bool) -> list[Choice]:
    key, _, values = word.partition("=")
    chosen = list(dict.fromkeys(value for value in (part.strip() for part in values.split(",")) if value))
    if not chosen:
        raise UsageError("EARG902", f"{key} has no values to go through", "write KEY=VALUE,VALUE")
    return [(key, value, is_set) for value in chosen]


def _check_setting(key: str, value: str) -> None:
    """Raises UsageError EARG907 for what no machine description has."""
    option = key.lstrip("-").replace("_", "-")
    if any(f"--{option}" in each.flags for each in COMPILE.options):
        message = f"the machine description has no key {key!r}; it is an option of compile"
        raise UsageError("EARG907", message, f"write --option {option}=VALUE,VALUE")
    find_machine("trn1").with_settings([f"{key}={value}"])


def _name(choice: Choice) -> str:
    key, _, is_set = choice
    return key if is_set else f"--{key}"


def _job(path: str, point: Sequence[Choice]) -> Job:
    settings = tuple(f"{key}={value}" for key, value, is_set in point if is_set)
    options = tuple((key.lstrip("-").replace("-", "_"), value) for key, value, is_set in point if not is_set)
    return Job(path, (*options, *((("set", settings),) if settings else ())))


def _few_enough(count: int) -> None:
    if count > MOST_JOBS:
        raise UsageError("EARG902", f"{count} compilations; at most {MOST_JOBS} are made at once", "take fewer values")


def _done(session: Session, jobs: Sequence[Job], workers: Engine) -> dict[Job, Outcome]:
    session.enter("compiling")
    done = {}
    try:
        for job, outcome in workers.outcomes(jobs):
            done[job] = outcome
            session.progress.enter(f"compiling, {len(done)} of {len(jobs)} done")
    finally:
        workers.close()
    return done


def check_once(written: Sequence[tuple[str, str]]) -> None:
    """Raises UsageError EARG905 when one file would be written twice. ``written``: modules and their files."""
    modules: dict[str, str] = {}
    for module, name in written:
        if name in modules:
            said = f"two modules would be compiled to {name}: {modules[name]} and {module}"
            raise UsageError("EARG905", said, "give them other names")
        modules[name] = module


def neff_beside(path: str, folder: str | None) -> str:
    """Where the NEFF of the module in ``path`` goes: beside it, or into ``folder``."""
    name = Path(path).name.split(".")[0] + ".neff"
    return str((Path(path).parent if folder is None else Path(folder)) / name)


def _told(outcome: Outcome) -> dict[str, Any]:
    return {"microseconds": outcome.microseconds, "error": outcome.error, "status": outcome.status}


def _show(session: Session, parsed: Parsed, columns: list[str], rows: list[dict[str, Any]]) -> int:
    if parsed.flag("json"):
        session.show(json.dumps(rows, indent=1))
    else:
        cells = [columns[:-1]]
        for row in rows:
            time = "failed" if row["microseconds"] is None else f"{row['microseconds']:.1f}"
            cells.append([time if name == "microseconds" else str(row[name]) for name in columns[:-1]])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        session.show(
            "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells)
        )
        for row in rows:
            if row["error"]:
                session.log.error(str(row["error"]))
    return max((int(row["status"]) for row in rows), default=0)
