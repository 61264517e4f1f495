"""A transformer layer and its gradients in PyTorch/XLA's forms, shared by several devices: values of one device."""

import re
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vendor_layers as vendor
from vendor_spellings import SPELLINGS

from neuronx_cc.driver.cli import main
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

EIGHT = pytest.param(8, marks=pytest.mark.slow)
TWO_LATER = pytest.param(2, marks=pytest.mark.slow)


def run(texts: list[str], inputs: list[list[Any]], folder: Path) -> list[list[Any]]:
    """The results of each device, from the command line."""
    paths = [folder / f"rank{rank}.hlo" for rank in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    stored = {f"arg{n}@{rank}": each for rank, row in enumerate(inputs) for n, each in enumerate(row)}
    np.savez(folder / "in.npz", **stored)
    given = [str(path) for path in paths]
    neffs = [str(path.with_suffix(".neff")) for path in paths]
    output = ["--output", neffs[0]] if len(given) == 1 else []
    assert main(["compile", *given, "--auto-cast", "none", "--logfile", str(folder / "log"), *output]) == 0
    devices = ["--devices", str(len(inputs))] if len(given) == 1 else []
    out = str(folder / "out.npz")
    assert main(["run", *neffs, *devices, "--inputs", str(folder / "in.npz"), "--outputs", out]) == 0
    found = np.load(out)
    count = len({name.partition("@")[0] for name in found.files})
    return [[found[f"out{n}@{rank}"] for n in range(count)] for rank in range(len(inputs))]


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def drawn(devices: int, rows: int) -> list[list[Any]]:
    draw = np.random.default_rng(devices)
    return [list(draw.standard_normal((2, rows, vendor.WIDTH)).astype(np.float32)) for _ in range(devices)]


@pytest.mark.parametrize("devices", [2, EIGHT])
def test_tensor_parallel(devices: int, tmp_path: Path) -> None:
    w, ((x, g),) = vendor.weights(1), drawn(1, 2 * vendor.TIME)
    y, dx, gradients = vendor.reference(x, w, g)
    parts = [[vendor.part(each, name, rank, devices) for name, each in w.items()] for rank in range(devices)]
    found = run([vendor.tensor(devices)], [[x, g, *row] for row in parts], tmp_path)
    for rank, (result, back, *rest) in enumerate(found):
        close(result, y)
        close(back, dx)
        for name, each in zip(w, rest, strict=True):
            close(each, vendor.part(gradients[name], name, rank, devices))


@pytest.mark.parametrize("devices", [TWO_LATER, EIGHT])
def test_data_parallel(devices: int, tmp_path: Path) -> None:
    w, rows = vendor.weights(2), drawn(devices, vendor.TIME)
    wanted = [vendor.reference(x, w, g) for x, g in rows]
    found = run([vendor.data(devices)], [[*row, *w.values(), np.float32(3)] for row in rows], tmp_path)
    for (y, _, _), (result, *means, token) in zip(wanted, found, strict=True):
        close(result, y)
        assert token == 3
        for name, each in zip(w, means, strict=True):
            close(each, sum(gradients[name] for _, _, gradients in wanted) / devices)


@pytest.mark.parametrize("devices", [2, EIGHT])
def test_fully_sharded(devices: int, tmp_path: Path) -> None:
    w, rows = vendor.weights(3), drawn(devices, vendor.TIME)
    wanted = [vendor.reference(x, w, g) for x, g in rows]
    parts = [[np.split(each, devices)[rank] for each in w.values()] for rank in range(devices)]
    given = [[*row, *own, np.float32(2)] for row, own in zip(rows, parts, strict=True)]
    found = run([vendor.sharded(devices)], given, tmp_path)
    for rank, ((y, _, _), (result, *steps, token)) in enumerate(zip(wanted, found, strict=True)):
        close(result, y)
        assert token == 2
        for name, each in zip(w, steps, strict=True):
            stepped = w[name] - vendor.RATE * sum(gradients[name] for _, _, gradients in wanted)
            close(each, np.split(stepped, devices)[rank])


@pytest.mark.parametrize("devices", [TWO_LATER, EIGHT])
def test_pipeline(devices: int, tmp_path: Path) -> None:
    layers, ((x, g),) = [vendor.weights(seed) for seed in range(devices)], drawn(1, vendor.TIME)
    results = [x]
    for w in layers:
        results.append(vendor.reference(results[-1], w, g)[0])
    given = [list(w.values()) for w in layers]
    given[0].append(x)
    given[-1].append(g)
    found = run([vendor.stage(rank, devices) for rank in range(devices)], given, tmp_path)
    for rank in reversed(range(devices)):
        y, g, gradients = vendor.reference(results[rank], layers[rank], g)
        result, back, *rest = found[rank]
        close(result, y)
        close(back, g)
        for name, each in zip(layers[rank], rest, strict=True):
            close(each, gradients[name])


GRAPHS: dict[str, Callable[[], str]] = {
    "tensor": lambda: vendor.tensor(2), "data": lambda: vendor.data(2), "sharded": lambda: vendor.sharded(2),
    "stage": lambda: vendor.stage(1, 3),
}  # fmt: skip


def expanded(text: str) -> str:
    """The module after the stages that spellings concern, instructions by their order."""
    module = parse_text(text)
    for _, names in takewhile(lambda stage: stage[0] != "narrowing", DEFAULT_PIPELINE):
        run_passes(module, names, PassContext(PassOptions(auto_cast="none")))
    shown = re.sub(r", (metadata|frontend_attributes)=\{[^}]*\}|, channel_id=1", "", print_module(module))
    numbers: dict[str, int] = {}
    return re.sub(r"%[\w.-]+", lambda name: f"%{numbers.setdefault(name[0], len(numbers))}", shown)


@cache
def plain(graph: str) -> str:
    return expanded(GRAPHS[graph]())


SPELLED = [
    (graph, spelling)
    for graph in GRAPHS
    for spelling in SPELLINGS
    if spelling != "no tuples of one" or graph in ("tensor", "stage")  # the others have none
]


@pytest.mark.parametrize(("graph", "spelling"), SPELLED)
def test_spellings_are_one_graph(graph: str, spelling: str) -> None:
    text = GRAPHS[graph]()
    changed = SPELLINGS[spelling](text)
    assert changed != text
    assert expanded(changed) == plain(graph)
