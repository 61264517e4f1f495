"""Program inputs and outputs as .npz files."""

import os

import ml_dtypes
import numpy as np
import pytest

from neuronx_cc.driver import tensors
from neuronx_cc.ir.errors import RunError, UsageError
from neuronx_cc.ir.types import NUMPY_DTYPE, Shape
from neuronx_cc.runtime.arguments import Name

ROUND_TRIP = [name for name in NUMPY_DTYPE if name != "tf32"]


@pytest.mark.parametrize("dtype", ROUND_TRIP)
def test_outputs_read_back_as_inputs(dtype, tmp_path):
    values = np.array([[0, 1, 2], [3, -4 if dtype.startswith(("s", "f", "b")) else 4, 5]]).astype(NUMPY_DTYPE[dtype])
    path = str(tmp_path / "x.npz")
    tensors.write_outputs(path, [values, values[0, 0]], ["out0", "out1"])
    with np.load(path) as file:
        assert file.files == ["out0", "out1"]
        stored = {"a": file["out0"], "arg1": file["out1"]}
    np.savez(path, **stored)
    back = tensors.read_inputs(path, [(Name("a"), Shape(dtype, (2, 3))), (Name("b"), Shape(dtype, ()))])
    assert back[0].dtype == values.dtype
    np.testing.assert_array_equal(back[0], values)
    np.testing.assert_array_equal(back[1], values[0, 0])
    assert back[1].shape == ()


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("f8e4m3", 1), ("f8e5m2", 1)])
def test_narrow_floats_are_stored_as_raw_void(dtype, width, tmp_path):
    path = str(tmp_path / "x.npz")
    tensors.write_outputs(path, [np.ones(3, NUMPY_DTYPE[dtype])], ["out0"])
    with np.load(path) as file:
        assert file["out0"].dtype == np.dtype(f"V{width}")


def test_f16_may_be_raw_as_well(tmp_path):
    values = np.array([1.5, -2.0], np.float16)
    np.savez(tmp_path / "x.npz", arg0=values.view("V2"))
    back = tensors.read_inputs(str(tmp_path / "x.npz"), [(Name("p"), Shape("f16", (2,)))])
    np.testing.assert_array_equal(back[0], values)


def test_other_byte_order(tmp_path):
    np.savez(tmp_path / "x.npz", arg0=np.array([1.5, 2.5], ">f4"))
    back = tensors.read_inputs(str(tmp_path / "x.npz"), [(Name("p"), Shape("f32", (2,)))])
    assert back[0].dtype == np.float32
    np.testing.assert_array_equal(back[0], [1.5, 2.5])


PARAMETERS = [(Name("weights"), Shape("f32", (2, 3))), (Name("tokens"), Shape("s32", (4,)))]
GOOD = {"arg0": np.zeros((2, 3), np.float32), "tokens": np.zeros(4, np.int32)}


def test_arrays_that_were_saved_without_names(tmp_path):
    np.savez(tmp_path / "x.npz", np.ones((2, 3), np.float32), np.arange(4, dtype=np.int32))
    back = tensors.read_inputs(str(tmp_path / "x.npz"), PARAMETERS)
    np.testing.assert_array_equal(back[1], np.arange(4))
    with pytest.raises(RunError, match="no parameter is called 'arr_1'"):
        tensors.read_inputs(str(tmp_path / "x.npz"), PARAMETERS[:1])


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        ({"arg0": None}, "x.npz: no value for parameter 0"),
        ({"arg0": np.zeros(3, np.float32)}, r"x.npz: input arg0 should be f32\[2,3\]"),
        ({"arg2": np.zeros(1)}, "no parameter is called 'arg2'"),
        ({"token": np.zeros(1)}, "did you mean tokens"),
        ({"arg1": np.zeros(4, np.int32)}, "both parameter 1"),
        ({"arg0": np.zeros((3, 2), np.float32)}, r"should be f32\[2,3\], found dimensions \[3, 2\]"),
        ({"arg0": np.zeros((2, 3))}, "found float64"),
        ({"arg0": np.zeros((2, 3), "V2")}, "found"),
        ({"tokens": np.zeros(4, np.int64)}, r"astype\('int32'\)"),
        ({"tokens": np.zeros(4, "V4")}, "found"),
        ({"tokens": np.array(["a", "b", "c", "d"])}, "found <U1"),
    ],
)
def test_misfits(change, mentions, tmp_path):
    named = {key: value for key, value in (GOOD | change).items() if value is not None}
    np.savez(tmp_path / "x.npz", **named)
    with pytest.raises(RunError, match=mentions) as caught:
        tensors.read_inputs(str(tmp_path / "x.npz"), PARAMETERS)
    assert caught.value.code == "ERUN001"


