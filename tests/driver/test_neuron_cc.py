"""``neuron-cc``: the fast-math rules and the mapping to the options of ``neuronx-cc compile``."""

import pytest

from neuronx_cc.driver import neuron_cc
from neuronx_cc.driver.neuron_cc import COMPILE, fast_math, main, translate
from neuronx_cc.driver.parse import parse
from neuronx_cc.ir.errors import UsageError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("all", ("all", "bf16", True)),
        ("none", ("matmult", "bf16", False)),
        ("fast-relayout", ("all", "bf16", True)),
        ("no-fast-relayout", ("all", "bf16", False)),
        ("fp32-cast-all", ("all", "bf16", True)),
        ("fp32-cast-all-bf16", ("all", "bf16", True)),
        ("fp32-cast-all-fp16", ("all", "fp16", True)),
        ("fp32-cast-matmult", ("matmult", "bf16", True)),
        ("fp32-cast-matmult-bf16", ("matmult", "bf16", True)),
        ("fp32-cast-matmult-fp16", ("matmult", "fp16", True)),
        ("fp32-cast-matmult-fp16 no-fast-relayout", ("matmult", "fp16", False)),
        ("no-fast-relayout fp32-cast-matmult-fp16", ("matmult", "fp16", False)),
        ("all no-fast-relayout", ("all", "bf16", False)),
        ("all fp32-cast-matmult", ("matmult", "bf16", True)),
        ("none fp32-cast-all-fp16", ("all", "fp16", False)),
        ("none fast-relayout", ("matmult", "bf16", True)),
    ],
)
def test_fast_math(words, expected):
    assert fast_math(words.split()) == expected


@pytest.mark.parametrize(
    "words",
    [
        "all none",
        "fp32-cast-all fp32-cast-matmult",
        "fp32-cast-matmult-bf16 fp32-cast-matmult-fp16",
        "fast-relayout no-fast-relayout",
    ],
)
def test_words_that_exclude_each_other(words):
    with pytest.raises(UsageError, match="exclude each other"):
        fast_math(words.split())


@pytest.mark.parametrize(
    ("value", "cast"),
    [
        ("all", ("all", "bf16")),
        ("all-fp16", ("all", "fp16")),
        ("matmult", ("matmult", "bf16")),
        ("matmult-bf16", ("matmult", "bf16")),
        ("matmult-fp16", ("matmult", "fp16")),
    ],
)
def test_fp32_cast_overrides_the_casting_half(value, cast):
    for words, relayout in (("none", False), ("all", True), ("fp32-cast-all no-fast-relayout", False)):
        parsed = parse(["g.hlo", "--fast-math", *words.split(), "--fp32-cast", value], COMPILE)
        values = translate(parsed).values
        assert (values["auto_cast"], values["auto_cast_type"]) == cast
        assert values["fast_relayout"] is relayout


def test_default_is_all():
    values = translate(parse(["g.hlo"], COMPILE)).values
    assert (values["auto_cast"], values["auto_cast_type"], values["fast_relayout"]) == ("all", "bf16", True)
    assert values["output"] == "out.neff"


def test_list_ends_at_the_model_file():
    parsed = parse(["--fast-math", "none", "fast-relayout", "g.hlo", "--enable-saturate-infinity"], COMPILE)
    assert parsed.files == ["g.hlo"]
    assert parsed.names("fast_math") == ("none", "fast-relayout")
    assert translate(parsed).flag("saturate_infinity")


def test_right_most_list_wins():
    parsed = parse(["g.hlo", "--fast-math", "all", "--fast-math", "none"], COMPILE)
    assert parsed.names("fast_math") == ("none",)


def test_translation_has_every_option_of_the_pipeline():
    translated = translate(parse(["g.hlo", "-O2", "--static-weights"], COMPILE))
    assert translated.values["optlevel"] == "2"
    assert translated.values["target"] == "trn1"
    assert set(translated.recorded()) >= {"auto_cast", "fast_relayout", "saturate_infinity"}


@pytest.mark.parametrize(
    ("argv", "mentions"),
    [
        (["compile", "g.hlo", "--fast-math", "fp32-cast-al"], "fp32-cast-all"),
        (["compile", "g.hlo", "--fast-math"], "needs a value"),
        (["compile", "g.hlo", "--fast-math", "all", "none"], "exclude"),
        (["compile", "g.pb", "--framework", "TENSORFLOW"], "TENSORFLOW models are not read"),
        (["compile", "g.hlo", "--fp32-cast", "bf16"], "matmult-bf16"),
        (["compile", "g.hlo", "--auto-cast", "none"], "--auto-cast"),
        (["list-operators", "--framework", "MXNET"], "MXNET"),
        (["run", "g.neff"], "unknown command"),
    ],
)
def test_usage_errors(argv, mentions, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.hlo").write_text("HloModule g")
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("[NCC_EARG")
    assert mentions in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("argv", [["--version"], ["-V"], ["compile", "--version"]])
def test_version(argv, capsys):
    assert main(argv) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "Compiler version" in line)
    assert line.startswith("Neuron Compiler version ")


@pytest.mark.parametrize("argv", [["--help"], ["compile", "--help"], ["list-operators", "-h"]])
def test_help(argv, capsys):
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: neuron-cc")


def test_verbose_stands_before_or_after_the_command():
    for argv in (["--verbose", "INFO", "compile"], ["compile", "--verbose", "INFO"]):
        rest = [word for word in argv if word != "compile"]
        assert parse(["g.hlo", *rest], neuron_cc.COMPILE).integer("verbose") == 20
