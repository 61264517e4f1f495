"""Collectives between simulated devices: every kind, mode and spelling of groups, and devices that never come."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from generated import compile_text

from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.ir.isa.outside import Exchange
from neuronx_cc.runtime.devices import replicate, run_devices
from neuronx_cc.runtime.executable import Executable

Array = np.ndarray[Any, Any]


def run(body: str, inputs: Sequence[Array], replicas: int = 1, partitions: int = 1, more: str = "") -> list[Array]:
    """The result of each device; ``body`` ends in ROOT and takes x, whose type the first input gives."""
    dtype = {"float32": "f32", "int32": "s32", "bool": "pred", "bfloat16": "bf16"}[inputs[0].dtype.name]
    shape = f"{dtype}[{','.join(map(str, inputs[0].shape))}]"
    text = f"""HloModule m, replica_count={replicas}, num_partitions={partitions}
add {{
  a = {dtype}[] parameter(0)
  b = {dtype}[] parameter(1)
  ROOT c = {dtype}[] add(a, b)
}}
{more}
ENTRY main {{
  x = {shape} parameter(0)
{body.replace("SHAPE", shape)}
}}
"""
    compiled = compile_text(text)
    executable = Executable.from_program(compiled.program, compiled.constants)
    results = run_devices(replicate(executable), [[array] for array in inputs])
    return [result.outputs[0] for result in results]


def blocks(count: int, shape: tuple[int, ...] = (8, 3), dtype: str = "float32") -> list[Array]:
    random = np.random.default_rng(count)
    return [random.integers(-9, 9, shape).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_all_reduce_of_all(devices: int, dtype: str) -> None:
    xs = blocks(devices, dtype=dtype)
    for result in run("  ROOT r = SHAPE all-reduce(x), replica_groups={}, to_apply=add", xs, replicas=devices):
        np.testing.assert_array_equal(result, sum(xs))


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("f32[2] all-reduce(c), replica_groups={}, to_apply=add", [[2, 4], [2, 4]]),
        ("f32[4] all-gather(c), replica_groups={}, dimensions={0}", [[1, 2, 1, 2]] * 2),
        ("f32[1] reduce-scatter(c), replica_groups={}, dimensions={0}, to_apply=add", [[2], [4]]),
        ("f32[2] all-to-all(c), replica_groups={{0,1}}, dimensions={0}", [[1, 1], [2, 2]]),
        ("f32[2] collective-permute(c), source_target_pairs={{0,1}}", [[0, 0], [1, 2]]),
    ],
)
def test_constants_are_exchanged_too(collective: str, expected: list[list[float]]) -> None:
    """What a constant becomes on several devices is no matter of one device's semantics."""
    results = run(f"  c = f32[2] constant({{1, 2}})\n  ROOT r = {collective}", blocks(2), replicas=2)
    np.testing.assert_array_equal(results, expected)


@pytest.mark.parametrize(
    ("attributes", "members"),
    [
        ("replica_groups={}", {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}),
        ("replica_groups={{0},{1}}", {0: (0,), 1: (1,), 2: (2,), 3: (3,)}),
        ("channel_id=1, replica_groups={{0},{1}}", {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}),
        ("channel_id=1, replica_groups={{0,1}}", {0: (0, 1, 2, 3), 3: (0, 1, 2, 3)}),
        (
            "channel_id=1, use_global_device_ids=true, replica_groups={{0,3},{1,2}}",
            {0: (0, 3), 1: (1, 2), 2: (1, 2), 3: (0, 3)},
        ),
        ("channel_id=1, use_global_device_ids=true, replica_groups=[2,2]<=[2,2]T(1,0)", {0: (0, 2), 3: (1, 3)}),
    ],
)
def test_groups_of_two_replicas_of_two_partitions(attributes: str, members: dict[int, tuple[int, ...]]) -> None:
    xs = blocks(4)
    results = run(f"  ROOT r = SHAPE all-reduce(x), {attributes}, to_apply=add", xs, replicas=2, partitions=2)
    for device, group in members.items():
        np.testing.assert_array_equal(results[device], sum(xs[member] for member in group))


