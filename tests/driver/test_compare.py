"""Errors by op: a planted cancellation is found by its line, single casts add up, groups stand for like ops."""

import json
import tracemalloc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver import accuracy, cli
from neuronx_cc.driver.compare import Comparison
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.passes.precision.rounding import Cast


def planted(x, w, v):
    """Two products that nearly agree; what is left of their difference is scaled up."""
    h = jnp.tanh(x @ w)
    near = h @ v
    same = h @ (v + 1e-3 * w)
    return jax.nn.softmax((near - same) * 1000), h @ v.T


FIRST_LINE = planted.__code__.co_firstlineno
NEAR, SAME, CANCELS = FIRST_LINE + 3, FIRST_LINE + 4, FIRST_LINE + 5


def arrays(size: int, count: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(size)
    return [random.standard_normal((size, size)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32"])
def test_a_planted_cancellation_is_first(cast_type: str) -> None:
    inputs = arrays(48)
    found = neuronx_cc.compare(jax.jit(planted), inputs, auto_cast_type=cast_type)
    worst = {row.source.rpartition(":")[2] for row in found.rows[:2]}
    assert worst == {str(NEAR), str(SAME)}
    assert found.rows[0].impact > 5 * found.rows[2].impact
    assert found.cancellations[0].source.endswith(f":{CANCELS}")
    assert found.error == pytest.approx(found.predicted, rel=0.1)
    kept = [row.keep for row in found.rows[:2]]
    mended = neuronx_cc.compare(jax.jit(planted), inputs, auto_cast_type=cast_type, keep_fp32=kept)
    assert mended.error < found.error / 5
    assert found.rows[0].keep in str(found)


def test_nothing_is_cast() -> None:
    found = neuronx_cc.compare(jax.jit(lambda x, w: x @ w), arrays(32, 2), auto_cast="none")
    assert found.rows == ()
    assert found.error < 1e-6
    assert "nothing is cast" in str(found)


@pytest.mark.parametrize(("cast", "most"), [(False, 12), (True, 65)])
def test_values_are_forgotten_once_they_are_read(cast: bool, most: int) -> None:
    """40 steps of 1 MB each: without casts few of them are kept, with one the exact ones alone."""
    steps = "\n".join(f"  v{n + 1} = f32[512,512] add(v{n}, v{n})" for n in range(40))
    module = parse_text(f"""HloModule chain
ENTRY main {{
  x = f32[512,512] parameter(0)
  v0 = f32[512,512] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
{steps}
  ROOT out = f32[512,512] negate(v40)
}}""")
    x = arrays(512, 1)[0]
    dot = next(op for op in module.entry.block.ops if isinstance(op, hlo.DotOp))
    accuracy.analyse(module, {dot: Cast("bf16", rounded=(0, 1))} if cast else {}, [[x]])
    tracemalloc.start()
    found = accuracy.analyse(module, {dot: Cast("bf16", rounded=(0, 1))} if cast else {}, [[x]])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.ops) == cast
    assert (found.predicted > 0) == cast
    assert peak < most * 2**20


@pytest.mark.parametrize("mode", ["matmult", "all"])
def test_errors_of_single_casts_add_up_in_quadrature(mode: str) -> None:
    def layers(x, *weights):
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            x = x + jnp.tanh(x @ w / 7) @ v / 7
        return x

    found = neuronx_cc.compare(jax.jit(layers), arrays(64, 9), auto_cast=mode)
    together = np.sqrt(sum(row.impact**2 for row in found.rows))
    assert len(found.rows) >= 8
    # where all is cast, what follows a contraction is rounded once, at its end
    assert together == pytest.approx(found.error, rel=0.2 if mode == "matmult" else 0.3)
    assert [row.impact for row in found.rows] == sorted((row.impact for row in found.rows), reverse=True)


def test_errors_that_do_not_add_up_are_remarked_on() -> None:
    """A small number taken from a rounded one is lost where the difference is rounded as well, and only there."""
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((8, 16384)).astype(np.float32) for _ in range(2)]
    lost = neuronx_cc.compare(jax.jit(lambda x, y: jnp.sum(x * y - 1e-3 * jnp.abs(x), 1)), inputs, auto_cast="all")
    assert "errors do not add up" in str(lost)
    fine = neuronx_cc.compare(jax.jit(lambda x, y: jnp.sum(x * y, 1) + 1), inputs, auto_cast="all")
    assert "errors do not add up" not in str(fine)


def test_casts_that_change_no_bit_are_said_to_be_exact() -> None:
    """A product of small integers; what it inherits is another matter."""
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, (32, 32)).astype(np.float32) for _ in range(2))
    v = random.standard_normal((32, 32)).astype(np.float32)
    found = neuronx_cc.compare(jax.jit(lambda x, w, v: (x @ w, x @ v)), [x, w, v], auto_cast="matmult")
    assert [row["exact"] for row in found.to_json()["ops"]] == [False, True]
    assert "exact: the cast changes no bit of the result" in str(found)
    found = neuronx_cc.compare(jax.jit(lambda x, w: x @ w), [x, w], auto_cast="matmult")
    assert found.error == 0
    assert "--keep-fp32" not in str(found)


