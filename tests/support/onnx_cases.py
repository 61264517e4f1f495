"""The node tests of the ``onnx`` package: what each one's model gives through the importer, and the class of outcomes.

An outcome is ``passed``, ``passed, with integer inputs known`` or ``passed, with all inputs known`` (shapes follow from
the values), a class of refusals (``REFUSED``), or an account of what is wrong.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from xla_oracle import run_proto

from neuronx_cc.driver.frontends.model import Fixed, Model
from neuronx_cc.driver.frontends.onnx import importer
from neuronx_cc.driver.frontends.onnx.tensors import array_of
from neuronx_cc.ir.errors import NeuronError

Run = Callable[[Model, Sequence[Any]], list[Any]]

PASSED = ("passed", "passed, with integer inputs known", "passed, with all inputs known")
REFUSED = {
    "ESPP004": "strings, optional or sequence inputs",
    "EVRF001": "operator, or old definition of it, not supported",
    "EMOD025": "shapes that only the run decides",
}
RANDOM = "random numbers of NumPy's generator"
_DRAWN = ("test_bernoulli", "test_training_dropout")


def cases() -> list[Any]:
    """All of them."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np.errstate(all="ignore"):
            return list(collect_testcases(None))


def outcome(case: Any, run: Run) -> str:
    """What becomes of ``case`` when ``run`` computes its models."""
    graph = case.model.graph
    initialised = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in initialised]
    said = ""
    for arguments, results in case.data_sets:
        given = dict(zip(names, map(_plain, arguments), strict=False))
        said, made = "", None
        for known, phrase in zip((_never, _integer, _always), PASSED, strict=True):
            held = {name: value for name, value in given.items() if known(value)}
            free = {name: value for name, value in given.items() if name not in held}
            shapes = {name: value.shape for name, value in free.items()}
            try:
                model = importer.lower(case.model.SerializeToString(), "", None, Fixed(shapes, held))
                made, said = run(model, [free[name] for name in model.inputs]), phrase
                break
            except NeuronError as error:
                said = said or REFUSED.get(error.code, f"{error.code}: {error.message}")
        if made is None:
            return said
        if difference := _difference(made, _flat([_plain(result) for result in results]), case):
            return RANDOM if case.name.startswith(_DRAWN) else difference
    return said


def on_cpu(model: Model, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a model's HLO on jaxlib's CPU client."""
    return run_proto(model.module, arguments)


def _plain(value: Any) -> Any:
    return array_of(value, None) if isinstance(value, onnx.TensorProto) else value


def _never(value: Any) -> bool:
    return not isinstance(value, np.ndarray)


def _integer(value: Any) -> bool:
    return _never(value) or value.dtype.kind in "iub" or value.size == 1


def _always(value: Any) -> bool:
    return True


def _flat(values: Sequence[Any]) -> list[Any]:
    return [leaf for value in values for leaf in (_flat(value) if isinstance(value, list) else [value])]


def _difference(made: Sequence[Any], wanted: Sequence[Any], case: Any) -> str:
    """How outputs differ; empty when they agree as closely as the case asks, and narrow floats to two steps."""
    if len(made) != len(wanted):
        return f"{len(made)} outputs, expected {len(wanted)}"
    for got, want in zip(map(np.asarray, made), map(np.asarray, wanted), strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        if got.dtype.kind in "iub":
            agree = np.array_equal(got, want)
        else:
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            relative = max(case.rtol, 2e-2 if got.dtype.itemsize < 4 else 0)
            absolute = 1e-2 if got.dtype.name == "bfloat16" else max(case.atol, 1e-5)
            agree = np.allclose(got.astype(wide), want.astype(wide), relative, absolute, equal_nan=True)
        if not agree:
            return f"values {got.reshape(-1)[:4]}, expected {want.reshape(-1)[:4]}"
    return ""
