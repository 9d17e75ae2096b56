"""Samples of an open dataset, one by one, with their parts and tokens; unreadable samples show their error."""

from __future__ import annotations

import contextlib
import dataclasses
import mimetypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from penstock._access import extents_of, place_of
from penstock._limits import count_in
from penstock._printable import recordable
from penstock._tokens import LOSS_MASK, borders_of, planes_of
from penstock.abc import SupportsKeys
from penstock.codec.media_bytes import MediaBytes, media_bytes, stored_media
from penstock.errors import ConfigError, Excluded, NotFound, PenstockError, TooLarge
from penstock.formats._exclusions import stored
from penstock.store.base import Store
from penstock.types import Extent
from penstock.view.facts.bounds import IN_LIST, MOST_NAME_CHARACTERS, Bounds, at_hand, is_of_the_disk, most_sample_bytes
from penstock.view.facts.media import HEAD_BYTES, OTHER, SHOWN_BY_BROWSERS, sniff_media
from penstock.view.facts.opening import Opened
from penstock.view.facts.panel import Panel, Panels, describe_error, panel, panels, stored_panel
from penstock.view.facts.token_run import MOST_TOKENS, TokenRun, tokens

PAGE = 50
"""Default number of samples per page."""

MOST_PARTS = 4096
"""Up to this many parts of a sample, a part is found by name without reading the others."""


@runtime_checkable
class TellsParts(Protocol):
    """A source that can list the parts of a sample without reading them."""

    def parts_of(self, index: int, most: int, /) -> tuple[str, list[tuple[str, Extent]], int, bool]:
        """Return key; name and extent of the first `most` parts; their number, and whether all were counted."""
        ...


@dataclass(frozen=True, slots=True)
class Media:
    """One part of a sample to serve; `data.read(start, length)` reads a range of it.

    Attributes:
        media_type: type of the content; `application/octet-stream` if a browser must not show it.
        data: its bytes.
    """

    media_type: str
    data: MediaBytes


def page(
    opened: Opened, start: int, count: int = PAGE, *, show_all: bool = False, bounds: Bounds = IN_LIST
) -> Iterator[Panels]:
    """Yield the samples `[start, start + count)`, as far as they exist.

    Memory: one sample of at most `most_sample_bytes` stored bytes, and its panels.
    """
    for index in range(max(0, start), min(len(opened), max(0, start) + count)):
        yield sample_at(opened, index, show_all=show_all, bounds=bounds)


def sample_at(
    opened: Opened,
    index: int,
    *,
    show_all: bool = False,
    bounds: Bounds = IN_LIST,
    strict: bool = False,
    failed: Callable[[Exception], object] | None = None,
) -> Panels:
    """Return the panels of a sample, including its errors.

    Raises:
        ConfigError: the dataset doesn't have this index.
    """
    if not 0 <= index < len(opened):
        raise ConfigError("sample index out of range", found=index, expected=f"0 to {len(opened) - 1}")
    try:
        if stored_bytes(opened, index) > most_sample_bytes([opened.format]):
            return _beginning(opened, index, extents_of(opened.source, index) or (), bounds)
        sample = _read(opened, index)
        found = panels(sample, index=index, show_all=show_all, decode=opened.decode, bounds=bounds)
        if "loss_mask" in sample:
            with contextlib.suppress(ConfigError):  # no tokens to paint it on
                run = tokens(sample, texts=opened.vocabulary, most=bounds.items)
                found = dataclasses.replace(found, tokens=run if run.counted is not None else None)
    except Excluded as error:
        return Panels(index, None, (), 0, error=describe_error(error), is_excluded=True)
    except MemoryError:
        return Panels(index, None, (), 0, error="the sample doesn't fit into memory")
    except Exception as error:  # a failing store, damaged bytes, or a foreign type: the list continues
        if strict and is_of_the_disk(error):
            raise
        if failed is not None:
            failed(error)
        return _broken(opened, index, error, bounds)
    if opened.field_map:
        named = (dataclasses.replace(one, fields=opened.fields_of(one.name)) for one in found.panels)
        found = dataclasses.replace(found, panels=tuple(named))
    return found if found.key is not None else dataclasses.replace(found, key=_key(opened, index))


def index_of(opened: Opened, wanted: str) -> int:
    """Return the index for a number, a share such as `73 %` or `73%`, or a key.

    Raises:
        NotFound: no sample has this key.
        ConfigError: no sample has this index, or samples have no index of keys.
    """
    text, count = wanted.strip(), len(opened)
    share = text.removesuffix("%").strip()
    if text.endswith("%") and share.replace(".", "", 1).isdecimal() and share.isascii():
        return min(count - 1, int(count * min(100.0, float(share)) / 100)) if count else 0
    number = text.replace(",", "").replace("_", "")
    if (index := count_in(number, count)) is not None:
        return index
    if isinstance(opened.source, SupportsKeys):
        return opened.source.index_of(text)
    if number.isascii() and number.isdecimal():
        raise ConfigError("sample index out of range", found=number[:20], expected=f"0 to {count - 1:,}")
    hint = "`find` can search a field"
    raise ConfigError("these samples have no key index", found=text[:MOST_NAME_CHARACTERS], hint=hint)


