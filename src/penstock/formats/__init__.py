"""Format registry: modules by format name, format detection, and the functions `open` and `create`.

Built-in formats are listed in a table. Others come through the entry-point group `penstock.formats`, as `name =
"package.module:FORMAT"`. A format's module is imported on first use.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from typing import Any, Protocol, Unpack, cast, runtime_checkable

from penstock._keywords import Decoding, Writing, with_options
from penstock._naming import nearest as _nearest
from penstock._optional import plug_ins as _find_plug_ins
from penstock.abc import Format, Source, Writer
from penstock.errors import ConfigError, NotFound, PenstockError, Unsupported
from penstock.formats._folders import require_no_writer as _require_no_writer
from penstock.formats._opening import open_at as _open_at
from penstock.formats._opening import require_taken
from penstock.formats._opening import without_excluded as _without_excluded
from penstock.formats._planed_writer import create_planed as _create_planed
from penstock.formats._planed_writer import finish_killed as _finish_killed
from penstock.formats._registry import find_by_name as _find_by_name
from penstock.formats._registry import finish_replacement as _finish_replacement
from penstock.formats._registry import instead_of as _instead_of
from penstock.formats._registry import of_plug_in as _of_plug_in
from penstock.formats._unrecognised import unrecognised as _unrecognised
from penstock.store.base import Store, adapted
from penstock.store.find import find_files
from penstock.store.names import WORK as _WORK
from penstock.store.patterns import alternatives, is_pattern
from penstock.store.place import Place, dataset_at, fixed_place
from penstock.types import OpenOptions, Sample

BUILT_IN: dict[str, str] = {
    "jsonl": "penstock.formats.jsonl:FORMAT",
    "pbin": "penstock.formats.tokens.pbin:FORMAT",
    "token-files": "penstock.formats.tokens.folder:FORMAT",
    "flat-tokens": "penstock.formats.tokens.flat_tokens:FORMAT",
    "megatron": "penstock.formats.tokens.megatron:FORMAT",
    "raw-tokens": "penstock.formats.tokens.raw_tokens:FORMAT",
    "datatrove": "penstock.formats.tokens.datatrove:FORMAT",
    "litdata": "penstock.formats.tokens.litdata:FORMAT",
    "levanter": "penstock.formats.tokens.levanter:FORMAT",
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
    "litdata": (),
    "levanter": (),
    "mds": (".mds",),
    **dict.fromkeys(("csv", "tsv", "xsv", "json-shards", "webdataset", "folder"), ()),
    "parquet": (".parquet", ".pq"),
    "hf": (".arrow", ".feather", ".ipc"),
    "jsonl-files": (),
}
"""`traits.suffixes` of each built-in format, listed here so that a path can be matched without importing the format."""

_LISTS = {
    "parquet": "parquet",
    **dict.fromkeys(("token-files", "pbin", "megatron", "flat-tokens", "raw-tokens", "datatrove"), "token-files"),
}
"""Format → the format that opens a list of its files; formats not listed here use JSONL."""
_KINDS = {"jsonl": "JSONL", "parquet": "Parquet", **dict.fromkeys(("pbin", "flat-tokens", "datatrove"), "token files")}
"""Formats whose names identify the format of a list."""

_SHARD_FORMATS = ("mds", "csv", "tsv", "xsv", "json-shards")
_MARKS = {
    "index.json": ("token-files", *_SHARD_FORMATS, "litdata"),
    "shard_ledger.json": ("levanter",),
    ".nv-meta/.info.json": ("webdataset",),
    "state.json": ("hf",),
    "dataset_dict.json": ("hf",),
    _WORK: ("token-files",),
}
"""File in a folder → the formats that use it; these are tried before others are imported."""

_SINGLE_FILES = ("pbin", "megatron", "raw-tokens", "datatrove")
"""Token formats in which a directory or a pattern means several datasets, read as one."""

_ONE_FILE = ("jsonl", "pbin", "megatron")
"""Formats whose datasets are never folders."""

_INDEX, _MOST_SURVEYED = "index.json", 1000
"""Index file of a folder, with which few other files are looked up, and the largest folder surveyed by one listing."""

_RAW_LAYOUTS = ("uint8", "uint16", "uint32", "uint64")
"""Layouts that describe a file without a header completely."""

ENTRY_POINT_GROUP = "penstock.formats"

_find_by_name({name: target.partition(":")[0] for name, target in BUILT_IN.items()})


def format_names() -> list[str]:
    """Return all known format names, built-in ones first."""
    return [*BUILT_IN, *_plug_ins()]


@cache
def _adapt_stores(kind: type[Format]) -> None:
    """Make a built-in format accept every `penstock.abc.Store`, such as a plug-in's.

    Its methods need our base class.
    """
    for name in ("sniff", "open", "create", "check", "repair"):
        first = 0 if isinstance(kind.__dict__[name], staticmethod) else 1
        call = _with_adapted_store(getattr(kind, name), first)
        setattr(kind, name, staticmethod(call) if first == 0 else call)


def _with_adapted_store(method: Callable[..., Any], first: int) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        if len(args) > first and not isinstance(args[first], Store):
            args = (*args[:first], adapted(args[first]), *args[first + 1 :])
        elif "store" in named:
            named["store"] = adapted(named["store"])
        return method(*args, **named)

    return call


_SHORT = {"wds": "webdataset"}
"""Common short name → name of the format."""


def get_format(name: str, *, to_write: bool = False) -> Format:
    """Return the format called `name`; raise `ConfigError`, which lists known (or writable) formats, if none is."""
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        found: Format = getattr(importlib.import_module(module), attribute)
        _adapt_stores(type(found))
        return found
    if name in _plug_ins():
        return _plug_ins()[name]()
    formats = ((one, usable_format(one, [])) for one in format_names()) if to_write else ()
    names = [one for one, known in formats if known is not None and known.traits.write] or format_names()
    close = _SHORT.get(name) or _nearest(name, names)
    raise ConfigError(
        f"unknown format {name!r}",
        hint=(f"Did you mean {close!r}? " if close else "") + "Known: " + ", ".join(names),
    )


def usable_format(name: str, broken: list[str]) -> Format | None:
    """Return the format called `name`; if it is faulty, return None and append a message to `broken`."""
    try:
        return get_format(name)
    except PenstockError as error:
        if name in BUILT_IN:
            raise
        broken.append(str(error).replace("the", "The", 1))
        return None


def formats_of_name(path: str, broken: list[str] | None = None) -> list[str]:
    """Return the names of the formats whose suffix `path` has, built-in ones first; `broken` as in `usable_format`."""
    return _built_in_of_name(path) + _plug_ins_of_name(path, [] if broken is None else broken)


def sniff(store: Store, path: str, *, to_read: bool = False, layout: str | None = None) -> Format:
    """Return the format of the data at `path`.

    Formats with a matching suffix are tried first. The others aren't even imported if one of these accepts the data.
    With `to_read`, a remote folder without an index is listed once, so that its store needs no requests for the
    existence of its files.

    A file that no format recognizes is raw tokens if its `layout` is a raw layout.

    Raises:
        NotFound: there is nothing at `path`.
        Unsupported: no format recognizes it. The message describes the data; a note lists the reason of each format.
    """
    # A Megatron path is a prefix, so a missing path may still be a dataset: only the formats can tell.
    reasons, broken = list[str](), list[str]()
    # The target of a link may determine the format; reading through the link is refused later, by name.
    store = adapted(store)
    store = store.within(None) if store.is_local else store
    for name in _by_likelihood(store, path, to_read=to_read):
        one = usable_format(name, broken)
        if one is None:
            continue
        sniffed = one.sniff(store, path)
        if sniffed.matches:
            return one
        reasons.append(f"{one.name}: {sniffed.why}")
    if layout in _RAW_LAYOUTS and _is_several(Place(store, path)):
        return get_format("token-files")  # of which each, or an error that names it
    if not store.exists(path):
        if len(several := alternatives(path)) > 1:
            lost = next((one for one in several if not is_pattern(one) and not store.exists(one)), None)
            if lost is None:
                what = "only JSONL, Parquet and token files can be combined into one dataset"
                raise Unsupported(what, path=path, hint="Convert them to one format, then `penstock merge` them")
            path = lost
        if is_pattern(path) and (first := next(find_files(path, [("",)], "data", follow_links=True), None)):
            what, hint = "no format can read the files of this pattern as one dataset", f"Open a single file: {first}"
            if first.endswith(".tar"):
                folder = first.rpartition("/")[0] or "."
                hint = f"Run `penstock prepare {folder}`, then open the folder"
            raise Unsupported(what, path=path, found=first, hint=hint)
        raise NotFound("no such file or folder", path=path, hint="Check the path")
    _require_no_writer(store, path)
    if layout in _RAW_LAYOUTS and not store.is_folder(path):
        return get_format("raw-tokens")
    raise _unrecognised(store, path, reasons, _built_in_of_name(path), broken)


def find_format(place: Place, name: str | None, options: OpenOptions) -> Format:
    """Return the format of a dataset, detected if no name is passed, and check that it supports these options.

    Every command that reads data calls this function, so no option is ignored.

    Raises:
        NotFound: there is nothing at the path.
        Unsupported: no format recognizes the data.
        ConfigError: no format has this name, or data of this format doesn't support an option.
    """
    if name in _SINGLE_FILES and _is_several(place):
        name = "token-files"
    chosen = get_format(name) if name else sniff(place.store, place.path, to_read=True, layout=options.layout)
    require_taken(chosen, place.path, options)
    return chosen


def _is_several(place: Place) -> bool:
    """Return whether a path means several files; the prefix of a Megatron pair doesn't."""
    if place.is_folder():  # web servers can't distinguish a prefix from a folder
        return place.is_local or not place.beside(".idx").exists()
    return is_pattern(place.path) and not place.exists()


