"""The outside of a NEFF: header, tar archive, compression, hash.

``write`` puts named members into a file; ``Reader`` gives them back in the order in which they were written, and
believes nothing: sizes, names, checksums and the hash are checked, and nothing is expanded beyond what the file may
hold.
"""

import hashlib
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from neuronx_cc.ir.errors import RunError

HEADER_SIZE = 1024
PACKAGE_VERSION = 1
VERSION = (2, 0)
"""Major, minor. The vendor's files begin at 0 and 1; a reader tells ours by the build text as well."""
BUILD = "open-neuronx-cc"

_HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI468s")
"""Package version, header size, data size, major, minor; build; cores; hash; uuid; name; cores requested; per node;
feature bits; logical core size; padding (sheet 6.5)."""

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_LEVEL = 6


class Budget(NamedTuple):
    """How much members may have of something: some, and so much for each byte of the archive, up to a limit."""

    base: int
    ratio: int
    most: int

    def of(self, payload: int) -> int:
        return min(self.base + self.ratio * payload, self.most)


TEXT = Budget(4 << 20, 16, 1 << 28)
"""Bytes of all JSON members together. Compiled programs have up to 3.2 for each byte of the archive."""
VALUES = Budget(1 << 18, 1, 1 << 25)
"""JSON values in them, up to 64 bytes each when read. Compiled programs have up to 0.5 for each byte of the archive."""
TABLES = Budget(16 << 20, 256, 1 << 30)
"""All tables together. Those of compiled programs are 15 to 150 times as long as their compressed form."""
_GZIP = b"\x1f\x8b"

Bytes = bytes | memoryview


def malformed(message: str) -> RunError:
    """The error for a file that is no good NEFF."""
    return RunError("ENEF901", f"not a loadable NEFF: {message}", "compile the module again, or copy the file again")


def write(
    file: BinaryIO,
    texts: Mapping[str, Any],
    tables: Mapping[str, Any],
    constants: Mapping[str, Any],
    version: str,
    name: str,
    compress: bool,
) -> None:
    """Write a NEFF with the members ``texts``, ``tables``, then ``constants`` (bytes or arrays each), in their order.

    What compresses so well that a reader would take it for an attack is stored as it is.
    """
    parts = {**texts, **tables}
    sizes = [sum(len(_bytes_of(content)) for content in group.values()) for group in (texts, tables)]
    sizes.append(sum(_values(content) for content in texts.values()))
    for level in (_LEVEL, 0) if compress else (None,):
        file.seek(HEADER_SIZE)
        if level == 0:  # written once more; devices cannot be cut
            file.truncate()
        digest = hashlib.sha256()
        size = 0
        for group, how in ((_members(parts), level), (_members(constants, end=True), 0)):
            for chunk in group if how is None or level is None else _compressed(group, how):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        if all(needed <= budget.of(size) for needed, budget in zip(sizes, (TEXT, TABLES, VALUES), strict=True)):
            break
    file.seek(0)
    file.write(_header(size, digest.digest(), version, name))


def _header(size: int, digest: bytes, version: str, name: str) -> bytes:
    uuid = hashlib.sha256(b"uuid" + digest).digest()[:16]
    build = _fit(f"{BUILD} {version}", 128)
    per_node = bytes([1]) + bytes(63)
    fields = (PACKAGE_VERSION, HEADER_SIZE, size, *VERSION, build, 1, digest, uuid, _fit(name, 256), 1, per_node, 0, 1)
    return _HEADER.pack(*fields, b"")


def _fit(text: str, size: int) -> bytes:
    """``text`` for a field of ``size`` bytes that ends in a zero."""
    return text.encode("utf-8", "replace")[: size - 1].decode("utf-8", "ignore").encode()


def _members(parts: Mapping[str, Any], end: bool = False) -> Iterator[Bytes]:
    """A tar archive of ``parts``, closed by its two zero blocks if ``end``."""
    for name, content in parts.items():
        data = _bytes_of(content)
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        yield info.tobuf(tarfile.GNU_FORMAT)
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]
        yield bytes(-len(data) % _BLOCK)
    if end:
        yield bytes(2 * _BLOCK)


def _bytes_of(content: Any) -> memoryview:
    if isinstance(content, np.ndarray):
        contiguous = content if content.flags.c_contiguous else np.ascontiguousarray(content)
        return contiguous.reshape(-1).view(np.uint8).data
    return memoryview(content)


def _values(text: bytes) -> int:
    """No less than the number of JSON values in a text."""
    return 1 + sum(map(text.count, (b",", b"[", b"{")))


