"""Plain data classes that layers exchange."""

from __future__ import annotations

import os
import typing as _typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._keywords import Reading, definitions
from penstock._keywords import ReadMode as ReadMode
from penstock._secrets import redacted_repr

_T = TypeVar("_T")

IntArray: TypeAlias = NDArray[np.int64]
"""int64 array: positions, indices, offsets."""

TokenArray: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""uint8, uint16 or uint32 array of token ids, in native byte order."""

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
"""Bytes to write."""

Sample: TypeAlias = dict[str, Any]
"""One sample: field name → value."""

Batch: TypeAlias = dict[str, Any]
"""Columns: field name → array `[k, …]` where shapes agree, else a list of k values."""

Severity: TypeAlias = Literal["error", "warning"]
Depth: TypeAlias = Literal["quick", "sample", "full"]


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a sample.

    Attributes:
        name: key in the sample.
        kind: `"tokens"`, `"json"`, `"bytes"`, `"text"`, `"int"`, `"float"`, `"ndarray"`, `"image"`, …
        dtype: name of its numpy dtype, if it has one.
        shape: sizes, None for variable ones; `()` for a scalar, None if unknown.

    Examples:
        >>> import penstock as ps
        >>> ps.open("chat-mds").schema.fields[0]
        Field(name='id', kind='int', dtype='int64', shape=())
    """

    name: str
    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """Fields of a source's samples.

    Attributes:
        fields: the known fields.
        open: samples may have further fields, as in JSONL.

    Examples:
        >>> import penstock as ps
        >>> [field.name for field in ps.open("chat-mds").schema.fields]
        ['id', 'text']
        >>> ps.open("docs.jsonl").schema
        Schema(fields=(), open=True)
    """

    fields: tuple[Field, ...]
    open: bool = False


@redacted_repr
@dataclass(frozen=True, slots=True)
class Extent:
    """File range of a sample: `path[offset_bytes : offset_bytes + length_bytes]`.

    Attributes:
        path: path or URL of the file.
        offset_bytes: first byte.
        length_bytes: number of bytes.

    Examples:
        >>> import penstock as ps
        >>> [extent] = ps.open("docs.jsonl").place_of(2).extents
        >>> with open(extent.path, "rb") as file:
        ...     offset = file.seek(extent.offset_bytes)
        ...     line = file.read(extent.length_bytes)
        >>> line
        b'{"id": "a3", "lang": "de", "text": "Ein Wehr staut den Fluss."}'
    """

    path: str
    offset_bytes: int
    length_bytes: int


