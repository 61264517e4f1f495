"""Places in the user's code: from torch's nodes to the locations of HLO instructions.

Torch keeps, as text, the stack of each call in ``forward`` and the modules around it. JAX takes an instruction's source
line from the innermost frame of Python's stack that is not JAX's own; so rows are called through a function whose code
says the user's file and line, and this package's frames are no user's. The modules' path becomes a name scope.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import jax
import torch
from jax._src import source_info_util

from neuronx_cc.ir.errors import Loc

T = TypeVar("T")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ATTRIBUTE = re.compile(r"\['?([^\]']+)'?\]")
TORCH = os.path.dirname(torch.__file__) + os.sep
HERE = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node comes from; empty where torch does not say."""

    file: str = ""
    line: int = 0
    function: str = ""
    modules: str = ""
    """Path of the module that the call is in: ``layers.0.attention``."""

    def __str__(self) -> str:
        source = f"{self.file}:{self.line}" if self.file else ""
        return ", ".join(part for part in (self.modules, source) if part)

    @property
    def loc(self) -> Loc:
        return Loc(op_name=self.modules, source_file=self.file, source_line=self.line)


def place_of(node: torch.fx.Node) -> Place:
    """The innermost line of code that is not torch's own, and the innermost module."""
    frames = [frame for frame in _FRAME.findall(node.meta.get("stack_trace") or "") if not frame[0].startswith(HERE)]
    own = [frame for frame in frames if not frame[0].startswith(TORCH)] or frames
    file, line, function = own[-1] if own else ("", "0", "")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(list(stack.values())) if entry[0]), "")
    return Place(file, int(line), function, module_path(path))


def module_path(name: str) -> str:
    """``layers.0.w`` for torch's ``L['self']._modules['layers']._modules['0'].w`` and for plain paths."""
    name = re.sub(r"^L\['self'\]\.?", "", name).replace("._modules", "").replace("_modules", "")
    return _ATTRIBUTE.sub(r".\1", name).strip(".")


@cache
def _caller(file: str, line: int, function: str) -> Callable[[Callable[[], Any]], Any]:
    call = _call.__code__.replace(co_filename=file, co_firstlineno=line - 1, co_name=function, co_qualname=function)
    return FunctionType(call, {})


def _call(compute: Callable[[], T]) -> T:
    return compute()


@cache
def _forget_own_frames() -> None:
    for folder in {HERE, os.path.realpath(HERE) + os.sep}:
        source_info_util.register_exclusion(folder)


def within(place: Place, compute: Callable[[], T]) -> T:
    """What ``compute`` gives; the operations that JAX traces meanwhile are those of ``place``."""
    _forget_own_frames()
    call: Callable[[Callable[[], T]], T] = _caller(place.file, place.line, place.function) if place.file else _call
    if not place.modules:
        return call(compute)
    with jax.named_scope(place.modules):
        return call(compute)
