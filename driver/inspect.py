"""``inspect``: what a NEFF holds, as text or JSON, and its instructions."""

import json
import sys
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import asdict
from typing import Any

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.neffs import read_neff
from neuronx_cc.driver.terminal import width
from neuronx_cc.ir.isa.assembly import disassemble
from neuronx_cc.ir.isa.program import Else, End, Instr, Loop, Program, Variable, While, in_donated_memory
from neuronx_cc.ir.neff import Neff
from neuronx_cc.runtime.tables import table

LARGEST = 12
"""Variables of the memory map that the text shows, by size."""


def inspect_command(session: Session) -> int:
    """Body of ``neuronx-cc inspect``."""
    parsed = session.parsed
    assert parsed is not None
    neff, size = read_neff(parsed.files[0], session)
    session.enter("printing")
    if parsed.flag("json"):
        document = summary(neff, size)
        if parsed.flag("disassemble"):
            document["disassembly"] = list(disassemble(neff.program))
        session.show(json.dumps(document, indent=1))
        return 0
    session.show("\n".join(describe(summary(neff, size), width(sys.stdout))))
    if parsed.flag("disassemble"):
        print("\ninstructions")
        for line in disassemble(neff.program):
            print(line)
    return 0


def summary(neff: Neff, file_bytes: int) -> dict[str, Any]:
    """Everything ``inspect`` tells, as JSON values. Sizes are bytes."""
    program = neff.program
    shared = in_donated_memory(program.variables)
    return {
        "name": neff.name,
        "target": neff.target,
        "planned_for": asdict(neff.planned_for) if neff.planned_for else None,
        "compiler_version": neff.compiler_version,
        "file_bytes": file_bytes,
        "compressed": not neff.fast_loading,
        "options": dict(neff.options),
        "inputs": [_signature(variable) for variable in neff.inputs],
        "outputs": [_signature(variable, variable in shared) for variable in neff.outputs],
        "memory": {
            "hbm_bytes": program.hbm_bytes,
            "sbuf_peak_bytes_per_partition": program.sbuf_peak,
            "by_kind": _by_kind(program.variables, shared),
            "variables": [_place(variable) for variable in program.variables],
        },
        "streams": _streams(program),
        "kernels": _kernels(program),
        "warnings": list(neff.warnings),
    }


def _planned_for(planned: dict[str, str] | None) -> str:
    return "not recorded" if planned is None else f"{planned['name']} ({planned['digest']})"


def describe(document: dict[str, Any], columns: int | None = None) -> list[str]:
    """Lines of the text form of ``summary``; tables fit ``columns``."""
    memory = document["memory"]
    lines = [
        f"module            {document['name']}",
        f"target            {document['target']}",
        f"planned for       {_planned_for(document['planned_for'])}",
        f"compiler          {document['compiler_version']}",
        f"file              {document['file_bytes']} bytes{'' if document['compressed'] else ', uncompressed payload'}",
        "",
        "options",
        *(f"  {key:<30} {_option(value)}" for key, value in document["options"].items()),
    ]
    for kind in ("inputs", "outputs"):
        rows = [_signature_row(index, entry) for index, entry in enumerate(document[kind])]
        lines += ["", kind, *_indented(("", "name", "shape", ""), rows, columns, (1, 2, 3))]
    lines += [
        "",
        "memory",
        f"  HBM             {memory['hbm_bytes']} bytes",
        f"  SBUF peak       {memory['sbuf_peak_bytes_per_partition']} bytes per partition",
    ]
    for kind, entry in memory["by_kind"].items():
        lines.append(f"  {kind:<15} {entry['bytes']} bytes in {entry['count']}")
    largest = sorted(memory["variables"], key=lambda entry: -entry["bytes"])[:LARGEST]
    places = [[str(entry[key]) for key in ("offset", "bytes", "kind", "name", "shape")] for entry in largest]
    lines += _indented(("offset", "bytes", "kind", "largest variables", ""), places, columns, (2, 3, 4))
    counts = [(name, str(e["instructions"]), str(e["executed"])) for name, e in document["streams"].items()]
    lines += ["", *_indented(("stream", "in file", "executed"), counts, columns, (0,))]
    kernels = [(str(e["instructions"]), str(e["executed"]), e["name"], _ops(e["hlo"])) for e in document["kernels"]]
    header, *shown = _indented(("in file", "executed", "kernel", "HLO ops"), kernels, columns, (2, 3)) or [""]
    lines += ["", header]
    for row, entry in zip(shown, document["kernels"], strict=True):
        lines += [row, *([f"{'':<24}{entry['schedule']}"] if "schedule" in entry else [])]
    if document["warnings"]:
        lines += ["", "warnings", *(f"  {warning}" for warning in document["warnings"])]
    return lines


