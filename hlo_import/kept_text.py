"""Attributes that stay text, held against XLA's grammar (xla/hlo/parser): a reader for each name.

A reader gets the tokens of the value, without comments, and raises ``ValueError`` where XLA would stop.
"""

import re
from collections.abc import Callable

from neuronx_cc.hlo_import.attributes import dim_labels, precisions, unquote, window
from neuronx_cc.hlo_import.kept_types import constraints, read_type
from neuronx_cc.hlo_import.metadata import NUMBERS, STRINGS

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<key>[A-Za-z_][\w.\-]*=)"""
    r"""|(?P<word>[A-Za-z_][\w.\-]*:?|%[A-Za-z_][\w.\-]*)"""
    r"""|(?P<number>-?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|-?\d+[eE][+-]?\d+)|(?P<integer>-?\d+)|(?P<mark><=|->|\S))""",
    re.DOTALL,
)


class Tokens:
    """A cursor over the tokens of one value."""

    def __init__(self, text: str):
        self.text = text
        self._tokens = [(match.lastgroup or "", match[match.lastgroup or 0]) for match in _TOKEN.finditer(text)]
        self._next = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    @property
    def token(self) -> str:
        """The next token; "" at the end."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def fail(self, wanted: str) -> ValueError:
        return ValueError(f"expected {wanted}, found {self.token or 'the end'!r} in {self.text[:60]!r}")

    def take(self, token: str) -> bool:
        """Passes ``token`` if it comes next."""
        if self.token != token:
            return False
        self._next += 1
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.fail(repr(token))

    def read(self, kind: str, wanted: str, *choices: str) -> str:
        """The next token, which must be of ``kind`` and one of ``choices`` if there are any."""
        token = self.token
        if self.kind != kind or (choices and token not in choices):
            raise self.fail(" or ".join(map(repr, choices)) if choices else wanted)
        self._next += 1
        return token

    def integer(self) -> int:
        value = int(self.read("integer", "an integer")[:25])
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"expected a 64-bit integer in {self.text[:60]!r}")
        return value

    def string(self) -> str:
        return unquote(self.read("string", "a string"))

    def key(self, *choices: str) -> str:
        """``name=``, without the sign."""
        return self.read("key", "an attribute", *(f"{choice}=" for choice in choices))[:-1]

    def some(self, item: Callable[["Tokens"], object], opening: str = "{", closing: str = "}") -> int:
        """Passes a list with commas between its items, which may be empty; returns how many there are."""
        self.expect(opening)
        count = 0
        if not self.take(closing):
            count = 1
            item(self)
            while self.take(","):
                item(self)
                count += 1
            self.expect(closing)
        return count

    def end(self) -> None:
        if self.kind:
            raise self.fail("the end of the value")


def _integers(tokens: Tokens) -> list[int]:
    found = [tokens.integer()]
    while tokens.take(","):
        found.append(tokens.integer())
    return found


def _iota(tokens: Tokens) -> None:
    """``[4,2]T(1,0)``; the order is left out of one dim only."""
    tokens.expect("[")
    rank = len(_integers(tokens))
    tokens.expect("]")
    if rank > 1:
        tokens.expect("T")
        tokens.expect("(")
        order = _integers(tokens)
        tokens.expect(")")
        if len(order) != rank or any(dim >= rank for dim in order):
            raise ValueError(f"expected a permutation of {rank} dimensions in {tokens.text[:60]!r}")


def _metadata(tokens: Tokens) -> None:
    """``{op_name="x"}``, or a list of these."""
    tokens.expect("{")
    if tokens.token == "{":
        _metadata(tokens)
        while tokens.take(","):
            _metadata(tokens)
        tokens.expect("}")
        return
    while not tokens.take("}"):
        tokens.take(",")
        name = tokens.key(*STRINGS, *NUMBERS, "profile_type")
        if name in STRINGS:
            tokens.string()
        elif name in NUMBERS:
            _int32(tokens)
        else:
            _index(tokens)


