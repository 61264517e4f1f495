"""Inputs by names and nested, and what of JAX's can be compiled."""

from typing import NamedTuple

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc import RunError, UsageError
from neuronx_cc.driver.cli import main


class Layer(NamedTuple):
    w: object
    b: object


def function(params, x, unused, *, scale):
    first, second = params["layers"]
    h = x @ first.w + first.b
    return {"y": (h @ second.w + second.b) * scale, "sum": x.sum()}


@pytest.fixture
def arguments():
    draw = np.random.default_rng(0).standard_normal
    layers = [Layer(draw((4, 4), np.float32), draw(4, np.float32)) for _ in range(2)]
    return {"layers": layers}, draw((3, 4), np.float32), np.zeros(7, np.float32)


@pytest.fixture
def jitted():
    import jax

    return jax.jit(function)


def expected(params, x, unused, scale=2.0):
    first, second = params["layers"]
    return ((x @ first.w + first.b) @ second.w + second.b) * scale


@pytest.mark.parametrize("kind", ["traced", "lowered", "exported", "neff"])
def test_functions_are_called_as_in_jax(kind, jitted, arguments, tmp_path):
    import jax

    scale = np.float32(2)
    make = {
        "traced": lambda: jitted.trace(*arguments, scale=scale),
        "lowered": lambda: jitted.lower(*arguments, scale=scale),
        "exported": lambda: jax.export.export(jitted)(*arguments, scale=scale),
        "neff": lambda: jitted.lower(*arguments, scale=scale),
    }
    executable = neuronx_cc.compile(make[kind](), auto_cast="none", output=tmp_path / "f.neff")
    if kind == "neff":
        executable = neuronx_cc.load(tmp_path / "f.neff")
    params, x, unused = arguments
    wanted = expected(*arguments)
    names = executable.input_names
    assert names == [
        *(f"params['layers'][{i}].{f}" for i in range(2) for f in "wb"),
        "x",
        "scale",
    ]
    flat = [*params["layers"][0], *params["layers"][1], x, scale]
    plain = {"layers": [layer._asdict() for layer in params["layers"]]}
    calls = [
        flat,
        {"params": params, "x": x, "scale": scale},
        {"params": plain, "x": x, "scale": 2},
        dict(zip(names, flat, strict=True)),
        {f"arg{i}": array for i, array in enumerate(flat)},
    ]
    for inputs in calls:
        result = executable.run(inputs)
        np.testing.assert_allclose(result.outputs[1], wanted, rtol=1e-4, atol=1e-4)
    if kind == "neff":
        assert result.tree is result.outputs
        outputs = executable(params, x, scale=scale)
    else:
        np.testing.assert_array_equal(result.tree["y"], result.outputs[1])
        outputs = executable(params, x, unused, scale=2.0)
    np.testing.assert_allclose(outputs[1], wanted, rtol=1e-4, atol=1e-4)


def test_jitted_functions_take_their_arguments(arguments):
    import jax

    f = jax.jit(lambda x, n: x * n)
    executable = neuronx_cc.compile(f, jax.ShapeDtypeStruct((3,), np.float32), np.int32(3), auto_cast="none")
    np.testing.assert_array_equal(executable(np.ones(3, np.float32), 4)[0], 4 * np.ones(3))
    np.testing.assert_array_equal(executable(n=4, x=np.ones(3, np.float32))[0], 4 * np.ones(3))
    for wrong in (2.5, 2**40, 1j):
        with pytest.raises(RunError, match="element type"):
            executable(np.ones(3, np.float32), wrong)


@pytest.mark.parametrize(
    ("make", "mentions"),
    [
        (lambda jax, f, x: (f,), "jit it and give it arguments"),
        (lambda jax, f, x: (jax.jit(f).lower(x), x), "arguments are for jitted functions"),
        (lambda jax, f, x: (jax.jit(f).lower(x).compile(),), "compiled this already"),
        (lambda jax, f, x: (jax.export.export(jax.jit(f), platforms=["cpu", "cuda"])(x),), "cpu, cuda"),
        (lambda jax, f, x: (x,), "cannot compile a ndarray"),
    ],
)
def test_what_is_no_module_is_named(make, mentions):
    import jax

    with pytest.raises(UsageError, match=mentions):
        neuronx_cc.compile(*make(jax, lambda x: x + 1, np.ones(3, np.float32)))


