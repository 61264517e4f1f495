"""What repeats along which dims, through reshapes and transposes."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuronx_cc.passes.expansions.repeated import groups


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    factors = draw(st.lists(st.sampled_from([1, 1, 2, 2, 3, 5]), max_size=7))

    def dims() -> list[int]:
        ends = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=4)))
        stretches = zip([0, *ends], [*ends, len(factors)], strict=True)
        return [prod(factors[low:high]) for low, high in stretches]

    return dims(), dims()


@given(reshapes())
def test_groups(case: tuple[list[int], list[int]]) -> None:
    """They cover all dims in order, have as many elements on both sides, and cannot be split."""
    before, after = case
    found = list(groups(before, after))
    assert [axis for each, _ in found for axis in each] == list(range(len(before)))
    assert [axis for _, each in found for axis in each] == list(range(len(after)))
    for left, right in found:
        sizes, made = [before[axis] for axis in left], [after[axis] for axis in right]
        assert prod(sizes) == prod(made)
        inside = set(np.cumprod(sizes)[:-1]) & set(np.cumprod(made)[:-1]) if sizes and made else set()
        assert inside <= {1, prod(sizes)}
