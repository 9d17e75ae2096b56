"""The registry: format name → module, sniffing, and the two verbs `open` and `create`.

Built-in formats stand in a table; others come through the entry-point group `penstock.formats`, as
`name = "package.module:FORMAT"`. A format's module is imported when it is first needed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, Protocol, cast, runtime_checkable

from penstock._naming import nearest as _nearest
from penstock.abc import Format, Source, Store, Writer
from penstock.errors import ConfigError, NotFound, Unsupported
from penstock.formats._by_name import find_by_name as _find_by_name
from penstock.formats._door import open_at as _open_at
from penstock.formats._door import without_excluded as _without_excluded
from penstock.formats._last_files import require_no_writer as _require_no_writer
from penstock.formats._read_only import instead_of as _instead_of
from penstock.formats._unrecognised import unrecognised as _unrecognised
from penstock.store.exclude_list import ExcludeList
from penstock.store.local import LocalStore
from penstock.store.place import place_of as _place_of
from penstock.store.resolve import resolve, resolve_dataset
from penstock.types import OpenOptions, ReadMode, Sample

BUILT_IN: dict[str, str] = {
    "jsonl": "penstock.formats.jsonl:FORMAT",
    "pbin": "penstock.formats.tokens.pbin:FORMAT",
    "token-files": "penstock.formats.tokens.folder:FORMAT",
    "flat-tokens": "penstock.formats.tokens.flat_tokens:FORMAT",
    "megatron": "penstock.formats.tokens.megatron:FORMAT",
    "raw-tokens": "penstock.formats.tokens.raw_tokens:FORMAT",
    "datatrove": "penstock.formats.tokens.datatrove:FORMAT",
    "mds": "penstock.formats.shards.mds:FORMAT",
    "csv": "penstock.formats.shards.xsv:CSV",
    "tsv": "penstock.formats.shards.xsv:TSV",
    "xsv": "penstock.formats.shards.xsv:XSV",
    "json-shards": "penstock.formats.shards.json_shards:FORMAT",
    "webdataset": "penstock.formats.samples.webdataset:FORMAT",
    "folder": "penstock.formats.samples.folder:FORMAT",
    "parquet": "penstock.formats.tables.parquet:FORMAT",
    "hf": "penstock.formats.tables.hf:FORMAT",
    "jsonl-files": "penstock.formats.jsonl.several:FORMAT",
}
SUFFIXES: dict[str, tuple[str, ...]] = {
    "jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst"),
    "pbin": (".pbin", ".packed.bin"),
    "token-files": (),
    "flat-tokens": (".zarr",),
    "megatron": (".idx", ".bin"),
    "raw-tokens": (".bin", ".npy"),
    "datatrove": (".ds",),
    "mds": (".mds",),
    "csv": (),
    "tsv": (),
    "xsv": (),
    "json-shards": (),
    "webdataset": (),
    "folder": (),
    "parquet": (".parquet", ".pq"),
    "hf": (),
    "jsonl-files": (),
}
"""The `traits.suffixes` of each built-in format, here so that a path's name can be looked at without importing it."""

_SHARD_FORMATS = ("mds", "csv", "tsv", "xsv", "json-shards")
_MARKS = {
    "index.json": ("token-files", *_SHARD_FORMATS),
    ".nv-meta/.info.json": ("webdataset",),
    "state.json": ("hf",),
    "dataset_dict.json": ("hf",),
    ".work": ("token-files",),
}
"""A file in a folder → the formats that have it there: they are asked before others are imported."""

ENTRY_POINT_GROUP = "penstock.formats"

_find_by_name({name: target.partition(":")[0] for name, target in BUILT_IN.items()})


def format_names() -> list[str]:
    """All known format names, built-in ones first."""
    return list(_targets())


def get_format(name: str) -> Format:
    """The format called `name`; raises `ConfigError` that lists the known ones."""
    target = BUILT_IN.get(name) or _targets().get(name)
    if target is None:
        close = _nearest(name, _targets())
        raise ConfigError(
            f"unknown format {name!r}",
            hint=(f"Did you mean {close!r}? " if close else "") + "Known: " + ", ".join(_targets()),
        )
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute or "FORMAT")


