"""Planes on disk: `<data>.plane.<name>-<8 digits of its digest>`, listed in the small index `<data>.planes`.

`<data>` is the file or folder that makes a dataset visible: a packed file, a Megatron `.idx`, a zarr group, or the
`index.json` of a folder of token files, whose planes cover all of its files. A plane holds one value per token, back to
back, little-endian in its natural width. Planes of `bool` store eight values per byte, the first in the lowest bit. The
index is one JSON document:

| key | content |
|---|---|
| `version` | 1 |
| `num_tokens` | number of values of each plane |
| `binding` | xxh3-128 of that number (u64) and of the first and last 2,048 ids (u32): identifies the tokens |
| `planes` | per plane `name`, `dtype`, `size_bytes`, and `digest`: xxh3-128 of its file |
| `check` | xxh3-128 of the document without this key |

On this machine the index is called `<data>.planes.next` until its tokens are visible. It is published before its
planes, the planes before the tokens, and it is renamed after them. Readers use the index that fits the tokens; a
waiting index counts only with all of its planes. So a writer killed at any point leaves tokens and planes, or
neither. In other stores the index has its final name from the start.

Between both renames, the names and digests of the planes are recorded in the side file of the tokens: a copy without
recorded planes is an error. A side file without such a record, from a writer killed at that moment, proves nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np
import xxhash
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from penstock._tokens import LOSS_MASK
from penstock.abc import TokenSource
from penstock.errors import ConfigError, Corrupt, Denied, FormatError, NotFound, Truncated, UnsafeData, Unsupported
from penstock.formats._folders import LAST_FILES, last_file
from penstock.formats._sources import map_least, way_to_read
from penstock.store._files import is_link
from penstock.store.base import Store
from penstock.store.mapped import Held
from penstock.store.names import NEXT
from penstock.store.side_file import record_in_side_file
from penstock.types import Finding, IntArray, Manifest, ReadMode

DTYPES = ("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "float16", "float32")
"""Dtypes of values."""

INDEX = ".planes"
_FOLDER_INDEX = "index.json"
EDGE_TOKENS = 2048
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
_TAKEN = frozenset((
    *("tokens", "inputs", "targets", "segment_ids", "positions", "cu_seqlens", "max_seqlen", "is_seq_start", "valid"),
    *("substituted", "text", "key"),
))  # fmt: skip
_MOST_BYTES = 1 << 20
_READ_BYTES = 1 << 24
_RESTORE = "Restore it, or open only the tokens: planes=None (--planes none)"


class PlaneEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plane in an index."""

    name: str
    dtype: str
    size_bytes: int
    digest: str


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    num_tokens: int
    binding: str
    planes: tuple[PlaneEntry, ...]
    check: str


def require_planes(planes: object, path: str) -> dict[str, str]:
    """Return name → dtype of valid planes; dtypes may be NumPy's too.

    Raises:
        ConfigError: not a mapping from names to dtypes, or an invalid name or dtype.
    """
    if not isinstance(planes, Mapping):
        raise ConfigError("planes must be a mapping of names to dtypes", path=path, found=repr(planes)[:80],
                          expected='such as {"loss_mask": "bool"}')  # fmt: skip
    found: dict[str, str] = {}
    for name, dtype in cast(Mapping[object, object], planes).items():
        if not isinstance(name, str) or not _may_be_named(name):
            what = "a plane can't have this name"
            raise ConfigError(
                what, path=path, found=repr(name), expected="letters, digits and _, and not the name of a column"
            )
        found[name] = _dtype_name(dtype)
        if found[name] not in DTYPES:
            expected = ", ".join(DTYPES)
            raise ConfigError(
                f"unsupported dtype for the plane {name}", path=path, found=found[name], expected=expected
            )
    return found


def _may_be_named(name: str) -> bool:
    """Whether a plane may have a name: of letters, and of no column; those that begin with `__` are ours."""
    return _NAME.match(name) is not None and name not in _TAKEN and not name.startswith("__")


def _dtype_name(dtype: object) -> str:
    """Return the little-endian or native name of a NumPy dtype; for anything else, its text."""
    if dtype is None:
        return "None"
    try:
        return np.dtype(cast(Any, dtype)).name
    except (TypeError, ValueError, SyntaxError):
        return str(dtype)


