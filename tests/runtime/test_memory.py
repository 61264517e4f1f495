"""Regions of HBM that are arrays of others."""

import numpy as np
import pytest

from neuronx_cc.ir.errors import RunError
from neuronx_cc.runtime.memory import Region


@pytest.mark.parametrize("nbytes", [0, 1, 63])
def test_an_array_smaller_than_its_region_is_refused(nbytes: int) -> None:
    with pytest.raises(RunError, match=f"an array of only {nbytes}") as raised:
        Region(128, 192).bind(np.zeros(nbytes, np.uint8))
    assert raised.value.code == "ERUN914"
