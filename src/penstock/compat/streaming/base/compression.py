"""The original's `streaming.base.compression`: shards compressed in memory, under the same names."""

from __future__ import annotations

from penstock.codec import compress as codec
from penstock.errors import ConfigError

_MOST_BYTES = 1 << 40


def get_compressions() -> set[str]:
    """All that `compression=` of a writer can be: families, and families with a level."""
    return set(codec.FAMILIES) | {f"{family}:{level}" for family in codec.FAMILIES for level in codec.levels_of(family)}


def is_compression(algo: str | None) -> bool:
    """Whether it is one of `get_compressions()`."""
    return algo in get_compressions()


def get_compression_extension(algo: str) -> str:
    """Extension of files that are compressed by it.

    Raises:
        ConfigError: it is none; this is a ValueError too.
    """
    return _parsed(algo).family


def compress(algo: str | None, data: bytes) -> bytes:
    """Compressed bytes; the same for None.

    Raises:
        ConfigError: it is no compression; this is a ValueError too.
    """
    return data if algo is None else codec.compress(data, _parsed(algo))


def decompress(algo: str | None, data: bytes) -> bytes:
    """What was compressed; the same for None.

    Raises:
        ConfigError: it is no compression; this is a ValueError too.
        FormatError: the bytes are damaged.
    """
    return data if algo is None else codec.decompress(data, _parsed(algo).family, limit_bytes=_MOST_BYTES)


def _parsed(algo: str) -> codec.Compression:
    found = codec.parse_compression(algo) if is_compression(algo) else None
    if found is None:
        raise ConfigError(f"{algo} is not a supported compression algorithm", expected=", ".join(codec.FAMILIES))
    return found
