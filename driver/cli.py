"""``neuronx-cc``: finds the command, reads its options, runs it."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from neuronx_cc.driver import options
from neuronx_cc.driver.failure import Session, guarded
from neuronx_cc.driver.files import check_distinct
from neuronx_cc.driver.options import Command
from neuronx_cc.driver.parse import Parsed, closest, find_command, parse, require_files
from neuronx_cc.ir.errors import UsageError

PROGRAM = "neuronx-cc"

Body = Callable[[Session], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default ``sys.argv``) and return the exit status."""
    return guarded(PROGRAM, list(sys.argv[1:] if argv is None else argv), _dispatch)


def dispatch(session: Session, program: str, commands: Mapping[str, Command], bodies: Mapping[str, Body]) -> int:
    """Find the command of ``session.argv`` in ``commands``, read its options and run its body."""
    argv = session.argv
    position = find_command(argv, commands)
    if _asks_for(argv, "--version", "-V"):
        from neuronx_cc.driver.version import version_lines

        print("\n".join(version_lines("NeuronX" if program == PROGRAM else "Neuron")))
        return 0
    if position is None:
        if _asks_for(argv, "--help", "-h"):
            from neuronx_cc.driver.help import overview

            print(overview(program, commands))
            return 0
        raise UsageError(
            "EARG903", "no command given", f"one of: {', '.join(commands)}; {program} --help describes them"
        )
    word = argv[position]
    command = commands.get(word)
    if command is None:
        raise UsageError(
            "EARG901",
            f"unknown command {word!r}{closest(word, commands)}",
            f"one of: {', '.join(commands)}; for example {program} compile graph.hlo",
        )
    arguments = argv[:position] + argv[position + 1 :]
    if _asks_for(arguments, "--help", "-h"):
        from neuronx_cc.driver.help import command_help

        print(command_help(program, command))
        return 0
    parsed = parse(arguments, command)
    session.parsed = parsed
    session.log.level = parsed.integer("verbose")
    for line in parsed.notices():
        session.log.warning(line)
    if not parsed.values.get("explain_options"):
        require_files(parsed, program)
    try:
        os.getcwd()
    except OSError:
        raise UsageError("EFIL901", "the working directory no longer exists", "change to another one") from None
    _check_files(parsed)
    if not session.json and parsed.integer("verbose") > options.LEVELS["info"]:
        session.progress.start(f"{program} {word}")
    return bodies[word](session)


def _check_files(parsed: Parsed) -> None:
    """Refuse to write one file twice, or over what is read: the log, too, would be appended to a module."""
    named = {key: value for key, value in parsed.values.items() if isinstance(value, str)}
    written = {f"--{key.replace('_', '-')}": named[key] for key in options.WRITTEN if key in named}
    check_distinct(written, [*parsed.files, *(named[key] for key in options.READ if key in named)])


def compile_(session: Session) -> int:
    from neuronx_cc.driver.compile_command import compile_command

    return compile_command(session)


def list_operators(session: Session) -> int:
    from neuronx_cc.driver.list_operators import list_operators_command

    return list_operators_command(session)


def _run(session: Session) -> int:
    from neuronx_cc.driver.run import run_command

    return run_command(session)


def _report(session: Session) -> int:
    from neuronx_cc.driver.report import report_command

    return report_command(session)


def _tune(session: Session) -> int:
    from neuronx_cc.driver.tuning.command import tune_command

    return tune_command(session)


def _sweep(session: Session) -> int:
    from neuronx_cc.driver.many import sweep_command

    return sweep_command(session)


def _batch(session: Session) -> int:
    from neuronx_cc.driver.many import batch_command

    return batch_command(session)


def _inspect(session: Session) -> int:
    from neuronx_cc.driver.inspect import inspect_command

    return inspect_command(session)


def _opt(session: Session) -> int:
    from neuronx_cc.driver.opt import opt_command

    return opt_command(session)


_BODIES: dict[str, Body] = {
    "compile": compile_,
    "list-operators": list_operators,
    "run": _run,
    "report": _report,
    "tune": _tune,
    "sweep": _sweep,
    "batch": _batch,
    "inspect": _inspect,
    "opt": _opt,
}


def _dispatch(session: Session) -> int:
    return dispatch(session, PROGRAM, options.COMMANDS, _BODIES)


def _asks_for(argv: Sequence[str], *flags: str) -> bool:
    """Whether one of ``flags`` stands on the line, before any ``--``."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return any(word in flags for word in words)


if __name__ == "__main__":
    sys.exit(main())
