"""Maps of several leading dims, drawn from sizes at and between the limits of the hardware, with their times.

    python tests/support/map_times.py [--count N] [--seed SEED]

prints, of each, its simulated time over that of the best of all spaces and partitions that it may have.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from generated import TRN1, compile_text, text_of

from neuronx_cc.codegen.maps import joined
from neuronx_cc.runtime.clock_regions import simulate

LEADING = (1, 2, 3, 4, 7, 8, 12, 16, 25, 32, 64, 100, 128, 129, 197)
ROWS = (1, 8, 16, 33, 64, 77, 128, 256, 640, 1000, 1024)
LARGEST = 3 * 10**6
"""Elements."""


def norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "norm": norm,
    "softmax": lambda x, *_: jax.nn.softmax(x, -1),
    "sum": lambda x, *_: x.sum(-1),
    "two sums": lambda x, *_: (x * x).sum((-2, -1)),
    "gelu": lambda x, *_: jax.nn.gelu(x),
    "scaled": lambda x, scale, bias: x * scale + bias,
    "gated": lambda x, scale, bias: jax.nn.silu(x) * x[..., ::-1] * scale,
    "of a product": lambda x, scale, bias: jax.nn.relu((x @ jnp.ones((x.shape[-1], 64), x.dtype)) * 2).sum(-1),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One function of an array."""

    name: str
    dims: tuple[int, ...]
    dtype: type

    def __str__(self) -> str:
        return f"{self.name} of {' x '.join(map(str, self.dims))} {np.dtype(self.dtype).name}"

    @property
    def text(self) -> str:
        """As HLO."""
        zero = np.zeros((), self.dtype)
        inputs = (np.broadcast_to(zero, dims) for dims in (self.dims, self.dims[-1:], self.dims[-1:]))
        return text_of(FUNCTIONS[self.name], *inputs)


def draw(count: int, seed: int, largest: int = LARGEST) -> Iterator[Drawn]:
    """``count`` functions of arrays of at most ``largest`` elements."""
    drawing = random.Random(seed)
    while count:
        leading = tuple(drawing.choice(LEADING) for _ in range(drawing.choice((1, 2, 2, 3))))
        drawn = Drawn(
            drawing.choice([*FUNCTIONS]),
            (*leading, drawing.choice(ROWS)),
            drawing.choice((np.float32, ml_dtypes.bfloat16)),
        )
        if 10**4 <= prod(drawn.dims) <= largest and len(drawn.dims) > 2:
            count -= 1
            yield drawn


def time_of(drawn: Drawn, number: int | None = None) -> tuple[float, int]:
    """Nanoseconds with plan ``number`` of each kernel (0: the space of its ops; None: as chosen); most plans of one."""
    candidates, most = joined.candidates, 1

    def one(*args: Any) -> Iterator[Any]:
        nonlocal most
        found = list(candidates(*args))
        most = max(most, 1 + len(found))
        yield from found if number is None else found[number - 1 : number] if number else []

    gains = {} if number is None else {"GAIN": 0.0, "GAIN_ON_CHIP": 0.0}  # what stands alone is taken in any case
    with mock.patch.multiple(joined, candidates=one, **gains):
        return simulate(compile_text(drawn.text).program, TRN1).total, most


def regret(drawn: Drawn) -> float:
    """Simulated time with the chosen plans over that with the best."""
    time, plans = time_of(drawn)
    return time / min([time, *(time_of(drawn, number)[0] for number in range(plans))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for drawn in draw(options.count, options.seed):
        print(f"regret {regret(drawn):5.2f}  {drawn}", flush=True)


if __name__ == "__main__":
    main()