def _indented(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None, left: Sequence[int]
) -> list[str]:
    return [f"  {line}" for line in table(header, rows, columns and columns - 2, left)] if rows else []


def _signature_row(index: int, entry: dict[str, Any]) -> tuple[str, str, str, str]:
    argument = entry["argument"] if entry["argument"] != entry["name"] else ""
    alias = f"(buffer of input {entry['alias']}{_where(entry)})" if "alias" in entry else ""
    return str(index), entry["name"], entry["shape"], argument or alias


def _ops(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _where(entry: dict[str, Any]) -> str:
    return "" if entry["shared"] else ", memory of its own"


def _signature(variable: Variable, shared: bool = False) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": variable.name,
        "argument": variable.argument,
        "dtype": variable.dtype,
        "dims": list(variable.dims),
        "shape": _shape(variable),
        "bytes": variable.nbytes,
    }
    return {**entry, "alias": variable.alias, "shared": shared} if variable.alias >= 0 else entry


def _place(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "kind": variable.kind,
        "offset": variable.offset,
        "bytes": variable.nbytes,
        "shape": _shape(variable),
    }


def _shape(variable: Variable) -> str:
    return f"{variable.dtype}[{','.join(map(str, variable.dims))}]"


def _by_kind(variables: list[Variable], shared: Set[Variable]) -> dict[str, dict[str, int]]:
    """Number and bytes of the variables of each kind; bytes that a result shares with a parameter count once."""
    count = Counter(variable.kind for variable in variables)
    size: Counter[str] = Counter()
    for variable in variables:
        size[variable.kind] += variable.nbytes if variable not in shared else 0
    return {kind: {"count": count[kind], "bytes": size[kind]} for kind in sorted(count)}


def _executions(program: Program) -> list[tuple[Instr, int]]:
    """Each instruction with how often its loops execute it; run-time loops and branches count once."""
    counts = [1]
    found = []
    for record in program.records:
        if isinstance(record, Loop):
            counts.append(counts[-1] * record.count)
        elif isinstance(record, End):
            counts.pop()
        elif isinstance(record, Instr):
            found.append((record, counts[-1]))
        elif not isinstance(record, Else):
            counts.append(counts[-1] * (record.count or 1 if isinstance(record, While) else 1))
    return found


def _streams(program: Program) -> dict[str, dict[str, int]]:
    static: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    streams = {}
    for instr, times in _executions(program):
        name = instr.stream.name.lower()
        static[name] += 1
        executed[name] += times
        streams[int(instr.stream)] = name
    return {name: {"instructions": static[name], "executed": executed[name]} for _, name in sorted(streams.items())}


def _kernels(program: Program) -> list[dict[str, Any]]:
    kernels: dict[str, dict[str, Any]] = {}
    for instr, times in _executions(program):
        debug = program.debug[instr.debug]
        entry = kernels.setdefault(debug.kernel, {"name": debug.kernel, "instructions": 0, "executed": 0, "hlo": []})
        if debug.kernel in program.schedules:
            entry["schedule"] = program.schedules[debug.kernel]
        entry["instructions"] += 1
        entry["executed"] += times
        if debug.hlo and debug.hlo not in entry["hlo"]:
            entry["hlo"].append(debug.hlo)
    return list(kernels.values())


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(value) if isinstance(value, list) else str(value)
