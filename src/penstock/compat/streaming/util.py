"""Functions of the original that scripts call: its `streaming.base.util`, `compression`, `hashing` and `shuffle`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import logger
from penstock.codec import compress as codec
from penstock.codec.hashes import ALGORITHMS, hex_digest
from penstock.compat.streaming.checks import parse_cache_limit
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError, NotFound
from penstock.formats.shards import merge as shards
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.order.compat.streaming.shuffle import shuffled_ids
from penstock.store.place import Place, local_place, place_of
from penstock.store.put import put
from penstock.types import IntArray

_log = logger()

Where = str | tuple[str, str]

_ABBREVIATED = re.compile(r"(\d{1,30}(?:\.\d*)?|\.\d+)\s*([kmbt]?)")
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST_BYTES = 1 << 40  # that `decompress` makes
_DEFAULTS = {"download_timeout": 60, "keep_local": True}


@overload
def merge_index(out: Where, /, *, keep_local: bool = True, download_timeout: int = 60) -> None: ...
@overload
def merge_index(*, out: Where, keep_local: bool = True, download_timeout: int = 60) -> None: ...
@overload
def merge_index(
    index_file_urls: Sequence[Where], out: Where, keep_local: bool = True, download_timeout: int = 60
) -> None: ...
def merge_index(
    index_file_urls: Where | Sequence[Where] | None = None,
    out: Where | None = None,
    keep_local: bool = True,
    download_timeout: int = 60,
) -> None:
    """Write one `index.json` for the shards of all datasets below a directory.

    Without a list, all datasets below it are included, at any depth, in numeric order: directory 2 before 10.

    Args:
        index_file_urls: list of index files, each a path, a URL, or (path, URL); or the directory.
        out: directory of the index: a path, a URL, or (path, URL) for both.
        keep_local: with (path, URL), keep the merged index at the path; nothing else is ever removed.
        download_timeout: ignored, with a log message.

    Raises:
        NotFound: a dataset has no index, or there are no datasets.
        ConfigError: there is no directory, a dataset isn't below it, or a different index exists.

    Examples:
        >>> from penstock.compat.streaming import LocalDataset, MDSWriter, merge_index
        >>> for part in range(2):
        ...     with MDSWriter(columns={"id": "int"}, out=f"parts/{part}") as writer:
        ...         writer.write({"id": part})
        >>> merge_index("parts")
        >>> [sample["id"] for sample in LocalDataset("parts")]
        [0, 1]
    """
    say_unused("merge_index", "the store has its own time limits", {"download_timeout": download_timeout}, _DEFAULTS)
    if out is None or index_file_urls is None:
        folder = index_file_urls if out is None else out
        if not isinstance(folder, (str, tuple)):
            raise ConfigError("merge_index needs a folder, or a list of index files and a folder", found=repr(folder))
        out, parts = folder if isinstance(folder, str) else (str(folder[0]), str(folder[1])), None
    else:
        parts = [
            (part, "") if isinstance(part, str) else (str(part[0]), str(part[1] or "")) for part in index_file_urls
        ]
    if isinstance(out, tuple) and out[0] and out[1]:
        _merge_both(out, parts, keep_local)
        return
    out = out if isinstance(out, str) else out[0] or out[1]
    say_unused("merge_index", "without a URL the index is kept", {"keep_local": keep_local}, _DEFAULTS)
    shards.merge_index(out, None if parts is None else [_present(part) for part in parts])


def _merge_both(out: tuple[str, str], parts: list[tuple[str, str]] | None, keep_local: bool) -> None:
    """Merge in the local folder and upload the index; if the parts are only at the URL, merge there and download."""
    local, remote = local_place(out[0], "the local folder"), place_of(out[1])
    if parts is None:
        is_here = any(name != INDEX_NAME and name.endswith(f"/{INDEX_NAME}") for name in _below(local))
    else:
        is_here = all(place_of(one).exists() for one, _ in parts)
    here, there = (local, remote) if is_here else (remote, local)
    chosen = None if parts is None else [one if is_here else _far(one, url) for one, url in parts]
    shards.merge_index(here.path, chosen)
    if not keep_local and not is_here:
        return
    index, copy = here.child(INDEX_NAME), there.child(INDEX_NAME)
    put(copy.store, copy.path, index.store.get(index.path, 0, None))
    if not keep_local:
        local.store.delete(local.child(INDEX_NAME).path)


def _below(folder: Place) -> list[str]:
    if not folder.is_folder():
        return []
    return [name[len(folder.path) :] for name in folder.store.list(folder.path)]


def _far(local: str, url: str) -> str:
    """Return the URL of an index whose local file may be missing."""
    if not url:
        what = "Check data availability! The index is missing, and there is no URL to download it from"
        raise NotFound(what, path=local)
    return url


def clean_stale_shared_memory() -> None:
    """Remove shared memory that killed runs of the original left on this machine; Penstock uses none.

    Unlike the original, it keeps memory that another process still maps: that run is alive.

    Examples:
        >>> from penstock.compat.streaming import clean_stale_shared_memory
        >>> clean_stale_shared_memory()
    """
    removed = remove_stale()
    _log.info("removed shared memory from killed runs of the original: %s", len(removed) or "none")


def _present(part: tuple[str, str]) -> str:
    local, url = part
    return local if place_of(local).exists() else _far(local, url) if url else local


def get_list_arg(text: str) -> list[str]:
    """Return the comma-separated parts of a text; an empty list for an empty text."""
    return text.split(",") if text else []


def bytes_to_int(bytes_str: float | str) -> int:
    """Return a number or text such as `"64mb"` in bytes, or raise `ConfigError`, a `ValueError`."""
    return parse_cache_limit(bytes_str)


def number_abbrev_to_int(abbrev_str: float | str) -> int:
    """Return a number or text such as `"90k"`, `"1.5m"`, `"2b"` or `"1t"` as int, or raise `ConfigError`."""
    if not isinstance(abbrev_str, str):
        return int(abbrev_str)
    found = _ABBREVIATED.fullmatch(abbrev_str.strip().lower())
    if not found:
        what = "Unsupported value/suffix: not a number"
        raise ConfigError(what, found=repr(abbrev_str), expected='such as 1000, "90k" or "2m"')
    return int(found[1]) if not found[2] and found[1].isdigit() else int(float(found[1]) * _SCALES[found[2]])


def wait_for_file_to_exist(filename: str, poll_interval: float, timeout: float, err_msg: str) -> None:
    """Wait until a file exists.

    Args:
        filename: path of the file.
        poll_interval: seconds between two checks.
        timeout: seconds after which an error is raised.
        err_msg: start of the error's message.

    Raises:
        RuntimeError: the file doesn't exist in time.
    """
    begun = time.monotonic()
    place = place_of(filename)
    while not place.exists():
        if time.monotonic() - begun > timeout:
            raise RuntimeError(f"{err_msg}: {filename} doesn't exist after {timeout} s")
        time.sleep(poll_interval)


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """Return the message for a missing package that an extra installs."""
    return f"the package {package_name!r} is not installed: pip install {package_name}, or the extra {extra_deps!r}"


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Decorate a function so that it is called again if it raises; can be used without arguments.

    Args:
        exc_class: exception class, or several, to retry after.
        clean_up_fn: called after each exception.
        num_attempts: total number of calls; the last exception is raised.
        initial_backoff: seconds before the second call, doubled before each further call.
        max_jitter: maximum of random additional seconds.

    Raises:
        ConfigError: `num_attempts` is less than 1.
    """
    if num_attempts < 1:
        raise ConfigError("num_attempts must be at least 1", found=num_attempts)
    if inspect.isfunction(exc_class):
        return retry()(exc_class)
    caught = tuple(exc_class) if isinstance(exc_class, Sequence) else exc_class

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(num_attempts - 1):
                try:
                    return function(*args, **kwargs)
                except caught as error:
                    if clean_up_fn is not None:
                        clean_up_fn()
                    _log.debug("attempt %d of %d failed: %s", attempt + 1, num_attempts, error)
                    time.sleep(initial_backoff * 2**attempt + random.random() * max_jitter)
            try:
                return function(*args, **kwargs)
            except caught:
                if clean_up_fn is not None:
                    clean_up_fn()
                raise

        return call

    return decorate


