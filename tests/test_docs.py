"""What the documentation shows works: every block of code runs, and the worked example gives what is shown."""

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pages
import pytest

import neuronx_cc
from neuronx_cc.driver import cli, neuron_cc, options
from neuronx_cc.driver.errors import CATALOGUE
from neuronx_cc.driver.jax_backend import settings
from neuronx_cc.ir.isa.table import TABLE
from neuronx_cc.ir.operators import OPERATORS
from neuronx_cc.ir.targets import find_machine

ROOT = Path(__file__).resolve().parent.parent


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [name for name in PAGES if not name.startswith(("docs/reference/", "docs/project/"))]
QUICK = ("docs/guides/precision.md",)
"""The others take longer than a few seconds."""
FOLLOWED = [
    name for name in PAGES if any(block.language in pages.RUN for block in pages.blocks((ROOT / name).read_text()))
]


def blocks(name: str, *languages: str) -> list[str]:
    return [block.code for block in pages.blocks((ROOT / name).read_text()) if block.language in (languages or ("",))]


@pytest.mark.installed
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in FOLLOWED]
)
def test_every_block_runs(name: str, tmp_path: Path) -> None:
    """In an empty directory beside ``examples``."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    follow(name, tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "cache")})


@pytest.mark.installed
def test_diffs_of_contributing_apply() -> None:
    """Each to the files as they are: a line beside one that a diff adds to may have changed."""
    for block in blocks("CONTRIBUTING.md", "diff"):
        run = subprocess.run((*pages.APPLY, "--check", "-"), input=block, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


@pytest.mark.installed
@pytest.mark.slow
def test_every_step_of_contributing_works(tmp_path: Path) -> None:
    """In a copy of the checkout, with its native parts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    native = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/*.so") if ".venv" not in path.parts]
    for name in [*filter(None, listed.stdout.decode().split("\0")), *native]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(ROOT / name):
            shutil.copy2(ROOT / name, tmp_path / name, follow_symlinks=False)
    follow("CONTRIBUTING.md", tmp_path, {"PYTHONPATH": str(tmp_path)})


def follow(page: str, folder: Path, more: dict[str, str]) -> None:
    """Follow a page in ``folder``, with the commands on the path."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more
    command = [sys.executable, pages.__file__, str(ROOT / page)]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_blocks_say_what_they_are(name: str) -> None:
    """A block without a language would not be run, and nobody would see it."""
    text = (ROOT / name).read_text()
    found = pages.blocks(text)
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE))
    assert not {block.language for block in found} - {*pages.RUN, *pages.SHOWN}
    assert not [block for block in found if block.reason and block.language not in pages.RUN]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize("shown", ["158.2 us ... done", "relative error 1e-3\n158 us simulated, done"])
def test_pages_compare_what_is_printed(shown: str) -> None:
    assert pages.agree(shown, "relative error 3.2e-03\n107 us simulated, done\n")


@pytest.mark.parametrize("shown", ["158 ms", "done\nrelative error 1", "us simulated done"])
def test_pages_notice_what_is_not_printed(shown: str) -> None:
    assert not pages.agree(shown, "relative error 3.2e-03\n107 us simulated, done\n")


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
    assert f"{printed}\n" in blocks("README.md", "text")


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
    for name in (*PAGES, "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / name).read_text()
        folders = "examples|benchmarks|tests|ir|driver|runtime|codegen|passes|docs"
        for path in re.findall(rf"`((?:{folders})/[\w/-]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for path in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
            assert ((ROOT / name).parent / path).exists(), f"{name} links {path}"


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result: dict[str, str] = module.pages()
    return result


def test_reference_pages_hold_every_row() -> None:
    """They are made from the tables by every build, so they cannot be older; this is that nothing is left out."""
    made = generated()
    commands = [*options.COMMANDS.values(), *neuron_cc.COMMANDS.values()]
    flags = {flag for command in commands for option in command.options for flag in option.flags}
    assert not [flag for flag in flags if f"`{flag}`" not in made["reference/commands.md"]]
    assert not [code for code in CATALOGUE if f"\n### {code}: " not in made["reference/errors.md"]]
    assert not [row for row in OPERATORS if f"| `{row}` |" not in made["reference/operators.md"]]
    assert not [row for row in TABLE if f"| `{row}` |" not in made["reference/instructions.md"]]
    assert not [key for key in find_machine("trn1").entries if f"| `{key}` |" not in made["reference/machine.md"]]
    assert not [
        name for name in neuronx_cc.__all__ if not name.startswith("_") and name not in made["reference/python.rst"]
    ]


def test_settings_of_the_environment_are_documented() -> None:
    text = (ROOT / "docs/guides/jax.md").read_text()
    assert not [name for name in settings.HONOURED if f"`{name}" not in text]
