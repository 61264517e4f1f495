"""Donated parameters share their memory with results where nothing is lost by it, and never otherwise.

Every program runs with the race check on and is compared with XLA.
"""

import zlib
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import Array, Compiled, assert_close, check_text, compile_text
from hypothesis import given, settings
from jax import lax
from whole_number_graphs import whole_number_modules
from xla_oracle import run_text

from neuronx_cc.driver.inspect import describe, summary
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr, Program, Variable
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import itemsize
from neuronx_cc.runtime.executable import Executable

RANDOM = np.random.default_rng(7)


def normal(*dims: int) -> Array:
    return RANDOM.standard_normal(dims, np.float32)


def module(aliases: str, body: str, extra: str = "", donors: str = "") -> str:
    header = f", buffer_donor={{ {donors} }}" if donors else ""
    return f"HloModule m, input_output_alias={{ {aliases} }}{header}\n{extra}\nENTRY main {{\n{body}\n}}\n"


def of_kind(program: Program, kind: str) -> dict[int, Variable]:
    return {variable.index: variable for variable in program.variables if variable.kind == kind}


def shared(program: Program) -> dict[int, int]:
    """Result -> the parameter in whose memory it lies."""
    inputs = of_kind(program, "input")
    found = {}
    for index, output in of_kind(program, "output").items():
        for number, variable in inputs.items():
            if output.offset == variable.offset:
                assert output.alias == number
                found[index] = number
    return found


def moved_bytes(program: Program) -> int:
    """Bytes that DMA moves, of programs without loops."""
    moves = [r for r in program.records if isinstance(r, Instr) and r.stream in DMA_STREAMS and r.outs and r.ins]
    return sum(prod(move.outs[0].counts) * itemsize(move.outs[0].dtype) for move in moves)


def check(text: str, expected: dict[int, int], *inputs: Array) -> Compiled:
    """Right values, inputs left alone, and just the ``expected`` results in the memory of parameters."""
    before = [array.copy() for array in inputs]
    compiled = check_text(text, *inputs)
    executable = Executable.from_program(compiled.program, compiled.constants)
    first, second = (executable.run(inputs).outputs for _ in range(2))
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, two)
    for array, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert shared(compiled.program) == expected
    return compiled


ADD = """
  x = f32[{n}] parameter(0)
  y = f32[{n}] parameter(1)
  s = f32[{n}] add(x, y)
  p = f32[{n}] multiply(x, s)
  ROOT r = (f32[{n}], f32[{n}]) tuple(s, p)
"""


@pytest.mark.parametrize("size", [4, 3000, 300_000])
def test_elementwise_results_overwrite_what_they_read(size):
    text = module("{0}: (1, {}, may-alias), {1}: (0, {}, may-alias)", ADD.format(n=size))
    compiled = check(text, {0: 1, 1: 0}, normal(size), normal(size))
    assert compiled.program.hbm_bytes <= 2 * 4 * size + 512


def test_the_alias_stands_in_the_signature_also_when_memory_is_not_shared():
    body = "x = s32[4] parameter(0)\n ROOT n = f32[4] convert(x)"
    program = compile_text(module("{}: (0, {}, may-alias)", body)).program
    assert of_kind(program, "output")[0].alias == 0
    assert not shared(program)


READ_LATER = """
  x = f32[512,64] parameter(0)
  w = f32[64,64] parameter(1)
  s = f32[512,64] {op}
  d = f32[512,64] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  e = f32[512,64] exponential(s)
  t = f32[512,64] add(d, e)
  ROOT r = (f32[512,64], f32[512,64]) tuple(s, t)
"""


@pytest.mark.parametrize("op", ["reverse(x), dimensions={0}", "add(x, x)", "copy(x)"])
def test_a_parameter_that_is_read_after_its_result_is_written(op):
    text = module("{0}: (0, {}, may-alias)", READ_LATER.format(op=op))
    check(text, {0: 0} if op == "copy(x)" else {}, normal(512, 64), normal(64, 64))


