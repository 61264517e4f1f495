"""Machine descriptions: complete, validated, overridable."""

import pytest

from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.machine import load
from neuronx_cc.ir.targets import FOLDER, find_machine, names

ENTRY = 'value = 1.0, unit = "ns", grade = "A", source = "nowhere"'


def test_known_targets_differ_where_they_should():
    assert names() == ["inf2", "trn1", "trn1n"]
    trn1, inf2 = find_machine("trn1"), find_machine("inf2")
    assert set(trn1) == set(inf2)
    assert {key for key in trn1 if trn1[key] != inf2[key]} == {"link.bw"}
    assert trn1["clock.tensor_ghz"] == 2.8


def test_every_value_has_its_evidence():
    for key, entry in find_machine("trn1").entries.items():
        assert entry.unit, key
        assert entry.source, key


def test_settings_replace_values():
    machine = find_machine("trn1").with_settings(["pe.rate_limit=0.5", "excl.vec_pool_sbuf = ignore", "dma.engines=8"])
    assert (machine["pe.rate_limit"], machine["excl.vec_pool_sbuf"], machine["dma.engines"]) == (0.5, "ignore", 8)
    assert machine.entries["pe.rate_limit"].grade == "A"
    assert find_machine("trn1")["pe.rate_limit"] == 0.87
    assert machine.key() != find_machine("trn1").key()


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("pe.rate_limt=1", "did you mean pe.rate_limit"),
        ("pe.rate_limit", "expected key=value"),
        ("pe.rate_limit=fast", "takes a number"),
        ("pe.rate_limit=0", "above 0"),
        ("pe.rate_limit=nan", "expected a number"),
        ("dma.engines=1.5", "takes a whole number"),
        ("sem.latency_ns=-1", "0 or more"),
        ("excl.vec_pool_sbuf=maybe", "arbitrate or ignore"),
        ("num.denormals=flush", "is 'flush', expected keep"),
    ],
)
def test_bad_settings(setting, problem):
    with pytest.raises(UsageError, match=problem):
        find_machine("trn1").with_settings([setting])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]\nb = 3", "is not {value"),
        ('[a]\nb = {value = 3, unit = "ns"}', "needs value, unit, grade and source"),
        ("[a]\nb = {" + ENTRY.replace('"A"', '"Z"') + "}", "grade 'Z'"),
        ("[a]\nb = {" + ENTRY.replace("1.0", "true") + "}", "expected a number"),
        ("a = [", "not a TOML file"),
        ('inherits = "own.toml"', "inherits from itself"),
    ],
)
def test_bad_files(tmp_path, text, problem):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem):
        load(path)


def test_own_files_cannot_invent_policies(tmp_path):
    path = tmp_path / "own.toml"
    for value in ('"flush"', "1.0"):
        entry = ENTRY.replace("1.0", value)
        path.write_text(f'inherits = "{FOLDER / "trn1.toml"}"\n[num]\ndenormals = {{{entry}}}')
        with pytest.raises(UsageError, match=r"num\.denormals"):
            load(path)


def test_own_files_inherit(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(f'inherits = "{FOLDER / "trn1.toml"}"\n[sem]\nlatency_ns = {{{ENTRY}}}')
    machine = find_machine(path)
    assert (machine.name, machine["sem.latency_ns"], machine["clock.base_ghz"]) == ("own", 1.0, 1.4)
    with pytest.raises(UsageError, match="no such file or target"):
        find_machine(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match=r"no key 'pe\.speed'"):
        machine["pe.speed"]


def test_sizes_are_those_of_the_description() -> None:
    sizes = find_machine("trn1").sizes()
    assert (sizes.partitions, sizes.sbuf_bytes, sizes.psum_bytes, sizes.bank_bytes) == (128, 180224, 16384, 2048)
    assert (sizes.banks, sizes.bank_columns, sizes.rows, sizes.columns) == (8, 512, 128, 128)


def test_differences_make_the_other_machine() -> None:
    trn1 = find_machine("trn1")
    other = trn1.with_settings(["pe.rate_limit=0.87", "dma.engines=8", "excl.vec_pool_sbuf=ignore"])
    assert trn1.differences(trn1) == ()
    assert trn1.with_settings(other.differences(trn1)).key() == other.key()
    assert other.digest() != trn1.digest()
    assert trn1.with_settings(["run.preamble_us=1"]).digest() == trn1.digest(), "no plan depends on it"
