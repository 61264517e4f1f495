"""Graphs as PyTorch/XLA hands them over: no counts of devices, tokens among the arrays, markers."""

from pathlib import Path

import numpy as np
import pytest

from neuronx_cc.driver.cli import main
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError

ADD = """HloModule SyncTensorsGraph.9

%AddComputation.1 (x.2: f32[], y.3: f32[]) -> f32[] {
  %x.2 = f32[] parameter(0)
  %y.3 = f32[] parameter(1)
  ROOT %add.4 = f32[] add(f32[] %x.2, f32[] %y.3)
}

"""
RING = 'custom_call_target="AwsNeuronTransferWithStaticRing", api_version=API_VERSION_UNSPECIFIED'


COUNT = "devices"
"""A dim of as many."""


def groups(*rows):
    return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows) + "}"


def everyone(count):
    return groups(range(count))


def data_parallel(count):
    """Gradients of a linear layer, summed with the token and scaled."""
    return f"""{ADD}ENTRY %SyncTensorsGraph.9 (p0: f32[6,4], p1: f32[6,3], p2: f32[]) -> (f32[4,3], f32[3], f32[]) {{
  %p2 = f32[] parameter(2), frontend_attributes={{neff_input_names="input2"}}
  %p1 = f32[6,3]{{1,0}} parameter(1), frontend_attributes={{neff_input_names="input1"}}
  %p0 = f32[6,4]{{1,0}} parameter(0), frontend_attributes={{neff_input_names="input0"}}
  %ring = f32[6,4]{{1,0}} custom-call(f32[6,4]{{1,0}} %p0), {RING}
  %transpose.1 = f32[4,6]{{0,1}} transpose(f32[6,4]{{1,0}} %ring), dimensions={{1,0}}
  %dot.1 = f32[4,3]{{1,0}} dot(f32[4,6]{{0,1}} %transpose.1, f32[6,3]{{1,0}} %p1), \
lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %zero = f32[] constant(0)
  %reduce.1 = f32[3]{{0}} reduce(f32[6,3]{{1,0}} %p1, f32[] %zero), dimensions={{0}}, to_apply=%AddComputation.1
  %all-reduce.1 = (f32[4,3]{{1,0}}, f32[3]{{0}}, f32[]) all-reduce(f32[4,3]{{1,0}} %dot.1, f32[3]{{0}} %reduce.1, \
f32[] %p2), replica_groups={everyone(count)}, constrain_layout=true, to_apply=%AddComputation.1
  %w = f32[4,3]{{1,0}} get-tuple-element((f32[4,3]{{1,0}}, f32[3]{{0}}, f32[]) %all-reduce.1), index=0
  %b = f32[3]{{0}} get-tuple-element((f32[4,3]{{1,0}}, f32[3]{{0}}, f32[]) %all-reduce.1), index=1
  %t = f32[] get-tuple-element((f32[4,3]{{1,0}}, f32[3]{{0}}, f32[]) %all-reduce.1), index=2
  ROOT %tuple.1 = (f32[4,3]{{1,0}}, f32[3]{{0}}, f32[]) tuple(%w, %b, %t), \
frontend_attributes={{neff_output_names="output0,output1,output2"}}
}}
"""


def sum_of_gradients(inputs):
    totals = [sum(x.T @ y for x, y, _ in inputs), sum(y.sum(0) for _, y, _ in inputs), sum(t for *_, t in inputs)]
    return [totals for _ in inputs]


def tensor_parallel(count):
    """A column-parallel layer, gathered along features, in groups of two, and a row-parallel one of a one-tuple."""
    pairs = groups(*([n, n + 1] for n in range(0, count, 2)))
    return f"""{ADD}ENTRY %main (p0: f32[5,4], p1: f32[4,3], p2: f32[]) -> (f32[5,6], f32[], f32[5,3]) {{
  %p0 = f32[5,4]{{1,0}} parameter(0)
  %p1 = f32[4,3]{{1,0}} parameter(1)
  %p2 = f32[] parameter(2)
  %dot.1 = f32[5,3]{{1,0}} dot(%p0, %p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %all-gather.1 = (f32[5,6]{{1,0}}, f32[]) all-gather(f32[5,3]{{1,0}} %dot.1, f32[] %p2), \
replica_groups={pairs}, dimensions={{1}}
  %whole = f32[5,6]{{1,0}} get-tuple-element(%all-gather.1), index=0
  %token = f32[] get-tuple-element(%all-gather.1), index=1
  %all-reduce.1 = (f32[5,3]{{1,0}}) all-reduce(%dot.1), replica_groups={pairs}, to_apply=%AddComputation.1
  %sum = f32[5,3]{{1,0}} get-tuple-element(%all-reduce.1), index=0
  ROOT %r = (f32[5,6]{{1,0}}, f32[], f32[5,3]{{1,0}}) tuple(%whole, %token, %sum)
}}
"""