def formats_of_name(path: str) -> list[str]:
    """Names of the formats whose suffix `path` has, built-in ones first."""
    plug_ins = (name for name in format_names() if name not in BUILT_IN)
    fitting = [name for name in plug_ins if path.rstrip("/").endswith(get_format(name).traits.suffixes)]
    return _built_in_of_name(path) + fitting


def sniff(store: Store, path: str) -> Format:
    """The format of what stands at `path`.

    Formats whose suffix fits are asked first; the others are not even imported where one of these says yes.

    Raises:
        NotFound: nothing is there.
        Unsupported: no format recognises it; the message says what it looks like, and a note of the error why each
            format did not.
    """
    # A Megatron path is a prefix, so what is missing may still be a dataset: only the formats can tell.
    reasons: list[str] = []
    # What a link leads to may tell the format: it is refused, by name, when it is read.
    store = store.within(None) if isinstance(store, LocalStore) else store
    for name in _by_likelihood(store, path):
        one = get_format(name)
        sniffed = one.sniff(store, path)
        if sniffed.matches:
            return one
        reasons.append(f"{one.name}: {sniffed.why}")
    if not store.exists(path):
        raise NotFound("no such file or folder", path=path, hint="Check the path")
    _require_no_writer(store, path)
    raise _unrecognised(store, path, reasons, _built_in_of_name(path))


def open_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None, split: str | None = None, flavor: str = "modalities", raw: bool = False,
    trust: bool = False, layout: str | None = None, vocab_size: int | None = None, eos_id: int | None = None,
    columns: list[str] | tuple[str, ...] | None = None, read: ReadMode = "auto", validate_hash: str | None = None,
    follow_links: bool = False, excludes: str | os.PathLike[str] | ExcludeList | None = None,
    mask_tokens: int | None = None,
) -> Source[Sample]:  # fmt: skip
    """Open a dataset in any known format.

    Opening reads no data before the first sample, fingerprint or document is read. A folder or a pattern of JSONL files
    is one dataset, also where they are compressed: its lines are those of all files, in byte order of their paths.

    Samples of its exclude list (`penstock exclude`) raise `Excluded`; numbers and positions of all others stay.

    Args:
        path: file, folder or URL; or a list of JSONL files, folders and patterns, all of one store.
        format: format name; found by sniffing where it is None.
        split: split to open, for formats that have splits.
        flavor: whose rules hold for a JSONL: `"modalities"` or `"energon"`.
        raw: samples as stored bytes, for formats that decode.
        trust: let code that comes with the data run.
        layout: name of a historical layout, where sniffing it is ambiguous.
        vocab_size: refuse ids from this number on, where the largest id is known.
        eos_id: id that ends each document, where the data do not say.
        columns: decode only these fields.
        read: `"mmap"`, `"pread"`, or `"auto"`: mmap on local disks, pread on network file systems.
        validate_hash: check each shard whole before it is read, by this algorithm's digest in its index. Without it,
            whole copies of remote shards are checked by all digests there are, ranges of them by none.
        follow_links: read files through links out of the dataset's folder, which are `UnsafeData` without it.
        excludes: the exclude list, path or URL; by default the one beside the data, where these are on this machine.
        mask_tokens: the id in the place of excluded documents' tokens; by default that which ends documents, else 0.

    Raises:
        NotFound: nothing is at `path`, or `excludes`.
        FormatError: the data are not what their format says; or an exclude list that can't be read, or is of others.
        ConfigError: options that the data can't follow, such as a `validate_hash` that their index does not state.
    """
    options = OpenOptions(
        split=split,
        flavor=flavor,
        raw=raw,
        trust=trust,
        layout=layout,
        vocab_size=vocab_size,
        eos_id=eos_id,
        columns=None if columns is None else tuple(columns),
        read=read,
        validate_hash=validate_hash,
        follow_links=follow_links,
        excludes=excludes,
        mask_tokens=mask_tokens,
    )
    if not isinstance(path, str | os.PathLike):
        return _open_list([os.fspath(one) for one in path], format, options)
    return _open_one(path, format, options)


