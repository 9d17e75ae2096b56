"""Errors and warnings with the original's texts and types, so that code that catches those catches these."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock._limits import count_in
from penstock._secrets import redact
from penstock.compat.streaming.shards import Shards
from penstock.errors import ConfigError, Corrupt, MissingExtra, NotFound, PenstockError, Truncated
from penstock.formats._exclusions import stored
from penstock.formats.shards.index_json import INDEX_NAME

_SHARDS_IN_CACHE = 4
"""The original rejects a `cache_limit` below this multiple of the largest shard's size."""
SAMPLING_METHODS = ("balanced", "fixed")


def check_sampling(method: str, predownload: int | None, batch_size: int | None) -> None:
    """Reject an unknown `sampling_method`; warn about a `predownload` below the batch size."""
    if method not in SAMPLING_METHODS:
        expected = " or ".join(SAMPLING_METHODS)
        raise ConfigError("Invalid sampling method: unknown name", found=repr(method), expected=expected)
    if predownload is not None and batch_size is not None and predownload < batch_size:
        warnings.warn(
            f"predownload < batch_size ({predownload} < {batch_size}). This may result in slower batch time. "
            "Recommendation is to set predownload to at least batch_size.",
            stacklevel=4,
        )


def check_streams(streams: Sequence[Any], sources: Sequence[Any], *, allow_unsafe_types: bool) -> None:
    """Refuse a stream without samples, and columns that run code.

    Raises:
        EmptyStream: one has no samples; it is named.
        ConfigError: one has a column that is decoded by running code, which was not allowed.
    """
    for number, (stream, source) in enumerate(zip(streams, sources, strict=True)):
        where = redact(str(stored(source).folder.path))
        if not len(source):
            raise EmptyStream(f"Stream contains no samples: stream {number}", path=where, hint=f"Omit it: {stream}")
        unsafe = [field.name for field in stored(source).schema.fields if field.kind == "pickle"]
        if unsafe and not allow_unsafe_types:
            hint = "If you trust its author: allow_unsafe_types=True"
            raise ConfigError(f"column {unsafe[0]!r} contains an unsafe type, pkl", path=where, hint=hint)


def check_cache_limit(limit: int | str | None, sources: Sequence[Any]) -> None:
    """Refuse a `cache_limit` that the original refuses: nothing could be read within it.

    Raises:
        ConfigError: it is below the indexes, or below four of the largest shard.
    """
    if not limit:
        return
    limit_bytes = parse_cache_limit(limit)
    folders = [stored(source).folder for source in sources]
    index_bytes = sum(one.store.size(f"{one.path}/index.json") for one in folders)
    if limit_bytes <= index_bytes:
        what = f"Minimum cache usage ({index_bytes} bytes) is larger than the cache limit ({limit_bytes} bytes)"
        raise ConfigError(what, hint="Raise cache_limit, or omit it: all datasets share one cache here")
    needed = _SHARDS_IN_CACHE * max(stored(source).details()["largest_shard_bytes"] for source in sources)
    if limit_bytes < needed:
        what = f"Cache limit ({limit_bytes} bytes) is too low. Increase the `cache_limit` to {needed} bytes"
        raise ConfigError(what, hint="Or omit it: all datasets share one cache here, see PENSTOCK_CACHE_BYTES")


def parse_cache_limit(limit: float | str) -> int:
    """Return a number or text such as `"64gb"` in bytes, or raise `ConfigError`."""
    if isinstance(limit, str) and len(limit) < 40:
        text = limit.strip().lower()
        for power, unit in enumerate(("kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb"), 1):
            if text.endswith(unit) and _is_number(text[:-2]):
                return int(float(text[:-2]) * 1024**power)
        plain = text.removesuffix("b")
        if (size_bytes := count_in(plain)) is not None:
            return size_bytes
    if isinstance(limit, str):
        raise ConfigError("Unsupported value/suffix: not a size", found=repr(limit), expected='such as 1000 or "64gb"')
    return int(limit)


def warn_of_blocks(shards: Shards, block_size: int | None, canonical_nodes: int) -> None:
    """Warn if a shuffle by `py1e` moves samples by less than the size of their shard."""
    largest = int(shards.samples_per_shard.max(initial=0))
    size = max(4_000_000 // max(canonical_nodes, 1), 1 << 18) if block_size is None else block_size
    if largest > size:
        warnings.warn(
            f"Shuffle block size was smaller than shard size for some shards ({size} < {largest} samples): "
            "their samples are barely mixed. Set shuffle_block_size to a larger value for a better shuffle.",
            stacklevel=3,
        )


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < 1e30
    except ValueError:
        return False


class NoIndex(NotFound, RuntimeError):
    """A dataset on this machine without its index: the original's `RuntimeError`."""


class NoPlace(ConfigError, FileExistsError):
    """A stream of nothing: the original's `FileExistsError`."""


class EmptyStream(ConfigError, RuntimeError):
    """A stream without samples: the original's `RuntimeError`."""


class NoPlaceOfASample(ConfigError, TypeError):
    """Not an index: the original's `ValueError`, of which `ConfigError` is a subclass."""


class _Undecodable(json.JSONDecodeError):
    def __init__(self, what: str) -> None:
        super().__init__(what, "", 0)


class DamagedIndex(Corrupt, _Undecodable):
    """An index of invalid JSON: the original's `JSONDecodeError`."""


class CutIndex(Truncated, _Undecodable):
    """An index that is empty or cut off: the original's `JSONDecodeError`."""


@contextmanager
def as_the_original(*, is_remote: bool) -> Generator[None]:
    """Raise what opening a dataset raises as the original's types, too."""
    try:
        yield
    except (Truncated, Corrupt) as error:
        if not str(error.path).endswith(INDEX_NAME):
            raise
        kind = CutIndex if isinstance(error, Truncated) else DamagedIndex
        raise _again(error, kind, f"Index file at {error.path} is empty or corrupted: {error.what}") from error
    except NotFound as error:
        if is_remote:
            raise _again(error, type(error), f"No such file or directory: {error.what}") from error
        what = f"No `remote` provided, but local file does not exist (No such file or directory): {error.what}"
        raise _again(error, NoIndex, what) from error


def _again(error: PenstockError, kind: type[PenstockError], what: str) -> PenstockError:
    return kind(what, path=error.path, found=error.found, expected=error.expected, hint=error.hint)


def package(module: str, instead: str | None = None) -> Any:
    """Import a module.

    Args:
        module: dotted name.
        instead: alternative to the installation, for the hint.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        hint = f"pip install {name}" + (f", or {instead}" if instead else "")
        raise MissingExtra(f"the package {name!r} is needed but not installed", hint=hint) from error
