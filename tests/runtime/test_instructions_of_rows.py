"""Instructions that walk along rows (scans, sorts, windows) or leave the core (devices, host), against NumPy loops."""

import numpy as np
import pytest
from one_instruction import Bench, run_one, sample

from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.collectives import KINDS, REDUCING, REDUCTIONS
from neuronx_cc.ir.isa.host import HostCall, slots
from neuronx_cc.ir.isa.program import Instr, Stream
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.runtime import Executable
from neuronx_cc.runtime.devices import replicate, run_devices

V, G = Stream.VECTOR, Stream.GPSIMD
F32 = np.float32
SCANS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.mark.parametrize("second", SCANS)
@pytest.mark.parametrize("first", SCANS)
def test_tensor_tensor_scan(rng, first, second):
    a, b, start = sample(rng, "f32", (33, 3, 7)), sample(rng, "f32", (33, 3, 7)), sample(rng, "f32", (33, 1))
    a, b = F32(0.5) * a, np.abs(b)
    for by_lane in (False, True):
        arrays = [(a, "f32"), (b, "f32"), *([(start, "f32")] if by_lane else [])]
        more = {"flags": ["ap0"]} if by_lane else {"imm": [0.75]}
        got = run_one("tensor_tensor_scan", V, arrays, ("f32", a.shape), [first, second], **more)
        state = start[:, 0] if by_lane else np.full(33, 0.75, F32)
        wanted = np.empty((33, 21), F32)
        for k, (left, right) in enumerate(zip(a.reshape(33, 21).T, b.reshape(33, 21).T, strict=True)):
            state = SCANS[second](SCANS[first](left, state), right)
            wanted[:, k] = state
        np.testing.assert_array_equal(got, wanted.reshape(a.shape))