def gathered_features(inputs):
    products = [x @ w for x, w, _ in inputs]
    made = []
    for device, (_, _, token) in enumerate(inputs):
        first = device - device % 2
        pair = products[first : first + 2]
        made.append([np.concatenate(pair, 1), token, pair[0] + pair[1]])
    return made


def fully_sharded(count):
    """Weights of two shapes and types gathered, their gradients scattered with a token among them."""
    every, rows = everyone(count), 2 * count
    return f"""{ADD}ENTRY %main (p0: f32[2,3], p1: bf16[2], p2: f32[]) -> (f32[2,3], bf16[2], f32[]) {{
  %p0 = f32[2,3]{{1,0}} parameter(0)
  %p1 = bf16[2]{{0}} parameter(1)
  %p2 = f32[] parameter(2)
  %ag = (f32[{rows},3]{{1,0}}, bf16[{rows}]{{0}}, f32[]) all-gather(%p0, %p1, %p2), \
replica_groups={every}, dimensions={{0}}
  %a = f32[{rows},3]{{1,0}} get-tuple-element(%ag), index=0
  %b = bf16[{rows}]{{0}} get-tuple-element(%ag), index=1
  %t = f32[] get-tuple-element(%ag), index=2
  %n = f32[{rows},3]{{1,0}} add(%a, %a)
  %rs = (f32[2,3]{{1,0}}, bf16[2]{{0}}, f32[]) reduce-scatter(%n, %b, %t), \
replica_groups={every}, constrain_layout=true, dimensions={{0}}, to_apply=%AddComputation.1
  %x = f32[2,3]{{1,0}} get-tuple-element(%rs), index=0
  %y = bf16[2]{{0}} get-tuple-element(%rs), index=1
  %z = f32[] get-tuple-element(%rs), index=2
  ROOT %r = (f32[2,3]{{1,0}}, bf16[2]{{0}}, f32[]) tuple(%x, %y, %z)
}}
"""


def scattered(inputs):
    return [[2 * len(inputs) * w, len(inputs) * b, t] for w, b, t in inputs]


def pipeline(count):
    """Activations handed to the next stage, and a token of integers summed beside arrays."""
    pairs = groups(*([n, n + 1] for n in range(count - 1)))
    return f"""{ADD}ENTRY %main (p0: f32[3,4], p1: s32[2], p2: f32[]) -> (f32[3,4], s32[2], f32[]) {{
  %p0 = f32[3,4]{{1,0}} parameter(0)
  %p1 = s32[2]{{0}} parameter(1)
  %p2 = f32[] parameter(2)
  %next = f32[3,4]{{1,0}} collective-permute(%p0), source_target_pairs={pairs}
  %ar = (f32[], s32[2]{{0}}) all-reduce(%p2, %p1), replica_groups={everyone(count)}, to_apply=%AddComputation.1
  %t = f32[] get-tuple-element(%ar), index=0
  %n = s32[2]{{0}} get-tuple-element(%ar), index=1
  ROOT %r = (f32[3,4]{{1,0}}, s32[2]{{0}}, f32[]) tuple(%next, %n, %t)
}}
"""


def handed_on(inputs):
    first = [np.zeros_like(inputs[0][0]), *(x for x, _, _ in inputs)]
    return [[first[n], sum(i for _, i, _ in inputs), sum(t for *_, t in inputs)] for n in range(len(inputs))]


def ring_of_experts(count):
    """Rows handed around a ring by a permutation with a channel and one without, then dealt out; groups backwards."""
    ring = groups(*([n, (n + 1) % count] for n in range(count)))
    every = groups(reversed(range(count)))
    return f"""{ADD}ENTRY %main (p0: bf16[3,7], p1: u8[5], p2: f32[{count},3]) -> (bf16[3,7], u8[5], f32[{count},3]) {{
  %p0 = bf16[3,7]{{1,0}} parameter(0)
  %p1 = u8[5]{{0}} parameter(1)
  %p2 = f32[{count},3]{{1,0}} parameter(2)
  %x = bf16[3,7]{{1,0}} collective-permute(bf16[3,7]{{1,0}} %p0), source_target_pairs={ring}, channel_id=3
  %y = u8[5]{{0}} collective-permute(u8[5]{{0}} %p1), source_target_pairs={ring}
  %z = f32[{count},3]{{1,0}} all-to-all(%p2), replica_groups={every}, dimensions={{0}}
  ROOT %r = (bf16[3,7]{{1,0}}, u8[5]{{0}}, f32[{count},3]{{1,0}}) tuple(%x, %y, %z)
}}
"""


def around(inputs):
    last = len(inputs) - 1
    dealt = [np.stack([rows[last - n] for _, _, rows in reversed(inputs)]) for n in range(len(inputs))]
    return [[*inputs[n - 1][:2], dealt[n]] for n in range(len(inputs))]


