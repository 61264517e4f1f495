"""Readers of random views: each kind of kernel, all of whose operands are drawn by ``view_operands``.

    python tests/soak.py --kind views --seed 0 --count 1000

The reader of a program is that of its seed, in turn, up to three times; some have another one of any kind besides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import view_exchanges as exchanges
import view_folds as folds
import view_places as places
import view_products as products
import view_residents as residents
from jax_sketch import Value
from view_operands import Drawn

LARGEST = (1000, 5000, 5000, 20_000, 20_000, 60_000, 150_000)
"""Elements of arrays; of some programs."""
READERS: dict[str, Callable[[Drawn], None]] = {
    "map": folds.map_,
    "row fold": folds.row_fold,
    "leading fold": folds.leading_fold,
    "middle fold": folds.middle_fold,
    "pair fold": folds.pair_fold,
    "norm": folds.norm,
    "scan": folds.scan_,
    "recurrence": folds.recurrence,
    "window": folds.window,
    "pooled gradient": folds.pooled_gradient,
    "dot": products.dot,
    "batched dot": products.batched_dot,
    "thin dot": products.thin_dot,
    "epilogue": products.epilogue,
    "chain": products.chain,
    "attention": products.attention,
    "convolution": products.convolution,
    "depthwise": products.depthwise,
    "convolution's gradient": products.conv_gradient,
    "gather": places.gather,
    "scatter": places.scatter,
    "histogram": places.histogram,
    "dynamic": places.dynamic,
    "sort": places.sort,
    "concatenate": places.concatenate,
    "pad": places.pad,
    "relayout": places.relayout,
    "loop": places.loop,
    "branch": places.branch,
    "random bits": places.random_bits,
    "solve": places.solve,
}
RARELY = {"state": exchanges.state, "aliases": exchanges.aliases} | {
    name: each for name, each in READERS.items() if name not in ("norm", "recurrence", "attention", "solve")
}
"""Of types that few programs have: all results are exact."""
EXCHANGING = {"exchange": exchanges.exchange, "state": exchanges.state, "aliases": exchanges.aliases} | {
    name: each for name, each in READERS.items() if name not in ("random bits", "solve")
}
"""Of what other devices have."""
TABLES = {"views": READERS, "residents": READERS, "types": RARELY, "devices": EXCHANGING}
REAL = ("norm", "recurrence", "attention", "solve")
"""Those that compute with real numbers."""


def reader(seed: int, table: str = "views") -> str:
    """The kind of the program of this seed."""
    return list(TABLES[table])[seed % len(TABLES[table])]


def drawn(seed: int, chooser: random.Random, table: str = "views", devices: int = 1) -> tuple[Drawn, list[Value]]:
    """A program without head and return, and its results."""
    kind, readers = reader(seed, table), TABLES[table]
    real = kind in REAL
    g = Drawn(chooser, not real, chooser.choice(LARGEST), real=real, rare=table == "types", devices=devices)
    g.besides = exchanges.received if devices > 1 else None
    if table == "residents":
        g.besides, g.always, g.narrow = residents.resident, True, ("f32", "bf16", "f16")
        g.sizes = g.features = residents.SIZES
    results = []
    g.plain = chooser.random() < 0.5
    for _ in range(chooser.choice((1, 2, 3)) if g.largest < 50_000 else 1):
        readers[kind](g)
        results.append(g.values[-1])
        if devices > 1 and g.values[-1].size <= g.largest and chooser.random() < 0.3:
            results.append(exchanges.exchanged(g, g.values[-1]))
    if not g.plain and chooser.random() < 0.25:
        readers[chooser.choice([other for other in readers if (other in REAL) is real])](g)
        results.append(g.values[-1])
    used = {word for line in g.lines for word in re.findall(r"\w+", line.split("=", 1)[1])}
    results += [value for value in g.values if value.name not in used and value not in results][:3]
    results += g.also
    made = [value for value in g.produced if value.home == "made"]
    if made and chooser.random() < 0.2:  # what is viewed is wanted elsewhere, too
        results.append(chooser.choice(made))
    return g, list({value.name: value for value in results}.values())
