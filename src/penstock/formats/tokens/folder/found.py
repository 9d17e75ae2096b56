"""Token files without an index of Penstock: of a directory, a pattern or a list, in natural order of their paths.

| name | is |
|---|---|
| `*.pbin`, `*.packed.bin` | a packed file of Modalities |
| `*.bin` and `*.idx` | a pair of Megatron-LM |
| `*.zarr` | a flat-tokens group |
| `*.ds` | a file of datatrove, with its `.ds.index` |
| `*.npy`, `*.bin` | raw tokens, with the header of NumPy or llm.c, or of the `layout=` that was named |

In natural order, numbers in names count as numbers: `part-2` comes before `part-10`.

Folders are searched at any depth; hidden names are left out, and so is an `.idx` that is one of a JSONL. All files are
of one format. Files with names as `pack` gives them are only used if the `index.json` next to them lists them.

Counts are cached per host in the cache folder until a file changes. Nothing is written next to the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeGuard, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._digest import digest
from penstock._threads import Pool
from penstock._tokens import DROP
from penstock.abc import TokenSource
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge, Unsupported
from penstock.formats import get_format, sniff
from penstock.formats._folders import other_data
from penstock.formats._planed import mask_path
from penstock.formats._planes import recorded_planes
from penstock.formats.tokens.csv_borders import table_path
from penstock.formats.tokens.folder.files import (
    FileList,
    data_names,
    find_unfinished,
    manifest_of,
    read_index,
    unfinished,
)
from penstock.formats.tokens.folder.index import INDEX_NAME, TOKEN_FILE_NAME
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.find import find_files, peek_names, survey, warn_of_links
from penstock.store.fingerprint import FileState, files_key, states_at_opening
from penstock.store.patterns import is_pattern
from penstock.store.place import Place
from penstock.store.put import beginning_of
from penstock.types import IntArray, OpenOptions, Sniff

GROUPS = (".zarr",)
_PBIN = (".pbin", ".packed.bin")
_RAW = (".bin", ".npy")
_DATA = (*_PBIN, *_RAW, ".ds", *GROUPS)
SUFFIXES = (*_DATA, ".idx")
_FORMATS = ("pbin", "megatron", "flat-tokens", "raw-tokens", "datatrove")
_JSONL_INDEX = b"\x80\x04"
_VERSION = "token-files-found-1"
_MOST_LOOKED_AT = 1000
_FEW = 64  # files of this machine that are scanned in less time than a file in the cache folder takes
_AT_ONCE = 16
_SAMPLED = 16
_REOPEN = "Don't change data while it is being read; open it again"
_UNKNOWN = -2
_DIGITS = re.compile(rb"\d+")
_MOST_DIGITS = 20
_RAW_TOKENS = partial(get_format, "raw-tokens")
_BESIDE: dict[str, Callable[[str], str | None]] = {"raw-tokens": table_path, "datatrove": "{}.index".format}
"""Format of files without a Penstock header → the file that records where documents begin."""


def sniff_found(store: Store, path: str) -> Sniff:
    """Accept a folder with only token files among its first 1,000 names, or a pattern of token files."""
    if not store.is_folder(path):
        if not is_pattern(path) or store.exists(path):
            return Sniff(False, "neither a folder nor a pattern")
        try:
            found = list(find_files(path, [SUFFIXES], "token", follow_links=True, folders=GROUPS))
        except (NotFound, ConfigError, Unsupported):
            return Sniff(False, "no token files found in it")
        has_data = any(_is_data(one) or store.exists(one.removesuffix(".idx") + ".bin") for one in found)
        fits = has_data and all(one.endswith(SUFFIXES) for one in found)
        return Sniff(fits, f"{len(found)} token files" if fits else "not all of the files are token files")
    names = list(peek_names(store, path, _MOST_LOOKED_AT, GROUPS))
    first = next((name for name in names if _is_data(name) and _is_whole(store, f"{path.rstrip('/')}/{name}")), None)
    if first is None:
        return Sniff(False, "no token files in it")
    other = other_data(names, _DATA)
    if other is not None:
        pattern = f"{path.rstrip('/')}/**/*{os.path.splitext(first)[1]}"
        return Sniff(False, f"token files and other data ({other}). Use a pattern: {pattern}")
    if first.endswith(".npy") and (media := _media_of_arrays(names)) is not None:
        return Sniff(False, f"arrays next to media files of the same name ({media})")
    return Sniff(True, f"token files, such as {first}")


def _media_of_arrays(names: Sequence[str]) -> str | None:
    """Return a media file with the name of an array except for the suffix: both are parts of one sample."""
    from penstock.codec.parts import AV_SUFFIXES, IMAGE_SUFFIXES

    stems = {name.removesuffix(".npy") for name in names if name.endswith(".npy")}
    split = ((name, *os.path.splitext(name)) for name in names)
    media = (name for name, stem, end in split if stem in stems and end[1:].lower() in IMAGE_SUFFIXES | AV_SUFFIXES)
    return next(media, None)


def find_token_files(store: Store, given: str | Sequence[str], options: OpenOptions) -> FoundFiles:
    """Return the token files of a folder, a pattern or a list; they are listed, and none is opened.

    Raises:
        NotFound: there is nothing, or no token file.
        PrepareError: a run that makes some of them is unfinished.
        ConfigError: the files have several formats, one is named twice, or they belong to datasets that have to be
            named.
        UnsafeData: a link leads out of a searched folder.
    """
    paths = [given] if isinstance(given, str) else given
    found = [one for path in paths for one in _files_of(store, path, options, named=not isinstance(given, str))]
    format = _one_format(found, paths[0])
    warn_of_links(paths)
    files = sorted((path for path, _ in found), key=_order)
    for first, second in pairwise(files):
        if first == second:
            raise ConfigError("a file is listed twice", path=first, hint="List each file once, or pass its folder")
    if options.planes is not None:
        _require_no_planes(store, format, files)
    source = FoundFiles(store, format, tuple(files), options)
    source.require_vocabulary()
    return source


def _require_no_planes(store: Store, format: str, files: Sequence[str]) -> None:
    """Raise `ConfigError` if one of these files has planes, which a source of many files doesn't support."""
    end = ".idx.planes" if format == "megatron" else ".planes"
    if not store.is_local:
        return
    masks = (mask_path(format, path) for path in files)
    if (mask := next((one for one in masks if one is not None and store.exists(one)), None)) is not None:
        raise _planes_left_behind(mask)
    bases = {path.removesuffix(".idx").removesuffix(".bin") if format == "megatron" else path for path in files}
    for folder in sorted({os.path.dirname(path) for path in files}):
        with os.scandir(folder or ".") as entries:
            named = [os.path.join(folder, one.name) for one in entries if one.name.endswith(end)]
        found = next((one for one in sorted(named) if one.removesuffix(end) in bases), None)
        if found is not None:
            raise _planes_left_behind(found)


