"""Reading command lines and Python keywords."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronx_cc.driver.options import COMMANDS, COMPILE, OPT, RUN
from neuronx_cc.driver.parse import closest, find_command, from_keywords, parse, split_flags
from neuronx_cc.ir.errors import UsageError


def value(key, *argv):
    return parse(["graph.hlo", *argv], COMPILE).values[key]


def refusal(*argv, command=COMPILE):
    with pytest.raises(UsageError) as caught:
        parse(list(argv), command)
    assert caught.value.exit_status == 2
    return caught.value


def test_defaults():
    values = parse(["graph.hlo"], COMPILE).values
    assert values["auto_cast"] == "matmult"
    assert values["auto_cast_type"] == "bf16"
    assert values["target"] == "trn1"
    assert values["output"] == "file.neff"
    assert values["logfile"] == "log-neuron-cc.txt"
    assert values["optlevel"] == "2"
    assert values["mixed_precision_accumulation"] is True


@pytest.mark.parametrize(
    ("argv", "key", "expected"),
    [
        (["--auto-cast", "none"], "auto_cast", "none"),
        (["--auto-cast=all"], "auto_cast", "all"),
        (["--auto-cast=matmul"], "auto_cast", "matmult"),
        (["--auto-cast-type", "fp8_e4m3"], "auto_cast_type", "fp8_e4m3"),
        (["--auto-cast-type=tf32"], "auto_cast_type", "tf32"),
        (["-O1"], "optlevel", "1"),
        (["-O", "1"], "optlevel", "1"),
        (["-O=1"], "optlevel", "1"),
        (["--optlevel=1"], "optlevel", "1"),
        (["--optlevel", "3"], "optlevel", "3"),
        (["--O", "3"], "optlevel", "3"),
        (["-lnc", "1"], "logical_nc_config", "1"),
        (["-lnc=1"], "logical_nc_config", "1"),
        (["--lnc", "1"], "logical_nc_config", "1"),
        (["--logical-nc-config=1"], "logical_nc_config", "1"),
        (["--target=inf2"], "target", "inf2"),
        (["--target", "trn1n"], "target", "trn1n"),
        (["--framework", "XLA"], "framework", "XLA"),
        (["--model-type", "transformer-inference"], "model_type", "transformer"),
        (["--model-type=cnn-training"], "model_type", "cnn-training"),
        (["--distribution_strategy", "nemo"], "distribution_strategy", "llm-training"),
        (["--distribution-strategy=NEMO"], "distribution_strategy", "llm-training"),
        (["--distribution-strategy=FSDP"], "distribution_strategy", "FSDP"),
        (["--native-int64=disabled"], "native_int64", "disabled"),
        (["--implicit-integer-downcast=all"], "implicit_integer_downcast", ("all",)),
        (["--implicit-integer-downcast", "dot,pow"], "implicit_integer_downcast", ("dot", "pow")),
        (["--disable-mixed-precision-accumulation"], "mixed_precision_accumulation", False),
        (["--enable-saturate-infinity"], "saturate_infinity", True),
        (["--enable-fast-context-switch"], "enable_fast_context_switch", True),
        (["--enable-fast-loading-neuron-binaries"], "fast_loading_neuron_binaries", True),
        (["--output", "x.neff"], "output", "x.neff"),
        (["--logfile=x.log"], "logfile", "x.log"),
        (["--verbose", "info"], "verbose", 20),
        (["--verbose=WARNING"], "verbose", 30),
        (["--verbose", "35"], "verbose", 35),
        (["--verbose=critical"], "verbose", 50),
        (["--pipeline", "compile", "SaveTemps"], "pipeline", ("compile", "SaveTemps")),
        (["--tensorizer-options", "--print-nki --x=1"], "tensorizer_options", "--print-nki --x=1"),
        (["--tensorizer-options=--print-nki"], "tensorizer_options", "--print-nki"),
        (["--internal-backend-options", "--perf-sim=false"], "internal_backend_options", "--perf-sim=false"),
        (["--internal-enable-dge-levels", "spill_reload"], "internal_enable_dge_levels", ("spill_reload",)),
        (["--internal-tensorizer-opt-level=nki"], "internal_tensorizer_opt_level", "nki"),
        (["--print-ir-after", "cse,dce"], "print_ir_after", ("cse", "dce")),
        (["--release", "2.1"], "release", "2.1"),
    ],
)  # fmt: skip
def test_values(argv, key, expected):
    assert value(key, *argv) == expected
    assert parse([*argv, "graph.hlo"], COMPILE).values[key] == expected, "before the model file"
    assert parse([*argv, "graph.hlo"], COMPILE).files == ["graph.hlo"]


@pytest.mark.parametrize(
    ("argv", "key", "expected"),
    [
        (["--auto-cast", "none", "--auto-cast=all"], "auto_cast", "all"),
        (["-O1", "--optlevel", "3", "-O=2"], "optlevel", "2"),
        (
            ["--enable-mixed-precision-accumulation", "--disable-mixed-precision-accumulation"],
            "mixed_precision_accumulation",
            False,
        ),
        (
            ["--disable-mixed-precision-accumulation", "--enable-mixed-precision-accumulation"],
            "mixed_precision_accumulation",
            True,
        ),
        (["--target", "trn2", "--target", "trn1"], "target", "trn1"),
        (["--lnc=2", "-lnc", "1"], "logical_nc_config", "1"),
    ],
)
def test_right_most_wins(argv, key, expected):
    assert value(key, *argv) == expected


@pytest.mark.parametrize(
    ("argv", "code", "mentions"),
    [
        (["--auto-cst", "none"], "EARG901", "--auto-cast"),
        (["--enable-saturate-infinty"], "EARG901", "--enable-saturate-infinity"),
        (["--auto-cast", "matmut"], "EARG902", "matmult"),
        (["--auto-cast"], "EARG902", "needs a value"),
        (["--output", "--target=trn1"], "EARG902", "needs a value"),
        (["--output="], "EARG902", "needs a value"),
        (["--verbose=loud"], "EARG902", "loud"),
        (["--implicit-integer-downcast", "dot,dto"], "EARG902", "dot"),
        (["--enable-saturate-infinity=yes"], "EARG902", "takes no value"),
        (["--target", "trn2"], "EARG904", "trn1, trn1n, inf2"),
        (["--target=trn3"], "EARG904", "trn3"),
        (["--target=gpu"], "EARG902", "gpu"),
        (["--lnc", "2"], "EARG001", "one"),
        (["--framework", "TENSORFLOW"], "EARG902", "XLA"),
        ([f"{number}.hlo" for number in range(32)], "EARG903", "found 33"),
    ],
)
def test_refusals(argv, code, mentions):
    error = refusal("graph.hlo", *argv)
    assert error.code == code
    assert mentions in f"{error.message} {error.remedy}"


def test_double_dash_ends_the_options():
    assert parse(["--auto-cast", "none", "--", "--graph.hlo"], COMPILE).files == ["--graph.hlo"]


@pytest.mark.parametrize(
    ("argv", "position"),
    [
        (["compile", "x"], 0),
        (["--target=trn1", "compile", "x"], 1),
        (["--target", "trn1", "compile", "x"], 2),
        (["--verbose", "35", "compile", "x"], 2),
        (["--verbose", "list-operators"], 1),
        (["--pipeline", "compile", "SaveTemps", "compile", "x"], 3),
        (["--enable-saturate-infinity", "compile", "x"], 1),
        (["--output", "compile", "compile", "x"], 2),
        (["--unheard-of", "compile", "x"], 1),
        (["--help"], None),
        ([], None),
    ],
)
def test_command_is_found_anywhere(argv, position):
    assert find_command(argv, COMMANDS) == position


def test_assignments_add_up():
    parsed = parse(["x.neff", "--set", "dma.queues=8", "--set=tensor.clock_ghz=2"], RUN)
    assert parsed.names("set") == ("dma.queues=8", "tensor.clock_ghz=2")
    assert refusal("x.neff", "--set", "queues", command=RUN).code == "EARG902"


def test_numbers():
    assert parse(["x.neff", "--seed", "7"], RUN).integer("seed") == 7
    assert parse(["x.neff"], RUN).integer_or_none("stochastic_rounding") is None
    for bad in ("-1", "1.5", "seven"):
        assert refusal("x.neff", "--seed", bad, command=RUN).code == "EARG902"


def test_opt_takes_the_precision_options():
    parsed = parse(["x.hlo", "--passes", "cse, dce", "--auto-cast=none"], OPT)
    assert parsed.names("passes") == ("cse", "dce")
    assert parsed.text("auto_cast") == "none"


def test_notices_name_what_has_no_effect():
    argv = ["x", "--model-type=transformer", "--disable-dge", "--tensorizer-options=--a", "--cache_dir=/c", "-lnc=1"]
    parsed = parse(argv, COMPILE)
    lines = parsed.notices()
    assert len(lines) == 2
    assert lines[0].startswith("--model-type has no effect here: ")
    assert "--disable-dge, --tensorizer-options" in lines[1]
    assert not parse(["x", "--model-type=generic", "--no_cache"], COMPILE).notices()


def test_explain_tells_value_and_origin():
    lines = parse(["x", "--auto-cast=matmul", "-O1", "--disable-dge"], COMPILE).explain()
    assert "auto_cast = matmult  (--auto-cast)" in lines
    assert any(line.startswith("optlevel = 1  (-O") for line in lines)
    assert any(line.startswith("auto_cast_type = bf16  (default") for line in lines)
    assert any(line.startswith("disable_dge = on") for line in lines)


def test_recorded_options_leave_out_names_of_files():
    recorded = parse(["x", "--output=a.neff", "--logfile=l", "--auto-cast=all", "--disable-dge"], COMPILE).recorded()
    assert recorded["auto_cast"] == "all"
    assert not {"output", "logfile", "verbose", "disable_dge", "dump"} & set(recorded)


def test_keywords_mean_what_the_command_line_means():
    keywords = {
        "auto_cast": "matmul",
        "optlevel": 1,
        "enable_saturate_infinity": True,
        "disable_mixed_precision_accumulation": True,
        "implicit_integer_downcast": ["dot", "pow"],
        "verbose": "info",
    }
    line = "-O1 --auto-cast=matmult --enable-saturate-infinity --disable-mixed-precision-accumulation"
    argv = [*line.split(), "--implicit-integer-downcast=dot,pow", "--verbose=info"]
    assert from_keywords(COMPILE, keywords).values == parse(argv, COMPILE).values


def test_shared_keyword_of_a_pair_of_flags():
    for setting in (True, False):
        parsed = from_keywords(COMPILE, {"mixed_precision_accumulation": setting})
        assert parsed.flag("mixed_precision_accumulation") is setting
        parsed = from_keywords(COMPILE, {"enable_mixed_precision_accumulation": setting})
        assert parsed.flag("mixed_precision_accumulation") is setting
        parsed = from_keywords(COMPILE, {"disable_mixed_precision_accumulation": setting})
        assert parsed.flag("mixed_precision_accumulation") is not setting


@pytest.mark.parametrize(
    ("keywords", "mentions"),
    [
        ({"autocast": "none"}, "auto_cast"),
        ({"auto_cast": "nothing"}, "none"),
        ({"auto_cast": 3.5}, "float"),
        ({"enable_saturate_infinity": "yes"}, "True or False"),
        ({"target": "trn2"}, "trn2"),
    ],
)
def test_bad_keywords(keywords, mentions):
    with pytest.raises(UsageError, match=mentions):
        from_keywords(COMPILE, keywords)


def test_closest():
    assert closest("--auto-cst", ["--auto-cast", "--output"]) == "; did you mean --auto-cast?"
    assert closest("zzzz", ["--auto-cast"]) == ""


def test_flag_strings_split_as_a_shell_does():
    assert split_flags("-O1 --tensorizer-options='--a --b=1' --lnc 1") == [
        "-O1",
        "--tensorizer-options=--a --b=1",
        "--lnc",
        "1",
    ]
    with pytest.raises(UsageError, match="quotes"):
        split_flags("--x='unclosed")


WORDS = st.one_of(
    st.sampled_from([flag for command in COMMANDS.values() for option in command.options for flag in option.flags]),
    st.sampled_from([value for command in COMMANDS.values() for option in command.options for value in option.values]),
    st.sampled_from([*COMMANDS, "graph.hlo", "--", "-", "", "--=", "-O", "-O9", "=", "--verbose=", "--set=a=b"]),
    st.text(max_size=5),
)


@given(st.lists(WORDS, max_size=8), st.sampled_from(list(COMMANDS.values())))
def test_any_words_are_read_or_refused(argv, command):
    find_command(argv, COMMANDS)
    with contextlib.suppress(UsageError):
        parsed = parse(argv, command)
        assert set(parsed.given) <= set(parsed.values)
        assert parsed.explain()
        parsed.notices()
