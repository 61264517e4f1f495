"""Convolutions drawn from sizes at and between the limits of the hardware, with their times.

    python tests/support/convolution_times.py [--count N] [--seed SEED] [--every]

prints, of each, the estimate of the chosen schedule over its simulated time and, with ``--every``, its simulated time
over that of the best of all candidates.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
from generated import TRN1, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.convolutions.candidates import candidates
from neuronx_cc.codegen.convolutions.estimate import estimate
from neuronx_cc.codegen.convolutions.problem import Problem
from neuronx_cc.codegen.convolutions.schedule import Schedule
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.runtime.clock_regions import simulate

FEATURES = (3, 4, 16, 24, 64, 96, 127, 128, 129, 256, 512, 1000)
SIDES = (7, 14, 28, 37, 56, 112)
LEAST, MOST = 10**6, 3 * 10**10
"""Products."""
LARGEST = 5 * 10**7
"""Elements of an array."""
TIMING = Timing(TRN1)
LAYOUTS = (("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"))


@dataclass(frozen=True, slots=True)
class Drawn:
    """One convolution."""

    layout: tuple[str, str, str]
    batch: int
    side: int
    inputs: int
    outputs: int
    taps: int
    stride: int
    groups: int
    dtype: type

    def __str__(self) -> str:
        sizes = f"{self.batch} x {self.side}^2 x {self.inputs} -> {self.outputs}"
        return f"{self.layout[0]} {sizes} {self.taps}/{self.stride} {self.groups} groups {np.dtype(self.dtype).name}"

    @property
    def products(self) -> int:
        positions = self.batch * (-(-self.side // self.stride)) ** 2
        return positions * self.inputs * self.outputs // self.groups * self.taps**2

    @property
    def text(self) -> str:
        """As HLO."""
        image = {"N": self.batch, "C": self.inputs, "H": self.side, "W": self.side}
        kernel = {"O": self.outputs, "I": self.inputs // self.groups, "H": self.taps, "W": self.taps}
        zero = np.zeros((), self.dtype)
        inputs = [
            np.broadcast_to(zero, [sizes[letter] for letter in letters])
            for letters, sizes in zip(self.layout, (image, kernel), strict=False)
        ]

        def function(x: Any, w: Any) -> Any:
            strides = (self.stride,) * 2
            return lax.conv_general_dilated(
                x, w, strides, "SAME", dimension_numbers=self.layout, feature_group_count=self.groups
            )

        return text_of(function, *inputs)


def draw(count: int, seed: int, most: int = MOST) -> Iterator[Drawn]:
    """``count`` convolutions of at most ``most`` products."""
    source = random.Random(seed)
    while count:
        inputs, groups = source.choice(FEATURES), source.choice((1, 1, 1, 2, 0))
        outputs = source.choice(FEATURES) if groups else inputs
        drawn = Drawn(
            source.choice(LAYOUTS),
            source.choice((1, 2, 8)),
            source.choice(SIDES),
            inputs,
            outputs,
            source.choice((3, 3, 5, 7)),
            source.choice((1, 1, 2)),
            groups or inputs,
            source.choice((np.float32, ml_dtypes.bfloat16)),
        )
        arrays = drawn.batch * drawn.side**2 * max(inputs, outputs), inputs * outputs * drawn.taps**2
        even = inputs % drawn.groups == outputs % drawn.groups == 0
        if even and LEAST <= drawn.products <= most and max(arrays) <= LARGEST:
            count -= 1
            yield drawn


def planned(text: str) -> tuple[Problem, Schedule, float] | None:
    """Problem, schedule and simulated nanoseconds of the last convolution of a program; None where there is none."""
    seen: list[tuple[Problem, Schedule]] = []
    choose = Planner.choose

    def note(planner: Planner, problem: Any) -> Any:
        chosen = choose(planner, problem)
        if isinstance(problem, Problem) and chosen is not None:
            seen.append((problem, chosen))
        return chosen

    with mock.patch.object(Planner, "choose", note):
        program = compile_text(text).program
    # where groups share products, all is planned once more for sums that are not finite
    return (*seen[0], simulate(program, TRN1).total) if seen else None


def timed(text: str, problem: Problem, schedule: Schedule) -> float:
    """Simulated nanoseconds with a given schedule."""
    choose = Planner.choose

    def given(planner: Planner, posed: Any) -> Any:
        return schedule if posed == problem else choose(planner, posed)

    with mock.patch.object(Planner, "choose", given):
        return simulate(compile_text(text).program, TRN1).total


def accuracy(drawn: Drawn) -> float | None:
    """Estimate over simulated time of the chosen schedule."""
    found = planned(drawn.text)
    return None if found is None else estimate(found[0], found[1], TIMING) / found[2]


def regret(drawn: Drawn) -> float | None:
    """Simulated time of the chosen schedule over that of the best candidate."""
    text = drawn.text
    found = planned(text)
    if found is None:
        return None
    problem, chosen, time = found
    others = [each for each in candidates(problem, TIMING) if each != chosen]
    return time / min([time, *(timed(text, problem, each) for each in others)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", action="store_true", help="time every candidate")
    options = parser.parse_args()
    for drawn in draw(options.count, options.seed):
        found = accuracy(drawn)
        if found is not None:
            more = f"  regret {regret(drawn):5.2f}" if options.every else ""
            print(f"estimate {found:5.2f}{more}  {drawn}", flush=True)


if __name__ == "__main__":
    main()
