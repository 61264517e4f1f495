"""The Python API: ``neuronx_cc.compile(module, *arguments, **options)`` and ``neuronx_cc.load(path)``.

Options are those of ``neuronx-cc compile`` with underscores, and its defaults but one: 64-bit integers are computed
exactly (``int64="truncate"`` cuts them as the command does). Errors are the ``NeuronError`` subclasses that the command
line prints. Nothing is printed and no log file is written unless options ask for it.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronx_cc.driver import files, options
from neuronx_cc.driver.check import Progress
from neuronx_cc.driver.compile import compile_data, compile_loaded, write_neff
from neuronx_cc.driver.failure import Session, as_neuron_error
from neuronx_cc.driver.frontends import door, model
from neuronx_cc.driver.frontends.door import fixed_by, load_module
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.ir import collector
from neuronx_cc.ir.errors import RunError, UsageError

if TYPE_CHECKING:
    from neuronx_cc.driver.compare import Comparison
    from neuronx_cc.driver.jax_objects import Source
    from neuronx_cc.driver.recompile import Model
    from neuronx_cc.driver.tuning.model import Evaluate
    from neuronx_cc.driver.tuning.results import Tuning
    from neuronx_cc.ir.hlo import HloModule
    from neuronx_cc.ir.neff import Neff
    from neuronx_cc.runtime import Executable
    from neuronx_cc.runtime.arguments import Structure

Array = np.ndarray[Any, np.dtype[Any]]

ERROR_LEVEL = options.LEVELS["error"]


def compile(module: Any, *arguments: Any, **options_: Any) -> "Executable":
    """Compile ``module`` and return the loaded program, which is called with arrays.

    ``module`` is a jitted function, whose ``arguments`` follow (arrays, or anything with shape and dtype); what
    ``jax.jit(f).trace(...)``, ``jax.jit(f).lower(...)`` or ``jax.export.export(...)`` return; HLO or StableHLO text
    (``str``), a serialized module (``bytes``), a path (``os.PathLike``, or ``str`` without a line break), what
    ``load_model`` returns, or an ``HloModule``. With ``output=path`` the NEFF is also written there. Raises
    ``UsageError`` for wrong options, ``CompileError`` for modules that do not compile, and what JAX raises when it
    lowers a function.
    """
    from neuronx_cc import runtime

    neff, structure = compile_neff(module, *arguments, **options_)
    executable = runtime.load(neff)
    executable.structure = structure
    return executable


def compile_neff(module: Any, *arguments: Any, **options_: Any) -> "tuple[Neff, Structure | None]":
    """The same as a NEFF in memory, with how the function's arguments and results are nested, where that is known."""
    from neuronx_cc.driver import jax_objects

    parsed = from_keywords(options.COMPILE, options_)
    if "int64" not in parsed.given:
        parsed.values["int64"] = "exact"
    source = jax_objects.module_of(module, arguments)
    session = Session("neuronx_cc.compile", [], Log(parsed.integer("verbose")), parsed)
    if "verbose" not in parsed.given:
        session.log.level = ERROR_LEVEL
    with session.log:
        if "logfile" in parsed.given:
            session.log.open(parsed.text("logfile"), required=True)
            session.log_command()
        for line in parsed.notices():
            session.log.warning(line)
        if "output" in parsed.given:
            files.check_writable(parsed.text("output"), "output")
        try:
            with collector.paused():
                neff = _compile(module if source is None else source.data, session)
                if "output" in parsed.given:
                    write_neff(neff, parsed.text("output"), session)
                if source is None or parsed.text_or_none("constants") is not None:
                    return neff, None  # constants are no arguments
                return neff, source.structure
        except Exception as error:
            failure = as_neuron_error(error, session)
            if failure is error:
                raise
            raise failure from error


def load(path: str | os.PathLike[str]) -> "Executable":
    """Load a NEFF file; raises ``RunError`` when it cannot be read or is not valid."""
    from neuronx_cc import runtime

    if not isinstance(path, str | os.PathLike):
        raise UsageError("EARG906", f"load takes the path of a NEFF, found a {type(path).__name__}")
    return runtime.load(files.read(os.fspath(path), "NEFF", RunError))


