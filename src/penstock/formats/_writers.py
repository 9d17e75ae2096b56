"""Base class of writers, and checks of samples and options."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import msgspec

from penstock.errors import ConfigError
from penstock.types import Batch, Manifest, Sample


class BaseWriter(ABC):
    """Writer of one dataset; see `penstock.abc.Writer`. Made by `penstock.create`.

    Args:
        path: path of the dataset.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._open = True

    def commit(self) -> Manifest:
        """Make the dataset visible, durably, with its side file."""
        require_open(self._open, self._path)
        self._open = False
        try:
            return self._commit()
        finally:
            self._close()

    def abort(self) -> None:
        """Discard everything written so far."""
        self._open = False
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.commit()

    @abstractmethod
    def _commit(self) -> Manifest:
        """Write the rest, and make the dataset visible."""

    @abstractmethod
    def _close(self) -> None:
        """Discard uncommitted data and release the output; a second call does nothing."""

    @contextlib.contextmanager
    def _aborting(self) -> Generator[None]:
        """Abort after an error: the files no longer match the counts."""
        try:
            yield
        except BaseException:
            self.abort()
            raise


def require_open(is_open: bool, path: str) -> None:
    """Raise `ConfigError` for a writer that was committed or aborted."""
    if not is_open:
        raise ConfigError("the writer is closed: it was committed or aborted", path=path)


def require_fields(fields: object, path: str) -> None:
    """Raise `ConfigError` for a sample or a batch that isn't a mapping from names to values."""
    if not isinstance(fields, Mapping):
        found = f"a {type(fields).__name__}"
        raise ConfigError("a sample or batch must be a mapping", path=path, found=found, expected="{name: value}")


def rows_of(batch: Batch, path: str) -> Iterator[Sample]:
    """Yield the k samples of a batch of columns.

    Raises:
        ConfigError: there are no columns, or their lengths differ.
    """
    require_fields(batch, path)
    num_rows_of(batch.values(), path)
    names = list(batch)
    return (dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True))


def num_rows_of(columns: Iterable[Sized], path: str) -> int:
    """Return the common length of all columns, 0 without columns; raise `ConfigError` if they differ."""
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        raise ConfigError("columns of different lengths", path=path, found=lengths)
    return lengths[0] if lengths else 0


def require_known(options: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    """Raise `ConfigError` for options that a writer doesn't support, or whose values have the wrong type."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"unknown option {', '.join(unknown)}", path=path, expected=", ".join(known))
    for name, value in options.items():
        fits, expected = _KINDS.get(name, _ANY)
        if value is not None and not fits(value):
            raise ConfigError(f"invalid value for the option {name}", path=path, found=repr(value), expected=expected)


def _is_count(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, cast(Sequence[Any], value)))


def _are_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, [*value, *cast(Mapping[Any, Any], value).values()]))


def _is_plain(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and bool(msgspec.json.encode(dict(cast(Mapping[Any, Any], value))))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


_Kind: TypeAlias = tuple[Callable[[Any], bool], str]
_ANY: _Kind = (lambda value: True, "")
_COUNT: _Kind = (_is_count, "an integer")
_TEXT: _Kind = (_is_text, "a text")
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(("token_bytes", "vocab_size", "eos_id", "zarr_format", "maxcount", "maxsize"), _COUNT),
    **dict.fromkeys(("chunk_tokens", "chunk_starts", "shard_tokens"), _COUNT),
    **dict.fromkeys(("tokenizer", "tokenizer_digest", "compression", "split", "pattern"), _TEXT),
    "shuffle_tars": (lambda value: isinstance(value, bool), "true or false"),
    "dtype": (lambda value: isinstance(value, Hashable), "a dtype name"),
    "hashes": (_are_names, "a list of names"),
    "inputs": (_are_texts, "name → digest"),
    "options": (_is_plain, "name → JSON value"),
    "dataset": (_is_plain, "keys and values of dataset.yaml"),
    "code": (lambda value: isinstance(value, Mapping), "file name → content"),
    "size_limit": (lambda value: _is_count(value) or _is_text(value), "bytes, or a text such as 64mb"),
}
"""Option → its possible types; a writer checks by itself which values it supports."""