@with_options(Decoding)
def open_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, format: str | None = None,
    **options: Unpack[Decoding],
) -> Source[Sample]:  # fmt: skip
    """Open a dataset in any known format.

    Opening reads no samples: data is read when a sample, the fingerprint or the document boundaries are first needed. A
    directory or pattern of JSONL files (also compressed), Parquet files or token files is one dataset, with all files
    in byte order of their paths.

    Reading a sample on the dataset's exclude list raises `Excluded`; the numbers of all other samples don't change.

    Args:
        path: file, directory or URL; or a list of JSONL, Parquet or token files, directories and patterns in one store.
            A relative path is resolved once, against the current working directory.
        format: format name; detected by default.
        split: split to open, for formats with splits.
        flavor: rules for JSONL files: `"modalities"` or `"energon"`.
        raw: return samples as stored bytes, for formats that decode.
        trust: run code that comes with the data.
        layout: name of a historical layout, if it can't be detected.
        vocab_size: raise an error for larger token ids, if the largest id is known.
        eos_id: id that ends each document, if the data doesn't record it.
        columns: decode only these fields.
        read: `"mmap"`, `"pread"`, or `"auto"`: mmap on local disks, pread on network file systems.
        validate_hash: check each shard as a whole before reading it, with this algorithm's digests from the index. By
            default, complete copies of remote shards are checked against all recorded digests, and ranges of shards
            aren't checked.
        follow_links: allow links that lead out of the dataset's directory; they are `UnsafeData` otherwise.
        excludes: path or URL of the exclude list. By default the one next to the data, if the data is on this machine.
            False reads all samples, even if the exclude list recorded in the side file is missing.
        mask_tokens: id that replaces the tokens of excluded documents. By default the EOS id, else 0.
        tokens_column: open rows as token documents: the column with lists of ids, such as `"input_ids"`.
        tokens_dtype: dtype of the ids if that column contains bytes, such as `"int64"`.
        mask_column: column with a mask or labels for these ids, which becomes the plane `loss_mask`.
        one_document: the rows, or raw tokens, have no document boundaries: documents end at each `eos_id`, or
            everything is one document.
        documents: for `tokens_column`: `"rows"` if each row is a document, `"eos"` if rows are windows and documents
            end at each EOS id. By default rows; a row that contains the EOS id without ending with it is then an error.
        planes: None ignores planes such as loss masks, even if one recorded in the side file is missing.
        decode: `"uint8"` decodes images to RGB, uint8[height, width, 3], so that images of equal size form one array
            per batch; 16-bit images are scaled, EXIF orientation is applied, and alpha is dropped. `"uint8-0.2"` gives
            the pixels of version 0.2. By default Pillow images, or whatever `dataset.yaml` specifies.

    Returns:
        A source: `len(source)`, `source[index]` and `source.get_batch(indices)`. A token dataset is a `TokenSource`.

    Raises:
        NotFound: there is nothing at `path` or `excludes`.
        FormatError: the data violates its format, or the exclude list is unreadable or belongs to other data.
        ConfigError: the format doesn't support an option, such as `split` for a format without splits.

    Examples:
        >>> import penstock as ps
        >>> source = ps.open("corpus.pbin")
        >>> len(source), source.num_tokens
        (6, 45)
        >>> source[0]["tokens"]
        array([101, 102, 103, 104,   0], dtype=uint16)
        >>> ps.open("docs.jsonl")[3]["text"]
        'The gate controls the flow.'
        >>> ps.open("pictures", decode="uint8").get_batch([0, 1])["image"].shape
        (2, 6, 8, 3)
    """
    for name in options.keys() - Decoding.__annotations__.keys():
        raise TypeError(f"open_source() got an unexpected keyword argument {name!r}")
    if (columns := options.get("columns")) is not None:
        options["columns"] = tuple(columns)
    if isinstance(excludes := options.get("excludes"), str | os.PathLike):
        options["excludes"] = fixed_place(cast("str | os.PathLike[str]", excludes)).path
    if not isinstance(path, str | os.PathLike):
        return _open_list([os.fspath(one) for one in path], format, OpenOptions(**options))
    return _open_one(path, format, OpenOptions(**options))


