"""Parts shared by the sources of all formats: their base class, how files are read, and EOS ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import logger, redact
from penstock.abc import SupportsMmap
from penstock.errors import ConfigError, Truncated, Unsupported
from penstock.formats._exclusions import stored, whole_of
from penstock.node.over import SourceNode
from penstock.store._files import on_network
from penstock.store.base import Store
from penstock.store.fingerprint import files_key
from penstock.types import Manifest, OpenOptions, ReadMode

_PLAIN = OpenOptions()


class StoredSource(SourceNode):
    """Samples of one dataset. A subclass finds the fingerprint, and names its files and options.

    Attributes:
        title: name of the format.
        stated: options that recipes state, in their order.
    """

    kind = "open"
    stated: ClassVar[tuple[str, ...]] = ()
    _is_compressed = False

    def __init__(self, store: Store, path: str, options: OpenOptions) -> None:
        self._store = store
        self._path = path
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._store, self._path, self._options))

    @property
    def fingerprint(self) -> str:
        """Digest of the format's own index, and of a sample of the files."""
        if self._fingerprint is None:
            self._fingerprint = self._find_fingerprint()
        return self._fingerprint

    def _find_fingerprint(self) -> str:
        raise TypeError(type(self).__name__)

    @property
    def kept_key(self) -> str:
        """Key of what this host derives from the data; see `penstock._digest`."""
        return files_key(self.fingerprint, *self._read_files())

    def _read_files(self) -> tuple[Store, Iterable[str]]:
        return self._store, (self._path,)

    @property
    def preferred_mode(self) -> str | None:
        """Default mode of `Shuffle`: `"blocks"` for remote data, and if blocks are decoded whole."""
        return preferred_mode(self._store, compressed=self._is_compressed)

    def recipe(self) -> dict[str, Any]:
        """Return format, path and options as plain JSON."""
        return {"kind": "open", "format": self.title, "path": redacted(self._path), **self._stated()}

    def _stated(self) -> dict[str, Any]:
        given = ((name, getattr(self._options, name)) for name in self.stated)
        plain = {name: list(one) if isinstance(one, tuple) else one for name, one in given}
        return {name: one for name, one in plain.items() if one != getattr(_PLAIN, name)}


def redacted(path: str | Sequence[str]) -> str | list[str]:
    """Return a path or a list of paths without secrets."""
    return redact(path) if isinstance(path, str) else [redact(one) for one in path]


Mode = Literal["global", "blocks"]


def preferred_mode(store: Store, *, compressed: bool = False) -> Mode:
    """Return `"blocks"` if reading a sample costs as much as its neighbors: one request, or decoding one block."""
    return "blocks" if compressed or not isinstance(store, SupportsMmap) else "global"


def way_to_read(store: Store, path: str, read: ReadMode) -> Literal["mmap", "pread"]:
    """Return how to read files under `path`; raise `Unsupported` for `"mmap"` if the store can't map files."""
    if read == "auto":
        safe = not (store.is_local and on_network(path))
        return "mmap" if safe and isinstance(store, SupportsMmap) else "pread"
    if read == "mmap" and not isinstance(store, SupportsMmap):
        raise Unsupported("files of this store can't be mapped", path=path, hint='Open with read="pread"')
    return read


def map_least(
    store: Any, path: str, least_bytes: int, what: str = "the file became shorter after it was opened"
) -> NDArray[np.uint8]:
    """Map a file read-only, as uint8[n]; raise `Truncated` with the text `what` if it has fewer than `least_bytes`."""
    mapped: NDArray[np.uint8] = store.mmap(path)
    if len(mapped) < least_bytes:
        hint = "Don't replace a dataset while it is being read"
        raise Truncated(what, path=path, offset_bytes=len(mapped), expected=f"{least_bytes} bytes", hint=hint)
    return mapped


_log = logger(__name__)


def no_such_mark(path: str, mark: int) -> ConfigError:
    """Return the error for data without the id that is supposed to separate documents."""
    what = "no token has the id given as the end of documents"
    hint = "Give the right one with --eos-id (eos_id=), or omit it and use --one-document"
    return ConfigError(what, path=path, found=f"eos_id {mark}", hint=hint)


def require_recorded_eos(path: str, eos_id: int | None, manifest: Manifest | None) -> None:
    """Raise `ConfigError` if an EOS id contradicts the one recorded with the data."""
    recorded = None if manifest is None else manifest.eos_id
    if eos_id is not None and recorded is not None and eos_id != recorded:
        raise ConfigError(
            "the data records a different EOS id",
            path=path,
            found=eos_id,
            expected=recorded,
            hint="Omit --eos-id (eos_id=); to cut labelled windows at another id, use Chunk(eos_id=)",
        )


def certain_eos(source: Any, shown: str) -> int | None:
    """Return the id that ends every document of a token source, for a side file; None if unknown.

    If this id separated the documents, the last one may lack it. Then none is recorded, and a warning is logged.
    """
    if source.eos_id is None or not getattr(stored(whole_of(source)), "is_marked", False):
        return source.eos_id
    total = source.num_tokens
    if total and int(source.tokens(total - 1, total)[0]) != source.eos_id:
        _log.warning("%s: the last document doesn't end with id %d, so no EOS id is recorded", shown, source.eos_id)
        return None
    return source.eos_id