@pytest.mark.parametrize("kind", ["add", "multiply", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_running_fold_of_one_element_repeated(rng, dtype, kind):
    a, one = sample(rng, dtype, (9, 40)), np.ones((9, 40), F32)
    got = run_one("tensor_tensor_scan", V, [(a, dtype), (one, "f32")], (dtype, a.shape), [kind, "multiply"], [1.5])
    wanted = SCANS[kind].accumulate(np.concatenate([np.full((9, 1), 1.5, F32), a.astype(F32)], 1), 1)[:, 1:]
    np.testing.assert_array_equal(got.astype(F32), wanted.astype(NUMPY_DTYPE[dtype]).astype(F32))


@pytest.mark.parametrize("kind", sorted(COMBINERS))
@pytest.mark.parametrize("dtype", ["s8", "s16", "s32", "u8", "u16", "u32", "pred"])
def test_int_scan_wraps(rng, dtype, kind):
    if dtype == "pred" and kind not in ("and", "or", "xor"):
        return
    x, start = sample(rng, dtype, (20, 2, 9)), sample(rng, dtype, (20, 1))
    combine = getattr(np, {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(kind, kind))
    for by_lane in (False, True):
        arrays = [(x, dtype), *([(start, dtype)] if by_lane else [])]
        more = {"flags": ["ap0"]} if by_lane else {"imm": [1]}
        got = run_one("int_scan", G, arrays, (dtype, x.shape), [kind], **more)
        state = start[:, 0] if by_lane else np.ones(20, x.dtype)
        for k, column in enumerate(x.reshape(20, 18).T):
            state = combine(state, column)
            np.testing.assert_array_equal(got.reshape(20, 18)[:, k], state)


@pytest.mark.parametrize("keys", [1, 2, 3])
@pytest.mark.parametrize("across", [False, True])
def test_sort_is_stable(rng, across, keys):
    x = rng.integers(-3, 3, (6, 3, 1 if across else 4, 19)).astype(np.int32)
    got = run_one("sort", G, [(x, "s32")], ("s32", x.shape), imm=[keys], flags=["across"] if across else [])
    rows = [x.transpose(1, 2, 0, 3).reshape(3, -1)] if across else [x[p, :, r] for p in range(6) for r in range(4)]
    done = [got.transpose(1, 2, 0, 3).reshape(3, -1)] if across else [got[p, :, r] for p in range(6) for r in range(4)]
    for row, result in zip(rows, done, strict=True):
        elements = sorted(zip(*row.tolist(), strict=True), key=lambda words: words[:keys])
        np.testing.assert_array_equal(result, np.array(elements).T)


@pytest.mark.parametrize("dtype", ["f32", "s32"])
@pytest.mark.parametrize("special", [np.nan, 0.0])
@pytest.mark.parametrize(("size", "wanted"), [(1, 1), (9, 9), (40, 3), (64, 4), (130, 7), (600, 4), (1000, 40)])
def test_topk_takes_the_first_of_equal_ones(rng, size, wanted, special, dtype):
    x = rng.integers(-20, 20, (5, 2, size)).astype(NUMPY_DTYPE[dtype])
    if dtype == "f32":
        x[0, 0, :1], x[1, 1, -1:], x[2, 0, size // 2], x[x == 19] = special, -np.inf, np.inf, -0.0
    bench = Bench()
    source = bench.load(x, dtype)
    values, places = bench.tile(dtype, (5, 2, wanted)), bench.tile("s32", (5, 2, wanted))
    bench.emit(Instr("topk", G, (values, places), (source,)))
    (got, where), _ = bench.run([values, places])
    for lane, row in np.ndindex(5, 2):
        bits = x[lane, row].view(np.int32).astype(np.int64)
        total = np.where(bits < 0, -(2**31) - bits - 1, bits) if dtype == "f32" else bits
        order = sorted(range(size), key=lambda k: (-total[k], k))[:wanted]
        np.testing.assert_array_equal(where[lane, row], order)
        np.testing.assert_array_equal(got[lane, row].view(np.int32), x[lane, row, order].view(np.int32))


@pytest.mark.parametrize("combine", ["add", "max"])
@pytest.mark.parametrize("keep", ["is_ge", "is_lt"])
@pytest.mark.parametrize("dtype", ["f32", "s32"])
def test_select_scatter(rng, dtype, keep, combine):
    size, stride, windows, start = 3, 2, 5, 7
    x = rng.integers(-4, 4, (4, 11)).astype(NUMPY_DTYPE[dtype])
    source = rng.integers(-9, 9, (4, windows)).astype(x.dtype)
    # the lanes hold elements [low, high) of x and windows [first, last)
    bounds = np.array([[0, 11, 0, 5, 0], [1, 11, 0, 5, 0], [0, 9, 1, 5, 0], [0, 11, 0, 3, 0]], np.int32)
    arrays = [(x, dtype), (source, dtype), (bounds, "s32")]
    got = run_one("select_scatter", G, arrays, (dtype, (4, 11)), [keep, combine], [start, size, stride])
    wanted = np.full((4, 11), start, x.dtype)
    for lane, (low, high, first, last, _) in enumerate(bounds):
        for window in range(first, last):
            inside = [k for k in range(window * stride, window * stride + size) if low <= k < high]
            chosen = inside[0]
            for k in inside[1:]:
                kept = x[lane, chosen] >= x[lane, k] if keep == "is_ge" else x[lane, chosen] < x[lane, k]
                chosen = chosen if kept else k
            one = wanted[lane, chosen]
            wanted[lane, chosen] = one + source[lane, window] if combine == "add" else max(one, source[lane, window])
    np.testing.assert_array_equal(got, wanted)


def test_host_call(rng):
    """Arrays lie one behind the other in the pieces of HBM that a call reads and writes."""
    bench = Bench()
    x, y = sample(rng, "f32", (3, 4)), sample(rng, "u8", (5,))
    given, given_bytes = slots([("f32", (3, 4)), ("u8", (5,))])
    made, made_bytes = slots([("u8", (5,)), ("f32", (4, 3))])
    source = bench.variable("input", "u8", (given_bytes,), 0)
    target = bench.variable("output", "u8", (made_bytes,), 0)
    bench.program.host_calls = [HostCall(6, -1, given, made)]
    bench.emit(Instr("host_call", Stream.SYNC, (target,), (source,), (), (0,)))
    bench.program.hbm_bytes = bench.hbm
    executable = Executable.from_program(bench.program, [])
    piece = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (x, y)])
    result = executable.run([piece], functions={6: lambda arrays: [arrays[1], arrays[0].T]}).outputs[0]
    np.testing.assert_array_equal(made[0].of(result), y)
    np.testing.assert_array_equal(made[1].of(result), x.T)
    with pytest.raises(RunError, match="host function 6 is not there"):
        executable.run([piece], functions={1: lambda arrays: list(arrays)})


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("dtype", ["f32", "s32"])
def test_collective(rng, dtype, kind):
    members = (2, 0, 1)
    blocks = {"all_gather": (False, True), "reduce_scatter": (True, False), "all_to_all": (True, True)}
    wide, result_wide = blocks.get(kind, (False, False))
    parts = [sample(rng, dtype, (3, 4, 5) if wide else (4, 5)) for _ in members]
    bench = Bench()
    shape = (3, 4, 5) if result_wide else (4, 5)
    source = bench.variable("input", dtype, parts[0].shape, 0)
    target = bench.variable("output", dtype, shape, 0)
    groups = ((0, 2), (1, 0)) if kind == "permute" else (members,)
    for number, reduction in enumerate(sorted(REDUCTIONS) if kind in REDUCING else [None]):
        if reduction in ("and", "or", "xor") and dtype == "f32":
            continue
        bench.program.records, bench.finished = [], {}
        bench.program.groups, bench.program.devices = [groups], (3, 1)
        alu = (kind, *([reduction] if reduction else []))
        bench.emit(Instr("collective", Stream.COLLECTIVE, (target,), (source,), alu, (0, 3)))
        bench.program.hbm_bytes = bench.hbm
        executables = replicate(Executable.from_program(bench.program, []))
        got = [result.outputs[0] for result in run_devices(executables, [[part] for part in parts])]
        ordered = [parts[member] for member in members]
        combined = ordered[0]
        for part in ordered[1:] if reduction else []:
            combined = REDUCTIONS[reduction](combined, part)
        for device, result in enumerate(got):
            place = members.index(device)
            wanted = {
                "all_reduce": combined,
                "reduce_scatter": combined[place],
                "all_gather": np.stack(ordered),
                "all_to_all": np.stack([part[place] for part in ordered]),
                "broadcast": ordered[0],
                "permute": {2: parts[0], 0: parts[1]}.get(device, np.zeros_like(parts[0])),
            }[kind]
            np.testing.assert_array_equal(result, wanted, err_msg=f"{number} {reduction}")
