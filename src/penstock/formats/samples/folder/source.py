"""Reading a folder of media files: by number, in the byte order of names, and by name."""

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

from penstock._columns import stack
from penstock._index import as_index, as_indices
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
    """Open a folder; its files are listed when the first is read.

    Raises:
        NotFound: no such folder.
    """
    root = path.rstrip("/") or path
    if not store.is_folder(root):
        raise NotFound("no such folder", path=path, hint="Check the path")
    require_finished(store, f"{root}/{SIDE_SUFFIX}")
    return FolderSource(store, root, options)


class FolderSource(StoredSource):
    """The files of one folder; see `penstock.abc.Source`. Made by `penstock.open`.

    A sample is one file: `{"__key__": its path, "<part>": value}`, where the part is what follows the first dot of its
    name. With `raw=True` the value is its bytes, and `__restore_key__`, `__sources__` and `__subflavors__` are there.
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
        """The key, and open for the parts; with `columns`, these."""
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
        """None: each file is read by itself."""

    def proof(self) -> None:
        """Raise `Corrupt` if the files contradict the side file; see `penstock.formats._proof`."""
        require_as_recorded(self._store, self.path, self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int, /) -> Sample:
        return self._sample(as_index(index, len(self._names)))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the files at `indices`: int64[k]; a part that a file is not is None in its row."""
        return stack(read_each(self._store, self._sample, as_indices(indices, len(self._names)).tolist()))

    def __iter__(self) -> Iterator[Sample]:
        return map(self._sample, range(len(self._names)))

    def place_of(self, index: int, /) -> Place:
        path = f"{self.path}/{self._names[as_index(index, len(self._names))]}"
        return Place(extents=(Extent(path, 0, self._store.size(path)),))

    def parts_of(self, index: int, most: int, /) -> tuple[str, list[tuple[str, Extent]], int, bool]:
        """Its path; the file, which is the one part of its sample; how many parts, and that these are all."""
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
        """The bytes of one file, by its path in the folder.

        Raises:
            NotFound: no such file.
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
        """Return whether `get` finds a file of this name, without reading it; raises as `get` for an unsafe name."""
        path = path_of(self.path, name)
        try:
            return not self._store.is_folder(path) and self._store.exists(path)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            return False

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """What the media index knows of one file, with the size of decoded pixels; raises `NotFound`."""
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
        """What `info` shows: how many files each part has, and how many samples `convert` makes of them."""
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
        # Two threads may both come here: they list the same files, and one copy goes.
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
