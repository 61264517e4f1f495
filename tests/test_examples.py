"""The examples, the demonstration and the benchmark table run as their pages say."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shell(*arguments: str) -> str:
    run = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


SMALL = ("--layers", "1", "--width", "64", "--vocabulary", "99", "--sequence", "16")
IMAGES = ("--width", "4", "--image", "32", "--batch", "2")


@pytest.mark.parametrize(
    "arguments",
    [
        ("mlp_train.py", "--layers", "1", "--width", "40", "--batch", "8", "--auto-cast", "none"),
        ("gpt2.py", *SMALL, "--auto-cast", "matmult"),
        ("bert.py", *SMALL, "--weights", "constants"),
        ("resnet.py", *IMAGES, "--stages", "1", "--mode", "train"),
        ("unet.py", *IMAGES),
        ("diffusion.py", *IMAGES),
        ("recurrent.py", "--cell", "gru", "--width", "24", "--vocabulary", "99", "--sequence", "7", "--batch", "3"),
        ("mamba.py", "--layers", "1", "--width", "32", "--vocabulary", "99", "--sequence", "16"),
        ("llama.py", "--layers", "1", "--width", "64", "--hidden", "96", "--vocabulary", "99", "--cache", "32"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_example(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported JAX already."""
    monkeypatch.setattr(sys, "argv", list(arguments))
    runpy.run_path(str(ROOT / "examples" / arguments[0]), run_name="__main__")
    check_report(capsys.readouterr().out)


def test_example_from_a_shell() -> None:
    sizes = ("--tokens", "32", "--width", "32", "--hidden", "48")
    check_report(shell("examples/moe.py", *sizes, "--auto-cast", "matmult"))


def check_report(output: str) -> None:
    assert "against jaxlib in FP32" in output
    assert "Simulated on trn1" in output


def test_example_saves_its_module(tmp_path: Path) -> None:
    from neuronx_cc.hlo_import import load_module

    path = tmp_path / "mlp.hlo.pb"
    shell("examples/mlp_train.py", "--layers", "1", "--width", "8", "--save-hlo", str(path))
    assert load_module(path.read_bytes()).entry.root.op.opcode == "tuple"


@pytest.mark.installed
@pytest.mark.slow
def test_demonstration(tmp_path: Path) -> None:
    output = shell("examples/demo.py", "--layers", "1", "--directory", str(tmp_path))
    assert "result check: PASS" in output
    assert {path.name for path in tmp_path.iterdir()} >= {"gpt2.hlo.pb", "gpt2.neff", "in.npz", "out.npz"}


@pytest.mark.installed
def test_benchmark_table() -> None:
    lines = shell("benchmarks/models.py", "startup", "import_and_passes").splitlines()
    assert len(lines) == 3
    assert "not available" not in lines[1] + lines[2]
