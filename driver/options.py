"""The command line, declared: every option of every command is one row here.

``help.py`` prints these rows, ``parse.py`` reads command lines and Python keywords by them, and the
effective values go into the log and the NEFF. Names, values and defaults follow the public AWS Neuron compiler
reference (SDK 2.3 to 2.32); what other projects pass without documentation is accepted with a notice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from neuronx_cc.ir.targets import MAX_DEVICES

Value = str | int | bool | None | tuple[str, ...]
"""What an option can hold."""

CAST_TYPES = ("bf16", "fp16", "tf32", "fp8_e4m3")
"""Types that FP32 values can be cast to."""
TUNE_TYPES = (*CAST_TYPES, "int8")
"""Those that are tried: ``int8`` are weights in 8 bits beside BF16."""
TUNE_STRATEGIES = ("error-model", "auto", "basic", "mse", "mse_v2", "conservative")
"""The model of errors, which is ``auto`` too, and strategies that go op by op, by the names they are known by."""
TUNE_OBJECTIVES = ("time", "memory")


class Effect(Enum):
    """What giving the option does here."""

    HONOURED = "honoured"
    NO_EFFECT = "documented by the vendor, no effect here"
    UNDOCUMENTED = "accepted for scripts that pass it, no effect here"
    WRAPPER = "for the framework wrapper that calls the compiler, no effect here"


class Kind(Enum):
    """How an option takes its value."""

    FLAG = "flag"
    TEXT = "text"
    """One word; a word that starts with a dash needs the ``--option=word`` form."""
    CHOICE = "choice"
    INTEGER = "integer"
    LEVEL = "level"
    """Severity name or Python logging number; may be left out."""
    NAMES = "names"
    """Comma list."""
    WORDS = "words"
    """Space list: every following word out of ``values``, each once."""
    ASSIGNMENTS = "assignments"
    """``key=value``; repeated options add up."""
    REPEATED = "repeated"
    """One word; repeated options add up."""
    POLICY = "policy"
    """A file of precision rules, or the rules as JSON; they are what is stored."""
    QUOTED = "quoted"
    """One word that is an option string itself and may start with a dash."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: spellings (canonical first), how it takes its value, what it means."""

    flags: tuple[str, ...]
    kind: Kind
    doc: str
    dest: str = ""
    """Key of the value, and the Python keyword; flags that exclude each other share one."""
    values: tuple[str, ...] = ()
    default: Value = None
    const: bool = True
    """What a FLAG stores."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    metavar: str = ""
    effect: Effect = Effect.HONOURED
    reason: str = ""
    """Why it has no effect here."""
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Legal values that cannot be met here: value -> (error code, sentence)."""
    recorded: bool = True
    """Written into the NEFF; false for file names and printing, so that equal programs are equal bytes."""

    @property
    def name(self) -> str:
        return self.flags[0]

    @property
    def key(self) -> str:
        return self.dest or self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its options and how many files it takes."""

    name: str
    doc: str
    positional: str
    options: tuple[Option, ...]
    min_files: int = 1
    max_files: int = 1
    terms: tuple[tuple[str, str], ...] = ()
    """Words of what it prints, and what they mean."""


READ = ("inputs", "weights", "constants", "module", "machine", "diff")
"""Keys of options that name a file to read."""
WRITTEN = ("output", "outputs", "save_weights", "trace", "dump_precision", "logfile")
"""Keys of options that name a file to write."""
LEVELS = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "user": 35, "error": 40, "critical": 50}
RELEASES = ("2.1", "2.2", "2.3", "latest")
INTEGER_DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")


def _plain(name: str, doc: str, kind: Kind = Kind.TEXT, metavar: str = "", **fields: object) -> Option:
    return Option((name,), kind, doc, metavar=metavar, recorded=False, **fields)  # type: ignore[arg-type]


def _output(doc: str, metavar: str = "FILE", default: str | None = None) -> Option:
    return Option(("--output", "-o"), Kind.TEXT, doc, metavar=metavar, default=default, recorded=False)


def _undocumented(*flags: str, kind: Kind = Kind.TEXT, doc: str, values: tuple[str, ...] = ()) -> Option:
    return Option(flags, kind, doc, values=values, effect=Effect.UNDOCUMENTED, recorded=False)


def _wrapper(name: str, kind: Kind, doc: str) -> Option:
    return Option((name,), kind, doc, effect=Effect.WRAPPER, recorded=False)


VERBOSE = _plain(
    "--verbose",
    "lowest severity printed: debug, info, warning, error, critical or a Python logging number "
    "(35 hides warnings); info and debug go to stdout, warnings and errors to stderr",
    Kind.LEVEL,
    "LEVEL",
    values=tuple(LEVELS),
    default=LEVELS["warning"],
)
LOGFILE = _plain("--logfile", "log file; receives every severity", metavar="FILE", default="log-neuron-cc.txt")
OPTIONAL_LOGFILE = _plain("--logfile", "log file; receives every severity", metavar="FILE")
OUTPUT = _output("NEFF to write", default="file.neff")
PIPELINE = _plain(
    "--pipeline",
    "stages, as scripts of the vendor's compiler name them: compile is all there is, SaveTemps keeps the module, the "
    "IR after every stage and the instructions in a folder neuronxcc-* of its own",
    Kind.WORDS,
    values=("compile", "SaveTemps"),
    default=("compile",),
)
FRAMEWORK = Option(
    ("--framework",),
    Kind.CHOICE,
    "framework the model file comes from",
    values=("XLA",),
    default="XLA",
    reason="XLA is the only framework",
)
RELEASE = Option(
    ("--release",),
    Kind.CHOICE,
    "vendor release whose operator set and constraints are checked; latest has the general forms",
    values=RELEASES,
    default="latest",
)
SATURATE_INFINITY = Option(
    ("--enable-saturate-infinity",),
    Kind.FLAG,
    "clamp infinities among 16- and 8-bit operands of contractions to the largest finite value, ahead of the "
    "transposes that the compiler itself puts on the matrix engine, where infinity times zero would be NaN",
    dest="saturate_infinity",
    default=False,
)
FAST_CONTEXT_SWITCH = Option(
    ("--enable-fast-context-switch",),
    Kind.FLAG,
    "load some constants when execution starts instead of when the model loads",
    default=False,
    effect=Effect.NO_EFFECT,
    reason="the simulator places all constants when it loads the NEFF",
)
FAST_LOADING = Option(
    ("--enable-fast-loading-neuron-binaries",),
    Kind.FLAG,
    "store the NEFF payload uncompressed",
    dest="fast_loading_neuron_binaries",
    default=False,
)

PRECISION = (
    Option(
        ("--auto-cast",),
        Kind.CHOICE,
        "which FP32 operations are cast to --auto-cast-type: none; matmult, those of the matrix engine; all. "
        "Inputs, outputs, partial sums and non-FP32 values are never cast. Default as in the first releases; "
        "from SDK 2.27 on the vendor's compiler defaults to none",
        values=("none", "matmult", "all"),
        default="matmult",
        synonyms={"matmul": "matmult"},
    ),
    Option(
        ("--auto-cast-type",),
        Kind.CHOICE,
        "type that --auto-cast casts to",
        values=CAST_TYPES,
        default="bf16",
    ),
    Option(
        ("--precision-policy",),
        Kind.POLICY,
        "types op by op: a TOML or JSON file of rules, or the rules as JSON; they count more than --auto-cast",
        metavar="FILE",
    ),
    Option(
        ("--quantize-weights",),
        Kind.TEXT,
        "stores constant operands of matrix products in 8 bits, with a scale for each output channel: int8 or fp8_e4m3 "
        "by the largest magnitude, int8@99.9 by that percentile of them; rules of a policy count more",
        metavar="FORMAT[@PERCENTILE]",
    ),
    Option(
        ("--keep-fp32",),
        Kind.REPEATED,
        "ops that stay in FP32: a regular expression for their names or op_name paths, or FILE:LINE; may be repeated",
        metavar="REGEX|FILE:LINE",
        default=(),
    ),
    Option(
        ("--implicit-integer-downcast",),
        Kind.NAMES,
        "integer operations that may compute in FP32 (exact to 2^24) or 32 bits: default (= all), all, none, or a "
        "comma list of dot, scatter, all_reduce, reduce_scatter, pow",
        values=("default", "all", "none", *INTEGER_DOWNCASTS),
        default=("default",),
        metavar="LIST",
    ),
    Option(
        ("--enable-mixed-precision-accumulation",),
        Kind.FLAG,
        "reductions of 16-bit values, and ops that follow 16-bit contractions, run in FP32 and are cast back (default)",
        dest="mixed_precision_accumulation",
        default=True,
    ),
    Option(
        ("--disable-mixed-precision-accumulation",),
        Kind.FLAG,
        "turns the above off",
        dest="mixed_precision_accumulation",
        default=True,
        const=False,
    ),
    Option(
        ("--fast-relayout",),
        Kind.FLAG,
        "16- and 8-bit operands of contractions are transposed by the matrix engine as values (default): nothing is "
        "rounded, but an infinity or NaN spreads over its 128 rows; FP32 is always transposed bit for bit",
        default=True,
    ),
    Option(
        ("--no-fast-relayout",),
        Kind.FLAG,
        "every transpose moves bits, and groups of a convolution share no products",
        dest="fast_relayout",
        default=True,
        const=False,
    ),
    Option(
        ("--fp64-as-fp32",),
        Kind.FLAG,
        "compute FP64 in FP32 instead of refusing it; inputs and outputs stay FP64 and are converted on the device",
        dest="fp64_as_fp32",
        default=False,
    ),
    Option(
        ("--int64",),
        Kind.CHOICE,
        "64-bit integers: computed exactly, in two words where 32 bits do not hold them, or truncated to 32 bits",
        values=("exact", "truncate"),
        default="truncate",
    ),
    SATURATE_INFINITY,
    Option(
        ("--nan-codes",),
        Kind.FLAG,
        "f8e4m3fn parameters of contractions may hold NaNs, which the program finds: products of many codes take up to "
        "one and a half times as long; without it each run looks at such parameters first, and refuses NaNs",
        dest="nan_codes",
        default=False,
    ),
    RELEASE,
)

MACHINE = (
    _plain(
        "--machine",
        "machine description (of compile: to plan for; of run: to run on) instead of the target's: a file or a target",
        metavar="FILE",
    ),
    Option(
        ("--set",),
        Kind.ASSIGNMENTS,
        "override one value of the machine description",
        metavar="KEY=VALUE",
        default=(),
    ),
)
"""Of ``compile``: the machine that the program is planned for. Of ``run``: the one that it runs on."""

SHAPES = (
    Option(
        ("--shape",),
        Kind.ASSIGNMENTS,
        "dimensions of an input of the model, or the size of a dimension that it has a name for; may be repeated",
        metavar="NAME=1,128",
        default=(),
    ),
    Option(
        ("--value",),
        Kind.ASSIGNMENTS,
        "numbers that make an input of the model a constant; shapes may follow from it; may be repeated",
        metavar="NAME=1,2",
        default=(),
    ),
    Option(
        ("--signature",),
        Kind.TEXT,
        "signature of a SavedModel; default: serving_default, or its only one",
        metavar="NAME",
    ),
    Option(
        ("--constants",),
        Kind.TEXT,
        "an .npz file of parameters, by any of their names, that become constants of the program",
        metavar="FILE",
    ),
)
"""What fixes a framework's model whose shapes are open, and parameters of any."""

