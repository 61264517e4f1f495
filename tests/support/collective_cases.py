"""HLO text of each collective on one device, where all of them give their operand back."""

from collections.abc import Callable

Text = Callable[[str, str], str]
"""(shape, element type) -> body of an entry with one parameter ``p0`` of that shape; combiners are named ``sum``."""

_GROUPS = "replica_groups={{0}}"
_PAIRS = "source_target_pairs={{0,0}}"


def _pair(opcode: str, attributes: str, start: str) -> Text:
    def text(shape: str, dtype: str) -> str:
        result = start.replace("T", shape)
        return (
            f"  s = {result} {opcode}-start(p0), {attributes}\n"
            f"  ROOT r = {shape} {opcode}-done({result} s)"  # the operand's shape tells parsers which form it is
        )

    return text


def _one(opcode: str, attributes: str) -> Text:
    return lambda shape, dtype: f"  ROOT r = {shape} {opcode}(p0), {attributes}"


def _ragged(shape: str, dtype: str) -> str:
    """All rows go where they were."""
    rows = shape[shape.index("[") + 1 :].split(",")[0]
    return (
        f"  first = s32[1] constant({{0}})\n  all = s32[1] constant({{{rows}}})\n"
        f"  out = {shape} reverse(p0), dimensions={{0}}\n"
        f"  ROOT r = {shape} ragged-all-to-all(p0, out, first, all, first, all), {_GROUPS}"
    )


BODIES: dict[str, Text] = {
    "all-gather": _one("all-gather", f"{_GROUPS}, dimensions={{0}}"),
    "all-gather-done": _pair("all-gather", f"{_GROUPS}, dimensions={{0}}", "(T, T)"),
    "all-gather-start": _pair("all-gather", f"{_GROUPS}, dimensions={{0}}", "(T, T)"),
    "all-reduce": _one("all-reduce", f"{_GROUPS}, to_apply=sum"),
    "all-reduce-done": _pair("all-reduce", f"{_GROUPS}, to_apply=sum", "T"),
    "all-reduce-start": _pair("all-reduce", f"{_GROUPS}, to_apply=sum", "T"),
    "all-to-all": _one("all-to-all", f"{_GROUPS}, dimensions={{0}}"),
    "collective-broadcast": _one("collective-broadcast", _GROUPS),
    "collective-permute": _one("collective-permute", _PAIRS),
    "collective-permute-done": _pair("collective-permute", _PAIRS, "(T, T)"),
    "collective-permute-start": _pair("collective-permute", _PAIRS, "(T, T)"),
    "ragged-all-to-all": _ragged,
    "reduce-scatter": _one("reduce-scatter", f"{_GROUPS}, dimensions={{0}}, to_apply=sum"),
}

IDENTIFIERS = ("partition-id", "replica-id")