MOVING = [
    ("f32[96,96]", "transpose(x), dimensions={1,0}"),
    ("f32[96,96]", "reverse(x), dimensions={1}"),
    ("f32[96,96]", "add(x, t)"),
    ("f32[96,96]", "dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    ("f32[96,96]", "concatenate(low, high), dimensions={0}"),
]


@pytest.mark.parametrize(("shape", "op"), MOVING)
@pytest.mark.parametrize("kind", ["may", "must"])
def test_results_that_move_elements(shape, op, kind):
    body = f"""
      x = {shape} parameter(0)
      t = {shape} transpose(x), dimensions={{1,0}}
      low = f32[95,96] slice(x), slice={{[1:96], [0:96]}}
      high = f32[1,96] slice(x), slice={{[0:1], [0:96]}}
      ROOT r = {shape} {op}"""
    check(module(f"{{}}: (0, {{}}, {kind}-alias)", body), {0: 0} if kind == "must" else {}, normal(96, 96))


@pytest.mark.parametrize("kind", ["may", "must"])
def test_swapped_parameters(kind):
    body = """
      x = f32[64,32] parameter(0)
      y = f32[64,32] parameter(1)
      ROOT r = (f32[64,32], f32[64,32]) tuple(y, x)"""
    text = module(f"{{0}}: (0, {{}}, {kind}-alias), {{1}}: (1, {{}}, {kind}-alias)", body)
    check(text, {0: 0, 1: 1} if kind == "must" else {}, normal(64, 32), normal(64, 32))


def test_a_parameter_that_is_returned():
    body = """
      x = f32[64,32] parameter(0)
      f = f32[2048] reshape(x)
      b = f32[64,32] reshape(f)
      n = f32[64,32] negate(x)
      ROOT r = (f32[64,32], f32[64,32], f32[64,32]) tuple(b, n, x)"""
    compiled = check(module("{0}: (0, {}, may-alias)", body), {0: 0}, normal(64, 32))
    check(module("{2}: (0, {}, may-alias)", body), {2: 0}, normal(64, 32))
    check(module("{1}: (0, {}, may-alias)", body), {}, normal(64, 32))
    assert compiled.program.hbm_bytes < 4 * 64 * 32 * 4


UPDATE = """
  x = f32[64,128,32] parameter(0)
  u = f32[64,1,32] parameter(1)
  i = s32[] parameter(2)
  z = s32[] constant(0)
  {before}
  d = f32[64,128,32] dynamic-update-slice(x, {update}, z, i, z)
  {after}
"""
WHOLE = 64 * 128 * 32 * 4


def updated(after: str, before: str = "", update: str = "u", donors: str = "", alias: str = "{0}: (0, {}, may-alias)"):
    return module(alias, UPDATE.format(before=before, update=update, after=after), donors=donors)


def update_inputs(position: int = 5) -> tuple[Array, ...]:
    return normal(64, 128, 32), normal(64, 1, 32), np.int32(position)


def test_a_cache_is_updated_without_a_copy():
    after = "n = f32[64,1,32] negate(u)\n ROOT r = (f32[64,128,32], f32[64,1,32]) tuple(d, n)"
    compiled = check(updated(after), {0: 0}, *update_inputs())
    assert moved_bytes(compiled.program) < WHOLE // 16
    assert compiled.program.hbm_bytes < WHOLE + WHOLE // 8
    apart = compile_text(updated(after).replace(", input_output_alias={ {0}: (0, {}, may-alias) }", ""))
    assert moved_bytes(apart.program) > WHOLE


def test_a_cache_that_is_updated_and_read():
    after = """
      q = f32[64,8,128] parameter(3)
      s = f32[64,8,32] dot(q, d),
        lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
      ROOT r = (f32[64,128,32], f32[64,8,32]) tuple(d, s)"""
    compiled = check(updated(after), {0: 0}, *update_inputs(127), normal(64, 8, 128))
    assert moved_bytes(compiled.program) < WHOLE * 3 // 2


def test_updates_one_after_the_other():
    after = """
      j = s32[] add(i, i)
      n = f32[64,1,32] negate(u)
      e = f32[64,128,32] dynamic-update-slice(d, n, z, j, z)
      ROOT r = f32[64,128,32] copy(e)"""
    compiled = check(updated(after, alias="{}: (0, {}, may-alias)"), {0: 0}, *update_inputs())
    assert moved_bytes(compiled.program) < WHOLE // 16


def test_an_update_between_that_is_read_later():
    """The first update lies in the parameter's memory until the dot has read it; the result may not be there."""
    after = """
      n = f32[64,128,32] broadcast(u.1), dimensions={0,2}
      places = f32[64,128,32] iota(), iota_dimension=1
      moved = f32[64,128,32] add(n, places)
      m = f32[64,128,32] sine(moved)
      w = f32[32,32] parameter(3)
      p = f32[64,128,32] dot(m, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
      o = f32[64,128,32] dot(p, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
      k = f32[64,128,32] sine(o)
      s = f32[64,128,32] dot(d, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
      v = f32[64,128,32] dot(s, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
      a = f32[64,128,32] dot(v, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
      b = f32[64,128,32] dot(a, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
      y = f32[64,128,32] add(d, b)
      g = f32[64,128,32] cosine(y)
      ROOT r = (f32[64,128,32], f32[64,128,32]) tuple(k, g)"""
    check(updated(after, "u.1 = f32[64,32] reshape(u)"), {}, *update_inputs(), normal(32, 32) * np.float32(0.1))


def test_an_update_that_reads_its_array():
    before = "w = f32[64,96,32] slice(x), slice={[0:64], [0:96], [0:32]}"
    body = updated("ROOT r = f32[64,128,32] copy(d)", before, "w", alias="{}: (0, {}, may-alias)")
    check(body, {}, *update_inputs(16))


def test_a_result_that_is_updated_further():
    after = """
      e = f32[64,128,32] dynamic-update-slice(d, u, z, z, z)
      ROOT r = (f32[64,128,32], f32[64,128,32]) tuple(d, e)"""
    check(updated(after), {0: 0}, *update_inputs())
    check(updated(after, alias="{1}: (0, {}, may-alias)"), {1: 0}, *update_inputs())


def test_a_buffer_for_any_result():
    after = "ROOT r = (f32[64,1,32], f32[64,128,32]) tuple(u, d)"
    compiled = check(updated(after, alias="", donors="(0, {}), (1, {})"), {0: 1, 1: 0}, *update_inputs())
    assert moved_bytes(compiled.program) < WHOLE // 16


def test_the_memory_of_a_parameter_serves_as_scratch():
    """The update is no result; it is made in the parameter's memory, which no result takes."""
    after = """
      e = f32[64,128,32] exponential(d)
      a = f32[64,128,32] reverse(e), dimensions={0}
      ROOT r = f32[64,128,32] copy(a)"""
    compiled = check(updated(after, alias="{}: (0, {}, may-alias)"), {0: 0}, *update_inputs())
    assert compiled.program.hbm_bytes < 3 * WHOLE


def test_wide_integers_share_memory():
    body = "x = s64[4] parameter(0)\n ROOT n = s64[4] negate(x)"
    check(module("{}: (0, {}, may-alias)", body), {0: 0}, np.arange(4))
    body = """
      x = s64[4] parameter(0)
      y = s64[4] parameter(1)
      n = s64[4] negate(y)
      ROOT r = (s64[4], s64[4]) tuple(n, x)"""
    check(module("{0}: (1, {}, must-alias), {1}: (0, {}, may-alias)", body), {0: 1, 1: 0}, np.arange(4), np.arange(4))


def donated_text(function, *inputs) -> str:
    lowered = jax.jit(function, keep_unused=True, donate_argnums=0).lower(*inputs)
    return lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)


