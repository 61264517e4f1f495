"""Types in HLO text: ``f32[2,3]{1,0:T(8,128)}``, ``(f32[], s32[4])``, ``token[]``.

Types become interned ``hlo`` types. Layouts are not part of them; the minor-to-major order of an array is returned
beside the type when it is not the row-major one, because the meaning of ``bitcast`` depends on it.
"""

import re
from dataclasses import dataclass
from math import prod

from neuronx_cc.hlo_import.lexer import COMMENT, SPACE, UNSUPPORTED_DTYPES, SourceText, without_comments
from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize

MAX_BYTES = 2**47
"""Largest array accepted; beyond any address space, so that nothing ever allocates by such a number."""

MAX_RANK = 64

Layout = tuple[int, ...]
_ARRAY = re.compile(rf"([A-Za-z]\w*){SPACE.pattern}\[([^][]*)\]", re.DOTALL)
_NUMBERS = r"(?:-?[\d*]+(?:,-?[\d*]+)*)?"
_LAYOUT = re.compile(
    rf"\{{({_NUMBERS})(?::(?:D\((?:[CDHS]\+?~?(?:,(?!\))|(?=\))))*\))?((?:T(?:\({_NUMBERS}\))+)?(?:L\(\d+\))?(?:#\(u\d+\))?"
    rf"(?:\*\(u\d+\))?(?:E\(\d+\))?(?:S\(\d+\))?(?:SC(?:\(\d+:{_NUMBERS}\))+)?(?:M\(\d+\))?))?\}}"
)
"""Minor to major; levels of sparse arrays, which XLA drops; tiles, sizes, memory space."""
_APART = re.compile(r"\w\s+\w")
_LAYOUT_BEGINS = frozenset("0123456789:")


@dataclass(frozen=True, slots=True)
class TypedText:
    """A type as written: the interned type and the layout if it is an array in another order than row-major."""

    type: hlo.Attribute
    layout: Layout | None = None
    spelled: str = ""
    """The type with its layouts, where one is more than row-major order."""


def laid_out(type_: hlo.Attribute, order: Layout | None, rest: str) -> TypedText:
    """The array type whose layout is ``order`` and, of tiles and the like, ``rest``."""
    if not isinstance(type_, hlo.ArrayType) or (order is None and not rest):
        return TypedText(type_)
    major = tuple(range(type_.data.rank - 1, -1, -1)) if order is None else order
    return TypedText(type_, order, f"{type_.data}{{{','.join(map(str, major))}{rest and ':' + rest}}}")


def joined(parts: list[TypedText]) -> TypedText:
    """The tuple of these."""
    type_ = hlo.tuple_type(tuple(part.type for part in parts))
    if not any(part.spelled for part in parts):
        return TypedText(type_)
    return TypedText(type_, None, f"({', '.join(part.spelled or type_text(part.type) for part in parts)})")


def check_dtype(dtype: str) -> str:
    """ "" if ``dtype`` can be stored, else what is wrong with it."""
    if dtype in NUMPY_DTYPE and dtype != "tf32":
        return ""
    if dtype in UNSUPPORTED_DTYPES:
        return f"element type {dtype} is not supported"
    return f"expected an element type such as f32, bf16 or s32, found {dtype!r}"


def check_dims(dtype: str, dims: tuple[int, ...]) -> str:
    """ "" if the dims are sane, else what is wrong with them."""
    if len(dims) > MAX_RANK:
        return f"expected at most {MAX_RANK} dimensions, found {len(dims)}"
    if any(dim < 0 for dim in dims):
        return f"expected dimensions of 0 or more, found {list(dims)}"
    if prod(max(dim, 1) for dim in dims) * itemsize(dtype) > MAX_BYTES:
        return f"expected an array of at most 2**47 bytes, found {dtype}{list(dims)}"
    return ""


