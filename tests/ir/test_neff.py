"""The NEFF container: contents survive, bytes are reproducible, bad files are refused with a reason."""

import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronx_cc.ir import neff_archive
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Debug, End, Instr, Loop, Program, Ref, Space, Stream, Variable, Wait
from neuronx_cc.ir.neff import Neff


def small_neff() -> Neff:
    both = frozenset({Stream.DMA_LOAD, Stream.VECTOR})
    tile = Ref(Space.SBUF, "f32", 0, ((4, 0), (3, 4)), 0, ((1, 12),))
    partition = Ref(Space.SBUF, "f32", 256, ((4, 0),))
    source = Ref(Space.HBM, "f32", 0, ((4, 12), (3, 4)), 0, ())
    records = [
        Loop(6, 0, ((1, 2),), both),
        Instr("dma_copy", Stream.DMA_LOAD, (tile,), (source,), waits=(Wait(Stream.VECTOR, -1, ((0, 1),)),)),
        Instr("tensor_scalar", Stream.VECTOR, (tile,), (tile, partition), ("add",), (1.5,), frozenset({"ap0"}), (), 1),
        End(),
    ]
    variables = [
        Variable("x", "input", 0, 48, "f32", (4, 3), 0),
        Variable("weights é", "constant", 48, 30, "bf16", (3, 5), 0),
        Variable("mask", "constant", 78, 2, "pred", (2,), 1),
        Variable("scratch", "scratch", 128, 64, "u8", (64,)),
        Variable("y", "output", 0, 48, "f32", (4, 3), 0, 0),
        Variable("empty", "constant", 128, 0, "f32", (0, 7), 2),
    ]
    debug = [Debug("kernel0", "copy.1"), Debug("kernel0", "add.2", "jit(f)/add", "model.py", 12)]
    constants = [
        np.arange(15).reshape(3, 5).astype(ml_dtypes.bfloat16),
        np.array([True, False]),
        np.zeros((0, 7), np.float32),
    ]
    options = {"auto_cast": "matmult", "lnc": 1, "pipeline": ["compile", "SaveTemps"], "verbose": None, "ratio": 0.5}
    program = Program(records, debug, variables, 192, 24, ["kernel0"], schedules={"kernel0": "k whole"})
    return Neff(program, constants, options, "trn1", "2.24", "jit_f", ["a warning"])


def equal(one: Neff, other: Neff) -> bool:
    constants = [np.asarray(array) for array in one.constants]
    return (
        one.program == other.program
        and len(constants) == len(other.constants)
        and all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(constants, other.constants, strict=True)
        )
        and (one.options, one.target, one.compiler_version) == (other.options, other.target, other.compiler_version)
        and (one.name, one.warnings, one.fast_loading) == (other.name, other.warnings, other.fast_loading)
    )


@pytest.mark.parametrize("fast", [False, True])
def test_round_trip(fast):
    neff = small_neff()
    neff.fast_loading = fast
    data = neff.to_bytes()
    loaded = Neff.from_bytes(data)
    assert equal(neff, loaded)
    assert loaded.to_bytes() == data
    assert [variable.name for variable in loaded.inputs] == ["x"]
    assert [variable.alias for variable in loaded.outputs] == [0]


def test_header_follows_the_sheet():
    data = small_neff().to_bytes()
    package, size, payload, major, minor = struct.unpack_from("<5Q", data)
    assert (package, size, payload, major, minor) == (1, 1024, len(data) - 1024, 2, 0)
    assert data[40:168].rstrip(b"\0") == b"open-neuronx-cc 2.24"
    assert struct.unpack_from("<I", data, 168) == (1,)
    assert data[172:204] == hashlib.sha256(data[1024:]).digest()
    assert data[220:476].rstrip(b"\0") == b"jit_f"


@pytest.mark.parametrize("fast", [False, True])
def test_the_body_is_an_ordinary_archive(fast):
    neff = small_neff()
    neff.fast_loading = fast
    with tarfile.open(fileobj=io.BytesIO(neff.to_bytes()[1024:])) as archive:
        names = archive.getnames()
        signature = json.loads(archive.extractfile("signature.json").read())
        weights = archive.extractfile("constants/000000.bin").read()
    assert names[:5] == ["info.json", "signature.json", "options.json", "sg00/def.json", "sg00/debug.json"]
    assert "sg00/dma_load.records" in names
    assert signature["inputs"] == [{"name": "x", "dtype": "f32", "dims": [4, 3], "bytes": 48}]
    assert signature["outputs"][0]["alias"] == 0
    assert weights == neff.constants[0].tobytes()


