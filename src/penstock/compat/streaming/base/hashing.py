"""The original's `streaming.base.hashing`, under the same names."""

from __future__ import annotations

from penstock.codec.hashes import ALGORITHMS, hex_digest
from penstock.errors import ConfigError


def get_hashes() -> set[str]:
    """Names of the algorithms."""
    return set(ALGORITHMS)


def is_hash(algo: str) -> bool:
    """Whether it is one of `get_hashes()`."""
    return algo in ALGORITHMS


def get_hash(algo: str, data: bytes) -> str:
    """Hex digest.

    Raises:
        ConfigError: there is no such algorithm; this is a ValueError too.
    """
    if not is_hash(algo):
        raise ConfigError(f"{algo} is not a supported hash algorithm", expected=", ".join(ALGORITHMS))
    return hex_digest(algo, data)