def base_of(format: str, path: str) -> str | None:
    """Return the file or folder that makes a dataset visible and names its planes; None without planes."""
    bare = path.rstrip("/") or path
    if format == "megatron":
        return bare.removesuffix(".idx").removesuffix(".bin") + ".idx"
    if format == "token-files":
        return f"{bare.removesuffix(f'/{_FOLDER_INDEX}')}/{_FOLDER_INDEX}"
    return bare if format in ("pbin", "flat-tokens") else None


def base_at(format: str, store: Store, path: str) -> str | None:
    """Return `base_of` for existing data; links are followed."""
    base = base_of(format, path)
    return store.real_path(base) if base is not None and store.is_local and is_link(base) else base


def plane_path(base: str, entry: PlaneEntry) -> str:
    """Return the path of the file of a plane."""
    return f"{base}.plane.{entry.name}-{entry.digest[:8]}"


def waiting_index(store: Store, base: str) -> str:
    """Return the name of an index whose tokens don't exist yet.

    In a store without renames this is its final name: it isn't read before the tokens exist, and one name suffices.
    """
    return base + INDEX + (NEXT if store.is_local else "")


def size_of(dtype: str, num_tokens: int) -> int:
    """Return the size in bytes of a plane with `num_tokens` values."""
    return -(-num_tokens // 8) if dtype == "bool" else num_tokens * np.dtype(dtype).itemsize


# --- the index ----------------------------------------------------------------------------------------------------


def binding_of(num_tokens: int, first: NDArray[Any], last: NDArray[Any]) -> str:
    """Return a short digest of the first and last `EDGE_TOKENS` ids, which shows whether planes belong to tokens."""
    hasher = xxhash.xxh3_128(num_tokens.to_bytes(8, "little"))
    for ids in (first, last):
        hasher.update(np.ascontiguousarray(ids, "<u4").tobytes())
    return hasher.hexdigest()


def binding_of_source(source: TokenSource) -> str:
    """Return `binding_of` for existing tokens, by two small reads."""
    total = source.num_tokens
    edge = min(EDGE_TOKENS, total)
    return binding_of(total, source.tokens(0, edge), source.tokens(total - edge, total))


def fits(index: _Index, source: TokenSource) -> bool:
    """Return whether an index belongs to these tokens."""
    return index.num_tokens == source.num_tokens and index.binding == binding_of_source(source)


def is_visible(format: str, store: Store, base: str) -> bool:
    """Return whether the tokens are visible; a folder in a bucket is visible from its last file on."""
    if store.is_local:
        output = f"{base.removesuffix('.idx')}.bin" if format == "megatron" else base
        return store.reading_commit(output).exists(base)
    if format not in LAST_FILES:
        return store.exists(base)
    return last_file(format, store, base) is not None


def encode_planes(num_tokens: int, binding: str, planes: tuple[PlaneEntry, ...]) -> bytes:
    """Return the bytes of an index."""
    said = _Index(1, num_tokens, binding, planes, "")
    said.check = _check(said)
    return msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n"


def decode_planes(data: bytes, path: str) -> _Index:
    """Return the index in a file; raise `Corrupt` if it is truncated, changed, or not an index."""
    try:
        found = msgspec.json.decode(data, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if found.version != 1:
        raise Unsupported("unsupported version of the plane index", path=path, found=found.version, expected=1)
    if found.check != _check(found):
        raise _damaged(path, "content that differs from its checksum")
    for one in found.planes:
        named = _may_be_named(one.name)  # or it would replace a column
        fits = named and one.dtype in DTYPES and re.match(r"[0-9a-f]{32}\Z", one.digest)
        if not fits or one.size_bytes != size_of(one.dtype, found.num_tokens):
            raise _damaged(path, f"the plane {one.name!r}: {one.dtype}, {one.size_bytes} bytes")
    if len({one.name for one in found.planes}) < len(found.planes):
        raise _damaged(path, "two planes with the same name")
    return found


def _check(found: _Index) -> str:
    plain = (found.version, found.num_tokens, found.binding, found.planes)
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(plain))


def _damaged(path: str, found: str) -> Corrupt:
    return Corrupt("the plane index can't be read", path=path, found=found, hint=_RESTORE)


def _read_index(store: Store, path: str) -> _Index | None:
    try:
        if store.size(path) > _MOST_BYTES:
            raise _damaged(path, "a file larger than 1 MiB")
        return decode_planes(store.get(path), path)
    except (NotFound, Denied) as error:
        if store.is_local and store.exists(path):
            raise _damaged(path, error.what) from None
        return None


def listed_planes(store: Store, base: str, source: TokenSource) -> tuple[PlaneEntry, ...]:
    """Return the planes that the index fitting these tokens lists, and that their side file records.

    Without an index there are none.

    Raises:
        Corrupt: an index that can't be read or belongs to other tokens, or a recorded plane that no index lists.
    """
    path = base + INDEX
    waits = waiting_index(store, base)
    recorded = recorded_planes(source)
    final = _read_index(store, path)
    if final is None and has_no_planes(source):  # a waiting index belongs to the tokens that replace these
        return ()
    fitting = [final] if final is not None and fits(final, source) else []
    is_recorded = None not in recorded.values() and bool(recorded)
    if not (is_recorded and fitting and lists_planes(fitting[0].planes, recorded)) and waits != path:
        waiting = _read_index(store, waits)
        if waiting is not None and fits(waiting, source) and all_there(store, base, waiting):
            fitting.insert(0, waiting)  # the old planes are recorded before they are replaced: these are not recorded
    for index in fitting:
        if lists_planes(index.planes, recorded):
            return index.planes
    if fitting or final is None:  # without an index a writer may have been killed before its tokens were written
        _require_listed(store, base, fitting[0].planes if fitting else (), recorded)
        return ()
    found = f"{final.num_tokens} tokens" if final.num_tokens != source.num_tokens else "different token ids"
    expected = f"{source.num_tokens} tokens, as in the data" if "different" not in found else None
    raise Corrupt(
        "the plane index belongs to different tokens", path=path, found=found, expected=expected, hint=_RESTORE
    )


def has_no_planes(source: Any) -> bool:
    """Return whether the side file of token data records that there are no planes."""
    manifest: Manifest | None = source.manifest
    return manifest is not None and manifest.planes is not None and not manifest.planes


def recorded_planes(source: Any) -> Mapping[str, str | None]:
    """Return plane name → digest as the side file of token data records them; without a side file there are none."""
    manifest: Manifest | None = source.manifest
    return {} if manifest is None else planes_in_manifest(manifest)


def planes_in_manifest(manifest: Manifest) -> Mapping[str, str | None]:
    """Return plane name → digest as a side file records them.

    Version 0.2 recorded no planes, but that data was packed from chats, which gives it a loss mask of unknown digest.
    """
    if manifest.planes is not None:
        return manifest.planes
    return {LOSS_MASK: None} if manifest.options.get("chat") else {}


def record_planes(format: str, store: Store, base: str, planes: Iterable[PlaneEntry]) -> None:
    """Record planes in the side file of their tokens, so that a copy without them is noticed."""
    record_in_side_file(store, side_path_of(format, base), planes={one.name: one.digest for one in planes})


def side_path_of(format: str, base: str) -> str:
    """Return the path of the side file of token data; see `base_of`."""
    return f"{base.removesuffix(f'/{_FOLDER_INDEX}')}/.penstock" if format == "token-files" else f"{base}.penstock"


def lists_planes(planes: Iterable[PlaneEntry], recorded: Mapping[str, str | None]) -> bool:
    """Return whether planes include all recorded ones, with their digests where these are known."""
    digests = {one.name: one.digest for one in planes}
    return all(name in digests and digest in (None, digests[name]) for name, digest in recorded.items())


def _require_listed(store: Store, base: str, planes: Iterable[PlaneEntry], recorded: Mapping[str, str | None]) -> None:
    """Raise `Corrupt` for the first recorded plane that is not among these."""
    digests = {one.name: one.digest for one in planes}
    for name, digest in recorded.items():
        if name not in digests:
            path = base + INDEX if digest is None or not digests else f"{base}.plane.{name}-{digest[:8]}"
            what = f"the plane {name} is recorded in the side file but missing"
            found = "a plane index without it" if store.exists(base + INDEX) else "no plane index"
            raise Corrupt(what, path=path, found=found, expected=digest, hint=_RESTORE)
        if digest not in (None, digests[name]):
            what = f"the plane {name} differs from the one recorded in the side file"
            raise Corrupt(what, path=base + INDEX, found=digests[name], expected=digest, hint=_RESTORE)


# --- reading ------------------------------------------------------------------------------------------------------


def require_inside(start: int, stop: int, num_tokens: int) -> None:
    """Raise `IndexError` if a plane of `num_tokens` tokens has no values at `[start, stop)`."""
    if not 0 <= start <= stop <= num_tokens:
        raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {num_tokens})")