def compare(
    module: Any, inputs: Sequence[Any], progress: Progress = lambda what, done, of: None, **options_: Any
) -> "Comparison":
    """Compile ``module``, run it on ``inputs``, and say how far its outputs are from FP32 semantics, and by which ops.

    ``module`` and options are those of ``compile``, but a jitted function is lowered first. ``inputs`` holds the
    arguments of the function, or an array for each parameter; of a function that several devices share, arrays that lie
    on these. ``progress(what, done, of)`` is called while ops are
    evaluated. The result prints as a table. Raises what ``compile`` and running raise, and CompileError EVRF001 for ops
    without reference semantics.
    """
    from neuronx_cc.driver import jax_objects
    from neuronx_cc.driver.compare import compare_module
    from neuronx_cc.driver.recompile import Model
    from neuronx_cc.runtime.devices import replicate, run_devices

    source = jax_objects.module_of(module, tuple(inputs) if callable(getattr(module, "trace", None)) else ())
    given = _given(module if source is None else source.data)
    parsed = from_keywords(options.COMPILE, {"int64": "exact", **options_})

    def load() -> "HloModule":
        return load_module(*given, fixed_by(parsed)) if isinstance(given, tuple) else given.copy()

    executable = compile(module if source is None else source.data, **options_)
    compiled = Model(load, parsed)
    rows = _rows(source, inputs, compiled)
    outputs = [each.outputs for each in run_devices(replicate(executable), rows)]
    return compare_module(compiled, rows, outputs, progress)


def _rows(source: "Source | None", inputs: Sequence[Any], model: "Model") -> list[list[Array]]:
    """For each device an array for each parameter.

    ``inputs``: the arguments of a JAX function, which may be nested and need not use all of them, or the arrays
    themselves. Of arrays that lie on as many devices each device has its part, of what is as large as the parameter a
    copy. Raises UsageError EARG906 for others.
    """
    from neuronx_cc.ir import hlo

    leaves = list(inputs)
    if source is not None and source.structure is not None:
        # arrays of the parameters themselves are not nested as the arguments are
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found = source.structure.arguments.flatten_up_to((tuple(inputs), {}))
            leaves = [found[at] for at in source.structure.kept]
    if model.devices == 1:
        return [[np.asarray(leaf) for leaf in leaves]]
    shapes = [hlo.shape_of(argument) for argument in model.before_casts()[0].entry.block.args]
    if len(shapes) != len(leaves):
        raise UsageError("EARG906", f"{len(leaves)} arrays are given for {len(shapes)} parameters", "give all of them")
    parts = [_parts(leaf, shape.dims, model.devices) for leaf, shape in zip(leaves, shapes, strict=True)]
    return [list(row) for row in zip(*parts, strict=True)]


def _parts(given: Any, dims: tuple[int, ...], devices: int) -> list[Array]:
    """What each device has of an array of which it takes ``dims``."""
    places = getattr(given, "sharding", None)
    if places is not None and len(places.device_set) == devices:
        by_device = {shard.device: np.asarray(shard.data) for shard in given.addressable_shards}
        return [by_device[device] for device in places.devices_indices_map(given.shape)]
    array = np.asarray(given)
    if array.shape != dims:
        raise UsageError(
            "EARG906",
            f"an array of {list(array.shape)} is given, of which each of {devices} devices takes {list(dims)}",
            "put it on the devices as the function takes it: jax.device_put(x, sharding)",
        )
    return [array] * devices


def quantize(weight: Array, contracted: Sequence[int] = (0,), format: str = "int8") -> tuple[Array, Array]:
    """Codes of 8 bits of a weight that is a parameter of the program, and their scales, for a model that takes both.

    ``contracted``: dims that the product sums over; ``format``: ``int8`` or ``fp8_e4m3``, or ``int8@99.9`` where
    magnitudes beyond that percentile of a channel are clipped. The codes have the dims of
    ``weight``, the FP32 scales those that are not contracted: ``x @ w`` is ``(x @ codes.astype(x.dtype)) * scales``,
    which the compiler computes without widening the codes in memory. Raises UsageError EARG902.
    """
    from neuronx_cc.passes.precision.quantization import FORMATS, is_format, quantized

    array, axes = np.asarray(weight), sorted({int(axis) for axis in contracted})
    if not is_format(format):
        known = f"one of {', '.join(FORMATS)}, or one with a percentile from 50 to 100: int8@99.9"
        raise UsageError("EARG902", f"no format {format!r} of weights", known)
    if not axes or not 0 <= axes[0] <= axes[-1] < array.ndim:
        raise UsageError("EARG902", f"contracted dims {axes} of an array with {array.ndim} dims", "name some of them")
    values = array.astype(np.float32)
    if not np.isfinite(values).all():
        raise UsageError("EARG902", "a weight that is not finite has no scale", "quantize finite weights")
    return quantized(values, axes, format)


