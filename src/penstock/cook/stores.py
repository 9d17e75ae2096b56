"""Stores of files by name, decoded by their extension: of a sample's own dataset, and of auxiliary ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import GenericAlias
from typing import Any, TypeAlias

from penstock.abc import SupportsFiles
from penstock.codec.parts import DecodeOptions, decode_part
from penstock.types import MediaMetadata, SourceInfo

Described: TypeAlias = Callable[[SourceInfo], SourceInfo]


@dataclass(frozen=True, slots=True)
class FileStore:
    """Named files of one dataset.

    Attributes:
        source: gives files by name: a WebDataset, a folder, a JSONL in Energon's flavour.
        decode: how files are decoded by their extension; None gives their bytes.
        key: of the sample that is cooked; a name that begins with a dot has it in front. None: names are whole.
        described: changes how a file is described in the `__sources__` of samples.
    """

    source: SupportsFiles
    decode: DecodeOptions | None = None
    key: str | None = None
    described: Described | None = None

    __class_getitem__ = classmethod(GenericAlias)  # FileStore[bytes] says what its files are

    def get(self, name: str, sample: Any = None) -> Any:
        """The value of one file; the `__sources__` of `sample`, where one is given, name the file from then on.

        Raises:
            NotFound: no such file.
            FormatError: it can't be decoded.
        """
        value, info = self[name]
        if sample is not None:
            add_source(sample, info)
        return value

    def __getitem__(self, name: str, /) -> tuple[Any, SourceInfo]:
        """The value of one file, and where it is from."""
        data, shard = self.read(name)
        return (data if self.decode is None else decode_part(name, data, self.decode)), self.info(name, shard)

    def read(self, name: str) -> tuple[bytes, str | None]:
        """The stored bytes of one file, and the shard that it is in, where the dataset has shards."""
        name, with_shard = self.whole(name), getattr(self.source, "get_with_shard", None)
        return (self.source.get(name), None) if with_shard is None else with_shard(name)

    def info(self, name: str, shard: str | None = None) -> SourceInfo:
        """Where a file is from; without a shard, the dataset's path stands for it."""
        name, path = self.whole(name), self.get_path()
        info = SourceInfo(path, name, path if shard is None else shard, (name,))
        return info if self.described is None else self.described(info)

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """What the media index knows of one file; raises `NotFound`."""
        return self.source.get_media_metadata(self.whole(name))

    def get_path(self) -> str:
        """Path of the dataset."""
        return str(getattr(self.source, "path", ""))

    def of(self, key: str) -> FileStore:
        """The same store, beside the sample with this key."""
        return replace(self, key=key)

    def whole(self, name: str) -> str:
        """The full name: with the sample's key in front where it begins with a dot."""
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