def get_index_basename() -> str:
    """Return the name of the index in a dataset's directory."""
    return INDEX_NAME


def get_compressions() -> set[str]:
    """All that `compression=` of a writer can be: families, and families with a level."""
    return set(codec.FAMILIES) | {f"{family}:{level}" for family in codec.FAMILIES for level in codec.levels_of(family)}


def is_compression(algo: str | None) -> bool:
    """Whether it is one of `get_compressions()`."""
    return algo in get_compressions()


def get_compression_extension(algo: str) -> str:
    """Return the extension of files with this compression.

    Raises:
        ConfigError: the compression is unknown; also a `ValueError`.
    """
    return _parsed(algo).family


def compress(algo: str | None, data: bytes) -> bytes:
    """Compressed bytes; the same for None.

    Raises:
        ConfigError: the compression is unknown; also a `ValueError`.
    """
    return data if algo is None else codec.compress(data, _parsed(algo))


def decompress(algo: str | None, data: bytes) -> bytes:
    """Return decompressed data; without an algorithm, the same data.

    Raises:
        ConfigError: the compression is unknown; also a `ValueError`.
        FormatError: the bytes are damaged.
    """
    return data if algo is None else codec.decompress(data, _parsed(algo).family, limit_bytes=_MOST_BYTES)


