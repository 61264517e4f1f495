"""Reading inputs whole and writing outputs whole: an output appears by rename, complete, or not at all."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from neuronx_cc.ir.errors import NeuronError, UsageError

ErrorClass = type[NeuronError]


def read(path: str, what: str, error_class: ErrorClass = UsageError) -> bytes:
    """The bytes of ``path``; ``what`` names the file's part in messages."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise error_class("EFIL901", f"cannot read the {what} {path}: {error.strerror}", "check the path") from None
    except ValueError as error:
        raise error_class("EFIL901", f"cannot read the {what} {path!r}: {error}", "check the path") from None


def make_folder(path: str) -> None:
    """Make the folder unless it is there. Raises UsageError EFIL902."""
    try:
        os.makedirs(path, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError("EFIL902", f"cannot make the directory {path}: {reason}") from None


def numbered(folder: str, endings: tuple[str, ...]) -> list[str]:
    """The files of ``folder`` with these endings, in the order of the numbers in their names. Raises UsageError."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_file() and entry.name.endswith(endings)]
    except OSError as error:
        raise UsageError("EFIL901", f"cannot read the folder {folder}: {error.strerror}", "check the path") from None
    if not found:
        raise UsageError("EFIL901", f"{folder} has no files {', '.join('*' + each for each in endings)}", "name files")

    def parts(name: str) -> list[tuple[int, str]]:
        return [(int(digits or -1), text) for digits, text in re.findall(r"([0-9]{1,18})|([^0-9]+)", name)]

    return [os.path.join(folder, name) for name in sorted(found, key=parts)]


def check_writable(path: str, option: str, inputs: Iterable[str] = ()) -> None:
    """Refuse an output that cannot work before time is spent on it: a directory, no parent, one of the inputs."""
    target = Path(path)
    try:
        if target.is_dir():
            problem = "it is a directory"
        elif not target.resolve().parent.is_dir():
            problem = f"there is no directory {target.resolve().parent}"
        elif not os.access(target if target.exists() else target.resolve().parent, os.W_OK):
            problem = "permission denied"
        elif any(target.exists() and os.path.exists(name) and target.samefile(name) for name in inputs):
            problem = "it is the input"
        else:
            return
    except OSError as error:
        problem = str(error.strerror)
    except ValueError as error:
        problem = str(error)
    raise UsageError("EFIL902", f"cannot write {path}: {problem}", f"choose another {option}")


def check_distinct(outputs: Mapping[str, str], inputs: Iterable[str]) -> None:
    """Refuse ``outputs`` (option -> path) that would overwrite one another or an input; devices may be shared."""
    read = {_identity(path) for path in inputs} - {None}
    written: dict[object, str] = {}
    for option, path in outputs.items():
        identity = _identity(path)
        if identity is None:
            continue
        if identity in read:
            raise UsageError("EFIL902", f"cannot write {path}: it is the input", f"choose another {option}")
        if identity in written:
            raise UsageError(
                "EARG905", f"{written[identity]} and {option} are one file, {path}", "give each a file of its own"
            )
        written[identity] = option


def _identity(path: str) -> object:
    """What all names of one file share; None for what is no regular file, or no possible name."""
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return os.path.realpath(path)
    except ValueError:
        return None


def write(path: str, fill: Callable[[BinaryIO], object], error_class: ErrorClass) -> None:
    """Let ``fill`` write the file ``path``; devices and pipes are written directly, all else by rename."""
    target = Path(path)
    temporary = None
    try:
        target = target.resolve()
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with target.open("wb") as file:
                fill(file)
            return
        candidate = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
        with candidate.open("xb") as file:
            temporary = candidate
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise error_class(
            "EFIL902", f"cannot write {path}: {error.strerror or error}", "free space or choose another place"
        ) from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def write_bytes(path: str, data: bytes, error_class: ErrorClass) -> None:
    write(path, lambda file: file.write(data), error_class)


def write_text(path: str, text: str, error_class: ErrorClass) -> None:
    write_bytes(path, text.encode("utf-8", "backslashreplace"), error_class)
