"""Inputs as users have them: one array a parameter, by name, or nested as the arguments of the JAX function were.

A parameter goes by up to three names: ``arg3`` by its number, that of its HLO instruction, and in modules from JAX the
path of the argument that it was, such as ``params['layers'][0].w``. Paths also say where in nested dictionaries, lists
and objects an array is found, so that a NEFF needs no JAX to take them.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Variable
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE

_ROOT = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(r"""\[(?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d{1,18})\]|\.(?P<field>[^\W\d]\w*)""")

Step = tuple[bool, str | int]
"""Whether a path goes on by an attribute, and its name; else by a key or number."""


class Name(NamedTuple):
    """The names of one parameter."""

    instruction: str
    argument: str = ""
    """Path of the JAX function's argument, or empty."""

    def __str__(self) -> str:
        return self.argument or self.instruction


class Tree(Protocol):
    """What is needed of JAX's ``PyTreeDef``."""

    def flatten_up_to(self, tree: Any, /) -> list[Any]: ...
    def unflatten(self, leaves: Iterable[Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Structure:
    """How a JAX function's arguments and results are nested."""

    arguments: Tree
    """Of the pair of positional and keyword arguments."""
    kept: tuple[int, ...]
    """The leaves of them that are parameters of the program, in order; the function does not use the others."""
    results: Tree


def find(key: str, names: Sequence[Name]) -> int | None:
    """The parameter called ``key``, if there is one. Raises RunError ERUN001 when two are called so."""
    found = [i for i, name in enumerate(names) if key in (f"arg{i}", name.instruction)]
    argued = [i for i, name in enumerate(names) if key == name.argument]
    if len(argued) == 1:
        found += argued
    if len(set(found)) > 1:
        listed = ", ".join(f"parameter {i} ({names[i].instruction})" for i in sorted(set(found)))
        raise RunError(
            "ERUN001", f"{key!r} may be {listed}", "use the name of the HLO instruction, which neuronx-cc inspect shows"
        )
    return found[0] if found else None


def all_names(names: Sequence[Name]) -> list[str]:
    """Every name of every parameter, and those of whole arguments."""
    roots = [path[0] for name in names if (path := _path(name.argument))]
    flat = [each for i, name in enumerate(names) for each in (f"arg{i}", *name) if each]
    return list(dict.fromkeys([*flat, *roots]))


def arrange(
    variables: Sequence[Variable],
    structure: Structure | None,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> list[Any]:
    """One value for each of ``variables``, the parameters of a program, from what its function was called with.

    ``arguments`` are one array a parameter, or the arguments of the function. Raises RunError ERUN001 when they do not
    fit.
    """
    misfit = ""
    if structure is not None:
        try:
            leaves = structure.arguments.flatten_up_to((tuple(arguments), dict(keywords)))
            return [_converted(leaves[i], each) for i, each in zip(structure.kept, variables, strict=True)]
        except (ValueError, TypeError, KeyError) as error:
            misfit = " ".join(str(error).split())[:300]
    if not keywords and len(arguments) == len(variables) and not any(map(_is_nested, arguments)):
        return [_converted(value, each) for value, each in zip(arguments, variables, strict=True)]
    names = [Name(variable.name, variable.argument) for variable in variables]
    roots = list(dict.fromkeys(path[0] if (path := _path(name.argument)) else str(name) for name in names))
    free = [root for root in roots if root not in keywords]
    if len(arguments) > len(free) or len(arguments) + len(keywords) < len(roots):
        raise RunError(
            "ERUN001",
            f"{len(arguments) + len(keywords)} inputs given, the program takes {len(variables)}: "
            f"{', '.join(map(str, names))}" + (f" ({misfit})" if misfit else ""),
        )
    return by_name(variables, dict(zip(free, arguments, strict=False)) | dict(keywords), of_function=True)


def by_name(variables: Sequence[Variable], given: Mapping[str, Any], of_function: bool = False) -> list[Any]:
    """The same from arrays by any of their names, or nested values by the names of the function's arguments.

    ``of_function``: the keys are names of its arguments where it has such.
    """
    names = [Name(variable.name, variable.argument) for variable in variables]
    paths = [_path(name.argument) for name in names]
    found: dict[int, Any] = {}
    for key, value in given.items():
        under = [i for i, path in enumerate(paths) if path and path[0] == key]
        index = None if of_function and under else find(key, names)
        if index is not None and not (len(under) > 1 and _is_nested(value)):
            chosen = {index: value}
        elif under:
            chosen = {i: _walk(value, paths[i], names[i]) for i in under}
        else:
            near = difflib.get_close_matches(str(key), all_names(names), n=1, cutoff=0.5)
            also = f"; did you mean {near[0]}?" if near else ""
            raise RunError("ERUN001", f"no input is called {key!r}{also}", f"the program takes {_listed(names)}")
        for i in chosen:
            if i in found:
                raise RunError("ERUN001", f"input {names[i]} is given twice, the second time by {key!r}")
        found |= chosen
    missing = [str(name) for i, name in enumerate(names) if i not in found]
    if missing:
        raise RunError("ERUN001", f"no value for {', '.join(missing)}", f"the program takes {_listed(names)}")
    return [_converted(found[i], each) for i, each in enumerate(variables)]


def _listed(names: Sequence[Name]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(str, names[:8])) + more


def _path(argument: str) -> tuple[str, *tuple[Step, ...]] | None:
    """The argument's own name and the steps from there, or None for what is no path."""
    root = _ROOT.match(argument)
    if root is None:
        return None
    steps: list[Step] = []
    at = root.end()
    while at < len(argument):
        step = _STEP.match(argument, at)
        if step is None:
            return None
        field = step["field"]
        try:
            steps.append((True, field) if field else (False, ast.literal_eval(step["key"])))
        except (ValueError, SyntaxError):
            return None
        at = step.end()
    return root[0], *steps


def _walk(value: Any, path: tuple[str, *tuple[Step, ...]] | None, name: Name) -> Any:
    assert path is not None
    for number, (attribute, key) in enumerate(path[1:]):
        try:
            value = getattr(value, str(key)) if attribute and not isinstance(value, Mapping) else value[key]
        except (AttributeError, LookupError, TypeError) as error:
            raise RunError(
                "ERUN001",
                f"{path[0]} has no input {name}: step {number + 1} of its path meets a {type(value).__name__} "
                f"({type(error).__name__}: {error})",
            ) from None
    return value


def _is_nested(value: object) -> bool:
    """Whether a value is nested rather than an array: arrays, JAX's among them, have a shape and scalars no items."""
    return not hasattr(value, "shape") and not isinstance(value, bool | int | float | complex) and value is not None


def _converted(value: Any, variable: Variable) -> Any:
    """Python's numbers as elements of the parameter's type where that keeps their kind, all else as it is."""
    if not isinstance(value, bool | int | float | complex) or isinstance(value, np.generic):
        return value  # np.float64 is both, and has a type of its own
    kind = _kind(variable.dtype)
    own = next(at for at, each in enumerate((bool, int, float, complex)) if isinstance(value, each))
    if own > _KINDS.index(kind) or (kind != "bool" and isinstance(value, bool)):
        return value
    with np.errstate(all="ignore"):
        try:
            array = np.asarray(value).astype(NUMPY_DTYPE[variable.dtype])
        except OverflowError:
            return value
    return array if kind != "int" or int(array) == value else value


_KINDS = ("bool", "int", "float", "complex")


def _kind(dtype: str) -> str:
    if dtype == "pred":
        return "bool"
    return "float" if dtype in FLOATS else "complex" if dtype.startswith("c") else "int"
