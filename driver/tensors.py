"""Program inputs and outputs as ``.npz`` files, and random inputs.

Inputs are keyed ``arg0``, ``arg1``, ... by parameter number (``arr_0``, ... by ``numpy.savez`` without names), or by
any other of their names (``runtime.arguments``); outputs as the framework calls them, else ``out0``, ``out1``, ...
NumPy files know no bfloat16, no 8-bit floats, no 2- and 4-bit integers: the floats are stored as raw void arrays of the
same width (what NumPy itself makes of them) and read back by the program's types, the integers as int8 and uint8.
"""

import re
import zipfile
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, BinaryIO

import numpy as np

from neuronx_cc.driver import files
from neuronx_cc.driver.parse import closest
from neuronx_cc.ir.errors import RunError, UsageError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, SIGNED, Shape, bits, shape
from neuronx_cc.runtime.arguments import Name, all_names, find

Array = np.ndarray[Any, np.dtype[Any]]
Parameter = tuple[Name, Shape]
"""Names and shape of a program input."""

_WIDE = {dtype: np.dtype(np.int8 if dtype in SIGNED else np.uint8) for dtype in ("s2", "u2", "s4", "u4")}
_WIDEST_BYTES, _HEADER_BYTES, _SLACK_BYTES = 16, 256, 1 << 20
"""Of an element and of an array's header in an ``.npz`` file, and for arrays there that are no parameters."""
_NUMBERED = re.compile(r"out\d+|.*[@\0].*", re.DOTALL)
"""Names that mean something else in a file."""
_UNNAMED = re.compile(r"arr_(\d{1,6})")
"""What ``numpy.savez`` calls arrays that it is given without names."""
RANDOM_INTEGERS = 8
"""Random integer inputs are 0 to 7: small enough to be indices into nearly everything."""


def parameters_of(neff: Neff) -> list[Parameter]:
    """The program's parameters in order."""
    return [(Name(variable.name, variable.argument), shape(variable.dtype, variable.dims)) for variable in neff.inputs]


def read_inputs(path: str, parameters: Sequence[Parameter]) -> list[Array]:
    """The arrays of ``path`` in parameter order; raises ``RunError`` for anything missing, unknown or misfit."""
    return _in_order(path, _load(path, [parameters]), parameters)


def read_device_inputs(paths: Sequence[str], parameters: Sequence[Sequence[Parameter]]) -> list[list[Array]]:
    """The arrays of each device, whose program has ``parameters[device]``; of two files, those of both.

    ``arg0@3`` is device 3's, ``arg0`` that of all devices that have such a parameter and none of their own. Raises
    ``RunError`` for anything missing, unknown, misfit or in both files.
    """
    path, named = paths[0], dict(_load(paths[0], parameters))
    for other in paths[1:]:
        more = _load(other, parameters)
        if twice := named.keys() & more.keys():
            raise RunError("ERUN001", f"{min(twice)!r} is in {path} and in {other}", "keep it in one of them")
        named |= more
        path = f"{path} and {other}"
    if len(parameters) == 1:
        return [_in_order(path, named, parameters[0])]
    devices = len(parameters)
    common: dict[str, Array] = {}
    own: list[dict[str, Array]] = [{} for _ in range(devices)]
    for key, array in named.items():
        name, separator, number = key.rpartition("@")
        if not separator:
            common[key] = array
        elif number.isdecimal() and int(number) < devices:
            own[int(number)][name] = array
        else:
            raise RunError("ERUN001", f"{path}: {key!r} names no device", f"the program runs on {devices} devices")
    names = [[name for name, _ in those] for those in parameters]
    for key in common:
        if all(_place(key, those) is None for those in names):
            # the error of a single program names what is closest
            _in_order(path, {key: common[key]}, parameters[0])
    return [
        _in_order(path, {key: array for key, array in common.items() if _place(key, known) is not None} | mine, those)
        for mine, known, those in zip(own, names, parameters, strict=True)
    ]


SHOWN = 8
"""Parameters that a message lists."""


def read_some(path: str, parameters: Sequence[Parameter]) -> dict[int, Array]:
    """The arrays of ``path`` by the numbers of their parameters; raises ``RunError`` for anything unknown or misfit."""
    return numbered(path, _load(path, [parameters]), parameters)


def _in_order(path: str, named: Mapping[str, Array], parameters: Sequence[Parameter]) -> list[Array]:
    found = numbered(path, named, parameters)
    missing = [index for index in range(len(parameters)) if index not in found]
    if missing:
        raise RunError(
            "ERUN001",
            f"{path}: no value for parameter {', '.join(map(str, missing))}",
            f"the program takes there {_signature(parameters, missing)}",
        )
    return [found[index] for index in range(len(parameters))]


def numbered(path: str, named: Mapping[str, Array], parameters: Sequence[Parameter]) -> dict[int, Array]:
    """Arrays that ``path`` calls so, by the numbers of their parameters. Raises RunError ERUN001."""
    found: dict[int, tuple[str, Array]] = {}
    names = [name for name, _ in parameters]
    for key, array in named.items():
        index = _place(key, names)
        if index is None:
            raise RunError(
                "ERUN001",
                f"{path}: no parameter is called {key!r}{closest(key, all_names(names))}",
                f"the program has {_signature(parameters)}",
            )
        if index in found:
            raise RunError("ERUN001", f"{path}: {found[index][0]!r} and {key!r} are both parameter {index}")
        found[index] = (key, array)
    try:
        return {index: fit(array, parameters[index][1], key) for index, (key, array) in found.items()}
    except RunError as error:
        raise RunError(error.code, f"{path}: {error.message}", error.remedy) from None


