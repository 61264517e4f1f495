"""``neuronx-cc report``: the page, the JSON, the difference, and what is refused."""

import json
from pathlib import Path

import pytest

import neuronx_cc
from neuronx_cc.driver.cli import main

MODULE = """HloModule layer
ENTRY main {
  x = f32[128,256] parameter(0)
  w = f32[256,512] parameter(1)
  d = f32[128,512] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="dot" source_file="/a/layer.py" source_line=12}
  ROOT t = f32[512,128] transpose(d), dimensions={1,0}, metadata={op_name="t" source_file="/a/layer.py" source_line=13}
}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("l.hlo").write_text(MODULE)
    for mode in ("none", "all"):
        argv = ["compile", "l.hlo", "--auto-cast", mode, "--output", f"{mode}.neff", "--logfile", "c.log"]
        assert main(argv) == 0


def test_page_and_summary(capsys):
    capsys.readouterr()
    assert main(["report", "none.neff", "-o", "r.html"]) == 0
    out = capsys.readouterr().out
    assert "The program takes" in out
    assert "layer.py:12" in out
    assert "The report is in r.html" in out
    page = Path("r.html").read_text()
    assert page.startswith("<!doctype html>")
    assert neuronx_cc.load("none.neff").report_html("p.html") == Path("p.html").read_text()
    assert Path("p.html").read_text().startswith("<!doctype html>")


def test_json_has_what_run_says(capsys):
    capsys.readouterr()
    assert main(["report", "none.neff", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not Path("report.html").exists()
    assert main(["run", "none.neff", "--timing-only", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert document["time_ns"] == pytest.approx(run["time_ns"])
    assert document["summary"] == pytest.approx(run["summary"], rel=1e-3, abs=1e-3)
    assert document["options"]["auto_cast"] == "none"
    rows = {row["name"]: row for row in document["operators"]}
    assert rows["d"]["opcode"] == "dot"
    assert rows["d"]["shape"] in ("f32[128,512]", "f32[512,128]")


def test_difference(capsys):
    capsys.readouterr()
    assert main(["report", "all.neff", "--diff", "none.neff", "--json"]) == 0
    diff = json.loads(capsys.readouterr().out)["diff"]
    assert sum(row["change_ns"] for row in diff["rows"]) == pytest.approx(
        diff["summary"]["kernel_ns"][1] - diff["summary"]["kernel_ns"][0], abs=1
    )


def test_another_machine(capsys):
    capsys.readouterr()
    assert main(["report", "none.neff", "--json", "--set", "hbm.bw_per_core=4"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["hbm_bytes_per_ns"] == 4
    assert document["operators"][0]["bound"] == "HBM bandwidth"


@pytest.mark.parametrize(
    ("argv", "status", "mentions"),
    [
        (["l.hlo"], 2, "NEFF"),
        (["missing.neff"], 2, "missing.neff"),
        (["none.neff", "--output", "none.neff"], 2, "input"),
        (["none.neff", "--diff", "all.neff", "--output", "all.neff"], 2, "input"),
        (["none.neff", "--output", "."], 2, "directory"),
        (["none.neff", "--top", "-1"], 2, "--top"),
    ],
)
def test_refusals(argv, status, mentions, capsys):
    capsys.readouterr()
    assert main(["report", *argv]) in (1, status)
    err = capsys.readouterr().err
    assert err.startswith("[NCC_E")
    assert mentions in err
