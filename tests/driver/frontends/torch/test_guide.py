"""The guide's blocks run, in order, where torch is installed."""

import re
from pathlib import Path

import pages
import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).resolve().parents[4]


def test_every_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = re.sub(
        r"<!-- not run: tests/driver/frontends/torch.*-->\n", "", (ROOT / "docs/guides/pytorch.md").read_text()
    )
    blocks = pages.blocks(text)
    assert sum(block.language == "python" for block in blocks) == 3
    pages.Reader().follow(blocks)
    assert {path.name for path in tmp_path.iterdir()} >= {"model.html", "model.pt"}
