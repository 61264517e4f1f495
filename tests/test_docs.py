"""What the documentation shows works: the quick start runs, and the worked example gives the passes' output shown."""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from neuronx_cc.driver import cli

ROOT = Path(__file__).resolve().parent.parent


def blocks(name: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def test_quick_start_runs() -> None:
    (program,) = blocks("README.md", "python")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Simulated on trn1" in run.stdout


REFUSED = """HloModule step

ENTRY main {
  x = f64[8,128] parameter(0)
  t = token[] after-all()
  i = ((f32[8]), token[]) infeed(t), metadata={op_name="jit(step)/infeed" source_file="model.py" source_line=41}
  ROOT y = f64[8,128] tanh(x), metadata={op_name="jit(step)/tanh" source_file="model.py" source_line=17}
}
"""


def test_refusal_is_printed_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(REFUSED)
    assert cli.main(["compile", str(path), "--logfile", str(tmp_path / "log")]) == 70
    printed = capsys.readouterr().err.split("\n\nDiagnostic")[0]
    assert f"{printed}\n" in blocks("README.md")


def test_worked_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, optimised = (block for block in blocks("ARCHITECTURE.md") if block.startswith("HloModule dense"))
    path = tmp_path / "dense.hlo"
    path.write_text(source)
    assert cli.main(["opt", str(path)]) == 0
    assert capsys.readouterr().out.strip() == optimised.strip()


def rows(table: bytes, index: int) -> str:
    """Entry ``index`` of a table of 128-byte entries as rows of 16 bytes, without those that are zero."""
    entry = table[index * 128 :][:128]
    parts = [(at, entry[at : at + 16]) for at in range(0, 128, 16)]
    return "".join(f"{at:04x}  {part.hex(' ')}\n" for at, part in parts if any(part))


def test_streams_and_bytes_of_the_worked_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the log goes there
    shown = blocks("ARCHITECTURE.md")
    source = next(block for block in shown if block.startswith("HloModule dense"))
    Path("dense.hlo").write_text(source)
    assert cli.main(["compile", "dense.hlo", "--target", "trn1", "--output", "dense.neff"]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", "dense.neff", "--disassemble"]) == 0
    disassembly = capsys.readouterr().out.split("instructions\n")[1].strip()
    assert disassembly in [block.strip() for block in shown]
    with tarfile.open(fileobj=io.BytesIO(Path("dense.neff").read_bytes()[1024:])) as archive:
        records, operands = (archive.extractfile(f"sg00/tensor.{table}") for table in ("records", "operands"))
        assert records is not None
        assert operands is not None
        record, operand = rows(records.read(), 7), rows(operands.read(), 10)
    assert any(block.endswith(f"\n\n{record}") for block in shown)
    assert operand in shown
    assert cli.main(["run", "dense.neff"]) == 0
    simulated = capsys.readouterr().out.splitlines()[0]
    assert f'"{simulated}"' in (ROOT / "ARCHITECTURE.md").read_text()


def test_files_named_in_the_documentation_exist() -> None:
    for name in ("README.md", "ARCHITECTURE.md"):
        text = (ROOT / name).read_text()
        for path in re.findall(r"`((?:examples|benchmarks|tests|ir|driver|runtime|codegen|passes)/[\w/]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