open = open_source  # as the façade calls it


def _open_one(path: str | os.PathLike[str], format: str | None, options: OpenOptions) -> Source[Sample]:
    place = dataset_at(path, follow_links=options.follow_links)
    return _open_at(find_format(place, format, options), place.store, place.path, options)


def _open_list(paths: list[str], format: str | None, options: OpenOptions) -> Source[Sample]:
    """Return one source of several files, folders and patterns."""
    if not paths:
        raise ConfigError("no path to open", hint="Pass files, folders or patterns")
    paths = [fixed_place(path).path for path in paths]
    named = (name for path in paths for name in _built_in_of_name(path))
    kinds = sorted({_KINDS[name] for name in named if name in _KINDS})
    if len(kinds) > 1:
        what = f"{' and '.join(kinds)} can't be combined into one dataset"
        raise ConfigError(what, hint="Open each one separately and join them with ps.Concat")
    several = _LISTS.get(format or _format_of_first(paths[0]), "jsonl-files")
    chosen = get_format(several)
    if format not in (None, "jsonl", several) and _LISTS.get(format or "") != several:
        what, hint = (
            "a list of paths must be JSONL, Parquet or token files",
            "Open each one separately and join them with ps.Concat",
        )
        raise ConfigError(what, found=f"format={format!r}", hint=hint)
    require_taken(chosen, paths[0], options)
    source = cast(_OpensLists, chosen).open_list(paths, options)
    return _without_excluded(chosen, dataset_at(paths[0]).store, paths[0], options, source)