def tune(
    module: Any,
    inputs: Sequence[Any],
    tolerance: float = 0.01,
    *,
    evaluate: "Evaluate | None" = None,
    tolerable_loss: float = 0.01,
    relative: bool = True,
    higher_is_better: bool = True,
    types: Sequence[str] = options.TUNE_TYPES,
    strategy: str = options.TUNE_STRATEGIES[0],
    max_trials: int = 1000,
    timeout: float = 0.0,
    front: int = 0,
    objective: str = options.TUNE_OBJECTIVES[0],
    workers: int = 1,
    scheduler: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
    progress: Progress = lambda what, done, of: None,
    **options_: Any,
) -> "Tuning":
    """The types of contractions in which ``module`` is fastest while no output is off by more than ``tolerance``.

    ``module`` is what ``compile`` takes, ``inputs`` the arguments of its function, or an array for each parameter;
    errors are relative 2-norms against FP32. With ``evaluate``, a function of the program (which takes and gives lists
    of arrays) to a number, at most ``tolerable_loss`` of its value in FP32 may be lost instead. ``strategy`` is
    ``error-model``, or ``basic``: op by op. ``objective`` is ``time``, or ``memory``: bytes of HBM. What was measured
    is kept in ``workspace``, so that a tuning that was stopped goes on. The result's ``policy`` prints, and
    ``to_json()["policy"]`` is what ``compile`` takes as ``precision_policy``. Raises UsageError EARG912 when the
    evaluator fails, EARG913 when nothing meets the tolerance, and what ``compile`` raises.
    """
    from neuronx_cc.driver import jax_objects
    from neuronx_cc.driver.engines import engine_of
    from neuronx_cc.driver.tuning.model import Metric, model_of, tune_model
    from neuronx_cc.driver.tuning.tuner import Goal

    unknown = sorted(set(types) - set(options.TUNE_TYPES))
    if unknown:
        remedy = f"one of {', '.join(options.TUNE_TYPES)}"
        raise UsageError("EARG902", f"no type {', '.join(unknown)} to tune with", remedy)
    source = jax_objects.module_of(module, tuple(inputs) if callable(getattr(module, "trace", None)) else ())
    given = _given(module if source is None else source.data)
    fixed = fixed_by(from_keywords(options.COMPILE, options_))
    model = model_of(lambda: load_module(*given, fixed) if isinstance(given, tuple) else given.copy(), options_)
    metric = Metric(evaluate, tolerable_loss, relative, higher_is_better) if evaluate is not None else None
    goal = Goal(tolerance, None, max_trials, timeout, front, objective)
    place = None if workspace is None else os.fspath(workspace)
    rows = _rows(source, inputs, model)
    engine = engine_of(workers, scheduler) if workers != 1 or scheduler is not None else None
    try:
        return tune_model(model, rows, goal, metric, types, strategy, place, progress, engine)
    finally:
        if engine is not None:
            engine.close()


def _compile(module: Any, session: Session) -> "Neff":
    assert session.parsed is not None
    given = _given(module)
    if isinstance(given, tuple):
        return compile_data(*given, session.parsed, session)
    return compile_loaded(given.copy(), session.parsed, session)


def _given(module: Any) -> "tuple[bytes, str] | HloModule":
    """A module's bytes and the name of its file, or the module itself."""
    if isinstance(module, bytes | bytearray | memoryview):
        return bytes(module), ""
    if isinstance(module, str) and not _is_path(module):
        return module.encode(), ""
    if isinstance(module, str | os.PathLike):
        path = os.fspath(Path(module))
        return door.read(path), path
    if isinstance(module, model.Model):
        return module.load()

    from neuronx_cc.ir.hlo import HloModule

    if isinstance(module, HloModule):
        return module
    raise UsageError(
        "EARG906",
        f"cannot compile a {type(module).__name__}",
        "pass a jitted function and its arguments, jax.jit(f).lower(...), HLO text, bytes, a path or an HloModule, or "
        "neuronx_cc.load_model(...) of another framework's model",
    )


def _is_path(text: str) -> bool:
    return "\n" not in text and not text.lstrip().startswith(("HloModule", "module"))