class PlaneValues:
    """Values of a file from its start, mapped or read range by range. Thread-safe, picklable.

    Args:
        store: store of the file.
        path: path of the file.
        count: number of values; the file is known to contain them.
        stored: dtype, little-endian.
        read: as in `penstock.open`.
    """

    __slots__ = ("_args", "_is_mapped", "_mapped", "count")

    def __init__(self, store: Store, path: str, count: int, stored: np.dtype[Any], read: ReadMode) -> None:
        read = way_to_read(store, path, read)
        self._args = (store, path, count, stored, read)
        self.count = count
        self._is_mapped = read == "mmap"
        self._mapped = Held(functools.partial(_map_values, store, path, count, stored))

    def __reduce__(self) -> tuple[object, ...]:
        return (PlaneValues, self._args)

    @property
    def place(self) -> tuple[Store, str]:
        """The store, and the file in it."""
        return self._args[:2]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if self._is_mapped:
            found = self._mapped.get()[start:stop]
        else:
            store, path, _, stored, _ = self._args
            found = np.frombuffer(store.get_ranges(path, [self._range(start, stop)])[0], stored)
        return found.astype(found.dtype.newbyteorder("="), copy=False)

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        store, path, count, stored, _ = self._args
        if self._is_mapped and length <= count:
            found = sliding_window_view(self._mapped.get(), length)[starts]
        else:
            ranges = [self._range(start, start + length) for start in starts.tolist()]
            found = np.frombuffer(b"".join(store.get_ranges(path, ranges)), stored).reshape(len(starts), length)
        return found.astype(stored.newbyteorder("="), copy=False)

    def _range(self, start: int, stop: int) -> tuple[int, int]:
        width = self._args[3].itemsize
        return start * width, stop * width