def _object(tokens: Tokens) -> None:
    """What stands in braces, whatever it is."""
    depth = 0
    while True:
        if tokens.take("{"):
            depth += 1
        elif depth and tokens.take("}"):
            depth -= 1
        elif not depth or not tokens.take(tokens.token or "}"):
            raise tokens.fail("'}'" if depth else "'{'")
        if not depth:
            return


_KINDS = ("maximal", "replicated", "manual", "unknown", "unreduced")


def _sharding(tokens: Tokens) -> None:
    """One sharding, or several of a tuple."""
    if not tokens.take("{"):
        raise tokens.fail("a sharding such as {replicated} or {devices=[2,1]<=[2]}")
    if tokens.token not in ("{", "}"):
        _single(tokens)
    elif not tokens.take("}"):
        _braced(tokens)
        while tokens.take(","):
            _braced(tokens)
        tokens.expect("}")


def _braced(tokens: Tokens) -> None:
    tokens.expect("{")
    _single(tokens)


def _single(tokens: Tokens) -> None:
    """What follows the brace of ``{replicated}``, ``{devices=[2,1]<=[2]}``, ``{mesh['x'=2], [{'x'}]}``."""
    if tokens.token in ("mesh", "maximal_mesh"):
        return _named(tokens)
    kinds: set[str] = set()
    devices, tiled, iota = 0, False, False
    while not tokens.take("}"):
        if tokens.token in _KINDS:
            kinds.add(tokens.read("word", "a kind"))
        elif tokens.take("shard_as") or tokens.take("shard_like"):
            tokens.integer()
        elif not tokens.take("last_tile_dim_replicate"):
            match tokens.key("device", "devices", "metadata", "last_tile_dims"):
                case "device":
                    tokens.integer()
                    devices = 1
                case "devices":
                    tokens.expect("[")
                    _integers(tokens)
                    tokens.expect("]")
                    tiled = True
                    if iota := tokens.take("<="):
                        _iota(tokens)
                    else:
                        devices += len(_integers(tokens))
                case "metadata":
                    _metadata(tokens)
                case _:
                    tokens.some(lambda each: each.read("word", "a kind", *_KINDS))
    wanted = "replicated" not in kinds and "maximal" in kinds
    if (devices != 1 if wanted else bool(devices)) if kinds else not tiled or not (iota or devices > 1):
        raise ValueError(
            f"expected a sharding such as {{replicated}} or {{maximal device=1}}, found {tokens.text[:60]!r}"
        )
    return None


def _named(tokens: Tokens) -> None:
    """A sharding by names of the axes of a mesh, and its closing brace."""
    if tokens.take("maximal_mesh"):
        tokens.expect("[")
        tokens.key("device_id")
        tokens.integer()
        tokens.expect("]")
    else:
        axes = mesh(tokens)

        def dims(each: Tokens) -> None:
            begun: list[str] = []

            def part(one: Tokens) -> None:
                if "?" in begun:
                    raise one.fail("'}' after '?'")
                begun.append(one.token)
                if not one.take("?"):
                    axis(one, axes)

            each.some(part)

        if not any(map(tokens.take, ("replicated", "unreduced", "manual"))):
            tokens.some(dims, "[", "]")
        else:
            axes = set()
        while tokens.take(","):
            if tokens.key("replicated", "unreduced", "manual", "metadata") == "metadata":
                _metadata(tokens)
            else:
                tokens.some(lambda each: axis(each, axes))
        tokens.expect("}")
        return
    if tokens.take(","):
        tokens.key("metadata")
        _metadata(tokens)
    tokens.expect("}")


