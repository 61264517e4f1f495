"""Operators that only check values, and what is computed for them alone, which a program leaves out."""

import torch
from torch._ops import OpOverload

CHECKS = frozenset(
    [
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._functional_assert_async.msg",
        "aten._linalg_check_errors.default",
    ]
)
"""What has no value; torch has checked what does not depend on run-time values."""


def drop_checks(module: torch.fx.GraphModule) -> None:
    """Remove checks of run-time values from ``module`` and the graphs within, and what they alone read.

    ``torch._check(lengths.max().item() <= 512)`` reads a value of the run, as a program cannot, and decides nothing.
    """
    for each in module.modules():
        if not isinstance(each, torch.fx.GraphModule):
            continue
        nodes = each.graph.nodes
        checks = [node for node in nodes if node.op == "call_function" and str(node.target) in CHECKS]
        if not any(_read_for(node) for node in checks):
            continue
        for node in reversed(list(nodes)):
            if node.op == "call_function" and not node.users and (node in checks or _is_pure(node.target)):
                each.graph.erase_node(node)
        each.recompile()


def _read_for(check: torch.fx.Node) -> bool:
    """Whether what is checked is computed."""
    return any(node.op == "call_function" for node in check.all_input_nodes)


def _is_pure(target: object) -> bool:
    """Whether a call of ``target`` whose result nothing reads can go."""
    if isinstance(target, OpOverload):
        return not target._schema.is_mutable
    return getattr(target, "__module__", None) in ("_operator", "math", "builtins", "torch")
