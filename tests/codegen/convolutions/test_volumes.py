"""Convolutions of volumes, cut into boxes."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.convolutions import candidates

LAYOUTS = (("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW"))
CASES = (((1, 22, 30, 26), 16, 16, 1), ((2, 17, 20, 19), 5, 9, 2), ((1, 24, 24, 24), 32, 32, 1))


def arrays(layout: tuple[str, str, str], sizes: dict[str, int], dtype: Any, random: np.random.Generator) -> list[Any]:
    kernel = sizes | dict.fromkeys("DHW", 3)
    shapes = [sizes[dim] for dim in layout[0]], [kernel[dim] for dim in layout[1]]
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_boxes(
    layout: tuple[str, str, str], dtype: Any, case: Any, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any box gives the same values."""
    slabs = candidates._blocks

    def boxes(problem: Any, frame: Any, sizes: Any) -> Iterator[Any]:
        found = list(candidates._boxes(problem, frame, sizes))
        yield from found or slabs(problem, frame, sizes)

    monkeypatch.setattr(candidates, "LARGE_IMAGE", 2048)
    monkeypatch.setattr(candidates, "_blocks", boxes)
    (batch, *sides), inputs, outputs, step = case
    sizes = dict(zip("NCIODHW", (batch, inputs, inputs, outputs, *sides), strict=True))

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (step,) * 3, "SAME", dimension_numbers=layout)

    check_function(convolve, *arrays(layout, sizes, dtype, random))


def test_large_volumes_are_no_slabs(random: np.random.Generator) -> None:
    """Of a slab of one plane three are loaded, and copied for the taps: ten times what there is."""
    sizes = dict(N=1, C=16, I=16, O=16, D=64, H=64, W=64)
    given = arrays(LAYOUTS[1], sizes, np.float32, random)

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1,) * 3, "SAME", dimension_numbers=LAYOUTS[1])

    (line,) = compile_text(text_of(convolve, *given), TRN1).program.schedules.values()
    assert "by 1x1x" not in line
