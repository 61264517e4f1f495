"""The command ``compile``: of one module, or of several, which are programs of devices 0, 1, ... that meet.

Input: a module; or one for each device, as PyTorch/XLA writes them for each rank, in order, or a folder of them.
Output: the NEFF ``--output``; of several, one for each in that folder or beside the modules, and none where the
programs do not meet.
"""

import json
import os
import sys
import time
from typing import Any

from neuronx_cc.driver import files
from neuronx_cc.driver.compile import compile_data, write_neff
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.frontends.door import SAVED_MODEL, is_saved_model, read
from neuronx_cc.driver.many import check_once, neff_beside
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.pipeline import keeps_temporaries
from neuronx_cc.driver.terminal import styled
from neuronx_cc.ir.errors import CompileError, UsageError
from neuronx_cc.ir.isa.program import Variable
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.targets import MAX_DEVICES
from neuronx_cc.runtime.meetings import problem

ENDINGS = (".hlo", ".txt", ".pb", ".mlir")
"""Of the files of a folder that are modules."""
OF_ONE = ("dump", "dump_precision", "save_weights")
"""Options that write about one module."""


def compile_command(session: Session) -> int:
    """Body of ``neuronx-cc compile``."""
    parsed = session.parsed
    assert parsed is not None
    if parsed.flag("explain_options"):
        print("\n".join(parsed.explain()), file=sys.stderr if session.json else None)
        if not parsed.files:
            return 0
    session.log.open(parsed.text("logfile"), required="logfile" in parsed.given)
    session.log_command()
    sources = _modules_of(parsed)
    if len(sources) > 1:
        return _several(session, sources)
    source = sources[0]
    if parsed.values["save_weights"] is not None:
        if parsed.flag("inline_weights_to_neff"):
            raise UsageError(
                "EARG905", "weights are constants, --save-weights has none to write", "--no-inline-weights-to-neff"
            )
        files.check_writable(parsed.text("save_weights"), "--save-weights", (source,))
    files.check_writable(parsed.text("output"), "--output", (source,))
    session.enter("reading the module")
    data = read(source)
    started = time.monotonic()
    neff = compile_data(data, source, parsed, session)
    write_neff(neff, parsed.text("output"), session)
    if session.json:
        session.show(json.dumps(_outcome(neff, session, time.monotonic() - started), indent=1))
        return 0
    if keeps_temporaries(parsed):
        session.log.info(f"Artifacts stored in: {session.artifacts}")
    session.log.user(styled("Compiler status PASS", "green", sys.stdout))
    return 0


def _modules_of(parsed: Parsed) -> list[str]:
    """The modules that ``compile`` was given: its files, or those of a folder. Raises UsageError."""
    if len(parsed.files) == 1 and os.path.isdir(parsed.files[0]) and not is_saved_model(parsed.files[0]):
        try:
            found = files.numbered(parsed.files[0], ENDINGS)
        except UsageError as error:
            raise UsageError(error.code, f"{error.message}, and no {SAVED_MODEL}", error.remedy) from None
        if len(found) > MAX_DEVICES:
            raise UsageError("EARG903", f"{parsed.files[0]} has {len(found)} modules; devices are {MAX_DEVICES}")
        return found
    return parsed.files


def _several(session: Session, sources: list[str]) -> int:
    """The modules of devices 0, 1, ..."""
    parsed = session.parsed
    assert parsed is not None
    for key in OF_ONE:
        if parsed.values[key] is not None:
            option = f"--{key.replace('_', '-')}"
            raise UsageError("EARG905", f"{option} is about one module, {len(sources)} are given", f"drop {option}")
    folder = parsed.text("output") if "output" in parsed.given else None
    if folder is not None:
        files.make_folder(folder)
    outputs = [neff_beside(source, folder) for source in sources]
    check_once(list(zip(sources, outputs, strict=True)))
    for output in outputs:
        files.check_writable(output, "--output", sources)
    parsed.values["keep_collectives"] = True
    started = time.monotonic()
    made: dict[bytes, Neff] = {}
    neffs = []
    for source in sources:
        session.enter(f"reading the module {source}")
        data = read(source)
        if data not in made:
            made[data] = compile_data(data, source, parsed, session, len(sources))
        neffs.append(made[data])
    found = problem([neff.program for neff in neffs])
    if found:
        raise CompileError("ERUN922", found)
    for neff, output in zip(neffs, outputs, strict=True):
        write_neff(neff, output, session)
    if session.json:
        told = [
            {**_outcome(neff, session, time.monotonic() - started), "module": source, "output": output}
            for neff, source, output in zip(neffs, sources, outputs, strict=True)
        ]
        session.show(json.dumps(told, indent=1))
        return 0
    session.log.user(styled("Compiler status PASS", "green", sys.stdout))
    return 0


def _outcome(neff: Neff, session: Session, seconds: float) -> dict[str, Any]:
    """What a compilation has made, as plain values."""
    parsed, program = session.parsed, neff.program
    assert parsed is not None

    def signature(variables: list[Variable]) -> list[dict[str, Any]]:
        return [{"name": v.name, "argument": v.argument, "dtype": v.dtype, "dims": v.dims} for v in variables]

    return {
        "status": "PASS",
        "module": parsed.files[0],
        "name": neff.name,
        "output": parsed.text("output"),
        "seconds": round(seconds, 3),
        "target": neff.target,
        "options": dict(neff.options),
        "inputs": signature(neff.inputs),
        "outputs": signature(neff.outputs),
        "kernels": len(program.kernels),
        "instructions": sum(hasattr(record, "op") for record in program.records),
        "hbm_bytes": program.hbm_bytes,
        "sbuf_peak_bytes_per_partition": program.sbuf_peak,
        "warnings": list(neff.warnings),
        "log_file": session.log.path or None,
        "artifacts": session.artifacts or None,
    }