@redacted_repr
@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of `verify`.

    Attributes:
        code: stable name, `"<format>.<problem>"`.
        severity: `"error"` or `"warning"`. Only errors make the command `verify` exit with status 1.
        path: file with the problem.
        offset_bytes: offset in that file, if known.
        found: the actual content.
        expected: the expected content.
        fix: what to do, with a command if there is one.

    Examples:
        >>> import os
        >>> import penstock as ps
        >>> os.truncate("corpus.pbin", 60)
        >>> for finding in ps.verify("corpus.pbin"):
        ...     print(finding.severity, finding.code, finding.offset_bytes)
        error pbin.truncated 60
    """

    code: str
    severity: Severity
    path: str
    offset_bytes: int | None = None
    found: str | None = None
    expected: str | None = None
    fix: str | None = None


@redacted_repr
@dataclass(frozen=True, slots=True)
class Action:
    """Change that `repair` makes, or would make.

    Attributes:
        code: code of the finding.
        path: file to change.
        what: description of the change; if it isn't `possible`, the reason.
        done: whether the change was made.
        possible: whether the change can be made.

    Examples:
        >>> import os
        >>> import penstock as ps
        >>> os.truncate("corpus.pbin", 60)
        >>> [(action.code, action.done) for action in ps.repair("corpus.pbin", write=True)]
        [('pbin.truncated', True)]
        >>> len(ps.open("corpus.pbin"))
        3
    """

    code: str
    path: str
    what: str
    done: bool = False
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Location:
    """Origin of a stream's position.

    Attributes:
        position: the position asked for.
        path: names of the children on the way to the source, outermost first.
        epoch: pass over the innermost source, from 0.
        index: `stream[position]` equals `source[index]` of the innermost source.
        key: the sample's key, if its source has keys.
        documents: for token windows `(document, start, stop)`: document numbers with the range of the document's own
            tokens in the window; None if documents are unknown.
        extents: file ranges of the sample, if known.
        instead_of: index of the order's sample, if that sample is excluded and `index` is its substitute.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.Chunk(8)(ps.open("corpus.pbin"))
        >>> location = ps.Sequential(windows).locate(6)
        >>> location.epoch, location.index, location.documents
        (1, 1, ((1, 3, 6), (2, 0, 5)))
    """

    position: int
    path: tuple[str, ...]
    epoch: int
    index: int
    key: str | None = None
    documents: tuple[tuple[int, int, int], ...] | None = None
    extents: tuple[Extent, ...] | None = None
    instead_of: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Origin of a source's sample, as far as it is known.

    Attributes:
        key: the sample's key, if its source has keys.
        documents: for token windows `(document, start, stop)`, as in `Location`.
        extents: file ranges of the sample, if known.

    Examples:
        >>> import penstock as ps
        >>> place = ps.Chunk(8)(ps.open("corpus.pbin")).place_of(1)
        >>> place.documents
        ((1, 3, 6), (2, 0, 5))
    """

    key: str | None = None
    documents: tuple[tuple[int, int, int], ...] | None = None
    extents: tuple[Extent, ...] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a side file: the facts about a committed dataset.

    Attributes:
        format: format name.
        num_samples: number of samples, documents or lines.
        size_bytes: bytes of the data files.
        num_tokens: number of tokens, for token formats.
        max_token_id: largest id, for token formats with at least one token.
        eos_id: id that ends each document, if there is one.
        tokenizer: name of the tokenizer; `tokenizer_digest` is its digest.
        digest: document digest, independent of the format (token datasets only).
        inputs: relative path of each input → its digest.
        block_digests: file name → xxh3-128 of each block of 64 MiB.
        options: options of the writer.
        binding: short digest that ties the side file to its data.
        parts: name → manifest of parts that are written one after another, such as splits.
        fingerprints: digest of the format's own index → fingerprint of the data with that index, for samples in several
            files: remote data then needs no sampling.
        starts: start of each 4,096th document, encoded as text, for formats without starts in their index.
        tool: name and version of the writing tool.
        planes: plane name → digest of its file; None if unknown, as in side files written before 0.3. Not part of the
            fingerprint.
        has_exclude_list: whether an exclude list belongs to the dataset. Not part of the fingerprint.
        unknown_text: `unknown_tokens` and `dropped_characters` counted by `pack`; None if there were none, or if they
            weren't counted. Not part of the fingerprint.

    Examples:
        >>> import penstock as ps
        >>> manifest = ps.open("corpus.pbin").manifest
        >>> manifest.format, manifest.num_samples, manifest.num_tokens, manifest.max_token_id
        ('pbin', 6, 45, 609)
    """

    format: str
    num_samples: int
    size_bytes: int
    num_tokens: int | None = None
    max_token_id: int | None = None
    eos_id: int | None = None
    tokenizer: str | None = None
    tokenizer_digest: str | None = None
    digest: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    block_digests: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    binding: str | None = None
    parts: Mapping[str, Manifest] = field(default_factory=dict[str, "Manifest"])
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    starts: str | None = None
    tool: str = ""
    planes: Mapping[str, str] | None = None
    has_exclude_list: bool = False
    unknown_text: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ImageMetadata:
    """Metadata from an image's header. `format` and `mode` are Pillow's names, sizes are in pixels.

    Examples:
        >>> import penstock as ps
        >>> from penstock.types import ImageMetadata
        >>> summary = ps.prepare("tars", sample_type="CrudeWebdataset", split_ratio="1,0,0", media="extension")
        >>> ps.open("tars").get_media_metadata("002.png")
        ImageMetadata(width=8, height=6, format='PNG', mode='RGB')
    """

    width: int
    height: int
    format: str
    mode: str


@dataclass(frozen=True, slots=True)
class AVMetadata:
    """Metadata from the headers of an audio or video file.

    Durations are in seconds; None if a value is missing.

    Examples:
        >>> from penstock.types import AVMetadata
        >>> metadata = AVMetadata(audio_duration=2.5, audio_channels=1, audio_sample_rate=16000)
        >>> metadata.audio_duration, metadata.video_fps
        (2.5, None)
    """

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


# Not frozen: one is created for every sample, and freezing takes four times as long as the rest.
@redacted_repr
@dataclass(slots=True, unsafe_hash=True)
class SourceInfo:
    """Origin of a sample made of named files: an entry of its `__sources__`.

    Attributes:
        dataset_path: path of the dataset, as text or as a path. Not compared, because a copy elsewhere is the same
            data.
        index: index of the sample in its dataset, or a file's name.
        shard_name: path of the shard in the dataset's directory.
        file_names: names of the sample's files.

    Examples:
        >>> import penstock as ps
        >>> [info] = ps.open("pictures")[3]["__sources__"]
        >>> info.index, info.shard_name, info.file_names
        (3, 'shard_000001.tar', ('003.png', '003.txt'))
    """

    dataset_path: str | os.PathLike[str] = field(compare=False)
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]

    def __reduce__(self) -> tuple[object, ...]:
        # One is sent with every sample between processes: pickling of frozen dataclasses takes four times as long.
        return (SourceInfo, (self.dataset_path, self.index, self.shard_name, self.file_names))


MediaMetadata: TypeAlias = ImageMetadata | AVMetadata
"""Metadata of one media file."""


@dataclass(frozen=True, slots=True)
class Sniff:
    """Result of `Format.sniff`: whether a path looks like the format, and why.

    Examples:
        >>> from penstock.formats import get_format
        >>> from penstock.store import LocalStore
        >>> get_format("mds").sniff(LocalStore(), "chat-mds").matches
        True
    """

    matches: bool
    why: str


@dataclass(frozen=True, slots=True)
class Traits:
    """Abilities of a format.

    `penstock.open` raises `ConfigError` for options that the traits don't allow.

    Attributes:
        write: the format can be written.
        tokens: it stores token documents.
        keys: its samples have keys.
        splits: `split` chooses a split.
        layouts: `layout` names how the data is stored.
        remote: it can be read from URLs.
        verify: it has a check.
        repair: it has repairs.
        hashes: its index may contain digests of its files, which `validate_hash` checks.
        borderless: its data may lack document boundaries.
        images: samples may contain images, which `decode` converts to arrays.
        packs_eos: `pack` appends an EOS token to each document by default.
        suffixes: file suffixes.
        made_by: tools that write the format.

    Examples:
        >>> from penstock.formats import get_format
        >>> traits = get_format("pbin").traits
        >>> traits.tokens, traits.splits, traits.suffixes
        (True, False, ('.pbin', '.packed.bin'))
    """

    write: bool = False
    tokens: bool = False
    keys: bool = False
    splits: bool = False
    layouts: bool = False
    remote: bool = False
    verify: bool = False
    repair: bool = False
    hashes: bool = False
    borderless: bool = False
    images: bool = False
    packs_eos: bool = True
    suffixes: tuple[str, ...] = ()
    made_by: str = ""


def _with_options(kind: type[_T]) -> type[_T]:
    """Give the fields of a class the defaults that `penstock._keywords` defines; add the fields that it lacks."""
    for name, annotation, option in definitions(Reading):
        kind.__annotations__.setdefault(name, annotation)
        setattr(kind, name, option.default)
    return kind


@dataclass(frozen=True, slots=True)
@_with_options
class OpenOptions:
    """Options of opening, as passed to a format.

    Options that the format's traits don't allow are rejected before.

    Most are options of `penstock.open`. In addition:

    - `image`: how typed samples represent images, overriding the dataset: as `codec.parts.DecodeOptions.image`, or
      `"bytes"` for all parts as stored.
    - `trust_parts`: lets pickled parts run their code, and nothing else that `trust` allows.
    - `refuse_late`: rejects pickled parts of crude samples when they are requested.

    A format needn't handle `excludes`, `mask_tokens`, `tokens_column`, `tokens_dtype`, `mask_column`, `documents` and
    `planes`: they are applied where datasets are opened. `excludes` is a path, a
    `penstock.store.exclude_list.ExcludeList`, None for the list next to data of this machine, or False to read all
    samples. `one_document` reaches formats whose traits are `borderless`. `planes` is `"auto"`, or None (or `"none"`)
    to ignore planes.

    Examples:
        >>> from penstock.types import OpenOptions
        >>> options = OpenOptions(eos_id=0, columns=("text",))
        >>> options.eos_id, options.read, options.planes
        (0, 'auto', 'auto')
    """

    # Types for type checkers, and the order of values in pickles: append new fields at the end.
    split: str | None
    flavor: str
    raw: bool
    trust: bool
    layout: str | None
    vocab_size: int | None
    eos_id: int | None
    columns: tuple[str, ...] | None
    read: ReadMode
    image: str | None
    validate_hash: str | None
    follow_links: bool
    trust_parts: bool
    refuse_late: bool
    excludes: Any
    mask_tokens: int | None
    tokens_column: str | None
    tokens_dtype: str | None
    mask_column: str | None
    one_document: bool
    documents: str | None
    planes: str | None
    decode: str | None

    if _typing.TYPE_CHECKING:

        def __init__(self, **options: Unpack[Reading]) -> None: ...

    def __post_init__(self) -> None:
        """Accept `"none"` for planes, as the command line and recipes write it."""
        if self.planes == "none":
            object.__setattr__(self, "planes", None)