@pytest.mark.parametrize(
    ("inputs", "mentions"),
    [
        ({"params": {"layers": []}, "x": 0, "scale": 0}, r"params\['layers'\]\[0\]\.w: step 2"),
        ({"params": 3, "x": 0, "scale": 0}, "meets a int"),
        ({"x": 0, "scale": 0}, r"no value for params\['layers'\]\[0\]\.w"),
        ({"parms": 0}, "no input is called 'parms'; did you mean params"),
        ({"x": 0, "arg4": 0}, "input x is given twice"),
        ([0], "1 inputs given, the program takes 6: params"),
    ],
)
def test_misfits_name_the_argument(inputs, mentions, jitted, arguments):
    executable = neuronx_cc.compile(jitted.lower(*arguments, scale=1.0), auto_cast="none")
    with pytest.raises(RunError, match=mentions):
        executable.run(inputs)


def test_ambiguous_names_are_refused():
    import jax

    executable = neuronx_cc.compile(jax.jit(lambda arg1, arg0: arg1 - arg0), np.float32(1), np.float32(1))
    with pytest.raises(RunError, match=r"'arg0' may be parameter 0 .*, parameter 1"):
        executable.run({"arg0": 1.0, "arg1": 2.0})
    assert executable(5.0, 3.0)[0] == 2
    assert executable(arg0=5.0, arg1=3.0)[0] == -2


def test_the_command_knows_them(jitted, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    executable = neuronx_cc.compile(jitted.lower(*arguments, scale=1.0), auto_cast="none", output="f.neff")
    params, x, _ = arguments
    flat = [*params["layers"][0], *params["layers"][1], x, np.float32(2)]
    np.savez("in.npz", **dict(zip(executable.input_names, flat, strict=True)))
    assert main(["run", "f.neff", "--inputs", "in.npz", "--outputs", "out.npz"]) == 0
    with np.load("out.npz") as file:
        np.testing.assert_allclose(file["out1"], expected(*arguments), rtol=1e-4, atol=1e-4)
    capsys.readouterr()
    assert main(["inspect", "f.neff"]) == 0
    assert "params['layers'][1].b" in capsys.readouterr().out


def test_what_the_package_shows():
    assert dir(neuronx_cc) == sorted(neuronx_cc.__all__)
    for name in neuronx_cc.__all__:
        assert getattr(neuronx_cc, name) is not None
    assert issubclass(neuronx_cc.UsageError, neuronx_cc.NeuronError)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        neuronx_cc.nothing  # noqa: B018


@pytest.mark.parametrize("dtype", ["f32", "s32", "pred", "c64"])
@pytest.mark.parametrize("value", [2, 2.0, 2j, True, np.float64(2), np.complex128(2), np.float32(2), np.int32(2)])
def test_numbers(dtype, value):
    """Python's are elements of the parameter's type, NumPy's have their own: ``np.float64`` is a ``float``, too."""
    text = f"HloModule m\nENTRY e {{\n  x = {dtype}[] parameter(0)\n  ROOT y = {dtype}[] copy(x)\n}}\n"
    executable = neuronx_cc.compile(text)
    own = {"f32": np.float32, "s32": np.int32, "pred": np.bool_, "c64": np.complex64}[dtype]
    kinds = {bool: "b", int: "ifc", float: "fc", complex: "c"}
    fits = isinstance(value, own) if isinstance(value, np.generic) else np.dtype(own).kind in kinds[type(value)]
    if fits:
        assert executable.run([value]).outputs[0] == value
    else:
        with pytest.raises(RunError, match="ERUN"):
            executable.run([value])
