"""Pipelines as one module for each rank, such as PyTorch/XLA writes them: stages of different widths and weights.

Rank r sends its activations to rank r + 1 by a permute of the two; a sum over all ranks ends them. Nothing reads what a
sender's permute gives it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ROWS = 4
ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"


def widths(ranks: int) -> list[int]:
    """Of the activations ahead of each stage, and behind the last."""
    return [8 + 3 * rank % 7 for rank in range(ranks + 1)]


def module(rank: int, ranks: int) -> str:
    """The program of one rank: takes ``w``, the first one ``x`` too; gives its activations and the sum of all."""
    into, out = widths(ranks)[rank : rank + 2]
    lines = [f"w = f32[{into},{out}] parameter(0)"]
    if rank:
        lines += [
            "zero = f32[] constant(0)",
            f"empty = f32[{ROWS},{into}] broadcast(zero), dimensions={{}}",
            f"x = f32[{ROWS},{into}] collective-permute(empty), source_target_pairs={{{{{rank - 1},{rank}}}}}",
        ]
    else:
        lines.append(f"x = f32[{ROWS},{into}] parameter(1)")
    lines += [
        f"h = f32[{ROWS},{out}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        f"t = f32[{ROWS},{out}] tanh(h)",
    ]
    if rank < ranks - 1:
        lines.append(f"sent = f32[{ROWS},{out}] collective-permute(t), source_target_pairs={{{{{rank},{rank + 1}}}}}")
    lines += [
        "none = f32[] constant(0)",
        "loss = f32[] reduce(t, none), dimensions={0,1}, to_apply=add",
        f"all = f32[] all-reduce(loss), replica_groups={{{{{','.join(map(str, range(ranks)))}}}}}, to_apply=add",
        f"ROOT r = (f32[{ROWS},{out}], f32[]) tuple(t, all)",
    ]
    return f"HloModule stage{rank}\n{ADD}ENTRY main {{\n  " + "\n  ".join(lines) + "\n}\n"


def values(ranks: int) -> tuple[Array, list[Array]]:
    """``x`` and the weights of each rank."""
    draw = np.random.default_rng(ranks)
    sizes = widths(ranks)
    weights = [draw.standard_normal(sizes[r : r + 2]).astype(np.float32) / 2 for r in range(ranks)]
    return draw.standard_normal((ROWS, sizes[0])).astype(np.float32), weights


def expected(x: Array, weights: Sequence[Array]) -> tuple[list[Array], float]:
    """The activations of each rank and their sum, in FP64."""
    found, here = [], x.astype(np.float64)
    for w in weights:
        here = np.tanh(here @ w)
        found.append(here)
    return found, float(sum(each.sum() for each in found))
