"""Read the headers of media files: files of a directory, and members of tars.

| filter | chooses files by |
|---|---|
| `EXTENSION` | the extension of images, audio or video, in any case |
| `GLOB` | patterns for the full name, in any case |
| `HEADER` | the first bytes, or the name if those are unknown |

A file that can't be read gets no row and is reported. A file that seems to be truncated keeps its row, as its header is
complete, and is reported too. At depth `exact`, images, video and audio are decoded. Then a damaged image gets no row,
and the row of damaged video or audio has what can be decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from penstock.codec.av_header import MediaDepth, needs_packets, read_av_facts
from penstock.codec.image_header import read_image_header
from penstock.codec.media_bytes import HEAD_BYTES, MediaBytes
from penstock.codec.parts import DecodeOptions, decode_image
from penstock.codec.upright import pixel_traits
from penstock.errors import ConfigError, PenstockError
from penstock.formats.samples.media_index import MediaFilter, MediaRow
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.store.base import Store
from penstock.store.place import Place
from penstock.types import ImageMetadata, MediaMetadata

_IMAGES = "bmp gif ico j2k jp2 jpx jpeg jpg png tif tiff webp"
_FILMS = "aac avi flac m4a m4v mkv mov mp3 mp4 ogg wav webm"
_KINDS = {**dict.fromkeys(_IMAGES.split(), "image"), **dict.fromkeys(_FILMS.split(), "av")}

_IMAGE_MAGIC = (
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"\0\0\1\0", b"8BPS"),
    *(b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "),
)
_AV_MAGIC = (
    *(b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1", b"\xff\xf9"),
    *(b"\x1aE\xdf\xa3", b"FLV\1"),
)
_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")
_TAIL_BYTES = 64
_ENDS = {"PNG": b"IEND", "JPEG": b"\xff\xd9", "GIF": b";"}
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class MediaFile:
    name: str
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MediaProblem:
    """A media file that can't be read or seems to be truncated, and why."""

    name: str
    what: str


def media_filter(by: str, patterns: str | Iterable[str] | None = None) -> MediaFilter:
    """Return a filter; arguments as of `prepare_media`. Raises `ConfigError` if they are invalid."""
    if by not in ("extension", "glob", "header"):
        raise ConfigError("unknown way to find media", found=by, expected="extension | glob | header")
    given = patterns.split(",") if isinstance(patterns, str) else list(patterns or ())
    given = [one.strip() for one in given if one.strip()]
    if (by == "glob") != bool(given):
        raise ConfigError(
            "patterns can only be combined with glob", found=f"{by} and {given}", expected='such as "*.jpg,*.png"'
        )
    return MediaFilter(by.upper(), ",".join(given))


def media_depth(*, exact: bool, headers_only: bool) -> MediaDepth:
    if exact and headers_only:
        raise ConfigError("exact and headers_only can't be combined", expected="at most one of them")
    return "exact" if exact else "headers" if headers_only else "counts"


def kind_by_name(name: str) -> str | None:
    dot = name.rfind(".")
    return _KINDS.get(name[dot + 1 :].lower()) if dot >= 0 else None


def kind_by_header(head: bytes) -> str | None:
    """Return `"image"`, `"av"`, or None, by the first 16 bytes."""
    if head[4:8] == b"ftyp":
        return "image" if head[8:12] in _STILL_BRANDS else "av"
    if head.startswith(b"RIFF"):
        return {b"WEBP": "image", b"WAVE": "av", b"AVI ": "av"}.get(head[8:12])
    if head.startswith(_IMAGE_MAGIC):
        return "image"
    return "av" if head.startswith(_AV_MAGIC) else None


def may_hold(filters: Sequence[MediaFilter], name: str) -> bool:
    lowered = name.lower()
    return any(
        one.strategy == "HEADER"
        or (one.strategy == "EXTENSION" and kind_by_name(name) is not None)
        or (
            one.strategy == "GLOB" and any(fnmatchcase(lowered, pattern.lower()) for pattern in one.patterns.split(","))
        )
        for one in filters
    )


def read_rows(
    place: Place, files: Sequence[MediaFile], filters: Sequence[MediaFilter], *, depth: MediaDepth
) -> Iterator[MediaRow | MediaProblem]:
    """Yield rows of the media among ranges of one file, and problems.

    Memory: the first and last KiB of 256 files, and at depth `exact` one image.
    """
    for file, media in _open_files(place, [file for file in files if may_hold(filters, file.name)]):
        if isinstance(media, str):
            yield MediaProblem(file.name, media)
        else:
            yield from read_media(file.name, media, filters, depth=depth)


def measure_packets(place: Place, files: Sequence[MediaFile], filters: Sequence[MediaFilter]) -> tuple[int, int]:
    """Return number and bytes of the files that are read whole at depth `counts`, as their headers state no count.

    Only files with the name of audio or video, or chosen by a pattern, are considered.
    """
    by_name = [one for one in filters if one.strategy != "HEADER"]
    named = [file for file in files if kind_by_name(file.name) == "av" and may_hold(filters, file.name)]
    named += [file for file in files if kind_by_name(file.name) is None and may_hold(by_name, file.name)]
    num_files = size_bytes = 0
    for file, media in _open_files(place, named):
        if isinstance(media, MediaBytes) and _kind(file.name, media, filters) == "av" and needs_packets(media):
            num_files += 1
            size_bytes += file.size_bytes
    return num_files, size_bytes