@pytest.mark.parametrize("axis", [0, 1])
def test_all_gather(axis: int) -> None:
    xs = blocks(4)
    shape = [8, 3]
    shape[axis] *= 4
    body = f"  ROOT r = f32[{shape[0]},{shape[1]}] all-gather(x), replica_groups={{}}, dimensions={{{axis}}}"
    for result in run(body, xs, replicas=4):
        np.testing.assert_array_equal(result, np.concatenate(xs, axis))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_members_are_in_the_order_of_their_group(order: tuple[int, ...]) -> None:
    xs = blocks(4)
    groups = "{{" + ",".join(map(str, order)) + "}}"
    gathered = run(f"  ROOT r = f32[32,3] all-gather(x), replica_groups={groups}, dimensions={{0}}", xs, replicas=4)
    scattered = run(
        f"  ROOT r = f32[2,3] reduce-scatter(x), replica_groups={groups}, dimensions={{0}}, to_apply=add",
        xs,
        replicas=4,
    )
    for device in range(4):
        np.testing.assert_array_equal(gathered[device], np.concatenate([xs[member] for member in order]))
        place = order.index(device)
        np.testing.assert_array_equal(scattered[device], sum(xs)[2 * place : 2 * place + 2])


@pytest.mark.parametrize(
    ("groups", "replicas", "partitions"),
    [
        ("{}", 4, 1),
        ("{{0,1,2,3}}, channel_id=1", 1, 4),
        ("{{2,0},{1,3}}", 4, 1),
        ("{{1,0}}", 2, 2),
        ("{{0},{1}}", 2, 1),
    ],
)
@pytest.mark.parametrize("number", ["s32", "s64", "u32"])
@pytest.mark.parametrize("slices", [1, 2])
def test_ragged_all_to_all(groups: str, replicas: int, partitions: int, number: str, slices: int) -> None:
    """Each member sends slices of 0 to 2 rows to each; they stand after each other where they arrive."""
    count = replicas * partitions
    given = [tuple(map(int, group.split(","))) for group in groups.split("}}")[0].strip("{}").split("},{") if group]
    together = given or [(0, 1, 2, 3)]
    if partitions == 2:
        together = [tuple(2 * replica + partition for replica in group) for group in together for partition in range(2)]
    size = len(together[0])
    shape = (size, slices)
    sizes = np.random.default_rng(count + slices).integers(0, 3, (count, *shape))
    xs = blocks(count, (2 * slices * size, 3))
    begins = np.stack([np.cumsum(each).reshape(shape) - each for each in sizes])
    targets, wanted = np.zeros_like(sizes), [np.full((15, 3), 7, np.float32) for _ in range(count)]
    for group in together:
        for place, receiver in enumerate(group):
            row = 1
            for sender, slice_ in np.ndindex(shape):
                device = group[sender]
                length, begin = sizes[device, place, slice_], begins[device, place, slice_]
                targets[device, place, slice_] = row
                wanted[receiver][row : row + length] = xs[device][begin : begin + length]
                row += length
    tables = np.stack([begins, sizes, targets]).reshape(3, count, -1)
    names = [f"{number}[{count},{size * slices}]", f"{number}[1,{size * slices}]", f"{number}[{size * slices}]"]
    lines = ["  r_id = u32[] replica-id()", "  p_id = u32[] partition-id()", "  zero = u32[] constant(0)"]
    lines += [f"  parts = u32[] constant({partitions})", "  base = u32[] multiply(r_id, parts)"]
    lines += ["  id = u32[] add(base, p_id)", "  seven = f32[] constant(7)"]
    lines += ["  out = f32[15,3] broadcast(seven), dimensions={}"]
    for name, table in zip("bst", tables, strict=True):
        rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in table)
        lines += [f"  {name} = {names[0]} constant({{{rows}}})"]
        lines += [
            f"  {name}_row = {names[1]} dynamic-slice({name}, id, zero), dynamic_slice_sizes={{1,{size * slices}}}",
            f"  {name}_list = {names[2]} reshape({name}_row)",
        ]
    lines += [
        f"  ROOT r = f32[15,3] ragged-all-to-all(x, out, b_list, s_list, t_list, s_list), replica_groups={groups}"
    ]
    results = run("\n".join(lines), xs, replicas=replicas, partitions=partitions)
    for device, result in enumerate(results):
        np.testing.assert_array_equal(result, wanted[device])