def _place(key: str, names: Sequence[Name]) -> int | None:
    """The number of the parameter that a file calls so."""
    found = find(key, names)
    if found is None and (unnamed := _UNNAMED.fullmatch(key)) is not None and int(unnamed[1]) < len(names):
        return int(unnamed[1])
    return found


def fit(array: Array, shape: Shape, key: str) -> Array:
    """``array`` as stored elements of ``shape``; raises ``RunError`` unless type and dimensions agree."""
    if array.shape != shape.dims:
        raise RunError("ERUN001", f"input {key} should be {shape}, found dimensions {list(array.shape)}")
    wanted = shape.numpy_dtype
    if array.dtype == wanted:
        return array
    if array.dtype.newbyteorder("=") == wanted:
        return array.astype(wanted)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize and shape.dtype in FLOATS:
        return np.ascontiguousarray(array).view(wanted).reshape(shape.dims)
    if shape.dtype in _WIDE and array.dtype == _WIDE[shape.dtype]:
        narrow = array.astype(wanted)
        if np.array_equal(narrow.astype(array.dtype), array):
            return narrow
        raise RunError("ERUN001", f"input {key} should be {shape}, found values outside {bits(shape.dtype)} bits")
    raise RunError(
        "ERUN001",
        f"input {key} should be {shape}, found {array.dtype}",
        f"convert it with .astype({wanted.name!r}); 16-bit and 8-bit floats may also be raw V{wanted.itemsize} arrays",
    )


def random_inputs(parameters: Sequence[Parameter], seed: int) -> list[Array]:
    """Standard normal floats, integers 0 to 7, fair booleans; each parameter has its own stream of ``seed``."""
    arrays = []
    for index, (_, wanted) in enumerate(parameters):
        generator = np.random.default_rng((seed, index))
        if wanted.dtype == "pred":
            array = generator.integers(0, 2, wanted.dims).astype(np.bool_)
        elif wanted.dtype in FLOATS:
            array = generator.standard_normal(wanted.dims, np.float32).astype(wanted.numpy_dtype)
        else:
            array = generator.integers(0, RANDOM_INTEGERS, wanted.dims).astype(wanted.numpy_dtype)
        arrays.append(array)
    return arrays


def output_names(neff: Neff) -> list[str]:
    """What the results are called in a file: as the framework calls them, else, or where that is no name, ``out0``."""
    given = [variable.argument for variable in neff.outputs]
    return [
        name if name and given.count(name) == 1 and not _NUMBERED.fullmatch(name) else f"out{index}"
        for index, name in enumerate(given)
    ]


def write_outputs(path: str, arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Write the results to ``path`` by rename, under their names."""
    write_arrays(path, dict(zip(names, arrays, strict=True)), RunError)


def write_device_outputs(path: str, devices: Sequence[Sequence[Array]], names: Sequence[Sequence[str]]) -> None:
    """Write ``out0@0``, ``out0@1``, ...: result 0 of device 0, of device 1, and so on, under their names."""
    named = {
        f"{name}@{number}": array
        for number, (arrays, own) in enumerate(zip(devices, names, strict=True))
        for name, array in zip(own, arrays, strict=True)
    }
    write_arrays(path, named, RunError)


def write_arrays(path: str, arrays: Mapping[str, Array], error_class: files.ErrorClass) -> None:
    """Write an ``.npz`` of any names (``numpy.savez`` takes its own parameters' for others)."""

    def fill(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _storable(array), allow_pickle=False)

    files.write(path, fill, error_class)


def _storable(array: Array) -> Array:
    for dtype, wide in _WIDE.items():
        if array.dtype == NUMPY_DTYPE[dtype]:
            return array.astype(wide)
    return array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")


def _load(path: str, devices: Sequence[Sequence[Parameter]]) -> Mapping[str, Array]:
    """What the file holds, which is no more than the parameters of all devices take."""
    count = max(map(len, devices))
    # of the widest elements, for those have an error of their own; but no small file unpacks to gigabytes
    sizes = [_WIDEST_BYTES * prod(shape.dims) + _HEADER_BYTES for each in devices for _, shape in each]
    limit = sum(sizes) + _SLACK_BYTES
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            named = {"arg0": loaded} if count == 1 else None
        else:
            with loaded:
                held = sum(member.file_size for member in loaded.zip.infolist())
                if held > limit:
                    raise RunError(
                        "ERUN001",
                        f"{path} holds {held} bytes, more than the program's inputs take",
                        f"the program has {_signature(devices[0])}",
                    )
                named = {key: loaded[key] for key in loaded.files}
    except (MemoryError, RunError):
        raise
    except OSError as error:
        raise UsageError("EFIL901", f"cannot read the arrays in {path}: {error.strerror or error}") from None
    except Exception as error:
        # numpy, zipfile and zlib raise about ten kinds of exceptions for damaged files
        # numpy takes what it does not know for a pickle, and tells how to load one
        said = "it holds no arrays" if "pickle" in str(error) else error
        raise RunError("ERUN001", f"{path} is no readable .npz file: {said}", "write it with numpy.savez") from None
    if named is None:
        raise RunError("ERUN001", f"{path} is one array; the program takes {count}", "write them with numpy.savez")
    for key, array in named.items():
        if not isinstance(array, np.ndarray):
            raise RunError("ERUN001", f"{path}: {key!r} is no array", "write it with numpy.savez")
    return named


def _signature(parameters: Sequence[Parameter], numbers: Sequence[int] | None = None) -> str:
    """The first of them, or of those with these numbers."""
    numbers = range(len(parameters)) if numbers is None else numbers
    shown = [f"arg{index} ({parameters[index][0]}) {parameters[index][1]}" for index in numbers[:SHOWN]]
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return (", ".join(shown) or "no parameters") + more