def _planes_left_behind(plane: str) -> ConfigError:
    what, hint = (
        "planes aren't supported when several token files are opened as one source",
        f"Open each one separately. {DROP}",
    )
    return ConfigError(what, path=plane, hint=hint)


class FoundFiles(FileList):
    """Files of a source of token files as they were found; see `FileList`.

    Picklable. Memory: 24 bytes per file, and its path.

    Args:
        store: store of the files.
        format: format of all files.
        paths: paths of the files, in order.
        options: options for opening each file.
    """

    _changed = (
        "a token file changed while it was being read",
        "Don't change data while it is being read; open it again",
    )

    def __init__(self, store: Store, format: str, paths: tuple[str, ...], options: OpenOptions) -> None:
        self._args = (store, format, paths, options)
        self._store = store
        self._options = replace(options, vocab_size=None)
        self.paths = paths
        self.format = format
        survey(store, paths)

    def __reduce__(self) -> tuple[object, ...]:
        return (FoundFiles, self._args)

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, number: int, /) -> str:
        return self.paths[number]

    @cached_property
    def tokens(self) -> IntArray:
        return self._counts[: len(self)]

    @cached_property
    def documents(self) -> IntArray:
        """Number of documents of each file, int64[n_files]; decodes the document index of each file, once per host."""
        return self._once_a_host("documents", lambda: self._of_each(lambda source: (len(source),)))

    @property
    def max_token_id(self) -> int | None:
        """Largest id, if the side files of all files record it."""
        highest = self._counts[len(self) :]
        return None if not len(self) or int(highest.min()) == _UNKNOWN else max(0, int(highest.max()))

    @property
    def size_bytes(self) -> int:
        store = self._store
        names = (name for path in self.paths for name in data_names(self.format, path))
        folders = {name: store.is_folder(name) for name in names}
        files = (file for name, is_folder in folders.items() for file in (store.list(name) if is_folder else (name,)))
        return sum(map(store.size, files))

    @property
    def index_files(self) -> list[str]:
        """Files that record where documents begin."""
        if self.format == "flat-tokens":
            return [file for path in self.paths for file in sorted(self._store.list(f"{path}/seq_starts"))]
        if self.format in _BESIDE:
            return [file for path in self.paths for file in (path, _BESIDE[self.format](path)) if self._is_there(file)]
        return [_index_of(path) if self.format == "megatron" else path for path in self.paths]

    def _is_there(self, file: str | None) -> TypeGuard[str]:
        return file is not None and self._store.exists(file)

    def _find_fingerprint(self) -> str:
        """Return a digest of the counts, and of the fingerprints of at most 16 files."""
        return self._once_a_host("fingerprint", self._sample, "uint8").tobytes().hex()

    def require_vocabulary(self) -> None:
        """Raise `TooLarge` if a file has an id beyond `vocab_size=`, according to side files."""
        vocab_size = self._args[3].vocab_size
        beyond = [] if vocab_size is None else np.flatnonzero(self._counts[len(self) :] >= vocab_size).tolist()
        if beyond:
            raise TooLarge(
                "the data contains ids outside the vocabulary",
                path=self.path(beyond[0]),
                found=int(self._counts[len(self) + beyond[0]]),
                expected=f"0 to {(vocab_size or 1) - 1}",
                hint="They come from a different tokenizer",
            )

    # --- inside --------------------------------------------------------------------------------------------------

    @cached_property
    def _counts(self) -> IntArray:
        """Number of tokens of each file, then the largest id of each, -2 if unknown: int64[2 * n_files]."""
        return self._once_a_host("tokens", lambda: self._of_each(_tokens_and_highest))

    def _of_each(self, ask: Callable[[TokenSource], tuple[int, ...]]) -> IntArray:
        def look(path: str) -> tuple[int, ...]:
            source = cast(TokenSource, get_format(self.format).open(self._store, path, self._options))
            recorded = {} if manifest_of(source) is None else recorded_planes(source)
            if recorded and self._options.planes is not None:
                what, hint = (
                    "the planes of a token file are missing",
                    f"Restore them, and open the file separately. {DROP}",
                )
                raise Corrupt(what, path=path, expected=", ".join(recorded), hint=hint)
            return ask(source)

        if self._store.is_local:
            found = list(map(look, self.paths))
        else:
            with Pool(_AT_ONCE, "penstock-count") as pool:
                found = list(pool.map(look, self.paths))
        return np.array(found, np.int64).reshape(len(found), -1).T.reshape(-1)

    def _sample(self) -> NDArray[Any]:
        hasher = xxhash.xxh3_128(f"{_VERSION}\n{self.format}\n".encode())
        for counts in (self.tokens, self.documents):
            hasher.update(byte_view(np.ascontiguousarray(counts, "<i8")))
        chosen = sorted(range(len(self)), key=lambda number: xxhash.xxh3_64_intdigest(b"%d" % number))[:_SAMPLED]
        for number in chosen:
            source = get_format(self.format).open(self._store, self.path(number), self._options)
            hasher.update(f"{number} {source.fingerprint}\n".encode())
        return np.frombuffer(hasher.digest(), np.uint8)

    def _once_a_host(self, what: str, find: Callable[[], NDArray[Any]], dtype: str = "int64") -> NDArray[Any]:
        """Return the result of `find`, cached for the processes of this host until a file changes."""
        if self._store.is_local:
            known = self._states_here if len(self) > _FEW else []
        else:
            known = [*self.paths, *(f"{one.size_bytes} {one.version}" for one in self._states)]
            known = known if all(one.version for one in self._states) else []
        if not known:
            return find()
        bare = [] if self._options.planes is not None else ["planes=None"]
        key = digest(self.format, *map(str, self._how), *known, *bare)
        folder = self._store.folder if self._store.keeps_copies else None
        return DerivedCache(folder).array(f"{_VERSION}b-{what}-{key}", dtype, find)

    @property
    def _how(self) -> tuple[object, ...]:
        """Options that determine the content of the files."""
        options = self._options
        return (options.layout, options.eos_id, options.one_document) if self.format in _BESIDE else (options.layout,)

    @cached_property
    def _states_here(self) -> list[str]:
        with Pool(_AT_ONCE, "penstock-states") as pool:  # on a network file system each takes a while
            return list(pool.map(lambda place: files_key("", self._store, [place.path]), self._telling))

    @cached_property
    def _states(self) -> list[FileState]:
        return states_at_opening(self._telling)

    @property
    def _telling(self) -> Iterator[Place]:
        """Files that determine the number of tokens."""
        if self.format == "flat-tokens":
            return (place for path in self.paths for place in self._metadata_of(path))
        return (Place(self._store, path) for path in self.index_files)

    def _metadata_of(self, path: str) -> Iterator[Place]:
        """Return the metadata of a group's arrays, or all of it if it is one file."""
        group = Place(self._store, path)
        arrays = (group.child(array) for array in ("encoded_tokens", "seq_starts"))
        metadata = (array.child(name) for array in arrays for name in (".zarray", "zarr.json"))
        return (place for place in (metadata if group.is_folder() else (group,)) if place.exists())


