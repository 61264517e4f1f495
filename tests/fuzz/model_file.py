"""Model files through ``load_model``: exported programs, Keras files, SavedModels, damaged as archives, JSON and bytes.

Each is an archive; one with ``saved_model.pb`` is unpacked to a folder. Formats whose framework is not installed are
left out.
"""

import contextlib
import importlib.util
import io
import os
import random
import struct
import tempfile
import zipfile
from pathlib import Path

import mutation
import pt2

HEADERS = {b"PK\x01\x02": (8, 10, 16, 20, 24, 28, 30, 32, 42), b"PK\x03\x04": (6, 8, 14, 18, 22, 26, 28)}
"""Where in a member's header its flags, method, checksum, sizes, lengths and place stand."""
BOMB = 1 << 28


def seeds() -> list[bytes]:
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3")
    import damaged_models

    found = [each for each in pt2.seeds() if each]
    with tempfile.TemporaryDirectory() as place:
        if importlib.util.find_spec("keras") and importlib.util.find_spec("h5py"):
            found.append(damaged_models.keras_file(Path(place))[0].read_bytes())
        if importlib.util.find_spec("tensorflow"):
            folder = Path(place) / "saved"
            files = damaged_models.saved_model(folder)
            found.append(_packed({str(each.relative_to(folder)): each.read_bytes() for each in files}))
    return found or [b""]


def run(data: bytes) -> None:
    """What ``neuronx-cc compile`` does before it compiles."""
    import neuronx_cc

    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        path = Path(place) / "model"
        if not _unpacked(data, path):
            path.write_bytes(data)
        neuronx_cc.load_model(path)


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Members and their content, headers that lie, or a member that unpacks to far more."""
    chance = draw.random()
    if chance < 0.75:
        return pt2.mutate(data, draw)
    if chance < 0.97:
        return _lying(data, draw)
    members = _members(data)
    if not members:
        return mutation.mutate(data, draw)
    return _packed({**members, draw.choice(list(members)): bytes(BOMB)}, zipfile.ZIP_DEFLATED)


def _lying(data: bytes, draw: random.Random) -> bytes:
    mark = draw.choice(list(HEADERS))
    starts = [at for at in range(len(data) - 46) if data.startswith(mark, at)]
    if not starts:
        return mutation.mutate(data, draw)
    at = draw.choice(starts) + draw.choice(HEADERS[mark])
    code = draw.choice(("<H", "<I"))
    size = struct.calcsize(code)
    return data[:at] + struct.pack(code, mutation.limit(draw) % (1 << 8 * size)) + data[at + size :]


def _members(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except Exception:
        return {}


def _packed(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _unpacked(data: bytes, folder: Path) -> bool:
    """Whether ``data`` is a packed folder of a SavedModel, which is in ``folder`` then."""
    members = {name: each for name, each in _members(data).items() if ".." not in name and not name.startswith("/")}
    if "saved_model.pb" not in members or max(map(len, members.values())) >= BOMB:
        return False
    for name, content in members.items():
        with contextlib.suppress(OSError, ValueError):  # names that are no file's
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return (folder / "saved_model.pb").is_file()
