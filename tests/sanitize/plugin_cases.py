"""Cases for the JAX plug-in and the core under a sanitizer, each in a process of its own."""

import os
import subprocess
import sys

import pytest

CASES = {
    "values and buffers": """
x = jax.device_put(np.arange(12, dtype=np.float32).reshape(3, 4))
y = jax.jit(lambda a: (a @ a.T, jnp.exp(a).sum(), a.astype(jnp.bfloat16)))(x)
assert np.allclose(y[0], np.asarray(x) @ np.asarray(x).T)
for _ in range(20):
    x = x + 1
assert float(x[0, 0]) == 20
x.delete()
""",
    "devices": """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("d")))
assert float(jax.jit(lambda a: (a * 2).sum())(x)) == 64
f = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
assert float(f(x)[0, 0]) == len(jax.devices())
""",
    "threads": """
import threading
f = jax.jit(lambda a, n: jnp.sin(a) * n)
def work(n):
    for _ in range(5):
        assert np.allclose(f(np.ones(300, np.float32), n), np.sin(1) * n, rtol=1e-5)
threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
""",
    "errors and callbacks": """
def refuse(a):
    raise ValueError("no")
try:
    jax.block_until_ready(jax.jit(lambda a: jax.pure_callback(refuse, a, a))(np.ones(3, np.float32)))
    raise SystemExit("the error is missing")
except Exception as error:
    assert "no" in str(error)
try:
    jax.jit(lambda a: a)(jax.device_put(np.ones(2)), 3)
except TypeError:
    pass
""",
    "serialized": """
from jax.experimental import serialize_executable as s
c = jax.jit(lambda a: a * 3).lower(np.ones(4, np.float32)).compile()
loaded = s.deserialize_and_load(*s.serialize(c), execution_devices=jax.devices()[:1])
assert float(loaded(np.ones(4, np.float32))[0]) == 3
print(c.cost_analysis(), c.memory_analysis(), len(c.as_text()))
""",
}


@pytest.mark.parametrize("name", CASES)
def test_plugin(name: str) -> None:
    program = f"import jax, jax.numpy as jnp, numpy as np\nassert jax.default_backend() == 'neuron'\n{CASES[name]}"
    environment = {**os.environ, "JAX_PLATFORMS": "neuron", "NEURON_NUM_DEVICES": "2", "NEURON_CC_FLAGS": "--no_cache"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
