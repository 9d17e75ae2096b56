"""Base class of sources that read a dataset as its format stores it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from penstock._secrets import redact
from penstock.formats import _modes
from penstock.node.over import SourceNode
from penstock.store.base import Store
from penstock.store.fingerprint import files_key
from penstock.types import OpenOptions

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
        return _modes.preferred_mode(self._store, compressed=self._is_compressed)

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
