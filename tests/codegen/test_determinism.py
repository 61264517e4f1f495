"""The same module gives the same file in processes with different hash seeds."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from generated import compile_text, text_of

from neuronx_cc.ir.isa.program import Instr

PROGRAM = """
import hashlib
import sys
from generated import compile_text
from neuronx_cc.ir.neff import Neff

compiled = compile_text(sys.stdin.read(), auto_cast="matmult")
print(hashlib.sha256(Neff(compiled.program, compiled.constants).to_bytes()).hexdigest())
"""


def model() -> str:
    """Contractions, fused rows, a gather, constants, reductions and a run-time slice."""

    def function(table, ids, w, u, start):
        x = table[ids] + jnp.arange(48, dtype=jnp.float32)
        hidden = jax.nn.gelu(x @ w)
        y = jax.nn.softmax(hidden @ u, -1) + jax.lax.dynamic_slice(x, (start, 0), (130, 48)).sum(0)
        return y.T, jnp.argmax(y, -1), hidden.sum(0), jnp.concatenate([y, y[::-1]], 1), y.astype(jnp.bfloat16)

    shapes = [(100, 48), (48, 257), (257, 48)]
    table, w, u = (np.ones(dims, np.float32) for dims in shapes)
    return text_of(function, table, np.ones(130, np.int32), w, u, np.int32(3))


def digest(text: str, seed: str) -> str:
    support = Path(sys.modules["generated"].__file__ or "").parent
    paths = [str(support), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=text, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == hashlib.sha256().digest_size * 2
    return done.stdout


def test_same_bytes_under_every_hash_seed() -> None:
    text = model()
    assert len({digest(text, seed) for seed in ("0", "1", "4242")}) == 1


def test_same_instructions_wherever_ops_lie_in_memory() -> None:
    """Sets of ops are ordered by their addresses, which a hash seed does not change: each module has others."""

    def frames(x, window):  # row and column numbers of few elements beside each other, as of windows of a signal
        hops, width = 2 * x.shape[1] // window.shape[0] - 1, window.shape[0]
        at = jnp.arange(hops)[:, None] * (width // 2) + jnp.arange(width)
        return x[:, at] * window

    text = text_of(frames, np.ones((3, 7712), np.float32), np.ones(64, np.float32))
    kept, made = [], set()
    for number in range(12):
        kept.append([object() for _ in range(997 * number)])
        made.add("\n".join(str(record) for record in compile_text(text).program.records if isinstance(record, Instr)))
    assert len(made) == 1
