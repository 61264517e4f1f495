"""The catalogue knows every code that any part of the project raises."""

import ast
import re
from pathlib import Path

from neuronx_cc.driver.errors import CATALOGUE

PARTS = ("hlo_import", "ir", "passes", "codegen", "runtime", "driver")
CODE = re.compile(r"[EI][A-Z]{2,4}\d{3}|INTERNAL")


def codes_in(source):
    """Codes given to a call as its first argument."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            value = node.args[0].value
            if isinstance(value, str) and CODE.fullmatch(value):
                yield value


def test_every_code_is_in_the_catalogue():
    root = Path(__file__).resolve().parents[2]
    raised = {}
    for part in PARTS:
        for path in (root / part).rglob("*.py"):
            for code in codes_in(path.read_text()):
                raised.setdefault(code, f"{part}/{path.name}")
    assert len(raised) > 10
    assert {code: place for code, place in raised.items() if code not in CATALOGUE} == {}
