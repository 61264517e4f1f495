"""The machine that a program is planned for: options, record, and what a run on another one says."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

import neuronx_cc
from neuronx_cc.driver.cli import main
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).parent.parent / "machines"
HALF = str(MACHINES / "half.toml")
TEXT = """HloModule dense

ENTRY main {
  x = f32[300,1500] parameter(0)
  w = f32[1500,700] parameter(1)
  ROOT dot = f32[300,700] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dense.hlo").write_text(TEXT)


def compiled(*options: str) -> Neff:
    assert main(["compile", "dense.hlo", "--output", "dense.neff", *options]) == 0
    return Neff.from_bytes(Path("dense.neff").read_bytes())


def test_the_neff_records_what_it_was_planned_for() -> None:
    neff = compiled()
    trn1 = find_machine("trn1")
    assert neff.planned_for is not None
    assert (neff.planned_for.name, neff.planned_for.digest) == ("trn1", trn1.digest())
    assert neff.options["set"] == []
    other = compiled("--machine", HALF, "--set", "dma.engines=8")
    assert other.planned_for is not None
    assert (other.planned_for.name, other.planned_for.digest) == ("half", other.machine().digest())
    assert other.machine()["dma.engines"] == 8
    assert other.machine()["memory.psum_partition_bytes"] == 8192
    assert other.program.sbuf_peak <= 90112 < neff.program.sbuf_peak


def test_a_run_on_another_machine_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    compiled("--machine", HALF)
    capsys.readouterr()
    assert main(["run", "dense.neff", "--timing-only"]) == 0
    assert "Simulated on half" in (text := capsys.readouterr().out)
    assert "planned for" not in text
    assert main(["run", "dense.neff", "--timing-only", "--machine", "trn1"]) == 0
    assert "planned for another machine: half" in capsys.readouterr().out
    assert main(["run", "dense.neff", "--timing-only", "--set", "dma.engines=8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned_for"].startswith("half")
    assert main(["inspect", "dense.neff"]) == 0
    assert "planned for       half" in capsys.readouterr().out
    assert main(["run", "dense.neff", "--check"]) == 0


def test_a_program_that_is_too_large_for_the_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    compiled()
    assert main(["run", "dense.neff", "--timing-only", "--machine", HALF]) != 0
    assert "EARG908" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        ["memory.partitions=64"],
        ["memory.sbuf_partition_bytes=20000"],
        ["memory.psum_partition_bytes=1024"],
        ["memory.sbuf_partition_bytes=1000000"],
        ["pe.rows=256"],
    ],
)
def test_sizes_that_no_plan_fits_are_refused(settings: list[str]) -> None:
    with pytest.raises(UsageError, match="EARG907"):
        neuronx_cc.compile(TEXT, set=settings)


def test_the_python_api_plans_for_a_machine() -> None:
    x, w = np.ones((300, 1500), np.float32), np.ones((1500, 700), np.float32)
    small = neuronx_cc.compile(TEXT, machine=HALF, auto_cast="none")
    usual = neuronx_cc.compile(TEXT, auto_cast="none")
    assert small.machine.name == "half"
    assert small.program.sbuf_peak < usual.program.sbuf_peak
    np.testing.assert_array_equal(small(x, w)[0], usual(x, w)[0])


FUNCTIONS: dict[str, Any] = {
    "dense": lambda x: jax.nn.gelu(x @ x.T),
    "softmax": lambda x: jax.nn.softmax(jnp.tile(x, (1, 9)), -1),
    "transpose": lambda x: x.T * 2,
    "norm": lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
    "columns": lambda x: x.sum(0),
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "convolution": lambda x: jax.lax.conv_general_dilated(
        x[:256, :224].reshape(2, 32, 28, 32),
        x[:288, :64].reshape(3, 3, 32, 64),
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
}


@pytest.mark.parametrize("machine", ["half", "quarter"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_machines_compute_the_same(name: str, machine: str) -> None:
    x = np.random.default_rng(3).standard_normal((300, 500), np.float32)
    check_function(FUNCTIONS[name], x, relative=2e-4, machine=find_machine(MACHINES / f"{machine}.toml"))
