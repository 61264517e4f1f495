"""Sweeps and batches: tables, workers that die, jobs done once, bad values said ahead."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from job_cases import deadly, once_deadly

import neuronx_cc
from neuronx_cc.driver import cli
from neuronx_cc.driver.jobs import Job, Processes
from neuronx_cc.ir.errors import UsageError

Capture = pytest.CaptureFixture[str]
TEXT = """HloModule m
ENTRY main {
  x = f32[256,256] parameter(0)
  ROOT a = f32[256,256] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.hlo").write_text(TEXT)
    return tmp_path / "m.hlo"


def test_a_sweep_goes_through_every_combination(module: Path, capsys: Capture) -> None:
    words = ["sweep", "m.hlo", "--set", "pe.rate_limit=0.5,1.0", "--option", "auto-cast=none,matmult"]
    assert cli.main([*words, "--workers", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["pe.rate_limit"], row["--auto-cast"]) for row in rows] == [
        ("0.5", "none"), ("0.5", "matmult"), ("1.0", "none"), ("1.0", "matmult"),
    ]  # fmt: skip
    times = [row["microseconds"] for row in rows]
    assert times[0] > times[2]
    assert times[0] > times[1]
    alone = neuronx_cc.compile(module, auto_cast="none", int64="truncate", set=["pe.rate_limit=0.5"])
    assert times[0] == alone.run([], timing_only=True).report.time_ns / 1e3
    assert cli.main([*words, "--workers", "2"]) == 0
    assert f"{times[3]:.1f}" in capsys.readouterr().out.splitlines()[4]


@pytest.mark.parametrize(
    "words",
    [
        [], ["--set", "pe.rate_limit="], ["--set", "no.such=1"], ["--option", "auto-cast=some"], ["--option", "x=1"],
        ["--set", "pe.rate_limit=" + ",".join(f"0.{n}" for n in range(101)), "--option",
         "auto-cast-type=" + ",".join(f"t{n}" for n in range(101))],
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_said_first(module: Path, words: list[str], capsys: Capture) -> None:
    assert cli.main(["sweep", "m.hlo", *words]) != 0
    assert "NCC_E" in capsys.readouterr().err


def test_a_batch_writes_a_neff_for_each(module: Path, capsys: Capture) -> None:
    (module.parent / "n.hlo").write_text(TEXT.replace("256", "64"))
    (module.parent / "bad.hlo").write_text(TEXT.replace("parameter(0)", "infeed()"))
    (module.parent / "list").write_text("# models\nm.hlo\nn.hlo\n\nm.hlo\n")
    assert cli.main(["batch", "list", "--output", "neffs", "--workers", "1"]) == 0
    assert "neffs/n.neff" in capsys.readouterr().out
    assert sorted(path.name for path in (module.parent / "neffs").iterdir()) == ["m.neff", "n.neff"]
    (module.parent / "list").write_text("n.hlo\nbad.hlo\nmissing.hlo\n")
    assert cli.main(["batch", "list", "--workers", "1", "--json"]) != 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["microseconds"] is None for row in rows] == [False, True, True]
    assert "missing.hlo" in rows[2]["error"]
    assert (module.parent / "n.neff").is_file()
    (module.parent / "list").write_text("# none yet\n\n")
    assert cli.main(["batch", "list"]) != 0
    assert "names no modules" in capsys.readouterr().err
    (module.parent / "list").write_text("a/m.hlo\nb/m.hlo\n")
    assert cli.main(["batch", "list", "--output", "neffs"]) != 0
    assert "neffs/m.neff: a/m.hlo and b/m.hlo" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "said"), [(MemoryError(), "EMEM901"), (OSError(28, "No space left"), "EFIL902")])
def test_what_ends_a_job_ends_no_other(
    error: Exception, said: str, module: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    compile_ = neuronx_cc.compile

    def once(path: Path, **options: Any) -> Any:
        if path.name == "m.hlo":
            raise error
        return compile_(path, **options)

    monkeypatch.setattr(neuronx_cc, "compile", once)
    (module.parent / "n.hlo").write_text(TEXT.replace("256", "64"))
    (module.parent / "list").write_text("m.hlo\nn.hlo\n")
    assert cli.main(["batch", "list", "--workers", "1", "--json"]) != 0
    first, second = json.loads(capsys.readouterr().out)
    assert said in first["error"]
    assert second["microseconds"] > 0


def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    jobs = [Job(name, (), str(tmp_path / "mark")) for name in ("a", "deadly", "bb", "ccc", "a")]
    found = {job.path: outcome.microseconds for job, outcome in Processes(2, once_deadly).outcomes(jobs)}
    assert found == {"a": 1, "deadly": 6, "bb": 2, "ccc": 3}


def test_a_job_that_always_ends_its_worker_fails_alone() -> None:
    found = {job.path: outcome for job, outcome in Processes(2, deadly).outcomes([Job("a"), Job("deadly"), Job("bb")])}
    assert found["a"].microseconds == 1
    assert found["bb"].microseconds == 2
    assert "died" in found["deadly"].error
    assert found["deadly"].status == 1


def test_a_script_without_a_guard_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers run it again, and would start workers of their own."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(UsageError, match="main guard"):
        list(Processes(2, deadly).outcomes([Job("a"), Job("bb")]))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("auto_cast=none,all", "write --option auto-cast=VALUE"),
        ("dma.bw_per_engin=17", "did you mean dma.bw_per_engine"),
        ("dma.bw_per_engine=17,x", "takes a number"),
    ],
)
def test_settings_that_no_machine_has_are_said_once_and_at_once(
    module: Path, setting: str, said: str, capsys: Capture
) -> None:
    assert cli.main(["sweep", str(module), "--set", setting, "--set", "dma.packet_bytes=2048,4096"]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "microseconds" not in shown.out
    assert shown.err.count("EARG907") == 1
