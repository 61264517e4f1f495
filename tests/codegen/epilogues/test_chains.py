"""What is computed of the sums of contractions as they leave PSUM: by value, in all types, on machines of all sizes."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_function

import neuronx_cc
from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.dots import across, copies, placement, statement
from neuronx_cc.codegen.epilogues import choose
from neuronx_cc.codegen.epilogues.chain import Chain, Ready
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr, Space
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

Array = np.ndarray[Any, Any]
MACHINES = Path(__file__).resolve().parents[2] / "machines"


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def chain(x: Any, row: Any, column: Any, each: Any) -> Any:
    return jnp.tanh(jnp.clip((x + row) * column, -3, 3) / 2 - each) * each


CHAINS: dict[str, Callable[..., Any]] = {
    "relu": lambda x, row, column, each: jax.nn.relu(x + row),
    "gelu": lambda x, row, column, each: gelu(x + row),
    "gelu of tanh": lambda x, row, column, each: jax.nn.gelu(x + row),
    "silu": lambda x, row, column, each: jax.nn.silu(x) * each,
    "exp": lambda x, row, column, each: jnp.exp(x - column),
    "square": lambda x, row, column, each: x * x,
    "clamp": lambda x, row, column, each: jnp.clip(x * 0.5, -1, 1),
    "select": lambda x, row, column, each: jnp.where(each > 0, x, 0.1 * x),
    "quotient": lambda x, row, column, each: each / (1 + jnp.abs(x)) * column,
    "all": chain,
}
SIZES = ((1, 1, 1), (3, 5, 513), (127, 65, 129), (128, 128, 512), (129, 300, 1031), (300, 64, 2049))


def kinds(names: list[str]) -> list[str]:
    return [name.split(".")[1] for name in names]


def check(name: str, sizes: tuple[int, int, int], dtype: Any = np.float32, machine: Machine = TRN1) -> list[str]:
    """Run and compare with XLA; the kinds of kernels."""
    m, k, n = sizes
    random = np.random.default_rng(m + 3 * k + 7 * n)

    def function(a: Any, b: Any, row: Any, column: Any, each: Any) -> Any:
        return CHAINS[name](a @ b, row[None, :], column[:, None], each)

    dims = ((m, k), (k, n), (n,), (m,), (m, n))
    a, *others = (random.standard_normal(each).astype(dtype) for each in dims)
    a = (a * k**-0.5).astype(dtype)
    wide = {} if dtype == np.float32 else {"relative": 0.06}
    return kinds(check_function(function, a, *others, machine=machine, **wide).program.kernels)


@pytest.mark.parametrize("name", CHAINS)
def test_values(name: str) -> None:
    for sizes in SIZES[name == "gelu" :]:  # constants of one element are not read in what XLA makes of it
        assert check(name, sizes).count("dot") == 1


@pytest.mark.parametrize("name", CHAINS)
def test_no_map_is_left(name: str) -> None:
    assert check(name, (256, 256, 640)) == ["dot"]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", ["relu", "silu", "clamp", "select"])
def test_narrow_floats(name: str, dtype: Any) -> None:
    for sizes in SIZES[1:4]:
        check(name, sizes, dtype)


@pytest.mark.parametrize("machine", ["eighth", "quarter", "half"])
@pytest.mark.parametrize("name", ["gelu of tanh", "all"])
def test_little_memory(name: str, machine: str) -> None:
    for sizes in (SIZES[1], SIZES[4], (513, 129, 300)):
        check(name, sizes, machine=find_machine(str(MACHINES / f"{machine}.toml")))


def test_gates(random: Array) -> None:
    """Results of one contraction are read by another's epilogue."""

    def function(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    shapes = ((130, 70), (70, 200), (70, 200), (200, 60))
    names = check_function(function, *(random.standard_normal(each, np.float32) / 8 for each in shapes)).program.kernels
    assert kinds(names) == ["dot"] * 3


def test_what_others_read_is_stored(random: Array) -> None:
    """Sums and results between that more than the epilogue reads are no part of it."""

    def function(a: Any, b: Any) -> Any:
        made = a @ b
        half = jnp.tanh(made) * 0.5
        return made.sum(0), half @ b.T, jnp.exp(half)

    check_function(function, *(random.standard_normal((140, 140), np.float32) / 12 for _ in range(2)))


def test_arrays_that_are_made_for_it(random: Array) -> None:
    """The slope of a rectifier is made where it is used; what counts, and what lies across, is not read there."""

    def function(a: Any, b: Any, h: Any, t: Any) -> tuple[Any, Any, Any]:
        slope = jnp.where(h > 0, a @ b, 0)
        place = jax.lax.broadcasted_iota(jnp.float32, (150, 150), 1)
        return slope, (a @ b.T) * place, (a.T @ b) + t.T

    inputs = [random.standard_normal((150, 150), np.float32) for _ in range(4)]
    assert "dot" in kinds(check_function(function, *inputs).program.kernels)


@pytest.mark.parametrize("given", [True, False], ids=["given", "constant"])
@pytest.mark.parametrize("shape", [(513, 1), (1, 70), (513, 70)])
def test_predicates_of_rows_of_columns_and_of_elements(shape: tuple[int, int], given: bool, random: Array) -> None:
    """What takes from sums is read as it is stored, also where it is one value a row."""
    choice = random.random(shape) > 0.5

    def function(a: Any, b: Any, y: Any, *choices: Any) -> tuple[Any, Any]:
        (p,) = choices or (choice,)
        return jnp.where(p, a @ b, -1) / (y * y + 1), jnp.where(~p, jnp.tanh(a @ (b * b)), y)

    inputs = [random.standard_normal(dims, np.float32) for dims in ((513, 20), (20, 70), (513, 70))]
    check_function(function, *inputs, *([choice] if given else []))


def test_steps_in_a_loop(random: Array) -> None:
    """A cell of a recurrent network: contraction, gate and state, several times."""

    def function(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, h: jnp.tanh(h @ w + x) * 0.5 + h * 0.5, x)

    check_function(function, *(random.standard_normal(each, np.float32) / 8 for each in ((20, 96), (96, 96))))


@pytest.mark.parametrize("sizes", [(300, 256, 40), (129, 512, 33), (64, 127, 8)], ids=str)
def test_rows_and_columns_that_were_computed_are_not_repeated_in_memory(
    sizes: tuple[int, int, int], random: Array
) -> None:
    """Distances of all points from all centres: squares of either are on chip when the products are made."""
    rows, columns, depth = sizes

    def distances(x: Any, c: Any) -> Any:
        return (x * x).sum(1)[:, None] - 2 * x @ c.T + (c * c).sum(1)

    inputs = random.standard_normal((rows, depth), np.float32), random.standard_normal((columns, depth), np.float32)
    program = check_function(distances, *inputs, relative=1e-5).program
    stored = [
        record.outs[0] for record in program.records if isinstance(record, Instr) and record.stream in DMA_STREAMS
    ]
    copies = [ref for ref in stored if ref.space is Space.HBM and prod(ref.counts) * 4 > (rows + columns) * depth]
    assert sum(prod(ref.counts) for ref in copies) <= rows * columns


def test_what_is_found_once_is_what_each_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epilogues, options and problems of contractions that are spelled alike, or whose arrays lie alike."""
    found = {"epilogue": 0, "option": 0, "problem": 0}
    epilogue, option, problems = Chain.epilogue, choose._option, statement.problems_of

    def checked_epilogue(self: Chain, columns: Any, *rest: Any) -> Any:
        found["epilogue"] += 1
        known = epilogue(self, columns, *rest)
        assert known == Ready.of(self, tuple(columns)).record(*rest)
        return known

    def checked_option(context: Any, contraction: Any, ops: Any) -> Any:
        found["option"] += 1
        known, planner = option(context, contraction, ops), context.planner
        context.planner = Planner(context.timing)
        assert known == option(context, contraction, ops)
        context.planner = planner
        return known

    def checked_problems(context: Any, *rest: Any) -> Any:
        found["problem"] += 1
        known, planner = problems(context, *rest), context.planner
        context.planner = Planner(context.timing)
        assert known == problems(context, *rest)
        context.planner = planner
        return known

    monkeypatch.setattr(Chain, "epilogue", checked_epilogue)
    monkeypatch.setattr(choose, "_option", checked_option)
    for module in (placement, across, copies):
        monkeypatch.setattr(module, "problems_of", checked_problems)

    near = [lambda x, *_: 2 * x - 1, lambda x, *_: 1 - 2 * x, lambda x, *_: 3 * x - 1, lambda x, *_: (x - 1) * 2]
    chains = [*CHAINS.values(), *near]

    def function(a: Any, b: Any, row: Any, column: Any, each: Any) -> Any:
        wide = [f(x @ b, row[None, :], column[:, None], each) for f, x in zip(chains, a, strict=False)]
        few = [f(x[:3].astype(t) @ b.astype(t)) for f in near for x, t in zip(a[-4:], ("f4", "f2"), strict=False)]
        return wide, few

    matrices = jax.ShapeDtypeStruct((96, 64), jnp.float32)
    b, row, column, each = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((64, 128), (128,), (96,), (96, 128)))
    neuronx_cc.compile(jax.jit(function).lower([matrices] * (len(chains) + 4), b, row, column, each))
    assert min(found.values()) > 20


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [3, 20, 64])
def test_narrow_values_that_are_widened_as_they_are_read(dtype: str, n: int) -> None:
    """They are alive until the last op that reads them so, which is no op of theirs."""
    generator = np.random.default_rng(n)
    x, w, u = (generator.standard_normal(dims).astype(dtype) for dims in ((256, 64), (64, n), (64, n)))

    def gated(x: Any, w: Any, u: Any) -> Any:
        gate = jnp.matmul(x, u, preferred_element_type=np.float32) / 8
        return (x @ w / 8 * jax.nn.gelu(gate, approximate=False)).astype(dtype)

    def several(x: Any, w: Any, u: Any) -> Any:
        wide = (x @ w / 8).astype(np.float32)
        return wide * jnp.exp(-wide * wide) + jnp.tanh(wide)

    for function in (gated, several):
        check_function(function, x, w, u, relative=3e-2)
