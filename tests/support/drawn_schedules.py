"""Schedules drawn among the candidates in place of the best by estimate: those that few shapes choose are run, too."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

from neuronx_cc.codegen import choose
from neuronx_cc.codegen.attention import choose as attentions
from neuronx_cc.codegen.attention import kernel as attention_kernel
from neuronx_cc.codegen.attention import schedule as attention_schedules
from neuronx_cc.codegen.dots import across
from neuronx_cc.codegen.maps import joined
from neuronx_cc.codegen.reductions import reduce_kernel, reduce_plan


@contextlib.contextmanager
def drawn_schedules(seed: int | None) -> Iterator[None]:
    """Contractions, convolutions, attentions, reductions and maps take any candidate; equal problems the same one.

    Without a seed, nothing is drawn. Either way, attentions are one kernel each, and columns of few rows lie on the
    partitions, wherever that is possible.
    """

    def one_of(problem: Any, candidates: Iterable[Any]) -> Any:
        found = list(candidates)
        return random.Random(f"{seed} {problem!r}").choice(found) if found else None

    def of_family(problem: Any, timing: Any, level: int = 2) -> Any:
        return one_of(problem, choose.FAMILIES[type(problem)].candidates(problem, timing))

    def of_attention(problem: Any, timing: Any) -> Any:
        return one_of(problem, attention_schedules.candidates(problem, timing.sizes))

    def of_reduction(problem: Any, timing: Any) -> Any:
        return one_of(problem, reduce_plan.candidates(problem, timing))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(attentions, "apart", return_value=math.inf))
        stack.enter_context(mock.patch.object(across, "WORTH", math.inf))
        if seed is not None:
            for place, function in (
                (choose, of_family),
                (attentions, of_attention),
                (attention_kernel, of_attention),
                (reduce_kernel, of_reduction),
            ):
                stack.enter_context(mock.patch.object(place, "choose", function))
            drawn = lambda problem, _: random.Random(f"{seed} {problem!r}").random()  # noqa: E731
            stack.enter_context(mock.patch.object(joined, "estimate", drawn))
        yield
