"""Rows of scans that are longer than SBUF holds: cut in another dim than the scanned one.

Input: a map kernel with scans that is emitted in parts. Output: which of the values that these hand each other lie in
HBM with the scanned axis innermost, so that tiles with a part of the other axes are runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View, outermost
from neuronx_cc.codegen.formation.graph import Kernel, base, squeeze
from neuronx_cc.codegen.maps.axes import full_view
from neuronx_cc.codegen.maps.plan import MapPlan, external_operands, results_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import itemsize


def cuts_rows(context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> bool:
    """Whether rows of a scan may be cut in any dim but the scanned one, for all arrays along it are its own."""
    if kernel.scanned < 0:
        return False
    size = prod(kernel.shape)
    views = [
        full_view(context.views(value)[0], kernel)
        for value in external_operands(context, MapPlan(kernel), member)
        if 2 * prod(hlo.shape_of(base(value)).dims) > size
    ]
    apart = [view for view in views if not view.in_sbuf and not _runs_along(view, kernel.scanned)]
    results = results_of(context, kernel, member)
    return not apart and all(2 * prod(hlo.shape_of(value).dims) <= size for value in results)


def _crosses(context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel], value: hlo.SSAValue) -> bool:
    """Whether only other parts of a kernel that is cut read ``value``, one for each element of its space."""
    users, whole = list(_readers(value)), squeeze(hlo.shape_of(value).dims) == tuple(kernel.shape)
    parts = [member.get(user.results[0]) for user in users if isinstance(user, hlo.HloOp)]
    alike = all(part is not None and part.scanned == kernel.scanned for part in parts)
    return whole and alike and not kernel.joined and len(parts) == len(users) and value not in context.outputs


def _readers(value: hlo.SSAValue) -> Iterator[hlo.Operation]:
    """What reads ``value``, also with more or fewer dims of size 1."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, hlo.ReshapeOp) and squeeze(user.shape.dims) == squeeze(hlo.shape_of(value).dims):
            yield from _readers(user.result)
        else:
            yield user


def _runs_along(view: View, axis: int) -> bool:
    return any(abs(atom.stride) == itemsize(view.dtype) for atom in view.dims[axis])


def handed_on(
    context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel], value: hlo.SSAValue, home: View, along: bool
) -> View:
    """The memory of a dense ``home`` with the scanned axis innermost, if rows are cut and only other parts read it."""
    if not along or home.in_sbuf or not _crosses(context, kernel, member, value):
        return home
    dims = [dim for dim, size in enumerate(home.shape) if size != 1]
    return outermost(home, [dim for axis, dim in enumerate(dims) if axis != kernel.scanned])
