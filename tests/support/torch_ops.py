"""Torch's own samples of its operators (``op_db``) through ``torch.compile``, compared with eager torch on the CPU.

``python tests/support/torch_ops.py [--samples 2] [--ops REGEX] [--backward] [--trace] [--dtype float16] [--share 0/2]``
(``--trace``: through ``neuronx_cc.torch.trace``, which exports, without gradients) prints a
line for each operator that does not pass, and tables of outcomes and of the reasons for refusals at the end.
"""

import argparse
import logging
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.utils import _pytree as pytree

import neuronx_cc.torch
from neuronx_cc.ir.errors import NeuronError

# sets the seed inside the function, which dynamo does not trace
invocations.wrapper_set_seed = lambda operator, *arguments, **keywords: operator(*arguments, **keywords)
RANDOM = re.compile(
    r"rand|(^|_)normal\b|normal_|bernoulli|multinomial|dropout|(^|_)exponential$|cauchy|geometric|uniform|empty|rrelu|fractional|lowrank"
)
"""Parts of names of operators whose results are drawn, or are not defined."""
TOLERANCES = {torch.float16: (1e-2, 1e-2), torch.bfloat16: (3e-2, 3e-2)}
"""Relative and absolute; the narrow types' eager results are rounded after each step, ours where the program stores."""
USUAL = (2e-3, 2e-4)
OPTIONS = {torch.float64: {"fp64_as_fp32": True}, torch.complex128: {"fp64_as_fp32": True}}
"""What the compiler is asked for with a type; FP64 is refused without it."""
UNORDERED = ("linalg.eig", "linalg.eigvals")
"""Operators whose results' last dim comes in any order; the first result says which."""
PLACES = {"topk": 1, "sort": 0, "argsort": 0}
"""Operators that say where values stood, which is free among equal ones, and which argument is the dim."""
REASONS = {
    "depends on values": r"_local_scalar_dense|nonzero|masked_select|unique|bincount|size .* values|dynamic",
    "FP64 asked for by name": r"(f64|c128|float64|complex128) is not supported",
    "operator without a row": r"operators? .*not supported",
}
"""Classes of refusals by what the error says; others are their own."""


Compile = Callable[[Any, list[Any], torch.dtype], Callable[..., Any]]
"""From a function of leaves, examples of these and the type to what computes the same."""


@dataclass(frozen=True)
class Outcome:
    """``kind``: pass, wrong, refused, torch (which cannot do it itself), skipped, broken."""

    operator: str
    kind: str
    detail: str = ""


def outcomes(
    pattern: str,
    samples: int,
    backward: bool,
    share: tuple[int, int] = (0, 1),
    dtype: torch.dtype = torch.float32,
    seed: int | None = None,
    route: Compile | None = None,
) -> Iterator[Outcome]:
    """``samples`` of each operator, evenly spaced, or drawn with ``seed``."""
    chosen = [info for info in invocations.op_db if re.search(pattern, info.name)]
    for info in chosen[share[0] :: share[1]]:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        if dtype not in (info.backward_dtypes if backward else info.dtypes):
            yield Outcome(name, "skipped", f"not for {dtype}")
        elif RANDOM.search(info.name):
            yield Outcome(name, "skipped", "draws random numbers, or gives undefined ones")
        else:
            yield _operator(name, info, samples, backward, dtype, seed, route or compiled)


def compiled(function: Any, leaves: list[Any], dtype: torch.dtype) -> Callable[..., Any]:
    torch._dynamo.reset()
    result: Any = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False, options=OPTIONS.get(dtype))
    return result


def traced(function: Any, leaves: list[Any], dtype: torch.dtype) -> Callable[..., Any]:
    """Leaves that are no tensors are the model's own."""
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def of_tensors(*tensors: torch.Tensor) -> Any:
        values = dict(zip(places, tensors, strict=True))
        return function(*(values.get(place, leaf) for place, leaf in enumerate(leaves)))

    options = {"auto_cast": "none", **OPTIONS.get(dtype, {})}
    module = neuronx_cc.torch.trace(of_tensors, tuple(leaves[place] for place in places), options)
    return lambda *values: module(*(values[place] for place in places))


def reason(outcome: Outcome) -> str:
    """The class of a refusal, with the operator of torch that is refused."""
    kind = next((kind for kind, said in REASONS.items() if re.search(said, outcome.detail)), "other")
    operator = re.search(r"(?:operator |^\S+ \[\S+\] |\| )(\w+\.\w+\.\w+)", outcome.detail)
    return f"{kind}: {operator[1]}" if operator else f"{kind}: {outcome.detail[:80]}" if kind == "other" else kind


