"""Exported programs of PyTorch, damaged as archives, as JSON, as bytes. Nothing to do where torch is not installed."""

import copy
import importlib.util
import io
import json
import os
import random
import tempfile
import zipfile
from typing import Any

import mutation

HAVE_TORCH = importlib.util.find_spec("torch") is not None
ODD = (None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, "", "x", "../x", "__import__('os')", "torch.load", [], {}, [[]])


def seeds() -> list[bytes]:
    if not HAVE_TORCH:
        return [b""]
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(3, 2)
            self.register_buffer("scale", torch.arange(2.0))

        def forward(self, x: Any, *, shift: Any) -> Any:
            return {"y": [self.dense(x) * self.scale + torch.tensor([1.0, 2]), shift.long().sum()], "n": None}

    def branches(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return branches(x).reshape(-1)[:3].softmax(0)

    found = []
    for model, arguments, keywords in (
        (Model(), (torch.ones(2, 3),), {"shift": torch.ones(2)}),
        (Branches(), (torch.ones(2, 3),), {}),
    ):
        buffer = io.BytesIO()
        torch.export.save(torch.export.export(model, arguments, keywords), buffer)
        found.append(buffer.getvalue())
    return found


def run(data: bytes) -> None:
    """Read alone: what becomes of graphs and HLO other tests and targets try."""
    if not HAVE_TORCH:
        return
    from neuronx_cc.driver.frontends.torch.archive import read_pt2

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt2")
        with open(path, "wb") as file:
            file.write(data)
        read_pt2(path)


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Damage behind the checksums of the archive, if it is one still."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception:
        return mutation.mutate(data, draw)
    if not members or draw.random() < 0.1:
        return mutation.mutate(data, draw)
    name = draw.choice(list(members))
    documents = [each for each in members if each.endswith(".json")]
    if documents and draw.random() < 0.7:
        name = draw.choice(documents)
        members[name] = _edited(members[name], draw)
    else:
        match draw.randrange(4):
            case 0:
                members[draw.choice(list(members))] = members.pop(name)
            case 1:
                del members[name]
            case 2:
                members[name + draw.choice("/.x")] = members[name]
            case _:
                members[name] = mutation.mutate(members[name], draw)
    buffer = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if draw.random() < 0.02 else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _edited(text: bytes, draw: random.Random) -> bytes:
    """JSON with a value that is another one, one of elsewhere, gone, or there twice."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return mutation.mutate(text, draw)
    for _ in range(draw.choice((1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            break
        parent, key = draw.choice(places)
        elsewhere, other = draw.choice(places)
        match draw.randrange(5):
            case 0:
                parent[key] = copy.deepcopy(draw.choice(ODD))
            case 1:
                parent[key] = copy.deepcopy(elsewhere[other])
            case 2 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            case 3 if isinstance(parent[key], int):
                parent[key] += draw.choice((-1, 1, 7, 2**32))
            case 4 if isinstance(parent[key], str):
                parent[key] = mutation.mutate(parent[key].encode(), draw).decode("utf-8", "replace")
            case _:
                del parent[key]
    return json.dumps(document).encode()


def _places(document: Any) -> Any:
    """Every container of JSON with each of its keys."""
    open_ones = [document]
    while open_ones:
        parent = open_ones.pop()
        pairs = parent.items() if isinstance(parent, dict) else enumerate(parent) if isinstance(parent, list) else ()
        for key, value in pairs:
            yield parent, key
            open_ones.append(value)