def _format_of_first(path: str) -> str:
    """Return the format of the first path of a list; a name that identifies the format is trusted."""
    by_name = _built_in_of_name(path)
    if by_name:
        return by_name[0]
    place = dataset_at(path)
    return sniff(place.store, place.path).name


def create(path: str | os.PathLike[str], *, format: str, overwrite: bool = False, **options: Unpack[Writing]) -> Writer:
    """Return a writer for a new dataset, to be used in a `with` block.

    Args:
        path: path of the dataset. Nothing is visible there until the block ends without an exception.
        format: format name.
        overwrite: replace an existing dataset.
        options: options of the format, such as `token_bytes=` and `eos_id=` for `pbin`. Token formats also take
            `planes=`, name → dtype of a per-token array: `{"loss_mask": "bool"}`.

    Returns:
        A writer with `write(sample)` and `write_batch(batch)`.

    Raises:
        ConfigError: the output exists, an option is unknown, or the path of a file ends with a slash.
        Unsupported: the format is read-only.

    Examples:
        >>> import penstock as ps
        >>> with ps.create("new.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        ...     writer.write({"tokens": [5, 6, 7, 0]})
        ...     writer.write({"tokens": [8, 9, 0]})
        >>> len(ps.open("new.pbin"))
        2
        >>> with ps.create("new-mds", format="mds", columns={"id": "int", "text": "str"}) as writer:
        ...     writer.write({"id": 1, "text": "one"})
        >>> ps.open("new-mds")[0]
        {'id': 1, 'text': 'one'}
    """
    chosen = get_format(format)
    if not chosen.traits.write:
        raise Unsupported(f"the format {format!r} is read-only", path=path, hint=_instead_of(chosen))
    given = os.fspath(path)
    if format in _LISTS and "file_tokens" in options:
        what, hint = "a writer can't create a folder of token files", "Convert a file: `penstock convert --file-tokens`"
        raise ConfigError(what, path=path, found="file_tokens=", hint=hint)
    if format in _ONE_FILE and given.endswith("/") and format not in _built_in_of_name(given):
        hint = f"Give a file name, such as {given}data{SUFFIXES[format][0]}"
        if format in _LISTS:
            hint += "; `penstock convert FILE FOLDER/ --file-tokens N` turns it into a folder of token files"
        what = f"a trailing slash means a folder, but a dataset in the format {format!r} is a file"
        raise ConfigError(what, path=path, hint=hint)
    place = fixed_place(path)
    store, root = place.store, place.path
    planes = options.pop("planes", None)
    if planes:
        finish_planes(chosen.name, store, root)
        return _create_planed(chosen, store, root, options, planes, overwrite=overwrite)
    return chosen.create(store, root, options, overwrite=overwrite)