WEIGHTS = (
    Option(
        ("--inline-weights-to-neff",),
        Kind.FLAG,
        "weights of a Keras, TensorFlow or PyTorch model are constants of the program (default)",
        default=True,
    ),
    Option(
        ("--no-inline-weights-to-neff",),
        Kind.FLAG,
        "they are parameters after the inputs, called as the framework calls them",
        dest="inline_weights_to_neff",
        default=True,
        const=False,
    ),
)

DEVICES = (
    _plain(
        "--num-replicas",
        "replicas that the module is for, where it does not say so itself; default: as many as its groups name",
        Kind.INTEGER,
        "N",
    ),
    _plain("--num-partitions", "the same of partitions", Kind.INTEGER, "N"),
    Option(
        ("--keep-collectives",),
        Kind.FLAG,
        "the other devices run programs of their own: collectives stay, in the order of the module, whether "
        "their results are used or not; always so where several modules are compiled",
        default=False,
    ),
)
PRINTING = (
    _plain("--print-ir-before", "print the IR before these passes (comma list, or all)", Kind.NAMES, "PASSES"),
    _plain("--print-ir-after", "print the IR after these passes (comma list, or all)", Kind.NAMES, "PASSES"),
    _plain("--verify-each", "verify the IR after every pass", Kind.FLAG, default=False),
    _plain("--time-passes", "print the time of every pass; of opt, to stderr", Kind.FLAG, default=False),
)

