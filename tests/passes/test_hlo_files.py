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

import numpy as np
import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes import PASSES
from neuronx_cc.passes.dissolve_tuples import leaves
from neuronx_cc.passes.manager import PassContext, PassOptions, parse_integer_downcast, run_passes

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
    return PassOptions(**values)


def special_inputs(module):
    random = np.random.default_rng(7)
    made = []
    leaf_types = [leaf for argument in module.entry.block.args for _, leaf in leaves(argument.type)]
    for type_ in leaf_types:
        shape = type_.data
        if shape.dtype == "pred":
            made.append(random.random(shape.dims) < 0.5)
        elif shape.numpy_dtype.kind in "iu":
            info = np.iinfo(shape.numpy_dtype)
            ends = np.array([0, 1, 2, 3, info.max, info.min, info.max // 2, 5], shape.numpy_dtype)
            made.append(random.choice(ends, shape.dims))
        else:
            values = random.standard_normal(shape.dims) * 4
            special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -2.5]
            chosen = random.choice(special, shape.dims)
            made.append(np.where(random.random(shape.dims) < 0.5, chosen, values).astype(shape.numpy_dtype))
    return made


def assert_same_bits(before, after):
    assert len(before) == len(after)
    for want, got in zip(before, after, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        same = got == want
        if want.dtype.kind in "fV":
            wide_want, wide_got = want.astype(np.float64), got.astype(np.float64)
            same = (wide_got == wide_want) & (np.signbit(wide_got) == np.signbit(wide_want))
            same |= np.isnan(wide_want) & np.isnan(wide_got)
        assert np.all(same), (want, got)


def check_lines(section, printed):
    options = Options(str(section.file))
    parser = Parser(options, io.StringIO(section.text), *pattern_for_opts(options))
    assert Matcher(options, FInput(str(section.file), printed), parser).run() == 0, printed


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
