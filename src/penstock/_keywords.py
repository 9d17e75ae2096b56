"""Keyword arguments that public functions pass on, listed for editors and type checkers.

Functions declare `**options: Unpack[Opening]`. A test compares these with `penstock.open` and with
the writers of all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from penstock.types import ReadMode


class Opening(TypedDict, total=False):
    """Options of `penstock.open`, except the format and the decoding of images."""

    split: str | None
    flavor: str
    raw: bool
    trust: bool
    layout: str | None
    vocab_size: int | None
    eos_id: int | None
    columns: Sequence[str] | None
    read: ReadMode
    validate_hash: str | None
    follow_links: bool
    excludes: Any
    mask_tokens: int | None
    tokens_column: str | None
    tokens_dtype: str | None
    mask_column: str | None
    one_document: bool
    documents: Literal["rows", "eos"] | None
    planes: str | None


class Running(TypedDict, total=False):
    """Options of a run over a recipe or metadataset."""

    split: str | None
    mode: Literal["train", "val"] | None
    global_batch: int | None
    seed: int | None
    world: int | None
    lanes: int | None
    trust: bool
    follow_links: bool


class Purging(TypedDict, total=False):
    """Options of `penstock.purge`."""

    format: str | None
    split: str | None
    layout: str | None
    eos_id: int | None
    planes: str | None
    trust: bool
    follow_links: bool
    to: str | None
    overwrite: bool
    dry_run: bool
    progress: Callable[..., None] | None
    executor: Any
    workers: int | None


class Reshaping(Opening, total=False):
    """Further options of verbs on whole datasets, such as the sizes of tars."""

    maxcount: int | None
    maxsize: int | None
    pattern: str | None
    prefix_keys: bool
    drop_planes: bool


class _Writers(TypedDict, total=False):
    """Options of the writers of all built-in formats, except columns; each writer supports some of them."""

    token_bytes: int | None
    vocab_size: int | None
    eos_id: int | None
    tokenizer: str | None
    tokenizer_digest: str | None
    inputs: Mapping[str, str]
    options: Mapping[str, Any]
    dtype: str | None
    modes: Any
    split: str | None
    zarr_format: int
    compressor: Any
    chunk_tokens: int
    chunk_starts: int
    shard_tokens: int | None
    size_limit: int | str | None
    compression: str | None
    hashes: Sequence[str] | None
    newline: str
    separator: str
    flavor: str
    maxcount: int | None
    maxsize: int | None
    pattern: str | None
    split_ratio: Any
    shuffle_tars: bool
    dataset: Any
    code: Mapping[str, bytes]


class Writing(_Writers, total=False):
    """Options of `penstock.create`; formats of plug-ins define their own."""

    columns: Any
    planes: Mapping[str, str] | None


class Converting(_Writers, total=False):
    """Further options of `penstock.convert`: of the source as `Opening`, of the target as `Writing`."""

    source_split: str | None
    source_separator: str | None
    source_encoding: str | None
    raw: bool
    trust: bool
    layout: str | None
    read: ReadMode
    validate_hash: str | None
    follow_links: bool
    excludes: Any
    tokens_column: str | None
    tokens_dtype: str | None
    mask_column: str | None
    one_document: bool
    planes: str | None
    documents: Literal["rows", "eos"] | None
    drop_planes: bool
    prefix_keys: bool


class Preparing(TypedDict, total=False):
    """Further options of `penstock.prepare`, as of `penstock.prepare.energon.run.prepare_webdataset`."""

    split_ratio: Mapping[str, float] | Sequence[float] | str | None
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None
    exclude: str | None
    workers: int | None
    tar_index_only: bool
    shuffle_tars: bool
    overwrite: bool
    sqlite: bool
    executor: Any
    follow_links: bool
    part: tuple[int, int] | None
    finish: bool
    no_work: bool
    restart: bool
    progress: Callable[[int, int], None] | None


def were_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults, None or False except for `planes`.

    0 is a value, for example of `eos_id`; so is `excludes=False`.
    """
    return {name: value for name, value in options.items() if _was_given(name, value)}


def _was_given(name: str, value: Any) -> bool:
    if name == "planes":
        return value != "auto"
    return value is not None and (value is not False or name == "excludes")
