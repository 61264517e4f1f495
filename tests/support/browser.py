"""A page in headless Chromium: its document after the scripts, and pictures of it."""

import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=3000"),
)


def _run(page: Path, *arguments: str) -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed")
    with tempfile.TemporaryDirectory() as profile:
        command = [found, *FLAGS, f"--user-data-dir={profile}", *arguments, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def dom(page: Path) -> str:
    """The document as markup, after its scripts have run."""
    return _run(page, "--dump-dom")


def picture(page: Path, path: Path, width: int = 1360, height: int = 2000, dark: bool = False) -> bytes:
    """A PNG of the page."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    _run(page, f"--window-size={width},{height}", scheme, f"--screenshot={path}")
    return path.read_bytes()


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.lines.append(data.strip())


def words(markup: str) -> list[str]:
    """What a reader sees, piece by piece."""
    parser = _Text()
    parser.feed(markup)
    return parser.lines