GRAPHS = [
    (data_parallel, sum_of_gradients, [("f4", (6, 4)), ("f4", (6, 3)), ("f4", ())]),
    (tensor_parallel, gathered_features, [("f4", (5, 4)), ("f4", (4, 3)), ("f4", ())]),
    (fully_sharded, scattered, [("f4", (2, 3)), ("bf16", (2,)), ("f4", ())]),
    (pipeline, handed_on, [("f4", (3, 4)), ("i4", (2,)), ("f4", ())]),
    (ring_of_experts, around, [("bf16", (3, 7)), ("u1", (5,)), ("f4", (COUNT, 3))]),
]


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize(("graph", "reference", "parameters"), GRAPHS, ids=lambda it: getattr(it, "__name__", ""))
def test_graphs_run(graph, reference, parameters, count, tmp_path, monkeypatch):
    import ml_dtypes

    monkeypatch.chdir(tmp_path)
    Path("g.hlo").write_text(graph(count))
    assert main(["compile", "g.hlo", "--auto-cast", "none", "--output", "g.neff"]) == 0
    random = np.random.default_rng(count)
    types = {"f4": np.float32, "i4": np.int32, "bf16": ml_dtypes.bfloat16, "u1": np.uint8}
    parameters = [(name, tuple(count if dim is COUNT else dim for dim in dims)) for name, dims in parameters]
    inputs = [[random.integers(-4, 5, dims).astype(types[name]) for name, dims in parameters] for _ in range(count)]
    stored = {
        f"arg{n}@{device}": x.view("V2") if x.dtype == ml_dtypes.bfloat16 else x
        for device, row in enumerate(inputs)
        for n, x in enumerate(row)
    }
    np.savez("in.npz", **stored)
    assert main(["run", "g.neff", "--devices", str(count), "--inputs", "in.npz", "--outputs", "out.npz"]) == 0
    with np.load("out.npz") as file:
        for device, expected in enumerate(reference(inputs)):
            for n, value in enumerate(expected):
                found = file[f"out{n}@{device}"]
                found = found.view(ml_dtypes.bfloat16) if found.dtype.kind == "V" else found
                np.testing.assert_array_equal(found.astype(np.float32), np.asarray(value, np.float32))


BARE = "HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  ROOT r = f32[%d] all-gather(a), %sdimensions={0}\n}\n"


def opt(text, *options):
    Path("m.hlo").write_text(text)
    return main(["opt", "m.hlo", "--passes", "import", *options])


@pytest.mark.parametrize(
    ("attributes", "options", "counts"),
    [
        ("replica_groups={{0,1,2,3}}, ", (), ("4", "1")),
        ("replica_groups={{0,2},{1,3}}, ", (), ("4", "1")),
        ("replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true, ", (), ("1", "4")),
        (
            "replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true, ",
            ("--num-replicas", "2"),
            ("2", "2"),
        ),
        (
            "replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true, ",
            ("--num-partitions", "1"),
            ("4", "1"),
        ),
        ("", ("--num-replicas", "4"), ("4", "1")),
    ],
)
def test_counts_of_devices(attributes, options, counts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    size = 4 if "{0,2}" in attributes else 8
    assert opt(BARE % (size, attributes), *options) == 0
    header = dict(parse_text(capsys.readouterr().out).header)
    assert (header["replica_count"], header.get("num_partitions", "1")) == counts


def test_another_number_of_devices_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("g.hlo").write_text(BARE % (8, "replica_groups={{0,1,2,3}}, "))
    assert main(["compile", "g.hlo", "--output", "g.neff"]) == 0
    for count in ("2", "3", "8"):
        assert main(["run", "g.neff", "--devices", count]) != 0
        shown = capsys.readouterr().err
        assert "the program runs on 4 devices" in shown
        assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (", replica_count=2", ("--num-replicas", "4"), "states replica_count=2, not 4"),
        ("", ("--num-replicas", "0"), "--num-replicas takes 1 to 4096"),
        ("", ("--num-partitions", "x"), "--num-partitions"),
        (", replica_count=2", (), "names device 3"),
        ("", ("--num-replicas", "3"), "names device 3"),
    ],
)
def test_counts_that_cannot_be(header, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (BARE % (8, "replica_groups={{0,1,2,3}}, ")).replace("HloModule m", f"HloModule m{header}")
    assert opt(text, *options) != 0
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_device_beyond_all_machines_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert opt(BARE % (4, f"replica_groups={{{{0,{10**17}}}}}, ")) != 0
    assert "names device 100000000000000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "ROOT r = (f32[2], f32[2]) all-gather(a, t), dimensions={0}, replica_groups={{0,1}}",
        "ROOT r = f32[] all-gather(t), dimensions={0}, replica_groups={{0,1}}",
    ],
)
def test_a_scalar_is_not_gathered(line):
    text = f"HloModule m\nENTRY e {{\n  a = f32[1] parameter(0)\n  t = f32[] parameter(1)\n  {line}\n}}\n"
    with pytest.raises(CompileError, match="scalar"):
        parse_text(text)