def _map_values(store: Any, path: str, count: int, stored: np.dtype[Any]) -> NDArray[Any]:
    stop_bytes = count * stored.itemsize
    return map_least(store, path, stop_bytes)[:stop_bytes].view(stored)


@dataclass(frozen=True, slots=True)
class PlaneFile:
    """Plane in its file; see `penstock._tokens.Plane`. Thread-safe, picklable.

    Attributes:
        entry: its entry in the index.
        num_tokens: number of values.
        file: the values; for `bool` the bytes that contain them.
    """

    entry: PlaneEntry
    num_tokens: int
    file: PlaneValues

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return np.dtype(self.entry.dtype)

    @property
    def identity(self) -> tuple[str, str, str]:
        """Parts of the plane that a fingerprint covers: name, dtype, digest."""
        return self.entry.name, self.entry.dtype, self.entry.digest

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values of tokens `[start, stop)`, [stop - start]; raise `IndexError` if out of range."""
        require_inside(start, stop, self.num_tokens)
        if self.entry.dtype != "bool":
            return self.file.read(start, stop)
        first = start // 8
        bits = np.unpackbits(self.file.read(first, max(first, -(-stop // 8))), bitorder="little")
        return bits[start - first * 8 : stop - first * 8].view(np.bool_)

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        """Return one window per row, [len(starts), length]; raise `IndexError` if out of range."""
        starts = np.asarray(starts, np.int64)
        if starts.size:
            require_inside(int(starts.min()), int(starts.max()) + length, self.num_tokens)
        if self.entry.dtype != "bool":
            return self.file.gather(starts, length)
        width = min(length // 8 + 2, self.file.count)
        first = np.minimum(starts // 8, self.file.count - width)
        bits = np.unpackbits(self.file.gather(first, width), axis=1, bitorder="little")
        columns = (starts - first * 8)[:, None] + np.arange(length)
        return np.take_along_axis(bits, columns, axis=1).view(np.bool_)


def open_planes(
    store: Store, base: str, entries: tuple[PlaneEntry, ...], num_tokens: int, read: ReadMode
) -> dict[str, PlaneFile]:
    """Return planes by name.

    Raises:
        Corrupt: a file is missing.
        Truncated: a size differs from the index.
        UnsafeData: a file is a pipe or a device.
    """
    found: dict[str, PlaneFile] = {}
    for entry in entries:
        path = plane_path(base, entry)
        problem = plane_problem(store, base, entry)
        if problem is not None:
            raise problem
        stored = np.dtype("u1" if entry.dtype == "bool" else entry.dtype).newbyteorder("<")
        count = entry.size_bytes // stored.itemsize
        found[entry.name] = PlaneFile(entry, num_tokens, PlaneValues(store, path, count, stored, read))
    return found


def plane_problem(store: Store, base: str, entry: PlaneEntry) -> FormatError | UnsafeData | None:
    """Return an obvious problem of the file of a plane, found without reading it; None if there is none."""
    path = plane_path(base, entry)
    try:
        size_bytes = store.size(path)
    except UnsafeData as error:
        return error
    except NotFound:
        return Corrupt(f"the plane {entry.name} is missing", path=path, hint=_RESTORE)
    if size_bytes != entry.size_bytes:
        what = f"the plane {entry.name} has a different size than its index records"
        return Truncated(what, path=path, found=size_bytes, expected=entry.size_bytes, hint=_RESTORE)
    return None


def all_there(store: Store, base: str, index: _Index) -> bool:
    """Return whether all planes of an index seem complete, so that their writer wasn't killed before."""
    return not any(plane_problem(store, base, entry) for entry in index.planes)


