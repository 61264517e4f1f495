"""The catalogue of error codes, and how errors are printed.

Codes up to 899 are the vendor's, used where the meaning matches (AWS Neuron error-code pages, SDK 2.32); codes from
901 are this project's, in the vendor's area names. ``INTERNAL`` is a defect of this compiler. A test holds the
catalogue complete: every code raised anywhere has its entry here.
"""

from dataclasses import asdict, dataclass
from typing import Any

from neuronx_cc.ir.errors import COMPILE_AGAIN, NO_LOC, PLAN_ANEW, NeuronError


@dataclass(frozen=True, slots=True)
class Entry:
    """What a code means and the general remedy, for errors that give no closer one."""

    title: str
    meaning: str
    remedy: str


CATALOGUE: dict[str, Entry] = {
    # options and files
    "EARG001": Entry(
        "logical core setting not possible",
        "--logical-nc-config asks for more physical cores than the target can join.",
        "use --lnc 1",
    ),
    "EARG901": Entry("unknown option", "No command or option has this name.", "see --help"),
    "EARG902": Entry("bad option value", "The option does not take this value.", "see --help"),
    "EARG903": Entry("wrong number of files", "The command takes another number of files.", "see --help"),
    "EARG904": Entry("target not supported", "Code is generated for NeuronCore-v2 only.", "use trn1, trn1n or inf2"),
    "EARG905": Entry("contradicting options", "These options exclude each other.", "give one of them"),
    "EARG906": Entry("not a module", "The Python API was given something that is no HLO.", "pass HLO or a lowered JAX"),
    "EARG907": Entry(
        "bad machine description", "A machine description or setting is not valid.", "see runtime/machines"
    ),
    "EARG908": Entry("program too large", "The machine has less memory than the program needs.", "compile it for that"),
    "EARG909": Entry(
        "bad precision policy", "A precision policy is malformed.", "see the guide on precision for the form of a rule"
    ),
    "EARG910": Entry(
        "rule without ops", "A rule of a precision policy matches no op of the module.", "correct its patterns"
    ),
    "EARG911": Entry(
        "rule without effect",
        "A rule of a precision policy matches ops that the compiler has simplified away, that are never cast, or whose "
        "weights have no codes of 8 bits, or are too small to be read in less time so.",
        "drop it",
    ),
    "EARG912": Entry(
        "evaluator", "A function that judges a program cannot be called, or gives no number.", "correct the function"
    ),
    "EARG913": Entry(
        "tolerance not met", "Nothing that was tried meets the tolerance.", "tolerate more, or look at --check"
    ),
    "EARG914": Entry("framework missing", "The model needs a package that is not installed.", "install it"),
    "EARG915": Entry(
        "bad shape",
        "--shape, --value, --signature or --constants does not fit the model.",
        "give each open input its dimensions, and each constant those of its parameter",
    ),
    "EFIL901": Entry("unreadable file", "A file cannot be opened or read.", "check path and permissions"),
    "EFIL902": Entry("unwritable file", "A file cannot be written; nothing partial is left.", "choose another place"),
    "EFIL903": Entry(
        "external data", "Data of a model that lies in other files is missing, or lies elsewhere.", "copy it beside it"
    ),
    # structure and shapes
    "EMOD025": Entry(
        "dynamic shape",
        "A dimension is not known at compile time; the compiler works ahead of time on static shapes.",
        "pad or bucket to static shapes",
    ),
    "EVRF064": Entry(
        "malformed HLO",
        "The module breaks a rule of HLO: its syntax, a shape, a type or an attribute.",
        "check the named instruction, and how the module was written",
    ),
    "EVRF901": Entry(
        "nested too deep", "Loops and branches are nested deeper than there are registers.", "make one loop of several"
    ),
    # operators
    "EUOC002": Entry("unsupported operator", "No implementation exists.", "see neuronx-cc list-operators"),
    "EVRF001": Entry("unsupported operator", "No implementation exists.", "see neuronx-cc list-operators"),
    "EHCA005": Entry("unknown custom call", "The custom-call target is not known.", "use a known target"),
    "EHCA901": Entry(
        "host call in a file",
        "A program that calls functions of the host process can be run in that process only.",
        "run it through JAX, or take jax.debug.print and callbacks out",
    ),
    "EVRF015": Entry("unknown custom call", "The custom-call target is not known.", "use a known target"),
    "EVRF006": Entry("random algorithm", "rng-bit-generator supports rng_default only.", "use standard random APIs"),
    "EVRF010": Entry("convolution dilation", "Input and kernel dilation at once.", "drop one of them"),
    "EVRF011": Entry("convolution stride", "Stride and input dilation at once.", "use stride 1 or no input dilation"),
    "EVRF013": Entry("integer top-k", "TopK does not take integers.", "cast to a float type"),
    "EVRF014": Entry("top-k too large", "k exceeds 16384.", "use a smaller k"),
    "EVRF016": Entry("integer scatter", "Scatter with a reduction on integers or booleans.", "cast to f32 or bf16"),
    "EVRF017": Entry("window base dilation", "reduce-window with base dilation.", "remove the dilation"),
    "EVRF018": Entry("window dilation", "reduce-window with window dilation.", "remove the dilation"),
    "EVRF019": Entry("window operands", "reduce-window takes one input and one initial value.", "split it"),
    "EVRF022": Entry("arithmetic shift", "shift-right-arithmetic takes 32-bit values.", "cast to 32 bits"),
    "EVRF031": Entry("scatter out of bounds", "Constant scatter indices exceed the operand.", "correct the sizes"),
    "EVRF056": Entry("gather out of bounds", "Constant gather indices exceed the operand.", "correct the sizes"),
    "ESMP002": Entry("constant index out of range", "A constant index is out of range.", "correct the index"),
    # types
    "ESFH002": Entry("64-bit integer", "64-bit integers may not fit 32 bits.", "compile with --int64 exact"),
    "ESPP004": Entry("unsupported type", "The device has no such element type.", "use f32, bf16 or f16"),
    "ESPP047": Entry("unsupported 8-bit float", "The device has no such 8-bit float.", "use f16 or f8e4m3"),
    "EVRF004": Entry("complex type", "Complex numbers compile as complex64 only.", "use complex64, or --fp64-as-fp32"),
    "EVRF005": Entry("8-bit float flavour", "The FNUZ 8-bit floats are not supported.", "use f16"),
    "EVRF051": Entry("f8e4m3fn", "f8e4m3fn is not supported on this device family.", "use f8e4m3 or f16"),
    "EVRF035": Entry(
        "integer dot", "The matrix engine has no integers.", "cast to float, or --implicit-integer-downcast=dot"
    ),
    "EVRF060": Entry(
        "integer scatter in FP32", "Exact to 2^24 only.", "cast to float, or --implicit-integer-downcast=scatter"
    ),
    "EVRF061": Entry(
        "integer all-reduce in FP32", "Exact to 2^24 only.", "cast to float, or --implicit-integer-downcast=all_reduce"
    ),
    "EVRF062": Entry("64-bit power", "Computes in 32 bits.", "use --int64 exact, or --implicit-integer-downcast=pow"),
    "EVRF063": Entry(
        "integer reduce-scatter in FP32",
        "Exact to 2^24 only.",
        "cast to float, or --implicit-integer-downcast=reduce_scatter",
    ),
    # memory and size
    "EOOM001": Entry("device memory", "Inputs, outputs, weights and scratch exceed HBM.", "smaller batch, or shard"),
    "EOOM002": Entry("device memory", "Inputs, outputs, weights and scratch exceed HBM.", "smaller batch, or shard"),
    "EVRF009": Entry("activation memory", "Activations exceed HBM.", "smaller batch, or shard"),
    "EXSP001": Entry(
        "on-chip memory", "What has to be on chip at once exceeds it.", "shorter rows, or a smaller batch"
    ),
    "EVRF007": Entry("too many instructions", "The program is over the instruction limit.", "shard the model"),
    "EBVF030": Entry("too many instructions", "The program is over the instruction limit.", "shard the model"),
    "EXTP004": Entry("too many instructions", "The program is over the instruction limit.", "shard the model"),
    "EMEM901": Entry("host memory", "The host ran out of memory.", "use a larger machine, or shard the model"),
    # code generation and the instruction format
    "EBIR901": Entry(
        "instruction does not encode",
        "An instruction exceeds a limit of the instruction format; the program is larger than the format holds.",
        "use a smaller batch, or shard the model",
    ),
    "EBIR903": Entry("illegal instruction", "An instruction breaks a rule of the instruction set.", PLAN_ANEW),
    "EBIR902": Entry("damaged program", "The instruction streams of a NEFF break a rule.", "compile the module again"),
    "IREG001": Entry("sequencer registers", "Code generation ran out of sequencer registers.", "nest fewer loops"),
    # the JAX backend
    "EJAX901": Entry(
        "sharded program",
        "XLA's partitioner cannot make one device's program of a sharded one.",
        "use jax.shard_map for this part",
    ),
    "EJAX903": Entry(
        "computed whole",
        "Several devices compute the same: from arrays that are gathered for it, or to keep a part of it each.",
        "split other dims of its operands, or use jax.shard_map for this part",
    ),
    "EJAX902": Entry(
        "not a serialized program", "The bytes are no program of this backend and version.", "compile it again"
    ),
    # running
    "ENEF901": Entry("not a loadable NEFF", "The file is no NEFF, or it is damaged.", "compile the module again"),
    "EOOB001": Entry("access out of bounds", "An instruction addressed memory that is not there.", COMPILE_AGAIN),
    "ERUN001": Entry("inputs do not fit", "The inputs are not those of the module.", "check number, shapes and types"),
    "ERUN902": Entry(
        "check failed",
        "A value differs from the reference semantics beyond rounding.",
        f"a fault of the compiler, not of the model: avoid the op that is named, or {PLAN_ANEW}",
    ),
    "ERUN903": Entry(
        "no module to check against",
        "A check needs the module that the NEFF was compiled from, and it is not found or is another one.",
        "name it with --module",
    ),
    "ERUN904": Entry(
        "NaN", "A result has NaNs and NEURON_FAIL_ON_NAN is set.", "find their origin with jax_debug_nans"
    ),
    "ERUN905": Entry("nothing has run", "No program has run on a simulated device.", "set JAX_PLATFORMS=neuron"),
    "ERUN906": Entry(
        "NaN among codes",
        "An input has f8e4m3fn codes that are NaN, and the program was compiled for parameters without.",
        "compile it with --nan-codes",
    ),
    "ERUN907": Entry(
        "range of a type",
        "Results are no finite numbers, and the program rounds to a type in which large numbers are infinities.",
        "keep the op that --check names in FP32, or scale what it computes",
    ),
    "ERUN910": Entry("memory used for two things", "The program reads what was written for something else.", PLAN_ANEW),
    "ERUN911": Entry("race", "Two engines access the same memory and no semaphore orders them.", COMPILE_AGAIN),
    "ERUN912": Entry("undefined memory", "The program reads memory that nothing has written.", COMPILE_AGAIN),
    "ERUN913": Entry("deadlock", "An engine waits for what can never happen.", COMPILE_AGAIN),
    "ERUN914": Entry("access out of bounds", "An operand leaves its memory.", COMPILE_AGAIN),
    "ERUN915": Entry(
        "deadlock of devices", "Devices wait in collectives for others that never come.", "reach them in one order"
    ),
    "ERUN916": Entry(
        "other devices missing", "A program with collectives runs on one device.", "run it with --devices"
    ),
    "ERUN917": Entry(
        "simulator not available", "The simulator that the environment asks for is not there.", "unset the variable"
    ),
    "ERUN918": Entry(
        "host function missing", "The program calls functions of the process that compiled it.", "run it there"
    ),
    "ERUN919": Entry("host function failed", "A function of the host that the program calls raised.", "see its error"),
    "ERUN920": Entry(
        "too long to be checked",
        "The loops of a program run so often that the race check would take the host's memory.",
        "compile the module again",
    ),
    "ERUN921": Entry("operand read in part", "A kernel leaves out a part of an operand that it needs.", PLAN_ANEW),
    "ERUN922": Entry(
        "programs do not meet",
        "Devices of a group come to different collectives, or some of them never come.",
        "let every member reach the same collectives, with equal groups and shapes, in one order",
    ),
    "ERUN923": Entry(
        "cluster lost",
        "The scheduler of a cluster does not answer, or no longer does.",
        "start it again; what a workspace or a cache keeps is not done twice",
    ),
    "ERUN924": Entry(
        "trial failed",
        "A process that makes trials for a tuning failed, or died twice.",
        "tune with fewer --workers; what the workspace has is not measured again",
    ),
    "INTERNAL": Entry(
        "internal error",
        "A defect of this compiler; a reproducer is written.",
        "report it with the reproducer directory",
    ),
}


