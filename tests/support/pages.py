"""Runs the code of a Markdown page as a reader would, block by block, in the current directory.

``python pages.py PAGE``. ``bash`` blocks run in a shell each; what they export holds from then on. ``python`` blocks
share one interpreter, which starts at the first of them. A block whose first line is ``# PATH.EXT`` is written to that
file in place of being run, and ``diff`` blocks are applied to files. A ``text`` block straight after a block of code is
what that prints: words and punctuation count, numbers may drift, ``...`` stands for anything. A block after
``<!-- not run: REASON -->`` is left out. The first failure ends the run with status 1.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.S | re.M
)
RUN = ("bash", "python", "diff")
APPLY = ("git", "apply", "-C2", "--verbose")
"""Lines may have moved: two lines of context are looked for."""
SHOWN = ("text", "toml", "{toctree}")
"""Languages of blocks that are read only, unless they name a file, and directives."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    code: str
    line: int
    """Of the fence."""
    reason: str = ""
    """Why it is not run."""
    attached: bool = False
    """Only blank lines stand between this block and the one before."""

    @property
    def file(self) -> str:
        """Which file the block is, if it is one."""
        named = re.match(r"# ([\w/]+\.(?:py|toml))\n", self.code)
        return named[1] if named else ""


def blocks(text: str) -> list[Block]:
    result, end = [], 0
    for match in FENCE.finditer(text):
        language, reason = match["language"].split(" ")[0], match["reason"] or ""
        line = text[: match.start("code")].count("\n")
        result.append(Block(language, match["code"], line, reason, not text[end : match.start()].strip()))
        end = match.end()
    return result


def agree(shown: str, printed: str) -> bool:
    """Whether ``printed`` has the form that a ``text`` block shows."""

    def pattern(text: str) -> str:
        number = r"-?[\d,]*\.?\d+(?:e[-+]?\d+)?"
        parts = re.split(rf"(\.\.\.|{number}|\s+)", text.strip())
        forms = {"...": ".*"}
        return "".join(
            forms.get(part) or (r"\s+" if part.isspace() else number if re.fullmatch(number, part) else re.escape(part))
            for part in parts
            if part
        )

    return re.search(pattern(shown), printed, re.S) is not None


class Reader:
    """Follows a page."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def shell(self, block: Block) -> str:
        with tempfile.NamedTemporaryFile() as file:
            code = f"{block.code}\nenv -0 > {file.name}\n"
            run = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(f"exit status {run.returncode}\n{run.stdout}{run.stderr}")
            exported = dict(line.partition("=")[::2] for line in Path(file.name).read_text().split("\0") if line)
        os.environ.update(exported)
        return run.stdout

    def diff(self, block: Block) -> str:
        run = subprocess.run((*APPLY, "-"), input=block.code, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"line {block.line}: {run.stderr}")
        return ""

    def python(self, block: Block) -> str:
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile("\n" * block.line + block.code, "<page>", "exec"), self.names)
        return output.getvalue()

    def follow(self, page: list[Block]) -> None:
        printed = None
        for block in page:
            if block.file:
                Path(block.file).write_text(block.code)
                printed = None
            elif block.language in RUN and not block.reason:
                printed = {"bash": self.shell, "python": self.python, "diff": self.diff}[block.language](block)
                print(f"line {block.line}: {block.language}\n{printed}")
            elif block.language == "text" and block.attached and printed is not None:
                if not agree(block.code, printed):
                    raise RuntimeError(
                        f"line {block.line}: the page shows\n{block.code}\nand this is printed\n{printed}"
                    )
                printed = None
            else:
                printed = None


def main() -> int:
    sys.path.insert(0, os.getcwd())
    try:
        Reader().follow(blocks(Path(sys.argv[1]).read_text()))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