def test_same_bytes_under_any_hash_seed(tmp_path):
    script = tmp_path / "write.py"
    script.write_text(
        "import importlib.util, sys, hashlib\n"
        f"spec = importlib.util.spec_from_file_location('t', {os.path.abspath(__file__)!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "print(hashlib.sha256(module.small_neff().to_bytes()).hexdigest())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {hashlib.sha256(small_neff().to_bytes()).hexdigest().encode() + b"\n"}


def test_file_appears_by_rename(tmp_path):
    path = tmp_path / "file.neff"
    path.write_bytes(b"old")
    small_neff().write(path)
    assert equal(Neff.read(path), small_neff())
    assert os.listdir(tmp_path) == ["file.neff"]
    broken = small_neff()
    broken.constants[0] = np.zeros((5, 3), ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match="memory map"):
        broken.write(path)
    assert os.listdir(tmp_path) == ["file.neff"]
    assert equal(Neff.read(path), small_neff())


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(RunError, match="cannot read"):
        Neff.read(tmp_path / "none.neff")


def test_large_constants_are_stored_and_views_are_contiguous_on_disk():
    neff = small_neff()
    array = np.broadcast_to(np.float32(3), (700, 1000))
    neff.program.variables.append(Variable("big", "constant", 192, array.nbytes, "f32", array.shape, 3))
    neff.program.hbm_bytes = 192 + array.nbytes
    neff.constants.append(array)
    data = neff.to_bytes()
    assert len(data) > array.nbytes
    assert (Neff.from_bytes(data).constants[3] == 3).all()


DATA = small_neff().to_bytes()
PLAIN = Neff(**{**{f: getattr(small_neff(), f) for f in Neff.__dataclass_fields__}, "fast_loading": True}).to_bytes()


def resealed(payload: bytes) -> bytes:
    """A file with this payload and a header that fits it."""
    return neff_archive._header(len(payload), hashlib.sha256(payload).digest(), "2.24", "jit_f") + payload


def refused(data: bytes) -> str:
    with pytest.raises(RunError) as info:
        Neff.from_bytes(data)
    assert info.value.code in ("ENEF901", "EBIR902")
    return str(info.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "less than its header"),
        (b"HloModule foo\n" * 200, "does not begin with a NEFF header"),
        (b"\x7fELF" + bytes(4000), "does not begin"),
        (DATA[:-7], "truncated"),
        (DATA[:500], "less than"),
        (DATA + b"x", "foreign data"),
        (DATA[:2000] + bytes([DATA[2000] ^ 1]) + DATA[2001:], "hash"),
        (DATA[:210] + b"!" + DATA[211:], "uuid"),
        (DATA[:40] + b"2.15.1".ljust(128, b"\0") + DATA[168:], "another compiler"),
        (struct.pack("<Q", 2) + DATA[8:], "version 2"),
        (DATA[:24] + struct.pack("<Q", 3) + DATA[32:], "version 1.3"),
        (resealed(b""), "truncated"),
        (resealed(b"\x1f\x8b" + bytes(3000)), "damaged"),
        (resealed(bytes(3000)), "info.json"),
    ],
)
def test_foreign_and_damaged_files(data, text):
    assert text in refused(data)


def rebuilt(change) -> bytes:
    """The archive with its (name, content) list changed."""
    with tarfile.open(fileobj=io.BytesIO(PLAIN[1024:])) as source:
        entries = [(info.name, source.extractfile(info).read()) for info in source]
    entries = change(entries)
    chunks = []
    for name, content in entries:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        chunks.append(info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
    return resealed(b"".join(chunks) + bytes(1024))


def with_json(member, edit):
    def change(entries):
        result = []
        for name, content in entries:
            if name == member:
                value = json.loads(content)
                edit(value)
                content = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
            result.append((name, content))
        return result

    return change


def with_content(member, content):
    return lambda entries: [(name, content if name == member else old) for name, old in entries]


def variable(position, **fields):
    return with_json("sg00/def.json", lambda value: value["var"][position].update(fields))


def test_rebuilding_changes_nothing():
    assert equal(Neff.from_bytes(rebuilt(lambda entries: entries)), Neff.from_bytes(PLAIN))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda entries: [("/etc/passwd", b"x"), *entries], "not '/etc/passwd'"),
        (lambda entries: [("../info.json", entries[0][1]), *entries[1:]], "not '../info.json'"),
        (lambda entries: entries[:-1], "constants/000002.bin"),
        (lambda entries: [*entries, ("extra", b"")], "more in the archive"),
        (with_content("info.json", b"[" * 100000), "not JSON"),
        (with_content("info.json", b"\xff"), "not JSON"),
        (with_content("info.json", b'{"compiler": "x"}'), "does not hold"),
        (with_content("constants/000000.bin", bytes(29)), "29 bytes, 30 expected"),
        (with_content("constants/000001.bin", b"\1\2"), "truth values"),
        (with_content("sg00/vector.waits", bytes(7)), "7 bytes, 0 expected"),
        (with_json("info.json", lambda value: value["names"]["opcodes"].append("zzz")), None),
        (with_json("info.json", lambda value: value["names"]["opcodes"].reverse()), "not sorted"),
        (with_json("info.json", lambda value: value["names"]["dtypes"].append("q7")), "element type"),
        (with_json("info.json", lambda value: value.update(name="\ud800")), "Unicode"),
        (with_json("info.json", lambda value: value.update(warnings=[1])), "not text"),
        (with_json("options.json", lambda value: value.update(x={})), "option x"),
        (with_json("options.json", lambda value: value.update(x=float("nan"))), "option x"),
        (with_json("signature.json", lambda value: value["inputs"][0].update(name="z")), "disagree"),
        (with_json("sg00/debug.json", lambda value: value["hlo"].pop()), "different length"),
        (with_json("sg00/debug.json", lambda value: value["schedules"].update(other="k whole")), "there are not"),
        (with_json("sg00/debug.json", lambda value: value["schedules"].update(kernel0=1)), "not text"),
        (
            with_json(
                "sg00/debug.json", lambda value: [value[c].pop() for c in value if c not in ("kernels", "schedules")]
            ),
            "debug index",
        ),
        (with_json("sg00/def.json", lambda value: value.update(hbm_bytes=1 << 60)), "HBM size"),
        (with_json("sg00/def.json", lambda value: value.update(hbm_bytes=True)), "HBM size"),
        (with_json("sg00/def.json", lambda value: value["streams"].update(pe={})), "unknown stream"),
        (with_json("sg00/def.json", lambda value: value["streams"]["vector"].update(waits=1)), "0 bytes, 48 expected"),
        (variable(0, offset=-1), "offset"),
        (variable(0, nbytes=193), "size"),
        (variable(0, dims=[5, 3]), "shape takes 60 bytes, and it has 48"),
        (variable(0, dims=[1 << 39] * 9), "shape takes"),
        (variable(0, dims=[2, 3]), "shape takes 24 bytes, and it has 48"),
        (variable(0, index=1), "not numbered"),
        (variable(0, kind="file"), "kind"),
        (variable(0, name=7), "not text"),
        (variable(4, alias=1), "does not exist"),
        (variable(4, alias=-1), "'x' and 'y' share memory"),
        (variable(4, offset=12), "'x' and 'y' share memory"),
        (variable(4, dims=[3, 4]), "'x' and 'y' share memory"),
        (variable(3, offset=64), "'weights é' and 'scratch' share memory"),
        (with_json("sg00/def.json", lambda value: value["var"].append({**value["var"][4], "index": 1})), "two outputs"),
        (variable(0, surprise=1), "unknown fields"),
    ],
)
def test_hostile_archives(change, text):
    data = rebuilt(change)
    if text is None:
        Neff.from_bytes(data)  # a name that no record uses is harmless
    else:
        assert text in refused(data)


