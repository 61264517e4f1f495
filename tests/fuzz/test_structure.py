"""Every part of the JSON of NEFFs and artifacts as another type, every list of numbers of HLO text as another one."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import artifact
import modules
import neff
import run
import structure
import text

EVERY = 12
"""Of the changes of HLO text and of the programs, so many pass by; the fuzz targets take them all in the long run."""


def survived(target, cases) -> int:
    """How many cases there were. Fails with the first that ends in something else than an error of the project."""
    count = 0
    for place, data in cases:
        what, trace = run.outcome(target, data)
        assert not trace, f"{place}: {what}\n{trace}"
        count += 1
    return count


def members(data: bytes):
    whole = neff.members_of(data)
    for name in sorted(each for each in whole if each.endswith(".json")):
        for place, value in structure.retyped(json.loads(whole[name])):
            yield name + place, neff.assembled({**whole, name: json.dumps(value).encode()})


def headers(data: bytes):
    header, code, program = artifact.parts_of(data)
    for place, value in structure.retyped(header):
        yield place, artifact.assembled(value, code, program)


def texts():
    for opcode, source in modules.texts().items():
        for place, changed in list(structure.other_numbers(source))[len(opcode) % EVERY :: EVERY]:
            yield f"{opcode} {place}", changed.encode()


def test_json_of_neffs() -> None:
    assert survived(neff, (each for data in neff.seeds()[4:5] for each in members(data))) > 1000


def test_headers_of_artifacts() -> None:
    assert survived(artifact, headers(artifact.seeds()[2])) > 300


def test_numbers_of_text() -> None:
    assert survived(text, texts()) > 450


def test_what_is_refused_by_name() -> None:
    changes = dict(structure.other_numbers(modules.texts()["ragged-dot"]))
    place = next(place for place in changes if "lhs_contracting_dims={}" in place)
    what, trace = run.outcome(text, changes[place].encode())
    assert what.startswith("EVRF064")
    assert not trace
