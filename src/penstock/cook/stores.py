"""Stores of files by name, decoded by their extension: of a sample's own dataset, and of auxiliary ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import GenericAlias
from typing import Any, TypeAlias

from penstock._resolved import capability
from penstock.abc import SupportsFiles
from penstock.codec.parts import DecodeOptions, decode_part
from penstock.types import MediaMetadata, SourceInfo

Described: TypeAlias = Callable[[SourceInfo], SourceInfo]


@dataclass(frozen=True, slots=True)
class FileStore:
    """Named files of a dataset, for cook functions.

    Attributes:
        source: a WebDataset, a directory, or a JSONL file in Energon's flavor.
        decode: how to decode files, by extension; None returns bytes.
        key: key of the sample being cooked, which is put before names that begin with a dot. None: names are complete.
        described: function that changes how a file is described in the `__sources__` of samples.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import FileStore
        >>> store = FileStore(ps.open("pictures", raw=True))
        >>> store.get("002.txt")
        b'picture 2'
        >>> store.of("003").get(".txt")
        b'picture 3'
    """

    source: SupportsFiles
    decode: DecodeOptions | None = None
    key: str | None = None
    described: Described | None = None

    __class_getitem__ = classmethod(GenericAlias)  # FileStore[bytes] says what its files are

    def get(self, name: str, sample: Any = None) -> Any:
        """Return the value of one file, and add the file to the `__sources__` of `sample` if given.

        Raises:
            NotFound: there is no such file.
            FormatError: the file can't be decoded.
        """
        value, info = self[name]
        if sample is not None:
            add_source(sample, info)
        return value

    def __getitem__(self, name: str, /) -> tuple[Any, SourceInfo]:
        """Return the value of one file, and its origin."""
        data, shard = self.read(name)
        return (data if self.decode is None else decode_part(name, data, self.decode)), self.info(name, shard)

    def read(self, name: str) -> tuple[bytes, str | None]:
        """Return the stored bytes of one file, and its shard if the dataset has shards."""
        name, with_shard = self.whole(name), capability(self.source, "get_with_shard")
        return (self.source.get(name), None) if with_shard is None else with_shard(name)

    def info(self, name: str, shard: str | None = None) -> SourceInfo:
        """Return the origin of a file; without a shard, the dataset's path is used."""
        name, path = self.whole(name), self.get_path()
        info = SourceInfo(path, name, path if shard is None else shard, (name,))
        return info if self.described is None else self.described(info)

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the indexed metadata of one media file, or raise `NotFound`."""
        return self.source.get_media_metadata(self.whole(name))

    def get_path(self) -> str:
        """Return the path of the dataset."""
        return str(capability(self.source, "path") or "")

    def of(self, key: str) -> FileStore:
        """Return the same store for the sample with this key."""
        return replace(self, key=key)

    def whole(self, name: str) -> str:
        """Return the full name: names that begin with a dot are prefixed with the sample's key."""
        return self.key + name if self.key is not None and name.startswith(".") else name


def add_source(sample: Any, info: SourceInfo) -> None:
    """Add to the `__sources__` of a sample, a dict or an object."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), info)
    else:
        sample.__sources__ = (*(getattr(sample, "__sources__", None) or ()), info)


def stores_of(
    aux: Mapping[str, Any], decode: DecodeOptions | None, described: Described | None = None
) -> dict[str, FileStore]:
    """name → store, of sources or stores."""
    return {
        name: one if isinstance(one, FileStore) else FileStore(one, decode, described=described)
        for name, one in aux.items()
    }
