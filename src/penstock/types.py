"""Data that layers exchange: frozen, slotted, without behaviour."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import redacted_repr

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
ReadMode: TypeAlias = Literal["auto", "mmap", "pread"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a sample.

    Attributes:
        name: key in the sample.
        kind: `"tokens"`, `"json"`, `"bytes"`, `"text"`, `"int"`, `"float"`, `"ndarray"`, `"image"`, …
        dtype: numpy dtype name where it is one, else None.
        shape: sizes, None for a free one; `()` for a scalar, None where unknown.
    """

    name: str
    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """What samples of a source hold. `open` means that samples may have further fields (JSONL)."""

    fields: tuple[Field, ...]
    open: bool = False


@redacted_repr
@dataclass(frozen=True, slots=True)
class Extent:
    """Where the bytes of a sample are: `path[offset_bytes : offset_bytes + length_bytes]`."""

    path: str
    offset_bytes: int
    length_bytes: int


@redacted_repr
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `verify` found.

    Attributes:
        code: stable name, `"<format>.<what>"`.
        severity: only `"error"` makes `verify` exit with 1.
        path: file it stands in.
        offset_bytes: place in that file, None where there is none.
        found: what stands there.
        expected: what should stand there.
        fix: what to do, in words; a command where there is one.
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
    """One change that `repair` makes, or would make; where it is not `possible`, `what` says why."""

    code: str
    path: str
    what: str
    done: bool = False
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Location:
    """Where position `position` of a stream comes from.

    Attributes:
        position: the global position asked for.
        path: names of the children gone through, outermost first.
        epoch: pass over the innermost source, from 0.
        index: `stream[position]` equals `source[index]` of the innermost source.
        key: the sample's key, where its source has keys.
        documents: for token windows `(document, start, stop)`: document numbers with the range of the
            document's own tokens that the window holds; None where documents are not known.
        extents: file ranges of the sample, where the source knows them.
        instead_of: the index that the order gives, where that sample is excluded and `index` is of its substitute.
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
    """What is known of where a sample comes from.

    Attributes:
        key: the sample's key, where its source has keys.
        documents: for token windows `(document, start, stop)`, as in `Location`.
        extents: file ranges of the sample, where the source knows them.
    """

    key: str | None = None
    documents: tuple[tuple[int, int, int], ...] | None = None
    extents: tuple[Extent, ...] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a committed dataset holds; the content of the side file.

    Attributes:
        format: format name.
        num_samples: samples, documents or lines.
        size_bytes: bytes of the data file(s).
        num_tokens: tokens in all, for token formats.
        max_token_id: largest id, for token formats that hold a token.
        eos_id: id that ends a document, where the data hold one.
        tokenizer: name of the tokenizer, and `tokenizer_digest` its digest.
        digest: document digest, independent of the format (tokens only).
        inputs: input path (relative) → digest.
        block_digests: file name → xxh3-128 of each 64 MiB block.
        options: options of the writer.
        binding: short digest by which a side file is known to belong to its data.
        parts: manifests of the parts of a dataset that are written one after another, such as splits, by name.
        fingerprints: digest of the format's own index → fingerprint of the data that have it, where that is a sample of
            several files: data that are far away need not be sampled.
        starts: where each 4,096th document begins, of a format whose index can't be asked for one; as text of its own.
        tool: tool and version that wrote it.
        planes: plane name → digest of its file; None if unknown, as in side files written before 0.3. Not part of the
            fingerprint.
        has_exclude_list: whether an exclude list belongs to the dataset. Not part of the fingerprint.
        unknown_text: `unknown_tokens` and `dropped_characters` that `pack` counted; None if there were none, or if they
            weren't counted. Not part of the fingerprint.
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
    """What an image's header says. `format` and `mode` are Pillow's names."""

    width: int
    height: int
    format: str
    mode: str


@dataclass(frozen=True, slots=True)
class AVMetadata:
    """What the headers of an audio or video file say; durations in seconds, None where there is none."""

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


# Not frozen: one is made for every sample, and freezing takes four times as long as the rest of it.
@redacted_repr
@dataclass(slots=True, unsafe_hash=True)
class SourceInfo:
    """Where a sample of named files comes from: an entry of its `__sources__`.

    Attributes:
        dataset_path: of the dataset, as text or as a path; no part of equality, as a copy elsewhere is the same data.
        index: of the sample in its dataset, or a file's name.
        shard_name: of the shard, from the dataset's folder.
        file_names: of the files that make the sample.
    """

    dataset_path: str | os.PathLike[str] = field(compare=False)
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]

    def __reduce__(self) -> tuple[object, ...]:
        # One goes with every sample between processes: the way of frozen dataclasses takes four times as long.
        return (SourceInfo, (self.dataset_path, self.index, self.shard_name, self.file_names))


MediaMetadata: TypeAlias = ImageMetadata | AVMetadata
"""Metadata of one media file."""


@dataclass(frozen=True, slots=True)
class Sniff:
    """Whether a path looks like a format, and why."""

    matches: bool
    why: str


@dataclass(frozen=True, slots=True)
class Traits:
    """What a format can do; the README's table is generated from these.

    `splits` says that `split` chooses one, `layouts` that `layout` names how the data are stored, and `hashes` that its
    index may hold digests of its files, which `validate_hash` checks, and `images` that samples may hold images, which
    `decode` makes arrays of: these options are refused elsewhere. `borderless` says that its data may not tell where
    documents are. `packs_eos` says whether `pack` appends an EOS token to each document by default.
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


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Everything that opening may pass to a format. What its traits have no place for is refused before.

    `image` says how typed samples hold images, whatever the dataset says: as `codec.parts.DecodeOptions.image`, or
    `"bytes"` for all parts as they are stored. `trust_parts` lets pickled parts run their code, and nothing else that
    `trust` allows; `refuse_late` refuses those of crude samples when they are asked for. `excludes` is the exclude
    list: a path, a `penstock.store.exclude_list.ExcludeList`, or None for the one that lies beside data of this
    machine; `mask_tokens` the id in the place of excluded documents' tokens. Both are seen to where datasets are
    opened: a format needs neither. So are `tokens_column`, the column of rows that holds documents of ids, and
    `tokens_dtype`, that of ids in bytes; `mask_column` is the column of their loss mask. `one_document` says that
    nothing tells where documents are: they end at `eos_id`, or all is one; formats take it whose traits say that
    they may be `borderless`. `documents` says where the
    documents of a column are, `"rows"` or `"eos"`. `planes`: `"auto"` for those that lie beside
    tokens, None (or `"none"`) to leave them behind. `excludes=False` reads all samples,
    also if the recorded exclude list is missing.
    `decode` is `"uint8"` for images as arrays, or `"uint8-0.2"` for the pixels of version 0.2.
    """

    split: str | None = None
    flavor: str = "modalities"
    raw: bool = False
    trust: bool = False
    layout: str | None = None
    vocab_size: int | None = None
    eos_id: int | None = None
    columns: tuple[str, ...] | None = None
    read: ReadMode = "auto"
    image: str | None = None
    validate_hash: str | None = None
    follow_links: bool = False
    trust_parts: bool = False
    refuse_late: bool = False
    excludes: Any = None
    mask_tokens: int | None = None
    tokens_column: str | None = None
    tokens_dtype: str | None = None
    mask_column: str | None = None
    one_document: bool = False
    documents: str | None = None
    planes: str | None = "auto"
    decode: str | None = None

    def __post_init__(self) -> None:
        """Accept `"none"` for planes, as the command line and recipes write it."""
        if self.planes == "none":
            object.__setattr__(self, "planes", None)