def media_of(opened: Opened, index: int, part: str) -> Media:
    """Return one part of a sample to serve; a large one is read by ranges, not at once.

    Raises:
        NotFound: the sample doesn't have the part, or it isn't bytes.
        FormatError: the sample is damaged.
    """
    for name, extent in _parts(opened, index):
        if name == part:
            return _typed(_stored_part(opened, extent))
    value = _value(opened, index, part)
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, str):
        value = value.encode(errors="surrogatepass")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise NotFound("unknown part", found=part[:MOST_NAME_CHARACTERS])
    return _typed(media_bytes(bytes(value)))


def _value(opened: Opened, index: int, part: str) -> Any:
    _require_small(opened, index)
    for reader in opened.readers:
        if any(one.name == part for one in reader.schema.fields) or reader.schema.open:
            sample = reader[index]
            if part in sample:
                return sample[part]
    return None


def _typed(data: MediaBytes) -> Media:
    found = sniff_media(data.read(0, HEAD_BYTES))
    return Media(found if found in SHOWN_BY_BROWSERS else OTHER, data)


def file_name(part: str, media_type: str) -> str:
    plain = "".join(char if char.isalnum() or char in "-_." else "_" for char in part)[:80]
    return plain if "." in plain else plain + (mimetypes.guess_extension(media_type) or "")


def read_whole(opened: Opened, index: int) -> dict[str, Any]:
    """Return a sample with all of its fields; raises any error of reading it, `TooLarge` if it is too large."""
    _require_small(opened, index)
    return _read(opened, index)


def stored_bytes(opened: Opened, index: int) -> int:
    """Return the stored bytes of a sample; 0 if unknown."""
    return sum(one.length_bytes for one in extents_of(opened.source, index) or ())


def _require_small(opened: Opened, index: int) -> None:
    size_bytes, most_bytes = stored_bytes(opened, index), most_sample_bytes([opened.format])
    if size_bytes > most_bytes:
        what = "a sample is too large to read at once"
        raise TooLarge(what, path=opened.name, found=f"{size_bytes:,} bytes", expected=f"at most {most_bytes:,}")


def _read(opened: Opened, index: int) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    for reader in opened.readers:
        sample |= reader[index]
    return sample


def _parts(opened: Opened, index: int) -> list[tuple[str, Extent]]:
    source = stored(opened.source)
    return source.parts_of(index, MOST_PARTS)[1] if isinstance(source, TellsParts) else []


def _beginning(opened: Opened, index: int, extents: Sequence[Extent], bounds: Bounds) -> Panels:
    """Return the panels of a sample that is too large: the beginning of each known part, or of the sample."""
    source: Any = opened.source
    whole = stored(source)
    if source is not whole and source.exclusions.has(index):
        source.exclusions.refuse(index, opened.name)
    if opened.is_tokens:
        return Panels(index, None, (_long_document(opened, index, bounds),), 1)
    if isinstance(whole, TellsParts):
        key, found, count, is_all = whole.parts_of(index, bounds.panels)
        shown = tuple(_shown(opened, name, extent, bounds) for name, extent in found)
        return Panels(index, recordable(key[:MOST_NAME_CHARACTERS]), shown, count, of_is_least=not is_all)
    note = (
        f"too large to read at once ({sum(one.length_bytes for one in extents):,} bytes): only the beginning is shown"
    )
    made = dataclasses.replace(_shown(opened, "sample", extents[0], bounds), note=note)
    return Panels(index, None, (made,), 1)


def _long_document(opened: Opened, index: int, bounds: Bounds) -> Panel:
    source: Any = opened.source
    start, stop = borders_of(source, index, index + 1).tolist()
    made = panel("tokens", source.tokens(start, min(stop, start + bounds.items)), decode=opened.decode, bounds=bounds)
    size_bytes = (stop - start) * source.dtype.itemsize
    return dataclasses.replace(made, size_bytes=size_bytes, of=stop - start, shape=(stop - start,))


def _shown(opened: Opened, name: str, extent: Extent, bounds: Bounds) -> Panel:
    return stored_panel(recordable(name[:MOST_NAME_CHARACTERS]), _stored_part(opened, extent), bounds=bounds)


def _stored_part(opened: Opened, extent: Extent) -> MediaBytes:
    return stored_media(_store_of(opened), extent.path, extent.offset_bytes, extent.length_bytes)


def _store_of(opened: Opened) -> Store:
    if opened.place is None:
        raise NotFound("the location of this source is unknown", found=opened.name)
    return opened.place.store