def _parsed(algo: str) -> codec.Compression:
    found = codec.parse_compression(algo) if is_compression(algo) else None
    if found is None:
        raise ConfigError(f"{algo} is not a supported compression algorithm", expected=", ".join(codec.FAMILIES))
    return found


def get_hashes() -> set[str]:
    """Names of the algorithms."""
    return set(ALGORITHMS)


def is_hash(algo: str) -> bool:
    """Whether it is one of `get_hashes()`."""
    return algo in ALGORITHMS


def get_hash(algo: str, data: bytes) -> str:
    """Return the hex digest of data.

    Raises:
        ConfigError: the algorithm is unknown; also a `ValueError`.
    """
    if not is_hash(algo):
        raise ConfigError(f"{algo} is not a supported hash algorithm", expected=", ".join(ALGORITHMS))
    return hex_digest(algo, data)


def get_shuffle(
    algo: str, shard_sizes: IntArray, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> NDArray[np.int64]:
    """Return the samples of all shards in the order of an epoch, int64[samples].

    Args:
        algo: `naive`, `py1s`, `py2s`, `py1br` or `py1e`.
        shard_sizes: int64[k]: samples of each shard.
        num_canonical_nodes: number of parts that are shuffled separately.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
        block_size: approximate distance by which `py1br` and `py1e` move a sample.

    Raises:
        ConfigError: an unknown algorithm, or a block too small.
    """
    sizes = np.asarray(shard_sizes, np.int64)
    return shuffled_ids(algo, sizes, num_canonical_nodes, seed, epoch, block_size).astype(np.int64)


_FOLDER = "/dev/shm"
_NAMES = "locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume|epoch_shape|epoch_data"
_OWN = re.compile(rf"\d{{6}}_(?:{_NAMES})")


def remove_stale() -> list[str]:
    """Remove segments that no other process has mapped; return their names, sorted."""
    try:
        found = {name for name in os.listdir(_FOLDER) if _OWN.fullmatch(name)}
    except OSError:
        return []
    removed: list[str] = []
    for name in sorted(found - _mapped_elsewhere() if found else found):
        with contextlib.suppress(OSError):
            os.unlink(f"{_FOLDER}/{name}")
            removed.append(name)
    return removed


def _mapped_elsewhere() -> set[str]:
    """Return the names that other processes have mapped, as far as they are visible."""
    names: set[str] = set()
    for process in os.listdir("/proc"):
        if process.isdigit() and int(process) != os.getpid():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file,
            ):
                names.update(line.rstrip().rpartition("/")[2] for line in file if _FOLDER in line)
    return names
