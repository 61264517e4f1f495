"""The shape of a graph before it is evaluated: nodes in an order in which values are there before they are read.

``ordered`` refuses what is no graph of single assignments: two producers of one value, values nobody makes, cycles.
"""

from collections.abc import Iterable
from typing import Any

from neuronx_cc.driver.frontends.onnx.table import refusal

MAX_NODES = 1 << 20
"""Nodes of one graph."""


def label(node: Any, index: int) -> str:
    """What a node is called in locations: its name, or its operator and number."""
    return str(node.name) or f"{node.op_type}_{index}"


def ordered(nodes: Iterable[Any], known: Iterable[str], where: str) -> list[tuple[int, Any]]:
    """``nodes`` with their numbers, each after those whose values it reads, else in the order given.

    ``known`` are the values there are before the first one. Raises CompileError EVRF064 for what cannot be ordered.
    """
    numbered = list(enumerate(nodes))
    if len(numbered) > MAX_NODES:
        raise _malformed(f"{where} has {len(numbered)} nodes, {MAX_NODES} are the most")
    there = set(known) | {""}
    producer: dict[str, int] = {}
    for index, node in numbered:
        for name in filter(None, node.output):
            if name in producer or name in there:
                raise _malformed(f"{where}: node {label(node, index)!r} defines {name!r}, which is defined already")
            producer[name] = index
    needs = {index: _needs(node, there | producer.keys()) for index, node in numbered}
    for index, node in numbered:
        for name in needs[index]:
            if name not in there and name not in producer:
                raise _malformed(f"{where}: node {label(node, index)!r} reads {name!r}, which nothing defines")
    waits = {index: {producer[name] for name in needs[index] if name in producer} for index, _ in numbered}
    if all(max(before, default=-1) < index for index, before in waits.items()):
        return numbered
    return _sorted(numbered, waits, where)


def _sorted(numbered: list[tuple[int, Any]], waits: dict[int, set[int]], where: str) -> list[tuple[int, Any]]:
    placed: dict[int, None] = {}
    for root, _ in numbered:
        stack = [(root, iter(sorted(waits[root])))] if root not in placed else []
        path = {root: None}
        while stack:
            index, rest = stack[-1]
            following = next((other for other in rest if other not in placed), None)
            if following is None:
                placed[index] = None
                path.pop(index, None)
                stack.pop()
            elif following in path:
                names = [label(node, number) for number, node in numbered if number in path]
                raise _malformed(f"{where} has a cycle through {', '.join(map(repr, names[:8]))}")
            else:
                path[following] = None
                stack.append((following, iter(sorted(waits[following]))))
    nodes = dict(numbered)
    return [(index, nodes[index]) for index in placed]


def _needs(node: Any, outer: set[str]) -> list[str]:
    """What a node reads of the graph it stands in, by its inputs and in its subgraphs."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            names += [name for name in free(graph) if name in outer]
    return names


def free(graph: Any) -> dict[str, None]:
    """The values that a graph reads of those around it."""
    own = {value.name for value in (*graph.input, *graph.initializer)} | {name for n in graph.node for name in n.output}
    found: dict[str, None] = dict.fromkeys(value.name for value in graph.output if value.name not in own)
    for node in graph.node:
        found.update(dict.fromkeys(name for name in node.input if name and name not in own))
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found.update(dict.fromkeys(name for name in free(inner) if name not in own))
    return found


def _malformed(message: str) -> Exception:
    return refusal(message, "export the model again: it is damaged, or the exporter is wrong", "EVRF064")
