"""Transposes of 16- and 8-bit values are watched: one more result says whether all were finite."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from generated import ON_CHIP, TRN1, text_of
from jax import lax

from neuronx_cc.codegen.compile import lower_module
from neuronx_cc.codegen.context import Transposes
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.runtime.clock_regions import simulate
from neuronx_cc.runtime.executable import Executable


def lowered(transposes: Transposes, function: Any, *inputs: Any) -> Any:
    module = parse_text(text_of(function, *inputs))
    context = PassContext(PassOptions(auto_cast="none"), TRN1)
    run_passes(module, pipelines.pass_names(pipelines.DEFAULT_PIPELINE), context)
    return lower_module(module, TRN1, transposes=transposes)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("value", [1, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [(0, 0), (129, 64), (140, 256)])
def test_what_was_not_finite_is_found(dtype: Any, value: float, place: tuple[int, int]) -> None:
    x, w = np.ones((141, 257), dtype), np.ones((257, 33), dtype)
    x[place] = value
    results = Executable(*lowered(Transposes.WATCHED, lambda x, w: abs(x @ w), x, w), on_chip=ON_CHIP).run([x, w])
    assert len(results.outputs) == 2
    assert np.isnan(results.outputs[1]).all() == (value != 1)


def test_programs_without_such_transposes_have_no_further_result() -> None:
    x, w = np.ones((64, 70), np.float32), np.ones((70, 33), np.float32)
    program, _ = lowered(Transposes.WATCHED, lambda x, w: x @ w, x, w)
    assert [variable.name for variable in program.variables if variable.kind == "output"] == ["out0"]


def test_in_loops() -> None:
    def function(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, x: abs(x @ w), x)

    x, w = np.ones((33, 130), ml_dtypes.bfloat16), np.eye(130, dtype=ml_dtypes.bfloat16)
    executable = Executable(*lowered(Transposes.WATCHED, function, x, w), on_chip=ON_CHIP)
    assert executable.run([x, w]).outputs[1][0] == 0
    x[5, 7] = np.inf
    assert np.isnan(executable.run([x, w]).outputs[1][0])


@pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 128), (512, 512, 512), (197, 768, 768), (2048, 1024, 256)])
def test_watching_takes_little_time(m: int, k: int, n: int) -> None:
    x, w = np.zeros((m, k), ml_dtypes.bfloat16), np.zeros((n, k), ml_dtypes.bfloat16)
    times = [
        simulate(lowered(each, lambda x, w: x @ w.T, x, w)[0], TRN1).total
        for each in (Transposes.VALUES, Transposes.WATCHED)
    ]
    assert times[1] < 1.03 * times[0]