def _tokens_and_highest(source: TokenSource) -> tuple[int, ...]:
    manifest = manifest_of(source)
    highest = None if manifest is None else manifest.max_token_id
    if not source.num_tokens:
        return 0, -1
    return source.num_tokens, _UNKNOWN if highest is None else highest


# --- which files -------------------------------------------------------------------------------------------------


def _files_of(store: Store, given: str, options: OpenOptions, *, named: bool) -> Iterator[tuple[str, str]]:
    """Return `(path, format)` of the token files of a path; for a folder of Penstock those in its index."""
    root = given.rstrip("/") or given
    if store.is_folder(root) and not root.endswith(GROUPS):
        what = find_unfinished(store, root)
        if what is not None:
            raise unfinished(root, what)
        if named and store.exists(f"{root}/{INDEX_NAME}"):
            index = read_index(store, root)
            yield from ((f"{root}/{one.path}", index.format) for one in index.files)
            return
    elif not is_pattern(root) and not store.exists(root) and store.exists(f"{root}.idx"):
        root = f"{root}.bin"  # a pair of Megatron-LM, by its prefix
    found = dict.fromkeys(find_files(root, [SUFFIXES], "token", follow_links=options.follow_links, folders=GROUPS))
    _require_listed(store, root, found)
    for mask in [mask_path("raw-tokens", path) for path in found]:
        found.pop(mask or "", None)
    for path in found:
        if not path.endswith(".idx"):
            yield path, _format_of(store, path, found, options.layout)
        elif (pair := path.removesuffix(".idx") + ".bin") not in found and not _is_of_jsonl(store, path):
            if not store.exists(pair):
                raise NotFound("an index without its tokens", path=path, expected=pair, hint="Copy the pair again")
            yield pair, "megatron"


