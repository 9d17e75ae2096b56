"""Write a JSONL file with its index and its side file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock._kinds import JoinedRows
from penstock.codec.json_lines import encode_line
from penstock.codec.pickles import PairListEncoder
from penstock.errors import ConfigError, PenstockError
from penstock.formats._manifest import DATA, FileDigests, Provenance, commit_with_side_file, side_path
from penstock.formats._writers import BaseWriter, require_known, require_open, rows_of
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.energon import StartsEncoder, energon_index_path, read_energon_index
from penstock.formats.jsonl.index import decode_index, own_index_of_other_flavor, require_own_index
from penstock.formats.jsonl.source import require_flavor
from penstock.formats.jsonl.text import compression_of
from penstock.store.base import Store
from penstock.store.compose import append_range
from penstock.store.local import output_exists
from penstock.store.outputs import claim_files, output_path
from penstock.store.side_file import load_manifest, stage_beside
from penstock.types import Batch, IntArray, Manifest, Sample

_FLUSH_BYTES = 1 << 20
_NOTHING = Provenance()
_KNOWN_OPTIONS = ("flavor", "inputs", "options")


def create_jsonl(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> JsonlWriter:
    """Return a writer for a JSONL file.

    Args:
        store: the target store.
        path: path of the file; the index is written next to it.
        options: `flavor` of the index; `inputs` and `options` are recorded in the side file.
        overwrite: replace existing files.

    Raises:
        ConfigError: an option is unknown, the output or its index exists, or the name is that of a compressed file.
    """
    require_known(options, _KNOWN_OPTIONS, path)
    if compression_of(path) is not None:
        raise ConfigError(
            "JSONL is written without compression", path=path, hint="Write a .jsonl file and compress it afterwards"
        )
    flavor = options.get("flavor", "modalities")
    require_flavor(path, flavor)
    return JsonlWriter(store, output_path(store, path), overwrite=overwrite, flavor=flavor, given=_given(options))


class JsonlWriter(BaseWriter):
    """Streams samples into a JSONL file, one object per line; see `penstock.abc.Writer`. Returned by `penstock.create`.

    Arrays become lists, and numpy scalars become numbers; bytes aren't allowed. NaN is written like Python's JSON does.
    Memory: about 64 MiB.
    """

    def __init__(
        self, store: Store, path: str, *, overwrite: bool, flavor: str = "modalities", given: Provenance = _NOTHING
    ) -> None:
        self._store = store
        super().__init__(path)
        self._overwrite = overwrite
        self._for_energon = flavor == "energon"
        self._flavor = flavor
        self._given = given
        self._index_path = energon_index_path(path) if self._for_energon else index_path_for(path)
        self._encoder = StartsEncoder() if self._for_energon else PairListEncoder()
        self._lines: list[bytes] = []
        self._pending_bytes = 0
        self._size_bytes = 0
        self._num_lines = 0
        self._claim = claim_files(store, path, self._index_path, side=side_path(path))
        self._replaces = overwrite and store.exists(path)
        try:
            if not overwrite and store.exists(self._index_path) and not self._is_left():
                raise output_exists(path, path if store.exists(path) else self._index_path)
            self._require_own_index()
            # It would be wrong next to the new file. Its owner can only be determined while the old file exists.
            self._other_index = own_index_of_other_flavor(store, path, flavor) if self._replaces else None
            self._staged = store.stage(path, overwrite=overwrite)
        except BaseException:
            self._claim.release()
            raise
        self._digests = FileDigests(self._staged)
        try:
            self._index = stage_beside(store, self._index_path, replaces=self._replaces)
        except BaseException:
            self._staged.abort()
            self._claim.release()
            raise

    def write(self, sample: Sample, /) -> None:
        """Add one line.

        Raises:
            ConfigError: a value that JSON can't hold, or the writer is closed.
        """
        require_open(self._open, self._path)
        if self._for_energon:
            sample = _object_of(sample, self._path)
        try:
            encoded = encode_line(sample) + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"a sample that JSON can't hold: {error}", path=self._path) from None
        self._lines.append(encoded)
        self._pending_bytes += len(encoded)
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def write_batch(self, batch: Batch, /) -> None:
        for sample in rows_of(batch, self._path):
            self.write(sample)

    def note(self, given: Provenance) -> None:
        self._given = given

    def write_run(self, data: NDArray[np.uint8], lengths: IntArray, /) -> None:
        r"""Add lines unchanged, without checking that they are JSON.

        Args:
            data: uint8[n_bytes]: lines back to back, each with its `\n`.
            lengths: int64[k], in bytes, with the `\n`.

        Raises:
            ConfigError: lines and lengths differ, or the writer is closed.
        """
        require_open(self._open, self._path)
        if self._for_energon:
            raise ConfigError("raw lines may not be valid Energon samples", path=self._path, hint="Write samples")
        self._flush()
        stops = np.cumsum(lengths)
        size_bytes = int(stops[-1]) if len(stops) else 0
        ends = (lengths > 0).all() and size_bytes == len(data) and (data[stops - 1] == ord("\n")).all()
        if not ends:
            raise ConfigError("lines and their lengths differ", path=self._path, found=f"{len(data)} bytes")
        self._append(data, lengths - 1)

    def write_joined(self, rows: JoinedRows, /) -> None:
        require_open(self._open, self._path)
        for run in rows.lengths():
            self._count(run - 1)
        for extent in rows.ranges:
            append_range(self._staged, self._store, extent)
        self._digests.take(rows.size_bytes, rows.blocks, rows.rest())

    def _commit(self) -> Manifest:
        """Publish index, side file and file, in this order: see `penstock.store.side_file`."""
        self._flush()
        self._index.write(self._encoder.finish())
        manifest = self._manifest()
        self._staged.sync()
        self._require_own_index()  # another index may have been created meanwhile
        side, beside = side_path(self._path), [self._index]
        stale = [] if self._other_index is None else [self._other_index]
        commit_with_side_file(
            self._store, self._staged, side, manifest, overwrite=self._overwrite, beside=beside, stale=stale
        )
        return manifest

    def _close(self) -> None:
        self._index.abort()
        self._staged.abort()
        self._claim.release()

    def _flush(self) -> None:
        lengths = np.fromiter(map(len, self._lines), np.int64, len(self._lines))
        data = b"".join(self._lines)
        self._lines.clear()
        self._pending_bytes = 0
        self._append(data, lengths - 1)

    def _append(self, data: bytes | NDArray[np.uint8], line_lengths: IntArray) -> None:
        with self._aborting():
            self._staged.write(data)
            self._count(line_lengths)
        self._digests.update(data)

    def _count(self, line_lengths: IntArray) -> None:
        ends = np.cumsum(line_lengths + 1) + self._size_bytes
        self._index.write(self._encoder.encode(np.stack([ends - line_lengths - 1, line_lengths], 1)))
        self._size_bytes = int(ends[-1]) if len(ends) else self._size_bytes
        self._num_lines += len(line_lengths)

    def _manifest(self) -> Manifest:
        block_digests, binding = self._digests.finish()
        return Manifest(
            format="jsonl",
            num_samples=self._num_lines,
            size_bytes=self._size_bytes,
            block_digests={DATA: block_digests},
            inputs=self._given.inputs,
            options=self._given.options,
            binding=binding,
            tool=f"penstock {penstock.__version__}",
        )

    def _require_own_index(self) -> None:
        require_own_index(self._store, self._path, self._index_path, self._flavor, has_data=False)

    def _is_left(self) -> bool:
        """Return true if a killed writer left the index without its file, according to the side file."""
        manifest = load_manifest(self._store, side_path(self._path), to_write=True)
        if self._store.exists(self._path) or manifest is None or manifest.format != "jsonl":
            return False
        with contextlib.suppress(PenstockError):
            if self._for_energon:
                starts = read_energon_index(self._store, self._path, self._index_path, manifest.size_bytes)
                return len(starts) == manifest.num_samples + 1
            lines = decode_index(self._store, self._index_path)
            stop_bytes = int(lines[-1].sum()) + 1 if len(lines) else 0
            return (len(lines), stop_bytes) == (manifest.num_samples, manifest.size_bytes)
        return False


def _given(options: Mapping[str, Any]) -> Provenance:
    return Provenance(inputs=options.get("inputs") or {}, options=options.get("options") or {})


def _object_of(sample: Sample, path: str) -> Sample:
    """Return the object of a line: the part `json` if the sample has a key, else the sample."""
    value: Any = sample.get("json") if "__key__" in sample else sample
    if not isinstance(value, dict):
        raise ConfigError("a line of Energon's JSONL must be an object", path=path, found=type(value).__name__)
    return value
