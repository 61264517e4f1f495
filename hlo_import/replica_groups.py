"""Replica groups in their three spellings: lists, iota (``[2,4]<=[4,2]T(1,0)``) and mesh axes, expanded to lists."""

import re
from math import prod
from typing import Any

import numpy as np

MAX_MEMBERS = 1 << 20
"""Most devices a short spelling may expand to."""

MESH_VALUE = re.compile(
    r"mesh\[[^\][]{0,10000}\](?:\s*,\s*device_ids=\((?:[^()]|\([^()]*\)){0,1000000}\))?\s*\{[^{}]{0,10000}\}"
)
"""One whole mesh spelling; unlike other attribute values it has spaces and a comma outside brackets."""

_IOTA = re.compile(r"\[(\d{1,9}),(\d{1,9})\]<=\[([\d,]{1,200})\](?:T\(([\d,]{1,200})\))?")
_LIST = r"\{(?:\d+(?:,\d+)*)?\}"
_LISTS = re.compile(rf"(?:{_LIST}(?:,{_LIST})*)?")
_DEVICES_IOTA = re.compile(r"\[([\d,]{1,200})\](?:T\(([\d,]{1,200})\))?")
_AXIS = re.compile(r"['\"]([^'\"]{1,200})['\"]=(\d{1,9})")
_AXES = re.compile(rf"(?:\s*{_AXIS.pattern}\s*(?:,(?!\s*$)|$))*")
_REFERENCE = re.compile(r"['\"]([^'\"]{1,200})['\"](?::\((\d{1,9})\)(\d{1,9}))?")

Groups = tuple[tuple[int, ...], ...]


def replica_groups(text: str) -> Groups:
    """The groups of any spelling. Raises ValueError."""
    text = text.strip()
    if text.startswith("mesh["):
        return _mesh(text)
    if re.search(r"\d\s+\d", text):
        raise ValueError(f"expected a comma between devices, found {text[:60]!r}")
    compact = "".join(text.split())
    if match := _IOTA.fullmatch(compact):
        groups, size = int(match[1]), int(match[2])
        devices = _iota(match[3], match[4])
        if devices.size != groups * size:
            raise ValueError(f"expected {groups} x {size} devices, found {devices.size}")
        return _rows(devices.reshape(groups, size))
    if not (compact.startswith("{") and compact.endswith("}")):
        raise ValueError(f"expected groups in braces, found {text[:60]!r}")
    inside = compact[1:-1]
    if not _LISTS.fullmatch(inside):
        raise ValueError(f"expected groups such as {{{{0,1}},{{2,3}}}}, found {text[:60]!r}")
    return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", inside))


def _numbers(text: str) -> tuple[int, ...]:
    words = [word for word in text.split(",") if word]
    if any(len(word) > 18 for word in words):
        raise ValueError("expected device numbers of at most 18 digits")
    return tuple(map(int, words))


def _rows(devices: "np.ndarray[Any, Any]") -> Groups:
    return tuple(tuple(row) for row in devices.tolist())


def _iota(dims_text: str, order_text: str | None) -> "np.ndarray[Any, Any]":
    dims = _numbers(dims_text)
    if not dims or prod(dims) > MAX_MEMBERS:
        raise ValueError(f"expected at most {MAX_MEMBERS} devices, found {prod(dims)}")
    devices = np.arange(prod(dims)).reshape(dims)
    if order_text is None:
        if len(dims) > 1:
            raise ValueError(f"expected an order such as T(1,0) of {len(dims)} dimensions, found none")
        return devices
    order = _numbers(order_text)
    if sorted(order) != list(range(len(dims))):
        raise ValueError(f"expected a permutation of {len(dims)} dimensions, found T({order_text})")
    return devices.transpose(order)


def _mesh(text: str) -> Groups:
    """``mesh['x'=2,'y'=4], device_ids=(...) {'x','y':(1)2}``: devices that differ in the named axes only."""
    names_text, _, rest = text[len("mesh[") :].partition("]")
    ids_text, _, grouped_text = rest.rpartition("{")
    if not _AXES.fullmatch(names_text):
        raise ValueError(f"expected axes such as 'x'=2,'y'=4, found {names_text[:60]!r}")
    axes = {name: int(size) for name, size in _AXIS.findall(names_text)}
    total = prod(axes.values())
    if not 0 < total <= MAX_MEMBERS:
        raise ValueError(f"expected a mesh of 1 to {MAX_MEMBERS} devices, found {total}")
    devices = np.arange(total)
    if "device_ids=" in ids_text:
        devices = _device_ids(ids_text.partition("(")[2].strip().rstrip(",").removesuffix(")"))
        if devices.size != total:
            raise ValueError(f"expected {total} device_ids, found {devices.size}")
    references = [(name, int(pre or 1), int(size or 0)) for name, pre, size in _REFERENCE.findall(grouped_text)]
    dims: list[int] = []
    places: dict[tuple[str, int], int] = {}
    for axis, size in axes.items():
        done = 1
        for _, pre, part in sorted(one for one in references if one[0] == axis):
            part = part or size // pre
            if pre % done or pre == 0 or part == 0 or size % (pre * part):
                raise ValueError(f"expected sub-axes that divide axis {axis} of size {size}, found ({pre}){part}")
            dims.append(pre // done)
            places[axis, pre] = len(dims)
            dims.append(part)
            done = pre * part
        dims.append(size // done)
    grouped = [places[name, pre] for name, pre, _ in references if (name, pre) in places]
    if len(set(grouped)) != len(references):
        raise ValueError(f"expected distinct axes of the mesh, found {grouped_text[:60]!r}")
    if len(dims) > 60:
        raise ValueError("expected at most 20 axes")
    others = [place for place in range(len(dims)) if place not in grouped]
    members = prod(dims[place] for place in grouped)
    return _rows(devices.reshape(dims).transpose([*others, *grouped]).reshape(-1, members))


def _device_ids(text: str) -> "np.ndarray[Any, Any]":
    if match := _DEVICES_IOTA.fullmatch(text.replace(" ", "")):
        return _iota(match[1], match[2]).reshape(-1)
    return np.array(_numbers(text.replace(" ", "")))
