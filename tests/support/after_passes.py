"""JAX functions after the default passes, on the reference semantics: the ops that are left, and their values."""

from collections import Counter

import jax
import numpy as np

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names


def compiled(function, *arguments):
    """The entry's opcode counts and the largest absolute difference from jaxlib."""
    lowered = jax.jit(function).lower(*arguments)
    module = parse_text(lowered.compiler_ir("hlo").as_hlo_text())
    context = PassContext(PassOptions(auto_cast="none"))
    run_passes(module, pass_names(DEFAULT_PIPELINE), context, verify_each=True)
    results = evaluate(module, [np.asarray(a) for a in arguments])
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]
    error = max(
        float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
        for got, want in zip(results, expected, strict=True)
    )
    return module, Counter(op.opcode for op in ops_of(module.entry.block)), error
