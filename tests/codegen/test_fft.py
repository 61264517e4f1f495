"""Fourier transforms as contractions: lengths of every kind on the simulator, long ones by the reference semantics."""

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of
from op_cases_math import complex_array

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes import expand_fft
from neuronx_cc.passes.auto_cast import code_computations
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

ONE_DIM = {
    "fft": jnp.fft.fft,
    "ifft": jnp.fft.ifft,
    "rfft": lambda x: jnp.fft.rfft(x.real),
    "irfft even": jnp.fft.irfft,
    "irfft odd": lambda x: jnp.fft.irfft(x, 2 * x.shape[-1] - 1),
}


@pytest.mark.parametrize("name", ONE_DIM)
@pytest.mark.parametrize("length", [1, 2, 17, 600])
def test_one_dim(name: str, length: int) -> None:
    check_function(ONE_DIM[name], complex_array((3, length), name))


def test_a_long_prime() -> None:
    check_function(jnp.fft.fft, complex_array((2, 521), "prime"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.fft.fft2(x),
        lambda x: jnp.fft.ifftn(x),
        lambda x: jnp.fft.rfftn(x.real, axes=(0, 1, 2)),
        lambda x: jnp.fft.irfft2(x),
        lambda x: jnp.fft.fft(x, axis=0),
        lambda x: jnp.fft.fftshift(jnp.fft.fftn(x)),
    ],
)
def test_several_dims(function) -> None:
    check_function(function, complex_array((4, 3, 10), "several"))


@pytest.mark.parametrize("name", ONE_DIM)
@pytest.mark.parametrize("length", [257, 521, 1000, 1018, 4096])
def test_long_transforms_are_accurate(name: str, length: int) -> None:
    """Primes, their multiples and composites against FP64; the error is relative to the largest value."""
    x = complex_array((2, length), name)
    module = parse_text(text_of(ONE_DIM[name], x))
    run_passes(module, ["inline_calls", "dissolve_tuples", "expand_fft"], PassContext(), verify_each=True)
    (got,) = evaluate(module, [x])
    wide = x.astype(np.complex128)
    exact = {
        "fft": np.fft.fft(wide),
        "ifft": np.fft.ifft(wide),
        "rfft": np.fft.rfft(wide.real),
        "irfft even": np.fft.irfft(wide),
        "irfft odd": np.fft.irfft(wide, 2 * length - 1),
    }[name]
    assert np.max(np.abs(got - exact)) < 2e-6 * np.max(np.abs(exact))


def test_auto_cast_leaves_the_contractions_alone() -> None:
    module = parse_text(text_of(jnp.fft.fft, complex_array((3, 20), "cast")))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="matmult")))
    dots = [op for c in code_computations(module) for op in c.block.ops if getattr(op, "opcode", "") == "dot"]
    assert dots
    assert {op.operands[0].type.data.dtype for op in dots} == {"f32"}


def test_the_program_does_not_grow_with_the_length() -> None:
    counts = []
    for length in (64, 256):
        module = parse_text(text_of(jnp.fft.fft, complex_array((2, length), "grow")))
        expand_fft.run(module, PassContext())
        counts.append(sum(1 for _ in module.entry.block.ops))
    assert counts[0] == counts[1]
