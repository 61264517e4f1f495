"""The JAX backend beside jaxlib's CPU client: dispatch overhead, latency of small programs, host-device copies.

    python benchmarks/dispatch.py

Each platform is measured in a process of its own; wall times, the best of a few rounds. "Simulation" is what the
simulator alone takes for the same program, so that the difference is the backend's own cost.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDS = 5
COPY = 64 << 20
SMALL = ("x + x", "tanh", "sum", "x @ x", "softmax")


def best(call: Callable[[], Any], calls: int = 1) -> float:
    """Seconds of one of ``calls`` calls in the fastest round."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - started) / calls)
    return min(times)


def measure() -> dict[str, float]:
    """What this process's platform takes."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((8, 8))
    step = jax.jit(lambda x: x + 1)
    step(x)
    found = {"jitted call, us": 1e6 * best(lambda: step(x).block_until_ready(), 500)}
    many = jax.jit(lambda *xs: [x + 1 for x in xs])
    arrays = [x] * 20
    many(*arrays)
    found["call with 20 arrays, us"] = 1e6 * best(lambda: many(*arrays), 100)
    if jax.default_backend() == "neuron":
        found |= simulation(step, x)
    functions = dict(zip(SMALL, (lambda x: x + x, jnp.tanh, jnp.sum, lambda x: x @ x, jax.nn.softmax), strict=True))
    for name, function in functions.items():
        times = []
        for round_ in range(ROUNDS):
            program = jax.jit(lambda x, function=function, round_=round_: function(x) * (round_ + 2))
            started = time.perf_counter()
            program(x)
            times.append(time.perf_counter() - started)
        found[f"first call of {name}, ms"] = 1e3 * min(times)
    host = np.ones(COPY, np.uint8)
    found["host to device, GB/s"] = COPY / best(lambda: jax.device_put(host).block_until_ready()) / 1e9
    there = jax.device_put(host)
    # a copy on the device each time, since a jax.Array keeps what it has fetched
    copies = iter([there.copy() for _ in range(ROUNDS)])
    found["device to host, GB/s"] = COPY / best(lambda: np.asarray(next(copies))) / 1e9
    return found


def simulation(step: Any, x: Any) -> dict[str, float]:
    """The simulator alone on the program of ``step``."""
    from neuronx_cc.driver.jax_backend import launch

    step(x)
    assert launch.last is not None
    executable = launch.last[0].executables[0]
    given, taken = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32)
    return {"simulation of that call, us": 1e6 * best(lambda: executable.compute([given], [taken]), 500)}


def main() -> None:
    if len(sys.argv) > 1:
        json.dump(measure(), sys.stdout)
        return
    tables = {}
    for platform in ("neuron", "cpu"):
        environment = os.environ | {"JAX_PLATFORMS": platform, "NEURON_CC_FLAGS": "--no_cache"}
        done = subprocess.run(
            [sys.executable, __file__, "measure"], env=environment, stdout=subprocess.PIPE, check=True
        )
        tables[platform] = json.loads(done.stdout)
    print(f"{'':<34} {'neuron':>10} {'cpu':>10}")
    for name, value in tables["neuron"].items():
        other = tables["cpu"].get(name)
        print(f"{name:<34} {value:>10.1f} {f'{other:.1f}' if other is not None else '':>10}")


if __name__ == "__main__":
    main()
