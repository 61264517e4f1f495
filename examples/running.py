"""The command line of every example: lower, compile, run on the simulated device, compare with jaxlib.

python examples/gpt2.py --auto-cast matmult --layers 2
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering import Model, differences


def main(
    description: str,
    build: Callable[[argparse.Namespace], Model],
    sizes: Mapping[str, int],
    choices: Mapping[str, Sequence[str]] | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run one example. ``sizes``: integer options and their defaults; ``choices``: options whose default is first."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--auto-cast", choices=("none", "matmult", "all"), default="none")
    parser.add_argument("--auto-cast-type", choices=("bf16", "fp16", "tf32", "fp8_e4m3"), default="bf16")
    parser.add_argument("--save-hlo", metavar="FILE", help="write the HloModuleProto and stop")
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    for name, values in (choices or {}).items():
        parser.add_argument(f"--{name}", choices=values, default=values[0], help=f"default {values[0]}")
    options = parser.parse_args(arguments)
    model = timed("build", lambda: build(options))
    proto = timed("lower", lambda: model.proto)
    if options.save_hlo:
        with open(options.save_hlo, "wb") as file:
            file.write(proto)
        return
    run(model, auto_cast=options.auto_cast, auto_cast_type=options.auto_cast_type)


def run(model: Model, **options: Any) -> Any:
    """Compile and run ``model``, print how its outputs compare, and return the run's result."""
    import neuronx_cc

    executable = timed("compile", lambda: neuronx_cc.compile(model.proto, **options))
    result = timed("simulate", lambda: executable.run(model.arguments))
    expected = timed("jaxlib, compile and run", lambda: model.expected)
    timed("jaxlib, run again", model.jitted)
    error = differences(result.outputs, expected)
    print(f"against jaxlib in FP32: largest error {error.largest:.2e}, in 2-norm {error.norm:.2e} (both relative)")
    print(result.report)
    return result


def timed(what: str, call: Callable[[], Any]) -> Any:
    """Call, print the wall time, return what the call returned."""
    started = time.perf_counter()
    value = call()
    print(f"{what:<24} {time.perf_counter() - started:8.2f} s")
    return value