def test_casts_inside_loops_have_rows() -> None:
    def loop(x, w):
        return jax.lax.fori_loop(0, 9, lambda _, x: jnp.tanh(x @ w), x)

    found = neuronx_cc.compare(jax.jit(loop), arrays(24, 2))
    (row,) = found.rows
    assert row.inherited is not None
    assert 0 < row.inherited < 0.5
    assert row.impact == pytest.approx(found.error, rel=0.1)
    assert row.added > 1e-4


def cancelling(x, w, v):
    return jnp.tanh(x @ w) + 500 * (x @ v - x @ (v * 1.001))


@pytest.mark.parametrize(
    "form",
    [
        lambda x, w, v: jax.lax.fori_loop(0, 3, lambda _, x: cancelling(x, w, v), x),
        lambda x, w, v: jax.lax.scan(lambda x, w: (cancelling(x, w, v), x), x, jnp.stack([w, w]))[0],
        lambda x, w, v: jax.lax.while_loop(
            lambda state: (state[0] < 3) & (jnp.sum(state[1]) < 1e9),
            lambda state: (state[0] + 1, cancelling(state[1], w, v)),
            (0, x),
        )[1],
        lambda x, w, v: jax.lax.cond(jnp.sum(x) < 1e9, cancelling, lambda x, w, v: x @ w, x, w, v),
    ],
    ids=["fori", "scan", "while", "cond"],
)
def test_cancellations_in_loops_and_branches_are_named(form) -> None:
    x, w, v = arrays(32)
    found = neuronx_cc.compare(jax.jit(form), [x / 10, w / 6, v / 6])
    line = cancelling.__code__.co_firstlineno + 1
    assert found.cancellations[0].opcode == "subtract"
    assert found.cancellations[0].source.endswith(f":{line}")
    assert found.cancellations[0].after > 1
    assert "cancels" in str(found).splitlines()[1]


@pytest.mark.parametrize(
    "form",
    [
        lambda x, limit: jax.lax.cond(jnp.max(x @ x) > limit, lambda: x @ (x + 1), lambda: x @ (x - 1)),
        lambda x, limit: jax.lax.while_loop(
            lambda state: (state[0] < 3) & (jnp.max(x @ x) > limit),
            lambda state: (state[0] + 1, state[1] @ (x + 1) - limit),
            (0, x),
        )[1],
    ],
    ids=["cond", "while"],
)
def test_where_programs_part_nothing_is_measured(form) -> None:
    """A branch, or a loop, that only one of them takes."""
    x = arrays(16, 1)[0]
    rounded = x.astype(jnp.bfloat16).astype(np.float32)
    exact, cast = (float(np.max(each @ each)) for each in (x, rounded))
    limit = np.float32((exact + cast) / 2)
    found = neuronx_cc.compare(jax.jit(form), [x, limit], auto_cast_type="bf16")
    assert None in [row.inherited for row in found.rows]
    assert found.error > 0.1
    assert "not met" in str(found)


def far(x, w):
    return jnp.log(jnp.sum(jnp.exp(x @ w), -1))


