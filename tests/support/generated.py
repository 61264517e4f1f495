"""Runs generated code on the simulator, race check on, and compares with jaxlib's CPU client.

``check_text`` takes HLO text, ``check_function`` a JAX function; both go through the default pass pipeline with
``auto_cast`` none, code generation and ``Executable.run``.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from xla_oracle import run_text

from neuronx_cc.codegen.compile import lower_module
from neuronx_cc.codegen.context import Transposes
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.isa.encoding import encode
from neuronx_cc.ir.isa.program import Program
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.runtime.executable import Executable
from neuronx_cc.runtime.memory import OnChip

Array = np.ndarray[Any, Any]

ULP = {"float64": 0.0, "float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}
ULP |= {"float8_e4m3": 2.0**-4, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "int4": 0.0, "uint4": 0.0}
"""Relative distance of neighbouring values of the narrow float types: a result may be rounded to either side."""
TRN1 = find_machine("trn1")
ON_CHIP = OnChip()
"""Of all programs, which run one after the other: fresh pages cost more than many a program."""


@dataclass(slots=True)
class Compiled:
    """A program, its constants, and the HLO text it came from."""

    text: str
    program: Program
    constants: list[Array]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs of the simulator; raises RunError for faults and races."""
        return Executable(self.program, self.constants, on_chip=ON_CHIP).run(inputs).outputs


def compile_text(
    text: str,
    machine: Machine = TRN1,
    verify_each: bool = False,
    transposes: Transposes = Transposes.VALUES,
    **options: Any,
) -> Compiled:
    """Passes (``auto_cast`` none unless given; ops verified after each if told so), code generation for ``machine``."""
    module = parse_text(text)
    options.setdefault("auto_cast", "none")
    context = PassContext(PassOptions(**options), machine)
    run_passes(module, pipelines.pass_names(pipelines.DEFAULT_PIPELINE), context, verify_each=verify_each)
    program, constants = lower_module(module, machine, options.get("fast_relayout", True), transposes)
    encode(program.records)  # what the format does not hold fails here
    return Compiled(text, program, constants)


def text_of(function: Callable[..., Any], *inputs: Any, donated: bool = False) -> str:
    """HLO text of a JAX function for inputs of these shapes and types; ``donated``: results may lie in them."""
    donated_ones = range(len(inputs)) if donated else ()
    with warnings.catch_warnings(action="ignore"):  # of those that serve no result
        lowered = jax.jit(function, keep_unused=True, donate_argnums=donated_ones).lower(*inputs)
    return str(lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True))  # type: ignore[union-attr]


def check_text(
    text: str, *inputs: Any, relative: float = 1e-5, elementwise: bool = False, machine: Machine = TRN1
) -> Compiled:
    """Compile, run, compare with XLA; ``elementwise`` bounds each element's error by its own value, not the largest."""
    arrays = [np.asarray(array) for array in inputs]
    wanted = run_text(text, arrays)
    compiled = compile_text(text, machine)
    results = compiled.run(arrays)
    assert len(results) == len(wanted)
    for index, (result, want) in enumerate(zip(results, wanted, strict=True)):
        assert_close(result, want, relative, elementwise, f"result {index}")
    return compiled


def check_function(
    function: Callable[..., Any], *inputs: Any, relative: float = 1e-5, machine: Machine = TRN1
) -> Compiled:
    """The same for a JAX function."""
    return check_text(text_of(function, *inputs), *inputs, relative=relative, machine=machine)


def assert_close(result: Array, want: Array, relative: float = 1e-5, elementwise: bool = False, name: str = "") -> None:
    """Integers and bools equal; floats within ``relative``, with NaNs and infinities at the same places."""
    assert (result.shape, result.dtype) == (want.shape, want.dtype), name
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(result, want, name)
        return
    if want.dtype.kind == "c":
        result, want = (np.stack([array.real, array.imag]) for array in (result, want))
    got, exact = result.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact), f"{name}: NaNs")
    finite = np.isfinite(exact)
    infinite = ~finite & ~np.isnan(exact)
    np.testing.assert_array_equal(got[infinite], exact[infinite], f"{name}: infinities")
    got, exact = got[finite], exact[finite]
    tolerance = max(relative, 3 * ULP[want.dtype.name])
    scale = np.abs(exact) if elementwise else np.max(np.abs(exact), initial=0.0)
    bad = ~(np.abs(got - exact) <= tolerance * scale + (1e-6 if elementwise else 0.0))
    if bad.any():
        first = np.flatnonzero(bad)[0]
        raise AssertionError(
            f"{name}: {bad.sum()} of {bad.size} differ, first {got[first]!r}, expected {exact[first]!r}"
        )