def create_dry(name: str, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> Writer | None:
    """Return a writer to be aborted, in a store that writes nothing; None if the format can only check its options.

    Raises the same errors as the format's `create`.
    """
    chosen = get_format(name)
    if isinstance(chosen, _Rehearses):
        return chosen.rehearse(store, path, options, overwrite=overwrite)
    return chosen.create(store, path, options, overwrite=overwrite)


def files_at(name: str, path: str) -> tuple[str, ...]:
    """Return the files, or the folder, of the dataset of the format `name` at `path`, without side files."""
    chosen = get_format(name)
    return chosen.files_at(path) if isinstance(chosen, _HasFiles) else (path,)


def finish_planes(name: str, store: Store, path: str) -> None:
    """Complete the commit of a killed writer of tokens with planes; raise `PrepareError` if it is still running."""
    _finish_killed(get_format(name), store, path, files_at(name, path), owned_by(name, store))


def finish_replacement(name: str, store: Store, path: str) -> None:
    """Complete the commit of a writer killed after its data became visible; raise `PrepareError` if it still runs."""
    _finish_replacement(get_format(name), store, path, files_at(name, path), owned_by(name, store))


def owned_by(name: str, store: Store) -> Callable[[str], Collection[str] | None] | None:
    """Return a function that lists the files of a folder that its dataset owns; None if datasets aren't folders."""
    chosen = get_format(name)
    return partial(chosen.own_files, store) if isinstance(chosen, _OwnsFolder) else None


@runtime_checkable
class _Rehearses(Protocol):
    """Format whose writers need files with names."""

    def rehearse(self, store: Store, path: str, options: Mapping[str, Any], /, *, overwrite: bool) -> None: ...


class _OpensLists(Protocol):
    """Format whose datasets may be given as several paths."""

    def open_list(self, paths: Sequence[str], options: OpenOptions, /) -> Source[Sample]: ...


@runtime_checkable
class _HasFiles(Protocol):
    """Format whose datasets are several files, or files other than their path."""

    def files_at(self, path: str, /) -> tuple[str, ...]: ...


@runtime_checkable
class _OwnsFolder(Protocol):
    """Format whose datasets are folders."""

    def own_files(self, store: Store, path: str, /) -> Collection[str] | None:
        """Return the names of the files of the dataset at `path`, relative to it; None if there is none."""
        ...


def _built_in_of_name(path: str) -> list[str]:
    return [name for name, suffixes in SUFFIXES.items() if path.rstrip("/").endswith(suffixes)]


def _by_likelihood(store: Store, path: str, *, to_read: bool) -> Iterator[str]:
    """Yield all names: formats with a matching suffix, formats of a file in the folder, plug-ins, then the others."""
    asked: set[str] = set()
    of_name = partial(_plug_ins_of_name, broken=[])  # broken plug-ins are reported when their turn comes
    for find in (_built_in_of_name, partial(_marked, store, to_read=to_read), of_name, _any_name):
        for name in find(path):
            if name not in asked:
                asked.add(name)
                yield name


def _marked(store: Store, path: str, *, to_read: bool) -> Iterator[str]:
    for mark, names in _MARKS.items():  # lazily: each question is a request to a remote store
        if store.exists(f"{path}/{mark}"):
            yield from names
        if to_read and mark == _INDEX and store.keeps_copies:
            store.survey(path, _MOST_SURVEYED)  # without an index, more files are looked up


def _any_name(path: str) -> list[str]:
    return format_names()


def _plug_ins_of_name(path: str, broken: list[str]) -> list[str]:
    usable = (usable_format(name, broken) for name in _plug_ins())
    return [one.name for one in usable if one is not None and path.rstrip("/").endswith(one.traits.suffixes)]


@cache
def _plug_ins() -> dict[str, Callable[[], Format]]:
    return {name: partial(_of_plug_in, point) for name, point in _find_plug_ins(ENTRY_POINT_GROUP, BUILT_IN).items()}