def mesh(tokens: Tokens) -> set[str]:
    """``mesh['x'=2,'y'=4], device_ids=(...)``, and a comma; the names of its axes."""
    axes: set[str] = set()

    def one(each: Tokens) -> None:
        axes.add(each.string())
        each.expect("=")
        each.integer()

    tokens.expect("mesh")
    tokens.some(one, "[", "]")
    tokens.take(",")
    if tokens.kind == "key":
        tokens.key("device_ids")
        tokens.expect("(")
        if tokens.token == "[":
            _iota(tokens)
        elif tokens.token != ")":
            _integers(tokens)
        tokens.expect(")")
        tokens.take(",")
    return axes


def axis(tokens: Tokens, axes: set[str]) -> None:
    """``'x'`` or ``'x':(1)2``, a part of it."""
    name = tokens.string()
    if name not in axes:
        raise ValueError(f"expected an axis of the mesh, found {name[:60]!r}")
    if tokens.take(":"):
        tokens.expect("(")
        tokens.integer()
        tokens.expect(")")
        tokens.integer()


def _domain(tokens: Tokens) -> None:
    tokens.expect("{")
    seen: list[str] = []
    while not tokens.take("}"):
        tokens.take(",")
        seen.append(tokens.key("kind", "entry", "exit"))
        if seen[-1] != "kind":
            _sharding(tokens)
        elif tokens.string() != "sharding":
            raise ValueError(f"expected a domain of kind sharding in {tokens.text[:60]!r}")
    if sorted(seen) != ["entry", "exit", "kind"]:
        raise ValueError(f"expected kind, entry and exit, each once, in {tokens.text[:60]!r}")


def config(tokens: Tokens) -> None:
    """A string, or an object of JSON."""
    if tokens.token == "{":
        _object(tokens)
    else:
        tokens.string()


def _frontend(tokens: Tokens) -> None:
    def pair(each: Tokens) -> None:
        each.key()
        config(each)

    tokens.some(pair)


def _statistics(tokens: Tokens) -> None:
    def pair(each: Tokens) -> None:
        each.key()
        each.read("number" if each.kind == "number" else "integer", "a number")

    tokens.some(pair)


def _index(tokens: Tokens) -> None:
    tokens.some(Tokens.integer)


def _array(tokens: Tokens) -> None:
    """``{"name" {0}}``: an array before XLA's passes."""
    tokens.expect("{")
    if tokens.kind == "string":
        tokens.string()
        if tokens.token == "{":
            _index(tokens)
    tokens.expect("}")


def _origin(tokens: Tokens) -> None:
    tokens.expect("{")
    if tokens.take("["):
        tokens.expect("synthetic_call")
        tokens.expect("]")
        tokens.expect("}")
        return
    depth = 0
    while not tokens.take("}"):
        if tokens.take("("):
            depth += 1
        elif depth and tokens.take(")"):
            depth -= 1
        elif not (depth and tokens.take(",")):
            _array(tokens)


def recovery_table(tokens: Tokens) -> None:
    """``{ {"a"} : {"b"}, "module" ... }`` of a header."""
    tokens.expect("{")
    while not tokens.take("}"):
        _array(tokens)
        tokens.expect(":")
        _array(tokens)
        if tokens.take(","):
            tokens.string()


def _accuracy(tokens: Tokens) -> None:
    def bound(each: Tokens) -> None:
        each.key("atol", "rtol", "ulps")
        if each.token in (",", "}"):  # XLA reads what is left out as 0
            return
        if float(each.read("number" if each.kind == "number" else "integer", "a number")) < 0:
            raise ValueError(f"expected a tolerance of 0 or more in {each.text[:60]!r}")

    tokens.expect("{")
    if tokens.key("mode", "tolerance") == "tolerance":
        tokens.some(bound)
    elif tokens.token.lower() not in ("default", "highest") or not tokens.take(tokens.token):
        raise tokens.fail("default or highest")
    tokens.expect("}")


def flag(tokens: Tokens) -> None:
    tokens.read("word", "true or false", "true", "false")


def flags(tokens: Tokens) -> None:
    """``{true,false}`` or one without braces."""
    if tokens.token == "{":
        tokens.some(flag)
    else:
        flag(tokens)