def array_or_token(dtype: str, dims_text: str, source: SourceText, position: int) -> hlo.Attribute:
    """The type ``dtype[dims_text]`` found at ``position``."""
    if dtype == "token":
        return hlo.TOKEN
    if problem := check_dtype(dtype):
        known = dtype in UNSUPPORTED_DTYPES
        raise source.error(
            position, problem, "ESPP004" if known else "EVRF064", "use bf16 or another listed type" if known else ""
        )
    if "<" in dims_text or "?" in dims_text:
        raise source.error(
            position,
            f"dynamic shape {dtype}[{dims_text}] is not supported: expected static dimensions",
            "EMOD025",
            "use static shapes: pad to a fixed size or compile one module per bucket",
        )
    parts = dims_text.split(",") if dims_text.strip() else []
    try:
        # the cap on digits keeps int() linear on hostile input
        dims = tuple(int(part) if len(part) < 25 else 1 << 80 for part in parts)
    except ValueError:
        raise source.error(position, f"expected integers as dimensions, found [{dims_text[:60]}]") from None
    if problem := check_dims(dtype, dims):
        raise source.error(position, problem)
    return hlo.array_type(dtype, dims)


class TypeReader:
    """Reads types from one text; equal spellings are parsed once."""

    def __init__(self, source: SourceText):
        self.source = source
        self._arrays: dict[tuple[str, str, str | None], TypedText] = {}
        self._tuples: dict[str, TypedText] = {}

    def array(self, dtype: str, dims: str, layout: str | None, position: int) -> TypedText:
        """The array type from its three pieces of text; ``layout`` is the text between its braces."""
        key = (dtype, dims, layout)
        found = self._arrays.get(key)
        if found is None:
            type_ = array_or_token(dtype, dims, self.source, position)
            order, _, rest = (layout or "").partition(":")
            found = self._arrays[key] = laid_out(type_, self._order(type_, order, layout, position), rest)
        return found

    def read(self, position: int, depth: int = 0) -> tuple[TypedText, int]:
        """The type at ``position`` and the position after it."""
        source = self.source
        position = source.skip(position)
        if source.at(position) == "(":
            return self._tuple(position, depth)
        match = _ARRAY.match(source.text, position)
        if match is None:
            raise source.error(position, f"expected a type such as f32[2,3], found {source.found(position)}")
        end = match.end()
        layout = None
        if source.at(after := source.skip(end)) == "{" and source.at(source.skip(after + 1)) in _LAYOUT_BEGINS:
            end = source.closing(after)
            spelled = without_comments(source.text[after:end])
            match_layout = None if _APART.search(spelled) else _LAYOUT.fullmatch("".join(spelled.split()))
            if match_layout is None:
                raise source.error(after, "expected a layout such as {1,0}")
            order, rest = match_layout.groups("")
            layout = f"{order}:{rest}"
        dims = match.group(2)
        return self.array(match.group(1), COMMENT.sub("", dims) if "/" in dims else dims, layout, position), end

    def _tuple(self, position: int, depth: int) -> tuple[TypedText, int]:
        source = self.source
        if depth > 50:
            raise source.error(position, "expected at most 50 nested tuple types")
        closing = source.closing(position)
        spelling = source.text[position:closing]
        if (known := self._tuples.get(spelling)) is not None:
            return known, closing
        elements = []
        scan = source.skip(position + 1)
        more = source.at(scan) != ")"
        while more:
            element, scan = self.read(scan, depth + 1)
            elements.append(element)
            scan = source.skip(scan)
            if more := source.at(scan) != ")":
                scan = source.expect(scan, ",", "between the types of a tuple")
        result = self._tuples[spelling] = joined(elements)
        return result, scan + 1

    def _order(self, type_: hlo.Attribute, text: str, layout: str | None, position: int) -> Layout | None:
        """Minor to major; None where it is row-major."""
        if layout is None or not isinstance(type_, hlo.ArrayType):
            return None
        try:
            order = tuple(int(part) for part in text.split(",")) if text.strip() else ()
        except ValueError:
            raise self.source.error(position, f"expected a layout such as {{1,0}}, found {{{text[:60]}}}") from None
        rank = type_.data.rank
        if sorted(order) != list(range(rank)):
            raise self.source.error(
                position, f"expected a layout that permutes the {rank} dimensions, found {{{text[:60]}}}"
            )
        return None if order == tuple(range(rank - 1, -1, -1)) else order


def type_text(type_: hlo.Attribute, layout: bool = False) -> str:
    """A type as HLO text; ``layout`` adds the row-major layout."""
    if isinstance(type_, hlo.ArrayType):
        order = ",".join(map(str, range(type_.data.rank - 1, -1, -1)))
        return f"{type_.data}{{{order}}}" if layout and order else str(type_.data)
    if isinstance(type_, hlo.TupleType):
        return f"({', '.join(type_text(element, layout) for element in type_.data)})"
    return "token[]"
