"""Read a folder of media files by number, in the byte order of names, and by name."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import xxhash

from penstock._arrays import as_index, as_indices, stack
from penstock.codec.parts import DecodeOptions, array_options, decode_part
from penstock.codec.upright import upright_metadata
from penstock.errors import NotFound, PenstockError
from penstock.formats._sources import StoredSource
from penstock.formats.samples.folder.check import require_as_recorded
from penstock.formats.samples.folder.files import (
    INDEX,
    SIDE_SUFFIX,
    is_part,
    list_files,
    name_in,
    part_of,
    path_of,
    read_each,
    sample_of,
)
from penstock.formats.samples.media_index import connect_media, read_metadata
from penstock.store.base import Store
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.object_folder import require_finished
from penstock.types import (
    Batch,
    Extent,
    Field,
    ImageMetadata,
    IntArray,
    MediaMetadata,
    OpenOptions,
    Place,
    Sample,
    Schema,
    SourceInfo,
)

RESTORE_KIND = "Folder"
_MOST_PARTS = 12
_NO_FILE = {errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL}


def open_folder(store: Store, path: str, options: OpenOptions) -> FolderSource:
    """Open a folder; its files are listed at the first access.

    Raises:
        NotFound: the folder doesn't exist.
    """
    root = path.rstrip("/") or path
    if not store.is_folder(root):
        raise NotFound("no such folder", path=path, hint="Check the path")
    require_finished(store, f"{root}/{SIDE_SUFFIX}")
    return FolderSource(store, root, options)


class FolderSource(StoredSource):
    """Files of one folder; see `penstock.abc.Source`. Returned by `penstock.open`.

    A sample is one file: `{"__key__": its path, "<part>": value}`. The part is all after the first dot of its name.
    With `raw=True` the value is the bytes of the file, and the sample also has `__restore_key__`, `__sources__` and
    `__subflavors__`.
    """

    title = "folder"
    stated = ("raw", "trust", "columns", "follow_links", "decode")

    def __init__(self, store: Store, path: str, options: OpenOptions) -> None:
        super().__init__(store, path, options)
        self.path = path
        decode = array_options(options.decode) or DecodeOptions()
        self._decode = None if options.raw else replace(decode, trust=options.trust)
        self._known_names: list[str] | None = None
        self._places: dict[str, int] | None = None
        self._local = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return (open_folder, (self._store, self.path, self._options))

    @property
    def schema(self) -> Schema:
        """Key, open to parts; with `columns`, only these."""
        names = self._options.columns or ("__key__",)
        return Schema(tuple(Field(name, "text" if name == "__key__" else "part") for name in names), open=True)

    def _find_fingerprint(self) -> str:
        names = xxhash.xxh3_128()
        for name in self._names:
            names.update(os.fsencode(name) + b"\n")
        files = [(name, f"{self.path}/{name}") for name in self._names]
        return sample_fingerprint(self._store, "folder", names.digest(), files)

    def _read_files(self) -> tuple[Store, Iterator[str]]:
        return self._store, (f"{self.path}/{name}" for name in self._names)

    @property
    def preferred_mode(self) -> None:
        """Default mode of `Shuffle`: None, as each file is read individually."""

    def proof(self) -> None:
        """Raise `Corrupt` if the files contradict the side file; see `penstock.formats._proof`."""
        require_as_recorded(self._store, self.path, self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int, /) -> Sample:
        return self._sample(as_index(index, len(self._names)))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the files at `indices` (int64[k]) as columns; a file is None in the columns of other parts."""
        return stack(read_each(self._store, self._sample, as_indices(indices, len(self._names)).tolist()))

    def __iter__(self) -> Iterator[Sample]:
        return map(self._sample, range(len(self._names)))

    def place_of(self, index: int, /) -> Place:
        path = f"{self.path}/{self._names[as_index(index, len(self._names))]}"
        return Place(extents=(Extent(path, 0, self._store.size(path)),))

    def parts_of(self, index: int, most: int, /) -> tuple[str, list[tuple[str, Extent]], int, bool]:
        """Return path and file of a sample, its only part; the number of parts; and true, as these are all."""
        name = self.key_of(index)
        path = f"{self.path}/{name}"
        extent = Extent(path, 0, self._store.size(path))
        return name, [(part_of(name), extent)][:most], 1, True

    def key_of(self, index: int, /) -> str:
        return self._names[as_index(index, len(self._names))]

    def index_of(self, key: str, /) -> int:
        if self._places is None:
            self._places = {name: place for place, name in enumerate(self._names)}
        if key not in self._places:
            raise NotFound(f"no file named {key!r}", path=self.path)
        return self._places[key]

    def get(self, name: str, /) -> bytes:
        """Return the bytes of one file, by its path in the folder.

        Raises:
            NotFound: the file doesn't exist.
            UnsafeData: the name leaves the folder.
        """
        try:
            return self._store.get(path_of(self.path, name))
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise NotFound(
                f"no file named {name[:200]!r}", path=self.path, hint="Names are paths in the folder"
            ) from None

    def has_file(self, name: str, /) -> bool:
        """Return true if `get` finds a file of this name, without reading it; an unsafe name raises `UnsafeData`."""
        path = path_of(self.path, name)
        try:
            return not self._store.is_folder(path) and self._store.exists(path)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            return False

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the metadata of a file in the media index, with the size of decoded pixels; raise `NotFound`."""
        connection, name = self._connection(), name_in(self.path, name)
        path = f"{self.path}/{INDEX}"
        found = None if connection is None else read_metadata(connection, name, path=path)
        if found is None:
            hint = f"Create it with `penstock prepare-media {self.path}`"
            raise NotFound(f"no media metadata for {name!r}", path=self.path, hint=hint)
        if self._decode is not None and self._decode.upright and isinstance(found, ImageMetadata):
            return upright_metadata(found, self.get(name))
        return found

    def details(self) -> dict[str, Any]:
        """Details shown by `info`: the number of files per part, and the number of samples `convert` would make."""
        parts = Counter(map(part_of, self._names))
        shown = {name or "no extension": f"{count:,}" for name, count in parts.most_common(_MOST_PARTS)}
        if len(parts) > _MOST_PARTS:
            shown["…"] = f"{len(parts) - _MOST_PARTS:,} more"
        samples = len({sample_of(name) for name in self._names if is_part(name)})
        rule = "convert groups files by name up to the first dot into samples"
        return {"parts": shown, "samples_by_name": f"{samples:,}: {rule}"}

    def shown(self) -> dict[str, Any]:
        return {"path": self.path, "files": None if self._known_names is None else len(self._known_names)}

    @property
    def _names(self) -> list[str]:
        # Two threads may both get here. They list the same files, and one copy is freed.
        if self._known_names is None:
            self._known_names = list_files(self._store, self.path)
        return self._known_names

    def _sample(self, place: int) -> Sample:
        name = self._names[place]
        path = f"{self.path}/{name}"
        data = self._store.get(path)
        part = part_of(name)
        sample: Sample = {"__key__": name}
        if self._decode is None:
            sample |= {
                "__restore_key__": (RESTORE_KIND, place),
                "__sources__": (SourceInfo(self.path, place, name, (name,)),),
                part: data,
                "__subflavors__": {},
            }
        else:
            try:
                sample[part] = decode_part(part, data, self._decode)
            except PenstockError as error:
                error.path = error.path or path
                raise
        columns = self._options.columns
        return sample if columns is None else {one: sample[one] for one in columns if one in sample}

    def _connection(self) -> sqlite3.Connection | None:
        local = self._local
        if getattr(local, "pid", None) != os.getpid():
            path = f"{self.path}/{INDEX}"
            if not self._store.exists(path):
                return None
            local.connection = connect_media(self._store, path)
            local.pid = os.getpid()
        return local.connection
