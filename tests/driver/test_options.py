"""The option table itself: complete against the vendor's reference, consistent, and described by --help."""

import re

import pytest

from neuronx_cc.driver import neuron_cc, options
from neuronx_cc.driver.help import command_help, overview
from neuronx_cc.driver.options import Effect, Kind

DOCUMENTED = [
    "--framework",
    "--target",
    "--model-type",
    "--auto-cast",
    "--auto-cast-type",
    "--native-int64",
    "--implicit-integer-downcast",
    "--distribution-strategy",
    "--distribution_strategy",
    "--logical-nc-config",
    "-lnc",
    "--lnc",
    "--optlevel",
    "-O",
    "--enable-mixed-precision-accumulation",
    "--disable-mixed-precision-accumulation",
    "--enable-saturate-infinity",
    "--enable-fast-context-switch",
    "--enable-fast-loading-neuron-binaries",
    "--logfile",
    "--output",
    "--verbose",
]

UNDOCUMENTED = [
    "--pipeline",
    "--workdir",
    "--compile_workdir",
    "--execute-repetition",
    "--enable-internal-neff-wrapper",
    "--disable-dge",
    "--disable-internal-io-dge",
    "--internal-enable-dge-levels",
    "--internal-max-instruction-limit",
    "--internal-num-neuroncores-per-sengine",
    "--internal-tensorizer-opt-level",
    "--internal-compiler-debug-mode",
    "--internal-print-after",
    "--enable-internal-data-race-checker",
    "--internal-backend-options",
    "--internal-hlo2tensorizer-options",
    "--tensorizer-options",
    "--no-internal-hlo-remat",
    "--hbm-scratchpad-page-size",
    "--enable-experimental-O1",
    "--num-parallel-jobs",
    "--neuroncore-pipeline-cores",
    "--query-compute-placement",
]

WRAPPER = ["--cache_dir", "--no_cache", "--log_level", "--retry_failed_compilation"]

ALL_COMMANDS = [*options.COMMANDS.values(), *neuron_cc.COMMANDS.values()]


def spellings(command):
    return [flag for option in command.options for flag in option.flags]


@pytest.mark.parametrize("flag", [*DOCUMENTED, *UNDOCUMENTED, *WRAPPER])
def test_every_option_users_pass_is_known(flag):
    assert flag in spellings(options.COMPILE)


@pytest.mark.parametrize("flag", sorted(set(UNDOCUMENTED) - {"--pipeline", "--workdir", "--compile_workdir"}))
def test_undocumented_options_are_marked(flag):
    option = next(option for option in options.COMPILE.options if flag in option.flags)
    assert option.effect is Effect.UNDOCUMENTED


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda command: command.name)
def test_rows_are_consistent(command):
    flags = spellings(command)
    assert len(flags) == len(set(flags))
    by_key = {}
    for option in command.options:
        assert option.doc
        assert (option.effect is Effect.NO_EFFECT) <= bool(option.reason)
        assert by_key.setdefault(option.key, option.default) == option.default, "one default for each key"
        if option.kind is Kind.CHOICE:
            assert option.default is None or option.default in option.values
            assert not set(option.refused) & set(option.values)
        assert set(option.synonyms.values()) <= set(option.values)


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda command: command.name)
def test_help_describes_every_option(command):
    text = " ".join(command_help("neuronx-cc", command).split())
    for option in command.options:
        for flag in option.flags:
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), flag
        assert option.doc in text
        if option.effect is Effect.NO_EFFECT:
            assert option.reason in text


def test_overview_names_every_command():
    text = overview("neuronx-cc", options.COMMANDS)
    assert all(name in text for name in options.COMMANDS)
