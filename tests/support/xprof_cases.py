"""A process with the JAX backend that writes profiles in XProf's terms, and says what they should hold.

python tests/support/xprof_cases.py DIRECTORY
"""

import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import neuronx_cc
from neuronx_cc.ir.errors import RunError


@jax.jit
def step(x, w):
    h = jnp.tanh(x @ w)
    return (h @ w.T).sum(axis=1), jnp.exp(h).T


def main(place: Path) -> None:
    x, w = np.ones((256, 512), np.float32), np.full((512, 512), 0.01, np.float32)
    step(x, w)
    with neuronx_cc.recording() as runs:
        for _ in range(3):
            jax.block_until_ready(step(x, w))
    found = runs[0].analysis
    told = {"files": {"runs": neuronx_cc.write_xprof(str(place / "runs"), runs)}}
    told["files"]["one"] = neuronx_cc.write_xprof(str(place / "one"), neuronx_cc.last_run())
    told["time_ns"] = found.report.time_ns
    told["mbu"] = found.report.summary["mbu_estimated_percent"]
    told["operators"] = {
        row.name: [row.critical_ns, row.flops, row.hbm_bytes, row.opcode, row.source] for row in found.operators
    }
    told["hbm_peak"] = found.document["memory"]["HBM"]["peak_bytes"]
    runs[0].write_report(str(place / "report.html"))

    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    spread = jax.device_put(x, NamedSharding(mesh, P(None, "d")))
    total = jax.jit(lambda x: (x * 2).sum(1), out_shardings=NamedSharding(mesh, P()))
    with neuronx_cc.recording() as runs:
        jax.block_until_ready(total(spread))
    told["files"]["devices"] = neuronx_cc.write_xprof(str(place / "devices"), runs)
    runs[0].write_trace(str(place / "devices.json"))

    os.environ["NEURON_XPROF"] = "1"
    with jax.profiler.trace(str(place / "session")):
        jax.block_until_ready(step(x, w))
    (told["files"]["session"],) = (str(path) for path in (place / "session").rglob("*.xplane.pb"))
    try:
        neuronx_cc.write_xprof(str(place / "none"), [])
    except RunError as error:
        told["empty"] = str(error)
    try:
        (place / "file").write_text("")
        neuronx_cc.write_xprof(str(place / "file"), neuronx_cc.last_run())
    except RunError as error:
        told["unwritable"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