def _broken(opened: Opened, index: int, error: Exception, bounds: Bounds) -> Panels:
    """Return the error of a sample, and its stored bytes, if they can be read."""
    found: tuple[Panel, ...] = ()
    try:
        extents = extents_of(opened.source, index) or ()
        if extents and opened.place is not None and not opened.is_tokens:
            found = (_shown(opened, "stored bytes", extents[0], bounds),)
    except Exception:  # the first error is shown
        found = ()
    return Panels(index, None, found, len(found), error=describe_error(error))


def _key(opened: Opened, index: int) -> str | None:
    key = place_of(opened.source, index).key
    return None if key is None else recordable(key[:MOST_NAME_CHARACTERS])


LOOKED_AT, REMOTE_LOOKED_AT = 256, 16
"""Limits on samples with headers to read, evenly spread; on a remote store each takes several requests."""

MOST_KINDS = 200


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    share: float
    mean_bytes: float
    share_of_bytes: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a dataset's samples, the most frequent first; from some or all samples."""

    parts: tuple[Part, ...]
    estimated_from: int | None
    of: int


def parts_of_samples(opened: Opened, count: int) -> Parts | None:
    """Return the parts of the samples; None if their headers don't contain them."""
    source: Any = stored(opened.source)
    if not isinstance(source, TellsParts) or opened.format != "webdataset" or not count:
        return None
    most = LOOKED_AT if opened.place is None or opened.place.is_local else REMOTE_LOOKED_AT
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)).tolist()
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    looked_at = 0
    for index in chosen:
        try:
            found = at_hand(lambda index=index: source.parts_of(index, MOST_KINDS), None)
        except PenstockError:  # damage is reported where the data is shown
            continue
        if found is None:
            return None
        looked_at += 1
        for name, extent in dict(found[1]).items():
            if name in counts or len(counts) < MOST_KINDS:
                counts[name] = counts.get(name, 0) + 1
                sizes[name] = sizes.get(name, 0) + extent.length_bytes
    whole = sum(sizes.values()) or 1
    made = [
        Part(recordable(name[:MOST_NAME_CHARACTERS]), seen / looked_at, sizes[name] / seen, sizes[name] / whole)
        for name, seen in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return Parts(tuple(made), looked_at if looked_at < count else None, count) if made else None


_MOST_COUNTED = 1 << 22
"""Limit on the tokens of a document in which all trained tokens are counted; in longer ones only the shown tokens."""


def document_tokens(opened: Opened, index: int, start: int, most: int = MOST_TOKENS) -> tuple[TokenRun, int | None]:
    """Return tokens of a document, and the number of documents.

    Without document borders, all tokens are one document, and the number is None. Reads only the shown tokens.

    Raises:
        ConfigError: the document doesn't exist.
    """
    source: Any = opened.source
    try:
        count = len(source)
    except ConfigError:
        count = None
    if count is not None and not 0 <= index < count:
        raise ConfigError("document index out of range", found=index, expected=f"0 to {count - 1:,}")
    length, read = _document(opened, None if count is None else index)
    start = min(max(0, start), length)
    stop = min(length, start + min(most, MOST_TOKENS))
    run = tokens(read(start, stop), texts=opened.vocabulary, eos_id=source.eos_id, most=most)
    if run.counted is not None and length <= _MOST_COUNTED:
        run = dataclasses.replace(run, counted=int(np.count_nonzero(read(0, length)[LOSS_MASK])))
    shown = tuple(
        dataclasses.replace(one, place=start + one.place, begins=one.begins and start + one.place == 0)
        for one in run.tokens
    )
    return dataclasses.replace(run, tokens=shown, start=start, of=length), count


def _document(opened: Opened, index: int | None) -> tuple[int, Callable[[int, int], dict[str, Any]]]:
    """Return the number of tokens of a document (None: of all), and a reader of ranges with their loss mask.

    Document borders aren't computed for a single document unless it is too large to be read at once.
    """
    source: Any = opened.source
    begin, end = 0, 0
    if index is None:
        end = source.num_tokens
    else:
        starts = at_hand(lambda: source.doc_starts, opened.size_bytes)
        if starts is None:
            try:
                found = raw_sample(opened, index)
                fields = [name for name in ("tokens", LOSS_MASK) if name in found]
                return len(found["tokens"]), lambda start, stop: {name: found[name][start:stop] for name in fields}
            except TooLarge:
                starts = source.doc_starts
        begin, end = map(int, starts[index : index + 2])
    mask = planes_of(source).get(LOSS_MASK)

    def read(start: int, stop: int) -> dict[str, Any]:
        columns = {"tokens": source.tokens(begin + start, begin + stop)}
        return columns if mask is None else columns | {LOSS_MASK: mask.read(begin + start, begin + stop)}

    return end - begin, read


def raw_sample(opened: Opened, index: int) -> dict[str, Any]:
    """Return a sample with all of its fields; raises any error of reading it.

    Raises:
        ConfigError: the sample doesn't exist.
        TooLarge: the sample is stored in more bytes than are read at once.
    """
    if not 0 <= index < len(opened):
        raise ConfigError("sample index out of range", found=index, expected=f"0 to {len(opened) - 1:,}")
    return read_whole(opened, index)
