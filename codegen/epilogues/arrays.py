"""Where arrays that an epilogue reads lie."""

from __future__ import annotations

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.view_ops import seen_by
from neuronx_cc.ir import hlo


def views_of_cast(context: Context, value: hlo.SSAValue) -> list[View]:
    """In HBM, of what is stored after a cast that is no kernel's, as ``value`` sees it; none without such a cast."""
    source = base(value)
    if source not in context.load_casts:
        return []
    view = seen_by(value, context.hbm(context.source_of(source)))
    assert view is not None, "rows repeat along any dims"
    return [view]
