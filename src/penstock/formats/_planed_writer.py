"""Writers of tokens with planes, both of which become visible together; see `penstock.formats._planes`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.abc import Format, Staged, SupportsRuns, Writer
from penstock.codec.tokens import as_tokens
from penstock.errors import ConfigError, FormatError, NotFound, PenstockError, Unsupported
from penstock.formats._planes import (
    EDGE_TOKENS,
    INDEX,
    PlaneEntry,
    all_there,
    base_at,
    binding_of,
    decode_planes,
    encode_planes,
    fits,
    has_no_planes,
    is_visible,
    lists_planes,
    plane_digest,
    plane_path,
    record_planes,
    recorded_planes,
    require_planes,
    waiting_index,
)
from penstock.formats._registry import finish_replacement
from penstock.formats._writers import BaseWriter, require_fields, require_open
from penstock.store.base import NamedLate, Store
from penstock.store.outputs import Owned, output_path
from penstock.store.put import aborting, put
from penstock.store.side_file import promote
from penstock.types import Batch, IntArray, Manifest, OpenOptions, Sample

_COPY_BYTES = 1 << 24
_PLACES = "pbin, megatron, or flat-tokens without splits"


def require_place_for_planes(
    chosen: Format, store: Store, path: str, options: Mapping[str, Any], planes: Iterable[str]
) -> str:
    """Return the path that planes of a dataset are named after.

    Raises:
        Unsupported: the format can't have planes, or the output is a split of a dataset.
    """
    base = base_at(chosen.name, store, output_path(store, path))
    if base is None or options.get("split") is not None:
        what = f"{'a split' if base is not None else f'the format {chosen.name!r}'} can't have planes"
        raise Unsupported(what, path=path, found=", ".join(planes), expected=_PLACES)
    return base


def create_planed(
    chosen: Format, store: Store, path: str, options: Mapping[str, Any], planes: Mapping[str, str], *, overwrite: bool
) -> PlanedWriter:
    """Return a writer for a dataset of tokens with planes.

    Args:
        chosen: format of the tokens.
        store: store of the dataset.
        path: path of the dataset.
        planes: name → dtype, such as `{"loss_mask": "bool"}`.
        options: options of the format's own writer.
        overwrite: replace an existing dataset.

    Raises:
        Unsupported: the format doesn't support planes, or the output is a split of a dataset.
        ConfigError: an invalid name or dtype of a plane, and errors of the format's own writer.
    """
    planes = require_planes(planes, path)
    base = require_place_for_planes(chosen, store, path, options, planes)
    store = replacing_planes(store)
    writer = chosen.create(store, path, options, overwrite=overwrite)
    try:
        return PlanedWriter(PlaneFiles(chosen, store, path, planes), writer, planes, base)
    except BaseException:
        writer.abort()
        raise


def replacing_planes(store: Store) -> Store:
    """Return the store of an output with planes: its writers may replace tokens that have planes."""
    return store.replacing_planes() if store.is_local else store


def drop_unfinished(chosen: Format, store: Store, path: str, *, keep: Collection[str] = ()) -> None:
    """Remove planes whose tokens were never committed, because a writer failed or was killed.

    Called by the process that holds the output.

    Args:
        chosen: format of the tokens.
        store: store of the tokens.
        path: path of the tokens.
        keep: files not to remove.
    """
    base = base_at(chosen.name, store, path)
    if base is None or _tokens_came(chosen, store, path, base):
        return
    waiting = waiting_index(store, base)
    with contextlib.suppress(NotFound, FormatError):
        keep = {*keep, *_replaced_files(store, base)}
        for entry in decode_planes(store.get(waiting), waiting).planes:
            if plane_path(base, entry) not in keep:
                with contextlib.suppress(NotFound):
                    store.delete(plane_path(base, entry))
    with contextlib.suppress(NotFound):
        store.delete(waiting)


def finish_killed(chosen: Format, store: Store, path: str, files: Sequence[str], own: Owned | None) -> None:
    """Complete the commit of a writer of planes that was killed after its tokens became visible.

    Args:
        chosen: format of the tokens.
        store: store of the tokens.
        path: path of the tokens.
        files: files of the tokens.
        own: function that returns the files of a folder that belong to the tokens.

    Raises:
        PrepareError: the writer is still running.
    """
    base = base_at(chosen.name, store, path)
    if base is None or not store.exists(waiting_index(store, base)):
        return
    # In an object store the index has its final name from the start, so a finished writer leaves one too.
    if (not _waits(store, base) and store.is_local) or not _tokens_came(chosen, store, path, base):
        return
    if _waits(store, base):
        finish_replacement(chosen, store, path, files, own)
    settle_planes(chosen, store, path)


def settle_planes(chosen: Format, store: Store, path: str) -> None:
    """Give the index of planes its final name, once their tokens exist."""
    base = base_at(chosen.name, store, path)
    if base is None:
        return
    waiting = waiting_index(store, base)
    if store.exists(waiting) and _tokens_came(chosen, store, path, base):
        _settle(chosen, store, base, decode_planes(store.get(waiting), waiting).planes)


def _settle(chosen: Format, store: Store, base: str, entries: Sequence[PlaneEntry]) -> None:
    """Record planes in the side file, remove the planes that they replace, and give their index its final name."""
    record_planes(chosen.name, store, base, entries)
    if waiting_index(store, base) == base + INDEX:
        return
    with contextlib.suppress(FormatError):
        for path in set(_replaced_files(store, base)).difference(plane_path(base, entry) for entry in entries):
            with contextlib.suppress(NotFound):
                store.delete(path)
    promote(store, waiting_index(store, base))


def _replaced_files(store: Store, base: str) -> list[str]:
    """Return the files of planes to be replaced: another index is waiting to replace theirs."""
    if waiting_index(store, base) == base + INDEX or not store.exists(base + INDEX):
        return []
    return [plane_path(base, entry) for entry in decode_planes(store.get(base + INDEX), base + INDEX).planes]


def _waits(store: Store, base: str) -> bool:
    """Return whether planes wait for their tokens under a name other than the final one."""
    waiting = waiting_index(store, base)
    return waiting != base + INDEX and store.exists(waiting)


def _tokens_came(chosen: Format, store: Store, path: str, base: str) -> bool:
    """Return whether the tokens for which planes wait exist."""
    if not is_visible(chosen.name, store, base):
        return False
    waiting = waiting_index(store, base)
    if waiting == base + INDEX:  # it lists no other planes, because existing data isn't replaced
        return True
    try:
        found = decode_planes(store.get(waiting), waiting)
        source: Any = chosen.open(store, path, OpenOptions(read="pread"))
    except (NotFound, FormatError):
        return False
    if not fits(found, source) or not all_there(store, base, found):
        return False
    if has_no_planes(source):
        return False
    recorded = {name: digest for name, digest in recorded_planes(source).items() if digest is not None}
    return not recorded or lists_planes(found.planes, recorded)  # else these are the tokens to be replaced


class _PlaneWriter:
    """One plane while it is written."""

    __slots__ = ("dtype", "hasher", "left", "staged")

    def __init__(self, staged: Staged, dtype: str) -> None:
        self.staged = staged
        self.dtype = dtype
        self.hasher = xxhash.xxh3_128()
        self.left = np.empty(0, np.bool_)  # bits that don't fill a byte yet

    def write(self, values: NDArray[Any]) -> None:
        if self.dtype == "bool":
            bits = np.concatenate([self.left, values])
            whole = len(bits) // 8 * 8
            self._append(np.packbits(bits[:whole], bitorder="little"))
            self.left = bits[whole:]
        else:
            self._append(np.ascontiguousarray(values, np.dtype(self.dtype).newbyteorder("<")))

    def finish(self, name: str) -> PlaneEntry:
        if len(self.left):
            self._append(np.packbits(self.left, bitorder="little"))
        return PlaneEntry(name, self.dtype, self.staged.tell(), self.hasher.hexdigest())

    def _append(self, data: NDArray[Any]) -> None:
        raw = data.tobytes()
        self.staged.write(raw)
        self.hasher.update(raw)


class PlaneFiles:
    """Planes of one dataset while they are written: staged first, then next to it under an index that waits for it.

    Args:
        chosen: format of the dataset, which supports planes.
        store: store of the dataset.
        path: path of the dataset.
        planes: name → dtype.

    Raises:
        ConfigError: the data exists, in a store without renames.
    """

    def __init__(self, chosen: Format, store: Store, path: str, planes: Mapping[str, str]) -> None:
        base = base_at(chosen.name, store, output_path(store, path)) or path
        if waiting_index(store, base) == base + INDEX and is_visible(chosen.name, store, base):
            what, hint = "data in this store can't be replaced with data that has planes", "Choose another output"
            raise ConfigError(what, path=base, found=", ".join(planes), hint=hint)
        self._chosen = chosen
        self._store = store
        self._path = path
        self._base = base
        self._is_published = False
        self._planes: dict[str, _PlaneWriter] = {}
        self._entries: tuple[PlaneEntry, ...] = ()
        try:
            for name, dtype in planes.items():
                store.sweep(f"{base}.plane.{name}-new")
                staged = store.stage(f"{base}.plane.{name}-new", overwrite=True)
                self._planes[name] = _PlaneWriter(staged, dtype)
        except BaseException:
            self.abort()
            raise

    def as_stored(self, planes: Mapping[str, NDArray[Any]], num_tokens: int) -> dict[str, NDArray[Any]]:
        """Convert the values of `num_tokens` tokens to their dtypes; raise `ConfigError` if one would change."""
        stored = {name: _as_stored(name, planes[name], one.dtype, self._base) for name, one in self._planes.items()}
        if any(len(one) != num_tokens for one in stored.values()):
            raise ConfigError("planes and tokens have different lengths", path=self._base, expected=num_tokens)
        return stored

    def write(self, stored: Mapping[str, NDArray[Any]]) -> None:
        """Append values returned by `as_stored`."""
        for name, one in self._planes.items():
            one.write(stored[name])

    def publish(self, num_tokens: int, first: NDArray[Any], last: NDArray[Any]) -> None:
        """Put the index that waits for the dataset next to it, then the files; see `binding_of`."""
        entries = tuple(one.finish(name) for name, one in self._planes.items())
        paths = [plane_path(self._base, entry) for entry in entries]
        self._entries = entries
        drop_unfinished(self._chosen, self._store, self._path, keep=paths)
        self._is_published = True
        index = encode_planes(num_tokens, binding_of(num_tokens, first, last), entries)
        self._record_replaced(index)
        put(self._store, waiting_index(self._store, self._base), index)
        for entry, path in zip(entries, paths, strict=True):
            self._publish(self._planes[entry.name].staged, path, entry.digest)

    def settle(self) -> None:
        """Record the planes in the side file of the finished dataset, and give their index its final name."""
        _settle(self._chosen, self._store, self._base, self._entries)

    def _record_replaced(self, coming: bytes) -> None:
        """Record the planes of the replaced tokens, or that they have none if the new index fits them.

        These tokens may look like the new ones until a commit.
        """
        index = self._base + INDEX
        if waiting_index(self._store, self._base) == index or not self._store.exists(self._base):
            return
        with contextlib.suppress(NotFound, FormatError):
            if self._store.exists(index):
                entries = decode_planes(self._store.get(index), index).planes
            else:
                source: Any = self._chosen.open(self._store, self._path, OpenOptions(read="pread"))
                if not fits(decode_planes(coming, index), source):
                    return
                entries = ()
            record_planes(self._chosen.name, self._store, self._base, entries)

    @property
    def digests(self) -> dict[str, str]:
        """Plane name → digest, once the planes are published."""
        return {one.name: one.digest for one in self._entries}

    def abort(self) -> None:
        """Remove all files, except those next to an existing dataset."""
        for one in self._planes.values():
            one.staged.abort()
        if self._is_published:
            with contextlib.suppress(PenstockError, OSError):
                drop_unfinished(self._chosen, self._store, self._path)

    def _publish(self, staged: Staged, path: str, digest: str) -> None:
        if isinstance(staged, NamedLate):
            if staged.commit_as(path):
                return
            if plane_digest(self._store, path) == digest:  # equivalent, whether replaced or of a killed writer
                staged.abort()
                return
        with aborting(self._store.stage(path, overwrite=True)) as copy:
            for start_bytes in range(0, staged.tell(), _COPY_BYTES):
                copy.write(staged.read_at(start_bytes, min(_COPY_BYTES, staged.tell() - start_bytes)))
            copy.commit()
        staged.abort()


@contextlib.contextmanager
def planes_beside(
    chosen: Format, store: Store, path: str, planes: Mapping[str, str], *, joins: bool
) -> Generator[PlaneFiles]:
    """Write planes of an output that the block writes, publishes, and then makes visible: they count as part of it.

    Args:
        chosen: format of the tokens.
        store: store of the tokens.
        path: path of the tokens.
        planes: name → dtype.
        joins: whether another finishing job may run at the same time, whose planes are then kept.
    """
    if not joins:
        drop_unfinished(chosen, store, path)
    files = PlaneFiles(chosen, store, path, planes)
    try:
        yield files
    except BaseException:
        files.abort()
        raise
    try:
        files.settle()
    except (NotFound, FileNotFoundError):
        base = base_at(chosen.name, store, output_path(store, path)) or path
        if not store.exists(base + INDEX):  # else another finishing job of the same plan was first
            raise


class PlanedWriter(BaseWriter):
    """Streaming writer of documents and their planes; see `penstock.abc.Writer`.

    Made by `penstock.create(…, planes=…)`.

    It accepts `{"tokens": integers [n], name: values [n], …}`. Memory: that of the format's own writer.
    """

    def __init__(self, files: PlaneFiles, writer: Writer, planes: Mapping[str, str], path: str) -> None:
        super().__init__(path)
        self._writer = writer
        self._is_committed = False
        self._num_tokens = 0
        self._first = self._last = np.empty(0, np.uint32)
        self._dtypes = dict(planes)
        self._files = files

    def write(self, sample: Sample, /) -> None:
        """Add one document: `{"tokens": integers [n], name: values [n], …}`."""
        require_fields(sample, self._path)
        self.write_batch({name: [value] for name, value in sample.items()})

    def write_batch(self, batch: Batch, /) -> None:
        """Add documents: per column a list of arrays, or one array [k, n].

        Raises:
            ConfigError: an unknown or missing field, or values of another length or kind.
            TooLarge: an id or a value is out of range.
        """
        require_open(self._open, self._path)
        require_fields(batch, self._path)
        if batch.keys() != {"tokens", *self._dtypes}:
            found, expected = ", ".join(map(str, batch)), ", ".join(["tokens", *self._dtypes])
            raise ConfigError("a document has different fields", path=self._path, found=found, expected=expected)
        documents = [as_tokens(value) for value in batch["tokens"]]
        lengths = np.array([len(one) for one in documents], np.int64)
        planes: dict[str, NDArray[Any]] = {}
        for name, dtype in self._dtypes.items():
            values = [np.asarray(value) for value in batch[name]]
            shapes = [one.shape for one in values]
            wrong = next((n for n, (a, b) in enumerate(zip(shapes, lengths.tolist(), strict=False)) if a != (b,)), None)
            if len(values) != len(documents) or wrong is not None:
                what = f"the plane {name} and the tokens have different lengths"
                found = f"{len(values)} documents" if wrong is None else f"shape {shapes[wrong]} in document {wrong}"
                expected = f"{len(documents)} documents" if wrong is None else f"({lengths[wrong]},)"
                raise ConfigError(what, path=self._path, found=found, expected=expected)
            filled = [one for one in values if len(one)]
            planes[name] = np.concatenate(filled) if filled else np.empty(0, dtype)
        filled = [one for one in documents if len(one)]
        self.write_planed_run(np.concatenate(filled) if filled else np.empty(0, np.uint8), lengths, planes)

    def write_planed_run(
        self, tokens: NDArray[Any], doc_lengths: IntArray, planes: Mapping[str, NDArray[Any]], /
    ) -> None:
        """Add documents that are stored back to back.

        Args:
            tokens: integers [n_tokens].
            doc_lengths: int64[n_docs]; their sum is `len(tokens)`.
            planes: name → values [n_tokens].
        """
        require_open(self._open, self._path)
        stored = self._files.as_stored(planes, len(tokens))
        if isinstance(self._writer, SupportsRuns):
            self._writer.write_run(tokens, doc_lengths)
        else:
            self._writer.write_batch({"tokens": np.split(tokens, np.cumsum(doc_lengths)[:-1])})
        try:
            self._files.write(stored)
        except BaseException:
            self.abort()
            raise
        self._num_tokens += len(tokens)
        if len(self._first) < EDGE_TOKENS:
            self._first = np.concatenate([self._first, tokens[: EDGE_TOKENS - len(self._first)]]).astype(np.uint32)
        self._last = np.concatenate([self._last, tokens[-EDGE_TOKENS:]])[-EDGE_TOKENS:].astype(np.uint32)

    def _commit(self) -> Manifest:
        """Publish the planes, their index, then the tokens; see `penstock.formats._planes`."""
        self._files.publish(self._num_tokens, self._first, self._last)
        manifest = self._writer.commit()
        self._is_committed = True
        self._files.settle()
        return replace(manifest, planes=self._files.digests)

    def _close(self) -> None:
        if not self._is_committed:
            self._files.abort()
            self._writer.abort()


def _as_stored(name: str, values: NDArray[Any], dtype: str, path: str) -> NDArray[Any]:
    """Convert the values of a plane to its dtype; raise `ConfigError` if that would change a value."""
    given = np.asarray(values)
    if given.dtype == dtype or not len(given):
        return given.astype(dtype, copy=False)
    kinds = {"b": "biu", "u": "biu", "i": "biu", "f": "biuf"}[np.dtype(dtype).kind]
    if given.ndim == 1 and given.dtype.kind in kinds:
        with np.errstate(over="ignore"):
            stored = given.astype(dtype)
        fits = np.isfinite(stored) == np.isfinite(given) if dtype.startswith("float") else stored == given
        if fits.all():
            return stored
        place = int(np.flatnonzero(~fits)[0])
        what, found = f"a value does not fit the plane {name}", f"{given[place]} at token {place}"
        raise ConfigError(what, path=path, found=found, expected=dtype)
    what = f"values have the wrong type for the plane {name}"
    raise ConfigError(what, path=path, found=f"{given.dtype}", expected=dtype)