def test_blanks_are_refused_before_they_are_expanded():
    info = tarfile.TarInfo("info.json")
    info.size = 256 << 20
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packed.compress(info.tobuf(tarfile.GNU_FORMAT))
    body += b"".join(packed.compress(b" " * (1 << 20)) for _ in range(256)) + packed.flush()
    tracemalloc.start()
    try:
        assert "info.json has 268435456 bytes, more than" in refused(resealed(body))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("budget", ["TEXT", "TABLES"])
def test_members_share_one_limit(monkeypatch, budget):
    with tarfile.open(fileobj=io.BytesIO(PLAIN[1024:])) as source:
        members = [info for info in source if not info.name.startswith("constants/")]
    total = sum(info.size for info in members if info.name.endswith(".json") == (budget == "TEXT"))
    monkeypatch.setattr(neff_archive, budget, neff_archive.Budget(total, 0, total))
    Neff.from_bytes(DATA)
    monkeypatch.setattr(neff_archive, budget, neff_archive.Budget(total - 1, 0, total))
    assert "more than a file of this size can" in refused(DATA)


@pytest.mark.parametrize("unit", ["[],", "{},", '"ab",', "1000,"])
def test_texts_of_many_values_are_refused_before_they_are_objects(unit):
    archive = rebuilt(with_content("info.json", f"[{unit * 300_000}0]".encode()))[1024:]
    body = resealed(gzip.compress(archive))
    tracemalloc.start()
    try:
        assert "info.json has more values than a file of this size can need" in refused(body)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("warnings", [["a" * 5_000_000, "b" * 3_000_000], ["a"] * 300_000])
def test_what_compresses_too_well_is_stored(warnings):
    neff = small_neff()
    neff.warnings = warnings
    data = neff.to_bytes()
    assert len(data) > 1_000_000
    assert Neff.from_bytes(data).warnings == neff.warnings
    assert neff.to_bytes() == data


def test_a_constant_cannot_be_larger_than_the_file():
    def huge(value):
        value["hbm_bytes"] = 1 << 34
        value["var"][1].update(offset=192, dims=[1 << 32], nbytes=1 << 33)

    assert "larger than the file" in refused(rebuilt(with_json("sg00/def.json", huge)))


@settings(max_examples=150)
@given(st.data())
def test_mutated_files_are_refused_or_load(data):
    payload = bytearray(data.draw(st.sampled_from([DATA, PLAIN]))[1024:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(payload)))
        del payload[start : start + data.draw(st.integers(0, 1500))]
    try:
        loaded = Neff.from_bytes(resealed(bytes(payload)))
    except RunError as error:
        code = error.code
    else:
        code = ""
        loaded.to_bytes()
    assert code in ("", "ENEF901", "EBIR902")


@settings(max_examples=100)
@given(st.binary(max_size=3000), st.booleans())
def test_arbitrary_bytes_are_refused(content, zipped):
    refused(resealed(gzip.compress(content) if zipped else content))