@pytest.mark.parametrize(("mode", "cast_type"), [("all", "fp8_e4m3"), ("all", "fp16"), ("matmult", "fp8_e4m3")])
def test_casts_beyond_the_range_of_a_type_are_named(mode: str, cast_type: str) -> None:
    """By op, line and range; and running such a program is not silent."""
    x, w = arrays(32, 2)
    if mode == "matmult":
        model, opcode, line = jax.jit(lambda x, w: (1e4 * x) @ w), "dot", 0
    else:
        model, opcode, line = jax.jit(far), "exponential", far.__code__.co_firstlineno + 1
    with pytest.warns(RuntimeWarning, match=r"\d+ elements of result 0 are"):
        neuronx_cc.compile(model, x, w, auto_cast=mode, auto_cast_type=cast_type).run([x, w])
    with pytest.warns(RuntimeWarning, match=r"rounds to f(8e4m3|16)"):
        found = neuronx_cc.compare(model, [x, w], auto_cast=mode, auto_cast_type=cast_type)
    first = found.overflows[0]
    assert first.opcode == opcode
    assert first.largest > first.limit == (65504 if cast_type == "fp16" else 240)
    assert not line or first.source.endswith(f":{line}")
    assert "overflows: numbers up to" in str(found)
    assert found.to_json()["overflows"][0]["limit"] == first.limit


def test_infinities_that_no_cast_makes_are_not_warned_of() -> None:
    x, w = arrays(32, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        neuronx_cc.compile(jax.jit(far), 100 * x, w, auto_cast="none").run([100 * x, w])
        neuronx_cc.compile(jax.jit(far), x, w, auto_cast="all", auto_cast_type="fp16").run([x * np.inf, w])
        neuronx_cc.compile(jax.jit(lambda x, w: x @ w), x, w, auto_cast_type="fp8_e4m3").run([x, w])


def test_like_ops_are_tried_together_where_single_ones_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def layers(x, w, v):
        for _ in range(6):
            x = jnp.tanh(x @ w)
            x = x @ v / 7
        return x

    monkeypatch.setattr(accuracy, "SECONDS", 0.0)
    found = neuronx_cc.compare(jax.jit(layers), arrays(32))
    assert sorted(row.count for row in found.rows) == [6, 6]
    assert "and 5 like it" in str(found)


def test_the_command_prints_both_verdicts(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.pb").write_bytes(
        jax.jit(planted).lower(*arrays(16)).compiler_ir("hlo").as_serialized_hlo_module_proto()
    )
    assert cli.main(["compile", "m.pb", "--output", "m.neff"]) == 0
    capsys.readouterr()
    assert cli.main(["run", "m.neff", "--check"]) == 0
    out = capsys.readouterr().out
    assert "accuracy: outputs differ from FP32 semantics" in out
    assert "check: outputs agree with the reference semantics" in out
    assert cli.main(["run", "m.neff", "--check", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["check"]["passed"]
    assert document["accuracy"]["ops"][0]["source"].endswith((f":{NEAR}", f":{SAME}"))


def test_long_tables_are_cut() -> None:
    row = accuracy_row()
    text = str(Comparison(1.0, (1.0,), 1.0, (row,) * 40, ()))
    assert "... 30 more" in text
    assert len(text.splitlines()) == 14


def accuracy_row():
    from neuronx_cc.driver.compare import Row

    return Row("dot.1", "dot", "f32[2,2]", "jit(f)/dot", "", 1, "operands bf16", 0.1, 0.1, 0.0, None, "dot")


def test_inputs_are_the_arguments_of_the_function() -> None:
    """Nested ones, and those that it does not use."""
    random = np.random.default_rng(0)
    x, w, unused = (random.standard_normal((16, 16), np.float32) for _ in range(3))

    def model(weights, x):
        return jnp.tanh(x @ weights["w"])

    given = [{"unused": unused, "w": w}, x]
    found = neuronx_cc.compare(jax.jit(model), given, auto_cast="matmult")
    assert 1e-4 < found.error < 1e-2
    assert neuronx_cc.compare(jax.jit(model).lower(*given), [w, x], auto_cast="matmult").error == found.error
    assert neuronx_cc.tune(jax.jit(model), given, 1e-2).to_json()["error"] <= 1e-2


def test_infinities_that_spread_are_said() -> None:
    """TensorE transposes 16-bit operands by products: FP32 semantics have numbers where the program has none."""
    x, w = arrays(64, 2)
    x[3, 5] = np.inf
    found = neuronx_cc.compare(jax.jit(lambda x, w: x @ w), [x, w], auto_cast="matmult")
    assert (found.error, found.predicted < 1e-2) == (np.inf, True)
    assert "--no-fast-relayout" in str(found)
    exact = neuronx_cc.compare(jax.jit(lambda x, w: x @ w), [x, w], auto_cast="matmult", fast_relayout=False)
    assert exact.error < 1e-2
    assert "--no-fast-relayout" not in str(exact)