def as_json(error: NeuronError) -> dict[str, Any]:
    """An error as plain values: what ``render`` says, in parts."""
    entry = CATALOGUE.get(error.code)
    return {
        "code": f"NCC_{error.code}",
        "title": entry.title if entry else "",
        "message": error.message.rstrip(),
        "remedy": error.remedy or (entry.remedy if entry else ""),
        "location": None if error.loc == NO_LOC else asdict(error.loc),
        "pass": error.pass_name or None,
        "exit_status": error.exit_status,
    }


def render(error: NeuronError) -> str:
    """``[NCC_CODE] (instruction) message - remedy``, with the place; several lines when the message has several."""
    entry = CATALOGUE.get(error.code)
    remedy = error.remedy or (entry.remedy if entry else "")
    name = f"(%{error.loc.path}) " if error.loc.name else ""
    message = f"[NCC_{error.code}] {name}{error.message.rstrip()}"
    places = [error.loc.op_name]
    if error.loc.traced:
        places.append(error.loc.traced)
    if error.loc != NO_LOC and error.loc.text_line:
        places.append(f"HLO line {error.loc.text_line}")
    if error.pass_name:
        places.append(f"pass {error.pass_name}")
    place = "; ".join(part for part in places if part)
    if "\n" in message:
        lines = [message, f"  at {place}" if place else "", f"  - {remedy}" if remedy else ""]
        return "\n".join(line for line in lines if line)
    return message + (f" (at {place})" if place else "") + (f" - {remedy}" if remedy else "")
