"""The page of a report, as a browser shows it and as a reader without our help would use it."""

import json
import re
import struct
from pathlib import Path

import pytest
from browser import dom, picture, words
from profiled import analysis

from neuronx_cc.ir.isa.program import Debug, Instr, Program, Ref, Space, Stream
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.course import assumed
from neuronx_cc.runtime.profiling.analysis import analyse
from neuronx_cc.runtime.profiling.diff import compare
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.page import make_page

SECTIONS = {
    *("Verdict", "What to change", "Time by source line", "Ops", "Engine timeline", "Roofline", "Memory over time"),
    *("DMA by size of contiguous runs", "Precision", "Critical path"),
}


def embedded(page: str) -> dict[str, object]:
    """The document inside a page."""
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    value: dict[str, object] = json.loads(found)
    return value


@pytest.fixture(scope="module")
def transpose_dom(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(make_page(analysis("transpose").document))
    return dom(path)


def test_a_page_needs_nothing_else() -> None:
    page = make_page(analysis("dot").document)
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert "http" not in re.sub(r"http-equiv|http://www.w3.org/2000/svg", "", page)
    assert "default-src 'none'" in page
    assert embedded(page) == analysis("dot").document
    assert len(page) < 200_000


def test_pages_of_very_many_ops_stay_small() -> None:
    document = dict(analysis("dot").document)
    (row, *_) = document["operators"]
    document["operators"] = [row | {"name": f"op.{number}"} for number in range(30_000)]
    document["timeline"] = {"vector": [0, 10, 100, 29_999, 10, 10, 100, 5]}
    page = make_page(document)
    shown = embedded(page)
    assert len(page) < 6e6
    assert shown["timeline"] == {"vector": [0, 10, 100, -1, 10, 10, 100, 5]}
    assert "26000" in str(shown["notices"])
    assert len(document["operators"]) == 30_000


def test_names_are_no_markup(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=document.body.dataset.bad=1><!--"
    tile = Ref(Space.SBUF, "f32", 0, ((128, 0), (64, 4)))
    program = Program(
        records=[Instr("memset", Stream.VECTOR, (tile,), (), imm=(0.0,))],
        debug=[Debug(evil, evil, evil, evil, 3, evil, evil)],
    )
    execution = Execution(program, find_machine("trn1"), assumed(program)[0], name=evil)
    page = make_page(analyse(execution).document)
    assert page.count("</script>") == 2
    (tmp_path / "r.html").write_text(page)
    shown = dom(tmp_path / "r.html")
    (body,) = re.findall("<body[^>]*>", shown)
    assert 'data-ready="true"' in body
    assert "data-bad" not in body
    assert "<img" not in re.sub(r"<script.*?</script>", "", shown, flags=re.DOTALL).replace("&lt;img", "")


def test_a_browser_draws_every_section(transpose_dom: str) -> None:
    (body,) = re.findall("<body[^>]*>", transpose_dom)
    assert 'data-ready="true"' in body
    assert "data-error" not in body
    assert set(words(transpose_dom)) >= SECTIONS
    for name in ("treemap", "roofline-chart", "memory-charts", "dma-chart", "precision-chart"):
        (inside,) = re.findall(rf'id="{name}">(.*?)</section>', transpose_dom, re.DOTALL)
        assert "<svg" in inside or name == "roofline-chart", name
    assert "<canvas" in transpose_dom


def test_pictures_and_fields_have_names_and_keys(transpose_dom: str) -> None:
    for tag in re.findall(r"<svg[^>]*>|<canvas[^>]*>", transpose_dom):
        assert "aria-label=" in tag, tag
        assert "role=" in tag, tag
    for field in re.findall(r"<input[^>]*>", transpose_dom):
        (name,) = re.findall(r'id="([^"]+)"', field)
        assert f'<label for="{name}"' in transpose_dom
    assert 'class="skip"' in transpose_dom
    heads = re.findall(r"<th [^>]*>", transpose_dom)
    assert heads
    assert all('scope="col"' in head and "aria-sort=" in head for head in heads)
    for clickable in re.findall(r"<g [^>]*role=.button.[^>]*>", transpose_dom):
        assert 'tabindex="0"' in clickable


def test_a_reader_finds_the_costliest_lines_and_what_bounds_them(transpose_dom: str) -> None:
    """From the text of the page alone: lines, shares and bounds, as the clock has them."""
    found = analysis("transpose")
    (table,) = re.findall(r'id="source-table">(.*?)</section>', transpose_dom, re.DOTALL)
    rows = re.findall(r"<tr[^>]*>(<td.*?)</tr>", table)
    expected = found.document["sources"][:3]
    for row, source in zip(rows, expected, strict=False):
        text = " ".join(words(row))
        assert source["line"].rsplit("/", 1)[-1] in text
        assert source["bound"] in text
        assert f"{100 * source['critical_ns'] / found.report.time_ns:.1f} %" in text.replace("\xa0", " ")
    costliest = expected[0]["line"].rsplit("/", 1)[-1]
    assert costliest in words(rows[0])
    assert costliest in {"model.py:2", "model.py:3"}
    verdict = " ".join(words(transpose_dom)[:80])
    assert f"Most of the time is in {costliest}" in verdict


def test_pages_have_pictures_in_light_and_dark(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    page.write_text(make_page(analysis("loop").document))
    light = picture(page, tmp_path / "light.png")
    dark = picture(page, tmp_path / "dark.png", dark=True)
    for image in (light, dark):
        assert struct.unpack(">II", image[16:24]) == (1360, 2000)
        assert len(image) > 30_000  # an empty page has a tenth of that
    assert light != dark


def test_a_difference_has_a_section_of_its_own(tmp_path: Path) -> None:
    document = dict(analysis("dot").document)
    document["diff"] = compare(document, analysis("bf16").document)
    page = tmp_path / "r.html"
    page.write_text(make_page(document))
    shown = dom(page)
    assert "Difference" in words(shown)
    assert any("slower than" in text for text in words(shown))
    (section,) = re.findall(r'<section id="diff"[^>]*>', shown)
    assert "hidden" not in section


def test_pictures_of_the_documentation_are_small() -> None:
    """Git keeps every version of them."""
    pictures = list((Path(__file__).resolve().parents[3] / "docs" / "images").glob("*.png"))
    assert len(pictures) >= 4
    for path in pictures:
        assert path.stat().st_size < 200_000, path.name
        assert path.read_bytes().startswith(b"\x89PNG")
