"""Before and after of each pass, as HLO text files with FileCheck lines, run in this process.

A file of ``hlo/`` holds sections divided by ``// -----``. A section is one module with a line
``// RUN: PASSES [option=value ...]`` and ``// CHECK`` lines for the printed result, or ``// ERROR: pattern``, or
``// WARN: pattern``. Unless the RUN line says ``inexact``, the reference semantics must also give the same bits before
and after, on inputs with every special value.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts
from special_inputs import assert_same_bits, special_inputs

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes import PASSES
from neuronx_cc.passes.manager import PassContext, PassOptions, parse_integer_downcast, run_passes
from neuronx_cc.passes.precision.policy import SETTINGS, Policy, make_rule

FILES = sorted((Path(__file__).parent / "hlo").glob("*.hlo"))


@dataclass(frozen=True)
class Section:
    file: Path
    number: int
    text: str

    @property
    def run(self):
        (line,) = re.findall(r"^// RUN: (.*)$", self.text, re.MULTILINE)
        passes, *options = line.split()
        return passes.split(","), options

    def expected(self, kind):
        return re.findall(rf"^// {kind}: (.*)$", self.text, re.MULTILINE)

    def __str__(self):
        return f"{self.file.stem}-{self.number}"


SECTIONS = [
    Section(file, number, text)
    for file in FILES
    for number, text in enumerate(re.split(r"^// -----$", file.read_text(), flags=re.MULTILINE))
]


def pass_options(options):
    values = dict(option.split("=") for option in options if "=" in option)
    if "implicit_integer_downcast" in values:
        values["implicit_integer_downcast"] = parse_integer_downcast(values["implicit_integer_downcast"])
    if "mixed_precision_accumulation" in values:
        values["mixed_precision_accumulation"] = values["mixed_precision_accumulation"] == "true"
    if "saturate_infinity" in values:
        values["saturate_infinity"] = values["saturate_infinity"] == "true"
    settings = {key: values.pop(key) for key in SETTINGS if key in values}
    if settings:
        values["policy"] = Policy((make_rule("the RUN line", **settings),))
    return PassOptions(**values)


def check_lines(section, printed):
    options = Options(str(section.file))
    parser = Parser(options, io.StringIO(section.text), *pattern_for_opts(options))
    assert Matcher(options, FInput(str(section.file), printed), parser).run() == 0, printed


@pytest.mark.table
@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_section(section):
    passes, options = section.run
    module = parse_text(section.text)
    context = PassContext(pass_options(options))
    errors, warnings = section.expected("ERROR"), section.expected("WARN")
    if errors:
        with pytest.raises(NeuronError) as caught:
            run_passes(module, passes, context)
        for pattern in errors:
            assert re.search(pattern, str(caught.value)), str(caught.value)
        return
    inputs = special_inputs(module)
    exact = "inexact" not in options
    before = evaluate(module, inputs) if exact else []
    run_passes(module, passes, context, verify_each=True)
    check_lines(section, print_module(module))
    assert len(context.warnings) == len(warnings), [str(warning) for warning in context.warnings]
    for pattern, warning in zip(warnings, context.warnings, strict=True):
        assert re.search(pattern, str(warning)), str(warning)
    if exact:
        assert_same_bits(before, evaluate(module, inputs))


def test_every_pass_has_a_section():
    run = {name for section in SECTIONS for name in section.run[0]}
    assert set(PASSES) - run == set()