def test_ragged_all_to_all_of_slices_that_do_not_go_round() -> None:
    body = (
        "  n = s32[3] constant({0, 0, 0})\n  ROOT r = SHAPE ragged-all-to-all(x, x, n, n, n, n), replica_groups={{0,1}}"
    )
    with pytest.raises(CompileError, match="3 slices in groups of 2"):
        run(body, blocks(2), replicas=2)


@pytest.mark.parametrize("axis", [0, 1])
def test_all_to_all(axis: int) -> None:
    xs = blocks(4, (8, 12))
    body = f"  ROOT r = SHAPE all-to-all(x), replica_groups={{}}, dimensions={{{axis}}}"
    for device, result in enumerate(run(body, xs, replicas=4)):
        pieces = [np.split(x, 4, axis)[device] for x in xs]
        np.testing.assert_array_equal(result, np.concatenate(pieces, axis))


def test_all_to_all_of_several_operands() -> None:
    xs = blocks(2, (2, 3))
    body = """  a = f32[1,3] slice(x), slice={[0:1], [0:3]}
  b = f32[1,3] slice(x), slice={[1:2], [0:3]}
  t = (f32[1,3], f32[1,3]) all-to-all(a, b), replica_groups={{0,1}}
  c = f32[1,3] get-tuple-element(t), index=0
  d = f32[1,3] get-tuple-element(t), index=1
  ROOT r = f32[2,3] concatenate(c, d), dimensions={0}"""
    for device, result in enumerate(run(body, xs, replicas=2)):
        np.testing.assert_array_equal(result, np.stack([x[device] for x in xs]))


def test_permute_gives_zeros_to_who_is_no_target() -> None:
    xs = blocks(4)
    body = "  ROOT r = SHAPE collective-permute(x), source_target_pairs={{0,1},{1,2},{3,0}}"
    results = run(body, xs, replicas=4)
    for result, want in zip(results, [xs[3], xs[0], xs[1], np.zeros_like(xs[0])], strict=True):
        np.testing.assert_array_equal(result, want)


def test_broadcast_comes_from_the_first_member() -> None:
    xs = blocks(4)
    body = "  ROOT r = SHAPE collective-broadcast(x), replica_groups={{2,0},{1,3}}"
    for result, source in zip(run(body, xs, replicas=4), (2, 1, 2, 1), strict=True):
        np.testing.assert_array_equal(result, xs[source])


@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter"])
def test_reduction_by_any_computation(op: str) -> None:
    more = """odd {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  m = f32[] multiply(a, b)
  n = f32[] negate(b)
  k = f32[] maximum(m, n)
  ROOT c = f32[] subtract(k, a)
}"""
    xs = blocks(4)
    total = xs[0]
    for x in xs[1:]:
        total = np.maximum(total * x, -x) - total
    shape, extra = ("f32[2,3]", ", dimensions={0}") if op == "reduce-scatter" else ("f32[8,3]", "")
    body = f"  ROOT r = {shape} {op}(x), replica_groups={{}}{extra}, to_apply=odd"
    for device, result in enumerate(run(body, xs, replicas=4, more=more)):
        np.testing.assert_array_equal(result, total[2 * device : 2 * device + 2] if extra else total)