def _operator(
    name: str, info: Any, samples: int, backward: bool, dtype: torch.dtype, seed: int | None, route: Compile
) -> Outcome:
    """The first outcome of the operator's samples that is no pass."""
    torch.manual_seed(seed or 0)
    wants = backward and info.supports_autograd
    try:
        given = list(info.sample_inputs("cpu", dtype, requires_grad=wants))
    except Exception as error:
        return Outcome(name, "torch", _first(error))
    given = [sample for sample in given if not sample.kwargs.get("dropout_p")]
    given = [sample for sample in given if _elements(sample) < 20_000] or given[:1]
    step = max(1, len(given) // samples)
    chosen = given[::step][:samples]
    if seed is not None:
        chosen = random.Random(f"{seed} {name}").sample(given, min(samples, len(given)))
    passed = 0
    for sample in chosen:
        result = _sample(name, info, sample, wants, dtype, route)
        if result.kind != "pass":
            return result
        passed += 1
    return Outcome(name, "pass" if passed else "skipped", "" if passed else "no samples")


def _elements(sample: Any) -> int:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _sample(name: str, info: Any, sample: Any, backward: bool, dtype: torch.dtype, route: Compile) -> Outcome:
    def function(*values: Any) -> Any:
        given, arguments, keywords = pytree.tree_unflatten(values, spec)
        # eigenvectors and the like count up to what they are free in
        result = sample.output_process_fn_grad(info.op(given, *arguments, **keywords))
        if info.name in PLACES and not keywords.get("stable"):
            # of equal values any may be named: what stands there counts
            dim = keywords.get("dim", next((each for each in arguments[PLACES[info.name] :] if each is not None), -1))
            places = torch.atleast_1d(result if info.name == "argsort" else result[1])
            there = torch.atleast_1d(given).take_along_dim(places, dim)
            return there if info.name == "argsort" else (result[0], there)
        return result

    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    try:
        expected = _evaluated(function, leaves, backward, info.name in UNORDERED)
        again = _evaluated(function, leaves, backward, info.name in UNORDERED)
    except Exception as error:
        return Outcome(name, "torch", f"eager: {_first(error)}")
    if _difference(again, expected, dtype):
        return Outcome(name, "skipped", "draws random numbers, or gives undefined ones")
    try:
        found = _evaluated(route(function, leaves, dtype), leaves, backward, info.name in UNORDERED)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NeuronError):
            cause = cause.__cause__ or cause.__context__ or getattr(cause, "inner_exception", None)
        if isinstance(cause, NeuronError):
            kind = "broken" if cause.code == "INTERNAL" or "cannot be lowered" in cause.message else "refused"
            return Outcome(name, kind, f"{cause.code} {_first(cause)}")
        return Outcome(name, "torch", f"compile: {type(error).__name__}: {_first(error)}")
    problem = _difference(found, expected, dtype)
    narrow = dtype in (torch.float32, torch.float16, torch.bfloat16)
    if problem and not (narrow and _as_near_to_fp64(found, expected, function, leaves, backward)):
        return Outcome(name, "wrong", problem + f" {leaves!r}"[:120].replace("\n", " "))
    return Outcome(name, "pass")


def _difference(found: list[Any], expected: list[Any], dtype: torch.dtype) -> str:
    """Where they part, or ""."""
    relative, absolute = TOLERANCES.get(dtype, USUAL)
    try:
        torch.testing.assert_close(
            found, expected, rtol=relative, atol=absolute, equal_nan=True, check_stride=False, check_layout=False
        )
    except (AssertionError, TypeError) as error:
        return _first(error)
    return ""


def _as_near_to_fp64(found: list[Any], expected: list[Any], function: Any, leaves: list[Any], backward: bool) -> bool:
    """Whether each result is no further from that in FP64 than eager torch's is, which so is no measure itself."""
    wide = [
        leaf.detach().double().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        else leaf
        for leaf in leaves
    ]
    try:
        exact = _evaluated(function, wide, backward, False)
    except Exception:
        return False
    if len(exact) != len(found):
        return False
    pairs = zip(found, expected, exact, strict=True)
    return all(
        isinstance(each, torch.Tensor)
        and bool((each.double() - best).norm() <= (eager.double() - best).norm() + 1e-5 * best.norm())
        for each, eager, best in pairs
    )


def _evaluated(function: Any, leaves: list[Any], backward: bool, unordered: bool) -> list[Any]:
    """Results, and gradients of the sum of their squares."""
    fresh = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]
    results = pytree.tree_leaves(function(*fresh))
    kept = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in results]
    kept = _ordered(kept) if unordered else kept
    if backward:
        floats = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
        if floats:
            sum(each.abs().square().sum() for each in floats).backward()
        kept += [leaf.grad for leaf in fresh if isinstance(leaf, torch.Tensor) and leaf.grad is not None]
    return kept


def _ordered(values: list[Any]) -> list[Any]:
    """Each with its last dim in the order of the first one's real, then imaginary parts."""
    key = 1e3 * values[0].real.round(decimals=3) + values[0].imag
    order = key.argsort(-1)
    return [each.take_along_dim(order if each.ndim == order.ndim else order[..., None, :], -1) for each in values]


def _first(error: BaseException) -> str:
    text = str(error).strip()
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return (" | ".join(lines[:3]))[:240]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--ops", default="")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--backward", action="store_true")
    how.add_argument("--trace", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--seed", type=int, help="draws samples and their values")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    number, of = map(int, arguments.share.split("/"))
    dtype = getattr(torch, arguments.dtype)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    started = time.monotonic()
    route = traced if arguments.trace else compiled
    chosen = (arguments.ops, arguments.samples, arguments.backward, (number, of), dtype, arguments.seed, route)
    for outcome in outcomes(*chosen):
        counts[outcome.kind] += 1
        if outcome.kind == "refused":
            reasons[reason(outcome)] += 1
        if outcome.kind not in ("pass", "skipped"):
            print(f"{outcome.kind:8} {outcome.operator}: {outcome.detail}", flush=True)
    tried = counts.total() - counts["skipped"]
    print(f"{counts['pass']} of {tried} operators pass ({time.monotonic() - started:.0f} s): {dict(counts)}")
    for said, count in reasons.most_common():
        print(f"{count:5} {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
