"""Damaged modules and NEFFs through the commands: always one paragraph and a status, never an internal error."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronx_cc.driver.cli import main

MODULE = """HloModule g, entry_computation_layout={(f32[4,8]{1,0}, s32[3]{0})->(f32[4], s32[3])}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,8]{1,0} parameter(0)
  i = s32[3]{0} parameter(1), metadata={op_name="jit(f)/i" source_file="model.py" source_line=3}
  one = s32[] constant(1)
  ones = s32[3]{0} broadcast(one), dimensions={}
  j = s32[3]{0} add(i, ones)
  t = f32[8,4]{1,0} transpose(x), dimensions={1,0}
  d = f32[4,4]{1,0} dot(x, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  r = f32[4]{0} reduce(d, zero), dimensions={1}, to_apply=sum
  ROOT out = (f32[4]{0}, s32[3]{0}) tuple(r, j)
}
"""
WORDS = [*sorted(set(re.findall(r"[\w.]+|[^\w\s]", MODULE))), "{...}", "f32[?]", "<=4", "while", "99999999999", "-1"]

edits = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 12), st.one_of(st.sampled_from(WORDS), st.text(max_size=3))),
    min_size=1,
    max_size=4,
)


def quiet(*argv):
    """Exit status and stderr of one command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(argv))
    return status, err.getvalue()


def edit(data, changes):
    for position, length, text in changes:
        at = position % (len(data) + 1)
        data = data[:at] + text + data[at + length :]
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def neff(folder):
    (folder / "good.hlo").write_text(MODULE)
    status, err = quiet(
        "compile", str(folder / "good.hlo"), "--output", str(folder / "good.neff"), "--logfile=/dev/null"
    )
    assert status == 0, err
    return (folder / "good.neff").read_bytes()


@given(edits)
@settings(max_examples=150)
def test_edited_modules(folder, changes):
    path = folder / "edited.hlo"
    path.write_text(edit(MODULE, changes), "utf-8", "surrogatepass")
    output = folder / "edited.neff"
    output.unlink(missing_ok=True)
    status, err = quiet("compile", str(path), "--output", str(output), "--logfile=/dev/null", "--workdir", str(folder))
    assert status in (0, 2, 70)
    assert "INTERNAL" not in err
    assert output.exists() is (status == 0)


@given(edits)
@settings(max_examples=100)
def test_edited_neffs(folder, neff, changes):
    changes = [(position, length, text.encode("utf-8", "surrogatepass")) for position, length, text in changes]
    Path(folder / "edited.neff").write_bytes(edit(neff, changes))
    status, err = quiet("run", str(folder / "edited.neff"))
    assert status in (0, 1)
    assert "INTERNAL" not in err