def test_several_operands_and_asynchronous_form() -> None:
    xs = blocks(2)
    body = """  y = SHAPE negate(x)
  s = (SHAPE, SHAPE) all-reduce-start(x, y), replica_groups={}, to_apply=add
  d = (SHAPE, SHAPE) all-reduce-done(s)
  a = SHAPE get-tuple-element(d), index=0
  b = SHAPE get-tuple-element(d), index=1
  ROOT r = SHAPE multiply(a, b)"""
    for result in run(body, xs, replicas=2):
        np.testing.assert_array_equal(result, -sum(xs) * sum(xs))


def test_booleans_and_narrow_floats() -> None:
    flags = [array > 0 for array in blocks(3)]
    for result in run("  ROOT r = SHAPE all-reduce(x), replica_groups={}, to_apply=add", flags, replicas=3):
        np.testing.assert_array_equal(result, flags[0] | flags[1] | flags[2])
    import ml_dtypes

    xs = [array.astype(ml_dtypes.bfloat16) for array in blocks(3)]
    for result in run("  ROOT r = SHAPE all-reduce(x), replica_groups={}, to_apply=add", xs, replicas=3):
        np.testing.assert_array_equal(result.astype(np.float32), sum(x.astype(np.float32) for x in xs))


def test_device_numbers() -> None:
    body = """  p = u32[] partition-id()
  q = u32[] replica-id()
  ten = u32[] constant(10)
  t = u32[] multiply(q, ten)
  s = u32[] add(t, p)
  f = f32[] convert(s)
  b = SHAPE broadcast(f), dimensions={}
  ROOT r = SHAPE add(x, b)"""
    xs = blocks(6)
    for device, result in enumerate(run(body, xs, replicas=2, partitions=3)):
        np.testing.assert_array_equal(result, xs[device] + 10 * (device // 3) + device % 3)


def test_values_do_not_depend_on_threads() -> None:
    random = np.random.default_rng(0)
    xs = [random.standard_normal((64, 64)).astype(np.float32) * 10.0 ** (3 * i) for i in range(8)]
    body = """  r1 = SHAPE all-reduce(x), replica_groups={}, to_apply=add
  n = SHAPE sine(r1)
  ROOT r = SHAPE all-reduce(n), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=add"""
    first = run(body, xs, replicas=8)
    for _ in range(3):
        for a, b in zip(first, run(body, xs, replicas=8), strict=True):
            np.testing.assert_array_equal(a, b)


def test_device_that_fails_ends_the_others() -> None:
    compiled = compile_text(
        "HloModule m, replica_count=2\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT c = f32[] add(a, b)\n}\nENTRY e {\n  x = f32[4] parameter(0)\n"
        "  ROOT r = f32[4] all-reduce(x), replica_groups={}, to_apply=sum\n}\n"
    )
    executable = Executable.from_program(compiled.program, compiled.constants)
    with pytest.raises(RunError, match="expected \\[4\\]"):
        run_devices(replicate(executable), [[np.zeros(4, np.float32)], [np.zeros(5, np.float32)]])
    with pytest.raises(RunError, match="--devices 2"):
        run_devices([executable], [[np.zeros(4, np.float32)]])
    with pytest.raises(RunError, match="other devices"):
        executable.run([np.zeros(4, np.float32)])


def test_members_out_of_range_are_refused() -> None:
    with pytest.raises(CompileError, match="device 4"):
        run("  ROOT r = SHAPE all-reduce(x), replica_groups={{0,4}}, to_apply=add", blocks(2), replicas=2)


def test_deadlock_names_who_waits_for_whom() -> None:
    from neuronx_cc.runtime.fabric import Fabric

    fabric = Fabric([[((0, 1, 2),), ((0, 1),)]] * 3)
    x = np.zeros(3, np.float32)

    def work(device: int) -> None:
        if device < 2:
            fabric.port(device).meet(Exchange("all_reduce", "add", "f32", (3,)), device, x)

    with pytest.raises(RunError, match="device 0 waits in all_reduce for 1, 2; device 1 waits in all_reduce for 0"):
        fabric.run(work)
