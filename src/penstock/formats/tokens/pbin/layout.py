"""Detection of the layout of a packed file, by its header, its first index entry and its last bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from penstock.codec.pickles import decode_pairs, ends_like_pickle, first_pair
from penstock.codec.tokens import TOKEN_BYTES, dtype_for
from penstock.errors import ConfigError, Corrupt, FormatError, Truncated, UnsafeData
from penstock.formats._findings import Problem
from penstock.store.base import Store
from penstock.types import Severity

HEADER_BYTES = 12
_HEAD_BYTES = 64
_MOST_USUAL_ID = (1 << 24) - 1
_ORDERS: dict[str, Literal["little", "big"]] = {"<": "little", ">": "big"}
_RECREATE = "Copy the file again, or pack it again; `penstock repair PATH --eos-id ID` recovers its complete documents"


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of one generation of writers.

    Attributes:
        name: value of `layout=`.
        header_bytes: 4 or 8 bytes have only the data length, 12 also a token width.
        byte_order: byte order of header and tokens, `"<"` or `">"`.
        token_bytes: the fixed width, or None if it is in the header.
        first_offsets: possible offsets of the first document, from which the others count.
    """

    name: str
    header_bytes: int
    byte_order: Literal["<", ">"]
    token_bytes: int | None
    first_offsets: tuple[int, ...]