def _require_listed(store: Store, given: str, paths: Iterable[str]) -> None:
    """Reject files with names as `pack` gives them that aren't in the index next to them, or that a search found."""
    listed: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if not TOKEN_FILE_NAME.fullmatch(name):
            continue
        if folder not in listed:
            if not store.exists(f"{folder}/{INDEX_NAME}"):
                raise unfinished(folder, f"{name} and no {INDEX_NAME}")
            if store.is_folder(given):
                what = "the folder contains other datasets"
                raise ConfigError(what, path=given, found=folder, hint="Pass the folders as a list: [A, B]")
            index = read_index(store, folder)
            suffix = ".idx" if index.format == "megatron" else None
            names = {one.path for one in index.files}
            listed[folder] = names | ({os.path.splitext(one)[0] + suffix for one in names} if suffix else set())
        if name not in listed[folder]:
            hint = f"It comes from an unfinished run; `penstock status {folder} --sweep` removes it"
            raise ConfigError(f"{INDEX_NAME} does not list this token file", path=path, hint=hint)


def _one_format(found: Iterable[tuple[str, str]], given: str) -> str:
    """Return the format of all files."""
    formats: dict[str, str] = {}
    for path, format in sorted(found):
        formats.setdefault(format, path)
    if len(formats) > 1:
        named = ", ".join(f"{format} ({path})" for format, path in sorted(formats.items()))
        hint = "Use a pattern for one format"
        raise ConfigError("token files in several formats", path=given, found=named, hint=hint)
    if not formats:
        raise NotFound("no token files in this folder", path=given, expected=", ".join(_DATA))
    return next(iter(formats))


def _format_of(store: Store, path: str, found: Container[str], layout: str | None) -> str:
    if path.endswith(GROUPS):
        return "flat-tokens"
    if path.endswith(_PBIN):
        return "pbin"
    if path.endswith(".bin") and (_index_of(path) in found or store.exists(_index_of(path))):
        return "megatron"
    name = "datatrove" if path.endswith(".ds") else sniff(store, path, layout=layout).name
    if name not in _FORMATS:
        hint = "Open it separately and join them with ps.Concat"
        raise ConfigError("this format can't be one of several token files", path=path, found=name, hint=hint)
    return name


def _is_data(path: str) -> bool:
    return path.endswith(_DATA)


def _is_whole(store: Store, path: str) -> bool:
    """Return whether a file contains tokens, by its name, by the index next to it, or by its header."""
    if path.endswith(_PBIN) or not path.endswith(_RAW):
        return True
    return (path.endswith(".bin") and store.exists(_index_of(path))) or _RAW_TOKENS().sniff(store, path).matches


def _index_of(path: str) -> str:
    return path.removesuffix(".bin") + ".idx"


def _is_of_jsonl(store: Store, path: str) -> bool:
    return beginning_of(store, path, len(_JSONL_INDEX)) == _JSONL_INDEX


def _order(path: str) -> tuple[bytes, bytes]:
    """Return the sort key of natural order: byte order, but numbers in names count by their values."""
    return _DIGITS.sub(lambda digits: digits[0].zfill(_MOST_DIGITS), os.fsencode(path)), os.fsencode(path)