open = open_source  # as the façade calls it


def _open_one(path: str | os.PathLike[str], format: str | None, options: OpenOptions) -> Source[Sample]:
    store, root = resolve_dataset(path, follow_links=options.follow_links)
    chosen = get_format(format) if format else sniff(store, root)
    if options.validate_hash is not None and not chosen.traits.hashes:
        what = f"validate_hash needs digests in an index, and the format {chosen.name!r} has none"
        raise ConfigError(what, path=root, hint="`penstock verify --depth full` checks what its side file states")
    return _open_at(chosen, store, root, options)


def _open_list(paths: list[str], format: str | None, options: OpenOptions) -> Source[Sample]:
    """One source of several files, folders and patterns."""
    several = get_format("jsonl-files")
    if not paths:
        raise ConfigError("no path to open", hint="Name files, folders or patterns")
    if format not in (None, "jsonl", several.name) or options.validate_hash is not None or options.split is not None:
        what = "a list of paths is JSONL, which has neither splits nor digests of files"
        raise ConfigError(what, hint="Open each by itself, and join them: ps.Concat")
    source = cast(_OpensLists, several).open_list(paths, options)
    return _without_excluded(several, _place_of(paths[0]).store, paths[0], options, source)


def create(path: str | os.PathLike[str], *, format: str, overwrite: bool = False, **options: Any) -> Writer:
    """A writer for a new dataset; use it in a `with` block.

    Args:
        path: where the dataset will be; nothing is visible there before the block ends without an exception.
        format: format name.
        overwrite: replace what is there.
        options: options of the format, such as `token_bytes=` and `eos_id=` of `pbin`.

    Raises:
        ConfigError: the output exists, or an option is unknown.
        Unsupported: the format is read-only.
    """
    chosen = get_format(format)
    if not chosen.traits.write:
        raise Unsupported(f"the format {format!r} is read-only", path=path, hint=_instead_of(chosen))
    store, root = resolve(path)
    return chosen.create(store, root, options, overwrite=overwrite)


def files_at(name: str, path: str) -> tuple[str, ...]:
    """The files, or the folder, that a dataset of the format `name` at `path` is, side files left out."""
    chosen = get_format(name)
    return chosen.files_at(path) if isinstance(chosen, _HasFiles) else (path,)


class _OpensLists(Protocol):
    """A format whose datasets may be named by several paths."""

    def open_list(self, paths: Sequence[str], options: OpenOptions, /) -> Source[Sample]: ...


@runtime_checkable
class _HasFiles(Protocol):
    """A format whose datasets are several files, or others than their path says."""

    def files_at(self, path: str, /) -> tuple[str, ...]: ...


def _built_in_of_name(path: str) -> list[str]:
    return [name for name, suffixes in SUFFIXES.items() if path.rstrip("/").endswith(suffixes)]


def _by_likelihood(store: Store, path: str) -> Iterator[str]:
    """All names: built-in formats whose suffix fits, those of a file in the folder, plug-ins, the others."""
    asked: set[str] = set()
    for find in (_built_in_of_name, partial(_marked, store), formats_of_name, _any_name):
        for name in find(path):
            if name not in asked:
                asked.add(name)
                yield name


def _marked(store: Store, path: str) -> Iterator[str]:
    for mark, names in _MARKS.items():  # lazily: each question is a request to a remote store
        if store.exists(f"{path}/{mark}"):
            yield from names


def _any_name(path: str) -> list[str]:
    return format_names()


@cache
def _targets() -> dict[str, str]:
    from importlib.metadata import entry_points  # slow, and needed for a plug-in's format alone

    found = dict(BUILT_IN)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, point.value)
    return found
