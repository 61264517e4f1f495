"""ResNet-50's convolutions, forward and backward: simulated time beside the roofline, and the times of compiling.

    python benchmarks/convolution.py [--batch 1 8] [--kind forward input weight] [--layout NCHW NHWC]
                                     [--auto-cast none matmult] [--values] [--only TEXT]

The roofline is the greater of the operations at TensorE's peak for the type of the products and the bytes of operands
and result at HBM's bandwidth, both of the machine description. Simulated times leave out the fixed time around a
program. ``--values`` also computes values and prints the wall time beside jaxlib's CPU client.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from stopwatch import once

import neuronx_cc
from neuronx_cc.ir.targets import find_machine

Array = np.ndarray[Any, Any]


class Shape(NamedTuple):
    """A convolution with "SAME" padding of a square image."""

    size: int
    features: int
    outputs: int
    kernel: int
    stride: int

    def __str__(self) -> str:
        return f"{self.size:>3}^2 {self.features:>4} -> {self.outputs:>4}  {self.kernel}x{self.kernel}/{self.stride}"


RESNET = [Shape(224, 3, 64, 7, 2), Shape(56, 64, 64, 1, 1), Shape(56, 64, 64, 3, 1), Shape(56, 64, 256, 1, 1)]
RESNET += [Shape(56, 256, 64, 1, 1)]
for _size, _inner in ((56, 128), (28, 256), (14, 512)):
    _half = _size // 2
    RESNET += [
        Shape(_size, 2 * _inner, _inner, 1, 1),
        Shape(_size, _inner, _inner, 3, 2),
        Shape(_half, _inner, 4 * _inner, 1, 1),
        Shape(_size, 2 * _inner, 4 * _inner, 1, 2),
        Shape(_half, 4 * _inner, _inner, 1, 1),
        Shape(_half, _inner, _inner, 3, 1),
    ]

LAYOUTS = {"NCHW": ("NCHW", "OIHW", "NCHW"), "NHWC": ("NHWC", "HWIO", "NHWC")}


class Case(NamedTuple):
    """A function of arrays to compile, and what its roofline counts."""

    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    flops: float
    nbytes: float


def case(shape: Shape, batch: int, kind: str, layout: str) -> Case:
    """The forward convolution (its kernel a constant) or one of its gradients (kernel and images given)."""
    numbers = LAYOUTS[layout]
    half = -(-shape.size // shape.stride)
    sizes = {"N": batch, "C": shape.features, "H": shape.size, "W": shape.size}
    taps = {"O": shape.outputs, "I": shape.features, "H": shape.kernel, "W": shape.kernel}
    result = {"N": batch, "C": shape.outputs, "H": half, "W": half}
    random = np.random.default_rng(0)
    x, w, y = (
        random.standard_normal([dims[letter] for letter in letters], np.float32)
        for letters, dims in zip(numbers, (sizes, taps, result), strict=True)
    )

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (shape.stride,) * 2, "SAME", dimension_numbers=numbers)

    flops = 2.0 * batch * half * half * shape.outputs * shape.features * shape.kernel**2
    nbytes = float(x.nbytes + w.nbytes + y.nbytes)
    if kind == "forward":
        return Case(lambda x: forward(x, jnp.asarray(w)), (x,), flops, nbytes)
    if kind == "input":
        return Case(lambda w, y: jax.vjp(lambda x: forward(x, w), jnp.zeros_like(x))[1](y)[0], (w, y), flops, nbytes)
    return Case(lambda x, y: jax.vjp(lambda w: forward(x, w), jnp.zeros_like(w))[1](y)[0], (x, y), flops, nbytes)


def roofline(flops: float, nbytes: float, auto_cast: str) -> float:
    """Nanoseconds that no program undercuts."""
    machine = find_machine("trn1")
    peak = 2 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"]
    if auto_cast == "none":
        peak /= machine["pe.fp32_passes"]
    return max(flops / peak, nbytes / machine["hbm.bw_per_core"])


def measure(shape: Shape, batch: int, kind: str, layout: str, auto_cast: str, values: bool) -> tuple[str, float]:
    """One line of the table, and how many times its roofline it takes."""
    it = case(shape, batch, kind, layout)
    module = jax.jit(it.function, keep_unused=True).lower(*it.inputs).compiler_ir("hlo")
    proto = module.as_serialized_hlo_module_proto()  # type: ignore[union-attr]
    compiled, executable = once(lambda: neuronx_cc.compile(proto, auto_cast=auto_cast))
    report = executable.run(list(it.inputs), timing_only=True, check_races=False).report
    taken = report.summary["total_exec_time"] * 1e6
    bound = roofline(it.flops, it.nbytes, auto_cast) / 1000
    ratio = taken / bound
    line = f"{shape}  {batch:>2} {kind:<7} {layout} {auto_cast:<7} {taken:>9.1f} {bound:>8.1f} {ratio:>6.1f}"
    line += f" {compiled * 1000:>8.0f}"
    if values:
        line += "  " + walls(executable, it)
    return line, ratio


def walls(executable: Any, it: Case) -> str:
    """Wall times of the simulator and of jaxlib's CPU client, in ms, and the largest relative error."""
    first, result = once(lambda: executable.run(list(it.inputs)).outputs[0])
    again, _ = once(lambda: executable.run(list(it.inputs)))
    jitted = jax.jit(it.function)
    wanted = np.asarray(jitted(*it.inputs))
    peer, _ = once(lambda: np.asarray(jitted(*it.inputs)))
    error = np.abs(result - wanted).max() / np.abs(wanted).max()
    return f"{first * 1000:>8.0f} {again * 1000:>8.0f} {peer * 1000:>8.0f} {error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--kind", nargs="+", default=["forward", "input", "weight"])
    parser.add_argument("--layout", nargs="+", default=["NCHW", "NHWC"])
    parser.add_argument("--auto-cast", nargs="+", default=["matmult", "none"])
    parser.add_argument("--values", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("image  features      kernel  batch kind                      us roofline  ratio compile ms", end="")
    print("  simulator: first, again; XLA-CPU ms; error" if options.values else "")
    ratios = []
    for kind in options.kind:
        for layout in options.layout:
            for auto_cast in options.auto_cast:
                for batch in options.batch:
                    for shape in RESNET:
                        if options.only in str(shape):
                            line, ratio = measure(shape, batch, kind, layout, auto_cast, options.values)
                            ratios.append(ratio)
                            print(line, flush=True)
    print(f"{sum(ratio <= 4 for ratio in ratios)} of {len(ratios)} within 4 times the roofline")


if __name__ == "__main__":
    main()