TODAY = Layout("h12le", 12, "<", None, (0,))
LAYOUTS = {
    one.name: one
    for one in (
        TODAY,
        Layout("h12le-abs", 12, "<", None, (12,)),
        Layout("h12be", 12, ">", None, (12,)),
        Layout("h8", 8, ">", 4, (8, 0)),
        Layout("h8le", 8, "<", 4, (0, 8)),
        Layout("h4", 4, ">", 4, (4, 1)),
    )
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """Places in one file.

    Attributes:
        layout: layout of the file.
        size_bytes: size of the file.
        data_bytes: length of its tokens, which begin after the header.
        token_bytes: width of a token.
        offset_base_bytes: offset of the first token in the index.
    """

    layout: Layout
    size_bytes: int
    data_bytes: int
    token_bytes: int
    offset_base_bytes: int

    @property
    def index_start_bytes(self) -> int:
        """Offset of the pickled document index."""
        return self.layout.header_bytes + self.data_bytes

    @property
    def index_bytes(self) -> int:
        """Size of the index."""
        return self.size_bytes - self.index_start_bytes

    @property
    def num_tokens(self) -> int:
        return self.data_bytes // self.token_bytes


def problem(
    code: str,
    kind: type[FormatError] | type[ConfigError],
    what: str,
    offset_bytes: int | None = None,
    found: str | None = None,
    expected: str | None = None,
    fix: str | None = None,
    severity: Severity = "error",
) -> Problem:
    """Return a fault of a packed file, without its path."""
    return Problem(f"pbin.{code}", kind, "", what, fix, offset_bytes, found, expected, severity)


def find_layout(store: Store, path: str, name: str | None = None) -> Geometry | Problem:
    """Return the geometry of a file, by at most 8 reads of 64 bytes.

    Args:
        store: store of the file.
        path: the file.
        name: layout to use without reading the index; detected if None.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: no layout has this name.
    """
    size_bytes = store.size(path)
    header = store.get(path, 0, HEADER_BYTES)
    # Several layouts have their index at the same place.
    head_at: _HeadAt = functools.cache(functools.partial(_index_head, store, path))
    if name is not None:
        layout = layout_named(name)
        geometry = _sized(layout, size_bytes, header)
        return _header_problem(layout, size_bytes, header) if geometry is None else _based(head_at, geometry)
    fitting: list[Geometry] = []
    if ends_like_pickle(store.get(path, max(0, size_bytes - 8), 8)):
        sized = [_sized(layout, size_bytes, header) for layout in LAYOUTS.values()]
        fitting = [one for one in sized if one is not None and _index_fits(head_at, one)]
        if not fitting and sized[0] is not None and head_at(sized[0].index_start_bytes) is not None:
            # The first entry is wrong, and everything else is today's layout: the tokens can be read.
            return sized[0]
    if len(fitting) > 1:
        return _ambiguous(fitting)
    if fitting and _is_swapped(store, path, fitting[0]):
        return _swapped(fitting[0])
    return _based(head_at, fitting[0]) if fitting else _explain(store, path, size_bytes, header)


def data_length(header: bytes, layout: Layout) -> int:
    """Return the length of the data in bytes from the header."""
    return int.from_bytes(header[: min(8, layout.header_bytes)], _ORDERS[layout.byte_order])


def width_field(header: bytes, layout: Layout) -> int:
    """Return the token width in bytes, fixed or from the header."""
    return layout.token_bytes or int.from_bytes(header[8:12], _ORDERS[layout.byte_order])


def layout_named(name: str) -> Layout:
    """Return the layout called `name`, in any case; raise `ConfigError` for another name."""
    if name.lower() not in LAYOUTS:
        raise ConfigError("unknown layout", found=name, expected=", ".join(LAYOUTS))
    return LAYOUTS[name.lower()]


def _sized(layout: Layout, size_bytes: int, header: bytes) -> Geometry | None:
    """Return the geometry in the header, if it fits the size of the file."""
    if len(header) < layout.header_bytes:
        return None
    data_bytes, token_bytes = data_length(header, layout), width_field(header, layout)
    if token_bytes not in TOKEN_BYTES or data_bytes % token_bytes or layout.header_bytes + data_bytes > size_bytes:
        return None
    return Geometry(layout, size_bytes, data_bytes, token_bytes, layout.first_offsets[0])


_HeadAt = Callable[[int], tuple[int, int] | None]
"""`_index_head` of one file."""


def _index_head(store: Store, path: str, start_bytes: int) -> tuple[int, int] | None:
    """Return the first entry of the index at `start_bytes`: `(-1, -1)` if it is empty, None without an index."""
    head = store.get(path, start_bytes, _HEAD_BYTES)
    first = first_pair(head)
    if first is None and len(head) < _HEAD_BYTES and _is_empty_list(head):
        return (-1, -1)
    return first


def _index_fits(head_at: _HeadAt, geometry: Geometry) -> bool:
    first = head_at(geometry.index_start_bytes)
    if first == (-1, -1):
        # Without entries and tokens, offsets and byte order are unknown: take the first of two equal layouts.
        return geometry.layout.name not in ("h12le-abs", "h8le")
    return first is not None and first[0] in geometry.layout.first_offsets and first[1] <= geometry.data_bytes


def _index_fits_without_width(store: Store, path: str, size_bytes: int, header: bytes, layout: Layout) -> bool:
    """Return whether everything but the token width fits a layout."""
    if len(header) < layout.header_bytes:
        return False
    geometry = Geometry(layout, size_bytes, data_length(header, layout), 1, 0)
    return (
        geometry.data_bytes > 0 < geometry.index_bytes
        and _index_head(store, path, geometry.index_start_bytes) is not None
    )


def _based(head_at: _HeadAt, geometry: Geometry) -> Geometry:
    """Return the geometry with the base of its offsets, if a layout has two."""
    first = head_at(geometry.index_start_bytes)
    if first is None or first[0] not in geometry.layout.first_offsets:
        return geometry
    return replace(geometry, offset_base_bytes=first[0])


def _is_swapped(store: Store, path: str, geometry: Geometry) -> bool:
    """Return whether the first tokens are ids only in the other byte order, which 8-byte headers don't record."""
    layout = geometry.layout
    if layout.header_bytes != 8:
        return False
    head = store.get(path, layout.header_bytes, min(_HEAD_BYTES, geometry.data_bytes))
    tokens = np.frombuffer(head, dtype_for(4, layout.byte_order))
    tokens = tokens[tokens != 0]
    return len(tokens) > 0 and bool((tokens > _MOST_USUAL_ID).all() and (tokens.byteswap() <= _MOST_USUAL_ID).all())


def _is_empty_list(head: bytes) -> bool:
    try:
        return len(decode_pairs(np.frombuffer(head, np.uint8), path="")) == 0
    except (FormatError, UnsafeData):
        return False


# --- problems if no layout fits ------------------------------------------------------------------------------------


def _ambiguous(fitting: list[Geometry]) -> Problem:
    names = ", ".join(one.layout.name for one in fitting)
    return problem(
        "ambiguous",
        ConfigError,
        "several layouts match this file",
        0,
        names,
        "one layout",
        "Specify layout= (--layout)",
    )


def _swapped(geometry: Geometry) -> Problem:
    names = {"<": "little-endian", ">": "big-endian"}
    header, tokens = geometry.layout.byte_order, "<" if geometry.layout.byte_order == ">" else ">"
    return problem(
        "token-order",
        Corrupt,
        "tokens and header have different byte orders",
        geometry.layout.header_bytes,
        f"{names[tokens]} tokens after a {names[header]} length",
        "one byte order",
        f"Write the file again; layout={geometry.layout.name!r} reads the ids as they are",
    )


def _explain(store: Store, path: str, size_bytes: int, header: bytes) -> Problem:
    """Explain why no layout fits, in terms of the layout that the header resembles."""
    layout = likely_layout(store, path, size_bytes, header)
    geometry = _sized(layout, size_bytes, header)
    if geometry is None:
        found = _header_problem(layout, size_bytes, header)
        if found.code == "pbin.header" and _index_fits_without_width(store, path, size_bytes, header, TODAY):
            return replace(found, code="pbin.token-bytes", fix="Correct the width at byte 8, or pack again")
        return found
    begins = _index_head(store, path, geometry.index_start_bytes) is not None
    if geometry.data_bytes == 0 and not begins:
        return problem(
            "unfinished",
            Truncated,
            "the writer was stopped before it finished: the data length is still 0",
            0,
            f"0, and {size_bytes - layout.header_bytes} bytes after the header",
            "the length of the tokens in bytes",
            _RECREATE,
        )
    if begins or geometry.index_bytes == 0:
        return problem(
            "truncated-index",
            Truncated,
            "the document index is truncated",
            size_bytes,
            "the end of the file",
            "the end of a pickled list",
            f"{_RECREATE}; layout={layout.name!r} reads the tokens without documents",
        )
    return problem(
        "no-index",
        Corrupt,
        "there is no document index at the offset in the header",
        geometry.index_start_bytes,
        store.get(path, geometry.index_start_bytes, 4).hex(" "),
        "a pickled list (80 04 95)",
        f"The data length at byte 0 or the index is damaged. {_RECREATE}",
    )


def likely_layout(store: Store, path: str, size_bytes: int, header: bytes) -> Layout:
    """Return the most likely layout of a damaged file."""
    for layout in LAYOUTS.values():
        geometry = _sized(layout, size_bytes, header)
        if geometry is not None and _index_fits(functools.partial(_index_head, store, path), geometry):
            return layout
    for name in ("h8le", "h8"):
        if _index_fits_without_width(store, path, size_bytes, header, LAYOUTS[name]):
            return LAYOUTS[name]
    for name in ("h12le", "h12be"):
        if len(header) == HEADER_BYTES and width_field(header, LAYOUTS[name]) in TOKEN_BYTES:
            return LAYOUTS[name]
    for name in ("h8", "h4"):
        if 0 < data_length(header, LAYOUTS[name]) <= 4 * size_bytes:
            return LAYOUTS[name]
    return TODAY


def _header_problem(layout: Layout, size_bytes: int, header: bytes) -> Problem:
    if len(header) < layout.header_bytes:
        return problem(
            "header",
            Truncated,
            "the file ends in the middle of its header",
            size_bytes,
            f"{size_bytes} bytes",
            f"{layout.header_bytes} bytes or more, and an index",
            "Copy or recreate the file",
        )
    data_bytes, token_bytes = data_length(header, layout), width_field(header, layout)
    if token_bytes not in TOKEN_BYTES:
        return problem(
            "header",
            Corrupt,
            "the header has no valid token width",
            8,
            str(token_bytes),
            "1, 2 or 4",
            "This is not a packed file, or its header is damaged",
        )
    if layout.header_bytes + data_bytes > size_bytes:
        return problem(
            "truncated",
            Truncated,
            "the file is shorter than its header records",
            size_bytes,
            f"{size_bytes} bytes",
            f"{layout.header_bytes} + {data_bytes} bytes and an index",
            _RECREATE,
        )
    return problem(
        "token-bytes",
        Corrupt,
        "the data length is not a multiple of the token width",
        0,
        f"{data_bytes} bytes of {token_bytes}-byte tokens",
        f"a multiple of {token_bytes}",
        "The length at byte 0 or the width at byte 8 is damaged"
        if layout.token_bytes is None
        else f"The length at byte 0 is damaged, or the tokens are not {token_bytes} bytes wide: pack again",
    )
