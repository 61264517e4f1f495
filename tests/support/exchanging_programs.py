"""Drawn programs of several devices: products, sums and functions between collectives of all kinds, with values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SIDE = 24
HEAD = """HloModule drawn, num_partitions=DEVICES
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
SHAPE = f"f32[{SIDE},{SIDE}]"


@dataclass
class Drawn:
    """A program, what each device gives it, and what each gets: all arrays are square."""

    text: str
    inputs: list[list[Array]]
    expected: list[list[Array]]


@dataclass
class _Draft:
    devices: int
    random: np.random.Generator
    lines: list[str] = field(default_factory=list)
    values: list[tuple[str, list[Array]]] = field(default_factory=list)
    """Name -> what each device has."""

    def name(self) -> str:
        return f"v{len(self.lines)}"

    def add(self, line: str, made: list[Array]) -> None:
        name = self.name()
        self.lines.append(f"{name} = {line}")
        if line.startswith(SHAPE):
            self.values.append((name, made))

    def pick(self) -> tuple[str, list[Array]]:
        """Late values more often."""
        last = len(self.values)
        return self.values[last - 1 - int(last * self.random.random() ** 2)]

    def groups(self) -> list[list[int]]:
        numbers = self.random.permutation(self.devices).tolist()
        size = int(self.random.choice([each for each in (2, 4, self.devices) if self.devices % each == 0]))
        return [numbers[at : at + size] for at in range(0, self.devices, size)]


def _written(groups: list[list[int]]) -> str:
    inner = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
    return f"replica_groups={{{inner}}}, channel_id=1, use_global_device_ids=true"


def _product(draft: _Draft) -> None:
    (a, x), (b, y) = draft.pick(), draft.pick()
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    draft.add(f"{SHAPE} dot({a}, {b}), {dims}", [p @ q / 1 for p, q in zip(x, y, strict=True)])
    name, made = draft.values[-1]
    draft.add(f"{SHAPE} tanh({name})", [np.tanh(each) for each in made])


def _sum(draft: _Draft) -> None:
    (a, x), (b, y) = draft.pick(), draft.pick()
    draft.add(f"{SHAPE} subtract({a}, {b})", [p - q for p, q in zip(x, y, strict=True)])


def _turned(draft: _Draft) -> None:
    a, x = draft.pick()
    draft.add(f"{SHAPE} transpose({a}), dimensions={{1,0}}", [each.T for each in x])


def _all_reduce(draft: _Draft) -> None:
    (a, x), groups = draft.pick(), draft.groups()
    made = {d: sum(x[each] for each in group) for group in groups for d in group}
    draft.add(f"{SHAPE} all-reduce({a}), {_written(groups)}, to_apply=add", [made[d] for d in range(draft.devices)])
    name, summed = draft.values[-1]
    draft.add(f"{SHAPE} tanh({name})", [np.tanh(each) for each in summed])


def _scatter_and_gather(draft: _Draft) -> None:
    (a, x), groups = draft.pick(), draft.groups()
    rows = SIDE // len(groups[0])
    total = {d: sum(x[each] for each in group) for group in groups for d in group}
    made = [np.tanh(total[d]) for d in range(draft.devices)]
    part = f"f32[{rows},{SIDE}]"
    draft.add(f"{part} reduce-scatter({a}), {_written(groups)}, dimensions={{0}}, to_apply=add", [])
    draft.add(f"{part} tanh(v{len(draft.lines) - 1})", [])
    draft.add(f"{SHAPE} all-gather(v{len(draft.lines) - 1}), {_written(groups)}, dimensions={{0}}", made)


def _permute(draft: _Draft) -> None:
    a, x = draft.pick()
    targets = draft.random.permutation(draft.devices).tolist()
    pairs = ",".join(f"{{{source},{target}}}" for source, target in enumerate(targets))
    made = {target: x[source] for source, target in enumerate(targets)}
    line = f"{SHAPE} collective-permute({a}), source_target_pairs={{{pairs}}}, channel_id=1"
    draft.add(line, [made[d] for d in range(draft.devices)])


KINDS: list[Callable[[_Draft], None]] = [_product, _product, _sum, _turned, _all_reduce, _scatter_and_gather, _permute]


def draw(seed: int, devices: int, count: int = 24) -> Drawn:
    """``count`` steps; results are the last values, and some that are made early."""
    random = np.random.default_rng(seed)
    draft = _Draft(devices, random)
    inputs = [[random.standard_normal((SIDE, SIDE)).astype(np.float32) / 4 for _ in range(3)] for _ in range(devices)]
    for number in range(3):
        draft.add(f"{SHAPE} parameter({number})", [each[number].astype(np.float64) for each in inputs])
    for _ in range(count):
        KINDS[random.integers(len(KINDS))](draft)
    results = [*draft.values[-3:], draft.pick(), draft.pick()]
    names = ", ".join(name for name, _ in results)
    types = ", ".join([SHAPE] * len(results))
    body = "\n  ".join([*draft.lines, f"ROOT r = ({types}) tuple({names})"])
    text = HEAD.replace("DEVICES", str(devices)) + f"ENTRY main {{\n  {body}\n}}\n"
    return Drawn(text, inputs, [[made[d] for _, made in results] for d in range(devices)])
