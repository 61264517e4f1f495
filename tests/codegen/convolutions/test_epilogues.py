"""What is computed of the sums of convolutions as they leave PSUM: by value, in all forms and layouts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.clock_regions import simulate

MACHINES = Path(__file__).resolve().parents[2] / "machines"
LAYOUTS = ("first", "last")
CHAINS: dict[str, Callable[..., Any]] = {
    "bias": lambda y, scale, bias, each: jax.nn.relu(y + bias),
    "norm": lambda y, scale, bias, each: jnp.maximum((y - bias) * (scale * lax.rsqrt(bias * bias + 1)) + scale, 0),
    "residual": lambda y, scale, bias, each: jax.nn.relu((y - bias) * scale + each),
    "silu": lambda y, scale, bias, each: jax.nn.silu(y * scale + bias) * each,
    "shift": lambda y, scale, bias, each: jnp.maximum(y + 0.25, 0) + jnp.maximum(y - 0.5, 0) * scale,
    "clamp": lambda y, scale, bias, each: jnp.clip(y * scale + bias, 0, 6).astype(jnp.bfloat16),
    "select": lambda y, scale, bias, each: jnp.where(each > 0, y, 0.1 * y),
}
# batch, side, inputs, outputs, taps, stride, groups, dilation of the input
FORMS = {
    "plain": (2, 9, 20, 30, 3, 1, 1, 1),
    "pointwise": (1, 14, 130, 200, 1, 1, 1, 1),
    "strided": (3, 13, 7, 129, 3, 2, 1, 1),
    "few outputs": (2, 17, 16, 3, 5, 1, 1, 1),
    "one output": (1, 33, 8, 1, 3, 1, 1, 1),
    "few inputs": (1, 30, 3, 64, 7, 2, 1, 1),
    "wide": (1, 5, 16, 600, 3, 1, 1, 1),
    "depthwise": (2, 12, 40, 40, 3, 1, 40, 1),
    "grouped": (2, 11, 32, 64, 3, 1, 4, 1),
    "dilated": (2, 8, 12, 10, 3, 1, 1, 2),
    "phases without taps": (2, 6, 12, 10, 1, 1, 1, 2),
    "large": (1, 96, 8, 24, 3, 1, 1, 1),
    "large phases without taps": (1, 40, 24, 64, 1, 1, 1, 2),
}


def run(
    name: str, form: tuple[int, ...], layout: str, rank: int = 2, dtype: Any = np.float32, machine: Machine = TRN1
) -> list[str]:
    """Run and compare with XLA; the kinds of kernels."""
    batch, side, inputs, outputs, taps, stride, groups, dilation = form
    letters = "DHW"[3 - rank :]
    last = layout == "last"
    images, kernel = (f"N{letters}C", f"{letters}IO") if last else (f"NC{letters}", f"OI{letters}")
    names = images, kernel, images

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            (stride,) * rank,
            [(taps // 2, (taps - 1) // 2)] * rank,
            lhs_dilation=(dilation,) * rank,
            dimension_numbers=names,
            feature_group_count=groups,
        )

    def dims(letters: str, **sizes: int) -> list[int]:
        return [sizes.get(letter, side) for letter in letters]

    taken = dict.fromkeys(letters, taps)
    random = np.random.default_rng(sum(form))
    x = random.standard_normal(dims(names[0], N=batch, C=inputs)).astype(dtype)
    w = random.standard_normal(dims(names[1], O=outputs, I=inputs // groups, **taken))
    w = (w * (inputs // groups * taps**rank) ** -0.5).astype(dtype)
    each = random.standard_normal(jax.eval_shape(convolve, x, w).shape).astype(dtype)
    scale, bias = (random.standard_normal(outputs).astype(dtype) for _ in range(2))

    def function(x: Any, w: Any, scale: Any, bias: Any, each: Any) -> Any:
        one = (1,) * rank
        columns = ((a if last else a.reshape(1, -1, *one)) for a in (scale, bias))
        return CHAINS[name](convolve(x, w), *columns, each)

    wide = {} if dtype == np.float32 else {"relative": 0.06}
    program = check_function(function, x, w, scale, bias, each, machine=machine, **wide).program
    return [kernel.split(".")[1] for kernel in program.kernels]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, layout: str) -> None:
    for name in ("bias", "norm", "residual", "silu", "shift", "clamp"):
        run(name, FORMS[form], layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 3])
def test_ranks(rank: int, layout: str) -> None:
    for name in ("norm", "residual", "select"):
        for form in ("plain", "few outputs", "dilated"):
            batch, side, *others = FORMS[form]
            run(name, (batch, min(side, 9), *others), layout, rank)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_narrow_floats(dtype: Any, layout: str) -> None:
    for form in ("plain", "few outputs", "depthwise"):
        for name in ("bias", "residual"):
            run(name, FORMS[form], layout, dtype=dtype)


@pytest.mark.parametrize("machine", ["eighth", "quarter"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_little_memory(layout: str, machine: str) -> None:
    for form in ("plain", "few inputs", "grouped", "wide"):
        run("residual", FORMS[form], layout, machine=find_machine(str(MACHINES / f"{machine}.toml")))


@pytest.mark.parametrize("name", CHAINS)
def test_no_map_is_left(name: str) -> None:
    kinds = run(name, (1, 28, 64, 64, 3, 1, 1, 1), "first")
    assert "convolution" in kinds
    assert kinds.count("map") <= (name in ("norm", "select"))  # scales and predicates are made apart


@pytest.mark.parametrize("function", ["silu", "relu", "tanh", "relu6"])
@pytest.mark.parametrize("outputs", [24, 200])
def test_factor_summand_and_function_of_a_feature_are_one_instruction(function: str, outputs: int) -> None:
    x, w, scale, bias = (np.ones(dims, np.float32) for dims in ((1, 64, 8, 8), (outputs, 64, 1, 1), outputs, outputs))

    def program(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME") * scale[:, None, None] + bias[:, None, None]
        return lax.conv_general_dilated(getattr(jax.nn, function)(y), w.transpose(1, 0, 2, 3), (1, 1), "SAME")

    records = compile_text(text_of(program, x, w, scale, bias), auto_cast="matmult").program.records
    made = [each for each in records if isinstance(each, Instr) and {"scale_ap", "bias"} <= each.flags]
    assert {each.alu[0] for each in made} == {"copy" if function == "relu6" else function}
    ends = [each for each in records if isinstance(each, Instr) and each.alu == ("max", "min")]
    assert {each.outs[0].dtype for each in ends} == ({"bf16"} if function == "relu6" else set())


def microseconds(function: Callable[..., Any], *inputs: Any) -> float:
    return simulate(compile_text(text_of(function, *inputs), auto_cast="none").program, TRN1).total / 1e3


def convolved(layout: str) -> Callable[..., Any]:
    names = ("NHWC", "HWIO", "NHWC") if layout == "last" else ("NCHW", "HWIO", "NCHW")
    return lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("inputs", "outputs", "taps"), [(24, 144, 1), (144, 24, 1), (64, 64, 3)])
def test_epilogues_take_little_more_than_sums_alone(
    layout: str, inputs: int, outputs: int, taps: int, dtype: Any
) -> None:
    def image(features: int) -> np.ndarray[Any, Any]:
        return np.ones((4, 28, 28, features) if layout == "last" else (4, features, 28, 28), dtype)

    x, each, w = image(inputs), image(outputs), np.ones((taps, taps, inputs, outputs), dtype)
    row, convolve = np.ones(outputs if layout == "last" else (outputs, 1, 1), dtype), convolved(layout)
    alone = microseconds(convolve, x, w)
    for name in ("bias", "residual"):
        time = microseconds(lambda x, w, s, b, e: CHAINS[name](convolve(x, w), s, b, e), x, w, row, row, each)  # noqa: B023
        assert time < 1.75 * alone + 10, (name, time, alone)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_lies_in_another_order_is_not_loaded_element_by_element(dtype: Any) -> None:
    """The image that is added has its features last, the sums of what is convolved again have them first."""
    convolve = convolved("last")
    x, w = np.ones((2, 28, 28, 64), dtype), np.ones((3, 3, 64, 64), dtype)
    alone = microseconds(lambda x, w: convolve(jax.nn.relu(convolve(x, w)), w), x, w)
    time = microseconds(lambda x, w, z: convolve(jax.nn.relu(convolve(x, w) + z), w), x, w, x)
    assert time < 2 * alone