def scatter_rows(table, rows, values):
    return table.at[rows].set(values, unique_indices=True)


def scatter_sums(table, rows, values):
    return table.at[rows].add(values)


@pytest.mark.parametrize(("function", "width"), [(scatter_rows, 512), (scatter_sums, 512), (scatter_sums, 4)])
def test_scatters_into_a_donated_table(function, width):
    inputs = normal(600, width), np.asarray([3, 599, 7], np.int32), normal(3, width)
    compiled = check(donated_text(function, *inputs), {0: 0}, *inputs)
    assert compiled.program.hbm_bytes < 2 * inputs[0].nbytes


def loop(table, rows):
    def body(index, state):
        return lax.dynamic_update_slice(state, jnp.sin(rows), (index * 3, 0))

    return lax.fori_loop(0, 5, body, table)


def test_a_loop_keeps_its_state_in_a_donated_parameter():
    inputs = normal(2000, 256), normal(2, 256)
    compiled = check(donated_text(loop, *inputs), {0: 0}, *inputs)
    assert moved_bytes(compiled.program) < inputs[0].nbytes // 16


def loop_then_update(table, rows):
    return lax.dynamic_update_slice(loop(table, rows), rows, (100, 0))


def test_an_update_after_a_loop():
    inputs = normal(2000, 256), normal(2, 256)
    compiled = check(donated_text(loop_then_update, *inputs), {0: 0}, *inputs)
    assert moved_bytes(compiled.program) < inputs[0].nbytes // 16


