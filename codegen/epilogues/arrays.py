"""Where arrays that an epilogue reads lie."""

from __future__ import annotations

from neuronx_cc.codegen.context import Context, apply_view
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import is_view
from neuronx_cc.ir import hlo


def views_of_cast(context: Context, value: hlo.SSAValue) -> list[View]:
    """In HBM, of what is stored after a cast that is no kernel's, as ``value`` sees it; none without such a cast."""
    source, chain = value, []
    while isinstance(source, hlo.OpResult) and is_view(source.op):
        chain.append(source.op)
        source = source.op.operands[0]
    if source not in context.load_casts:
        return []
    view: View | None = context.hbm(context.source_of(source))
    for op in reversed(chain):
        view = apply_view(op, view) if view is not None else None
    assert view is not None, "rows repeat along any dims"
    return [view]
