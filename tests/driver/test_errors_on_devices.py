"""Errors by op, ``run --check`` and tuning of programs that several devices share."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver.cli import main
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.reference import CALLING, REFERENCE

IDS = "use_global_device_ids=true, replica_groups="
TEXT = """HloModule shared, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

most {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

step {
  s = (s32[], f32[8,16], f32[16,16]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8,16] get-tuple-element(s), index=1
  w = f32[16,16] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  looped = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[8,16] all-reduce(looped), channel_id=6, PAIRS, to_apply=add
  tanh = f32[8,16] tanh(sum)
  ROOT t = (s32[], f32[8,16], f32[16,16]) tuple(j, tanh, w)
}

more {
  s = (s32[], f32[8,16], f32[16,16]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(20)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = f32[16,16] parameter(2)
  d = u32[] partition-id()
  f = f32[] convert(d)
  b = f32[8,16] broadcast(f), dimensions={}
  near = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  same = f32[8,16] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  whole = f32[8,16] all-reduce(near), channel_id=1, ALL, to_apply=add
  whole2 = f32[8,16] all-reduce(same), channel_id=2, ALL, to_apply=add
  left = f32[8,16] subtract(whole, whole2)
  moved = f32[8,16] collective-permute(left), channel_id=3, source_target_pairs={{0,1},{1,2},{2,3}}
  all = f32[32,16] all-gather(x), channel_id=4, REVERSED, dimensions={0}
  part = f32[8,16] reduce-scatter(all), channel_id=5, ALL, dimensions={0}, to_apply=most
  across = f32[8,16] all-to-all(part), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}
  zero = s32[] constant(0)
  state = (s32[], f32[8,16], f32[16,16]) tuple(zero, across, w)
  loop = (s32[], f32[8,16], f32[16,16]) while(state), condition=more, body=step
  end = f32[8,16] get-tuple-element(loop), index=1
  shifted = f32[8,16] add(end, b)
  ROOT out = (f32[8,16], f32[8,16], f32[8,16]) tuple(moved, shifted, across)
}
"""
GROUPS = {"ALL": "{{0,1,2,3}}", "PAIRS": "{{0,1},{2,3}}", "REVERSED": "{{3,2,1,0}}"}
for word, groups in GROUPS.items():
    TEXT = TEXT.replace(word, IDS + groups)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(TEXT)
    np.savez("in.npz", **inputs())


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    w = random.standard_normal((16, 16), dtype=np.float32) / 4
    v = w + 1e-3 * random.standard_normal((16, 16), dtype=np.float32)
    rows = {f"x@{n}": random.standard_normal((8, 16), dtype=np.float32) for n in range(4)}
    return rows | {"w": w, "v": v}


def compiled(mode: str) -> None:
    assert main(["compile", "m.hlo", "--auto-cast", mode, "--output", "m.neff", "--logfile", "log"]) == 0


RUN = ["run", "m.neff", "--devices", "4", "--inputs", "in.npz", "--check", "--logfile", "log"]


@pytest.mark.parametrize("mode", ["none", "matmult", "all"])
def test_both_verdicts(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(mode)
    capsys.readouterr()
    assert main([*RUN, "--json", "--fp64"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["check"]["passed"]
    assert report["fp64"]["fp32"] < 1e-3
    errors = report["accuracy"]
    if mode == "none":
        assert errors["error"] < 1e-4
        assert not errors["ops"]
    elif mode == "matmult":
        assert [each["name"] for each in errors["cancellations"]] == ["left"]
        assert {op["name"] for op in errors["ops"][:2]} == {"near", "same"}
        assert {op["name"] for op in errors["ops"]} == {"near", "same", "looped"}
        assert errors["error"] == pytest.approx(errors["predicted"], rel=0.2)


@pytest.mark.parametrize("opcode", ["tanh", "all-reduce", "all-gather", "subtract"])
def test_the_op_at_fault_is_named(
    opcode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled("none")
    table = CALLING if opcode in CALLING else REFERENCE
    right = table[opcode]
    monkeypatch.setitem(table, opcode, lambda *given: right(*given) + np.float32(1))
    assert main(RUN) == 1
    said = capsys.readouterr().err
    assert re.search(rf"the first op to differ is {opcode} f32", said) or opcode == "tanh", said
    assert "NCC_ERUN902" in said


def test_tuned_on_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "m.hlo", "--inputs", "in.npz", "--tolerance", "1e-3", "--types", "bf16,fp16", "--output", "p.toml"]
    found = []
    for workers in ("1", "2"):
        assert main([*words, "--workers", workers, "--json", "--logfile", "log"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["error"] == found[1]["error"] <= 1e-3
    options = ["--auto-cast", "none", "--precision-policy", "p.toml", "--output", "m.neff", "--logfile", "log"]
    assert main(["compile", "m.hlo", *options]) == 0
    capsys.readouterr()
    assert main([*RUN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["error"] == pytest.approx(found[0]["error"], rel=1e-3)


def test_in_python() -> None:
    text = TEXT.replace("num_partitions=4", "num_partitions=4, replica_count=1")
    x, w, v = (inputs()[name] for name in ("x@0", "w", "v"))
    found = neuronx_cc.compare(text, [x, w, v], auto_cast="matmult")
    assert {row.name for row in found.rows} == {"near", "same", "looped"}
    with pytest.raises(UsageError, match=r"of which each of 4 devices takes \[8, 16\] - put it on the devices"):
        neuronx_cc.compare(text, [np.concatenate([x] * 4), w, v])
    with pytest.raises(UsageError, match="2 arrays are given for 3 parameters"):
        neuronx_cc.compare(text, [x, w])
    with pytest.raises(UsageError, match="an evaluator is given the program of one device, and 4 share this module"):
        neuronx_cc.tune(text, [x, w, v], evaluate=lambda run: 0.0)