def loop_and_original(table, rows):
    changed = loop(table, rows)
    return changed, jnp.sum(table * changed[:1])


def test_a_loop_beside_another_reader():
    inputs = normal(2000, 256), normal(2, 256)
    check(donated_text(loop_and_original, *inputs), {}, *inputs)


def update_in_a_loop(table, rows, weight):
    """What an iteration updates in place is read again after the new state is computed."""

    def body(index, states):
        state, total = states
        changed = lax.dynamic_update_slice(state, rows, (index, 0))
        fresh = jnp.tile(rows + index, (state.shape[0] // 2, 1)) @ weight
        late = changed @ weight @ weight @ weight @ weight
        return fresh, total + jnp.sum(late * changed, axis=1)

    return lax.fori_loop(0, 3, body, (table, jnp.zeros(table.shape[0])))


def test_state_that_is_updated_and_replaced():
    inputs = normal(600, 128), normal(2, 128), normal(128, 128) * np.float32(0.1)
    check(donated_text(update_in_a_loop, *inputs), {0: 0}, *inputs)


def branches(table, rows):
    def update(state):
        return lax.dynamic_update_slice(state, rows, (5, 0))

    return lax.cond(rows[0, 0] > 0, update, lambda state: state * 2, table)


@pytest.mark.parametrize("sign", [-1, 1])
def test_branches(sign):
    inputs = normal(600, 256), np.full((2, 256), sign, np.float32)
    check_text(donated_text(branches, *inputs), *inputs)


def adam(state, gradient):
    weight, first, second, count = state
    first = 0.9 * first + 0.1 * gradient
    second = 0.99 * second + 0.01 * gradient * gradient
    count = count + 1
    rate = 1e-3 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    return weight - rate * first / (jnp.sqrt(second) + 1e-8), first, second, count


def test_an_optimizer_step_writes_in_place():
    state = (normal(700, 130), normal(700, 130), np.abs(normal(700, 130)), np.float32(3))
    inputs = state, normal(700, 130)
    compiled = check(donated_text(adam, *inputs), {0: 0, 1: 1, 2: 2, 3: 3}, *jax.tree.leaves(inputs))
    assert compiled.program.hbm_bytes < 4.1 * state[0].nbytes


def summed_in_a_loop(total, x, y):
    return lax.fori_loop(0, 3, lambda i, s: s - 0.5 * jnp.einsum("erk,ern->ekn", x * (i + 1), y), total)


def subtracted(weight, x, y):
    return weight - 0.5 * jnp.einsum("erk,ern->ekn", x, y)


@pytest.mark.parametrize("function", [summed_in_a_loop, subtracted])
def test_contractions_write_where_they_read_what_they_add_to(function):
    inputs = normal(6, 300, 180), normal(6, 5, 300), normal(6, 5, 180)
    compiled = check(donated_text(function, *inputs), {0: 0}, *inputs)
    assert compiled.program.hbm_bytes < 1.5 * inputs[0].nbytes


@pytest.mark.parametrize("reads", ["dot(x, t)", "dot(t, x)"])
def test_contractions_do_not_write_what_they_multiply(reads):
    body = f"""
      x = f32[256,256] parameter(0)
      t = f32[256,256] parameter(1)
      d = f32[256,256] {reads}, lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
      ROOT r = f32[256,256] add(d, x)"""
    check(module("{}: (0, {}, may-alias)", body), {}, normal(256, 256), normal(256, 256))


def test_sums_over_devices_lie_where_their_operand_did():
    body = """
      x = f32[512,512] parameter(0)
      e = f32[512,512] exponential(x)
      a = f32[512,512] all-reduce(e), replica_groups={{0,1}}, to_apply=add
      ROOT r = f32[512,512] tanh(a)"""
    add = "add { p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] add(p, q) }"
    text = f"HloModule m, num_partitions=2\n{add}\nENTRY main {{{body}\n}}\n"
    assert compile_text(text).program.hbm_bytes < 3.1 * 4 * 512 * 512


def test_a_reshaped_parameter_is_overwritten():
    def step(table, flat):
        return (table.reshape(-1) + flat).reshape(table.shape)

    inputs = normal(40, 96), normal(40 * 96)
    check(donated_text(step, *inputs), {0: 0}, *inputs)


def test_the_file_keeps_what_is_shared_and_inspect_shows_it():
    body = """
      x = f32[256] parameter(0)
      y = f32[256] parameter(1)
      n = f32[256] negate(x)
      t = f32[256] reverse(y), dimensions={0}
      ROOT r = (f32[256], f32[256]) tuple(n, t)"""
    inputs = normal(256), normal(256)
    compiled = check(module("{0}: (0, {}, may-alias), {1}: (1, {}, may-alias)", body), {0: 0}, *inputs)
    neff = Neff(compiled.program, compiled.constants, {}, "trn1", "0", "m", [])
    data = neff.to_bytes()
    loaded = Neff.from_bytes(data)
    assert shared(loaded.program) == {0: 0}
    outputs = Executable.from_program(loaded.program, loaded.constants).run(inputs).outputs
    np.testing.assert_array_equal(outputs[0], -inputs[0])
    np.testing.assert_array_equal(outputs[1], inputs[1][::-1])
    document = summary(loaded, len(data))
    assert [entry["shared"] for entry in document["outputs"]] == [True, False]
    assert document["memory"]["by_kind"]["output"] == {"count": 2, "bytes": 1024}
    text = "\n".join(describe(document))
    assert "(buffer of input 0)" in text
    assert "(buffer of input 1, memory of its own)" in text


def test_traffic_of_shared_memory():
    """What is read there is the parameter, what is written the result."""
    compiled = compile_text(module("{0}: (0, {}, may-alias)", ADD.format(n=4096)))
    report = Executable.from_program(compiled.program, compiled.constants).run([], timing_only=True).report
    counts = report.summary
    assert counts["input_queue_bytes"] == 2 * 4096 * 4
    assert counts["output_queue_bytes"] == 2 * 4096 * 4


def donated(text: str, random: np.random.Generator) -> str:
    """A module whose root is a tuple, with parameters given up for results of their types at random."""
    entry = parse_text(text).entry
    assert isinstance(entry.root, hlo.OpResult)
    free = [int(number) for number in random.permutation(len(entry.block.args))]
    aliases = []
    for index in random.permutation(len(entry.root.op.operands)):
        wanted = entry.root.op.operands[int(index)].type
        number = next((number for number in free if entry.block.args[number].type == wanted), None)
        if number is not None:
            free.remove(number)
            aliases.append(f"{{{index}}}: ({number}, {{}}, {random.choice(['may', 'must'])}-alias)")
    donors = ", ".join(f"({number}, {{}})" for number in free)
    header = f"input_output_alias={{ {', '.join(aliases)} }}, buffer_donor={{ {donors} }}"
    return text.replace("HloModule random", f"HloModule random, {header}", 1)


def check_random(text: str) -> None:
    random = np.random.default_rng(zlib.crc32(text.encode()))
    shapes = [hlo.shape_of(argument) for argument in parse_text(text).entry.block.args]
    inputs = [random.integers(-3, 4, shape.dims).astype(shape.numpy_dtype) for shape in shapes]
    results = compile_text(donated(text, random)).run(inputs)
    for result, want in zip(results, run_text(text, inputs), strict=True):
        assert_close(result, want, 0.0)


@settings(max_examples=8)
@given(text=whole_number_modules())
def test_random_modules(text: str) -> None:
    check_random(text)


@pytest.mark.slow
@settings(max_examples=150)
@given(text=whole_number_modules())
def test_many_random_modules(text: str) -> None:
    check_random(text)
