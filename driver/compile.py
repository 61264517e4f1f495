"""``compile``: read, import, run the passes, generate code, write the NEFF.

Input: an HLO module as bytes or object, and the parsed options. Output: a ``Neff``; the command writes it by rename.
"""

import hashlib
import os
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.frontends.door import fixed_by, of_bytes
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.pipeline import dump_program, run_pipeline
from neuronx_cc.driver.tensors import write_arrays
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.ir import collector
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine

if TYPE_CHECKING:
    from neuronx_cc.codegen.choose import Planner
    from neuronx_cc.codegen.context import Transposes
    from neuronx_cc.codegen.left import Left, State
    from neuronx_cc.driver.parse import Parsed
    from neuronx_cc.ir.hlo import HloModule
    from neuronx_cc.ir.isa.program import Debug
    from neuronx_cc.ir.neff import Neff

MODULE_NAME, MODULE_DIGEST = "module_file", "module_sha256"
"""Options of the NEFF that say which file it came from, without its folder."""


@collector.paused()
def compile_data(data: bytes, source: str, parsed: "Parsed", session: Session, devices: int | None = None) -> "Neff":
    """Compile the module ``data`` (of any format that ``frontends.door`` knows); ``source`` is its file.

    ``devices`` is how many run it, where that is known of something else than the module.
    """
    session.importing = True
    session.module = (source, data)
    session.enter("importing the module")
    model = of_bytes(data, source, fixed_by(parsed))
    module = model.load()
    weights = parsed.values.get("save_weights")
    if isinstance(weights, str):
        write_arrays(weights, model.weights, CompileError)
    if devices is not None:
        from neuronx_cc.passes.resolve_collectives import spread

        spread(module, devices)
    neff = compile_loaded(module, parsed, session)
    digest = hashlib.sha256(data).hexdigest()
    neff.options = {**neff.options, MODULE_NAME: os.path.basename(source), MODULE_DIGEST: digest}
    return neff


@collector.paused()
def compile_loaded(
    module: "HloModule",
    parsed: "Parsed",
    session: Session,
    transposes: "Transposes | None" = None,
    nan_codes: bool = False,
) -> "Neff":
    """Compile an imported module, which the passes change in place.

    ``transposes`` as for ``lower_module``; ``nan_codes`` as the option says, which may say so besides.
    """
    machine = planned_machine(parsed)
    context = run_pipeline(module, parsed, session, machine)
    warnings = [str(warning) for warning in context.warnings]
    if parsed.text("optlevel") == "3":
        from neuronx_cc.driver.search import search, written

        session.enter("trying schedules")

        def make(planner: "Planner") -> "Neff":
            return generate(module.copy(), parsed, machine, [], transposes, None, planner, nan_codes)

        planner = search(make, module, parsed, machine)
        neff = generate(module, parsed, machine, warnings, transposes, None, planner, nan_codes)
        neff.options = {**neff.options, **written(planner)}
    else:
        session.enter("generating code")
        neff = generate(module, parsed, machine, warnings, transposes, nan_codes=nan_codes)
    dump_program(neff.program, parsed, session)
    return neff


def generate(
    module: "HloModule",
    parsed: "Parsed",
    machine: Machine,
    warnings: list[str],
    transposes: "Transposes | None" = None,
    left: "list[Left | State] | None" = None,
    planner: "Planner | None" = None,
    nan_codes: bool = False,
) -> "Neff":
    """Code generation alone, for a module after its passes; it is changed in place.

    ``left`` is told what kernels leave in memory; ``planner`` knows what a search has found. A program that relies on
    it that no code of its parameters is NaN can be made once more for parameters of which some are (``Neff.exact``).
    """
    from neuronx_cc.codegen.compile import lower_module, takes_codes
    from neuronx_cc.codegen.context import Transposes
    from neuronx_cc.ir.neff import Neff, PlannedFor

    given = transposes or Transposes.VALUES
    planner = planner or planner_of(parsed, machine)
    trusted = not (nan_codes or parsed.flag("nan_codes"))
    whole = module.copy() if trusted and takes_codes(module) else None
    program, constants = lower_module(module, machine, parsed.flag("fast_relayout"), given, left, planner, trusted)
    if parsed.values.get("print_schedules"):
        for kernel, line in program.schedules.items():
            print(f"{kernel}: {line}")
    program.debug = _described(module, program.debug)
    neff = Neff(
        program,
        constants,
        {key: list(value) if isinstance(value, tuple) else value for key, value in parsed.recorded().items()},
        parsed.text("target"),
        COMPILER_VERSION,
        module.name,
        warnings,
        parsed.flag("fast_loading_neuron_binaries"),
        PlannedFor(machine.name, machine.digest()),
    )
    if whole is not None and any(variable.defined for variable in neff.inputs):
        neff.exact = cache(lambda: generate(whole, parsed, machine, warnings, transposes, nan_codes=True))
    return neff


def planner_of(parsed: "Parsed", machine: Machine) -> "Planner":
    """What chooses schedules at the level of the options."""
    from neuronx_cc.codegen.choose import Planner

    return Planner(Timing(machine), 1 if parsed.text("optlevel") == "1" else 2)


def write_neff(neff: "Neff", path: str, session: Session) -> None:
    """Write ``neff`` to ``path`` by rename."""
    session.enter("writing the NEFF")

    def fill(file: BinaryIO) -> None:
        if file.seekable():
            neff.save(file)
        else:
            file.write(neff.to_bytes())

    files.write(path, fill, CompileError)
    session.log.info(f"wrote {path}")


def _described(module: "HloModule", entries: "list[Debug]") -> "list[Debug]":
    """Entries of the debug map with the opcodes and shapes of the ops that they name."""
    from neuronx_cc.ir import hlo

    beside = hlo.MovementOp | hlo.ConvertOp | hlo.ConstantOp | hlo.IotaOp
    """Ops that passes put beside an op under its name."""
    known: dict[str, hlo.HloOp] = {}
    for computation in module.computations():
        for op in computation.block.ops:
            if not isinstance(op, hlo.HloOp) or not isinstance(op.results[0].type, hlo.ArrayType):
                continue
            if op.loc.name not in known or isinstance(known[op.loc.name], beside):
                known[op.loc.name] = op
    made = []
    for entry in entries:
        op = known.get(entry.hlo)
        made.append(entry if op is None else replace(entry, opcode=op.opcode, shape=str(op.shape)))
    return made
