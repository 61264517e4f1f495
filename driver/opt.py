"""``opt``: run chosen passes on a module and print the IR as HLO text."""

from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.frontends.door import fixed_by, load_module, read
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.parse import closest
from neuronx_cc.driver.pipeline import Stages, default_stages, run_pipeline
from neuronx_cc.ir.errors import CompileError, UsageError


def opt_command(session: Session) -> int:
    """Body of ``neuronx-cc opt``."""
    from neuronx_cc.hlo_import.printer import print_module

    parsed = session.parsed
    assert parsed is not None
    session.open_logfile()
    source = parsed.files[0]
    stages = _stages(parsed.names("passes"))
    output = parsed.text_or_none("output")
    if output is not None:
        files.check_writable(output, "--output", (source,))
    session.enter("reading the module")
    data = read(source)
    session.module = (source, data)
    session.enter("importing the module")
    module = load_module(data, source, fixed_by(parsed))
    run_pipeline(module, parsed, session, planned_machine(parsed), stages)
    session.enter("printing the IR")
    text = print_module(module)
    if output is None:
        session.progress.stop()
        print(text, end="")
    else:
        files.write_text(output, text, CompileError)
    return 0


def _stages(names: tuple[str, ...]) -> Stages:
    """The passes ``names`` as one stage; a pipeline's name stands for its passes; no names mean the default pipeline.

    ``none`` alone runs nothing, so that what was imported is printed.
    """
    from neuronx_cc.passes import PASSES
    from neuronx_cc.passes.pipelines import PIPELINES, pass_names

    if not names:
        return default_stages()
    if names == ("none",):
        return []
    chosen: list[str] = []
    for name in names:
        if name in PIPELINES:
            chosen += pass_names(PIPELINES[name])
            continue
        if name not in PASSES:
            raise UsageError(
                "EARG902",
                f"--passes: there is no pass {name!r}{closest(name, PASSES)}",
                f"pipelines: {', '.join(PIPELINES)}; passes: {', '.join(sorted(PASSES))}",
            )
        chosen.append(name)
    return [("opt", chosen)]