# --- checking -----------------------------------------------------------------------------------------------------


def plane_digest(store: Store, path: str, tick: Callable[[], object] = lambda: None) -> str:
    """Return the xxh3-128 of a file. Memory: 16 MiB."""
    hasher = xxhash.xxh3_128()
    for start_bytes in range(0, store.size(path), _READ_BYTES):
        hasher.update(store.get(path, start_bytes, _READ_BYTES))
        tick()
    return hasher.hexdigest()


def require_intact(planes: Iterable[object]) -> None:
    """Raise an error if planes to be copied differ from their index: a copy's own digest would hide the difference.

    Each plane is read once.

    Raises:
        Corrupt: a plane contains other bytes.
    """
    for plane in planes:
        if isinstance(plane, PlaneFile):
            store, path = plane.file.place
            found = plane_digest(store, path)
            if found != plane.entry.digest:
                what = f"the plane {plane.entry.name} differs from the digest in its index"
                raise Corrupt(what, path=path, found=found, expected=plane.entry.digest, hint=_RESTORE)


def require_all_listed(format: str, store: Store, path: str, source: TokenSource) -> None:
    """Raise an error if tokens to be copied have planes next to them but no index: the planes would be lost.

    Raises:
        Corrupt: there is such a plane.
    """
    base = base_at(format, store, path)
    if base is None or not plane_files(store, base):  # which makes no requests to other stores
        return
    for one in check_planes(store, base, format, source, full=False):
        if one.code == f"{format}.plane-unlisted":
            raise Corrupt("there is a plane next to the tokens that no index lists", path=one.path, hint=_RESTORE)


def check_planes(store: Store, base: str, format: str, source: TokenSource, *, full: bool) -> Iterator[Finding]:
    """Yield findings about the planes of tokens, and about files next to them that look like planes; never raise."""
    try:
        entries = listed_planes(store, base, source)
    except (Corrupt, Unsupported, UnsafeData) as error:
        found = None if error.found is None else str(error.found)
        yield Finding(f"{format}.planes", "error", str(error.path), None, f"{error.what}: {found}", None, _RESTORE)
        if store.exists(base + INDEX):
            return
        entries = ()
    for entry in entries:
        path = plane_path(base, entry)
        problem = plane_problem(store, base, entry)
        if problem is not None:
            expected = None if problem.expected is None else str(problem.expected)
            yield Finding(f"{format}.plane", "error", path, None, problem.what, expected, _RESTORE)
        elif full and (digest := plane_digest(store, path)) != entry.digest:
            what = f"the plane {entry.name} has the digest {digest}"
            yield Finding(f"{format}.plane", "error", path, None, what, entry.digest, _RESTORE)
    known = {plane_path(base, one) for one in (*entries, *_indexed_planes(store, base))}
    for path in plane_files(store, base):
        if path not in known:
            fix = "Restore the index that lists it, or remove the plane"
            yield Finding(f"{format}.plane-unlisted", "error", path, None, "a plane that no index lists", None, fix)


def _indexed_planes(store: Store, base: str) -> Iterator[PlaneEntry]:
    """Yield the planes in both indexes: a writer at work or killed has left others, which the next one removes."""
    for path in dict.fromkeys((base + INDEX, waiting_index(store, base))):
        with contextlib.suppress(Corrupt, Unsupported, UnsafeData):
            index = _read_index(store, path)
            yield from () if index is None else index.planes


def plane_files(store: Store, base: str) -> list[str]:
    """Return the files of this machine next to data that are named like its planes."""
    folder, _, name = base.rpartition("/")
    where = folder or ("/" if base.startswith("/") else ".")
    if not store.is_local or not store.is_folder(where):  # several files have no folder of their own
        return []
    start = f"{name}.plane."
    with os.scandir(where) as found:
        return sorted(f"{folder}/{one.name}" if folder else one.name for one in found if one.name.startswith(start))
