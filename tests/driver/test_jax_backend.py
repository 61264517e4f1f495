"""The JAX backend: programs in a process of their own, and what it leaves behind at exit, in forks and in the cache."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":  # there it must have been built
    pytest.importorskip("neuronx_cc.driver.jax_backend._pjrt", reason="the C++ library is not built")

SUPPORT = Path(__file__).resolve().parent.parent / "support"
CASES = re.findall(r"^def (case_\w+)", (SUPPORT / "jax_backend_cases.py").read_text(), re.MULTILINE)


def run(program, *arguments, **variables):
    """A Python process with the backend; its output, exit status included."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "JAX_", "XLA_"))
    }
    environment |= {"JAX_PLATFORMS": "neuron", **variables}
    command = [sys.executable, *(["-c", program] if "\n" in program or " " in program else [program]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


@pytest.fixture(scope="module")
def outcomes(cases_of):
    """Case -> what went wrong, of 4 devices with 64 MiB each."""
    variables = {
        "JAX_PLATFORMS": "neuron,cpu",
        "NEURON_NUM_DEVICES": "4",
        "JAX_PJRT_CLIENT_CREATE_OPTIONS": "hbm_bytes:67108864",
    }
    done = run(str(SUPPORT / "jax_backend_cases.py"), *cases_of("test_program"), **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_program(outcomes, case):
    assert outcomes[case] == ""


LINALG_CASES = re.findall(r"^def (case_\w+)", (SUPPORT / "jax_linalg_cases.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def linalg_outcomes(cases_of):
    """Case of factorisations -> what went wrong."""
    done = run(str(SUPPORT / "jax_linalg_cases.py"), *cases_of("test_factorisation"))
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", LINALG_CASES)
def test_factorisation(linalg_outcomes, case):
    assert linalg_outcomes[case] == ""


HOST_CASES = re.findall(r"^def (case_\w+)", (SUPPORT / "host_call_cases.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def host_outcomes(cases_of):
    """Case of functions of the host -> what went wrong, on 4 devices."""
    variables = {"JAX_PLATFORMS": "neuron,cpu", "NEURON_NUM_DEVICES": "4"}
    done = run(str(SUPPORT / "host_call_cases.py"), *cases_of("test_host_program"), **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", HOST_CASES)
def test_host_program(host_outcomes, case):
    assert host_outcomes[case] == ""


def test_functions_of_the_host_need_a_cpu_device():
    done = run("import jax\njax.jit(lambda x: jax.debug.print('{}', x))(1.0)")
    assert done.returncode == 1
    assert "set JAX_PLATFORMS=neuron,cpu" in done.stderr


START = "import jax, jax.numpy as jnp, numpy as np\nf = jax.jit(lambda x: x @ x + 1)\nx = f(jnp.ones((8, 8)))\n"

EXITS = {
    "arrays that live on": ("import builtins, gc\ngc.disable()\nbuiltins.kept = [x, f]", 0),
    "sys.exit": ("import sys\nsys.exit(3)", 3),
    "exception over live arrays": ("raise KeyError(x.shape)", 1),
    "atexit": ("import atexit\natexit.register(lambda: print(f(x).sum()))", 0),
    "finalizers": (
        "import weakref\nclass C:\n    def __del__(self): self.x = None\n"
        "c = C(); c.x = x; c.me = c; weakref.finalize(c, lambda: None)",
        0,
    ),
    "thread": ("import threading\nthreading.Thread(target=lambda: [f(x) for _ in range(20)]).start()", 0),
    "os._exit": ("import os\nos._exit(5)", 5),
    # CPython 3.11 looks for a handler before the loop's first instruction when a signal arrives at its end (its jump
    # back): a loop that is the first statement of a `try` is not protected there, so a statement stands before it
    "interrupt": (
        "import os, signal, threading\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "later = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))\ny = x\n"
        "try:\n    later.start()\n    while True: y = f(y)\n"
        "except BaseException as error: print(type(error).__name__)\n",
        0,
    ),
    "fork": (
        "import os, warnings\nwarnings.simplefilter('ignore')\npid = os.fork()\n"
        "if pid == 0:\n    ok = np.asarray(f(x))[0, 0] == 649.0\n    os._exit(0 if ok else 9)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        0,
    ),
}
QUICK = ("arrays that live on", "exception over live arrays", "thread", "fork")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXITS]
)
def test_exit(name):
    program, status = EXITS[name]
    done = run(START + program)
    assert done.returncode == status, done.stderr[-2000:]


def test_exit_functions_registered_before_jax_run_programs():
    late = "import atexit\natexit.register(lambda: print(f(x)[0, 0], jax.jit(lambda y: y * 3)(x)[0, 0]))\n"
    done = run(late + START)
    assert done.returncode == 0
    assert done.stdout == "649.0 27.0\n", done.stderr[-2000:]


def test_dlpack_without_a_cpu_device():
    done = run(
        START + "assert (np.from_dlpack(x) == 9).all()\n"
        "y = jnp.from_dlpack(np.arange(6, dtype='f')[::2])\n"
        "assert y.devices() == {jax.devices()[0]} and y.tolist() == [0, 2, 4], y\n"
        "y = jax.dlpack.from_dlpack(np.arange(3), device=jax.devices()[1], copy=True)\n"
        "assert y.devices() == {jax.devices()[1]} and y.tolist() == [0, 1, 2], y\n"
        "try: jax.dlpack.from_dlpack(np.ones(3, 'f'), copy=False)\n"
        "except ValueError as error: assert 'numpy.asarray' in str(error)\n"
        "else: raise AssertionError\n"
        "np.from_dlpack(jnp.ones(3, jnp.bfloat16))"
    )
    assert "BufferError: NumPy has no DLPack type for bfloat16" in done.stderr
    assert "set JAX_PLATFORMS=neuron,cpu" in done.stderr


@pytest.mark.slow
def test_workers_of_a_parallel_test_run(tmp_path):
    (tmp_path / "test_backend.py").write_text(
        "import jax, jax.numpy as jnp, numpy as np, pytest\n"
        "@pytest.mark.parametrize('size', range(1, 9))\n"
        "def test_sum(size):\n    assert float(jax.jit(jnp.sum)(np.ones(size, np.float32))) == size\n"
        "    assert jax.default_backend() == 'neuron'\n"
    )
    done = run(
        "import pytest, sys\nsys.exit(pytest.main(sys.argv[1:]))",
        *("-n", "2", "-q", "-p", "no:cacheprovider", str(tmp_path)),
        NEURON_COMPILE_CACHE_URL=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "8 passed" in done.stdout


RESHARDING = """
import itertools, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
x = np.arange(64, dtype=np.float32).reshape(8, 8)
for sizes in ((4, 2), (2, 4)):
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), ("a", "b"))
    for old, new in ((P("a", "b"), P("b", "a")), (P(None, "b"), P(None, "a")), (P("a"), P("b", "a")), (P("b"), P("a"))):
        given = jax.device_put(x, NamedSharding(mesh, old))
        result = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, new))(given)
        wrong = [each.device.id for each in result.addressable_shards if not np.array_equal(each.data, x[each.index])]
        assert result.sharding.spec == new and not wrong, (sizes, old, new, wrong)
"""


def test_meshes_of_unequal_axes():
    done = run(RESHARDING, NEURON_NUM_DEVICES="8")
    assert done.returncode == 0, done.stderr[-2000:]


def test_never_the_default_and_silent():
    done = run("import jax, jax.numpy as jnp\nprint(jnp.ones(2).devices(), jax.devices('neuron'))", JAX_PLATFORMS="")
    assert "CpuDevice" in done.stdout.split("[")[0]
    assert "NeuronCore(id=1)" in done.stdout
    assert "neuron" not in done.stderr


def test_bad_device_count_is_one_sentence():
    done = run("import jax\njax.devices()", NEURON_RT_NUM_CORES="many")
    assert "NEURON_RT_NUM_CORES is 'many' - write a whole number" in done.stderr


def test_cache_serves_the_next_process(tmp_path):
    program = (
        "import jax, logging, numpy as np\nlogging.basicConfig(level=logging.INFO)\n"
        "print(jax.jit(lambda x: x * 3)(np.ones(4, np.float32)))"
    )
    variables = {"NEURON_COMPILE_CACHE_URL": str(tmp_path)}
    first = run(program, **variables)
    assert "cached neff" not in first.stderr
    again = run(program, **variables)
    assert "Using a cached neff" in again.stderr
    (neff,) = tmp_path.glob("neuronxcc-*/MODULE_*/model.neff")
    neff.write_bytes(neff.read_bytes()[:2000])
    damaged = run(program, **variables)
    assert "is damaged" in damaged.stderr
    assert first.stdout == again.stdout == damaged.stdout == "[3. 3. 3. 3.]\n"
    assert [path.name for path in neff.parent.parent.iterdir()] == [neff.parent.name]


MOVED = """
import jax, logging, numpy as np, neuronx_cc
from neuronx_cc.driver.jax_backend import compiler
logging.basicConfig(level=logging.INFO)
compiled = []
compile_unit = compiler.compile_unit
compiler.compile_unit = lambda *arguments: compiled.append(1) or compile_unit(*arguments)
def f(x):
    return jax.lax.fori_loop(0, 2, lambda _, x: x * 3, x)
first = f
def f(x):
    y = x
    return jax.lax.fori_loop(0, 2, lambda _, y: y * 3, y)
def where():
    return {usage.source for usage in neuronx_cc.last_run().report.operators if "mul" in usage.name}
for function in (first, f):
    print(float(jax.jit(function)(np.float32(2))), *where(), len(compiled))
"""


def test_moved_lines_compile_nothing_and_are_named(tmp_path):
    variables = {"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")}
    here, below = tmp_path / "program.py", tmp_path / "moved.py"
    here.write_text(MOVED)
    below.write_text("\n" * 5 + MOVED)
    first, again = run(str(here), **variables), run(str(below), **variables)
    assert first.stdout.splitlines() == [f"18.0 {here}:9 1", f"18.0 {here}:13 1"], first.stderr[-2000:]
    assert again.stdout.splitlines() == [f"18.0 {below}:14 0", f"18.0 {below}:18 0"], again.stderr[-2000:]
    assert "Using a cached neff" in again.stderr


def test_memory_that_the_host_has_not():
    program = (
        "import jax, numpy as np\nkept = jax.device_put(np.zeros(1 << 20, np.float32))\n"
        "print(jax.devices()[0].memory_stats()['bytes_reservable_limit'] < 1 << 50)\n"
        "jax.device_put(np.broadcast_to(np.int8(0), (1 << 44,)))"
    )
    done = run(program, JAX_PJRT_CLIENT_CREATE_OPTIONS=f"hbm_bytes:{1 << 50}")
    assert done.stdout == "True\n"
    assert "RESOURCE_EXHAUSTED: [NCC_EMEM901] the host" in done.stderr
    assert "s8[17592186044416] on NEURON_0 needs 16384.00 GiB; largest buffers: f32[1048576] (4.00 MiB)" in done.stderr


def test_flags_of_the_environment():
    program = "import jax, numpy as np\nx = np.float32([[1.001]])\nprint(float(jax.jit(lambda x: x @ x)(x)[0, 0]))"
    assert float(run(program).stdout) == pytest.approx(1.002001, abs=1e-6)
    assert float(run(program, NEURON_CC_FLAGS="--auto-cast=matmult --no_cache").stdout) == 1.0
    wrong = run(program, NEURON_CC_FLAGS="--auto-cats none")
    assert "did you mean --auto-cast?" in wrong.stderr
