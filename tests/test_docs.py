"""What the documentation shows works: the quick start runs, and the worked example gives the passes' output shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import neuronx_cc
from neuronx_cc.driver import cli

ROOT = Path(__file__).resolve().parent.parent


def blocks(name: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def test_quick_start_runs() -> None:
    (program,) = blocks("README.md", "python")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Simulated on trn1" in run.stdout


def test_worked_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, optimised = (block for block in blocks("ARCHITECTURE.md") if block.startswith("HloModule dense"))
    path = tmp_path / "dense.hlo"
    path.write_text(source)
    assert cli.main(["opt", str(path)]) == 0
    assert capsys.readouterr().out.strip() == optimised.strip()
    assert neuronx_cc.compile(source).program.records


def test_files_named_in_the_documentation_exist() -> None:
    for name in ("README.md", "ARCHITECTURE.md"):
        text = (ROOT / name).read_text()
        for path in re.findall(r"`((?:examples|benchmarks|tests|ir|driver|runtime|codegen|passes)/[\w/]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
