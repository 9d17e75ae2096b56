"""Write a folder of files; nothing is visible before all of them are durable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import penstock
from penstock._digest import digest
from penstock.codec.hashes import BlockHasher
from penstock.codec.parts import NO_PART, encode_part
from penstock.errors import ConfigError
from penstock.formats._manifest import Provenance
from penstock.formats._writers import BaseWriter, require_fields, require_open, rows_of
from penstock.formats.samples.folder.files import INDEX, SIDE_SUFFIX, part_of, require_name
from penstock.store.base import StagedFolder, Store
from penstock.store.outputs import open_folder, output_path
from penstock.store.put import aborting
from penstock.store.side_file import encode_manifest, load_manifest
from penstock.types import Batch, Manifest, Sample

_META = frozenset(("__key__", "__restore_key__", "__sources__", "__subflavors__", "__shard__"))


def create_folder(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> FolderWriter:
    """Return a writer for a folder of files.

    Raises:
        ConfigError: an option was passed (there are none), or the folder exists.
        Unsupported: the store is read-only.
    """
    if options:
        raise ConfigError(f"unknown option {', '.join(sorted(options))}", path=path, expected="no options")
    path = output_path(store, path.rstrip("/") or path)
    folder = open_folder(store, path, partial(own_files, store), overwrite=overwrite, held=(SIDE_SUFFIX,))
    return FolderWriter(path, folder)


def own_files(store: Store, folder: str) -> list[str] | None:
    """Return the files in the side file of a folder, and the metadata files; None without a side file."""
    manifest = load_manifest(store, f"{folder}/{SIDE_SUFFIX}")
    if manifest is None or manifest.format != "folder":
        return None
    return [*manifest.block_digests, INDEX, f"{INDEX}{SIDE_SUFFIX}", SIDE_SUFFIX]


def folder_manifest(digests: Mapping[str, tuple[str, ...]], size_bytes: int, given: Provenance) -> Manifest:
    return Manifest(
        format="folder",
        num_samples=len(digests),
        size_bytes=size_bytes,
        block_digests=dict(digests),
        binding=digest(sorted(digests, key=os.fsencode)),
        inputs=dict(given.inputs),
        options=dict(given.options),
        tool=f"penstock {penstock.__version__}",
    )


class FolderWriter(BaseWriter):
    """Writes each part of a sample as a file; see `penstock.abc.Writer`. Returned by `penstock.create`.

    A file's name is `<key>.<part>`, or `<key>` if the sample has one part and its key already ends in `.<part>`.
    """

    def __init__(self, path: str, folder: StagedFolder) -> None:
        super().__init__(path)
        self._folder = folder
        self._digests: dict[str, tuple[str, ...]] = {}
        self._size_bytes = 0
        self._given = Provenance()

    def write(self, sample: Sample, /) -> None:
        """Add the files of one sample.

        Raises:
            ConfigError: a file name is invalid or repeated, or a part can't hold its value.
        """
        require_open(self._open, self._path)
        require_fields(sample, self._path)
        key = sample.get("__key__")
        parts = {name: value for name, value in sample.items() if name not in _META and value is not None}
        if not isinstance(key, str) or not parts:
            found = ", ".join(sample) or "nothing"
            raise ConfigError(
                "a sample needs __key__ and at least one part", path=self._path, found=found, hint=NO_PART
            )
        for part, value in parts.items():
            name = key if len(parts) == 1 and part_of(key) == part else f"{key}.{part}"
            self._add(require_name(name, self._path), encode_part(part, value))

    def write_batch(self, batch: Batch, /) -> None:
        """Add k samples passed as columns; None if a sample lacks a part."""
        for sample in rows_of(batch, self._path):
            self.write(sample)

    def note(self, given: Provenance) -> None:
        self._given = given

    def _commit(self) -> Manifest:
        manifest = folder_manifest(self._digests, self._size_bytes, self._given)
        with aborting(self._folder.stage(SIDE_SUFFIX)) as side:
            side.write(encode_manifest(manifest))
            side.commit()
        self._folder.commit()
        return manifest

    def _close(self) -> None:
        self._folder.abort()

    def _add(self, name: str, data: bytes) -> None:
        if name in self._digests:
            raise ConfigError("two samples would write the same file", path=self._path, found=name)
        try:
            staged = self._folder.stage(name)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise ConfigError("a name is both a file and a folder", path=self._path, found=str(error)) from None
        try:
            staged.write(data)
            staged.commit()
        except BaseException:
            staged.abort()
            self.abort()
            raise
        hasher = BlockHasher()
        hasher.update(data)
        self._digests[name] = hasher.finish()
        self._size_bytes += len(data)