def _compressed(chunks: Iterator[Bytes], level: int) -> Iterator[bytes]:
    """One gzip member (zlib writes no time stamp)."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for chunk in chunks:
        yield compressor.compress(chunk)
    yield compressor.flush()


class Reader:
    """Reads members in order. Raises RunError ENEF901 for anything unexpected."""

    def __init__(self, data: bytes) -> None:
        if len(data) < HEADER_SIZE:
            raise malformed(f"{len(data)} bytes are less than its header")
        fields = _HEADER.unpack_from(data)
        package, header_size, size, major, minor = fields[:5]
        build = fields[5].rstrip(b"\0")
        if header_size != HEADER_SIZE or not 0 < package <= 16:
            raise malformed("the file does not begin with a NEFF header")
        if not build.startswith(BUILD.encode()):
            raise malformed("it was written by another compiler, whose instruction encoding is not public")
        if package != PACKAGE_VERSION or major != VERSION[0] or minor > VERSION[1]:
            raise malformed(f"version {package}.{major}.{minor}; this is {PACKAGE_VERSION}.{VERSION[0]}.{VERSION[1]}")
        payload = memoryview(data)[HEADER_SIZE:]
        if size != len(payload):
            state = "truncated" if len(payload) < size else "followed by foreign data"
            raise malformed(f"the file is {state}: {len(payload)} bytes of data, {size} expected")
        if hashlib.sha256(payload).digest() != fields[7]:
            raise malformed("the content does not match its hash")
        if _header(size, fields[7], "", "")[204:220] != fields[8]:
            raise malformed("the uuid does not belong to the content")
        self.compressed = bytes(payload[:2]) == _GZIP
        self._source = _Inflater(payload) if self.compressed else _Plain(payload)
        self._payload_size = len(payload)
        self._text, self._tables, self._values = (each.of(len(payload)) for each in (TEXT, TABLES, VALUES))

    def text(self, name: str) -> bytes:
        """The next member, which must be called ``name``."""
        size = self._begin(name)
        if size > self._text:
            raise malformed(f"{name} has {size} bytes, more than a file of this size can need")
        self._text -= size
        content = bytes(self._end(name, size, self._source.take(size)))
        self._values -= _values(content)
        if self._values < 0:
            raise malformed(f"{name} has more values than a file of this size can need")
        return content

    def table(self, name: str, size: int) -> Any:
        """The next member, which must be called ``name`` and be ``size`` bytes long, as a ``uint8`` array."""
        if size > self._tables:
            raise malformed(f"{name} should have {size} bytes, more than a file of this size can hold")
        self._tables -= size
        return self._array(name, size)

    def constant(self, name: str, size: int) -> Any:
        """As ``table``, for a member that is stored without compression."""
        if size > self._payload_size:
            raise malformed(f"{name} of {size} bytes is larger than the file")
        return self._array(name, size)

    def _array(self, name: str, size: int) -> Any:
        found = self._begin(name)
        if found != size:
            raise malformed(f"{name} has {found} bytes, {size} expected")
        return self._end(name, size, self._source.array(size))

    def _begin(self, name: str) -> int:
        """The size of the next member."""
        block = self._take(_BLOCK)
        try:
            info = tarfile.TarInfo.frombuf(bytes(block), "ascii", "strict")
        except (tarfile.TarError, ValueError, OverflowError):
            raise malformed(f"there should be a member {name}") from None
        if info.name != name or info.type != tarfile.REGTYPE:
            raise malformed(f"there should be a member {name}, not {info.name!r}")
        if info.size < 0:
            raise malformed(f"{name} has {info.size} bytes")
        return info.size

    def _end(self, name: str, size: int, content: Any) -> Any:
        if content is None or bytes(self._take(-size % _BLOCK)).strip(b"\0"):
            raise malformed(f"{name} is truncated or badly padded")
        return content

    def finish(self) -> None:
        """Check that the archive ends here."""
        if bytes(self._take(2 * _BLOCK)).strip(b"\0") or not self._source.at_end():
            raise malformed("there is more in the archive than its memory map says")

    def _take(self, size: int) -> Bytes:
        taken = self._source.take(size)
        if taken is None:
            raise malformed("the archive is truncated")
        return taken


class _Plain:
    """An archive that is not compressed."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._at = 0

    def take(self, size: int) -> memoryview | None:
        """The next ``size`` bytes, or None."""
        taken = self._payload[self._at : self._at + size]
        self._at += size
        return taken if len(taken) == size else None

    def array(self, size: int) -> Any:
        """The next ``size`` bytes as a read-only ``uint8`` array, or None."""
        taken = self.take(size)
        return None if taken is None else np.frombuffer(taken, np.uint8)

    def at_end(self) -> bool:
        return self._at == len(self._payload)


class _Inflater:
    """An archive in one or more gzip members, expanded as far as asked for."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._at = 0
        self._rest: Bytes = b""
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def take(self, size: int) -> bytes | None:
        """The next ``size`` bytes, or None at the end of the data."""
        pieces = []
        while size:
            piece = self._some(size)
            if not piece:
                return None
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def array(self, size: int) -> Any:
        """The next ``size`` bytes as a ``uint8`` array, or None at the end of the data."""
        target = np.empty(size, np.uint8)
        at = 0
        while at < size:
            piece = self._some(size - at)
            if not piece:
                return None
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return target

    def at_end(self) -> bool:
        return not self._some(1)

    def _some(self, limit: int) -> bytes:
        """Up to ``limit`` bytes; none at the end."""
        while True:
            if self._inflate.eof:
                self._rest = self._inflate.unused_data
                if not self._rest and self._at == len(self._payload):
                    return b""
                self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            if not self._rest:
                self._rest = self._payload[self._at : self._at + _CHUNK]
                self._at += len(self._rest)
            starved = not self._rest
            try:
                piece = self._inflate.decompress(self._rest, min(limit, _CHUNK))
            except zlib.error:
                raise malformed("the compressed data is damaged") from None
            self._rest = self._inflate.unconsumed_tail
            if piece:
                return piece
            if starved and not self._inflate.eof:
                return b""