def _open_files(place: Place, files: Sequence[MediaFile]) -> Iterator[tuple[MediaFile, MediaBytes | str]]:
    """Yield ranges of one file, each with its bytes or the error."""
    for first in range(0, len(files), _AT_ONCE):
        some = files[first : first + _AT_ONCE]
        try:
            found = iter(place.store.get_ranges(place.path, [part for file in some for part in _edges(file)]))
        except (PenstockError, PermissionError) as error:
            yield from ((file, str(error)) for file in some)
            continue
        for file in some:
            yield file, _with_edges(place, file, next(found), next(found))


def _edges(file: MediaFile) -> tuple[tuple[int, int], tuple[int, int]]:
    start, stop = file.start_bytes, file.start_bytes + file.size_bytes
    head_stop = min(stop, start + HEAD_BYTES)
    return (start, head_stop), (max(head_stop, stop - _TAIL_BYTES), stop)


def _with_edges(place: Place, file: MediaFile, head: bytes, tail: bytes) -> MediaBytes:
    tail_start = file.size_bytes - len(tail)

    def more(start_bytes: int, length_bytes: int) -> bytes:
        if start_bytes >= tail_start:
            return tail[start_bytes - tail_start :][:length_bytes]
        return place.store.get(place.path, file.start_bytes + start_bytes, length_bytes)

    return MediaBytes(file.size_bytes, head, more)


def read_media(
    name: str, media: MediaBytes, filters: Sequence[MediaFilter], *, depth: MediaDepth
) -> Iterator[MediaRow | MediaProblem]:
    """Yield the row of one file if a filter chooses it, and its problem."""
    kind, named = _kind(name, media, filters), kind_by_name(name)
    if kind is None:
        return
    try:
        metadata, problem = _metadata(kind, media, depth)
        if metadata is not None:
            traits = pixel_traits(media, metadata) if isinstance(metadata, ImageMetadata) else ()
            yield MediaRow(name, metadata, tuple(traits))
            if problem is not None:
                yield MediaProblem(name, problem)
        elif named is not None:
            yield MediaProblem(name, "no image" if kind == "image" else "neither audio nor video")
    except PenstockError as error:
        if named is not None:
            yield MediaProblem(name, str(error))


def _kind(name: str, media: MediaBytes, filters: Sequence[MediaFilter]) -> str | None:
    """Return `"image"`, `"av"`, or None, by the first bytes; by the name if a filter uses names."""
    kind, named = kind_by_header(media.head[:16]), kind_by_name(name)
    by_name = any(one.strategy != "HEADER" for one in filters)
    if named is not None and by_name and kind != named:
        return named  # content that doesn't fit the name is reported
    return kind or named


@dataclass(frozen=True, slots=True)
class ShardMedia:
    """Reads the rows and problems of a tar shard; picklable.

    Attributes:
        filter: chooses members.
        depth: how much of each is read.
    """

    filter: MediaFilter
    depth: MediaDepth = "counts"

    def __call__(self, store: Store, path: str, table: ShardTable, /) -> Iterator[MediaRow | MediaProblem]:
        """Yield rows by the full names of the parts; the last one of repeated parts counts."""
        rows: dict[str, MediaRow] = {}
        for found in read_rows(Place(store, path), list(_members(table)), [self.filter], depth=self.depth):
            if isinstance(found, MediaRow):
                rows[found.name] = found
            else:
                yield found
        yield from rows.values()


def _members(table: ShardTable) -> Iterator[MediaFile]:
    contents, sizes, borders = table.contents.tolist(), table.sizes.tolist(), table.part_starts.tolist()
    for sample, key in enumerate(table.keys):
        for place in range(borders[sample], borders[sample + 1]):
            yield MediaFile(f"{key}.{table.part_names[place]}", contents[place], sizes[place])


def _metadata(kind: str, media: MediaBytes, depth: MediaDepth) -> tuple[MediaMetadata | None, str | None]:
    if kind == "av":
        facts = read_av_facts(media, depth=depth)
        return (None, None) if facts is None else (facts.metadata, facts.problem)
    metadata = read_image_header(media)
    if metadata is None:
        return None, None
    if depth == "exact":
        decode_image(media.read(0, media.size_bytes), DecodeOptions())
    elif _is_cut(media, metadata.format):
        return metadata, f"it doesn't end like a {metadata.format} file, so it may be truncated"
    return metadata, None


def _is_cut(media: MediaBytes, format_name: str) -> bool:
    if format_name == "WEBP":
        return int.from_bytes(media.read(4, 4), "little") + 8 > media.size_bytes
    if format_name not in _ENDS:
        return False
    tail = media.head[-_TAIL_BYTES:]
    if media.size_bytes > len(media.head):
        tail += media.read(max(len(media.head), media.size_bytes - _TAIL_BYTES), _TAIL_BYTES)
    return _ENDS[format_name] not in tail