def _aliases(tokens: Tokens) -> None:
    """``{ {0}: (1, {}), ... }``."""
    tokens.expect("{")
    while not tokens.take("}"):
        _index(tokens)
        tokens.expect(":")
        tokens.expect("(")
        if tokens.token != ",":  # XLA reads what is left out as 0
            tokens.integer()
        tokens.expect(",")
        _index(tokens)
        tokens.expect(")")
        if not tokens.take(",") and tokens.token != "}":
            raise tokens.fail("','")


def _name(tokens: Tokens) -> None:
    tokens.read("word", "a name")


def _predecessors(tokens: Tokens) -> None:
    if not tokens.some(_name):
        raise ValueError("expected the name of an instruction, found {}")


def _int32(tokens: Tokens) -> None:
    if not -(2**31) <= tokens.integer() < 2**31:
        raise ValueError(f"expected a 32-bit integer in {tokens.text[:60]!r}")


def _one_of(*words: str) -> Callable[[Tokens], None]:
    """One of ``words``, not quoted; those in upper case may be in lower case."""

    def read(tokens: Tokens) -> None:
        if tokens.kind != "word" or (tokens.token.upper() not in words and tokens.token not in words):
            raise tokens.fail(" or ".join(words))
        tokens.take(tokens.token)

    return read


_API = "API_VERSION_"
_APIS = "ORIGINAL", "STATUS_RETURNING", "STATUS_RETURNING_UNIFIED", "TYPED_FFI", "UNSPECIFIED"
READERS: dict[str, Callable[[Tokens], object]] = {
    "allow_spmd_sharding_propagation_to_output": flags,
    "allow_spmd_sharding_propagation_to_parameters": flags,
    "api_version": _one_of(
        # older dumps say that it is not specified
        *(_API + name for name in _APIS)
    ),
    "async_execution_thread": Tokens.string,
    "backend_config": config,
    "batch_group_count": Tokens.integer,
    "channel_id": Tokens.integer,
    "constrain_layout": flag,
    "control-predecessors": lambda tokens: _predecessors(tokens),
    "convolution_kind": _one_of("fprop", "wgrad", "dgrad", "unset"),
    "cross_program_prefetch_index": _int32,
    "custom_call_has_side_effect": flag,
    "dimensions": lambda tokens: tokens.some(Tokens.integer),
    "domain": _domain,
    "execution_thread": Tokens.string,
    "feature_group_count": Tokens.integer,
    "frontend_attributes": _frontend,
    "inferred_dimension": Tokens.integer,
    "infeed_config": Tokens.string,
    "is_associative": flag,
    "is_composite": flag,
    "is_host_transfer": flag,
    "mode": _one_of("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"),
    "origin": _origin,
    "origin_recovery_table": recovery_table,
    "outfeed_config": Tokens.string,
    "output_to_operand_aliasing": _aliases,
    "padding_type": lambda tokens: tokens.read("word", "a padding", "PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"),
    "parameter_replication": lambda tokens: tokens.some(flag),
    "result_accuracy": _accuracy,
    "schedule": _one_of("SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"),
    "sharding": _sharding,
    "slice_sizes": lambda tokens: tokens.some(_index),
    "sparsity_config": _object,
    "statistics": _statistics,
    "use_global_device_ids": flag,
}
_WHOLE: dict[str, Callable[[str], object]] = {
    "dim_labels": dim_labels,
    "operand_precision": precisions,
    "window": window,
}
"""Of a custom call, these are read as of the ops that have them, and stay text."""


def check_text(name: str, text: str) -> None:
    """Raises ``ValueError`` where XLA does not read ``text`` as the value of attribute ``name``."""
    if name == "outfeed_shape":
        read_type(text)
    elif name == "operand_layout_constraints":
        constraints(text)
    elif reader := READERS.get(name):
        tokens = Tokens(text)
        reader(tokens)
        tokens.end()
    elif whole := _WHOLE.get(name):
        whole(text)