def test_what_is_missing_is_named(tmp_path):
    """However many others come before it."""
    parameters = [(Name(f"w{number}", ""), PARAMETERS[0][1]) for number in range(20)]
    np.savez(tmp_path / "x.npz", **{f"arg{number}": np.zeros((2, 3), np.float32) for number in range(18)})
    with pytest.raises(RunError) as caught:
        tensors.read_inputs(str(tmp_path / "x.npz"), parameters)
    assert caught.value.remedy == "the program takes there arg18 (w18) f32[2,3], arg19 (w19) f32[2,3]"


def test_objects_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", arg0=np.array([{}], dtype=object))
    with pytest.raises(RunError, match="no readable"):
        tensors.read_inputs(str(tmp_path / "x.npz"), PARAMETERS)


def test_int4_out_of_range(tmp_path):
    np.savez(tmp_path / "x.npz", arg0=np.array([100], np.int8))
    with pytest.raises(RunError, match="4 bits"):
        tensors.read_inputs(str(tmp_path / "x.npz"), [(Name("p"), Shape("s4", (1,)))])


def test_one_array_may_come_as_npy(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    path = str(tmp_path / "x.npy")
    np.testing.assert_array_equal(tensors.read_inputs(path, [(Name("p"), Shape("f32", (3,)))])[0], np.ones(3))
    with pytest.raises(RunError, match="takes 2"):
        tensors.read_inputs(path, PARAMETERS)


def test_damaged_files(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, **GOOD, arg5=np.arange(1000))
    whole = path.read_bytes()
    for cut in (0, 1, 4, 30, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:cut])
        with pytest.raises(RunError):
            tensors.read_inputs(str(path), PARAMETERS)
    for position in range(0, len(whole), 7):
        garbled = bytearray(whole)
        garbled[position] ^= 0xFF
        path.write_bytes(garbled)
        with pytest.raises(RunError):
            tensors.read_inputs(str(path), PARAMETERS)


def test_file_that_unpacks_to_more_than_the_inputs(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, arg0=np.zeros((2, 3), np.float32), bomb=np.zeros(1 << 22, np.int8))
    assert path.stat().st_size < 10_000
    with pytest.raises(RunError, match="more than the program's inputs take") as caught:
        tensors.read_inputs(str(path), PARAMETERS)
    assert caught.value.code == "ERUN001"


def test_absent_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        tensors.read_inputs(str(tmp_path / "absent.npz"), PARAMETERS)


def test_unwritable_outputs_leave_nothing(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        tensors.write_outputs(str(tmp_path / "no" / "out.npz"), [np.ones(3)], ["out0"])
    assert os.listdir(tmp_path) == []


def test_random_inputs_are_seeded_and_typed():
    parameters = [
        (Name("x"), Shape("f32", (4, 5))),
        (Name("h"), Shape("bf16", (8,))),
        (Name("i"), Shape("s64", (100,))),
        (Name("b"), Shape("pred", (64,))),
        (Name("c"), Shape("c64", (2,))),
        (Name("empty"), Shape("u8", (0, 3))),
    ]
    first = tensors.random_inputs(parameters, 1)
    again = tensors.random_inputs(parameters, 1)
    other = tensors.random_inputs(parameters, 2)
    for (_, shape), array, same in zip(parameters, first, again, strict=True):
        assert array.dtype == shape.numpy_dtype
        assert array.shape == shape.dims
        np.testing.assert_array_equal(array, same)
    assert not np.array_equal(first[0], other[0])
    assert first[1].dtype == ml_dtypes.bfloat16
    assert first[2].min() >= 0
    assert first[2].max() < tensors.RANDOM_INTEGERS
    assert set(np.unique(first[3])) == {False, True}


def test_outputs_have_the_names_of_their_framework(tmp_path):
    from types import SimpleNamespace

    def named(*names):
        return tensors.output_names(SimpleNamespace(outputs=[SimpleNamespace(argument=name) for name in names]))

    assert named("scores", "", "a/b:0") == ["scores", "out1", "a/b:0"]
    assert named("y", "y", "out7", "x@1") == ["out0", "out1", "out2", "out3"]
    path = str(tmp_path / "x.npz")
    tensors.write_outputs(path, [np.ones(2), np.zeros(3)], ["file", "a/b:0"])
    assert sorted(np.load(path).files) == ["a/b:0", "file"]
