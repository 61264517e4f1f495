"""Contractions of two matrices, drawn from sizes at and between the limits of the hardware, with their times.

    python tests/support/contraction_times.py [--count N] [--seed SEED] [--every]

prints, of each, the estimate of the chosen schedule over its simulated time and, with ``--every``, its simulated time
over that of the best of all candidates.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from generated import TRN1, compile_text, text_of

from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.dots.candidates import candidates
from neuronx_cc.codegen.dots.estimate import estimate
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.schedule import Schedule
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.runtime.clock_regions import simulate

SIZES = (1, 16, 64, 128, 197, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 5120, 8192, 11_008, 16_384)
FORMS = ("mk,kn", "km,kn", "mk,nk", "km,nk")
LEAST, MOST = 10**6, 3 * 10**10
"""Products."""
LARGEST = 5 * 10**7
"""Elements of an array."""
TIMING = Timing(TRN1)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One contraction."""

    form: str
    m: int
    k: int
    n: int
    dtype: type

    def __str__(self) -> str:
        return f"{self.form} {self.m} x {self.k} x {self.n} {np.dtype(self.dtype).name}"

    @property
    def text(self) -> str:
        """As HLO."""
        sizes = {"m": self.m, "k": self.k, "n": self.n}
        zero = np.zeros((), self.dtype)
        inputs = (np.broadcast_to(zero, [sizes[letter] for letter in side]) for side in self.form.split(","))
        return text_of(lambda x, y: jnp.einsum(f"{self.form}->mn", x, y), *inputs)


def draw(count: int, seed: int, most: int = MOST) -> Iterator[Drawn]:
    """``count`` contractions of at most ``most`` products."""
    source = random.Random(seed)
    while count:
        m, k, n = (source.choice(SIZES) for _ in "mkn")
        drawn = Drawn(source.choice(FORMS), m, k, n, source.choice((np.float32, ml_dtypes.bfloat16)))
        if LEAST <= m * k * n <= most and max(m * k, k * n, m * n) <= LARGEST:
            count -= 1
            yield drawn


def planned(text: str) -> tuple[Problem, Schedule, float] | None:
    """Problem, schedule and simulated nanoseconds of the last contraction of a program; None where there is none."""
    seen: list[tuple[Problem, Schedule]] = []
    choose = Planner.choose

    def note(planner: Planner, problem: Problem) -> Schedule | None:
        chosen = choose(planner, problem)
        assert chosen is not None
        seen.append((problem, chosen))
        return chosen

    with mock.patch.object(Planner, "choose", note):
        program = compile_text(text).program
    return (*seen[-1], simulate(program, TRN1).total) if seen else None


def timed(text: str, schedule: Schedule) -> float:
    """Simulated nanoseconds with a given schedule."""
    with mock.patch.object(Planner, "choose", return_value=schedule):
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
    return time / min([time, *(timed(text, each) for each in candidates(problem, TIMING) if each != chosen)])


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