TABLES = (
    _plain("--top", "so many rows a table; of run, HLO ops then come with FLOPs, bytes and bound", Kind.INTEGER, "N"),
    _plain("--all", "all rows of the tables", Kind.FLAG, default=False),
)
JSON = _plain("--json", "print what was done, or the error, as JSON", Kind.FLAG, default=False)

DOCUMENTED = (
    FRAMEWORK,
    Option(
        ("--target",),
        Kind.CHOICE,
        "device family to compile for",
        values=("trn1", "trn1n", "inf2"),
        default="trn1",
        refused={
            name: ("EARG904", f"target {name} has another core generation; NeuronCore-v2 is compiled for")
            for name in ("trn2", "trn3", "inf1")
        },
    ),
    Option(
        ("--model-type",),
        Kind.CHOICE,
        "class of model, a hint for heuristics",
        values=("generic", "transformer", "unet-inference", "cnn-training"),
        default="generic",
        synonyms={"transformer-inference": "transformer"},
        effect=Effect.NO_EFFECT,
        reason="one set of heuristics serves every model",
    ),
    Option(
        ("--native-int64",),
        Kind.CHOICE,
        "64-bit integers on devices that have them",
        values=("default", "enabled", "disabled"),
        default="default",
        effect=Effect.NO_EFFECT,
        reason="trn1, trn1n and inf2 have none; --int64 says what is done instead",
    ),
    Option(
        ("--distribution-strategy", "--distribution_strategy"),
        Kind.CHOICE,
        "training strategy to optimise for",
        values=("generic", "llm-training", "FSDP"),
        default="generic",
        synonyms={"NEMO": "llm-training", "nemo": "llm-training"},
        effect=Effect.NO_EFFECT,
        reason="one core is compiled for",
    ),
    Option(
        ("--logical-nc-config", "--lnc", "-lnc"),
        Kind.CHOICE,
        "physical cores joined as one logical core; this device family allows 1 only",
        values=("1",),
        default="1",
        refused={"2": ("EARG001", "this device family cannot join physical cores: one logical core is one core")},
    ),
    Option(
        ("--optlevel", "-O", "--O"),
        Kind.CHOICE,
        "1 the first good schedule of each contraction, for least compile time; 2 the best by estimate; 3 the best by "
        "timing the whole program with others in their place",
        values=("1", "2", "3"),
        default="2",
    ),
    FAST_CONTEXT_SWITCH,
    FAST_LOADING,
    OUTPUT,
    LOGFILE,
    VERBOSE,
)

