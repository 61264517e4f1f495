"""Programs of their own for each device: ``compile`` and ``run`` of several files, and modules that do not meet."""

import json
import re
from pathlib import Path

import numpy as np
import pipelines
import pytest

from neuronx_cc.driver.cli import main


def write(folder: Path, texts: list[str]) -> list[str]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"rank{rank}.hlo" for rank in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return list(map(str, paths))


def compile_(tmp_path: Path, *words: str) -> int:
    return main(["compile", *words, "--auto-cast", "none", "--logfile", str(tmp_path / "log")])


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_pipelines_of_stages(ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, weights = pipelines.values(ranks)
    files = write(tmp_path / "modules", [pipelines.module(rank, ranks) for rank in range(ranks)])
    named = {f"w@{rank}": w for rank, w in enumerate(weights)}
    np.savez(tmp_path / "in.npz", x=x, **named) if ranks == 8 else np.savez(tmp_path / "in.npz", **{"x@0": x}, **named)
    given = files if ranks == 3 else [str(tmp_path / "modules")]
    assert compile_(tmp_path, *given, "--output", str(tmp_path / "neffs")) == 0
    programs = [str(tmp_path / "neffs" / f"rank{rank}.neff") for rank in range(ranks)]
    run = ["run", *(programs if ranks == 3 else [str(tmp_path / "neffs")]), "--inputs", str(tmp_path / "in.npz")]
    assert main([*run, "--outputs", str(tmp_path / "out.npz"), "--trace", str(tmp_path / "t.json"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert len(report["devices_ns"]) == ranks
    assert report["together_ns"] > max(report["devices_ns"])
    assert report["together_ns"] < sum(report["devices_ns"])
    found, total = pipelines.expected(x, weights)
    outputs = np.load(tmp_path / "out.npz")
    for rank, want in enumerate(found):
        np.testing.assert_allclose(outputs[f"out0@{rank}"], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs[f"out1@{rank}"], total, rtol=1e-5)


def test_equal_modules_are_one_program_with_memories_of_their_own(tmp_path: Path) -> None:
    text = (
        f"HloModule m\n{pipelines.ADD}ENTRY e {{\n  x = f32[3] parameter(0)\n  i = u32[] replica-id()\n"
        "  f = f32[] convert(i)\n  b = f32[3] broadcast(f), dimensions={}\n  y = f32[3] multiply(x, b)\n"
        "  ROOT r = f32[3] all-reduce(y), to_apply=add\n}\n"
    )
    files = write(tmp_path / "modules", [text, text])
    assert compile_(tmp_path, *files) == 0
    programs = [file.replace(".hlo", ".neff") for file in files]
    np.savez(tmp_path / "in.npz", x=np.arange(3, dtype=np.float32))
    out = str(tmp_path / "out.npz")
    for given in (programs, [programs[0]] * 2, [programs[0], "--devices", "2"]):
        assert main(["run", *given, "--inputs", str(tmp_path / "in.npz"), "--outputs", out]) == 0
        for device in (0, 1):
            np.testing.assert_array_equal(np.load(out)[f"out0@{device}"], [0, 1, 2])


def two(first: str, second: str) -> list[str]:
    """Modules of two ranks whose bodies, of f32[4], end in r."""
    head = f"HloModule m\n{pipelines.ADD}ENTRY e {{\n  x = f32[4] parameter(0)\n  "
    return [head + body + "\n}\n" for body in (first, second)]


REDUCE = "ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=add"
BOTH_WAYS = "{{0,1},{1,0}}"
TOP = "p = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,0}}\n  "
DISAGREE = {
    "never come": (REDUCE, "ROOT r = f32[4] negate(x)", "device 0 waits in all_reduce add.*device 1 is at its end"),
    "kind": (
        REDUCE,
        f"ROOT r = f32[4] collective-permute(x), source_target_pairs={BOTH_WAYS}",
        r"device 0 comes to all_reduce add of f32\[4\].*device 1 comes to permute of f32\[4\]",
    ),
    "shape": (
        REDUCE,
        "y = f32[2] slice(x), slice={[0:2]}\n  ROOT r = f32[2] all-reduce(y), replica_groups={{0,1}}, to_apply=add",
        r"f32\[4\] over \{0,1\}, where device 1 comes to all_reduce add of f32\[2\]",
    ),
    "type": (
        REDUCE,
        "y = bf16[4] convert(x)\n  ROOT r = bf16[4] all-reduce(y), replica_groups={{0,1}}, to_apply=add",
        r"f32\[4\] over .*bf16\[4\]",
    ),
    "reduction": (REDUCE, REDUCE.replace("=add", "=most"), "all_reduce add .*all_reduce max"),
    "order of the group": (REDUCE, REDUCE.replace("0,1", "1,0"), r"over \{0,1\}, where .* over \{1,0\}"),
    "order": (
        TOP + REDUCE.replace("all-reduce(x)", "all-reduce(p)"),
        "s = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=add\n  "
        f"ROOT r = f32[4] collective-permute(s), source_target_pairs={BOTH_WAYS}",
        r"device 0 comes to permute.*device 1 comes to all_reduce.*\(%p and %s\)",
    ),
}
MOST = "most {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, b)\n}\n"


@pytest.mark.parametrize("name", DISAGREE)
def test_modules_that_do_not_meet_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, words = DISAGREE[name]
    texts = [text.replace("ENTRY", MOST + "ENTRY") if "=most" in text else text for text in two(first, second)]
    files = write(tmp_path / "modules", texts)
    assert compile_(tmp_path, *files, "--output", str(tmp_path)) == 70
    said = capsys.readouterr().err
    assert "[NCC_ERUN922]" in said
    assert re.search(words, said), said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.neff"))


def test_programs_compiled_one_by_one_are_held_together_when_they_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, bodies in {"same": (REDUCE, REDUCE), "other": DISAGREE["kind"][:2]}.items():
        files = write(tmp_path / name, two(*bodies))
        programs = [file.replace(".hlo", ".neff") for file in files]
        for file, program in zip(files, programs, strict=True):
            words = ["--keep-collectives", "--num-replicas", "2", "--num-partitions", "1", "--output", program]
            assert compile_(tmp_path, file, *words) == 0
        assert main(["run", *programs]) == (0 if name == "same" else 1)
    assert "device 0 comes to all_reduce" in capsys.readouterr().err


def test_loops_are_compared_as_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second rank goes round once more, by a run-time value: nothing shows it before."""
    loop = f"""HloModule m
{pipelines.ADD}
step {{
  s = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[4] get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  w = f32[4] all-reduce(v), replica_groups={{{{0,1}}}}, to_apply=add
  ROOT t = (s32[], f32[4], s32[]) tuple(j, w, n)
}}
more {{
  s = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=2
  ROOT c = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
  x = f32[4] parameter(0)
  n = s32[] parameter(1)
  z = s32[] constant(0)
  s = (s32[], f32[4], s32[]) tuple(z, x, n)
  l = (s32[], f32[4], s32[]) while(s), condition=more, body=step
  ROOT r = f32[4] get-tuple-element(l), index=1
}}
"""
    files = write(tmp_path / "modules", [loop, loop])
    assert compile_(tmp_path, *files, "--output", str(tmp_path / "o")) == 0
    x = np.ones(4, np.float32)
    for counts, status in (((3, 3), 0), ((3, 4), 1)):
        given = {f"n@{rank}": np.array(count, np.int32) for rank, count in enumerate(counts)}
        np.savez(tmp_path / "in.npz", x=x, **given)
        out = str(tmp_path / "out.npz")
        assert main(["run", str(tmp_path / "o"), "--inputs", str(tmp_path / "in.npz"), "--outputs", out]) == status
    np.testing.assert_array_equal(np.load(out)["out0@1"], x * 8)
    assert "device 1 waits in all_reduce for 0" in capsys.readouterr().err


def test_wrong_counts_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write(tmp_path / "modules", [pipelines.module(rank, 3) for rank in range(3)])
    assert compile_(tmp_path, *files, "--output", str(tmp_path / "o")) == 0
    programs = [str(tmp_path / "o" / f"rank{rank}.neff") for rank in range(3)]
    (tmp_path / "empty").mkdir()
    for words, status, said in (
        (["run", *programs[:2]], 1, "programs for 3 devices, 2 given"),
        (["run", *programs, "--devices", "2"], 2, "3 programs run on as many devices"),
        (["run", *programs, "--check"], 2, "--check takes one program"),
        (["run", str(tmp_path / "empty")], 2, "has no files *.neff"),
        (["compile", str(tmp_path / "empty")], 2, "has no files *.hlo"),
        (["compile", *files[:2]], 70, "names device 2"),
        (["compile", files[0], files[0]], 2, "two modules would be compiled to"),
        (["compile", *files, "--dump", str(tmp_path / "d")], 2, "--dump is about one module"),
        (["compile", *files, "--output", files[0]], 2, "it is the input"),
        (["compile", *files, "--output", str(tmp_path / "log" / "o")], 2, "cannot make the directory"),
    ):
        log = ["--logfile", str(tmp_path / "log")]
        assert main([*words, *log]) == status, words
        assert said in capsys.readouterr().err, words


def test_folders_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    from neuronx_cc.driver.files import numbered

    for name in ("rank10.hlo", "rank9.hlo", "rank1.hlo", "notes.md", "MODULE_2.hlo.pb"):
        (tmp_path / name).write_text("")
    found = [Path(path).name for path in numbered(str(tmp_path), (".hlo", ".pb"))]
    assert found == ["MODULE_2.hlo.pb", "rank1.hlo", "rank9.hlo", "rank10.hlo"]
