"""``neuron-cc``: the command line of the Inf1 compiler, mapped to the same pipeline.

``--fast-math`` and the deprecated ``--fp32-cast`` become auto-cast mode, cast type and relayout (AWS Neuron archive,
neuron-cc command line reference; SDK 1.x). Code is generated for NeuronCore-v2 all the same.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from neuronx_cc.driver import cli, options
from neuronx_cc.driver.failure import Session, guarded
from neuronx_cc.driver.options import Command, Effect, Kind, Option, Value
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.ir.errors import UsageError

PROGRAM = "neuron-cc"

FP32_CASTS = {
    "all": ("all", "bf16"),
    "all-bf16": ("all", "bf16"),
    "all-fp16": ("all", "fp16"),
    "matmult": ("matmult", "bf16"),
    "matmult-bf16": ("matmult", "bf16"),
    "matmult-fp16": ("matmult", "fp16"),
}
"""Value of ``--fp32-cast`` -> (auto-cast mode, cast type)."""

_CASTS = {f"fp32-cast-{name}": cast for name, cast in FP32_CASTS.items()}
_RELAYOUTS = {"fast-relayout": True, "no-fast-relayout": False}
_BASES = {"all": (_CASTS["fp32-cast-all"], True), "none": (_CASTS["fp32-cast-matmult-bf16"], False)}

_FAST_MATH = Option(
    ("--fast-math",),
    Kind.WORDS,
    "casts and relayout, a space-separated list: all (= fp32-cast-all fast-relayout) or none "
    "(= fp32-cast-matmult-bf16 no-fast-relayout), then at most one fp32-cast-* and one of fast-relayout, "
    "no-fast-relayout (transposes by data movement, exact), which override their half",
    values=(*_BASES, *_RELAYOUTS, *_CASTS),
    default=("all",),
)

COMPILE = Command(
    "compile",
    "compile one HLO module (text, HloModuleProto, StableHLO) to a NEFF",
    "MODEL_FILE",
    (
        replace(
            options.FRAMEWORK,
            refused={
                name: ("EARG904", f"{name} models are not read; the model file is XLA HLO")
                for name in ("TENSORFLOW", "MXNET", "ONNX")
            },
        ),
        _FAST_MATH,
        Option(
            ("--fp32-cast",),
            Kind.CHOICE,
            "deprecated: the casting half of --fast-math, which it overrides",
            values=tuple(FP32_CASTS),
        ),
        Option(
            ("--io-config",),
            Kind.QUOTED,
            "names, shapes and types of inputs and outputs, as JSON or file",
            effect=Effect.NO_EFFECT,
            reason="HLO states them itself",
            recorded=False,
        ),
        Option(
            ("--neuroncore-pipeline-cores", "--num-neuroncores"),
            Kind.TEXT,
            "cores that the model is spread over",
            default="1",
            effect=Effect.NO_EFFECT,
            reason="one core is compiled for",
        ),
        options.SATURATE_INFINITY,
        options.FAST_LOADING,
        options.FAST_CONTEXT_SWITCH,
        replace(options.OUTPUT, default="out.neff"),
        options.LOGFILE,
        options.VERBOSE,
        *options.PRINTING,
        *options.OWN,
        Option(
            ("--static-weights",),
            Kind.FLAG,
            "older option",
            effect=Effect.UNDOCUMENTED,
            recorded=False,
        ),
        Option(("--batching_en",), Kind.FLAG, "older option", effect=Effect.UNDOCUMENTED, recorded=False),
        Option(("-O",), Kind.TEXT, "older option", dest="optlevel", effect=Effect.UNDOCUMENTED, recorded=False),
        options.PIPELINE,
    ),
)
LIST_OPERATORS = Command(
    "list-operators",
    "print the supported operators of a framework, one name a line",
    "",
    (
        replace(
            options.FRAMEWORK,
            refused={
                name: ("EARG904", f"{name} models are not read; their operators are not listed")
                for name in ("TENSORFLOW", "MXNET")
            },
        ),
        options.VERBOSE,
    ),
    min_files=0,
    max_files=0,
)
COMMANDS = {command.name: command for command in (COMPILE, LIST_OPERATORS)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default ``sys.argv``) and return the exit status."""
    return guarded(PROGRAM, list(sys.argv[1:] if argv is None else argv), _dispatch)


def fast_math(words: Sequence[str], fp32_cast: str | None = None) -> tuple[str, str, bool]:
    """(auto-cast mode, cast type, fast relayout) of ``--fast-math WORDS`` and ``--fp32-cast``.

    Raises ``UsageError`` when words exclude each other.
    """
    for group in (_BASES, _CASTS, _RELAYOUTS):
        chosen = [word for word in words if word in group]
        if len(chosen) > 1:
            raise UsageError("EARG905", f"--fast-math: {' and '.join(chosen)} exclude each other", "give one of them")
    # what is not said keeps the default, which is all
    cast, relayout = next((_BASES[word] for word in words if word in _BASES), _BASES["all"])
    cast = next((_CASTS[word] for word in words if word in _CASTS), cast)
    relayout = next((_RELAYOUTS[word] for word in words if word in _RELAYOUTS), relayout)
    if fp32_cast is not None:
        cast = FP32_CASTS[fp32_cast]
    return *cast, relayout


def translate(parsed: Parsed) -> Parsed:
    """The same request in the options of ``neuronx-cc compile``."""
    mode, cast_type, relayout = fast_math(parsed.names("fast_math"), parsed.text_or_none("fp32_cast"))
    values: dict[str, Value] = {option.key: option.default for option in options.COMPILE.options}
    values |= {key: value for key, value in parsed.values.items() if key in values and value is not None}
    values |= {"auto_cast": mode, "auto_cast_type": cast_type, "fast_relayout": relayout}
    given = dict(parsed.given)
    cause = given.get("fp32_cast") or given.get("fast_math")
    if cause is not None:
        given |= dict.fromkeys(("auto_cast", "auto_cast_type", "fast_relayout"), cause)
    return Parsed(options.COMPILE, values, parsed.files, given)


def _dispatch(session: Session) -> int:
    return cli.dispatch(session, PROGRAM, COMMANDS, {"compile": _compile, "list-operators": cli.list_operators})


def _compile(session: Session) -> int:
    parsed = session.parsed
    assert parsed is not None
    if parsed.text_or_none("fp32_cast") is not None:
        session.log.warning("--fp32-cast is deprecated; use --fast-math")
    session.parsed = translate(parsed)
    return cli.compile_(session)


if __name__ == "__main__":
    sys.exit(main())