OWN = (
    Option(
        ("--search-seconds",),
        Kind.INTEGER,
        "-O3 tries other schedules for so long; what it measured is kept beside the compile cache, where the next "
        "search goes on",
        metavar="N",
        default=60,
    ),
    Option(
        ("--search-candidates",),
        Kind.INTEGER,
        "-O3 tries at most so many schedules; where the time does not run out first, the outcome depends on no clock",
        metavar="N",
    ),
    _plain("--print-schedules", "print what was decided about each contraction, a line each", Kind.FLAG, default=False),
    _plain("--save-weights", "write the weights that are parameters, for run --weights", metavar="FILE"),
    _plain("--dump-precision", "write for each op what was cast to what and why", metavar="FILE"),
    _plain("--dump", "write the input, the IR after every stage and the options there", metavar="DIR"),
    _plain("--explain-options", "print every effective option and where it came from", Kind.FLAG, default=False),
    JSON,
)

_DGE_LEVELS = (
    "vector_dynamic_offsets",
    "scalar_dynamic_offset",
    "vector_dynamic_size",
    "spill_reload",
    "dst_reduce",
    "io",
    "none",
)

UNDOCUMENTED = (
    PIPELINE,
    Option(
        ("--workdir", "--compile_workdir"),
        Kind.TEXT,
        "where SaveTemps and reproducers of internal errors make their folders",
        metavar="DIR",
        recorded=False,
    ),
    _undocumented("--execute-repetition", doc="benchmark repetitions"),
    _undocumented("--enable-internal-neff-wrapper", kind=Kind.FLAG, doc="wrap the NEFF entry point"),
    _undocumented("--disable-dge", kind=Kind.FLAG, doc="no dynamic DMA descriptor generation"),
    _undocumented("--disable-internal-io-dge", kind=Kind.FLAG, doc="the same for inputs and outputs"),
    _undocumented(
        "--internal-enable-dge-levels",
        kind=Kind.WORDS,
        doc="accesses with dynamic DMA descriptors",
        values=_DGE_LEVELS,
    ),
    _undocumented("--internal-max-instruction-limit", doc="instruction limit"),
    _undocumented("--internal-num-neuroncores-per-sengine", doc="older spelling of --lnc"),
    _undocumented("--internal-tensorizer-opt-level", doc="middle-end level"),
    _undocumented("--internal-compiler-debug-mode", doc="keep IR dumps"),
    _undocumented("--internal-print-after", doc="dump the back-end IR after a pass"),
    _undocumented("--enable-internal-data-race-checker", kind=Kind.FLAG, doc="race check; the simulator always does"),
    _undocumented("--internal-backend-options", kind=Kind.QUOTED, doc="back-end options"),
    _undocumented("--internal-hlo2tensorizer-options", kind=Kind.QUOTED, doc="import options"),
    _undocumented("--tensorizer-options", kind=Kind.QUOTED, doc="middle-end options"),
    _undocumented("--no-internal-hlo-remat", kind=Kind.FLAG, doc="no rematerialisation"),
    _undocumented("--hbm-scratchpad-page-size", doc="scratchpad page, MB"),
    _undocumented("--enable-experimental-O1", kind=Kind.FLAG, doc="2023 beta of -O1"),
    _undocumented("--num-parallel-jobs", doc="parallel compile jobs of that beta"),
    _undocumented("--neuroncore-pipeline-cores", "--num-neuroncores", doc="cores a model is spread over"),
    _undocumented("--query-compute-placement", kind=Kind.FLAG, doc="used by neuron_parallel_compile analyze"),
)

