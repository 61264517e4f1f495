"""What is handed out: an sdist and a wheel, built and installed where there is no compiler.

With a compiler, every checkout's own installation is the test: ``CI=true`` asserts that its native parts were built.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("hlo_import", "ir", "passes", "codegen", "runtime", "driver")

DENSE = """HloModule dense

ENTRY main {
  x = f32[64,256] parameter(0)
  w = f32[256,32] parameter(1)
  ROOT dot = f32[64,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def files(*patterns: str, folders: tuple[str, ...] = FOLDERS) -> set[str]:
    """Paths of the checkout below ``folders``, from its root."""
    found = (path for folder in folders for pattern in patterns for path in (ROOT / folder).rglob(pattern))
    return {path.relative_to(ROOT).as_posix() for path in found}


@dataclass(frozen=True)
class Built:
    """The files of a release."""

    sdist: Path
    wheel: Path


def bare_environment(folder: Path) -> dict[str, str]:
    """An environment in which no compiler is found, nor anything of this checkout."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC", "CXX", "CI")}
    return kept | {"PATH": str(folder)}


def call(*command: str | Path, environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], env=environment, cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_release_made_and_installed_without_a_compiler(tmp_path: Path) -> None:
    """One test, so that several test processes do not build it several times."""
    built = build(tmp_path / "source", tmp_path / "empty")
    check_wheel(built)
    check_sdist(built)
    environment = install(built, tmp_path / "venv")
    (tmp_path / "work").mkdir()
    check_commands(environment, tmp_path / "work")
    check_backend(environment, tmp_path / "work")


def build(source: Path, empty: Path) -> Built:
    """From the files that git would hand out: an sdist of them, and a wheel of that."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    run = call(
        sys.executable, "-m", "build", "--outdir", source / "dist", source,
        environment=bare_environment(empty), cwd=source,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    (sdist,), (wheel,) = (source / "dist").glob("*.tar.gz"), (source / "dist").glob("*.whl")
    return Built(sdist, wheel)


def install(built: Built, folder: Path) -> dict[str, str]:
    """A virtual environment with the wheel and no compiler; what it depends on is borrowed from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    result = bare_environment(folder / "bin")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--quiet")
    run = call(*pip, built.wheel, environment=result, cwd=folder)
    assert run.returncode == 0, run.stdout + run.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    # a path that a .pth file adds is not searched for others, so this environment's editable install stays out
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    return result


def check_wheel(built: Built) -> None:
    """The package and nothing else."""
    assert built.wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(built.wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"neuronx_cc"}
    assert len(top) == 2
    assert {name for name in names if name.endswith(".py")} == {
        f"neuronx_cc/{name}" for name in {*files("*.py"), *(path.name for path in (ROOT / "neuronx_cc").glob("*.py"))}
    }
    data = files(
        "*.toml",
        "*.html",
        "*.css",
        "*.js",
        "*.cpp",
        "*.h",
        folders=("runtime/machines", "runtime/native", "runtime/profiling"),
    )
    assert {f"neuronx_cc/{name}" for name in {*data, "py.typed"}} <= set(names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def check_sdist(built: Built) -> None:
    """What a contributor needs."""
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md", "Makefile")
    assert {*wanted, "docs/conf.py", "docs/tutorial.md", "docs/images/report-gpt2.png", ".ci/run"} <= names
    assert files("*.py", folders=(*FOLDERS, "tests", "docs")) <= names
    assert files("*.cpp", "*.h") <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def check_commands(environment: dict[str, str], folder: Path) -> None:
    """Values come from NumPy, which is said; to insist on the native core fails with what is missing."""
    scripts = Path(environment["PATH"])
    where = call(scripts / "python", "-c", "import neuronx_cc.ir as m; print(m.__file__)",
                 environment=environment, cwd=folder)  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(scripts.parent), where.stderr
    (folder / "dense.hlo").write_text(DENSE)
    for command in (
        ("neuron-cc", "list-operators"),
        ("neuronx-cc", "compile", "dense.hlo", "--output", "dense.neff"),
        ("neuronx-cc", "run", "dense.neff", "--outputs", "out.npz"),
        ("neuronx-cc", "report", "dense.neff", "-o", "dense.html"),
    ):
        run = call(scripts / command[0], *command[1:], environment=environment, cwd=folder)
        assert run.returncode == 0, run.stderr
        assert ("NumPy (no native core: install a C++17 compiler" in run.stderr) == (command[1] == "run")
    insisting = ("run", "dense.neff", "--simulator", "native")
    run = call(scripts / "neuronx-cc", *insisting, environment=environment, cwd=folder)
    assert run.returncode == 1
    assert "ERUN917" in run.stderr
    assert "install a C++17 compiler" in run.stderr


def check_backend(environment: dict[str, str], folder: Path) -> None:
    python = Path(environment["PATH"]) / "python"
    program = "import jax; jax.devices()"
    run = call(python, "-c", program, environment=environment | {"JAX_PLATFORMS": "neuron"}, cwd=folder)
    assert run.returncode == 1
    assert "its C++ library, which was not built: install a C++17 compiler" in run.stderr
    # others are not bothered
    run = call(python, "-c", program, environment=environment, cwd=folder)
    assert run.returncode == 0
    assert "C++" not in run.stderr
