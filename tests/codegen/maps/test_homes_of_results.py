"""Where results lie that would lie across the partitions: all dims of the partitions' axis are outermost."""

from itertools import pairwise
from math import prod

import pytest

from neuronx_cc.codegen.emission.memory import Alloc
from neuronx_cc.codegen.emission.views import linear
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.axes import axes_view
from neuronx_cc.codegen.maps.stored import partitions_first
from neuronx_cc.ir.isa.program import Space


@pytest.mark.parametrize("dims", [(4, 18, 64, 64), (3, 5, 7, 2), (4, 1, 18, 6, 2)])
@pytest.mark.parametrize("joined", [(), (1, 1, 2), (2, 2), (1, 3), (2, 1, 1)])
def test_an_axis_has_one_stride(dims, joined):
    sizes = [size for size in dims if size != 1]
    ends = [sum(joined[:count]) for count in range(len(joined) + 1)]
    axes = [prod(sizes[a:b]) for a, b in pairwise(ends)] if joined else sizes
    kernel = Kernel(0, [], tuple(axes), joined=joined)
    home = linear(Alloc(Space.HBM, 0, 0), 0, "u8", dims)
    for axis, size in enumerate(axes):
        (atom,) = axes_view(partitions_first(home, kernel, axis), kernel).dims[axis]
        assert (atom.size, atom.stride) == (size, prod(axes) // size)