WRAPPER = (
    _wrapper("--cache_dir", Kind.TEXT, "compile cache"),
    _wrapper("--no_cache", Kind.FLAG, "no compile cache"),
    _wrapper("--log_level", Kind.TEXT, "verbosity of the wrapper"),
    _wrapper("--retry_failed_compilation", Kind.FLAG, "do not reuse cached failures"),
)

COMPILE = Command(
    "compile",
    "compile a model to a NEFF: HLO (text, HloModuleProto), StableHLO, ONNX, .pt2, .keras, a SavedModel, jax.export; "
    "several modules to a NEFF each, programs of devices 0, 1, ... whose collectives meet: --output is then a folder",
    "MODEL_FILE...",
    (*DOCUMENTED, *MACHINE, *DEVICES, *SHAPES, *WEIGHTS, *PRECISION, *PRINTING, *OWN, *UNDOCUMENTED, *WRAPPER),
    max_files=MAX_DEVICES,
)
TERMS = (
    ("preamble, postamble", "what the runtime does ahead of a program's first instruction and after its last one"),
    ("active", "share of the time in which an engine works on at least one instruction; dma: of all DMA engines"),
    (
        "waited for",
        "what kept an engine from its next instruction: the engine or queue whose result it needs, or a cause of its "
        "own such as a function table to load; the three longest",
    ),
    ("critical path", "the chain of instructions and waits whose times add up to the time of the run"),
    ("bound by", "what most of an op's time on the critical path is spent on: an engine, DMA, latency or waiting"),
    (
        "roofline",
        "the least time that an op's products at TensorE's peak, or its bytes at HBM's bandwidth, would take",
    ),
    (
        "of peak (adjusted)",
        "FLOPs over what TensorE could do in 16-bit types in the time of the run; FP32 counts its passes",
    ),
    ("hardware FLOPs", "those of TensorE, with FP32 products counted twice, transposes among them"),
    ("HLO op", "instructions by the op that they come from; of a kernel of several ops, loads count for one of them"),
)
"""What ``run`` and ``report`` print, explained."""

