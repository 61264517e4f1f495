"""A fixed grid of convolutions and their gradients, of nets and beside them: time over roofline, class by class.

    python benchmarks/convolution_grid.py [--only TEXT ...] [--json FILE] [--against FILE]

Each line is forward, or the gradient of the image or of the kernel, of one convolution with "SAME" padding whose
operands are all parameters: layout, batch, image, features, window, stride, dilation, groups, element type. The
roofline is the greater of the operations at TensorE's peak for the type and the bytes of operands and result at the
DMA's rate, and 10 us. Nothing but plans is made; no values are computed. ``--against`` compares with the times of
an earlier ``--json``.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import geometric_mean as mean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import neuronx_cc
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.targets import find_machine

FIXED_US = 10.0
KINDS = ("forward", "image", "kernel")
LETTERS = {1: "W", 2: "HW", 3: "DHW"}
DEPTHWISE = 0
"""As a number of groups."""


@dataclass(frozen=True, slots=True)
class Point:
    """A convolution of ``batch`` images of ``sides``; ``groups`` of 0 are as many as features."""

    batch: int
    sides: tuple[int, ...]
    inputs: int
    outputs: int
    window: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    layout: str = "NCHW"
    dtype: str = "float32"
    padding: str = "SAME"

    def __str__(self) -> str:
        groups = {DEPTHWISE: " depthwise", 1: ""}.get(self.groups, f" {self.groups} groups")
        sides = "x".join(map(str, self.sides))
        window = f"{self.window}/{self.stride}" + (f" dilated {self.dilation}" if self.dilation > 1 else "")
        short = {"float32": "f32", "bfloat16": "bf16"}[self.dtype]
        return f"{self.layout} {short} {self.batch}x{sides} {self.inputs}->{self.outputs} {window}{groups}"

    @property
    def kind(self) -> str:
        """Its class, for means."""
        if self.groups == DEPTHWISE:
            return "depthwise"
        if self.groups > 1:
            return "grouped"
        return "few features" if min(self.inputs, self.outputs) <= 16 else "plain"


def points() -> Iterator[Point]:
    """The grid."""
    for dtype in ("float32", "bfloat16"):
        for layout in ("NCHW", "NHWC"):
            more: dict[str, Any] = {"layout": layout, "dtype": dtype}
            yield Point(8, (56, 56), 64, 64, 3, **more)
            yield Point(8, (14, 14), 256, 256, 3, **more)
            yield Point(8, (28, 28), 256, 512, 1, **more)
            yield Point(1, (224, 224), 3, 64, 7, 2, **more)
            yield Point(8, (56, 56), 96, 96, 7, groups=DEPTHWISE, **more)
            yield Point(8, (28, 28), 256, 256, 3, groups=DEPTHWISE, **more)
            yield Point(8, (28, 28), 256, 256, 3, groups=32, **more)
    for layout in ("NCHW", "NHWC"):
        more = {"layout": layout, "dtype": "bfloat16"}
        yield Point(1, (64, 64), 512, 512, 3, **more)
        yield Point(32, (7, 7), 512, 512, 3, **more)
        yield Point(8, (56, 56), 128, 128, 3, 2, **more)
        yield Point(8, (28, 28), 100, 100, 5, **more)
        yield Point(1, (64, 64), 64, 64, 3, dilation=2, **more)
        yield Point(1, (64, 64), 64, 3, 3, **more)
        yield Point(8, (32, 32), 3, 16, 3, **more)
        yield Point(8, (28, 28), 1, 16, 5, **more)
        yield Point(8, (224, 224), 3, 768, 16, 16, padding="VALID", **more)
        yield Point(8, (56, 56), 96, 192, 2, 2, padding="VALID", **more)
        yield Point(8, (112, 112), 96, 96, 3, 2, groups=DEPTHWISE, **more)
        yield Point(8, (14, 14), 512, 512, 5, groups=DEPTHWISE, **more)
        yield Point(8, (28, 28), 256, 256, 3, groups=4, **more)
        yield Point(8, (1024,), 64, 64, 3, **more)
        yield Point(8, (2048,), 256, 256, 4, groups=DEPTHWISE, **more)
        yield Point(1, (16, 16, 16), 64, 64, 3, **more)
        yield Point(1, (32, 32, 32), 4, 16, 3, **more)


class Case:
    """What is compiled for a point, and its roofline."""

    def __init__(self, point: Point, kind: str) -> None:
        letters = LETTERS[len(point.sides)]
        last = point.layout == "NHWC"
        numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C") if last else (f"NC{letters}", f"OI{letters}") * 2
        groups = point.groups or point.inputs
        image = dict(zip(letters, point.sides, strict=True)) | {"N": point.batch, "C": point.inputs}
        taps = {letter: point.window for letter in letters} | {"O": point.outputs, "I": point.inputs // groups}
        x, w = (
            jax.ShapeDtypeStruct([sizes[letter] for letter in names], point.dtype)
            for names, sizes in zip(numbers, (image, taps), strict=False)
        )

        def forward(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x,
                w,
                (point.stride,) * len(letters),
                point.padding,
                rhs_dilation=(point.dilation,) * len(letters),
                dimension_numbers=numbers[:3],
                feature_group_count=groups,
            )

        y = jax.eval_shape(forward, x, w)
        self.function, self.inputs = {
            "forward": (forward, (x, w)),
            "image": (lambda w, y: jax.vjp(lambda x: forward(x, w), jnp.zeros(x.shape, x.dtype))[1](y)[0], (w, y)),
            "kernel": (lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros(w.shape, w.dtype))[1](y)[0], (x, y)),
        }[kind]
        positions = prod(y.shape) // point.outputs
        self.flops = 2.0 * positions * point.outputs * point.inputs // groups * point.window ** len(letters)
        self.nbytes = float(sum(prod(each.shape) * np.dtype(each.dtype).itemsize for each in (x, w, y)))
        self.passes = 4 if point.dtype == "float32" else 1

    def roofline(self) -> float:
        """Microseconds, with the fixed ones."""
        machine = find_machine("trn1")
        peak = 2 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"] / self.passes
        return max(self.flops / peak, self.nbytes / machine["hbm.bw_per_core"]) / 1000 + FIXED_US

    def executable(self) -> Any:
        module = jax.jit(self.function, keep_unused=True).lower(*self.inputs).compiler_ir("hlo")
        proto = module.as_serialized_hlo_module_proto()  # type: ignore[union-attr]
        return neuronx_cc.compile(proto, auto_cast="none")

    def time(self) -> float:
        """Microseconds that the clock gives it."""
        inputs = [np.broadcast_to(np.zeros((), each.dtype), each.shape) for each in self.inputs]
        report = self.executable().run(inputs, timing_only=True, check_races=False).report
        return float(report.summary["total_exec_time"]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="lines with all of these")
    parser.add_argument("--json", help="where to write times")
    parser.add_argument("--against", help="times to compare with")
    options = parser.parse_args()
    before = json.loads(Path(options.against).read_text()) if options.against else {}
    found: dict[str, float] = {}
    classes: dict[str, list[tuple[float, str]]] = {}
    for kind in KINDS:
        for point in points():
            name = f"{kind} {point}"
            if not all(text in name for text in options.only):
                continue
            case = Case(point, kind)
            try:
                found[name] = case.time()
            except NeuronError as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            ratio = found[name] / case.roofline()
            line = f"{ratio:>7.2f} {found[name]:>10.1f} us {case.roofline():>8.1f}  {name}"
            line += f"  {found[name] / before[name]:.2f} of {before[name]:.1f}" if name in before else ""
            classes.setdefault(f"{kind} {point.kind}", []).append((ratio, line))
            print(line, flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(found, indent=1))
    print()
    for name, rows in classes.items():
        print(f"{name}: {len(rows)} points, mean {mean([ratio for ratio, _ in rows]):.2f}, worst {max(rows)[0]:.2f}")
    rows = sorted((row for rows in classes.values() for row in rows), reverse=True)
    print(f"all: {len(rows)} points, mean {mean([ratio for ratio, _ in rows]):.2f}; the worst:")
    print("\n".join(line for _, line in rows[:20]))
    if before:
        print(f"{mean([time / before[name] for name, time in found.items() if name in before]):.3f} of the time before")


if __name__ == "__main__":
    main()
