"""Write a WebDataset: shards streamed one after another, their indexes, and the metadata of Energon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import penstock
from penstock.abc import Staged
from penstock.codec import energon_yaml
from penstock.errors import ConfigError, Corrupt
from penstock.formats._manifest import FileDigests, Provenance
from penstock.formats._writers import BaseWriter, require_fields, require_known, require_open, rows_of
from penstock.formats.samples.webdataset.key_index import KEYS, KeyRuns
from penstock.formats.samples.webdataset.manifest import SIDE_NAME, dataset_binding, own_files, split_fingerprints
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    FOLDER,
    INFO_JSON,
    SPLIT_YAML,
    SQLITE,
    UUID,
    encode_info,
    encode_splits,
)
from penstock.formats.samples.webdataset.shards import PREFIX_KEYS, ShardTable, TableBuilder, encode_index, index_path
from penstock.formats.samples.webdataset.splits import SPLITS, by_ratio
from penstock.formats.samples.webdataset.sqlite_index import IndexDigest, SqliteBuilder, encode_table, table_digest
from penstock.formats.samples.webdataset.tar_write import END, encode_headers, encode_sample, padding
from penstock.store._remote_output import scratch_file
from penstock.store.base import StagedFolder, Store
from penstock.store.local import LocalStaged
from penstock.store.outputs import open_folder, output_path
from penstock.store.side_file import encode_manifest
from penstock.types import Batch, Manifest, Sample

_OPTIONS = ("maxcount", "maxsize", "pattern", "split", "split_ratio", "shuffle_tars", "dataset", "code")
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
"""Default content of `dataset.yaml`."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of the writer.

    Attributes:
        maxcount: maximum number of samples of a shard.
        maxsize: size in bytes from which a shard gets no more samples.
        pattern: pattern of shards' names, with a placeholder for a number, such as `train/%06d.tar`.
        split: the split of all shards; Energon's other default splits exist, but are empty.
        split_ratio: shares of train, val and test, or split → share, instead of `split`.
        shuffle_tars: shuffle the shards before they are split by ratio.
        dataset: content of `dataset.yaml`; crude samples by default.
        code: Python files named by `dataset`: name in `.nv-meta` → content.
    """

    maxcount: int = 10_000
    maxsize: int = 1 << 30
    pattern: str = "shard_%06d.tar"
    split: str = "train"
    split_ratio: Mapping[str, float] | Sequence[float] | str | None = None
    shuffle_tars: bool = False
    dataset: Mapping[str, Any] | None = None
    code: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def create_webdataset(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> WebdatasetWriter:
    """Return a writer for a prepared WebDataset.

    Args:
        store: the target store.
        path: its folder.
        options: see `WriterOptions`.
        overwrite: replace an existing WebDataset.

    Raises:
        ConfigError: an option is unknown or invalid, the output exists, or the path holds other data.
        Unsupported: the store is read-only.
    """
    return WebdatasetWriter(*_opened(store, path, options, overwrite=overwrite))


def rehearse_webdataset(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> None:
    """Raise the errors of `create_webdataset`, in a store that writes nothing; a writer needs files with names."""
    _opened(store, path, options, overwrite=overwrite)[1].abort()


def _opened(
    store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool
) -> tuple[str, StagedFolder, WriterOptions]:
    require_known(options, _OPTIONS, path)
    given = WriterOptions(**{name: value for name, value in options.items() if value is not None})
    path = path.rstrip("/") or path
    _require_possible(given, path)
    path = output_path(store, path)
    folder = open_folder(store, path, partial(own_files, store), overwrite=overwrite, held=(f"{FOLDER}/{INFO_JSON}",))
    return path, folder, given


def _require_possible(given: WriterOptions, path: str) -> None:
    for name in ("maxcount", "maxsize"):
        value = getattr(given, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{name} must be a count", path=path, found=repr(value), expected="an integer of at least 1"
            )
    try:
        names = [given.pattern % number for number in (0, 1, 1_000_000)]
    except (TypeError, ValueError):
        names = []
    pieces = given.pattern.split("/")
    if len(set(names)) < 3 or not given.pattern.endswith(".tar") or any(one in ("", "..") for one in pieces):
        raise ConfigError(
            "invalid pattern for shard names", path=path, found=repr(given.pattern), expected="such as shard_%06d.tar"
        )
    if any("/" in name or not name.endswith(".py") for name in given.code):
        raise ConfigError(
            "code files must be directly in .nv-meta", path=path, found=", ".join(given.code), expected="name.py"
        )
    if any(piece.startswith(".") for piece in pieces):
        raise ConfigError("a shard with a hidden name wouldn't be found", path=path, found=repr(given.pattern))
    if given.split_ratio is not None:
        by_ratio([], given.split_ratio, shuffle=False)


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """Existing shard: its name, its table, digests of its blocks, its binding, and its size."""

    name: str
    table: ShardTable
    digests: tuple[str, ...]
    binding: str
    size_bytes: int


class WebdatasetWriter(BaseWriter):
    """Streams samples into shards; see `penstock.abc.Writer`. Returned by `penstock.create`.

    A sample is `{"__key__": str, "<part>": bytes, str, or a JSON value}`. Keys must be unique in the whole dataset: a
    key repeated in a shard raises an error at once, in different shards at the end. Memory: one shard's names, and 100
    MiB.
    """

    def __init__(self, path: str, folder: StagedFolder, given: WriterOptions) -> None:
        super().__init__(path)
        self._folder = folder
        self._given = given
        self._counts: dict[str, int] = {}
        self._block_digests: dict[str, tuple[str, ...]] = {}
        self._bindings: list[str] = []
        self._size_bytes = 0
        self._digest = IndexDigest()
        self._shard: _Shard | None = None
        self._split = given.split
        self._splits: dict[str, list[str]] = {split: [] for split in SPLITS}
        self._scratch: LocalStaged | None = None
        self._builder: SqliteBuilder | None = None
        self._keys = KeyRuns()
        self._noted = Provenance()
        try:
            self._sqlite = folder.stage(f"{FOLDER}/{SQLITE}")
            if isinstance(self._sqlite, LocalStaged):
                place = self._sqlite.emptied()
            else:
                self._scratch = scratch_file(path)
                place = self._scratch.hidden_path
            self._builder = SqliteBuilder(place)
        except BaseException:
            self.abort()
            raise

    def write(self, sample: Sample, /) -> None:
        """Add one sample.

        Raises:
            ConfigError: its key or a name is invalid, a value has no bytes, or the writer is closed.
        """
        require_open(self._open, self._path)
        require_fields(sample, self._path)
        key, parts = encode_sample(sample, self._path)
        shard = self._shard
        if shard is not None and (shard.count >= self._given.maxcount or shard.size_bytes >= self._given.maxsize):
            self._end_shard()
            shard = None
        try:
            if shard is None:
                name = self._given.pattern % len(self._counts)
                shard = self._shard = _Shard(name, self._folder.stage(name))
            shard.add(key, parts, self._path)
        except ConfigError:
            raise
        except BaseException:
            # The content of the shard no longer matches its table, so writing must not continue.
            self.abort()
            raise

    def begin_split(self, split: str) -> None:
        """Begin a split: all later samples belong to it, in shards of its own."""
        require_open(self._open, self._path)
        if self._shard is not None:
            self._end_shard()
        self._split = split
        self._splits.setdefault(split, [])

    def write_batch(self, batch: Batch, /) -> None:
        """Add k samples passed as columns; a part that is None in a row is skipped."""
        for sample in rows_of(batch, self._path):
            self.write(sample)

    def note(self, given: Provenance) -> None:
        self._noted = given

    def add_shard(self, done: WrittenShard) -> None:
        """Add a shard that already exists in the folder, with its index; shards come in the order of their names."""
        require_open(self._open, self._path)
        if self._builder is not None:
            self._book(self._builder, done)

    def _commit(self) -> Manifest:
        """Write the last shard and the metadata, and publish them; raise `Corrupt` if shards share a key."""
        if self._shard is not None:
            self._end_shard()
        self._end_index()
        manifest = self._write_meta()
        self._folder.commit()
        return manifest

    # --- inside --------------------------------------------------------------------------------------------------

    def _end_shard(self) -> None:
        shard, builder = self._shard, self._builder
        if shard is None or builder is None:
            return
        self._shard = None
        table = shard.finish()
        self._book(builder, WrittenShard(shard.name, table, *shard.digested, shard.size_bytes))
        self._put(index_path(shard.name), encode_index(table.offsets))

    def _book(self, builder: SqliteBuilder, done: WrittenShard) -> None:
        builder.add(len(self._counts), done.table)
        self._keys.add(done.table)
        self._digest.add(done.name, table_digest(encode_table(done.table)))
        self._counts[done.name] = done.table.num_samples
        self._splits.setdefault(self._split, []).append(done.name)
        self._block_digests[done.name] = done.digests
        self._bindings.append(done.binding)
        self._size_bytes += done.size_bytes

    def _end_index(self) -> None:
        if self._builder is None:
            return
        try:
            self._builder.finish(list(self._counts))
        except Corrupt as error:
            raise ConfigError(error.what, path=self._path, found=error.found, hint=PREFIX_KEYS) from None
        if self._scratch is not None:
            self._sqlite.append_file(self._builder.path)
        self._sqlite.commit()

    def _write_meta(self) -> Manifest:
        given, shards = self._given, list(self._counts)
        if given.split_ratio is not None:
            parts = by_ratio(shards, given.split_ratio, shuffle=given.shuffle_tars).parts
        else:
            parts = self._splits
        info, splits = encode_info(self._counts), encode_splits(parts)
        uuid = self._digest.uuid()
        self._put(f"{FOLDER}/{UUID}", uuid.encode())
        staged = self._folder.stage(f"{FOLDER}/{KEYS}")
        self._keys.write(staged.write, uuid)
        staged.commit()
        self._put(f"{FOLDER}/{SPLIT_YAML}", splits)
        for name, content in given.code.items():
            self._put(f"{FOLDER}/{name}", content)
        self._put(f"{FOLDER}/{DATASET_YAML}", energon_yaml.dump(given.dataset or CRUDE).encode())
        self._put(f"{FOLDER}/{INFO_JSON}", info)
        shape = {"maxcount": given.maxcount, "maxsize": given.maxsize, "pattern": given.pattern}
        manifest = Manifest(
            format="webdataset",
            num_samples=sum(self._counts.values()),
            size_bytes=self._size_bytes,
            block_digests=self._block_digests,
            binding=dataset_binding(self._counts, [*self._bindings[:1], *self._bindings[-1:]]),
            inputs=dict(self._noted.inputs),
            options={**self._noted.options, **shape},
            fingerprints=split_fingerprints(self._folder, self._counts, [(part, {}) for part in parts.values()], uuid),
            tool=f"penstock {penstock.__version__}",
        )
        self._put(SIDE_NAME, encode_manifest(manifest))
        return manifest

    def _put(self, name: str, content: bytes) -> None:
        staged = self._folder.stage(name)
        staged.write(content)
        staged.commit()

    def _close(self) -> None:
        self._keys.close()
        if self._builder is not None:
            self._builder.close()
        if self._scratch is not None:
            self._scratch.abort()
        self._folder.abort()


class _Shard:
    def __init__(self, name: str, staged: Staged) -> None:
        self.name = name
        self.digested: tuple[tuple[str, ...], str] = ((), "")
        self.size_bytes = 0
        self.count = 0
        self._staged = staged
        self._digests = FileDigests(staged)
        self._table = TableBuilder()
        self._keys: set[str] = set()

    def add(self, key: str, parts: list[tuple[str, bytes]], path: str) -> None:
        if key in self._keys:
            what = f"the key {key!r} is used twice: keys in a dataset must be unique"
            raise ConfigError(what, path=path, hint=PREFIX_KEYS)
        pieces: list[bytes] = []
        starts: list[int] = []
        contents: list[int] = []
        place = self.size_bytes
        for name, content in parts:
            headers = encode_headers(name, len(content))
            starts.append(place)
            contents.append(place + len(headers))
            pieces += (headers, content, padding(len(content)))
            place = contents[-1] + len(content) + len(pieces[-1])
        self._append(b"".join(pieces))
        self._table.add([name for name, _ in parts], starts, contents, [len(content) for _, content in parts])
        self._keys.add(key)
        self.count += 1

    def finish(self) -> ShardTable:
        self._table.stop_bytes = self.size_bytes
        self._append(END)
        self.digested = self._digests.finish()
        self._staged.commit()
        return self._table.finish()

    def _append(self, data: bytes) -> None:
        self._staged.write(data)
        self._digests.update(data)
        self.size_bytes += len(data)