LIST_OPERATORS = Command(
    "list-operators",
    "print the supported operators by their XlaBuilder names; with --verbose also opcode, dtypes, constraint",
    "",
    (FRAMEWORK, RELEASE, replace(JSON, doc="print every operator with its facts as JSON"), VERBOSE),
    min_files=0,
    max_files=0,
)
RUN = Command(
    "run",
    "execute a NEFF on the simulated device, or several together: those of devices 0, 1, ...",
    "NEFF...",
    (
        _plain(
            "--inputs",
            ".npz of inputs, keyed arg0, arg1, ..., by the names of the JAX function's arguments such as "
            "params['w'], or by those of HLO; inspect lists them",
            metavar="FILE",
        ),
        _plain(
            "--weights",
            ".npz of the weights that are parameters, as compile --save-weights writes it; --inputs has the others",
            metavar="FILE",
        ),
        _plain("--outputs", ".npz to write, keyed as the model calls its outputs, or out0, out1, ...", metavar="FILE"),
        _plain(
            "--devices",
            "devices that run the program together, as many as it was compiled for; inputs and outputs of device 3 are "
            "arg0@3 and out0@3, arg0 is every device's",
            Kind.INTEGER,
            "N",
            default=1,
        ),
        _plain("--seed", "seed of the random inputs used without --inputs", Kind.INTEGER, "N", default=0),
        _plain("--timing-only", "simulate time without values", Kind.FLAG, default=False),
        _plain(
            "--stochastic-rounding",
            "round FP32 results stored in narrower float types stochastically, with this seed",
            Kind.INTEGER,
            "SEED",
        ),
        _plain(
            "--simulator",
            "what computes the values: the native core, NumPy, or the core where it was built",
            Kind.CHOICE,
            values=("auto", "native", "numpy"),
        ),
        _plain("--trace", "write a Chrome/Perfetto trace", metavar="FILE"),
        _plain(
            "--check",
            "also say how far outputs are from FP32 semantics and which casts make them so, and whether every op "
            "computes what the compiled module means; exit status 1 if one does not",
            Kind.FLAG,
            default=False,
        ),
        _plain(
            "--fp64",
            "with --check: say how far outputs, and FP32 semantics, are from FP64; for programs that amplify last bits",
            Kind.FLAG,
            default=False,
        ),
        _plain("--module", "the module that the NEFF was compiled from, for --check", metavar="FILE"),
        _plain("--json", "print the report as JSON", Kind.FLAG, default=False),
        *TABLES,
        *MACHINE,
        OPTIONAL_LOGFILE,
        VERBOSE,
    ),
    max_files=MAX_DEVICES,
    terms=TERMS,
)
INSPECT = Command(
    "inspect",
    "print signature, options, memory map and instruction counts of a NEFF",
    "NEFF",
    (
        _plain("--disassemble", "print every instruction with its HLO op", Kind.FLAG, default=False),
        _plain("--json", "print as JSON", Kind.FLAG, default=False),
        VERBOSE,
    ),
)
REPORT = Command(
    "report",
    "explain where the time of a NEFF goes: one HTML page that needs no network, or JSON",
    "NEFF",
    (
        _output("page to write", default="report.html"),
        _plain("--json", "print everything the page says as JSON, and write no page", Kind.FLAG, default=False),
        _plain("--diff", "another NEFF, to which this one is compared", metavar="NEFF"),
        *TABLES,
        *MACHINE,
        OPTIONAL_LOGFILE,
        VERBOSE,
    ),
    terms=TERMS,
)
OPT = Command(
    "opt",
    "run single passes on a module and print the IR as HLO text",
    "MODEL_FILE",
    (
        _plain(
            "--passes",
            "passes in order (comma list), or none to print the import; default: the whole pipeline",
            Kind.NAMES,
            "PASSES",
        ),
        _output("file to write instead of stdout"),
        *MACHINE,
        *SHAPES,
        *WEIGHTS,
        *DEVICES,
        *PRECISION,
        *PRINTING,
        _plain("--dump-precision", "write for each op what was cast to what and why", metavar="FILE"),
        OPTIONAL_LOGFILE,
        VERBOSE,
    ),
)
JOBS = (
    _plain("--workers", "processes that compile at once; default: one for each processor", Kind.INTEGER, "N"),
    _plain(
        "--scheduler", "address of a Dask cluster whose workers compile instead: tcp://HOST:8786", metavar="ADDRESS"
    ),
)
SWEPT = Option(
    ("--option",),
    Kind.ASSIGNMENTS,
    "the same of an option of compile, without dashes: auto-cast=none,matmult",
    metavar="OPTION=VALUE,VALUE...",
    default=(),
    recorded=False,
)
"""An option of ``compile`` with its values."""
TUNE = Command(
    "tune",
    "find the types in which a model is fastest at an error, or a loss, that is tolerated; write them as a policy",
    "MODEL_FILE",
    (
        _plain("--inputs", ".npz of inputs, as for run; random ones without", metavar="FILE"),
        _plain("--seed", "seed of the random inputs used without --inputs", Kind.INTEGER, "N", default=0),
        _plain("--tolerance", "largest relative error of an output (2-norm)", metavar="ERROR", default="0.01"),
        _plain(
            "--evaluate",
            "a function of the program, which takes and gives lists of arrays, to a number: judged in place of errors",
            metavar="MODULE:FUNCTION",
        ),
        _plain(
            "--tolerable-loss",
            "share of that number in FP32 that may be lost",
            metavar="SHARE",
            default="0.01",
        ),
        _plain("--absolute-loss", "--tolerable-loss is a difference, not a share", Kind.FLAG, default=False),
        _plain("--lower-is-better", "of the number of --evaluate", Kind.FLAG, default=False),
        _plain(
            "--types",
            "types to choose from, FP32 besides",
            Kind.NAMES,
            values=TUNE_TYPES,
            default=TUNE_TYPES,
        ),
        _plain(
            "--strategy",
            "auto: by a model of errors and times; the others go op by op until the error is tolerated",
            Kind.CHOICE,
            values=TUNE_STRATEGIES,
            default=TUNE_STRATEGIES[0],
        ),
        _plain(
            "--objective",
            "what is to be small: simulated time, or the HBM that parameters, constants and results take",
            Kind.CHOICE,
            values=TUNE_OBJECTIVES,
            default=TUNE_OBJECTIVES[0],
        ),
        _plain("--max-trials", "compilations of the whole model to make at most", Kind.INTEGER, "N", default=1000),
        _plain("--timeout", "seconds after which nothing more is tried; 0: none", Kind.INTEGER, "N", default=0),
        _plain("--front", "points of the Pareto front to look for besides", Kind.INTEGER, "N", default=0),
        replace(JOBS[0], doc="processes that make trials at once", default=1),
        JOBS[1],
        _plain("--workspace", "keeps what was measured there; a tuning that was stopped goes on", metavar="DIR"),
        _output("policy to write", default="policy.json"),
        _plain("--chart", "SVG image of the Pareto front to write", metavar="FILE"),
        _plain("--json", "print the result as JSON", Kind.FLAG, default=False),
        *SHAPES,
        *MACHINE,
        OPTIONAL_LOGFILE,
        VERBOSE,
    ),
)
SWEEP = Command(
    "sweep",
    "compile a module for many machines or with many options, and print a table of simulated times",
    "MODEL_FILE",
    (
        Option(
            ("--set",),
            Kind.ASSIGNMENTS,
            "values of the machine description to go through; of several keys every combination",
            metavar="KEY=VALUE,VALUE...",
            default=(),
            recorded=False,
        ),
        SWEPT,
        *JOBS,
        _plain("--json", "print the table as JSON", Kind.FLAG, default=False),
        OPTIONAL_LOGFILE,
        VERBOSE,
    ),
)
BATCH = Command(
    "batch",
    "compile many modules, each to a NEFF beside it or in a folder; a list has one path a line",
    "LIST",
    (
        _output("folder of the NEFFs", "DIR"),
        replace(
            SWEPT,
            doc="an option of compile for all of them, without dashes: auto-cast=none",
            metavar="OPTION=VALUE",
        ),
        *JOBS,
        _plain("--json", "print the table as JSON", Kind.FLAG, default=False),
        OPTIONAL_LOGFILE,
        VERBOSE,
    ),
)
COMMANDS = {
    command.name: command for command in (COMPILE, LIST_OPERATORS, RUN, REPORT, TUNE, SWEEP, BATCH, INSPECT, OPT)
}
